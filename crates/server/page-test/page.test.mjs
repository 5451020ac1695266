/** The page in a real browser, against the mock server. */

import assert from 'node:assert/strict';
import { after, afterEach, beforeEach, test } from 'node:test';
import { readFile } from 'node:fs/promises';
import { closeBrowser, done, openPage, say } from './browser.mjs';
import { startMock } from './mock.mjs';

let mock;
let page;
let context;
let faults;

async function open(options) {
  await context?.close();
  ({ page, context, faults } = await openPage(mock.url, options));
}

const answers = () => page.locator('.answer');
const text = (locator) => locator.innerText();

beforeEach(async () => {
  mock = await startMock();
  await open();
});
afterEach(async () => {
  assert.deepEqual(faults, []);
  await context.close();
  context = null;
  await mock.close();
});
after(closeBrowser);

test('streams an answer, shows its measures, keeps it', async () => {
  await say(page, 'hello there');
  assert.match(await text(answers().last()), /You said: hello there/);
  const shown = await text(answers().last().locator('.tools'));
  assert.match(shown, /tok\/s/);
  assert.match(shown, /TTFT/);
  assert.match(shown, /prompt 36, 20 cached/);
  assert.match(await text(page.locator('#panel')), /235 tok\/s/);
  assert.deepEqual(await page.locator('.phase .unit').allInnerTexts(), ['gpu', 'cpu']);
  const { body } = mock.asked[0];
  assert.deepEqual(body.messages, [{ role: 'user', content: 'hello there' }]);
  assert.equal(body.stream_options.include_usage, true);
  await page.reload();
  await page.click('#chats .open');
  assert.match(await text(answers().last()), /You said: hello there/);
});

test('stops on Escape and on the button, and the server sees it', async () => {
  for (const way of [() => page.keyboard.press('Escape'), () => page.click('#send')]) {
    await page.fill('#input', 'endless');
    await page.press('#input', 'Enter');
    await page.getByText('word5').last().waitFor();
    await way();
    await done(page);
    assert.match(await text(answers().last()), /word5[^]*Stopped\./);
    await assertSoon(() => mock.asked.at(-1).closed);
  }
  assert.equal(mock.asked[1].body.messages.length, 3);
});

async function assertSoon(check) {
  for (let tries = 0; tries < 100 && !check(); tries += 1) await new Promise((resolve) => setTimeout(resolve, 20));
  assert.ok(check());
}

test('edits a message, answers again, and keeps every version', async () => {
  await say(page, 'first words');
  await page.hover('.user');
  await page.click('.user [title="Edit message"]');
  await page.fill('.editor textarea', 'other words');
  await page.press('.editor textarea', 'Enter');
  await answers().getByText('You said: other words').waitFor();
  await done(page);
  assert.equal(await page.locator('.message').count(), 2);
  await page.click('.user [title="Previous version"]');
  assert.match(await text(answers().last()), /first words/);
  await page.click('.answer [title="Answer again"]');
  await done(page);
  assert.match(await text(page.locator('.answer .tools')), /2\/2/);
  assert.deepEqual(mock.asked.map(({ body }) => body.messages.at(-1).content), ['first words', 'other words', 'first words']);
});

test('shows Markdown as elements', async () => {
  await say(page, 'rich');
  const md = answers().last().locator('.md');
  assert.equal(await md.locator('h1').innerText(), 'How a model writes');
  assert.equal(await md.locator('ol > li').count(), 3);
  assert.equal(await md.locator('ol ul > li').count(), 2);
  assert.equal(await md.locator('figure.code').count(), 2);
  assert.equal(await md.locator('li figure.code .t-keyword').first().innerText(), 'while');
  assert.deepEqual(await md.locator('td').allInnerTexts(), ['prefill', 'arithmetic', '235.8', 'decode', 'memory | bandwidth', '101.7']);
  assert.equal(await md.locator('del').innerText(), 'letters');
  assert.equal(await md.locator('input:checked').count(), 1);
  assert.equal(await md.locator('.math').innerText(), '\\(a_1 * b_2 * c\\)');
  assert.deepEqual(await md.locator('a').evaluateAll((links) => links.map((link) => [link.href, link.rel])), [
    ['https://doc.rust-lang.org/book/', 'noopener noreferrer'],
    ['https://example.org/a_b_c', 'noopener noreferrer'],
  ]);
  await md.locator('figure.code').last().getByTitle('Copy code').click();
  assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^def words[^]*42\)$/);
});

test('shows hostile text as text', async () => {
  await say(page, 'hostile');
  await page.reload();
  await page.click('#chats .open');
  const found = await answers().last().evaluate((answer) => ({
    hacked: window.hacked,
    bad: answer.querySelectorAll('script, img, iframe, svg:not(.icon), b').length,
    hrefs: [...answer.querySelectorAll('a')].map((link) => link.href),
  }));
  assert.equal(found.hacked, undefined);
  assert.equal(found.bad, 0);
  assert.deepEqual([...new Set(found.hrefs.map((href) => new URL(href).protocol))].sort(), ['https:', 'mailto:']);
  assert.match(await text(answers().last()), /<script>window\.hacked = 1<\/script>/);
});

test('takes no more than linear time for texts made to be slow', async () => {
  const times = await page.evaluate(async () => {
    const { Markdown } = await import('/assets/markdown.js');
    const texts = ['*a ', '*a _b* ', 'a* ', '[', '](', '[a](b', '`a``b', '> ', '- ', '  - a\n', '<http://', '\\(', '~~a', '|a|\n|-', '```', '"', '/*', '#'];
    return texts.flatMap((text) => ['', '```js\n'].map((start) => {
      const long = start + text.repeat(50_000 / text.length);
      const from = performance.now();
      new Markdown().update(long, true);
      return [start + text, performance.now() - from];
    }));
  });
  for (const [what, ms] of times) assert.ok(ms < 3000, `${JSON.stringify(what)} took ${ms} ms`);
});

test('gives the same nodes whether a text comes in pieces or at once', async () => {
  const [grown, whole] = await page.evaluate(async () => {
    const { Markdown } = await import('/assets/markdown.js');
    const source = '# T\n\na *b*\n\n- x\n  - y\n\n1. z\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nx = 1\n```\n\n> q\n\n---\nend';
    const a = new Markdown();
    for (let end = 1; end <= source.length; end += 1) a.update(source.slice(0, end), end === source.length);
    const b = new Markdown();
    b.update(source, true);
    return [a.element.innerHTML, b.element.innerHTML];
  });
  assert.equal(grown, whole);
});

test('shows reasoning, folded, and tool calls', async () => {
  await say(page, 'think');
  const thought = answers().last().locator('.thought');
  assert.match(await text(thought), /Thought for/);
  assert.equal(await thought.getByText('two').isVisible(), false);
  await thought.locator('summary').click();
  assert.equal(await thought.locator('strong').innerText(), 'two');
  await say(page, 'tool');
  assert.match(await text(answers().last().locator('.call')), /Calls weather\s+\{"city": "Oslo"\}/);
  // What the model thought is not sent back to it.
  assert.equal(mock.asked[1].body.messages[1].content, 'The answer is 42.');
});

test('sends the system prompt and the parameters', async () => {
  await page.fill('#system', 'Be brief.');
  await page.fill('#p-temperature', '0.3');
  await page.fill('#p-top_k', '40');
  await page.fill('#p-seed', '7');
  await page.fill('#p-max_tokens', '-5');
  await page.fill('#p-stop', 'END\n\\n\\n');
  await page.selectOption('#p-effort', 'low');
  await page.selectOption('#p-format', 'json_object');
  await say(page, 'hello');
  const { body } = mock.asked[0];
  assert.equal(body.messages[0].content, 'Be brief.');
  assert.deepEqual(
    [body.temperature, body.top_k, body.seed, body.max_tokens, body.top_p, body.stop, body.response_format, body.reasoning_effort],
    [0.3, 40, 7, undefined, undefined, ['END', '\n\n'], { type: 'json_object' }, 'low'],
  );
  assert.equal(await answers().last().locator('figure.code').count(), 1);
});

test('says what went wrong', async () => {
  for (const [ask, says] of [
    ['refuse', 'temperature must be at least 0'],
    ['crowded', 'too many requests are waiting (try again in 2 s)'],
    ['out of memory', 'the model ran out of memory'],
    ['cut', 'The connection to the server broke.'],
  ]) {
    await say(page, ask);
    assert.equal(await text(answers().last().locator('.note.error')), says);
  }
  await say(page, 'too long');
  assert.match(await text(answers().last().locator('.note')), /Cut off/);
  await mock.close();
  await say(page, 'hello');
  assert.match(await text(answers().last().locator('.note.error')), /does not answer/);
  mock = await startMock();
});

test('asks for a key when the server wants one', async () => {
  mock.state.key = 'sesame';
  await open();
  await page.fill('#key-value', 'wrong');
  await page.click('#key button[value]');
  await page.locator('#key-error:not(:empty)').waitFor();
  await page.fill('#key-value', 'sesame');
  await page.click('#key button[value]');
  await page.locator('#model option[value="smollm2:latest"]').waitFor({ state: 'attached' });
  await say(page, 'hello');
  assert.match(await text(answers().last()), /You said: hello/);
  assert.equal(await page.evaluate(() => JSON.stringify(localStorage).includes('sesame')), false);
});

test('pulls, loads, unloads and deletes models', async () => {
  await page.click('#models-button');
  await page.getByText('8,192 tokens of context').waitFor();
  // A model that only embeds is there, but not to chat with.
  assert.equal(await page.locator('[data-key="load all-minilm:latest"]').count(), 1);
  assert.equal(await page.locator('[data-key="use all-minilm:latest"]').count(), 0);
  assert.deepEqual(await page.locator('#model option').allInnerTexts(), ['smollm2', 'qwen3:4b-thinking']);
  // What the server says meanwhile does not take the button from under the pointer.
  await page.locator('[data-key="load smollm2:latest"]').hover();
  await page.mouse.down();
  await page.evaluate(async () => (await import('/assets/library.js')).refresh());
  await page.mouse.up();
  await page.getByText('4,096 tokens of context').waitFor();
  await page.getByText('loaded, for 5 min more').waitFor();
  await page.click('[data-key="load smollm2:latest"]');
  await page.getByText('not loaded').first().waitFor();
  await page.click('[data-key="pull gemma3:270m"]');
  await page.getByText(/of 253 MB/).waitFor();
  await page.click('[data-key="cancel gemma3:270m"]');
  await page.click('[data-key="pull gemma3:270m"]');
  await page.locator('#installed').getByText('gemma3:270m').waitFor();
  await page.fill('#pull-name', 'nothing');
  await page.press('#pull-name', 'Enter');
  await page.getByText('there is no model called nothing').waitFor();
  await page.click('[data-key="delete gemma3:270m"]');
  await page.getByText('Delete 253 MB?').click();
  await page.locator('[data-key="pull gemma3:270m"]').waitFor();
  await page.click('[data-key="use qwen3:4b-thinking"]');
  await say(page, 'hello');
  assert.equal(mock.asked[0].body.model, 'qwen3:4b-thinking');
});

test('keeps several chats: rename, delete, undo, export, import', async () => {
  await say(page, 'chat one');
  await page.keyboard.press('Control+k');
  assert.equal(await page.locator('.message').count(), 0);
  await say(page, 'chat two');
  const titles = () => page.locator('#chats .open').allInnerTexts();
  assert.deepEqual(await titles(), ['chat two', 'chat one']);
  await page.click('#chats li:first-child [title="Rename chat"]');
  await page.keyboard.type('renamed');
  await page.keyboard.press('Enter');
  assert.deepEqual(await titles(), ['renamed', 'chat one']);
  const [file] = await Promise.all([page.waitForEvent('download'), page.click('#export')]);
  const saved = await readFile(await file.path());
  await page.click('#chats li:first-child [title="Delete chat"]');
  assert.deepEqual(await titles(), ['chat one']);
  await page.getByText('Undo').click();
  assert.deepEqual(await titles(), ['renamed', 'chat one']);
  await page.evaluate(() => localStorage.clear());
  await page.reload();
  assert.deepEqual(await titles(), []);
  await page.setInputFiles('#import-file', { name: 'chats.json', mimeType: 'application/json', buffer: saved });
  await page.getByText('Imported 2 chats.').waitFor();
  assert.deepEqual(await titles(), ['renamed', 'chat one']);
  await page.setInputFiles('#import-file', { name: 'x.json', mimeType: 'application/json', buffer: Buffer.from('{"chats": 1}') });
  await page.getByText('This file holds no Baton chats.').waitFor();
});

test('shows what is said to the same chat in another tab', async () => {
  await say(page, 'from the first tab');
  const other = await context.newPage();
  await other.goto(mock.url);
  await other.click('#chats .open');
  await say(other, 'from the second tab');
  await page.getByText('You said: from the second tab').waitFor();
  await say(page, 'from the first again');
  assert.equal(mock.asked[2].body.messages.length, 5);
  await other.getByText('You said: from the first again').waitFor();
});

test('opens whatever the storage holds', async () => {
  await page.evaluate(() => {
    localStorage.setItem('baton.chat.a', '{');
    localStorage.setItem('baton.chat.b', '{"id":"b","nodes":[{"parent":7,"role":"user"}]}');
    localStorage.setItem('baton.chat.c', '{"id":"c","title":5,"leaf":99,"params":[],"nodes":[{"parent":-1,"role":"user","content":"kept"}]}');
    localStorage.setItem('baton.rates', '[1,{"rate":"x"}]');
    localStorage.setItem('baton.theme', 'purple');
  });
  await page.reload();
  assert.equal(await page.locator('#chats li').count(), 1);
  await page.click('#chats .open');
  assert.equal(await text(page.locator('.bubble')), 'kept');
});

test('works by keyboard, every control has a name', async () => {
  await page.fill('#input', 'one');
  await page.press('#input', 'Shift+Enter');
  await page.keyboard.type('two');
  await page.keyboard.press('Enter');
  await done(page);
  assert.equal(mock.asked[0].body.messages[0].content, 'one\ntwo');
  await page.click('#models-button');
  await page.locator('#installed b').first().waitFor();
  const nameless = await page.evaluate(() =>
    [...document.querySelectorAll('button, input, select, textarea')]
      .filter((e) => !(e.getAttribute('aria-label') || e.innerText?.trim() || e.labels?.length || e.hidden))
      .map((e) => e.outerHTML));
  assert.deepEqual(nameless, []);
  await page.keyboard.press('Escape');
  const visited = new Set();
  for (let i = 0; i < 60; i += 1) {
    await page.keyboard.press('Tab');
    visited.add(await page.evaluate(() => document.activeElement.id || document.activeElement.title));
  }
  for (const id of ['input', 'model', 'new-chat', 'theme', 'Copy answer', 'p-seed']) assert.ok(visited.has(id), id);
});

test('does not shift while an answer is written', async () => {
  await page.evaluate(() => {
    window.shift = 0;
    new PerformanceObserver((list) => list.getEntries().forEach((e) => (window.shift += e.value))).observe({ type: 'layout-shift' });
  });
  await say(page, 'rich');
  await say(page, 'think');
  assert.ok((await page.evaluate(() => window.shift)) < 0.1);
});

test('fits a phone', async () => {
  await open({ viewport: { width: 360, height: 720 }, hasTouch: true, isMobile: true });
  await page.fill('#input', 'rich');
  await page.tap('#send');
  await done(page);
  const wider = () => page.evaluate(() => document.documentElement.scrollWidth > innerWidth || document.querySelector('#scroll').scrollWidth > document.querySelector('#scroll').clientWidth);
  assert.equal(await wider(), false);
  await page.tap('#sidebar-button');
  await page.tap('#models-button');
  await page.locator('#installed b').first().waitFor();
  assert.equal(await page.evaluate(() => document.querySelector('#models').scrollWidth > document.querySelector('#models').clientWidth), false);
  await page.tap('#models [data-close]');
  await page.touchscreen.tap(350, 300);
  await page.tap('#panel-button');
  await page.locator('#speed').waitFor();
  assert.equal(await wider(), false);
  await page.tap('#panel .close-drawer');
  await page.locator('#speed').waitFor({ state: 'hidden' });
});
