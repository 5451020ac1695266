"""The `anthropic` package."""

import anthropic
import pytest

import tiny
from conftest import *

TOOL = {"name": "get_weather", "description": "The weather of a city", "input_schema": WEATHER}


@pytest.fixture(scope="module")
def client(url):
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60)


def say(client, model=ANSWER, messages=QUESTION, **fields):
    return client.messages.create(model=model, messages=messages, **{"max_tokens": 64} | fields)


def test_messages(client):
    whole = say(client)
    assert (whole.type, whole.role, whole.stop_reason) == ("message", "assistant", "end_turn")
    (block,) = whole.content
    assert (block.type, block.text) == ("text", tiny.ANSWER_TEXT)
    assert whole.usage.output_tokens >= len(tiny.ANSWER)
    assert say(client, max_tokens=2).stop_reason == "max_tokens"
    real = say(client, MODEL, extra_body={"temperature": 0}, max_tokens=24)
    assert len(real.content[0].text) > 10
    assert say(client, MODEL, extra_body={"temperature": 0}, max_tokens=24).content == real.content


def test_events_come_in_order(client):
    fields = {"model": ANSWER, "messages": QUESTION, "max_tokens": 64}
    kinds = [event.type for event in client.messages.create(stream=True, **fields)]
    kinds = [kind for kind in kinds if kind != "ping"]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"} and len(kinds) > 8
    with client.messages.stream(**fields) as stream:
        assert "".join(stream.text_stream) == tiny.ANSWER_TEXT
        final = stream.get_final_message()
    whole = say(client)
    assert (final.content[0].text, final.stop_reason) == (whole.content[0].text, "end_turn")
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_stop_sequences(client):
    stopped = say(client, stop_sequences=["grass", "blue"])
    assert stopped.content[0].text == "Sky "
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "blue")


def test_calls(client):
    answer = say(client, CALL, tools=[TOOL])
    assert answer.stop_reason == "tool_use"
    text, call = answer.content
    assert text.text.strip() == "Wait."
    assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Paris"})
    with client.messages.stream(model=CALL, messages=QUESTION, max_tokens=64, tools=[TOOL]) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[1].input == {"city": "Paris"} and streamed.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    messages = QUESTION + [
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ]
    assert say(client, CALL, messages, tools=[TOOL]).stop_reason == "tool_use"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_call_can_be_forced(client, choice):
    answer = say(client, MODEL, tools=[TOOL], tool_choice=choice, max_tokens=200)
    assert answer.stop_reason == "tool_use"
    (call,) = answer.content
    assert call.name == "get_weather" and list(call.input) == ["city"]


def test_thoughts_are_apart(client):
    thinking = {"type": "enabled", "budget_tokens": 1024}
    options = {"model": THOUGHT, "messages": QUESTION, "max_tokens": 2000, "thinking": thinking}
    whole = client.messages.create(**options)
    thought, text = whole.content
    assert (thought.type, thought.thinking.strip()) == ("thinking", "Two and two.")
    assert thought.signature and text.text == "Four!"
    with client.messages.stream(**options) as stream:
        deltas = [e.delta.type for e in stream if e.type == "content_block_delta"]
        final = stream.get_final_message()
    assert final.content[0].signature and final.content[1].text == "Four!"
    assert deltas.index("signature_delta") > deltas.index("thinking_delta")
    assert deltas.index("text_delta") > deltas.index("signature_delta")


def test_tokens_are_counted(client):
    fields = {"model": MODEL, "system": "You know the weather of every place on earth.", "messages": QUESTION}
    counted = client.messages.count_tokens(**fields).input_tokens
    usage = client.messages.create(max_tokens=1, **fields).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_a_volatile_first_block_does_not_cost_the_cache(client):
    rules = "Answer in the manner of a friendly lighthouse keeper who has seen many storms."

    def ask(stamp):
        header = f"x-anthropic-billing-header: cc_version=1; cch={stamp};"
        system = [{"type": "text", "text": header}, {"type": "text", "text": rules}]
        return say(client, MODEL, system=system, max_tokens=1).usage

    first, second = ask("a1b2c"), ask("9f8e7")
    whole = first.input_tokens + first.cache_read_input_tokens
    assert second.cache_read_input_tokens == whole - 1 and second.input_tokens == 1


def test_errors(client, locked_url, key):
    with pytest.raises(anthropic.NotFoundError) as caught:
        say(client, "no-such-model")
    assert caught.value.body["error"]["type"] == "not_found_error"
    for fields in ({"max_tokens": 0}, {"extra_body": {"temperature": -1}}, {"extra_body": {"nonsense": 1}}):
        with pytest.raises(anthropic.BadRequestError) as caught:
            say(client, **fields)
        assert caught.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.AuthenticationError) as caught:
        anthropic.Anthropic(base_url=locked_url, api_key="wrong", max_retries=0).messages.create(
            model=MODEL, messages=QUESTION, max_tokens=1)
    assert caught.value.body["error"]["type"] == "authentication_error"
    right = anthropic.Anthropic(base_url=locked_url, api_key=key, max_retries=0)
    assert say(right, MODEL, max_tokens=1).usage.output_tokens == 1


def test_who_goes_away_frees_the_slot(client, url):
    stream = client.messages.create(model=ENDLESS, messages=QUESTION, max_tokens=60_000, stream=True)
    for _ in range(8):
        next(stream)
    assert slots_in_use(url, ENDLESS) == 1
    stream.close()
    await_slots(url, ENDLESS, 0, limit=1.0)
