/**
 * The conversations, kept in this browser. A chat is a tree: editing a message or asking again adds a
 * sibling, and nothing that was said is lost. Nodes are in order of creation, each names its parent by
 * position (-1: none), so a tree read from a file cannot have a circle.
 */

import { toast } from './dom.js';
import { local } from './storage.js';

const PREFIX = 'baton.chat.';
const DEFAULTS = 'baton.defaults';
const chats = new Map();
const watchers = new Set();

/** Calls `watcher` after a chat changed; with true if another tab did it. */
export function onChats(watcher) {
  watchers.add(watcher);
}

function changed(elsewhere = false) {
  for (const watcher of watchers) watcher(elsewhere);
}

/** All chats that have messages, the last used first. */
export function allChats() {
  return [...chats.values()].filter((chat) => chat.nodes.length).sort((a, b) => b.updated - a.updated);
}

export const getChat = (id) => chats.get(id);

/** What new chats begin with: `{model, system, params}`. */
export function defaults() {
  const { model, system, params } = local.get(DEFAULTS) ?? {};
  return { model: text(model), system: text(system), params: plainObject(params) };
}

export function setDefaults(values) {
  local.set(DEFAULTS, { ...defaults(), ...values });
}

/** A chat without messages; it is kept from its first message on. */
export function newChat() {
  const now = Date.now();
  const id = `${now.toString(36)}-${Math.random().toString(36).slice(2, 8)}`;
  const chat = { id, title: '', created: now, updated: now, ...defaults(), nodes: [], leaf: -1 };
  chats.set(id, chat);
  return chat;
}

/** Writes a chat down. */
export function keep(chat, { touch = true } = {}) {
  if (!chat.nodes.length || chats.get(chat.id) !== chat) return;
  if (touch) chat.updated = Date.now();
  if (!local.set(PREFIX + chat.id, chat)) {
    toast('This browser has no room left for chats: export them, then delete some.');
  }
  changed();
}

export function removeChat(id) {
  chats.delete(id);
  local.remove(PREFIX + id);
  changed();
}

/** Puts a removed chat back. */
export function restoreChat(chat) {
  chats.set(chat.id, chat);
  keep(chat, { touch: false });
}

/** Adds a message after `parent` and makes it the one that is shown; its position. */
export function addNode(chat, parent, node) {
  chat.nodes.push({ parent, ...node });
  chat.leaf = chat.nodes.length - 1;
  if (!chat.title && node.role === 'user') chat.title = node.content.trim().split('\n')[0].slice(0, 80);
  return chat.leaf;
}

/** Positions of the messages that are shown, the first one first. */
export function path(chat) {
  const positions = [];
  for (let at = chat.leaf; at >= 0; at = chat.nodes[at].parent) positions.unshift(at);
  return positions;
}

/** Positions of the versions of the message at `at`. */
export function versions(chat, at) {
  const { parent } = chat.nodes[at];
  return chat.nodes.flatMap((node, i) => (node.parent === parent ? [i] : []));
}

/** Shows the version at `at`, with what was last said after it. */
export function showVersion(chat, at) {
  let leaf = at;
  for (let i = at + 1; i < chat.nodes.length; i += 1) if (chat.nodes[i].parent === leaf) leaf = i;
  chat.leaf = leaf;
  keep(chat, { touch: false });
}

/** The text of a file with these chats. */
export function exportChats(list) {
  return JSON.stringify({ format: 'baton-chats', version: 1, chats: list }, null, 1);
}

/** Adds the chats of a file; how many. Throws if it is no such file. */
export function importChats(fileText) {
  let file;
  try {
    file = JSON.parse(fileText);
  } catch {
    throw new Error('This file is not JSON.');
  }
  if (file?.format !== 'baton-chats' || !Array.isArray(file.chats)) throw new Error('This file holds no Baton chats.');
  const read = file.chats.map(checked).filter(Boolean);
  for (const chat of read) {
    chats.set(chat.id, chat);
    local.set(PREFIX + chat.id, chat);
  }
  changed();
  return read.length;
}

const text = (value) => (typeof value === 'string' ? value : '');
const plainObject = (value) => (value && typeof value === 'object' && !Array.isArray(value) ? value : {});
const time = (value) => (Number.isFinite(value) ? value : Date.now());

/** A chat with every field of its type, or null. What is stored or imported may be anything. */
function checked(raw) {
  if (!/^[\w-]{1,40}$/.test(text(raw?.id)) || !Array.isArray(raw.nodes)) return null;
  const nodes = [];
  for (const node of raw.nodes) {
    const parent = Number.isInteger(node?.parent) && node.parent >= -1 && node.parent < nodes.length ? node.parent : null;
    if (parent === null || !['user', 'assistant'].includes(node.role)) return null;
    nodes.push({
      parent,
      role: node.role,
      content: text(node.content),
      reasoning: text(node.reasoning),
      thought: Number.isFinite(node.thought) ? node.thought : undefined,
      tools: Array.isArray(node.tools) ? node.tools.map((t) => ({ name: text(t?.name), args: text(t?.args) })) : undefined,
      model: text(node.model),
      json: node.json === true || undefined,
      error: text(node.error),
      finish: text(node.finish),
      stats: node.stats ? numbers(node.stats) : undefined,
    });
  }
  const leaf = Number.isInteger(raw.leaf) && raw.leaf >= 0 && raw.leaf < nodes.length ? raw.leaf : nodes.length - 1;
  return {
    id: raw.id,
    title: text(raw.title).slice(0, 200),
    created: time(raw.created),
    updated: time(raw.updated),
    model: text(raw.model),
    system: text(raw.system),
    params: plainObject(raw.params),
    nodes,
    leaf,
  };
}

function numbers(stats) {
  const units = plainObject(stats.units);
  const kept = Object.entries(plainObject(stats)).filter(([, value]) => Number.isFinite(value));
  return { ...Object.fromEntries(kept), units: { prefill: text(units.prefill), decode: text(units.decode) } };
}

function load(key) {
  const chat = checked(local.get(key));
  if (!chat || key !== PREFIX + chat.id) return;
  const ours = chats.get(chat.id);
  if (!ours) {
    chats.set(chat.id, chat);
    return;
  }
  // Two tabs have it open: what either added stays, and of an answer the longer version.
  const { nodes, leaf, ...rest } = chat;
  Object.assign(ours, rest);
  nodes.forEach((node, i) => {
    const old = ours.nodes[i];
    if (!old) ours.nodes.push(node);
    else if (old.content.length < node.content.length) Object.assign(old, node);
  });
  // What was said there after the last message here is shown here too.
  for (let at = leaf; at > ours.leaf; at = ours.nodes[at].parent) {
    if (ours.nodes[at].parent === ours.leaf) ours.leaf = leaf;
  }
}

for (const key of local.keys()) if (key.startsWith(PREFIX)) load(key);

// Another tab wrote or removed a chat.
addEventListener('storage', ({ key, newValue }) => {
  if (!key?.startsWith(PREFIX)) return;
  if (newValue) load(key);
  else chats.delete(key.slice(PREFIX.length));
  changed(true);
});
