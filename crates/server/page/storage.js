/** The browser's storage as a place for JSON that may be full, switched off, or hold anything. */

function area(name) {
  const fallback = new Map();
  let real = null;
  try {
    real = window[name];
  } catch {
    // Blocked by the browser's settings: values then live as long as the page.
  }
  return {
    get(key) {
      try {
        const text = real ? real.getItem(key) : fallback.get(key);
        return text == null ? null : JSON.parse(text);
      } catch {
        return null;
      }
    },
    /** False when there is no room. */
    set(key, value) {
      try {
        const text = JSON.stringify(value);
        if (real) real.setItem(key, text);
        else fallback.set(key, text);
        return true;
      } catch {
        return false;
      }
    },
    remove(key) {
      if (real) real.removeItem(key);
      else fallback.delete(key);
    },
    keys() {
      return real ? Object.keys(real) : [...fallback.keys()];
    },
  };
}

/** Kept until the user clears it. */
export const local = area('localStorage');
/** Kept until the tab is closed. */
export const session = area('sessionStorage');
