#!/usr/bin/env bash
# `baton serve` beside llama.cpp's server for Python on the same file, alternating:
#
#   bench/serve.sh MODEL.gguf [OPTION...]     the options are those of serve.py
#
# Builds both, the peer from source for this machine (which takes long), in target/peers.
set -euo pipefail
cd "$(dirname "$0")/.."

venv="${BATON_PEERS:-$PWD/target/peers}"
if ! [ -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
fi
if ! "$venv/bin/python" -c "import llama_cpp.server.app" 2>/dev/null; then
    CMAKE_ARGS="-DGGML_NATIVE=ON" "$venv/bin/pip" install --quiet numpy "llama-cpp-python[server]==0.3.36"
fi
cargo build --quiet --release --locked -p baton
exec "$venv/bin/python" bench/serve.py --ours "${CARGO_TARGET_DIR:-target}/release/baton" "$@"
