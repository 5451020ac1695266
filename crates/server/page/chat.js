/** The chat that is open: its messages on the page, and the answers being written in any chat. */

import { $, announce, toast } from './dom.js';
import { complete } from './completion.js';
import { refresh } from './library.js';
import { messageView } from './message.js';
import { recordAnswer, showLive } from './numbers.js';
import { bindSettings } from './settings.js';
import { setBusy } from './status.js';
import { addNode, getChat, keep, newChat, onChats, path, showVersion } from './store.js';

/** How near to the end, in pixels, the view must be to follow new text. */
const NEAR_END = 60;
const TICK_MS = 250;

const runs = new Map();
const drafts = new Map();
let chat = null;
let views = [];
let following = true;
let frame = 0;
let ticker = 0;
let onOpen = () => {};

export const currentChat = () => chat;

/** Calls `opened` after another chat was opened, or the open one began or ended an answer. */
export function onChat(opened) {
  onOpen = opened;
}

/** Opens the chat with this id, or a new one. */
export function openChat(id) {
  if (chat) drafts.set(chat.id, $('input').value);
  chat = getChat(id) ?? (chat?.nodes.length === 0 ? chat : newChat());
  $('input').value = drafts.get(chat.id) ?? '';
  $('input').dispatchEvent(new Event('input'));
  for (const view of views) view.element.remove();
  views = [];
  following = true;
  bindSettings(chat);
  draw();
  onOpen();
}

/** Whether the open chat is being answered. */
export const answering = () => runs.has(chat.id);

/** Puts the messages of the open chat on the page, keeping those that are there. */
function draw() {
  const wanted = path(chat);
  let same = 0;
  while (same < views.length && views[same].at === wanted[same]) same += 1;
  for (const view of views.splice(same)) view.element.remove();
  for (const at of wanted.slice(same)) {
    const view = messageView(chat, at, { edit, again, show });
    views.push(view);
    $('messages').append(view.element);
  }
  update();
}

function update() {
  const run = runs.get(chat.id) ?? null;
  for (const view of views) view.update(run);
  $('empty').hidden = views.length > 0;
  const measured = views.findLast((view) => chat.nodes[view.at].stats);
  showLive(run, measured && chat.nodes[measured.at].stats);
  follow();
}

function updateLast() {
  cancelAnimationFrame(frame);
  frame = 0;
  views.at(-1)?.update(runs.get(chat.id) ?? null);
  follow();
}

function follow() {
  const box = $('scroll');
  if (following) box.scrollTop = box.scrollHeight;
  $('to-end').hidden = following;
}

/** Starts to watch whether the reader scrolled away from the end; called once. */
export function watchScroll() {
  const box = $('scroll');
  box.addEventListener('scroll', () => {
    following = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END;
    $('to-end').hidden = following;
  });
  $('to-end').addEventListener('click', () => {
    following = true;
    follow();
  });
  new ResizeObserver(follow).observe(box);
}

/** Sends a message in the open chat; false if that cannot be done now. */
export function send(text) {
  if (!ready()) return false;
  addNode(chat, chat.leaf, { role: 'user', content: text });
  answer(chat.leaf);
  return true;
}

function edit(at, text) {
  if (!ready()) return;
  addNode(chat, chat.nodes[at].parent, { role: 'user', content: text });
  answer(chat.leaf);
}

function again(at) {
  if (ready()) answer(chat.nodes[at].parent);
}

function show(at) {
  showVersion(chat, at);
  draw();
}

function ready() {
  if (answering()) return false;
  if (!chat.model) toast('Choose a model first.');
  return Boolean(chat.model);
}

/** Stops the answer that a chat is getting. */
export function stop({ id } = chat) {
  runs.get(id)?.controller.abort();
}

async function answer(parent) {
  const here = chat;
  const json = Boolean(here.params.format);
  const at = addNode(here, parent, { role: 'assistant', content: '', reasoning: '', model: here.model, json });
  const run = { at, controller: new AbortController(), sent: performance.now(), first: 0, tokens: 0 };
  runs.set(here.id, run);
  keep(here);
  following = true;
  setBusy(true);
  ticker ||= setInterval(tick, TICK_MS);
  draw();
  onOpen();
  announce('Answering');
  await complete(here, at, run, run.controller.signal, () => {
    if (here === chat) frame ||= requestAnimationFrame(updateLast);
  });
  runs.delete(here.id);
  keep(here);
  const node = here.nodes[at];
  if (node.stats) recordAnswer(node);
  if (!runs.size) {
    clearInterval(ticker);
    ticker = 0;
    setBusy(false);
    // Answering may have loaded a model.
    refresh();
  }
  if (here === chat) {
    update();
    onOpen();
    announce(node.error || node.content || 'The answer is empty.');
  }
}

function tick() {
  const run = runs.get(chat.id);
  if (!run) return;
  showLive(run, null);
  if (!run.first) updateLast();
}

onChats((elsewhere) => elsewhere && chat && !answering() && draw());

// What was written so far outlives a closed page.
addEventListener('pagehide', () => {
  for (const id of runs.keys()) keep(getChat(id));
});
