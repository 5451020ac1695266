"""Drives a running `baton serve` with the `openai` package, as its users do.

    pip install openai
    python openai_client.py http://127.0.0.1:11434 MODEL

Every check compares what the client understood, not what was sent. Ends with status 1 if one fails.
"""

import sys
import time

import openai

base, model = sys.argv[1].rstrip("/"), sys.argv[2]
client = openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0, timeout=120)
USER = [{"role": "user", "content": "Say hello in one short sentence."}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def refused(status, param, call):
    try:
        call()
    except openai.APIStatusError as error:
        assert error.status_code == status, error
        assert error.body["param"] == param, error.body
        return error.body
    raise AssertionError("the request was answered")


@check
def models():
    ids = [row.id for row in client.models.list()]
    assert model in ids, ids
    row = client.models.retrieve(model)
    assert row.id == model and row.object == "model"
    assert row.context_length > 0


@check
def chat():
    answer = client.chat.completions.create(model=model, messages=USER, temperature=0, max_tokens=40)
    message = answer.choices[0].message
    assert message.role == "assistant" and message.content and not message.tool_calls
    assert answer.choices[0].finish_reason in ("stop", "length")
    usage = answer.usage
    assert 0 < usage.completion_tokens <= 40
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    again = client.chat.completions.create(model=model, messages=USER, temperature=0, max_tokens=40)
    assert again.choices[0].message.content == message.content
    assert again.usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1


@check
def chat_in_pieces():
    options = dict(model=model, messages=USER, temperature=0, max_tokens=40)
    whole = client.chat.completions.create(**options).choices[0].message.content
    stream = client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    text, reasons, usage = "", [], None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert text == whole and len(reasons) == 1 and usage.completion_tokens > 0


@check
def the_client_puts_a_stream_together():
    with client.chat.completions.stream(model=model, messages=USER, temperature=0, max_tokens=20) as s:
        kinds = {event.type for event in s}
        completion = s.get_final_completion()
    assert "content.delta" in kinds and "content.done" in kinds, kinds
    assert completion.choices[0].message.content


@check
def stop_seed_and_several_answers():
    options = dict(model=model, messages=USER, max_tokens=24, temperature=0)
    whole = client.chat.completions.create(**options).choices[0].message.content
    stop = whole[3:6]
    cut = client.chat.completions.create(**options, stop=[stop]).choices[0]
    assert cut.message.content == whole[: whole.index(stop)] and cut.finish_reason == "stop"
    warm = dict(model=model, messages=USER, max_tokens=12, temperature=1.0, seed=7, n=2)
    first = [c.message.content for c in client.chat.completions.create(**warm).choices]
    second = [c.message.content for c in client.chat.completions.create(**warm).choices]
    assert first == second and len(first) == 2


@check
def probabilities():
    answer = client.chat.completions.create(
        model=model, messages=USER, max_tokens=8, temperature=0, logprobs=True, top_logprobs=3
    )
    tokens = answer.choices[0].logprobs.content
    assert "".join(t.token for t in tokens) == answer.choices[0].message.content
    for token in tokens:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token


@check
def completions():
    options = dict(model=model, prompt="The capital of France is", max_tokens=8, temperature=0)
    answer = client.completions.create(**options)
    text = answer.choices[0].text
    assert text and answer.object == "text_completion"
    assert text == "".join(c.choices[0].text for c in client.completions.create(**options, stream=True))
    echo = client.completions.create(**options, echo=True, logprobs=None).choices[0].text
    assert echo == options["prompt"] + text
    probable = client.completions.create(**options, logprobs=2).choices[0].logprobs
    assert "".join(probable.tokens) == text and len(probable.top_logprobs[0]) == 2


@check
def responses():
    options = dict(model=model, input="Say hello.", max_output_tokens=16, temperature=0)
    answer = client.responses.create(**options)
    assert answer.status in ("completed", "incomplete") and answer.output_text
    with client.responses.stream(**options) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == answer.output_text
    history = [{"role": "user", "content": "Say hello."}]
    history += [item.model_dump() for item in answer.output]
    history += [{"role": "user", "content": "Again."}]
    assert client.responses.create(**{**options, "input": history}).output_text


@check
def a_history_with_calls():
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    }
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 21 degrees."},
    ]
    answer = client.chat.completions.create(
        model=model, messages=messages, tools=TOOLS, max_tokens=24, temperature=0
    )
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
    # An answer of the client's can be sent back as it is.
    messages += [answer.choices[0].message.model_dump(), {"role": "user", "content": "Thanks."}]
    client.chat.completions.create(model=model, messages=messages, max_tokens=4)


@check
def what_is_refused():
    error = refused(404, "model", lambda: client.chat.completions.create(model="gpt-4o", messages=USER))
    assert error["code"] == "model_not_found"
    create = client.chat.completions.create
    refused(400, "n", lambda: create(model=model, messages=USER, n=0))
    refused(400, "temperature", lambda: create(model=model, messages=USER, temperature=-1))
    refused(400, "nonsense", lambda: create(model=model, messages=USER, extra_body={"nonsense": 1}))
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [{"role": "user", "content": [image]}]
    refused(400, "messages[0].content[0]", lambda: create(model=model, messages=messages))
    long = [{"role": "user", "content": "word " * 400_000}]
    error = refused(400, "messages", lambda: create(model=model, messages=long))
    assert error["code"] == "context_length_exceeded"


def main():
    failed = 0
    for function in CHECKS:
        began = time.monotonic()
        try:
            function()
            outcome = "passed"
        except Exception as error:  # Every check is to run.
            failed += 1
            outcome = f"FAILED: {type(error).__name__}: {error}"
        print(f"{function.__name__}: {outcome} ({time.monotonic() - began:.1f} s)", flush=True)
    sys.exit(1 if failed else 0)


main()
