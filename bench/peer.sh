#!/usr/bin/env bash
# Baton beside llama.cpp on the same files, alternating:
#
#   bench/peer.sh MODEL.gguf... [-- OPTION...]     the options are those of peer.py
#
# Builds both, the peer from source for this machine (which takes long), in target/peers.
set -euo pipefail
cd "$(dirname "$0")/.."

venv="${BATON_PEERS:-$PWD/target/peers}"
if ! [ -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    CMAKE_ARGS="-DGGML_NATIVE=ON" "$venv/bin/pip" install --quiet numpy llama-cpp-python==0.3.36
fi
cargo build --quiet --release --locked -p baton-cpu --example speed
exec "$venv/bin/python" bench/peer.py --ours "${CARGO_TARGET_DIR:-target}/release/examples/speed" "$@"
