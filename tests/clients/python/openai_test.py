"""The `openai` package."""

import json
import math

import openai
import pydantic
import pytest

import tiny
from conftest import *


@pytest.fixture(scope="module")
def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


def chat(client, model=MODEL, messages=QUESTION, **options):
    options = {"temperature": 0, "max_tokens": 24} | options
    return client.chat.completions.create(model=model, messages=messages, **options)


def collect(stream):
    """The text, the reasons to end, and the chunk without choices."""
    text, reasons, last, ids = "", [], None, set()
    for chunk in stream:
        ids.add(chunk.id)
        assert chunk.object == "chat.completion.chunk"
        if not chunk.choices:
            assert last is None, "numbers come once"
            last = chunk
            continue
        assert last is None, "numbers come last"
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        if choice.finish_reason:
            reasons.append(choice.finish_reason)
    assert len(ids) == 1
    return text, reasons, last


def test_models(client):
    rows = {row.id.removesuffix(":latest"): row for row in client.models.list()}
    assert MODEL in rows and rows[MODEL].object == "model"
    chat(client, max_tokens=1)
    one = client.models.retrieve(MODEL)
    assert one.id.removesuffix(":latest") == MODEL
    # The context it was loaded with, not the one it was trained for.
    assert one.context_length == 2048 and one.max_context_length == 8192
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("no-such-model")
    assert caught.value.code == "model_not_found"


def test_chat_counts_and_repeats(client):
    first = chat(client, messages=[{"role": "user", "content": "Name three colours of the sky."}])
    choice = first.choices[0]
    assert choice.message.role == "assistant" and choice.message.tool_calls is None
    assert len(choice.message.content) > 10
    assert choice.finish_reason in ("stop", "length")
    usage = first.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert (usage.completion_tokens == 24) == (choice.finish_reason == "length")
    again = chat(client, messages=[{"role": "user", "content": "Name three colours of the sky."}])
    assert again.choices[0].message.content == choice.message.content
    # All but the last token, whose logits are wanted.
    assert again.usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1


def test_a_second_turn_finds_the_first_in_the_cache(client):
    messages = [{"role": "user", "content": "Tell me of a whale that sang."}]
    first = chat(client, messages=messages)
    held = first.usage.total_tokens
    messages.append({"role": "assistant", "content": first.choices[0].message.content})
    messages.append({"role": "user", "content": "And then?"})
    second = chat(client, messages=messages)
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert held - 2 <= cached < second.usage.prompt_tokens, (held, second.usage)


def test_a_stream_says_the_same(client):
    whole = chat(client).choices[0]
    stream = chat(client, stream=True, stream_options={"include_usage": True})
    text, reasons, last = collect(stream)
    assert (text, reasons) == (whole.message.content, [whole.finish_reason])
    assert last.usage.completion_tokens > 0
    text, _, last = collect(chat(client, stream=True))
    assert text == whole.message.content and last is None


def test_characters_come_whole(client):
    assert chat(client, ANSWER).choices[0].message.content == tiny.ANSWER_TEXT
    deltas = [c.choices[0].delta.content or "" for c in chat(client, ANSWER, stream=True)]
    assert "".join(deltas) == tiny.ANSWER_TEXT
    assert len([delta for delta in deltas if delta]) > 3
    # The limit is in the middle of a character: what there is of it is shown once, as unknown.
    cut = chat(client, ANSWER, max_tokens=4).choices[0]
    assert cut.finish_reason == "length"
    assert cut.message.content in ("Sky blue ", "Sky blue \ufffd")


@pytest.mark.parametrize("stop, text", [
    ("blue", "Sky "),
    (["grass", "y b"], "Sk"),
    ("\N{GRINNING FACE}", "Sky blue "),
    ("S", ""),
    ("green grass", tiny.ANSWER_TEXT),
])
def test_stop_strings_are_not_in_the_answer(client, stop, text):
    whole = chat(client, ANSWER, stop=stop).choices[0]
    assert (whole.message.content, whole.finish_reason) == (text, "stop")
    assert collect(chat(client, ANSWER, stop=stop, stream=True))[:2] == (text, ["stop"])


def test_seeds(client):
    def say(seed):
        return chat(client, temperature=1.5, seed=seed, max_tokens=32).choices[0].message.content

    assert say(7) == say(7)
    assert len({say(seed) for seed in (7, 8, 9)}) == 3


def test_several_answers(client):
    def say():
        answer = chat(client, n=3, temperature=1.5, seed=5, max_tokens=16)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert answer.usage.completion_tokens <= 3 * 16
        return [choice.message.content for choice in answer.choices]

    texts = say()
    assert len(set(texts)) == 3 and texts == say()


def test_logprobs(client):
    choice = chat(client, logprobs=True, top_logprobs=4, max_tokens=8).choices[0]
    tokens = choice.logprobs.content
    assert len(tokens) == 8
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == choice.message.content
    for token in tokens:
        likely = [top.logprob for top in token.top_logprobs]
        assert len(likely) == 4 and likely == sorted(likely, reverse=True)
        # Greedy: the token is the likeliest.
        assert math.isclose(token.logprob, likely[0], abs_tol=1e-4)
        assert sum(map(math.exp, likely)) <= 1.0001


def test_calls(client):
    choice = chat(client, CALL, tools=[WEATHER_TOOL]).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Wait. "
    (call,) = choice.message.tool_calls
    assert call.type == "function" and call.id
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    # What it called goes back with the result.
    messages = QUESTION + [
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]
    assert chat(client, CALL, messages, tools=[WEATHER_TOOL]).choices[0].finish_reason == "tool_calls"


def test_calls_in_pieces(client):
    names, arguments, reasons, text = [], "", [], ""
    for chunk in chat(client, CALL, tools=[WEATHER_TOOL], stream=True):
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        for piece in choice.delta.tool_calls or []:
            assert piece.index == 0
            if piece.function.name:
                assert piece.id and piece.type == "function"
                names.append(piece.function.name)
            arguments += piece.function.arguments or ""
        reasons += [choice.finish_reason] if choice.finish_reason else []
    assert (names, reasons, text.strip()) == (["get_weather"], ["tool_calls"], "Wait.")
    assert json.loads(arguments) == {"city": "Paris"}


def test_without_tools_a_call_is_text(client):
    choice = chat(client, CALL).choices[0]
    assert choice.message.content == "".join(tiny.CALL) and choice.finish_reason == "stop"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_can_be_forced(client, choice):
    answer = chat(client, MODEL, tools=[WEATHER_TOOL], tool_choice=choice, max_tokens=200).choices[0]
    assert answer.finish_reason == "tool_calls" and answer.message.content is None
    (call,) = answer.message.tool_calls
    assert call.function.name == "get_weather" and list(json.loads(call.function.arguments)) == ["city"]


def test_thoughts_are_apart(client):
    message = chat(client, THOUGHT).choices[0].message
    assert (message.content, message.reasoning_content.strip()) == ("Four!", "Two and two.")
    assert message.reasoning == message.reasoning_content
    thoughts, text = "", ""
    for chunk in chat(client, THOUGHT, stream=True):
        delta = chunk.choices[0].delta
        thoughts += getattr(delta, "reasoning_content", None) or ""
        text += delta.content or ""
    assert (text, thoughts.strip()) == ("Four!", "Two and two.")


class Colour(pydantic.BaseModel):
    colour: str
    count: int


def test_a_schema_is_kept_to(client):
    form = {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR, "strict": True}}
    for seed in range(3):
        choice = chat(client, response_format=form, temperature=1.5, seed=seed, max_tokens=100).choices[0]
        assert choice.finish_reason == "stop" and fits_colour(json.loads(choice.message.content))
    streamed = collect(chat(client, response_format=form, stream=True, max_tokens=100))[0]
    assert fits_colour(json.loads(streamed))
    parsed = client.chat.completions.parse(
        model=MODEL, messages=QUESTION, response_format=Colour, temperature=0, max_tokens=200
    )
    assert isinstance(parsed.choices[0].message.parsed, Colour)
    anything = chat(client, response_format={"type": "json_object"}, max_tokens=300).choices[0]
    assert anything.finish_reason == "length" or isinstance(json.loads(anything.message.content), dict)


def test_completions(client):
    def go_on(**options):
        return client.completions.create(model=MODEL, prompt="The sky is", temperature=0, **options)

    whole = go_on(max_tokens=12)
    assert whole.object == "text_completion" and whole.usage.completion_tokens == 12
    pieces = [chunk.choices[0].text for chunk in go_on(max_tokens=12, stream=True)]
    assert "".join(pieces) == whole.choices[0].text and len(pieces) > 6
    assert go_on(max_tokens=12, echo=True).choices[0].text == "The sky is" + whole.choices[0].text
    several = client.completions.create(model=MODEL, prompt=["One", "Two"], max_tokens=2)
    assert [choice.index for choice in several.choices] == [0, 1]


def test_responses(client):
    options = {"model": ANSWER, "input": "Why?", "instructions": "Be short.", "temperature": 0}
    whole = client.responses.create(**options)
    assert whole.output_text == tiny.ANSWER_TEXT and whole.status == "completed"
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    kinds, text = [], ""
    with client.responses.stream(**options) as stream:
        for event in stream:
            kinds.append(event.type)
            text += event.delta if event.type == "response.output_text.delta" else ""
        assert stream.get_final_response().output_text == text == tiny.ANSWER_TEXT
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    tool = {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": True}
    called = client.responses.create(model=CALL, input="Weather?", tools=[tool])
    (call,) = [item for item in called.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})


def test_embeddings(client, embedder):
    def embed(texts, **options):
        rows = client.embeddings.create(model=embedder, input=texts, **options).data
        assert [row.index for row in rows] == list(range(len(texts)))
        return [row.embedding for row in rows]

    texts = ["A cat sleeps.", "A kitten naps.", "Interest rates rose."]
    # The package asks for base64 by default.
    cat, kitten, rates = embed(texts)
    assert embed(texts, encoding_format="float")[0] == pytest.approx(cat, abs=1e-6)
    product = lambda a, b: sum(x * y for x, y in zip(a, b))
    assert product(cat, cat) == pytest.approx(1, abs=1e-3)
    assert product(cat, kitten) > product(cat, rates) + 0.2


@pytest.mark.parametrize("param, options", [
    ("nonsense", {"extra_body": {"nonsense": 1}}),
    ("temperature", {"temperature": -1}),
    ("top_p", {"top_p": 1.5}),
    ("n", {"n": 0}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 100}),
    ("tools[0].type", {"tools": [{"type": "retrieval"}]}),
    ("response_format", {"response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "wrong"}}}}),
    ("messages[0].role", {"messages": [{"role": "nobody", "content": "Hi"}]}),
])
def test_what_makes_no_sense_is_refused(client, param, options):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, **options)
    assert caught.value.param.split(".json_schema")[0] == param, caught.value
    assert caught.value.type == "invalid_request_error"


def test_a_prompt_that_is_too_long_is_not_cut(client):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, messages=[{"role": "user", "content": "word " * 3000}])
    assert caught.value.code == "context_length_exceeded"


def test_unknown_models_and_keys(client, locked_url, key):
    with pytest.raises(openai.NotFoundError) as caught:
        chat(client, "no-such-model")
    assert caught.value.code == "model_not_found"
    wrong = openai.OpenAI(base_url=f"{locked_url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        wrong.models.list()
    right = openai.OpenAI(base_url=f"{locked_url}/v1", api_key=key, max_retries=0)
    assert MODEL in {row.id.removesuffix(":latest") for row in right.models.list()}


def test_who_goes_away_frees_the_slot(client, url):
    stream = chat(client, ENDLESS, stream=True, max_tokens=60_000)
    for _ in range(5):
        next(stream)
    assert slots_in_use(url, ENDLESS) == 1
    stream.close()
    await_slots(url, ENDLESS, 0, limit=1.0)
