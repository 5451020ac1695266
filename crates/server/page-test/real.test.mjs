/**
 * The page on a real server: `BATON_URL=http://127.0.0.1:11434/ node --test real.test.mjs`, where the
 * server has a small chat model, which BATON_MODEL names. Skipped without BATON_URL.
 */

import assert from 'node:assert/strict';
import { after, afterEach, beforeEach, test } from 'node:test';
import { closeBrowser, done, openPage, say } from './browser.mjs';

process.env.PAGE_TIMEOUT ??= '60000';
const url = process.env.BATON_URL;
const model = process.env.BATON_MODEL ?? 'smollm2';
const options = { skip: !url && 'BATON_URL is not set' };

let page;
let context;
let faults;

const api = async (path) => (await fetch(new URL(path, url))).json();
const lastAnswer = () => page.locator('.answer').last();
const set = (id, value) => page.fill(`#p-${id}`, String(value));

if (url) {
  beforeEach(async () => {
    ({ page, context, faults } = await openPage(url));
    const name = (await api('api/tags')).models.find((row) => row.name.startsWith(model))?.name;
    assert.ok(name, `the server has no ${model}`);
    await page.selectOption('#model', name);
    await set('temperature', 0);
    await set('max_tokens', 24);
  });
  afterEach(async () => {
    assert.deepEqual(faults, []);
    await context.close();
  });
  after(closeBrowser);
}

test('the page comes with a strict policy', options, async () => {
  const response = await fetch(url, { headers: { accept: 'text/html' } });
  assert.match(response.headers.get('content-security-policy'), /default-src 'self'/);
  assert.match(response.headers.get('content-type'), /text\/html/);
});

test('a chat of two turns, with measures and reuse', options, async () => {
  // Of France, it hangs on a hair how the answer begins: another processor's rounding may decide it.
  await say(page, 'What is the capital of Japan?');
  assert.match(await lastAnswer().innerText(), /Tokyo/);
  assert.match(await lastAnswer().locator('.tools').innerText(), /\d tok\/s\s+TTFT \d.*\s+\d+ tokens\s+prompt \d+/);
  assert.match(await page.locator('.phases').innerText(), /Prefill\s+cpu\s+[\d.]+ tok\/s[^]*Decode\s+cpu\s+[\d.]+ tok\/s/);
  assert.match(await page.locator('#memory').innerText(), /\d MB|\d GB/);
  await say(page, 'And of Italy?');
  assert.match(await lastAnswer().locator('.tools').innerText(), /[1-9]\d* cached/);
});

test('the same seed and prompt give the same answer again', options, async () => {
  await set('temperature', 0.8);
  await set('seed', 7);
  await say(page, 'Name a colour.');
  const first = await lastAnswer().locator('.md:visible').innerText();
  await page.click('.answer [title="Answer again"]');
  await done(page);
  assert.match(await lastAnswer().locator('.tools').innerText(), /2\/2/);
  assert.equal(await lastAnswer().locator('.md:visible').innerText(), first);
});

test('stop ends the work of the server', options, async () => {
  await set('max_tokens', 2000);
  await page.fill('#input', 'Write a very long story about a river.');
  await page.press('#input', 'Enter');
  await page.waitForFunction(() => [...document.querySelectorAll('.answer .md')].some((part) => part.innerText.length > 20));
  await page.keyboard.press('Escape');
  await done(page);
  assert.match(await lastAnswer().innerText(), /Stopped\./);
  const running = async () => (await api('api/baton/status')).models.reduce((sum, row) => sum + row.running, 0);
  for (let tries = 0; tries < 50 && (await running()) > 0; tries += 1) await page.waitForTimeout(40);
  assert.equal(await running(), 0);
});

test('JSON mode gives JSON', options, async () => {
  await set('max_tokens', 120);
  await page.selectOption('#p-format', 'json_schema');
  await page.fill('#p-schema', '{"type":"object","properties":{"city":{"enum":["Paris","Rome"]}},"required":["city"],"additionalProperties":false}');
  await say(page, 'What is the capital of France? Answer in JSON.');
  const answer = await page.evaluate(() => document.querySelector('.answer .md code').innerText);
  assert.ok(['Paris', 'Rome'].includes(JSON.parse(answer).city), answer);
});

test('a cut answer says so', options, async () => {
  await set('max_tokens', 3);
  await say(page, 'Tell me a long story.');
  assert.match(await lastAnswer().innerText(), /Cut off/);
});

test('models: facts, load, unload, a pull that fails', options, async () => {
  const name = await page.inputValue('#model');
  await page.click('#models-button');
  const row = page.locator('#installed li', { has: page.locator(`[data-key="load ${name}"]`) });
  await row.getByText('tokens of context').waitFor();
  const toggle = row.locator(`[data-key="load ${name}"]`);
  if ((await toggle.innerText()) === 'Unload') await toggle.click();
  await row.getByText('not loaded').waitFor();
  await toggle.click();
  await row.locator('.state.on').waitFor();
  await page.fill('#pull-name', 'no-such-model-anywhere');
  await page.press('#pull-name', 'Enter');
  await page.locator('#pulls .error').filter({ hasText: 'no-such-model-anywhere' }).waitFor();
  assert.ok((await page.locator('#catalog li').count()) > 0);
});
