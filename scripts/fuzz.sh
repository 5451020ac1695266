#!/usr/bin/env bash
# Runs every fuzz target for a number of seconds, two at a time; fails if one finds something.
#
#   scripts/fuzz.sh [SECONDS] [TARGET...]
#
# Runs on stable Rust, without sanitizers: the crates that read untrusted bytes forbid unsafe code.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds="${1:-20}"
[ $# -gt 0 ] && shift
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    for target in fuzz/fuzz_targets/*.rs; do
        targets+=("$(basename "$target" .rs)")
    done
fi

# What `cargo fuzz build --sanitizer none` passes, in its order, so that either uses what the other built.
# The tool itself is not needed, and so not built on a fresh machine.
host="$(rustc -vV | sed -n 's/^host: //p')"
flags=(-Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares
    --cfg fuzzing
    -Cllvm-args=-simplifycfg-branch-fold-threshold=0)
case "$host" in *-linux-*) flags+=(-Cllvm-args=-sanitizer-coverage-stack-depth) ;; esac
flags+=(-Cdebug-assertions -Ccodegen-units=1)
built="${CARGO_TARGET_DIR:-$PWD/fuzz/target}"
RUSTFLAGS="${flags[*]}" cargo build --quiet --release --locked --manifest-path fuzz/Cargo.toml \
    --target "$host" --target-dir "$built"
binaries="$built/$host/release"
logs="$(mktemp -d)"
trap 'rm -rf "$logs"' EXIT

run() {
    local target="$1" seeds
    mkdir -p "fuzz/corpus/$target" "fuzz/artifacts/$target"
    seeds="$(find crates/*/tests/corpus -maxdepth 1 -name "$target" -type d)"
    if "$binaries/$target" -max_total_time="$seconds" -rss_limit_mb=1024 -max_len=20000 \
        -timeout=10 -artifact_prefix="fuzz/artifacts/$target/" -print_final_stats=1 \
        "fuzz/corpus/$target" ${seeds:+"$seeds"} >"$logs/$target" 2>&1; then
        runs="$(sed -n 's/^stat::number_of_executed_units: *//p' "$logs/$target")"
        printf '%-16s %10s runs, no finding\n' "$target" "$runs"
    else
        tail -n 40 "$logs/$target"
        printf '%-16s FAILED; its input is in fuzz/artifacts/%s\n' "$target" "$target"
        return 1
    fi
}

failed=0
for ((i = 0; i < ${#targets[@]}; i += 2)); do
    pids=()
    for target in "${targets[@]:i:2}"; do
        run "$target" & pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || failed=1
    done
done
exit "$failed"
