"""Runs `baton serve` for tests: on a free port, with its log in a file."""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PROGRAM = pathlib.Path(os.environ.get("BATON", TARGET / "release" / "baton"))
# Models that the program has fetched stay here from run to run.
HOME = TARGET / "clients" / "home"
MODEL = "smollm2"


class Server:
    """A running server."""

    def __init__(self, port, process, log):
        self.port, self.process, self.log = port, process, log
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path):
        """The JSON at a path, without any client package."""
        return ask(self.url, "GET", path)[1]

    def resident(self):
        """Bytes of memory that the process holds."""
        pages = pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


def ask(url, method, path, body=None, headers=None, timeout=300):
    """The status and the JSON of one request; None for a body that is not JSON."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=timeout)
    with contextlib.closing(connection):
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, headers or {})
        reply = connection.getresponse()
        data = reply.read()
        with contextlib.suppress(ValueError):
            return reply.status, json.loads(data)
        return reply.status, None


def environment(hub=None):
    """The program's surroundings: a home of its own, and a hub in place of the real one."""
    values = {**os.environ, "BATON_HOME": str(HOME), "BATON_CONFIG": str(HOME / "config")}
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "http_proxy", "https_proxy", "all_proxy") if hub else ():
        values.pop(name, None)
        values.pop(name.upper(), None)
    return values | ({"HF_ENDPOINT": hub} if hub else {})


def fetch(model=MODEL):
    """Lets the program fetch a model, unless it has it."""
    subprocess.run([PROGRAM, "pull", model], env=environment(), check=True)


def forget(models):
    """Removes models that an earlier run left."""
    for model in models:
        subprocess.run([PROGRAM, "rm", model], env=environment(), capture_output=True, check=False)


@contextlib.contextmanager
def serve(*arguments, hub=None, name="server"):
    """Starts the server, waits until it answers, and checks that it ends well when asked to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = HOME.parent / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as output:
        command = [PROGRAM, "serve", "--port", str(port), *map(str, arguments)]
        process = subprocess.Popen(command, env=environment(hub), stdout=output, stderr=output)
    server = Server(port, process, log)
    try:
        await_health(server)
        yield server
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=30)
        text = log.read_text(errors="replace")
        assert code == 0, f"the server ended with {code}:\n{text}"
        assert "panicked" not in text and "has a bug" not in text, text
    finally:
        process.kill()
        process.wait()


def await_health(server, limit=30):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if server.process.poll() is not None:
            break
        with contextlib.suppress(OSError):
            if ask(server.url, "GET", "/health")[0] == 200:
                return
        time.sleep(0.02)
    raise SystemExit(f"{PROGRAM} serve does not answer:\n{server.log.read_text(errors='replace')}")
