/* Light, dark, or as the system says. A classic script in the head, so that the first paint has the right colours. */
(() => {
  const THEMES = { auto: 'System', light: 'Light', dark: 'Dark' };
  const read = () => {
    try {
      return localStorage.getItem('baton.theme') || 'auto';
    } catch {
      return 'auto';
    }
  };
  const show = (theme) => {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById('theme');
    if (!button) return;
    const label = `Theme: ${THEMES[theme]}`;
    button.setAttribute('aria-label', label);
    button.title = label;
  };
  let theme = read() in THEMES ? read() : 'auto';
  show(theme);
  addEventListener('DOMContentLoaded', () => {
    show(theme);
    document.getElementById('theme').addEventListener('click', () => {
      const names = Object.keys(THEMES);
      theme = names[(names.indexOf(theme) + 1) % names.length];
      show(theme);
      try {
        localStorage.setItem('baton.theme', theme);
      } catch {
        // Without storage the choice lasts as long as the page.
      }
    });
  });
})();
