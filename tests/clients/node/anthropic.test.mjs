// The `@anthropic-ai/sdk` package.

import assert from "node:assert/strict";
import { test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";

import * as s from "./servers.mjs";

const client = new Anthropic({ baseURL: s.url, apiKey: "none", maxRetries: 0 });
const TOOL = { name: "get_weather", description: "The weather of a city", input_schema: s.WEATHER };

const say = (fields) =>
  client.messages.create({ model: s.ANSWER, messages: s.QUESTION, max_tokens: 64, ...fields });

test("an answer, whole and in pieces", async () => {
  const whole = await say({});
  assert.deepEqual([whole.content[0].text, whole.stop_reason], [s.ANSWER_TEXT, "end_turn"]);
  const stream = client.messages.stream({ model: s.ANSWER, messages: s.QUESTION, max_tokens: 64 });
  let text = "";
  stream.on("text", (piece) => { text += piece; });
  const final = await stream.finalMessage();
  assert.equal(text, s.ANSWER_TEXT);
  assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
  const stopped = await say({ stop_sequences: ["blue"] });
  assert.deepEqual([stopped.content[0].text, stopped.stop_sequence], ["Sky ", "blue"]);
});

test("calls and thoughts", async () => {
  const called = await client.messages
    .stream({ model: s.CALL, messages: s.QUESTION, max_tokens: 64, tools: [TOOL] }).finalMessage();
  assert.equal(called.stop_reason, "tool_use");
  assert.deepEqual(called.content.at(-1).input, { city: "Paris" });
  const thought = await client.messages
    .stream({
      model: s.THOUGHT, messages: s.QUESTION, max_tokens: 2000,
      thinking: { type: "enabled", budget_tokens: 1024 },
    }).finalMessage();
  assert.deepEqual(thought.content.map((block) => block.type), ["thinking", "text"]);
  assert.equal(thought.content[0].thinking.trim(), "Two and two.");
});

test("tokens are counted", async () => {
  const fields = { model: s.MODEL, messages: s.QUESTION, system: "Be short." };
  const { input_tokens: counted } = await client.messages.countTokens(fields);
  const { usage } = await say({ ...fields, max_tokens: 1 });
  assert.equal(counted, usage.input_tokens + usage.cache_read_input_tokens);
});

test("errors", async () => {
  await assert.rejects(say({ model: "no-such-model" }), Anthropic.NotFoundError);
  await assert.rejects(say({ temperature: -1 }), Anthropic.BadRequestError);
  const wrong = new Anthropic({ baseURL: s.lockedUrl, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(
    wrong.messages.create({ model: s.MODEL, messages: s.QUESTION, max_tokens: 1 }),
    Anthropic.AuthenticationError,
  );
});

test("who goes away frees the slot", async () => {
  const stream = await say({ model: s.ENDLESS, stream: true, max_tokens: 60000 });
  let count = 0;
  for await (const event of stream) {
    assert(event.type);
    if (++count === 8) {
      assert.equal(await s.slotsInUse(s.ENDLESS), 1);
      break;
    }
  }
  await s.awaitSlots(s.ENDLESS, 0);
});
