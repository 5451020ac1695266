// What the tests of all packages share. The servers are started by `run.py`.

export const url = process.env.BATON_URL;
export const lockedUrl = process.env.BATON_LOCKED_URL;
export const key = process.env.BATON_KEY;

export const MODEL = "smollm2";
export const ANSWER = "hf.co/test/answer";
export const CALL = "hf.co/test/call";
export const THOUGHT = "hf.co/test/thought";
export const ENDLESS = "hf.co/test/endless";
export const ANSWER_TEXT = "Sky blue 😀 grass green.";

export const QUESTION = [{ role: "user", content: "Why is the sky blue?" }];
export const WEATHER = {
  type: "object",
  properties: { city: { type: "string", description: "A city" } },
  required: ["city"],
  additionalProperties: false,
};
export const WEATHER_TOOL = {
  type: "function",
  function: { name: "get_weather", description: "The weather of a city", parameters: WEATHER },
};
export const COLOUR = {
  type: "object",
  properties: {
    colour: { type: "string", enum: ["red", "green", "blue"] },
    count: { type: "integer", minimum: 1, maximum: 99 },
  },
  required: ["colour", "count"],
  additionalProperties: false,
};

// Whether a value fits COLOUR.
export function fitsColour(value) {
  return (
    Object.keys(value).sort().join() === "colour,count" &&
    ["red", "green", "blue"].includes(value.colour) &&
    Number.isInteger(value.count) && value.count >= 1 && value.count <= 99
  );
}

export async function slotsInUse(model) {
  const slots = await (await fetch(`${url}/slots?model=${model}`)).json();
  return slots.filter((slot) => slot.is_processing).length;
}

// Waits until so many answers are being made.
export async function awaitSlots(model, count, limit = 1000) {
  const end = Date.now() + limit;
  for (;;) {
    const now = await slotsInUse(model);
    if (now === count) return;
    if (Date.now() > end) throw new Error(`${now} answers are being made, not ${count}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
