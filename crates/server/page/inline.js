/**
 * Inline Markdown to nodes: code, emphasis, links. The text is a model's and is never trusted: it only
 * ever becomes text nodes, and links go through `safeLink`. Every pass is linear in the text.
 */

import { h } from './dom.js';

/** Emphasis inside emphasis deeper than this stays text, so that no text can build an endless tree. */
const MAX_DEPTH = 12;
const URL_START = /https?:\/\/[^\s<>"'`]+/y;
const AUTOLINK = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/y;
const DESTINATION = /\(\s{0,9}(?:<([^<>\n]{0,2048})>|((?:[^\s()]|\([^\s()]*\)){0,2048}))(?:\s{1,9}(?:"[^"]{0,999}"|'[^']{0,999}'))?\s{0,9}\)/y;
const BREAK = /<br\s*\/?>/iy;
const MATH = { '\\(': '\\)', '\\[': '\\]' };
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}_]/u;

/** The address if a link may go there: http, https or mailto; else null. */
export function safeLink(address) {
  try {
    const url = new URL(address);
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function link(address, ...children) {
  const href = safeLink(address);
  if (!href) return null;
  return h('a', { href, target: '_blank', rel: 'noopener noreferrer' }, ...children);
}

/** The nodes of a run of inline text. */
export function inline(text) {
  return new Inline(text).run();
}

class Inline {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.plain = '';
    this.out = document.createDocumentFragment();
    this.brackets = [];
    this.runs = [];
    this.unclosed = new Set();
  }

  run() {
    const { text } = this;
    while (this.at < text.length) {
      if (!this.special(text[this.at])) {
        this.plain += text[this.at];
        this.at += 1;
      }
    }
    this.flush();
    emphasize(this.runs);
    return this.out;
  }

  /** Takes what begins at `this.at` if it is more than a letter. */
  special(char) {
    switch (char) {
      case '\\':
        return this.escape();
      case '`':
        return this.code();
      case '\n':
        return this.lineBreak();
      case '*':
      case '_':
      case '~':
        return this.delimiter(char);
      case '[':
        return this.open();
      case ']':
        return this.close();
      case '<':
        return this.angle();
      case 'h':
        return this.bareLink();
      case '$':
        return this.text.startsWith('$$', this.at) && this.verbatim('$$', '$$');
      default:
        return false;
    }
  }

  flush() {
    if (this.plain) this.out.append(this.plain);
    this.plain = '';
  }

  add(node, length) {
    this.flush();
    this.out.append(node);
    this.at += length;
    return true;
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    return pattern.exec(this.text);
  }

  escape() {
    const pair = this.text.substr(this.at, 2);
    if (MATH[pair] && this.verbatim(pair, MATH[pair])) return true;
    if (pair[1] === '\n') return this.add(h('br'), 2);
    if (pair.length < 2 || !ESCAPABLE.test(pair[1]) || MATH[pair]) return false;
    this.plain += pair[1];
    this.at += 2;
    return true;
  }

  /** A formula: shown as it is written, its stars and underscores are not emphasis. */
  verbatim(open, close) {
    const end = this.find(close, this.at + 2);
    if (end < 0) return false;
    return this.add(h('span', { class: 'math' }, this.text.slice(this.at, end + 2)), end + 2 - this.at);
  }

  /** Where `what` comes next; remembers what does not come again, so that searches stay linear. */
  find(what, from) {
    if (this.unclosed.has(what)) return -1;
    const end = this.text.indexOf(what, from);
    if (end < 0) this.unclosed.add(what);
    return end;
  }

  code() {
    const run = this.runLength('`');
    const fence = '`'.repeat(run);
    let from = this.at + run;
    let end = this.find(fence, from);
    while (end >= 0 && this.text[end + run] === '`') {
      from = end;
      while (this.text[from] === '`') from += 1;
      end = this.find(fence, from);
    }
    if (end < 0) {
      this.plain += fence;
      this.at += run;
      return true;
    }
    let body = this.text.slice(this.at + run, end).replaceAll('\n', ' ');
    if (body.startsWith(' ') && body.endsWith(' ') && body.trim()) body = body.slice(1, -1);
    return this.add(h('code', null, body), end + run - this.at);
  }

  runLength(char) {
    let end = this.at;
    while (this.text[end] === char) end += 1;
    return end - this.at;
  }

  lineBreak() {
    const hard = this.plain.endsWith('  ');
    this.plain = this.plain.replace(/ {1,16}$/, '');
    return this.add(hard ? h('br') : '\n', 1);
  }

  delimiter(char) {
    const count = this.runLength(char);
    const before = this.text[this.at - 1] ?? ' ';
    const after = this.text[this.at + count] ?? ' ';
    const spaced = (c) => /\s/.test(c);
    const mark = (c) => !spaced(c) && !WORD.test(c);
    let open = !spaced(after) && (!mark(after) || spaced(before) || mark(before));
    let close = !spaced(before) && (!mark(before) || spaced(after) || mark(after));
    if (char === '_') [open, close] = [open && (!close || mark(before)), close && (!open || mark(after))];
    const node = document.createTextNode(char.repeat(count));
    this.add(node, count);
    if (char !== '~' || count === 2) this.runs.push({ node, char, count, open, close });
    return true;
  }

  open() {
    const image = this.plain.endsWith('!');
    const node = document.createTextNode('[');
    this.add(node, 1);
    this.brackets.push({ node, image, runs: this.runs.length });
    return true;
  }

  close() {
    const bracket = this.brackets.pop();
    if (!bracket) return false;
    this.at += 1;
    const target = this.match(DESTINATION);
    this.at -= 1;
    const element = target && link(target[1] ?? target[2]);
    if (!element) return false;
    this.flush();
    // An image is not fetched; its description becomes a link to it.
    if (bracket.image) {
      const mark = bracket.node.previousSibling;
      mark.data = mark.data.slice(0, -1);
    }
    emphasize(this.runs.splice(bracket.runs));
    wrap(element, bracket.node, null);
    bracket.node.remove();
    if (!element.textContent) element.append(element.href);
    this.out.append(element);
    // Links do not nest.
    this.brackets.length = 0;
    this.at += 1 + target[0].length;
    return true;
  }

  angle() {
    const address = this.match(AUTOLINK);
    const element = address && link(address[1], address[1]);
    if (element) return this.add(element, address[0].length);
    const br = this.match(BREAK);
    return br ? this.add(h('br'), br[0].length) : false;
  }

  bareLink() {
    if (WORD.test(this.text[this.at - 1] ?? ' ') || this.brackets.length) return false;
    const found = this.match(URL_START);
    if (!found) return false;
    let address = found[0].replace(/[.,:;!?*_~\]]{1,16}$/, '');
    if (address.endsWith(')') && !address.includes('(')) address = address.slice(0, -1);
    const element = link(address, address);
    return element ? this.add(element, address.length) : false;
  }
}

/** Turns matching runs of `*`, `_` and `~~` into elements. */
function emphasize(runs) {
  const openers = [];
  const waiting = { '*': 0, _: 0, '~': 0 };
  for (const run of runs) {
    while (run.close && run.count && waiting[run.char]) {
      let opener = openers.pop();
      while (opener.char !== run.char) {
        waiting[opener.char] -= 1;
        opener = openers.pop();
      }
      const width = Math.min(opener.count, run.count, 2);
      const element = h(run.char === '~' ? 'del' : width === 2 ? 'strong' : 'em');
      if (!wrap(element, opener.node, run.node)) {
        openers.length = 0;
        for (const char in waiting) waiting[char] = 0;
        break;
      }
      opener.node.after(element);
      shorten(opener, width);
      shorten(run, width);
      if (opener.count) openers.push(opener);
      else waiting[run.char] -= 1;
    }
    if (run.open && run.count) {
      openers.push(run);
      waiting[run.char] += 1;
    }
  }
}

function shorten(run, width) {
  run.count -= width;
  if (run.count) run.node.data = run.char.repeat(run.count);
  else run.node.remove();
}

const depths = new WeakMap();

/** Moves what lies between two siblings into `element`; false if that nests too deep. */
function wrap(element, from, to) {
  let depth = 1;
  for (let node = from.nextSibling; node !== to; node = node.nextSibling) {
    depth = Math.max(depth, (depths.get(node) ?? 0) + 1);
  }
  if (depth > MAX_DEPTH) return false;
  while (from.nextSibling !== to) element.append(from.nextSibling);
  depths.set(element, depth);
  return true;
}
