/** Requests to the server: JSON, streams, errors that can be read, and the key that a 401 asks for. */

import { session } from './storage.js';

const KEY = 'key';
let ask = async () => null;
let asking = null;
let declined = false;

/** Sets what asks the user for a key: given what the server said of the last one, it resolves to a key or to null. */
export function onKeyNeeded(question) {
  ask = question;
}

/** Lets a question for the key come again after it was declined. */
export function askAgain() {
  declined = false;
}

/** An answer that is not the one asked for. `status` is 0 when no answer came. */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function send(method, path, body, signal) {
  for (;;) {
    const key = session.get(KEY);
    const headers = {};
    if (body) headers['Content-Type'] = 'application/json';
    if (key) headers.Authorization = `Bearer ${key}`;
    let response;
    try {
      response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal, cache: 'no-store' });
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new ApiError('The server does not answer. Is “baton serve” still running?', 0);
    }
    if (response.ok) return response;
    const error = await failure(response);
    // Who declined once is not asked again by what the page does by itself.
    if (response.status !== 401 || (declined && method === 'GET')) throw error;
    if (!(await newKey(key, key ? error.message : ''))) throw error;
  }
}

/** Whether there is now another key than `old`, of which the server said `message`. Requests that fail together share one question. */
async function newKey(old, message) {
  if (session.get(KEY) !== old) return true;
  asking ??= ask(message).finally(() => (asking = null));
  const key = await asking;
  declined = !key;
  if (key) session.set(KEY, key);
  return Boolean(key);
}

async function failure(response) {
  const text = await response.text().catch(() => '');
  let message = text.slice(0, 300) || `The server answered ${response.status} ${response.statusText}`;
  try {
    message = words(JSON.parse(text)) ?? message;
  } catch {
    // Not JSON: the text itself is the message.
  }
  const wait = response.headers.get('Retry-After');
  if (wait) message += ` (try again in ${wait} s)`;
  return new ApiError(message, response.status);
}

/** The message of an error body: `{error: {message}}`, `{error: "…"}`; null if it is none. */
function words(body) {
  const error = body?.error;
  if (error == null) return null;
  return typeof error === 'string' ? error : String(error.message ?? JSON.stringify(error));
}

async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split('\n');
      rest = parts.pop();
      for (const part of parts) yield part.endsWith('\r') ? part.slice(0, -1) : part;
    }
    if (rest) yield rest;
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError('The connection to the server broke.', 0);
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(text) {
  let body;
  try {
    body = JSON.parse(text);
  } catch {
    throw new ApiError(`The server sent something that is not JSON: ${text.slice(0, 100)}`, 0);
  }
  const message = words(body);
  if (message != null) throw new ApiError(message, 0);
  return body;
}

/** The objects of a stream of server-sent events, up to `[DONE]`. */
export async function* events(path, body, signal) {
  let data = [];
  for await (const line of lines(await send('POST', path, body, signal))) {
    if (line === 'data: [DONE]') return;
    if (line.startsWith('data:')) {
      data.push(line.slice(5).trimStart());
    } else if (line === '' && data.length) {
      const text = data.join('\n');
      data = [];
      yield parse(text);
    }
  }
  throw new ApiError('The stream ended before the answer did.', 0);
}

/** The objects of a stream of JSON lines. */
export async function* jsonLines(path, body, signal) {
  for await (const line of lines(await send('POST', path, body, signal))) {
    if (line.trim()) yield parse(line);
  }
}

/** One JSON object; null for an empty body. */
export async function json(method, path, body, signal) {
  const text = await (await send(method, path, body, signal)).text();
  return text.trim() ? parse(text) : null;
}
