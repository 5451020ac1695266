"""Asks `baton serve` and `llama_cpp.server` the same in turns and prints medians and ratios as a table.

Clients send chats one after the other, each for a number of requests; answers are greedy and come in
pieces. A round starts each server once, one after the other, so that both meet the same noise; each
number of clients in each round has prompts of its own, so that no cache helps. Tokens of all answers
are counted by the same tokenizer, after the clock has stopped. Times in the table are of the client:
TTFT until the first text, TPOT from there to the last, for each further token.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time

WORDS = (pathlib.Path(__file__).resolve().parents[1] / "tests" / "data" / "prose.txt").read_text().split()
NAMES = ("tokens/s", "TTFT p50, ms", "TTFT p95, ms", "TPOT p50, ms", "TPOT p95, ms")


def ours(options, port):
    command = [options.ours, "serve", "--port", port, "--model", options.model, "--threads", options.threads]
    return command + ["--ctx", options.context, "--max-running", max(options.clients)]


def peer(options, port):
    command = [sys.executable, "-m", "llama_cpp.server", "--port", port, "--model", options.model]
    command += ["--n_threads", options.threads, "--n_threads_batch", options.threads, "--n_ctx", options.context]
    # Else a request ends the answer that is being made.
    command += ["--interrupt_requests", "false", "--n_gpu_layers", 0, "--verbose", "false"]
    return command + options.peer.split()


@contextlib.contextmanager
def running(command_of, options):
    """The port of a server that has started."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory() as home:
        command = list(map(str, command_of(options, port)))
        environment = {**os.environ, "BATON_HOME": home}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            end = time.monotonic() + 120
            while process.poll() is None and time.monotonic() < end:
                with contextlib.suppress(OSError):
                    get(port, "/v1/models")
                    break
                time.sleep(0.1)
            else:
                log.seek(0)
                sys.exit(f"{command[0]} does not answer:\n{log.read().decode(errors='replace')}")
            yield port
        finally:
            process.terminate()
            process.wait()


def get(port, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET" if body is None else "POST", path, body and json.dumps(body))
        reply = connection.getresponse()
        data = reply.read()
        if reply.status != 200:
            sys.exit(f"{path}: {reply.status} {data[:500]}")
        return json.loads(data)


async def answer(port, name, prompt, tokens):
    """The text of an answer, and the times of its request, its first text and its last."""
    body = {"model": name, "stream": True, "temperature": 0, "max_tokens": tokens}
    body["messages"] = [{"role": "user", "content": prompt}]
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    begun = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + data)
    status, text, first, last = await reader.readline(), "", None, None
    while (line := await reader.readline()) and line.strip() != b"data: [DONE]":
        if line.startswith(b"data: "):
            choices = json.loads(line[6:])["choices"]
            piece = choices[0]["delta"].get("content") if choices else None
            if piece:
                last = time.perf_counter()
                first = first or last
                text += piece
    writer.close()
    if b" 200 " not in status or not text:
        sys.exit(f"an answer failed: {status} {text!r}")
    return text, begun, first, last


def prompts(options, count, seed):
    """Openings with words of a text behind them, of mixed lengths."""
    dice = random.Random(seed)
    for _ in range(count):
        start, length = dice.randrange(len(WORDS) - 400), dice.choice(options.words)
        words = " ".join(WORDS[start : start + length])
        yield f"Write a long story that begins after this text: {words}"


async def load(options, port, clients, seed):
    """What clients find, with the text of each answer."""
    name = get(port, "/v1/models")["data"][0]["id"]
    await answer(port, name, "Hello.", 4)
    todo = iter(list(prompts(options, clients * options.requests, seed)))

    async def client():
        return [await answer(port, name, prompt, options.tokens) for prompt in todo]

    begun = time.perf_counter()
    found = await asyncio.gather(*(client() for _ in range(clients)))
    return sum(found, []), time.perf_counter() - begun


def figures(answers, seconds, counts):
    first = [1e3 * (first - begun) for _, begun, first, _ in answers]
    each = [1e3 * (last - first) / (n - 1) for (_, _, first, last), n in zip(answers, counts) if n > 1]
    values = [sum(counts) / seconds]
    for times in (first, each):
        values += [statistics.median(times), sorted(times)[min(len(times) - 1, int(0.95 * len(times)))]]
    return values


def measure(command_of, options, seed):
    with running(command_of, options) as port:
        return [asyncio.run(load(options, port, clients, f"{seed} {clients}")) for clients in options.clients]


def counted(options, texts):
    """The number of tokens of each text."""
    with running(ours, options) as port:
        return [len(get(port, "/tokenize", {"content": text})["tokens"]) for text in texts]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--ours", required=True, help="the program `baton`")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--requests", type=int, default=4, help="of each client")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer at most")
    parser.add_argument("--words", type=int, nargs="+", default=[10, 40, 160], help="of the prompts")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--peer", default="", help="further options of llama_cpp.server")
    options = parser.parse_args()
    runs = {ours: [], peer: []}
    for round_ in range(options.rounds):
        for command_of, found in runs.items():
            print(f"round {round_ + 1} of {options.rounds}: {command_of.__name__}", file=sys.stderr, flush=True)
            found.append(measure(command_of, options, round_))
    texts = [text for found in runs.values() for run in found for answers, _ in run for text, *_ in answers]
    counts = iter(counted(options, texts))
    medians = {}
    for command_of, found in runs.items():
        of_rounds = [
            [figures(answers, seconds, [next(counts) for _ in answers]) for answers, seconds in run]
            for run in found
        ]
        medians[command_of] = [[statistics.median(v) for v in zip(*of_one)] for of_one in zip(*of_rounds)]
    print("| clients | | Baton | llama_cpp.server | times better |\n|---|---|---|---|---|")
    for i, clients in enumerate(options.clients):
        for name, own, other in zip(NAMES, medians[ours][i], medians[peer][i]):
            better = own / other if name == NAMES[0] else other / own
            print(f"| {clients} | {name} | {own:.1f} | {other:.1f} | {better:.2f} |")


if __name__ == "__main__":
    main()
