/** Pictures of the page for eyes: `node shots.mjs FOLDER`. */

import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { closeBrowser, openPage, say } from './browser.mjs';
import { startMock } from './mock.mjs';

const folder = process.argv[2] ?? 'shots';
mkdirSync(folder, { recursive: true });
const mock = await startMock();
const PHONE = { viewport: { width: 360, height: 740 }, deviceScaleFactor: 2, hasTouch: true, isMobile: true };

async function shots(name, options) {
  const { page, context } = await openPage(mock.url, options);
  const shot = (what) => page.screenshot({ path: join(folder, `${name}-${what}.png`) });
  const phone = Boolean(options.isMobile);
  await page.waitForTimeout(300);
  await shot('empty');
  const ask = async (text) => {
    if (!phone) return say(page, text);
    await page.fill('#input', text);
    await page.tap('#send');
    return page.locator('#messages[aria-busy="false"] .answer').last().waitFor();
  };
  for (const text of ['hello, what is this?', 'tell me about rich text', 'think about it', 'call a tool', 'refuse']) await ask(text);
  await page.waitForTimeout(300);
  await shot('end');
  await page.evaluate(() => (document.querySelector('#scroll').scrollTop = 220));
  await page.waitForTimeout(200);
  await shot('rich');
  await page.evaluate(() => (document.querySelector('#scroll').scrollTop = 800));
  await page.waitForTimeout(200);
  await shot('rich2');
  await page.fill('#input', 'long code please');
  await page.click('#send');
  await page.waitForTimeout(1500);
  await shot('streaming');
  await page.click('#send');
  if (phone) {
    await page.tap('#panel-button');
    await page.waitForTimeout(400);
    await shot('panel');
    await page.tap('#panel .close-drawer');
    await page.waitForTimeout(300);
    await page.tap('#sidebar-button');
    await page.waitForTimeout(400);
    await shot('sidebar');
  }
  await page.click('#models-button');
  await page.click('[data-key="load qwen3:4b-thinking"]');
  mock.state.pace = 30;
  await page.click('[data-key="pull gemma3:270m"]');
  await page.fill('#pull-name', 'nothing');
  await page.press('#pull-name', 'Enter');
  await page.waitForTimeout(1800);
  await shot('models');
  await page.click('[data-key="cancel gemma3:270m"]');
  mock.state.pace = 2;
  mock.state.key = 'k';
  await page.reload();
  await page.waitForTimeout(400);
  await shot('key');
  mock.state.key = null;
  await context.close();
}

await shots('light', { colorScheme: 'light' });
await shots('dark', { colorScheme: 'dark' });
await shots('phone', { ...PHONE, colorScheme: 'dark' });
await shots('phone-light', { ...PHONE, colorScheme: 'light' });
await closeBrowser();
await mock.close();
