/** What the server says about itself now: memory, and which unit runs which phase of which model. */

import { json } from './api.js';
import { plainName } from './format.js';

const BUSY_MS = 1500;
const IDLE_MS = 10_000;

let latest = null;
let timer = 0;
let busy = false;
let watcher = () => {};

/** Calls `next` with each new status: `{version, memory, models}`, or null when the server is gone. */
export function onStatus(next) {
  watcher = next;
}

/** Asks more often while answers are being written. */
export function setBusy(now) {
  if (busy === now) return;
  busy = now;
  poll();
}

/** Asks now and then again, for as long as the page can be seen. */
export async function poll() {
  clearTimeout(timer);
  try {
    latest = await json('GET', 'api/baton/status');
  } catch {
    latest = null;
  }
  watcher(latest);
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(poll, busy ? BUSY_MS : IDLE_MS);
}

addEventListener('visibilitychange', () => document.hidden || poll());

function row(model) {
  return latest?.models?.find((entry) => plainName(entry.name) === plainName(model)) ?? null;
}

/** The units of a model by phase, `{prefill, decode}`; empty names while it is not loaded. */
export function unitsOf(model) {
  const units = row(model)?.units;
  return { prefill: String(units?.prefill ?? ''), decode: String(units?.decode ?? '') };
}

/** What an answer waits for before its first token. */
export function waitingFor(model) {
  if (!latest) return 'Waiting';
  const found = row(model);
  if (!found) return 'Loading the model';
  return found.waiting > 0 && found.running > 0 ? 'Waiting in the queue' : 'Reading the prompt';
}
