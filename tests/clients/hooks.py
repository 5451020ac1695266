"""What schemathesis cannot know: names of models, and that answers are to be short.

A request that names no model tests nothing but that. So most get the name of a tiny one. Since it learns
names from replies, what deletes is kept from all models but a copy: the others are needed to the end.
"""

import hub
import schemathesis

MODEL = "hf.co/test/answer"
EMBEDDER = "hf.co/test/embed"
COPY = "copy-of-api"
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")


@schemathesis.hook
def map_body(context, body):
    if not isinstance(body, dict):
        return body
    if context.operation.method.upper() == "DELETE":
        return {name: spared(value) for name, value in body.items()}
    path = context.operation.path
    fields = context.operation.definition.raw["requestBody"]["content"]["application/json"]["schema"]
    known = properties(context.operation.schema.raw_schema, fields)
    changed = dict(body)
    for name in ("model", "name", "source", "from"):
        if isinstance(body.get(name), str) and path != "/api/pull":
            changed[name] = EMBEDDER if "embed" in path and hub.EMBEDDER.is_dir() else MODEL
    if path in ("/api/create", "/api/copy"):
        changed["model" if path == "/api/create" else "destination"] = COPY
    # Conversations that are made up seldom make sense, and what comes after them is to be tested too.
    if "messages" in known and len(str(body)) % 2:
        changed["messages"] = [{"role": "user", "content": "Hello"}]
    for name in LIMITS:
        if name in known and type(body.get(name, -1)) is int and not 0 < body.get(name, -1) <= 16:
            changed[name] = 8
    if "options" in known and isinstance(body.get("options", {}) or {}, dict):
        changed["options"] = {"num_predict": 8} | (body.get("options") or {})
    return changed


@schemathesis.hook
def map_path_parameters(context, parameters):
    if not parameters or not isinstance(parameters.get("model"), str):
        return parameters
    deletes = context.operation.method.upper() == "DELETE"
    return parameters | {"model": spared(parameters["model"]) if deletes else MODEL}


def spared(name):
    """The name of the copy, or one that no model has."""
    if not isinstance(name, str):
        return name
    return COPY if len(name) % 2 else f"absent-{name}"


@schemathesis.hook
def map_query(context, query):
    return query | {"model": MODEL} if query else query


def properties(document, schema):
    """The fields of a schema but for those that are refused."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    every = schema.get("properties", {})
    return {name for name, field in every.items() if field is True or field.get("x-baton-state") != "refused"}
