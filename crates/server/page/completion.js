/** One answer: the request that a chat stands for, its stream into the message, and its measures. */

import { events } from './api.js';
import { requestFields } from './settings.js';
import { path } from './store.js';
import { unitsOf } from './status.js';

/** A server may number tool calls; no answer has more than this. */
const MAX_TOOLS = 64;

/**
 * Streams the answer into the last node of the path that ends at `at`. `run` holds the live measures
 * {sent, first, tokens} (milliseconds of `performance.now()`, number of deltas); `changed` is called
 * after each delta. Never throws: what went wrong stands in the node.
 */
export async function complete(chat, at, run, signal, changed) {
  const answer = chat.nodes[at];
  run.sent = performance.now();
  run.first = 0;
  run.tokens = 0;
  let usage = null;
  let timings = null;
  try {
    const body = {
      model: answer.model,
      messages: messages(chat, at),
      stream: true,
      stream_options: { include_usage: true },
      ...requestFields(chat.params),
    };
    for await (const event of events('v1/chat/completions', body, signal)) {
      const choice = event.choices?.[0];
      if (choice?.delta && take(answer, choice.delta)) {
        run.tokens += 1;
        run.first ||= performance.now();
        if (answer.content && answer.reasoning && !answer.thought) answer.thought = performance.now() - run.first;
        changed();
      }
      if (choice?.finish_reason) answer.finish = choice.finish_reason;
      usage = event.usage ?? usage;
      timings = event.timings ?? timings;
    }
  } catch (error) {
    if (error.name === 'AbortError') answer.finish = 'stopped';
    else answer.error = error.message;
  }
  if (run.first) answer.stats = measures(run, usage, timings, unitsOf(answer.model));
}

/** Adds a delta to the answer; whether there was anything in it. */
function take(answer, delta) {
  const reasoning = delta.reasoning_content ?? delta.reasoning ?? '';
  answer.content += delta.content ?? '';
  answer.reasoning += reasoning;
  for (const call of delta.tool_calls ?? []) {
    const index = call.index ?? 0;
    if (!(index >= 0 && index < MAX_TOOLS)) continue;
    answer.tools ??= [];
    while (answer.tools.length <= index) answer.tools.push({ name: '', args: '' });
    answer.tools[index].name += call.function?.name ?? '';
    answer.tools[index].args += call.function?.arguments ?? '';
  }
  return Boolean(delta.content || reasoning || delta.tool_calls?.length);
}

/** The messages before `at`. Failed answers are left out, and neighbours of one role become one message. */
function messages(chat, at) {
  const list = chat.system.trim() ? [{ role: 'system', content: chat.system }] : [];
  for (const i of path(chat)) {
    if (i >= at) break;
    const { role, content } = chat.nodes[i];
    const last = list.at(-1);
    if (!content) continue;
    if (last?.role === role) last.content += `\n\n${content}`;
    else list.push({ role, content });
  }
  return list;
}

/**
 * Times in ms, rates in tokens/s. The server's own timings where it sends them; else what was seen
 * here, where each delta counts as a token.
 */
function measures(run, usage, timings, units) {
  const ttft = run.first - run.sent;
  const tokens = usage?.completion_tokens ?? timings?.predicted_n ?? run.tokens;
  const decodeMs = timings?.predicted_ms ?? performance.now() - run.first;
  const stats = { ttft, tokens, decodeMs, units };
  stats.decodeRate = timings?.predicted_per_second ?? (tokens > 1 ? ((tokens - 1) * 1000) / decodeMs : undefined);
  stats.prompt = usage?.prompt_tokens;
  stats.cached = usage?.prompt_tokens_details?.cached_tokens ?? timings?.cache_n;
  stats.prefillMs = timings?.prompt_ms;
  stats.prefillRate = timings?.prompt_per_second;
  return stats;
}
