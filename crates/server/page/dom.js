/** Elements, icons and notices. Everything here builds nodes; nothing parses markup. */

const ICONS = {
  menu: 'M4 7h16M4 12h16M4 17h16',
  plus: 'M12 5v14M5 12h14',
  send: 'M12 19V5M6 11l6-6 6 6',
  stop: 'M6.5 6.5h11v11h-11z',
  copy: 'M9 9h10v11H9zM5 15V4h10',
  check: 'M5 13l4 4L19 7',
  edit: 'M4 20l1-4L16 5l3 3L8 19zM14 7l3 3',
  redo: 'M19 12a7 7 0 1 1-2-5l2 2M19 4v5h-5',
  trash: 'M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10 11v5M14 11v5',
  download: 'M12 4v12M7 11l5 5 5-5M5 20h14',
  upload: 'M12 16V4M7 9l5-5 5 5M5 20h14',
  panel: 'M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4',
  models: 'M12 3l8 4.5v9L12 21l-8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9',
  theme: 'M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16v16M12 8h5M12 12h8M12 16h5',
  close: 'M6 6l12 12M18 6L6 18',
  left: 'M14 6l-6 6 6 6',
  right: 'M10 6l6 6-6 6',
  down: 'M12 5v14M6 13l6 6 6-6',
};

/** An HTML element. Functions become listeners, `true` an empty attribute; null and false are left out. */
export function h(tag, props, ...children) {
  return build(document.createElement(tag), props, children);
}

/** An SVG element. */
export function svg(tag, props, ...children) {
  return build(document.createElementNS('http://www.w3.org/2000/svg', tag), props, children);
}

function build(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (typeof value === 'function') element.addEventListener(name.slice(2), value);
    else if (value != null && value !== false) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

/** The element with this id. */
export const $ = (id) => document.getElementById(id);

export function icon(name) {
  return svg('svg', { viewBox: '0 0 24 24', class: 'icon', 'aria-hidden': 'true' }, svg('path', { d: ICONS[name] }));
}

/** A button that shows only an icon; `label` is what it is called. */
export function iconButton(name, label, onclick, props) {
  return h('button', { type: 'button', class: 'ghost', 'aria-label': label, title: label, onclick, ...props }, icon(name));
}

/** Says something to screen readers without showing it. */
export function announce(text) {
  $('live').textContent = text;
}

/** A notice at the bottom of the page, with one thing to do about it if `action` is given. */
export function toast(text, label, action) {
  const note = h('div', { class: 'toast' }, h('span', null, text));
  const close = () => note.remove();
  if (action) {
    note.append(h('button', { type: 'button', onclick: () => (close(), action()) }, label));
  }
  note.append(iconButton('close', 'Dismiss', close));
  $('toasts').append(note);
  setTimeout(close, action ? 10_000 : 6000);
}

/** Copies and shows on the button that it did. */
export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages without TLS that are not on localhost have no clipboard object.
    const area = h('textarea', { class: 'sr' });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
    button.focus();
  }
  button.replaceChildren(icon('check'));
  announce('Copied');
  setTimeout(() => button.replaceChildren(icon('copy')), 1500);
}

/** Offers `text` as a file. */
export function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  h('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
