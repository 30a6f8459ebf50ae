'use strict';
/* The switch between light and dark, as on a session's page; nothing else needs a script. */
const dark = matchMedia('(prefers-color-scheme: dark)');
let theme = null; // null follows the system
try { theme = localStorage.getItem('aaco-theme'); } catch { /* pages from files may have no storage */ }
const applyTheme = (name = theme ?? (dark.matches ? 'dark' : 'light')) => { document.documentElement.dataset.theme = name; };
document.getElementById('theme').addEventListener('click', () => {
  theme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  try { localStorage.setItem('aaco-theme', theme); } catch { /* then it holds until the page is closed */ }
  applyTheme();
});
dark.addEventListener('change', () => applyTheme());
addEventListener('beforeprint', () => applyTheme('light'));
addEventListener('afterprint', () => applyTheme());
applyTheme();
