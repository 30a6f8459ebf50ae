'use strict';
/* The theme switch, as on a session's page; the page needs no other script. */
const dark = matchMedia('(prefers-color-scheme: dark)');
let theme = null; // null follows the system
try { theme = localStorage.getItem('aaco-theme'); } catch { /* pages from files may have no storage */ }
const applyTheme = (name = theme ?? (dark.matches ? 'dark' : 'light')) => { document.documentElement.dataset.theme = name; };
document.getElementById('theme').addEventListener('click', () => {
  theme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  try { localStorage.setItem('aaco-theme', theme); } catch { /* the choice lasts until the page is closed */ }
  applyTheme();
});
dark.addEventListener('change', () => applyTheme());
addEventListener('beforeprint', () => applyTheme('light'));
addEventListener('afterprint', () => applyTheme());
applyTheme();
