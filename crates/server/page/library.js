/** The models: which are here, which are loaded, which can be had, and the downloads under way. */

import { ApiError, json, jsonLines } from './api.js';

/** `installed`: rows of /api/tags; `loaded`: name to row of /api/ps;
 *  `catalog`: rows of /api/baton/catalog; `pulls`: name to download; `error`: why there is no list; `asked`: whether the server answered yet. */
export const library = { asked: false, installed: [], loaded: new Map(), catalog: [], pulls: new Map(), busy: new Set(), error: '' };

const watchers = new Set();

/** Calls `watcher` after anything about the models changed; with true if it is only how far a download is. */
export function onLibrary(watcher) {
  watchers.add(watcher);
}

function changed(progress = false) {
  for (const watcher of watchers) watcher(progress);
}

/** Asks the server for what is installed and loaded. */
export async function refresh() {
  try {
    const [tags, ps] = await Promise.all([json('GET', 'api/tags'), json('GET', 'api/ps')]);
    library.installed = tags.models ?? [];
    library.loaded = new Map((ps.models ?? []).map((row) => [row.name, row]));
    library.error = '';
  } catch (error) {
    library.loaded = new Map();
    library.error = error.message;
  }
  library.asked = true;
  changed();
}

/** Asks for what can be had. */
export async function refreshCatalog() {
  try {
    library.catalog = (await json('GET', 'api/baton/catalog')).models ?? [];
  } catch (error) {
    library.error = error.message;
  }
  changed();
}

/** Tokens that a model of /api/tags can attend to: as it was loaded, else as it was made. */
export const contextOf = ({ name, details }) => library.loaded.get(name)?.context_length ?? details?.context_length;

/** Whether a model of /api/tags writes text; others only embed it. */
export const canChat = ({ capabilities }) => capabilities?.includes('completion') ?? true;

async function change(name, request) {
  library.busy.add(name);
  changed();
  try {
    await request();
  } finally {
    library.busy.delete(name);
    await refresh();
  }
}

/** Loads a model, as a request without a prompt does. */
export const load = (name) => change(name, () => json('POST', 'api/generate', { model: name, stream: false }));

export const unload = (name) =>
  change(name, () => json('POST', 'api/generate', { model: name, keep_alive: 0, stream: false }));

export const remove = (name) =>
  change(name, async () => {
    await json('DELETE', 'api/delete', { model: name });
    await refreshCatalog();
  });

/**
 * Downloads a model. Its entry in `pulls` is {status, done, total, speed, error, abort}, in bytes and
 * bytes/s; it stays there after a failure until it is dismissed or tried again.
 */
export async function pull(name) {
  if (library.pulls.get(name)?.abort) return;
  const controller = new AbortController();
  const entry = { status: 'starting', done: 0, total: 0, speed: 0, error: '', abort: () => controller.abort() };
  library.pulls.set(name, entry);
  changed();
  try {
    await follow(name, entry, controller.signal);
    library.pulls.delete(name);
  } catch (error) {
    if (error.name === 'AbortError') library.pulls.delete(name);
    entry.error = error.message;
  }
  entry.abort = null;
  await refresh();
  await refreshCatalog();
}

async function follow(name, entry, signal) {
  const parts = new Map();
  let mark = { at: performance.now(), done: null };
  for await (const event of jsonLines('api/pull', { model: name, stream: true }, signal)) {
    entry.status = String(event.status ?? '');
    if (event.status === 'success') return;
    if (event.digest && event.total) {
      parts.set(event.digest, { total: event.total, done: event.completed ?? 0 });
      entry.total = entry.done = 0;
      for (const part of parts.values()) {
        entry.total += part.total;
        entry.done += part.done;
      }
      const now = performance.now();
      // What was already on the disk is not speed.
      mark.done ??= entry.done;
      if (now - mark.at > 1000) {
        entry.speed = ((entry.done - mark.done) * 1000) / (now - mark.at);
        mark = { at: now, done: entry.done };
      }
    }
    changed(true);
  }
  throw new ApiError('The download ended early. Pull again to go on where it stopped.', 0);
}

/** Forgets a download that failed. */
export function dismiss(name) {
  library.pulls.delete(name);
  changed();
}
