"""What the tests of all clients share. The servers are started by `run.py`."""

import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import stage

MODEL = stage.MODEL
ANSWER = "hf.co/test/answer"
CALL = "hf.co/test/call"
THOUGHT = "hf.co/test/thought"
ENDLESS = "hf.co/test/endless"
EMBED = "hf.co/test/embed"

QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "A city"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER_TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather of a city", "parameters": WEATHER},
}
COLOUR = {
    "type": "object",
    "properties": {
        "colour": {"type": "string", "enum": ["red", "green", "blue"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["colour", "count"],
    "additionalProperties": False,
}


def fits_colour(value):
    """Whether a value fits the schema, without any package that could be lenient."""
    return (
        isinstance(value, dict)
        and set(value) == {"colour", "count"}
        and value["colour"] in ("red", "green", "blue")
        and type(value["count"]) is int
        and 1 <= value["count"] <= 99
    )


def slots_in_use(url, model):
    slots = stage.ask(url, "GET", f"/slots?model={model}")[1]
    return sum(slot["is_processing"] for slot in slots)


def await_slots(url, model, count, limit=5.0):
    """Waits until so many answers are being made."""
    end = time.monotonic() + limit
    while (now := slots_in_use(url, model)) != count:
        assert time.monotonic() < end, f"{now} answers are being made, not {count}"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def url():
    return os.environ["BATON_URL"]


@pytest.fixture(scope="session")
def locked_url():
    return os.environ["BATON_LOCKED_URL"]


@pytest.fixture(scope="session")
def key():
    return os.environ["BATON_KEY"]


@pytest.fixture(scope="session")
def embedder(url):
    """The name of an embedding model."""
    tags = stage.ask(url, "GET", "/api/tags")[1]["models"]
    if f"{EMBED}:latest" not in {tag["name"] for tag in tags}:
        pytest.skip("NO EMBEDDING MODEL: scripts/test-data.sh fetches it")
    return EMBED
