"""Drives `baton serve` with the `anthropic` package from PyPI, as its users do.

    pip install anthropic
    python anthropic_client.py http://127.0.0.1:11434 MODEL

MODEL must be installed and able to chat.
"""

import sys

import anthropic

BASE, MODEL = sys.argv[1], sys.argv[2]
client = anthropic.Anthropic(base_url=BASE, api_key="none", max_retries=0)
ASK = {
    "model": MODEL,
    "max_tokens": 16,
    "temperature": 0,
    "system": "You are a helpful assistant.",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}


def answers():
    message = client.messages.create(**ASK)
    assert message.type == "message" and message.role == "assistant" and message.content[0].text
    assert message.stop_reason in ("end_turn", "max_tokens")
    counted = client.messages.count_tokens(
        model=MODEL, system=ASK["system"], messages=ASK["messages"]
    ).input_tokens
    again = client.messages.create(**ASK)
    usage = again.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == counted
    assert usage.cache_read_input_tokens > 0 and usage.output_tokens > 0
    assert again.content[0].text == message.content[0].text


def streams():
    whole = client.messages.create(**ASK)
    with client.messages.stream(**ASK) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    kinds = [event.type for event in client.messages.create(**ASK, stream=True)]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]


def stops():
    text = client.messages.create(**ASK).content[0].text
    stop = text[3:5]
    message = client.messages.create(**ASK, stop_sequences=[stop])
    assert message.stop_reason == "stop_sequence" and message.stop_sequence == stop
    assert message.content[0].text == text[: text.index(stop)]


def refuses():
    for change, kind in [
        ({"model": "no-such-model"}, anthropic.NotFoundError),
        ({"max_tokens": 0}, anthropic.BadRequestError),
        ({"extra_body": {"surprise": 1}}, anthropic.BadRequestError),
        ({"messages": [{"role": "user", "content": "x " * 200000}]}, anthropic.BadRequestError),
    ]:
        try:
            client.messages.create(**{**ASK, **change})
        except kind as error:
            assert error.body["type"] == "error" and error.body["error"]["message"]
        else:
            raise AssertionError(f"{kind.__name__} was expected")


for check in (answers, streams, stops, refuses):
    check()
    print(check.__name__, "ok")
