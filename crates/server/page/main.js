/** Puts the parts of the page together: the drawers, the keys, who hears of what. */

import { onKeyNeeded } from './api.js';
import { answering, currentChat, onChat, openChat, send, stop, watchScroll } from './chat.js';
import { chooseModel, showModelChoice } from './choice.js';
import { buildComposer, focusInput, showComposer } from './composer.js';
import { $, h, icon } from './dom.js';
import { askKey } from './key.js';
import { onLibrary, refresh } from './library.js';
import { buildModels, openModels } from './models.js';
import { buildNumbers, showStatus } from './numbers.js';
import { buildSettings } from './settings.js';
import { buildSidebar, showChats } from './sidebar.js';
import { onStatus, poll } from './status.js';
import { local } from './storage.js';

/** From this width on a drawer stands beside the chat instead of covering it. */
const BESIDE = { sidebar: matchMedia('(min-width: 800px)'), panel: matchMedia('(min-width: 1180px)') };
const SUGGESTIONS = [
  'Explain in five sentences how a large language model writes text.',
  'Write a small Rust function that counts the words of a text, with a test.',
  'Give me a table of three European cities with population and river.',
];

function drawer(id, open) {
  const wide = BESIDE[id].matches;
  document.body.classList.toggle(`${id}-open`, open);
  $(id).inert = !open;
  $(`${id}-button`).setAttribute('aria-expanded', open);
  if (wide) local.set(`baton.${id}`, open);
  const covering = Object.keys(BESIDE).some((key) => !BESIDE[key].matches && isOpen(key));
  $('shade').hidden = !covering;
}

const isOpen = (id) => document.body.classList.contains(`${id}-open`);

function buildDrawers() {
  for (const id of Object.keys(BESIDE)) {
    const fit = () => drawer(id, BESIDE[id].matches && local.get(`baton.${id}`) !== false);
    $(`${id}-button`).addEventListener('click', () => drawer(id, !isOpen(id)));
    BESIDE[id].addEventListener('change', fit);
    fit();
  }
  for (const element of [$('shade'), ...document.querySelectorAll('.close-drawer')]) {
    element.addEventListener('click', closeCovering);
  }
  // Drawers that stand open at the start do not slide in.
  requestAnimationFrame(() => document.body.classList.add('ready'));
}

/** Closes what covers the chat; whether there was anything. */
function closeCovering() {
  const covering = Object.keys(BESIDE).filter((id) => !BESIDE[id].matches && isOpen(id));
  for (const id of covering) drawer(id, false);
  return covering.length > 0;
}

function keys(event) {
  if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === 'k') {
    event.preventDefault();
    if (document.querySelector('dialog[open]')) return;
    openChat(null);
    closeCovering();
    $('input').focus();
  } else if (event.key === 'Escape' && !document.querySelector('dialog[open]')) {
    if (!closeCovering()) stop();
  }
}

for (const button of document.querySelectorAll('[data-icon]')) button.prepend(icon(button.dataset.icon));
for (const button of document.querySelectorAll('[data-close]')) button.addEventListener('click', () => button.closest('dialog').close());
for (const dialog of document.querySelectorAll('dialog')) {
  dialog.addEventListener('click', (event) => event.target === dialog && dialog.close());
}
$('suggestions').append(...SUGGESTIONS.map((text) => h('button', { type: 'button', onclick: () => send(text) }, text)));
for (const id of ['models-button', 'get-model', 'more-models']) $(id).addEventListener('click', openModels);
$('model').addEventListener('change', () => chooseModel($('model').value));
addEventListener('keydown', keys);

onKeyNeeded(askKey);
buildSettings();
buildNumbers();
buildSidebar(closeCovering);
buildComposer();
buildModels((name) => {
  chooseModel(name);
  $('models').close();
  closeCovering();
  focusInput();
});
watchScroll();
onLibrary((progress) => progress || showModelChoice());
onStatus(showStatus);
onChat(() => {
  showChats();
  showModelChoice();
  showComposer();
  document.title = currentChat().title ? `${currentChat().title} – Baton` : 'Baton';
  $('messages').setAttribute('aria-busy', answering());
});
openChat(null);
buildDrawers();
focusInput();
refresh();
poll();
