"""Drives `baton serve` with the `ollama` package from PyPI, as its users do.

    pip install ollama
    python ollama_client.py http://127.0.0.1:11434 MODEL

MODEL must be installed and able to chat. Nothing is pulled or deleted.
"""

import asyncio
import sys

import ollama

BASE, MODEL = sys.argv[1], sys.argv[2]
GREEDY = {"temperature": 0, "num_predict": 16}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
client = ollama.Client(host=BASE)


def lists():
    models = client.list().models
    entry = next(m for m in models if m.model.split(":latest")[0] == MODEL.split(":latest")[0])
    assert len(entry.digest) == 64 and entry.size > 0 and entry.details.parameter_size
    shown = client.show(MODEL)
    assert shown.details.family and shown.template
    assert any(key.endswith(".context_length") for key in shown.modelinfo)
    assert "completion" in shown.capabilities


def chats():
    whole = client.chat(MODEL, messages=QUESTION, options=GREEDY)
    assert whole.done and whole.done_reason in ("stop", "length") and whole.message.content
    assert whole.eval_count and whole.prompt_eval_count and whole.total_duration > 0
    pieces = list(client.chat(MODEL, messages=QUESTION, options=GREEDY, stream=True))
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert "".join(piece.message.content for piece in pieces) == whole.message.content
    stop = whole.message.content[3:5]
    cut = client.chat(MODEL, messages=QUESTION, options={**GREEDY, "stop": [stop]})
    assert cut.message.content == whole.message.content[: whole.message.content.index(stop)]


def generates():
    whole = client.generate(MODEL, "What is the capital of France?", options=GREEDY)
    assert whole.response and whole.done
    stream = client.generate(MODEL, "What is the capital of France?", options=GREEDY, stream=True)
    assert "".join(piece.response for piece in stream) == whole.response
    raw = client.generate(MODEL, "1, 2, 3, 4,", raw=True, options=GREEDY)
    assert raw.response
    odds = client.generate(MODEL, "Hi", options=GREEDY, logprobs=True, top_logprobs=2)
    assert odds.logprobs and len(odds.logprobs[0].top_logprobs) == 2


def loads_and_unloads():
    assert client.generate(MODEL, "", keep_alive="10m").done_reason == "load"
    loaded = client.ps().models
    assert [m for m in loaded if m.context_length and m.expires_at], loaded
    assert client.generate(MODEL, "", keep_alive=0).done_reason == "unload"
    assert not client.ps().models


def refuses():
    for call, status in [
        (lambda: client.chat("no-such-model", messages=QUESTION), 404),
        (lambda: client.show("no-such-model"), 404),
        (lambda: client.delete("no-such-model"), 404),
        (lambda: client.chat(MODEL, messages=QUESTION, options={"mirostat": 2}), 400),
        (lambda: list(client.pull("no-such-model", stream=True)), 404),
        (lambda: client.embed(MODEL, "Hi"), 400),
    ]:
        try:
            call()
        except ollama.ResponseError as error:
            assert error.status_code == status, error
        else:
            raise AssertionError(f"status {status} was expected")


async def answers_many():
    many = ollama.AsyncClient(host=BASE)
    answers = await asyncio.gather(
        *(many.chat(MODEL, messages=QUESTION, options=GREEDY) for _ in range(4))
    )
    assert len({answer.message.content for answer in answers}) == 1


for check in (lists, chats, generates, loads_and_unloads, refuses):
    check()
    print(check.__name__, "ok")
asyncio.run(answers_many())
print("answers_many ok")
