/** Two small charts in SVG: the rate of the last answers, and the phases of the newest. */

import { h, svg } from './dom.js';
import { duration, plainName, rate } from './format.js';

const WIDTH = 280;
const HEIGHT = 72;

/** Columns of tokens/s, the newest at the right. `answers`: rows {rate, model}; at most `slots` are shown. */
export function rateChart(answers, slots) {
  const shown = answers.slice(-slots);
  const top = niceTop(Math.max(1, ...shown.map((row) => row.rate)));
  const step = WIDTH / slots;
  const first = slots - shown.length;
  const columns = shown.map((row, i) => {
    const height = Math.max(1.5, (row.rate / top) * HEIGHT);
    const x = (first + i) * step + 1;
    const bar = { x, y: HEIGHT - height, width: step - 2, height, rx: 2, class: i === shown.length - 1 ? 'newest' : 'older' };
    return svg('rect', bar, svg('title', null, `${rate(row.rate)}, ${plainName(String(row.model))}`));
  });
  const line = (y) => svg('line', { x1: 0, x2: WIDTH, y1: y, y2: y, class: 'grid' });
  const average = shown.reduce((sum, row) => sum + row.rate, 0) / (shown.length || 1);
  const words = shown.length ? `Decode of the last ${shown.length} answers, ${rate(average)} on average` : 'No answers yet';
  return h('div', { class: 'rates' },
    svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', 'aria-label': words },
      line(0.5), line(HEIGHT / 2), line(HEIGHT - 0.5), ...columns),
    h('span', { class: 'top' }, shown.length ? `${top}` : ''),
    h('span', { class: 'middle' }, shown.length ? `${top / 2}` : ''));
}

/** The next round number. */
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 1.5, 2, 3, 4, 6, 8, 10].find((step) => step * power >= value);
}

/** One row for each phase: the unit that ran it, its part of the time, its rate. `stats` may be null. */
export function phaseChart(stats, units) {
  const total = (stats?.prefillMs ?? 0) + (stats?.decodeMs ?? 0);
  const row = (name, unit, ms, perSecond, from) => {
    const width = total && ms ? Math.max(0.8, (ms / total) * 100) : 0;
    const known = unit || '–';
    return h('div', { class: 'phase' },
      h('b', null, name),
      h('span', { class: `unit u-${unitClass(unit)}` }, known),
      h('span', { class: 'numbers' }, ms == null ? '–' : `${rate(perSecond)} · ${duration(ms)}`),
      svg('svg', { viewBox: '0 0 100 6', preserveAspectRatio: 'none', role: 'img', 'aria-label': `${name} on ${known}` },
        svg('rect', { width: 100, height: 6, class: 'track' }),
        svg('rect', { x: Math.min(from, 100 - width), width, height: 6, class: `u-${unitClass(unit)}` })));
  };
  const split = total ? ((stats.prefillMs ?? 0) / total) * 100 : 0;
  return h('div', { class: 'phases' },
    row('Prefill', stats?.units.prefill || units.prefill, stats?.prefillMs, stats?.prefillRate, 0),
    row('Decode', stats?.units.decode || units.decode, stats?.decodeMs, stats?.decodeRate, split));
}

/** The colour of a unit: its own for those that are known. */
function unitClass(unit) {
  if (!unit) return 'none';
  return /^(cpu|gpu)/.exec(unit)?.[0] ?? (/^(ane|coreml|neural)/.test(unit) ? 'ane' : 'other');
}
