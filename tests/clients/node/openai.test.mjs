// The `openai` package for Node.

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";

import * as s from "./servers.mjs";

const client = new OpenAI({ baseURL: `${s.url}/v1`, apiKey: "none", maxRetries: 0 });

const chat = (fields) =>
  client.chat.completions.create({
    model: s.MODEL, messages: s.QUESTION, temperature: 0, max_tokens: 24, ...fields,
  });

test("models", async () => {
  const ids = [];
  for await (const row of client.models.list()) ids.push(row.id.replace(/:latest$/, ""));
  assert(ids.includes(s.MODEL), ids);
  assert.equal((await client.models.retrieve(s.MODEL)).object, "model");
});

test("an answer, whole and in pieces", async () => {
  const whole = await chat({});
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
  let text = "", usage = null;
  for await (const chunk of await chat({ stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  assert.equal(usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens - 1);
  const tiny = await chat({ model: s.ANSWER });
  assert.equal(tiny.choices[0].message.content, s.ANSWER_TEXT);
  const stopped = await chat({ model: s.ANSWER, stop: ["blue"] });
  assert.equal(stopped.choices[0].message.content, "Sky ");
});

test("tools are run by the package", async () => {
  const asked = [];
  const runner = client.chat.completions.runTools({
    model: s.CALL, messages: s.QUESTION, max_tokens: 64,
    tools: [{
      type: "function",
      function: {
        ...s.WEATHER_TOOL.function, parse: JSON.parse,
        function: (input) => { asked.push(input); return "rain"; },
      },
    }],
  }, { maxChatCompletions: 2 });
  await runner.done();
  assert.deepEqual(asked, [{ city: "Paris" }, { city: "Paris" }]);
});

test("calls in pieces", async () => {
  const stream = client.chat.completions.stream({ model: s.CALL, messages: s.QUESTION, tools: [s.WEATHER_TOOL] });
  const { choices: [choice] } = await stream.finalChatCompletion();
  assert.equal(choice.finish_reason, "tool_calls");
  assert.equal(choice.message.tool_calls.length, 1);
  assert.deepEqual(JSON.parse(choice.message.tool_calls[0].function.arguments), { city: "Paris" });
});

test("a schema is kept to", async () => {
  const answer = await chat({
    max_tokens: 100, temperature: 1.5, seed: 3,
    response_format: { type: "json_schema", json_schema: { name: "colour", schema: s.COLOUR, strict: true } },
  });
  assert(s.fitsColour(JSON.parse(answer.choices[0].message.content)));
});

test("responses", async () => {
  const options = { model: s.ANSWER, input: "Why?" };
  assert.equal((await client.responses.create(options)).output_text, s.ANSWER_TEXT);
  let text = "", last;
  for await (const event of await client.responses.create({ ...options, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
    last = event.type;
  }
  assert.deepEqual([text, last], [s.ANSWER_TEXT, "response.completed"]);
});

test("errors", async () => {
  await assert.rejects(chat({ model: "no-such-model" }), (error) =>
    error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
  await assert.rejects(chat({ nonsense: 1 }), (error) =>
    error instanceof OpenAI.BadRequestError && error.param === "nonsense");
  const wrong = new OpenAI({ baseURL: `${s.lockedUrl}/v1`, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(wrong.models.retrieve(s.MODEL), OpenAI.AuthenticationError);
  const right = new OpenAI({ baseURL: `${s.lockedUrl}/v1`, apiKey: s.key, maxRetries: 0 });
  assert.equal((await right.models.retrieve(s.MODEL)).object, "model");
});

test("who goes away frees the slot", async () => {
  const stream = await chat({ model: s.ENDLESS, stream: true, max_tokens: 60000 });
  let count = 0;
  for await (const chunk of stream) {
    assert.equal(chunk.object, "chat.completion.chunk");
    if (++count === 5) {
      assert.equal(await s.slotsInUse(s.ENDLESS), 1);
      break;
    }
  }
  await s.awaitSlots(s.ENDLESS, 0);
});
