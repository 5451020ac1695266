/** How one message looks: its text, reasoning, tool calls, measures, and what can be done with it. */

import { copy, h, iconButton } from './dom.js';
import { duration, plainName, rate, whole } from './format.js';
import { Markdown } from './markdown.js';
import { waitingFor } from './status.js';
import { versions } from './store.js';

const ENDINGS = {
  stopped: 'Stopped.',
  length: 'Cut off: the longest answer allowed, or the end of the context.',
};

/**
 * `{at, element, update(run)}` for the message at `at`. `run` is the run that writes it now, or null.
 * `actions`: edit(at, text), again(at), show(at).
 */
export function messageView(chat, at, actions) {
  return chat.nodes[at].role === 'user' ? userView(chat, at, actions) : answerView(chat, at, actions);
}

function userView(chat, at, actions) {
  const node = chat.nodes[at];
  const bubble = h('div', { class: 'bubble' }, node.content);
  const copyButton = iconButton('copy', 'Copy message', () => copy(node.content, copyButton));
  const tools = h('div', { class: 'tools' });
  const element = h('li', { class: 'message user', 'aria-label': 'You' }, bubble, tools);
  const edit = iconButton('edit', 'Edit message', () => {
    const close = () => {
      form.replaceWith(bubble);
      tools.hidden = false;
      edit.focus();
    };
    const form = editor(node.content, close, (text) => {
      close();
      actions.edit(at, text);
    });
    bubble.replaceWith(form);
    tools.hidden = true;
    form.querySelector('textarea').focus();
  });
  return {
    at,
    element,
    update(run) {
      tools.replaceChildren(...pager(chat, at, actions, run), copyButton, edit);
      edit.disabled = Boolean(run);
    },
  };
}

function editor(text, cancel, done) {
  const input = h('textarea', { 'aria-label': 'Edit message', rows: Math.min(12, text.split('\n').length + 1) });
  input.value = text;
  const submit = (event) => {
    event.preventDefault();
    if (input.value.trim()) done(input.value);
  };
  const onkeydown = (event) => {
    if (event.key === 'Escape') {
      event.stopPropagation();
      cancel();
    } else if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) submit(event);
  };
  return h(
    'form',
    { class: 'editor', onsubmit: submit, onkeydown },
    input,
    h('div', { class: 'row end' },
      h('button', { type: 'button', onclick: cancel }, 'Cancel'),
      h('button', { class: 'primary' }, 'Send')),
  );
}

/** Buttons that go through the versions of a message; none if there is one. */
function pager(chat, at, actions, run) {
  const all = versions(chat, at);
  if (all.length < 2) return [];
  const here = all.indexOf(at);
  const to = (step) => ({ disabled: Boolean(run) || !(here + step in all) });
  return [
    iconButton('left', 'Previous version', () => actions.show(all[here - 1]), to(-1)),
    h('span', { class: 'numbers' }, `${here + 1}/${all.length}`),
    iconButton('right', 'Next version', () => actions.show(all[here + 1]), to(1)),
  ];
}

function answerView(chat, at, actions) {
  const node = chat.nodes[at];
  const body = new Markdown();
  const thinking = new Markdown();
  const thinkingLabel = h('span');
  const thought = h('details', { class: 'thought', hidden: true }, h('summary', null, thinkingLabel), thinking.element);
  const waiting = h('p', { class: 'waiting', hidden: true });
  const calls = h('div', { class: 'calls' });
  const note = h('p', { class: 'note', hidden: true });
  const stats = h('span', { class: 'numbers' });
  const tools = h('div', { class: 'tools' });
  const copyButton = iconButton('copy', 'Copy answer', () => copy(node.content, copyButton));
  const again = iconButton('redo', 'Answer again', () => actions.again(at));
  let drawn = '';
  thought.addEventListener('toggle', () => thought.open && thinking.update(node.reasoning, Boolean(node.content)));
  return {
    at,
    element: h(
      'li',
      { class: 'message answer', 'aria-label': 'Answer' },
      h('div', { class: 'by' }, plainName(node.model)),
      thought,
      body.element,
      calls,
      waiting,
      note,
      tools,
    ),
    update(run) {
      const writing = run?.at === at;
      // JSON is no Markdown: its stars and underscores are to be seen.
      body.update(node.json && node.content ? `~~~json\n${node.content}` : node.content, !writing);
      body.element.classList.toggle('writing', writing && Boolean(node.content));
      thought.hidden = !node.reasoning;
      if (thought.open) thinking.update(node.reasoning, !writing);
      thinkingLabel.textContent = writing && !node.content ? 'Thinking…' : thoughtFor(node);
      thought.classList.toggle('pulse', writing && !node.content);
      waiting.hidden = !(writing && !run.first);
      if (!waiting.hidden) waiting.textContent = `${waitingFor(node.model)}…`;
      if (node.tools && calls.childElementCount !== node.tools.length) calls.replaceChildren(...node.tools.map(callView));
      node.tools?.forEach((call, i) => fillCall(calls.children[i], call));
      ending(note, node, writing);
      // Only when they change: a button that is put in its place again loses the focus.
      const state = [writing, Boolean(run), versions(chat, at).length].join();
      if (state === drawn) return;
      drawn = state;
      stats.replaceChildren(...(node.stats && !writing ? measures(node.stats) : []));
      again.disabled = Boolean(run);
      tools.classList.toggle('quiet', writing);
      tools.replaceChildren(...pager(chat, at, actions, run), copyButton, again, stats);
    },
  };
}

function thoughtFor({ thought }) {
  return thought ? `Thought for ${duration(thought)}` : 'Thoughts';
}

function callView() {
  return h('div', { class: 'call' }, h('b'), h('pre', { tabindex: '0' }));
}

function fillCall(element, { name, args }) {
  element.firstChild.textContent = `Calls ${name}`;
  element.lastChild.textContent = args;
}

function ending(note, node, writing) {
  const silent = !node.content && !node.reasoning && !node.tools && 'The model ended its answer at once.';
  const text = node.error || ENDINGS[node.finish] || (node.finish && silent) || (!writing && silent && 'Broken off.') || '';
  note.hidden = !text || writing;
  note.textContent = text;
  note.classList.toggle('error', Boolean(node.error));
}

function measures(stats) {
  const parts = [
    [rate(stats.decodeRate), 'Speed of decode'],
    [`TTFT ${duration(stats.ttft)}`, 'Time to the first token'],
    [`${whole(stats.tokens)} tokens`, 'Length of the answer'],
  ];
  if (stats.prompt != null) {
    const cached = stats.cached ? `, ${whole(stats.cached)} cached` : '';
    parts.push([`prompt ${whole(stats.prompt)}${cached}`, 'Tokens of the prompt; cached ones were not computed again']);
  }
  return parts.map(([text, title]) => h('span', { title }, text));
}
