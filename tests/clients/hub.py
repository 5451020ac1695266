"""As much of a model hub as a download needs: listings with sizes and digests, and the files."""

import hashlib
import http.server
import json
import os
import pathlib
import threading

import stage
import tiny

ENDLESS = ["go", "ing ", "on ", "and "]
DATA = pathlib.Path(os.environ.get("BATON_TEST_DATA", stage.ROOT / "target" / "test-data"))
# An embedding model, where the tests' data are.
EMBEDDER = DATA / "models" / "all-MiniLM-L6-v2"


def repositories():
    """The files of each repository by their names."""
    found = {
        "test/answer": {"tiny-F32.gguf": tiny.model(tiny.ANSWER)},
        "test/call": {"tiny-F32.gguf": tiny.model(tiny.CALL)},
        "test/thought": {"tiny-F32.gguf": tiny.model(tiny.THOUGHT, thinks=True)},
        "test/endless": {"tiny-F32.gguf": tiny.model(ENDLESS, endless=True)},
    }
    if EMBEDDER.is_dir():
        files = [path for path in sorted(EMBEDDER.rglob("*")) if path.is_file()]
        found["test/embed"] = {str(path.relative_to(EMBEDDER)): path.read_bytes() for path in files}
    return found


REPOSITORIES = repositories()


def entry(name, data):
    """A file as listings tell of it: large ones with a digest."""
    entry = {"type": "file", "oid": "0f", "path": name, "size": len(data)}
    if len(data) > 1 << 18:
        digest = hashlib.sha256(data).hexdigest()
        entry["lfs"] = {"oid": digest, "size": len(data), "pointerSize": 130}
    return entry


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        for name, files in REPOSITORIES.items():
            if self.path.startswith(f"/api/models/{name}/tree/"):
                entries = [entry(path, data) for path, data in files.items()]
                return self.reply(200, json.dumps(entries).encode())
            path = self.path.removeprefix(f"/{name}/resolve/main/")
            if path in files:
                return self.reply(200, files[path])
        self.reply(404, b"")

    def reply(self, status, data):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{len(data)}"')
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def start():
    """Serves until the program ends; gives the address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
