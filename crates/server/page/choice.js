/** The choice of the open chat's model at the top of the page, and what an empty chat says. */

import { currentChat } from './chat.js';
import { $, h } from './dom.js';
import { plainName } from './format.js';
import { canChat, library } from './library.js';
import { showModel } from './numbers.js';
import { keep, setDefaults } from './store.js';

let shown = '';

/** Lets the open chat, and new ones, be answered by this model. */
export function chooseModel(name) {
  const chat = currentChat();
  chat.model = name;
  setDefaults({ model: name });
  keep(chat, { touch: false });
  showModelChoice();
}

/** Shows what is installed, with the open chat's model chosen. */
export function showModelChoice() {
  const chat = currentChat();
  const names = library.installed.filter(canChat).map((row) => row.name);
  if (!names.includes(chat.model) && names.length && !chat.nodes.length) {
    chat.model = names.find((name) => library.loaded.has(name)) ?? names[0];
  }
  // A list that is open in front of the user must not be built anew for nothing.
  const wanted = JSON.stringify([library.asked, chat.model, names]);
  if (wanted !== shown) showOptions(chat.model, names);
  shown = wanted;
  const loaded = library.loaded.has(chat.model);
  $('loaded').classList.toggle('on', loaded);
  $('loaded').title = loaded ? 'Loaded' : 'Not loaded: the first answer loads it';
  const none = library.asked && !names.length && !chat.model;
  $('welcome').textContent = library.error || (none ? 'No model is installed yet.' : 'What would you like to know?');
  $('get-model').hidden = !none;
  $('suggestions').hidden = none;
  showModel(chat.model);
}

function showOptions(model, names) {
  const options = names.map((name) => h('option', { value: name }, plainName(name)));
  if (!model) options.unshift(h('option', { value: '' }, library.asked ? 'No model' : ''));
  else if (!names.includes(model)) options.unshift(h('option', { value: model }, `${plainName(model)} (not installed)`));
  $('model').replaceChildren(...options);
  $('model').value = model;
}
