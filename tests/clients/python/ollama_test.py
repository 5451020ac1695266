"""The `ollama` package."""

import json

import ollama
import pytest

import tiny
from conftest import *

COPY = "copy-of-the-tests"


@pytest.fixture(scope="module")
def client(url):
    return ollama.Client(host=url, timeout=60)


def chat(client, model=MODEL, messages=QUESTION, options=(), **fields):
    options = {"temperature": 0, "num_predict": 24} | dict(options)
    return client.chat(model=model, messages=messages, options=options, **fields)


def names(listing):
    return {model.model for model in listing.models}


def test_models(client):
    rows = {row.model: row for row in client.list().models}
    assert f"{MODEL}:latest" in rows and f"{ANSWER}:latest" in rows
    row = rows[f"{MODEL}:latest"]
    assert row.size == 98_362_432 and row.digest.startswith("b179c9523d0e")
    assert (row.details.family, row.details.quantization_level) == ("llama", "Q4_1")
    shown = client.show(MODEL)
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["llama.context_length"] == 8192
    assert "<|im_start|>" in shown.template and "completion" in shown.capabilities
    assert "tools" in client.show(CALL).capabilities


def test_pull_copy_and_delete(client):
    if ENDLESS + ":latest" in names(client.list()):
        client.delete(ENDLESS)
    assert ENDLESS + ":latest" not in names(client.list())
    with pytest.raises(ollama.ResponseError) as caught:
        client.delete(ENDLESS)
    assert caught.value.status_code == 404
    steps = list(client.pull(ENDLESS, stream=True))
    assert steps[0].status == "pulling manifest" and steps[-1].status == "success"
    bytes_ = [(step.completed, step.total) for step in steps if step.total]
    assert bytes_ and bytes_[-1][0] == bytes_[-1][1] > 800_000
    assert ENDLESS + ":latest" in names(client.list())
    assert client.pull(ENDLESS).status == "success"
    client.copy(ENDLESS, COPY)
    assert chat(client, COPY, options={"num_predict": 4}).message.content == "going on and "
    client.delete(COPY)
    assert f"{COPY}:latest" not in names(client.list())
    with pytest.raises(ollama.ResponseError):
        client.pull("hf.co/test/no-such-model")


def test_chat(client):
    whole = chat(client)
    assert whole.done and whole.done_reason in ("stop", "length")
    assert whole.message.role == "assistant" and len(whole.message.content) > 10
    assert whole.eval_count == 24 or whole.done_reason == "stop"
    # Nanoseconds.
    assert whole.total_duration > whole.eval_duration > 1_000_000
    assert whole.total_duration < 60_000_000_000
    pieces = list(chat(client, stream=True))
    assert "".join(piece.message.content for piece in pieces) == whole.message.content
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert (pieces[-1].eval_count, pieces[-1].prompt_eval_count) == (
        whole.eval_count, whole.prompt_eval_count)


def test_generate(client):
    whole = client.generate(ANSWER, "Why?")
    assert whole.response == tiny.ANSWER_TEXT and whole.done_reason == "stop"
    pieces = [piece.response for piece in client.generate(ANSWER, "Why?", stream=True)]
    assert "".join(pieces) == tiny.ANSWER_TEXT and len(pieces) > 3
    # Without a template the text itself goes on.
    raw = client.generate(ANSWER, "Why?\n", raw=True)
    assert raw.response == tiny.ANSWER_TEXT and raw.prompt_eval_count == len("Why?\n")


def test_stop_strings_and_seeds(client):
    stopped = chat(client, ANSWER, options={"stop": ["blue"]})
    assert (stopped.message.content, stopped.done_reason) == ("Sky ", "stop")

    def say(seed):
        return chat(client, options={"seed": seed, "temperature": 1.5}).message.content

    assert say(7) == say(7) and say(7) != say(8)


def get_weather(city: str) -> str:
    """
    The weather of a city

    Args:
      city: A city
    """
    return f"rain in {city}"


def test_calls(client):
    answer = chat(client, CALL, tools=[get_weather])
    (call,) = answer.message.tool_calls
    assert call.function.name == "get_weather" and dict(call.function.arguments) == {"city": "Paris"}
    assert answer.message.content.strip() == "Wait."
    pieces = list(chat(client, CALL, tools=[get_weather], stream=True))
    calls = [call for piece in pieces for call in piece.message.tool_calls or []]
    assert [dict(call.function.arguments) for call in calls] == [{"city": "Paris"}]
    # The text before the call is not held back until the end.
    assert len([piece for piece in pieces if piece.message.content]) >= 1
    messages = QUESTION + [answer.message, {"role": "tool", "tool_name": "get_weather", "content": "rain"}]
    assert chat(client, CALL, messages, tools=[get_weather]).message.tool_calls
    with pytest.raises(ollama.ResponseError) as caught:
        chat(client, tools=[get_weather])
    assert caught.value.status_code == 400 and "tools" in caught.value.error


def test_a_schema_is_kept_to(client):
    for seed in range(3):
        options = {"seed": seed, "temperature": 1.5, "num_predict": 100}
        answer = chat(client, format=COLOUR, options=options)
        assert answer.done_reason == "stop" and fits_colour(json.loads(answer.message.content))
    generated = client.generate(MODEL, "A colour?", format=COLOUR, options={"num_predict": 100})
    assert fits_colour(json.loads(generated.response))
    with pytest.raises(ollama.ResponseError) as caught:
        chat(client, format={"type": "wrong"})
    assert caught.value.status_code == 400


def test_thoughts_are_apart(client):
    message = chat(client, THOUGHT, think=True).message
    assert (message.content, message.thinking.strip()) == ("Four!", "Two and two.")
    pieces = list(chat(client, THOUGHT, think=True, stream=True))
    assert "".join(piece.message.content for piece in pieces) == "Four!"
    assert "".join(piece.message.thinking or "" for piece in pieces).strip() == "Two and two."


def test_keep_alive_unloads(client):
    chat(client, ANSWER, keep_alive="10m")
    (row,) = [row for row in client.ps().models if row.model == f"{ANSWER}:latest"]
    assert row.context_length == 2048 and row.size > 0
    assert client.generate(ANSWER, keep_alive=0).done_reason == "unload"
    assert f"{ANSWER}:latest" not in names(client.ps())
    chat(client, ANSWER, keep_alive=0)
    assert f"{ANSWER}:latest" not in names(client.ps())


def test_embeddings(client, embedder):
    both = client.embed(embedder, ["A cat sleeps.", "Interest rates rose."])
    assert len(both.embeddings) == 2 and both.prompt_eval_count > 6
    one = client.embed(embedder, "A cat sleeps.").embeddings[0]
    assert one == pytest.approx(both.embeddings[0], abs=1e-3)
    assert sum(x * x for x in one) == pytest.approx(1, abs=1e-3)
    with pytest.raises(ollama.ResponseError):
        client.embed(ANSWER, "A cat sleeps.")


@pytest.mark.parametrize("options", [{"mirostat": 2}, {"temperature": -1}, {"num_ctx": 0}])
def test_what_makes_no_sense_is_refused(client, options):
    with pytest.raises(ollama.ResponseError) as caught:
        chat(client, options=options)
    assert caught.value.status_code == 400 and next(iter(options)) in caught.value.error


def test_unknown_models(client, locked_url, key):
    for ask in (lambda: chat(client, "no-such-model"), lambda: client.show("no-such-model")):
        with pytest.raises(ollama.ResponseError) as caught:
            ask()
        assert caught.value.status_code == 404 and "no-such-model" in caught.value.error
    with pytest.raises(ollama.ResponseError) as caught:
        ollama.Client(host=locked_url).list()
    assert caught.value.status_code == 401
    headers = {"Authorization": f"Bearer {key}"}
    assert ollama.Client(host=locked_url, headers=headers).list().models


def test_who_goes_away_frees_the_slot(client, url):
    stream = chat(client, ENDLESS, stream=True, options={"num_predict": 60_000})
    for _ in range(5):
        next(stream)
    assert slots_in_use(url, ENDLESS) == 1
    stream.close()
    await_slots(url, ENDLESS, 0, limit=1.0)
