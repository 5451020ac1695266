/** Asks for the API key when the server wants one. */

import { $ } from './dom.js';

/** Shows the question, and what the server said of the last key; the key, or null if the user declines. */
export function askKey(message) {
  const dialog = $('key');
  const input = $('key-value');
  $('key-error').textContent = message;
  input.value = '';
  dialog.returnValue = '';
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => resolve(dialog.returnValue === 'ok' ? input.value.trim() : null), { once: true });
  });
}
