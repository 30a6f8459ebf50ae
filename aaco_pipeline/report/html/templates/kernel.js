
/* ---- a kernel's page and the way back ---- */

/* Plots hidden behind a kernel's page had no width when they were drawn. */
addEventListener('hashchange', () => { hideTip(); resized.forEach(redraw => redraw()); });
