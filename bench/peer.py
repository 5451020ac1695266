"""Times Baton and llama.cpp in turns on one machine and prints medians and ratios as a table.

Both run forward passes alone, without tokenizer and sampling: prefill of a prompt, and single tokens
with logits after none and after some context. A round starts each program once, one after the other,
so that both meet the same noise. Of the peer's settings (weights repacked or not, flash attention or
not) the faster counts for each number.
"""

import argparse
import ctypes
import json
import os
import re
import statistics
import subprocess
import sys
import time

SETTINGS = [(repack, flash) for repack in (True, False) for flash in (1, 0)]


def peer(options):
    """Runs llama.cpp once and prints what it reached."""
    import llama_cpp as llama
    import numpy

    silent = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(silent, ctypes.c_void_p(0))
    llama.llama_backend_init()
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    params.use_extra_bufts = bool(options.repack)
    start = time.perf_counter()
    model = llama.llama_model_load_from_file(options.models[0].encode(), params)
    if not model:
        sys.exit(f"llama.cpp cannot load {options.models[0]}")
    loaded = time.perf_counter() - start
    params = llama.llama_context_default_params()
    params.n_ctx = options.context + max(options.prefill, options.decode) + 16
    params.n_batch = params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = options.threads[0]
    params.flash_attn_type = options.flash
    context = llama.llama_init_from_model(model, params)
    memory = llama.llama_get_memory(context)
    words = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    tokens = numpy.random.default_rng(1).integers(10, min(words, 30_000), size=params.n_ctx)
    batch = llama.llama_batch_init(512, 0, 1)

    def forward(first, count):
        batch.n_tokens = count
        for i in range(count):
            batch.token[i] = int(tokens[first + i])
            batch.pos[i] = first + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i == count - 1
        if llama.llama_decode(context, batch) != 0:
            sys.exit("llama.cpp failed")
        llama.llama_synchronize(context)

    def fill(count):
        for first in range(0, count, 512):
            forward(first, min(512, count - first))

    def timed(count, work):
        start = time.perf_counter()
        work()
        return count / (time.perf_counter() - start)

    fill(16)
    llama.llama_memory_clear(memory, True)
    speeds = {"load": loaded, "prefill": timed(options.prefill, lambda: fill(options.prefill))}
    for held in (0, options.context):
        llama.llama_memory_clear(memory, True)
        fill(held)
        work = lambda: [forward(held + i, 1) for i in range(options.decode)]
        speeds[f"decode at {held}"] = timed(options.decode, work)
    print(json.dumps(speeds))


def run_peer(options, model, threads, setting):
    repack, flash = setting
    command = [sys.executable, __file__, "--peer", "--repack", str(int(repack))]
    command += ["--flash", str(flash), "--threads", str(threads), "--prefill", str(options.prefill)]
    command += ["--decode", str(options.decode), "--context", str(options.context), model]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def run_ours(options, model, threads):
    command = [options.ours, model, "--threads", str(threads), "--reps", "1", "--context", "0"]
    for name in ("prefill", "decode", "context"):
        command += [f"--{name}", str(getattr(options, name))]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = re.findall(r"^ *(prefill|decode at \d+)(?: \d+)?: best +([0-9.]+) tok/s", output, re.M)
    return {name: float(speed) for name, speed in lines}


def compare(options, model, threads):
    ours, theirs = {}, {}
    for round in range(options.rounds):
        for name, speed in run_ours(options, model, threads).items():
            ours.setdefault(name, []).append(speed)
        for setting in SETTINGS:
            for name, speed in run_peer(options, model, threads, setting).items():
                theirs.setdefault(name, {}).setdefault(setting, []).append(speed)
    for name, speeds in ours.items():
        peers = {s: statistics.median(v) for s, v in theirs[name].items()}
        (repack, flash), best = max(peers.items(), key=lambda item: item[1])
        how = ("repacked" if repack else "as stored") + (", flash" if flash else "")
        own = statistics.median(speeds)
        label = os.path.basename(model)
        what = f"prefill {options.prefill}" if name == "prefill" else name
        print(f"| {label} | {threads} | {what} | {own:.1f} | {best:.1f} ({how}) | {own / best:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--ours", help="the example `speed`, built")
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--repack", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--flash", type=int, default=-1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        return peer(options)
    print("| model | threads | | Baton tok/s | llama.cpp tok/s | ratio |\n|---|---|---|---|---|---|")
    for model in options.models:
        for threads in options.threads:
            compare(options, model, threads)


if __name__ == "__main__":
    main()
