/** The live numbers: under the message box while an answer is written, and the panel of charts. */

import { $, h } from './dom.js';
import { phaseChart, rateChart } from './chart.js';
import { bytes, duration, rate, whole } from './format.js';
import { local } from './storage.js';
import { unitsOf } from './status.js';

const RATES = 'baton.rates';
const KEPT = 24;

let rates = readRates();
let model = '';
let shown = null;

function readRates() {
  const rows = local.get(RATES);
  return Array.isArray(rows) ? rows.filter((row) => Number.isFinite(row?.rate) && row.rate > 0).slice(-KEPT) : [];
}

/** Takes the measures of a finished answer into the charts. */
export function recordAnswer({ stats, model: name }) {
  if (!(stats.decodeRate > 0)) return;
  rates = [...rates, { rate: stats.decodeRate, model: name }].slice(-KEPT);
  local.set(RATES, rates);
  $('rates').replaceChildren(rateChart(rates, KEPT));
}

/** The line under the message box: of the run under way, else `stats` of the last answer. */
export function showLive(run, stats) {
  const texts = [];
  if (run?.first) {
    const ms = performance.now() - run.first;
    // One delta is about one token.
    const speed = run.tokens > 2 && ms > 200 ? ((run.tokens - 1) * 1000) / ms : NaN;
    texts.push(rate(speed), `TTFT ${duration(run.first - run.sent)}`, `${whole(run.tokens)} tokens`);
    $('speed').textContent = rate(speed);
    $('ttft').textContent = duration(run.first - run.sent);
  } else if (run) {
    texts.push(`waiting ${duration(performance.now() - run.sent)}`);
    $('speed').textContent = rate(NaN);
  } else if (stats) {
    texts.push(rate(stats.decodeRate), `TTFT ${duration(stats.ttft)}`, `${whole(stats.tokens)} tokens`);
  }
  $('now').textContent = texts.join(' · ');
  if (run) return;
  shown = stats ?? null;
  $('speed').textContent = rate(stats?.decodeRate);
  $('ttft').textContent = duration(stats?.ttft);
  $('prompt').textContent = tokens(stats?.prompt);
  $('cached').textContent = tokens(stats?.cached);
  drawPhases();
}

const tokens = (count) => (count == null ? '–' : `${whole(count)} tokens`);

/** Shows the units of this model from now on. */
export function showModel(name) {
  model = name;
  drawPhases();
}

/** Shows what the server says about itself; null when it does not answer. */
export function showStatus(status) {
  const memory = status?.memory;
  $('memory').textContent = memory ? bytes(memory.process_bytes) : '–';
  $('available').textContent = memory ? bytes(memory.available_bytes) : '–';
  const share = memory ? memory.process_bytes / (memory.process_bytes + memory.available_bytes) : 0;
  $('memory-bar').value = Number.isFinite(share) ? share : 0;
  const models = status?.models ?? [];
  const sum = (field) => models.reduce((total, row) => total + (row[field] || 0), 0);
  $('requests').textContent = status ? `${whole(sum('running'))} running, ${whole(sum('waiting'))} waiting` : '–';
  $('version').textContent = status?.version ? `Baton ${status.version}` : '';
  drawPhases();
}

function drawPhases() {
  $('phases').replaceChildren(phaseChart(shown, unitsOf(model)));
}

/** Fills the panel; called once. */
export function buildNumbers() {
  const line = (label, id) => h('div', null, h('dt', null, label), h('dd', { id }, '–'));
  $('numbers').append(
    h('div', { class: 'speed', id: 'speed' }, rate(NaN)),
    h('div', { id: 'rates' }, rateChart(rates, KEPT)),
    h('div', { id: 'phases' }),
    h('dl', null,
      line('Time to the first token', 'ttft'), line('Prompt', 'prompt'), line('of it cached', 'cached'),
      line('Requests', 'requests'), line('Memory of the server', 'memory'), line('Memory still free', 'available')),
    h('progress', { id: 'memory-bar', max: 1, value: 0, 'aria-label': 'Share of memory that the server uses' }),
  );
}
