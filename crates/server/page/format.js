/** Numbers as people read them. */

const SIZES = ['B', 'kB', 'MB', 'GB', 'TB'];

/** Bytes in decimal units with three digits: 98.1 MB. */
export function bytes(count) {
  if (!Number.isFinite(count)) return '–';
  let unit = 0;
  while (count >= 999.5 && unit < SIZES.length - 1) {
    count /= 1000;
    unit += 1;
  }
  return `${digits(count)} ${SIZES[unit]}`;
}

/** Milliseconds: 153 ms, 2.4 s, 3 min 5 s. */
export function duration(ms) {
  if (!Number.isFinite(ms)) return '–';
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${digits(ms / 1000)} s`;
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

/** Tokens per second. */
export function rate(perSecond) {
  return Number.isFinite(perSecond) ? `${digits(perSecond)} tok/s` : '– tok/s';
}

/** A whole number with group separators. */
export function whole(count) {
  return Number.isFinite(count) ? Math.round(count).toLocaleString('en') : '–';
}

/** A model's name without what Ollama's interface adds to it: `smollm2:latest` is `smollm2`. */
export function plainName(name) {
  return name.replace(/^hf\.co\//, 'hf:').replace(/:latest$/, '');
}

function digits(value) {
  if (value >= 99.95 || Number.isInteger(value)) return String(Math.round(value));
  return value.toFixed(value >= 9.995 ? 1 : 2);
}
