"""Renders real chat templates with transformers, for chat_templates.json.

    python crates/text/tests/golden/chat_templates.py DATA >crates/text/tests/golden/chat_templates.json

DATA is the folder that scripts/test-data.sh fills. The templates are not in the output: only their
hashes, and what they make of a few conversations.
"""

import datetime
import hashlib
import json
import pathlib
import sys

from transformers.utils.chat_template_utils import render_jinja_template

NOW = datetime.datetime(2024, 7, 26, 13, 5, 9)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather <now> & \"soon\".",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "Wo? 場所"},
                    "days": {"type": "integer", "default": 1},
                },
                "required": ["place"],
            },
        },
    }
]
USER = {"role": "user", "content": "Why is the sky blue?"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "abcdef123",
            "type": "function",
            "function": {"name": "weather", "arguments": {"place": "Zürich", "days": 2}},
        }
    ],
}
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "abcdef123", "content": "sunny, 21 °C"}


def as_text(call):
    """A call whose arguments are JSON in a text."""
    function = {**call["function"], "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False)}
    return {**call, "function": function}


CASES = {
    "one question": {"messages": [USER], "add_generation_prompt": True},
    "a second turn": {
        "messages": [
            {"role": "system", "content": " Be brief.\n"},
            {"role": "user", "content": "  Say 'hi' \"twice\" \\n\n"},
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\nhi 👋🏽 hi"},
            {"role": "user", "content": "日本語で\t<b>&amp;</b>"},
        ],
        "add_generation_prompt": True,
    },
    "a closed conversation": {
        "messages": [USER, {"role": "assistant", "content": "Rayleigh scattering."}],
        "add_generation_prompt": False,
    },
    "tools": {
        "messages": [USER, CALL, RESULT],
        "tools": TOOLS,
        "add_generation_prompt": True,
    },
    "tools as the API has them": {
        "messages": [USER, {**CALL, "content": None, "tool_calls": [as_text(CALL["tool_calls"][0])]}, RESULT],
        "tools": TOOLS,
        "add_generation_prompt": True,
    },
    "a call after thoughts": {
        "messages": [USER, {**CALL, "reasoning_content": "Look it up."}, RESULT],
        "tools": TOOLS,
        "add_generation_prompt": True,
    },
    "no thinking": {"messages": [USER], "add_generation_prompt": True, "enable_thinking": False},
    "two questions at once": {"messages": [USER, USER], "add_generation_prompt": True},
}

# Only of interest where calls are shown at all.
CALLS = {"tools as the API has them", "a call after thoughts"}


def templates(data):
    """Names and sources of all templates, each once."""
    for folder in sorted((data / "tokenizers").iterdir()):
        source = json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template")
        if isinstance(source, str):
            yield folder.name, source
    for model in json.loads((data / "templates" / "llm_family.json").read_text()):
        if model.get("chat_template"):
            yield model["model_name"], model["chat_template"]


def render(source, case):
    case = dict(case)
    messages = case.pop("messages")
    texts, _ = render_jinja_template(
        conversations=[messages],
        chat_template=source,
        bos_token="<s>",
        eos_token="</s>",
        strftime_now=NOW.strftime,
        **case,
    )
    return texts[0]


def shows_calls(source):
    """Whether the template shows a call in one of the forms that messages have."""
    for case in "tools", "tools as the API has them":
        try:
            if CALL["tool_calls"][0]["function"]["arguments"]["place"] in render(source, CASES[case]):
                return True
        except Exception:
            pass
    return False


def main():
    golden = {"cases": CASES, "templates": []}
    seen = set()
    for name, source in templates(pathlib.Path(sys.argv[1])):
        digest = hashlib.sha256(source.encode()).hexdigest()
        if digest in seen:
            continue
        seen.add(digest)
        texts = {}
        for case, arguments in CASES.items():
            if case in CALLS and not shows_calls(source):
                continue
            try:
                texts[case] = render(source, arguments)
            except Exception as error:
                print(f"{name}, {case}: {error!r}", file=sys.stderr)
                texts[case] = None
        golden["templates"].append({"name": name, "sha256": digest, "texts": texts})
    json.dump(golden, sys.stdout, ensure_ascii=False, indent=1)
    print()


main()
