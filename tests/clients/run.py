"""Drives a built server with real clients, hostile requests and load.

    run.py              all of them but the page, in small versions
    run.py SUITE...     some of them: python node api soak page

Options of a suite come from the environment: BATON_API_EXAMPLES (requests for each endpoint),
BATON_SOAK (options of soak.py). BATON names the program.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import time

import hub
import stage

HERE = pathlib.Path(__file__).resolve().parent
PAGE = stage.ROOT / "crates" / "server" / "page-test"
KEY = "a key of the tests"
TINY = [f"hf.co/{name}" for name in hub.REPOSITORIES]
# Names that the suites give.
COPIES = ["copy-of-the-tests", "copy-of-api"]


def python():
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", HERE / "python"]


def node():
    # Modules are looked for beside and above the files that import them.
    room = stage.HOME.parent / "node"
    tests = [shutil.copy(path, room) for path in sorted((HERE / "node").iterdir())]
    return ["node", "--test", *(path for path in tests if str(path).endswith(".test.mjs"))]


def api():
    return [sys.executable, HERE / "api.py"]


def soak():
    options = os.environ.get("BATON_SOAK", "--clients 8 --requests 40").split()
    return [sys.executable, HERE / "soak.py", *options]


def page():
    return ["node", "--test", "--test-concurrency=1", *sorted(PAGE.glob("*.test.mjs"))]


SUITES = {"python": python, "node": node, "api": api, "soak": soak, "page": page}


def main():
    names = sys.argv[1:] or [name for name in SUITES if name != "page"]
    stage.fetch()
    stage.forget(TINY + COPIES)
    address = hub.start()
    options = ("--ctx", 2048, "--kv-tokens", 8192, "--threads", 2, "--max-models", 8)
    with stage.serve(*options, "--max-waiting", 512, hub=address) as open_, \
            stage.serve(*options, "--api-key", KEY, hub=address, name="locked") as locked:
        variables = {
            "BATON_URL": open_.url,
            "BATON_LOCKED_URL": locked.url,
            "BATON_KEY": KEY,
            "BATON_PID": str(open_.process.pid),
            # Clients must not find accounts of whoever runs this.
            "NO_PROXY": "127.0.0.1",
            "LANGSMITH_TRACING": "false",
        }
        for model in TINY:
            status, reply = stage.ask(open_.url, "POST", "/api/pull", {"model": model, "stream": False})
            assert (status, reply) == (200, {"status": "success"}), reply
        for server in (open_, locked):
            headers = {"x-api-key": KEY}
            assert stage.ask(server.url, "POST", "/api/generate", {"model": stage.MODEL}, headers)[0] == 200
        for name in names:
            begun = time.monotonic()
            done = subprocess.run(SUITES[name](), env=os.environ | variables, cwd=HERE)
            print(f"{name}: exit {done.returncode} after {time.monotonic() - begun:.1f} s", flush=True)
            if done.returncode:
                print(f"the server's log is {open_.log}", file=sys.stderr)
                sys.exit(1)
    stage.forget(TINY + COPIES)


if __name__ == "__main__":
    main()
