
/* ---- a kernel's page and the way back ---- */

/* What was hidden beside a kernel's page had no width to be drawn in. */
addEventListener('hashchange', () => { hideTip(); resized.forEach(redraw => redraw()); });
