/** The box that messages are written in, and its Send and Stop button. */

import { $, icon } from './dom.js';
import { answering, send, stop } from './chat.js';

/** On touch screens Enter is the key for a new line, as in other apps there. */
const touch = matchMedia('(pointer: coarse) and (hover: none)');

/** Starts to listen; called once. */
export function buildComposer() {
  const input = $('input');
  input.addEventListener('input', showComposer);
  input.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing || touch.matches) return;
    event.preventDefault();
    submit();
  });
  $('composer').addEventListener('submit', (event) => {
    event.preventDefault();
    if (answering()) stop();
    else submit();
  });
}

function submit() {
  const input = $('input');
  if (!input.value.trim() || answering() || !send(input.value)) return;
  input.value = '';
  showComposer();
  focusInput();
}

/** Puts the cursor into the box, except where that would raise a keyboard over the page. */
export function focusInput() {
  if (!touch.matches) $('input').focus();
}

/** Fits the box to its text and the button to what it would do. */
export function showComposer() {
  const input = $('input');
  input.style.height = 'auto';
  input.style.height = `${input.scrollHeight}px`;
  const button = $('send');
  const busy = answering();
  const label = busy ? 'Stop' : 'Send';
  if (button.title !== label) {
    button.title = label;
    button.setAttribute('aria-label', label);
    button.replaceChildren(icon(busy ? 'stop' : 'send'));
    button.classList.toggle('stop', busy);
  }
  button.disabled = !busy && !input.value.trim();
}
