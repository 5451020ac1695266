#!/usr/bin/env bash
# Installs what the tests need where it is missing, then checks everything.
#
#   scripts/test.sh            all steps but mac, clients, page and coreml, two at a time
#   scripts/test.sh STEP...    some of them, one by one: lint test paths smoke clients page coreml mac arm fuzz
#
# As root on Debian missing system packages are installed; elsewhere they are named and the step fails.
set -euo pipefail
cd "$(dirname "$0")/.."

export BATON_TEST_DATA="${BATON_TEST_DATA:-$PWD/target/test-data}"
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"
# Artefacts are built once: incremental files only cost time and disk here.
export CARGO_INCREMENTAL=0
target="${CARGO_TARGET_DIR:-$PWD/target}"
fuzz_seconds="${BATON_FUZZ_SECONDS:-8}"

say() { printf '\n== %s (%ss) ==\n' "$1" "$SECONDS"; }

# need COMMAND PACKAGE: makes sure that a command is there.
need() {
    command -v "$1" >/dev/null 2>&1 && return
    packages "$2"
}

packages() {
    if dpkg --status "$@" >/dev/null 2>&1; then
        return
    fi
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        echo "error: these tests need: $*; install it and run this script again" >&2
        exit 1
    fi
    [ -n "${apt_updated:-}" ] || apt-get -qq update
    export apt_updated=1
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" >/dev/null
}

cross_packages=(rustc-web rust-web-src)
arm_packages=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)

step_lint() {
    say "format, lints, documentation"
    cargo fmt --all --check
    # In the profile of the tests, so that build scripts and procedural macros are built once.
    cargo clippy --quiet --release --locked --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --quiet --release --locked --workspace --no-deps
}

tools() {
    need cc gcc
    need python3 python3-pip
    python3 -c 'import ensurepip' 2>/dev/null || packages python3-venv
    need npm npm
}

test_data() {
    tools
    # Vulkan in software, which the tests of the GPU unit run on.
    packages mesa-vulkan-drivers libvulkan1
    scripts/test-data.sh
}

# The release profile keeps overflow checks, so that what is tested is what users run, built once.
step_test() {
    test_data
    say "tests"
    cargo test --release --locked --workspace
}

# The kernels once more on every path that this machine has but does not choose by itself.
# The executables are those of the step before: for this crate alone, cargo would choose fewer features
# of what it depends on, and compile all of it again.
step_paths() {
    tools
    local path binaries binary
    cargo test --release --quiet --locked --workspace --no-run
    mapfile -t binaries < <(cargo test --release --quiet --locked --workspace --no-run \
        --message-format=json | python3 -c '
import json, sys
for message in map(json.loads, sys.stdin):
    of_tests = message.get("executable") and message["profile"]["test"]
    if of_tests and message["manifest_path"].endswith("/crates/cpu/Cargo.toml"):
        print(message["executable"])')
    [ "${#binaries[@]}" -gt 0 ] || { echo "error: no tests of the kernels found" >&2; exit 1; }
    for path in portable avx2; do
        say "CPU kernels, forced to $path"
        for binary in "${binaries[@]}"; do
            (cd crates/cpu && BATON_CPU=$path "$binary" --quiet)
        done
    done
}

step_smoke() {
    test_data
    say "the README's first command"
    # It is checked as that command builds it; what runs is the same program as built for the tests,
    # where only features of dependencies for tests are added, so that no kernel is compiled again.
    cargo check --quiet --release --locked
    cargo test --quiet --release --locked --workspace --no-run
    local home
    home="$(mktemp -d)"
    # Bounded, since so small a model may go on until its context is full.
    BATON_HOME="$home" "$target/release/baton" run --seed 1 -n 200 "Why is the sky blue?" |
        tee "$home/answer"
    grep -qi "light" "$home/answer"
    rm -rf "$home"
}

# Real clients, hostile requests and load on the built server. BATON_SUITES chooses among the suites
# of tests/clients/run.py.
step_clients() {
    test_data
    say "clients of the server"
    local here=tests/clients room="$target/clients"
    cargo test --quiet --release --locked --workspace --no-run
    mkdir -p "$room"
    if ! cmp --quiet $here/requirements.txt "$room/venv/requirements.txt"; then
        rm -rf "$room/venv"
        python3 -m venv "$room/venv"
        "$room/venv/bin/pip" install --quiet --disable-pip-version-check -r $here/requirements.txt
        cp $here/requirements.txt "$room/venv/"
    fi
    if ! cmp --quiet $here/package-lock.json "$room/node/installed"; then
        mkdir -p "$room/node"
        cp $here/package.json $here/package-lock.json "$room/node/"
        (cd "$room/node" && npm ci --silent --no-audit --no-fund)
        cp $here/package-lock.json "$room/node/installed"
    fi
    # shellcheck disable=SC2086
    "$room/venv/bin/python" $here/run.py ${BATON_SUITES:-}
}

# The web page in a real browser: on answers made for it, and on the built server.
step_page() {
    test_data
    say "the web page"
    packages chromium
    local here=crates/server/page-test
    cargo test --quiet --release --locked --workspace --no-run
    if ! cmp --quiet $here/package-lock.json $here/node_modules/installed; then
        (cd $here && npm ci --silent --no-audit --no-fund)
        cp $here/package-lock.json $here/node_modules/installed
    fi
    python3 tests/clients/run.py page
}

# What the compiler of Core ML packages writes, looked at with Core ML's own tools.
step_coreml() {
    tools
    say "Core ML packages"
    local here=crates/coreml/tests/golden room="$target/coreml"
    if ! cmp --quiet $here/requirements.txt "$room/venv/requirements.txt"; then
        rm -rf "$room/venv"
        python3 -m venv "$room/venv"
        "$room/venv/bin/pip" install --quiet --disable-pip-version-check -r $here/requirements.txt
        cp $here/requirements.txt "$room/venv/"
    fi
    rm -rf "$room/packages"
    mkdir -p "$room/packages"
    cargo run --quiet --release --locked -p baton-coreml --features testing --example packages -- \
        "$room/packages"
    "$room/venv/bin/python" $here/check.py "$room/packages"
}

step_fuzz() {
    say "fuzzing, $fuzz_seconds s a target"
    need c++ g++
    # Little optimisation, as for the kernels below: building takes longer than running.
    CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_TARGET_DIR="$target/fuzz" scripts/fuzz.sh "$fuzz_seconds"
}

# Debian's second toolchain carries the sources of its standard library, so that it can build for
# machines that this one is not.
cross() {
    RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 CARGO_PROFILE_DEV_DEBUG=false cargo \
        -Z build-std=core,alloc,std,panic_unwind,proc_macro,test "$@" --quiet --locked \
        --target-dir "$target/cross"
}

# The standard library would be compiled to machine code even for a check, and the C and assembly of
# the crate `ring` would need Apple's headers: since nothing is linked, both are left out.
step_mac() {
    packages "${cross_packages[@]}"
    say "type check for macOS"
    CARGO_PROFILE_DEV_OPT_LEVEL=0 RUSTFLAGS=-Zno-codegen \
        CC_aarch64_apple_darwin=true AR_aarch64_apple_darwin=true \
        cross check --workspace --target aarch64-apple-darwin
}

step_arm() {
    packages "${cross_packages[@]}" "${arm_packages[@]}"
    say "NEON kernels under emulation"
    # Little optimisation: what is compiled here is used once.
    CARGO_PROFILE_DEV_OPT_LEVEL=1 \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu max" \
        cross test -p baton-cpu --lib --target aarch64-unknown-linux-gnu
}

if [ $# -gt 0 ]; then
    for step in "$@"; do
        "step_$step"
    done
    say "passed: $*"
    exit
fi

# Crates that wait for each other leave a processor idle: the steps go in two lanes, which build in
# folders of their own. Packages come first, since only one can install them at a time.
tools
need c++ g++
packages "${cross_packages[@]}" "${arm_packages[@]}"
log="$(mktemp)"
set -m
scripts/test.sh arm fuzz >"$log" 2>&1 &
second=$!
set +m
trap 'kill -- "-$second" 2>/dev/null || true; rm -f "$log"' EXIT
failed=0
scripts/test.sh lint test paths smoke || failed=1
wait "$second" || failed=1
cat "$log"
if [ "$failed" != 0 ]; then
    echo "error: a step failed" >&2
    exit 1
fi
say "all passed"
