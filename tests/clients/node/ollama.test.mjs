// The `ollama` package for Node.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Ollama } from "ollama";

import * as s from "./servers.mjs";

const client = new Ollama({ host: s.url });

const chat = (fields) =>
  client.chat({ model: s.MODEL, messages: s.QUESTION, options: { temperature: 0, num_predict: 24 }, ...fields });

test("models", async () => {
  const names = (await client.list()).models.map((model) => model.name);
  assert(names.includes(`${s.MODEL}:latest`), names);
  const shown = await client.show({ model: s.MODEL });
  assert.equal(shown.details.quantization_level, "Q4_1");
  assert.equal(shown.model_info["llama.context_length"], 8192);
  let last;
  for await (const step of await client.pull({ model: s.ANSWER, stream: true })) last = step.status;
  assert.equal(last, "success");
});

test("an answer, whole and in pieces", async () => {
  const whole = await chat({});
  let text = "", last;
  for await (const piece of await chat({ stream: true })) {
    assert(!last?.done);
    text += piece.message.content;
    last = piece;
  }
  assert.equal(text, whole.message.content);
  assert.deepEqual([last.done, last.eval_count], [true, whole.eval_count]);
  assert.equal((await client.generate({ model: s.ANSWER, prompt: "Why?" })).response, s.ANSWER_TEXT);
});

test("calls and thoughts", async () => {
  const called = await chat({ model: s.CALL, tools: [s.WEATHER_TOOL], options: {} });
  assert.equal(called.message.tool_calls.length, 1);
  assert.deepEqual(called.message.tool_calls[0].function.arguments, { city: "Paris" });
  const thought = await chat({ model: s.THOUGHT, think: true });
  assert.deepEqual([thought.message.content, thought.message.thinking.trim()], ["Four!", "Two and two."]);
});

test("a schema is kept to", async () => {
  const answer = await chat({ format: s.COLOUR, options: { temperature: 1.5, seed: 3, num_predict: 100 } });
  assert(s.fitsColour(JSON.parse(answer.message.content)));
});

test("errors", async () => {
  await assert.rejects(chat({ model: "no-such-model" }), (error) =>
    error.name === "ResponseError" && error.status_code === 404);
  await assert.rejects(chat({ options: { mirostat: 2 } }), (error) =>
    error.status_code === 400 && error.message.includes("mirostat"));
});

test("who goes away frees the slot", async () => {
  const stream = await chat({ model: s.ENDLESS, stream: true, options: { num_predict: 60000 } });
  let count = 0;
  await assert.rejects(async () => {
    for await (const piece of stream) {
      assert.equal(piece.done, false);
      if (++count === 5) {
        assert.equal(await s.slotsInUse(s.ENDLESS), 1);
        stream.abort();
      }
    }
  }, { name: "AbortError" });
  await s.awaitSlots(s.ENDLESS, 0);
});
