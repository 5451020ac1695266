/** What a chat asks of the model beside its messages: system prompt, sampling, length, form of the answer. */

import { $, h, toast } from './dom.js';
import { keep, setDefaults } from './store.js';

const NUMBERS = [
  ['temperature', 'Temperature', { min: 0, max: 2, step: 0.05 }, '0 takes the likeliest token each time'],
  ['top_p', 'Top-p', { min: 0, max: 1, step: 0.01 }, 'the likeliest tokens that make up this share'],
  ['top_k', 'Top-k', { min: 0, max: 1000, step: 1 }, 'of this many tokens; 0 is all'],
  ['min_p', 'Min-p', { min: 0, max: 1, step: 0.01 }, 'at least this share of the likeliest'],
  ['max_tokens', 'Longest answer', { min: 1, max: 1_000_000, step: 1 }, 'in tokens'],
  ['seed', 'Seed', { min: 0, max: 4_294_967_295, step: 1 }, 'the same seed, the same answer'],
];

const EFFORTS = ['none', 'low', 'medium', 'high'];

let chat = null;

/** Shows and changes the settings of `next` from now on. */
export function bindSettings(next) {
  chat = next;
  $('system').value = chat.system;
  for (const [name] of NUMBERS) $(`p-${name}`).value = chat.params[name] ?? '';
  $('p-stop').value = chat.params.stop ?? '';
  $('p-effort').value = chat.params.effort ?? '';
  $('p-format').value = chat.params.format ?? 'text';
  $('p-schema').value = chat.params.schema ?? '';
  showSchema();
}

/** Fills the panel; called once. */
export function buildSettings() {
  const fields = NUMBERS.map(([name, label, limits, hint]) => {
    const mode = limits.step < 1 ? 'decimal' : 'numeric';
    const input = h('input', {
      id: `p-${name}`, type: 'number', inputmode: mode, placeholder: 'default', ...limits,
      // Steps guide the arrows only; any number between is as good.
      step: limits.step < 1 ? 'any' : 1,
      onkeydown: (event) => step(event, limits),
      onchange: () => set(name, input.value === '' || !input.checkValidity() ? undefined : input.valueAsNumber),
    });
    return h('label', null, h('span', null, label, h('small', null, hint)), input);
  });
  const stop = h('textarea', {
    id: 'p-stop', rows: 2, placeholder: 'one text a line', onchange: () => set('stop', stop.value || undefined),
  });
  const format = h(
    'select',
    { id: 'p-format', onchange: () => (set('format', format.value === 'text' ? undefined : format.value), showSchema()) },
    h('option', { value: 'text' }, 'Text'),
    h('option', { value: 'json_object' }, 'JSON'),
    h('option', { value: 'json_schema' }, 'JSON with a schema'),
  );
  const effort = h(
    'select',
    { id: 'p-effort', onchange: () => set('effort', effort.value || undefined) },
    h('option', { value: '' }, 'default'),
    EFFORTS.map((name) => h('option', { value: name }, name)),
  );
  const schema = h('textarea', {
    id: 'p-schema', rows: 5, class: 'mono', spellcheck: 'false', placeholder: '{"type": "object", …}', 'aria-label': 'JSON schema',
    onchange: () => {
      schema.setCustomValidity(schema.value && !parsed(schema.value) ? 'This is not JSON.' : '');
      schema.reportValidity();
      set('schema', schema.value || undefined);
    },
  });
  $('params').append(
    ...fields,
    h('label', { class: 'tall' }, h('span', null, 'Stop', h('small', null, 'ends the answer; \\n is a new line')), stop),
    h('label', null, h('span', null, 'Reasoning', h('small', null, 'for models that think first')), effort),
    h('label', null, h('span', null, 'Answer as'), format),
    schema,
  );
  $('system').addEventListener('input', () => (chat.system = $('system').value));
  $('system').addEventListener('change', () => keep(chat, { touch: false }));
  $('keep-settings').addEventListener('click', () => {
    setDefaults({ system: chat.system, params: chat.params });
    toast('New chats start with these settings.');
  });
  $('reset-settings').addEventListener('click', () => {
    chat.system = '';
    chat.params = {};
    bindSettings(chat);
    keep(chat, { touch: false });
  });
}

/** Arrow keys go by the step that suits the field. */
function step(event, { min, max, step: size }) {
  const way = { ArrowUp: 1, ArrowDown: -1 }[event.key];
  if (!way || size >= 1) return;
  event.preventDefault();
  const value = (event.target.valueAsNumber || 0) + way * size;
  event.target.value = String(Number(Math.min(max, Math.max(min, value)).toFixed(2)));
  event.target.dispatchEvent(new Event('change'));
}

function set(name, value) {
  chat.params = { ...chat.params, [name]: value };
  if (value === undefined) delete chat.params[name];
  keep(chat, { touch: false });
}

function showSchema() {
  $('p-schema').hidden = $('p-format').value !== 'json_schema';
}

function parsed(text) {
  try {
    const value = JSON.parse(text);
    return value && typeof value === 'object' ? value : null;
  } catch {
    return null;
  }
}

/** The fields of a request that the settings of a chat stand for. Throws if a schema is not JSON. */
export function requestFields(params) {
  const fields = {};
  for (const [name] of NUMBERS) if (Number.isFinite(params[name])) fields[name] = params[name];
  const stops = String(params.stop ?? '').split('\n').filter(Boolean).map((line) => line.replaceAll('\\n', '\n'));
  if (stops.length) fields.stop = stops;
  if (EFFORTS.includes(params.effort)) fields.reasoning_effort = params.effort;
  if (params.format === 'json_object') fields.response_format = { type: 'json_object' };
  if (params.format === 'json_schema') {
    const schema = parsed(String(params.schema ?? ''));
    if (!schema) throw new Error('The schema in the settings is not a JSON object.');
    fields.response_format = { type: 'json_schema', json_schema: { name: 'answer', schema, strict: true } };
  }
  return fields;
}
