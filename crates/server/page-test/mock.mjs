/**
 * A server that answers as `baton serve` does, with texts made for testing the page: what the last user
 * message says picks the answer. It keeps what it was asked, so that tests can look.
 */

import { createReadStream, existsSync } from 'node:fs';
import { createServer } from 'node:http';
import { extname, join, basename } from 'node:path';
import { ANSWERS } from './answers.mjs';

const PAGE = join(import.meta.dirname, '../page');
const TYPES = { '.html': 'text/html; charset=utf-8', '.css': 'text/css', '.js': 'text/javascript', '.svg': 'image/svg+xml' };
const CSP = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Starts on a free port; `{url, asked, state, close}`. `asked`: chat bodies and what became of each. */
export async function startMock() {
  const state = {
    key: null,
    pace: 2,
    installed: [
      model('smollm2:latest', 98_100_000, '135M', 'Q4_1'),
      model('qwen3:4b-thinking', 2_497_000_000, '4.0B', 'Q4_K_M', 262_144),
      model('all-minilm:latest', 46_000_000, '23M', 'F16', 512, ['embedding']),
    ],
    loaded: new Map(),
    running: 0,
  };
  const asked = [];
  const server = createServer((request, response) => {
    handle(request, response, state, asked).catch((error) => response.destroy(error));
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const close = () => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  };
  return { url: `http://127.0.0.1:${server.address().port}/`, asked, state, close };
}

function model(name, size, parameter_size, quantization_level, context_length = 8192, capabilities = ['completion']) {
  const details = { format: 'gguf', family: 'llama', parameter_size, quantization_level, context_length };
  return { name, model: name, size, digest: `sha256:${name}`, modified_at: '2026-01-01T00:00:00Z', details, capabilities };
}

async function handle(request, response, state, asked) {
  const path = new URL(request.url, 'http://x').pathname;
  if (path === '/' || path.startsWith('/assets/')) return file(path, response);
  if (state.key && request.headers.authorization !== `Bearer ${state.key}`) {
    return json(response, 401, { error: { message: 'This server needs an API key.', type: 'authentication_error' } });
  }
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = chunks.length ? JSON.parse(Buffer.concat(chunks)) : null;
  const route = ROUTES[`${request.method} ${path}`];
  if (!route) return json(response, 404, { error: `no such path: ${path}` });
  return route({ body, response, state, asked });
}

function file(path, response) {
  const at = join(PAGE, path === '/' ? 'index.html' : basename(path));
  if (!existsSync(at)) return json(response, 404, { error: 'no such file' });
  response.writeHead(200, { 'Content-Type': TYPES[extname(at)], 'Content-Security-Policy': CSP, 'X-Content-Type-Options': 'nosniff' });
  return createReadStream(at).pipe(response);
}

function json(response, status, body, headers = {}) {
  response.writeHead(status, { 'Content-Type': 'application/json', ...headers });
  response.end(JSON.stringify(body));
}

const ROUTES = {
  'GET /api/tags': ({ response, state }) => json(response, 200, { models: state.installed }),
  'GET /api/ps': ({ response, state }) => json(response, 200, { models: [...state.loaded.values()] }),
  'DELETE /api/delete': ({ response, state, body }) => {
    state.installed = state.installed.filter((row) => row.name !== body.model);
    state.loaded.delete(body.model);
    response.writeHead(200).end();
  },
  'POST /api/generate': async ({ response, state, body }) => {
    await wait(20);
    if (body.keep_alive === 0) state.loaded.delete(body.model);
    else load(state, body.model);
    json(response, 200, { model: body.model, response: '', done: true, done_reason: body.keep_alive === 0 ? 'unload' : 'load' });
  },
  'GET /api/baton/catalog': ({ response, state }) => {
    const here = new Set(state.installed.map((row) => row.name.replace(':latest', '')));
    const models = [
      { name: 'smollm2', title: 'SmolLM2 135M Instruct', license: 'Apache-2.0', size: 98_100_000 },
      { name: 'gemma3:270m', title: 'Gemma 3 270M', license: 'Gemma', size: 253_000_000 },
      { name: 'qwen3:0.6b', title: 'Qwen3 0.6B', license: 'Apache-2.0', size: 484_000_000 },
    ];
    json(response, 200, { models: models.map((row) => ({ ...row, installed: here.has(row.name) })) });
  },
  'GET /api/baton/status': ({ response, state }) =>
    json(response, 200, {
      version: '0.1.0',
      memory: { process_bytes: 212_000_000, available_bytes: 9_300_000_000 },
      models: [...state.loaded.values()].map((row) => ({
        name: row.name.replace(':latest', ''), units: { prefill: 'gpu', decode: 'cpu' }, context_length: row.context_length, running: state.running, waiting: 0,
      })),
    }),
  'POST /api/pull': pull,
  'POST /v1/chat/completions': chat,
};

function load(state, name) {
  const expires = new Date(Date.now() + 300_000).toISOString();
  state.loaded.set(name, { name, model: name, size: 212_000_000, expires_at: expires, context_length: 4096 });
}

async function pull({ response, state, body }) {
  const line = (row) => response.write(`${JSON.stringify(row)}\n`);
  response.writeHead(200, { 'Content-Type': 'application/x-ndjson' });
  line({ status: 'pulling manifest' });
  if (body.model === 'nothing') {
    line({ error: 'there is no model called nothing' });
    return response.end();
  }
  const total = 253_000_000;
  for (let completed = 0; completed <= total && !response.destroyed; completed += total / 40) {
    line({ status: 'pulling weights', digest: 'sha256:w', total, completed: Math.round(completed) });
    await wait(state.pace * 10);
  }
  if (response.destroyed) return;
  state.installed.push(model(body.model, total, '270M', 'Q4_K_M'));
  line({ status: 'success' });
  response.end();
}

async function chat({ response, state, asked, body }) {
  const record = { body, closed: false };
  asked.push(record);
  const last = body.messages.at(-1).content.split('\n\n').at(-1);
  const answer = ANSWERS.find(({ when }) => last.includes(when)) ?? ANSWERS.at(-1);
  if (answer.refuse) return json(response, ...answer.refuse);
  response.on('close', () => (record.closed = !response.writableEnded));
  response.writeHead(200, { 'Content-Type': 'text/event-stream' });
  const send = (event) => response.write(`data: ${JSON.stringify(event)}\n\n`);
  const delta = (part, finish = null) =>
    send({ object: 'chat.completion.chunk', model: body.model, choices: [{ index: 0, delta: part, finish_reason: finish }] });
  load(state, body.model);
  state.running += 1;
  delta({ role: 'assistant' });
  await wait(state.pace * 10);
  let count = 0;
  for (const part of answer.parts(last)) {
    if (response.destroyed) break;
    delta(part);
    count += 1;
    await wait(state.pace);
  }
  state.running -= 1;
  if (answer.broken === 'error') return response.end(`data: ${JSON.stringify({ error: { message: 'the model ran out of memory' } })}\n\n`);
  if (answer.broken === 'cut') return response.destroy();
  delta({}, answer.finish ?? 'stop');
  send({
    choices: [],
    usage: { prompt_tokens: 36, completion_tokens: count, total_tokens: 36 + count, prompt_tokens_details: { cached_tokens: 20 } },
    timings: { cache_n: 20, prompt_n: 16, prompt_ms: 68, prompt_per_second: 235.3, predicted_n: count, predicted_ms: count * 9.8, predicted_per_second: 95 + Math.random() * 12 },
  });
  return response.end('data: [DONE]\n\n');
}

if (process.argv[1] === import.meta.filename) console.log((await startMock()).url);
