/**
 * Markdown blocks to nodes, for text that is still being written: what stood in the last version stays
 * in the page as it is, so that a selection or a hover outlives the next token.
 */

import { codeBlock } from './code.js';
import { h } from './dom.js';
import { inline } from './inline.js';

/** Quotes and lists inside each other deeper than this are shown as text. */
const MAX_DEPTH = 10;

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*))?$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}>/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( +)(.*))?$/;
const TASK = /^\[([ xX])\] +/;
const DELIMITER_CELL = /^\s*:?-+:?\s*$/;

/** A growing Markdown text in an element of its own. */
export class Markdown {
  constructor() {
    this.element = h('div', { class: 'md' });
    this.blocks = [];
  }

  /** Shows `text`. With `done`, what was left plain while it grew is finished too. */
  update(text, done) {
    const next = split(text.replaceAll('\t', '    ').split(/\r?\n/));
    let kept = 0;
    while (kept < this.blocks.length && kept < next.length && same(this.blocks[kept], next[kept])) kept += 1;
    for (const old of this.blocks.slice(kept + 1)) old.node.remove();
    let stale = this.blocks[kept];
    this.blocks.length = Math.min(this.blocks.length, kept);
    for (const block of next.slice(kept)) {
      if (stale?.view && block.kind === 'code' && block.info === stale.info) {
        block.view = stale.view;
        block.node = stale.node;
      } else {
        stale?.node.remove();
        render(block, 0);
        this.element.append(block.node);
      }
      stale = null;
      block.view?.update(block.lines.join('\n'), block.closed || done);
      this.blocks.push(block);
    }
    stale?.node.remove();
    if (done) this.blocks.at(-1)?.view?.update(this.blocks.at(-1).lines.join('\n'), true);
  }
}

function same(a, b) {
  return a.kind === b.kind && a.info === b.info && a.closed === b.closed && a.lines.length === b.lines.length
    && a.lines.every((line, i) => line === b.lines[i]);
}

/** Groups lines into blocks: `{kind, lines, info, closed}`. */
function split(lines) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const start = at;
    let found;
    if (!line.trim()) {
      at += 1;
      continue;
    }
    const fence = FENCE.exec(line);
    if (fence) {
      const end = closing(lines, at + 1, fence[1]);
      const margin = line.search(/\S/);
      const body = lines.slice(at + 1, end).map((row) => row.slice(Math.min(margin, indent(row))));
      found = { kind: 'code', info: fence[2].trim(), lines: body, closed: end < lines.length };
      at = end + 1;
    } else if (HEADING.test(line)) {
      found = { kind: 'heading' };
      at += 1;
    } else if (RULE.test(line)) {
      found = { kind: 'rule' };
      at += 1;
    } else if (QUOTE.test(line)) {
      while (at < lines.length && (QUOTE.test(lines[at]) || continues(lines, at))) at += 1;
      found = { kind: 'quote' };
    } else if (ITEM.test(line)) {
      at = listEnd(lines, at);
      found = { kind: 'list' };
    } else if (isTable(lines, at)) {
      at += 2;
      while (at < lines.length && lines[at].includes('|')) at += 1;
      found = { kind: 'table' };
    } else {
      at += 1;
      while (at < lines.length && continues(lines, at)) at += 1;
      found = { kind: 'paragraph' };
    }
    found.lines ??= lines.slice(start, at);
    blocks.push(found);
  }
  return blocks;
}

function indent(line) {
  const first = line.search(/[^ ]/);
  return first < 0 ? line.length : first;
}

function closing(lines, from, fence) {
  for (let at = from; at < lines.length; at += 1) {
    const end = /^ {0,3}(`{3,}|~{3,})\s*$/.exec(lines[at]);
    if (end && end[1][0] === fence[0] && end[1].length >= fence.length) return at;
  }
  return lines.length;
}

/** Whether a line goes on with the paragraph above it rather than beginning something. */
function continues(lines, at) {
  const line = lines[at];
  if (!line.trim() || FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)) return false;
  const item = ITEM.exec(line);
  if (item && item[4] && (!/^\d/.test(item[2]) || parseInt(item[2], 10) === 1)) return false;
  return !isTable(lines, at);
}

function listEnd(lines, start) {
  const first = ITEM.exec(lines[start]);
  const base = first[1].length;
  const ordered = /\d/.test(first[2]);
  let fence = null;
  let at = start + 1;
  for (; at < lines.length; at += 1) {
    const line = lines[at];
    const inside = indent(line) >= base + 2;
    if (fence) {
      if (line.trim().startsWith(fence) && !line.trim().slice(fence.length).trim()) fence = null;
      continue;
    }
    if (!line.trim()) continue;
    if (inside) {
      fence = /^ *(`{3,}|~{3,})/.exec(line)?.[1] ?? null;
      continue;
    }
    const item = ITEM.exec(line);
    if (item && !RULE.test(line)) {
      if (/\d/.test(item[2]) === ordered) continue;
      break;
    }
    if (!lines[at - 1].trim() || !continues(lines, at)) break;
  }
  while (!lines[at - 1].trim()) at -= 1;
  return at;
}

function cells(line) {
  const row = line.trim().replace(/^\|/, '').replace(/\|$/, '');
  return row.replaceAll('\\|', '\u0000').split('|').map((cell) => cell.replaceAll('\u0000', '|').trim());
}

function isTable(lines, at) {
  const head = lines[at];
  const rule = lines[at + 1];
  if (!head.includes('|') || !rule?.includes('-') || !/[|:]/.test(rule)) return false;
  const marks = cells(rule);
  return marks.every((mark) => DELIMITER_CELL.test(mark)) && marks.length === cells(head).length;
}

/** A heading without the marks that may close it. */
function unmarked(title) {
  let end = title.length;
  while (title[end - 1] === '#') end -= 1;
  return end === 0 || title[end - 1] === ' ' ? title.slice(0, end).trimEnd() : title;
}

function render(block, depth) {
  const text = block.lines.join('\n');
  switch (block.kind) {
    case 'code':
      block.view = codeBlock(block.info);
      block.node = block.view.element;
      break;
    case 'heading': {
      const [, marks, title = ''] = HEADING.exec(text);
      block.node = h(`h${marks.length}`, null, inline(unmarked(title.trim())));
      break;
    }
    case 'rule':
      block.node = h('hr');
      break;
    case 'quote':
      block.node = h('blockquote', null, nested(block.lines.map((line) => line.replace(/^ {0,3}> ?/, '')), depth));
      break;
    case 'list':
      block.node = list(block.lines, depth);
      break;
    case 'table':
      block.node = table(block.lines);
      break;
    default:
      block.node = h('p', null, inline(text.trim()));
  }
}

/** The nodes of blocks inside another block. */
function nested(lines, depth) {
  if (depth >= MAX_DEPTH) return [h('p', null, lines.join('\n'))];
  return split(lines).map((block) => {
    render(block, depth + 1);
    block.view?.update(block.lines.join('\n'), true);
    return block.node;
  });
}

function list(lines, depth) {
  const first = ITEM.exec(lines[0]);
  const base = first[1].length;
  const items = [];
  let width = 0;
  for (const line of lines) {
    const item = indent(line) < base + 2 ? ITEM.exec(line) : null;
    if (item) {
      width = base + item[2].length + Math.min(item[3]?.length ?? 1, 4);
      items.push([item[4] ?? '']);
    } else {
      items.at(-1).push(line.slice(Math.min(width, indent(line))));
    }
  }
  const loose = items.some((rows) => rows.some((row, i) => !row.trim() && i < rows.length - 1 && i > 0));
  const number = parseInt(first[2], 10);
  return h(
    Number.isNaN(number) ? 'ul' : 'ol',
    { start: number > 1 && number, class: loose && 'loose' },
    items.map((rows) => listItem(rows, depth)),
  );
}

function listItem(rows, depth) {
  const task = TASK.exec(rows[0]);
  if (task) rows[0] = rows[0].slice(task[0].length);
  const content = nested(rows, depth);
  // The text of an item stands in it directly: a paragraph would put space around it.
  const lead = content[0]?.tagName === 'P' ? [...content.shift().childNodes] : [];
  const box = task && h('input', { type: 'checkbox', disabled: true, checked: task[1] !== ' ', 'aria-label': 'Task' });
  return h('li', { class: task && 'task' }, box, lead, content);
}

function table(lines) {
  const align = cells(lines[1]).map((mark) => {
    if (mark.endsWith(':')) return mark.startsWith(':') ? 'center' : 'right';
    return null;
  });
  const row = (line, tag) => {
    const texts = cells(line);
    return h('tr', null, align.map((side, i) => h(tag, { class: side }, inline(texts[i] ?? ''))));
  };
  return h(
    'div',
    { class: 'table', tabindex: '0' },
    h('table', null, h('thead', null, row(lines[0], 'th')), h('tbody', null, lines.slice(2).map((line) => row(line, 'td')))),
  );
}
