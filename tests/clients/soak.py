"""Many clients at a time: answers of mixed lengths, some of whose readers go away.

Every answer that is read to its end must be the one that a single user gets, and the server's memory
must not grow once it has warmed up. BATON_URL and BATON_PID name the server.

    soak.py --clients 64 --requests 500
"""

import argparse
import asyncio
import json
import os
import pathlib
import random
import time

import stage

BEGINNINGS = [
    "Tell me of the sea.", "What is a prime number?", "Why do leaves fall?", "Write a line about rain.",
    "How does a bicycle stay up?", "Name three birds.", "What is bread made of?", "Who sails at night?",
]


def requests_of(options):
    """What is asked, in an order that is always the same."""
    dice = random.Random(options.seed)
    shapes = []
    for _ in range(options.shapes):
        prose = " ".join(dice.choice(BEGINNINGS) for _ in range(dice.choice([1, 1, 2, 4, 12, 40])))
        shapes.append((prose, dice.choice([1, 4, 8, 16, 32, 48])))
    plan = [(dice.choice(shapes), dice.random() < options.drop) for _ in range(options.requests)]
    return shapes, plan


def body(options, shape):
    prose, tokens = shape
    messages = [{"role": "user", "content": prose}]
    return {"model": options.model, "messages": messages, "temperature": 0, "max_tokens": tokens, "stream": True}


async def ask(options, shape, drop_after=None):
    """The text of an answer; `None` if it was dropped after so many pieces."""
    host, port = os.environ["BATON_URL"].removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        data = json.dumps(body(options, shape)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n"
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        if drop_after == 0:
            return None
        status = await reader.readline()
        text, reason, pieces = "", None, 0
        while line := await reader.readline():
            if b" 200 " not in status:
                continue
            if line.strip() == b"data: [DONE]":
                assert reason in ("stop", "length"), reason
                return text
            if line.startswith(b"data: "):
                (choice,) = json.loads(line[6:])["choices"]
                text += choice["delta"].get("content") or ""
                reason = choice["finish_reason"] or reason
                pieces += 1
                if drop_after is not None and pieces >= drop_after:
                    return None
        raise AssertionError(f"the answer broke off: {status}")
    finally:
        writer.close()


async def load(options, plan, alone):
    """Asks everything with as many clients as wanted. Gives the numbers of whole and dropped answers."""
    todo = iter(enumerate(plan))
    counts = {"whole": 0, "dropped": 0}

    async def client():
        for number, (shape, drops) in todo:
            text = await ask(options, shape, drop_after=number % 5 if drops else None)
            if text is None:
                counts["dropped"] += 1
                continue
            assert text == alone[shape], f"alone: {alone[shape]!r}\ntogether: {text!r}"
            counts["whole"] += 1

    await asyncio.gather(*(client() for _ in range(options.clients)))
    return counts


def resident():
    pages = pathlib.Path(f"/proc/{os.environ['BATON_PID']}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def processing():
    slots = stage.ask(os.environ["BATON_URL"], "GET", f"/slots?model={stage.MODEL}")[1]
    return sum(slot["is_processing"] for slot in slots)


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--shapes", type=int, default=24, help="number of different requests")
    parser.add_argument("--drop", type=float, default=0.1, help="share of readers that go away")
    parser.add_argument("--growth", type=float, default=24, help="MiB that memory may grow by")
    parser.add_argument("--model", default=stage.MODEL)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    shapes, plan = requests_of(options)
    begun = time.monotonic()
    alone = {shape: await ask(options, shape) for shape in shapes}
    print(f"{len(shapes)} different requests answered alone in {time.monotonic() - begun:.1f} s")
    # The first part fills caches and buffers.
    warm = len(plan) // 4
    counts = await load(options, plan[:warm], alone)
    before, begun = resident(), time.monotonic()
    for name, count in (await load(options, plan[warm:], alone)).items():
        counts[name] += count
    seconds, after = time.monotonic() - begun, resident()
    end = time.monotonic() + 5
    while processing():
        assert time.monotonic() < end, "answers are made for nobody"
        await asyncio.sleep(0.05)
    expected = sum(drops for _, drops in plan)
    # A dropped answer may have been shorter than what was to be read of it.
    assert counts["whole"] + counts["dropped"] == len(plan), counts
    assert counts["dropped"] <= expected and (expected == 0 or counts["dropped"] > 0), counts
    print(
        f"{options.clients} clients, {len(plan)} requests: {counts['whole']} answers as alone, "
        f"{counts['dropped']} dropped; {(len(plan) - warm) / seconds:.1f} requests/s; "
        f"memory {before:.0f} MiB after the first quarter, {after:.0f} MiB at the end"
    )
    assert after - before < options.growth, f"memory grew by {after - before:.0f} MiB"


asyncio.run(main())
