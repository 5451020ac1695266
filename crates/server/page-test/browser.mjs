/** A page of the real browser, opened on the server under test, with what went wrong in it collected. */

import { chromium } from 'playwright-core';

let browser = null;

/** Starts Chromium once: the one that CHROMIUM names, else the system's. */
export async function openBrowser() {
  browser ??= await chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu', '--disable-quic', '--disable-sync'],
  });
  return browser;
}

export async function closeBrowser() {
  await browser?.close();
  browser = null;
}

/**
 * A page in a context of its own, on `url`. `faults` collects what must not happen: errors in the console,
 * requests to anywhere else.
 */
export async function openPage(url, options = {}) {
  const context = await (await openBrowser()).newContext({ viewport: { width: 1280, height: 800 }, ...options });
  await context.grantPermissions(['clipboard-read', 'clipboard-write']);
  const page = await context.newPage();
  page.setDefaultTimeout(Number(process.env.PAGE_TIMEOUT ?? 30_000));
  const faults = [];
  page.on('pageerror', (error) => faults.push(String(error)));
  page.on('console', (message) => {
    // The browser itself notes each answer that is an error; the tests look at those on the page.
    if (message.type() === 'error' && !message.text().startsWith('Failed to load resource')) faults.push(message.text());
  });
  page.on('request', (request) => {
    if (!request.url().startsWith(url) && !request.url().startsWith('blob:')) faults.push(`request to ${request.url()}`);
  });
  await page.goto(url);
  await page.locator('#model option').first().waitFor({ state: 'attached' });
  return { page, context, faults };
}

/** Sends a message and waits until its answer is complete. */
export async function say(page, text) {
  await page.fill('#input', text);
  await page.press('#input', 'Enter');
  await done(page);
}

/** Waits until no answer is being written. */
export async function done(page) {
  await page.locator('#messages[aria-busy="false"] .answer').last().waitFor();
}
