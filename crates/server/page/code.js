/** A block of code: its language, a button that copies it, and colours once it is complete. */

import { copy, h, iconButton } from './dom.js';

const KEYWORDS = new Set(
  `abstract and as async await auto bool break case catch char class const continue crate def default del
  delete do double elif else end enum except export extends extern false final finally float fn for from func
  function global go goto if impl implements import in int interface is lambda let local long loop match mod
  module move mut namespace new nil none nonlocal not null or package pass private protected pub public raise
  None True False ref return self short signed sizeof static str string struct super switch template then this throw trait true
  try type typedef typeof union unsafe unsigned use using val var virtual void where while with yield
  select insert update create table drop alter join left right inner outer on group by order having limit
  values into set distinct echo fi done esac`.split(/\s+/),
);
const HASH = /^(py|python|sh|bash|zsh|shell|console|rb|ruby|yaml|yml|toml|r|perl|pl|make|makefile|dockerfile|elixir|nix|ini|conf)$/;
const DASHES = /^(sql|lua|haskell|hs|ada|elm)$/;
const PLAIN = /^(|text|txt|plain|plaintext|output|markdown|md|diff|csv|log|latex|tex)$/;
/** Longer code stays in one colour, so that finishing it never takes a noticeable time. */
const MAX_COLOURED = 60_000;

/** `{element, update(text, done)}` for code in the language that `info` names. */
export function codeBlock(info) {
  const language = info.split(/[\s,{]/)[0].toLowerCase();
  const text = document.createTextNode('');
  const code = h('code', null, text);
  const button = iconButton('copy', 'Copy code', () => copy(code.textContent, button));
  let coloured = false;
  return {
    element: h(
      'figure',
      { class: 'code' },
      h('figcaption', null, h('span', null, language || 'text'), button),
      h('pre', { tabindex: '0' }, code),
    ),
    update(next, done) {
      if (coloured && next === text.data) return;
      if (coloured) code.replaceChildren(text);
      coloured = false;
      if (next.startsWith(text.data)) text.appendData(next.slice(text.length));
      else text.data = next;
      if (!done || PLAIN.test(language) || next.length > MAX_COLOURED) return;
      code.replaceChildren(...colour(next, language));
      coloured = true;
    },
  };
}

function pattern(language) {
  const line = HASH.test(language) ? '#.*' : DASHES.test(language) ? '--.*' : '\\/\\/.*';
  const block = HASH.test(language) ? '"""[^]*?(?:"""|$)' : '\\/\\*[^]*?(?:\\*\\/|$)';
  const comment = /^(html|xml|svg)$/.test(language) ? '<!--[^]*?(?:-->|$)' : `${line}|${block}`;
  const string = ['"', "'", '`'].map((q) => `${q}(?:[^${q}\\\\\\n]|\\\\.){0,400}${q}`).join('|');
  return new RegExp(
    `(?<comment>${comment})|(?<string>${string})`
      + '|(?<number>\\b\\d[\\w.]*)|(?<word>[A-Za-z_]\\w*)(?<call>\\()?',
    'g',
  );
}

function colour(text, language) {
  const nodes = [];
  let from = 0;
  for (const found of text.matchAll(pattern(language))) {
    const { word, call, comment, string, number } = found.groups;
    let kind = comment ? 'comment' : string ? 'string' : number ? 'number' : null;
    if (word && KEYWORDS.has(language === 'sql' ? word.toLowerCase() : word)) {
      kind = 'keyword';
    } else if (word && call) kind = 'call';
    if (!kind) continue;
    const body = word ?? found[0];
    nodes.push(text.slice(from, found.index), h('span', { class: `t-${kind}` }, body));
    from = found.index + body.length;
  }
  nodes.push(text.slice(from));
  return nodes;
}
