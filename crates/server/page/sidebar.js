/** The list of chats: open, rename, delete, export, import. */

import { $, h, iconButton, save, toast } from './dom.js';
import { currentChat, openChat, stop } from './chat.js';
import { focusInput } from './composer.js';
import { allChats, exportChats, importChats, keep, onChats, removeChat, restoreChat } from './store.js';

/** Starts to listen; called once. `close` puts the list away where it covers the page. */
export function buildSidebar(close) {
  const open = (id) => {
    openChat(id);
    close();
    focusInput();
  };
  $('new-chat').addEventListener('click', () => open(null));
  $('chats').addEventListener('click', (event) => {
    const button = event.target.closest('.open');
    if (button) open(button.closest('li').dataset.id);
  });
  $('export').addEventListener('click', () => {
    const list = allChats();
    if (list.length) save(`baton-chats-${new Date().toISOString().slice(0, 10)}.json`, exportChats(list));
    else toast('There are no chats to export yet.');
  });
  $('import').addEventListener('click', () => $('import-file').click());
  $('import-file').addEventListener('change', importFile);
  onChats(showChats);
}

async function importFile({ target }) {
  const [file] = target.files;
  if (!file) return;
  try {
    const count = importChats(await file.text());
    toast(count === 1 ? 'Imported one chat.' : `Imported ${count} chats.`);
  } catch (error) {
    toast(error.message);
  }
  target.value = '';
}

/** Draws the list. */
export function showChats() {
  if ($('chats').querySelector('input')) return;
  const focused = document.activeElement?.closest('#chats li')?.dataset.id;
  const current = currentChat()?.id;
  $('chats').replaceChildren(...allChats().map((chat) => row(chat, chat.id === current)));
  if (focused) $('chats').querySelector(`[data-id="${focused}"] .open`)?.focus();
}

function row(chat, current) {
  const title = h('button', { type: 'button', class: 'open', title: chat.title, 'aria-current': current && 'true' }, chat.title || 'Untitled');
  return h(
    'li',
    { 'data-id': chat.id },
    title,
    iconButton('edit', 'Rename chat', () => rename(chat, title)),
    iconButton('trash', 'Delete chat', () => remove(chat)),
  );
}

function rename(chat, title) {
  const input = h('input', { 'aria-label': 'Name of the chat', maxlength: 80 });
  let ended = false;
  const done = (take) => {
    // Taking the input away makes it lose the focus, which calls this again.
    if (ended) return;
    ended = true;
    input.replaceWith(title);
    if (take && input.value.trim()) chat.title = input.value.trim();
    keep(chat, { touch: false });
  };
  input.value = chat.title;
  input.addEventListener('blur', () => done(true));
  input.addEventListener('keydown', (event) => {
    if (event.key === 'Enter') done(true);
    if (event.key !== 'Escape') return;
    event.stopPropagation();
    done(false);
  });
  title.replaceWith(input);
  input.select();
}

function remove(chat) {
  const open = chat === currentChat();
  stop(chat);
  removeChat(chat.id);
  if (open) openChat(null);
  toast('Chat deleted.', 'Undo', () => {
    restoreChat(chat);
    if (open) openChat(chat.id);
  });
}
