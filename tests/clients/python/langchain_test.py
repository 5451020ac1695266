"""LangChain, over the interface of OpenAI and over that of Ollama."""

import langchain_ollama
import langchain_openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool

import tiny
from conftest import *

MESSAGES = [SystemMessage("Be short."), HumanMessage("Why is the sky blue?")]


def over_openai(url, model, tokens):
    return langchain_openai.ChatOpenAI(
        base_url=f"{url}/v1", api_key="none", model=model, temperature=0, max_tokens=tokens, max_retries=0
    )


def over_ollama(url, model, tokens):
    return langchain_ollama.ChatOllama(base_url=url, model=model, temperature=0, num_predict=tokens)


@pytest.fixture(params=[over_openai, over_ollama])
def model(request, url):
    return lambda name, tokens=64: request.param(url, name, tokens)


@tool
def get_weather(city: str) -> str:
    """The weather of a city"""
    return f"rain in {city}"


def test_invoke_and_stream(model):
    answer = model(ANSWER).invoke(MESSAGES)
    assert answer.content == tiny.ANSWER_TEXT
    usage = answer.usage_metadata
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 10
    pieces = [piece.content for piece in model(ANSWER).stream(MESSAGES)]
    assert "".join(pieces) == tiny.ANSWER_TEXT and len(pieces) > 3
    both = model(MODEL, 12).batch([MESSAGES, MESSAGES])
    assert both[0].content == both[1].content != ""


def test_calls(model):
    answer = model(CALL).bind_tools([get_weather]).invoke(MESSAGES)
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage) and result.content == "rain in Paris"
    again = model(CALL).bind_tools([get_weather]).invoke([*MESSAGES, answer, result])
    assert isinstance(again, AIMessage) and again.tool_calls


def test_structured_output(model):
    schema = COLOUR | {"title": "Colour", "description": "A colour"}
    structured = model(MODEL, 200).with_structured_output(schema, method="json_schema")
    assert fits_colour(structured.invoke(MESSAGES))


def test_embeddings(url, embedder):
    over = langchain_openai.OpenAIEmbeddings(
        base_url=f"{url}/v1", api_key="none", model=embedder, check_embedding_ctx_length=False
    )
    other = langchain_ollama.OllamaEmbeddings(base_url=url, model=embedder)
    assert over.embed_query("A cat.") == pytest.approx(other.embed_query("A cat."), abs=1e-4)
