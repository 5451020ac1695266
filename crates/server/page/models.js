/** The dialog of models: what is installed, what can be had, and downloads. */

import { askAgain } from './api.js';
import { $, h, iconButton, toast } from './dom.js';
import { bytes, duration, plainName, whole } from './format.js';
import { canChat, contextOf, dismiss, library, load, onLibrary, pull, refresh, refreshCatalog, remove, unload } from './library.js';

let choose = () => {};
let sure = '';

/** Starts to listen; called once. `onchoose` is called with the name of a model to chat with. */
export function buildModels(onchoose) {
  choose = onchoose;
  $('pull-form').addEventListener('submit', (event) => {
    event.preventDefault();
    const name = $('pull-name').value.trim();
    if (!name) return;
    $('pull-name').value = '';
    pull(name);
  });
  $('models').addEventListener('close', () => (sure = ''));
  onLibrary((progress) => {
    showPullBadge();
    if (!$('models').open) return;
    if (progress) showProgress();
    else showModels();
  });
}

/** Opens the dialog with what the server says now. */
export async function openModels() {
  askAgain();
  $('models').showModal();
  showModels();
  await refresh();
  await refreshCatalog();
}

function showPullBadge() {
  const active = [...library.pulls.values()].filter((entry) => entry.abort);
  const done = active.reduce((sum, entry) => sum + entry.done, 0);
  const total = active.reduce((sum, entry) => sum + entry.total, 0);
  $('pull-badge').textContent = active.length ? `${total ? Math.floor((done / total) * 100) : 0} %` : '';
}

function showModels() {
  // Buttons are built anew; the one that had the focus gets it back.
  const focused = document.activeElement?.dataset.key;
  $('models-error').textContent = library.error;
  const other = [...library.pulls.keys()].filter((name) => !library.catalog.some((row) => row.name === name));
  fill('pulls', other.map((name) => h('li', null, h('div', { class: 'what' }, h('b', null, name)), progress(name))));
  fill('installed', library.installed.map(installedRow), 'No model is installed yet. Pull one below.');
  fill('catalog', library.catalog.filter((row) => !row.installed || library.pulls.has(row.name)).map(catalogRow),
    library.catalog.length ? 'Everything in the catalog is installed.' : 'The catalog is empty.');
  showProgress();
  if (focused) $('models').querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

/** Puts rows into a list. Those that look as before are not touched: a button that is built or put in anew
 *  between press and release gets no click. */
function fill(id, rows, none) {
  const list = $(id);
  const next = rows.length ? rows : [none && h('li', { class: 'none' }, none)].filter(Boolean);
  next.forEach((row, at) => {
    const old = list.children[at];
    if (!old) list.append(row);
    else if (!old.isEqualNode(row)) old.replaceWith(row);
  });
  while (list.children.length > next.length) list.lastElementChild.remove();
}

function facts(...texts) {
  return h('div', { class: 'facts' }, texts.filter(Boolean).map((text) => h('span', null, text)));
}

function action(key, label, onclick, props) {
  return h('button', { type: 'button', 'data-key': key, onclick, ...props }, label);
}

async function attempt(work) {
  try {
    await work();
  } catch (error) {
    toast(error.message);
  }
}

function installedRow(model) {
  const { name, size, details } = model;
  const loaded = library.loaded.get(name);
  const busy = library.busy.has(name);
  const context = contextOf(model);
  const state = loaded ? `loaded${expiry(loaded.expires_at)}` : null;
  return h(
    'li',
    null,
    h('div', { class: 'what' },
      h('b', null, plainName(name)),
      facts(details?.parameter_size, details?.quantization_level, bytes(size), context && `${whole(context)} tokens of context`),
      h('div', { class: `state${loaded ? ' on' : ''}` }, busy ? 'working…' : state ?? 'not loaded')),
    h('div', { class: 'row' },
      canChat(model) && action(`use ${name}`, 'Chat', () => choose(name), { class: 'primary', 'aria-label': `Chat with ${name}` }),
      loaded
        ? action(`load ${name}`, 'Unload', () => attempt(() => unload(name)), { disabled: busy })
        : action(`load ${name}`, 'Load', () => attempt(() => load(name)), { disabled: busy }),
      deleteButton(name, size, busy)),
  );
}

/** Deleting takes a second click on the same button. */
function deleteButton(name, size, disabled) {
  const key = `delete ${name}`;
  if (sure !== name) {
    const onclick = () => {
      sure = name;
      showModels();
    };
    return iconButton('trash', `Delete ${name}`, onclick, { 'data-key': key, disabled });
  }
  const onclick = () => {
    sure = '';
    attempt(() => remove(name));
  };
  const onblur = () => setTimeout(() => {
    if (document.activeElement?.dataset.key === key) return;
    sure = '';
    showModels();
  });
  return action(key, `Delete ${bytes(size)}?`, onclick, { class: 'danger', onblur });
}

function expiry(at) {
  const left = Date.parse(at) - Date.now();
  if (!(left > 0) || left > 86_400_000) return '';
  return `, for ${left < 60_000 ? duration(left) : `${Math.round(left / 60_000)} min`} more`;
}

function catalogRow({ name, title, license, size }) {
  return h(
    'li',
    null,
    h('div', { class: 'what' }, h('b', null, title || name), facts(title && name, size && bytes(size), license)),
    library.pulls.has(name)
      ? progress(name)
      : h('div', { class: 'row' }, action(`pull ${name}`, 'Pull', () => pull(name), { 'aria-label': `Pull ${name}` })),
  );
}

function progress(name) {
  const { error } = library.pulls.get(name);
  if (error) {
    return h('div', { class: 'row wide' },
      h('span', { class: 'error' }, error),
      action(`pull ${name}`, 'Try again', () => pull(name)),
      action(`dismiss ${name}`, 'Dismiss', () => dismiss(name)));
  }
  return h('div', { class: 'row wide', 'data-pull': name },
    h('progress', { 'aria-label': `Download of ${name}` }),
    h('span', { class: 'numbers' }),
    action(`cancel ${name}`, 'Cancel', () => library.pulls.get(name)?.abort?.(), { 'aria-label': `Cancel the download of ${name}` }));
}

/** Brings the bars up to date, in place: a button that is built anew between press and release gets no click. */
function showProgress() {
  for (const element of document.querySelectorAll('[data-pull]')) {
    const entry = library.pulls.get(element.dataset.pull);
    if (!entry) continue;
    const [bar, words] = element.children;
    if (entry.total) {
      bar.max = entry.total;
      bar.value = entry.done;
    }
    words.textContent = wordsFor(entry);
  }
}

function wordsFor({ status, done, total, speed }) {
  if (!total) return status;
  const left = speed > 0 && total > done ? `, ${duration(((total - done) / speed) * 1000)} left` : '';
  return `${bytes(done)} of ${bytes(total)}${speed > 0 ? ` at ${bytes(speed)}/s` : ''}${left}`;
}
