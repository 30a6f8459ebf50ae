'use strict';
/* Plots, sorting, the theme and the way to Perfetto. The text and the tables are in the page already, so that it reads
   without this script; what is drawn here comes from the JSON element, never from a network. */

const byId = id => document.getElementById(id);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const data = JSON.parse(byId('data').textContent);

/* ---- numbers in readable units ---- */

const grouped = value => value.toLocaleString('en-US', { maximumFractionDigits: 6 });
const digits = value => Math.abs(value) >= 1000 ? grouped(Math.round(value)) : String(+value.toPrecision(4));
const LARGER = {
  ns: [['s', 1e9], ['ms', 1e6], ['µs', 1e3], ['ns', 0]],
  bytes: [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10], ['B', 0]],
};
function inUnit(value, unit) {
  if (value === 0) return '0';
  if (LARGER[unit]) {
    const [name, size] = LARGER[unit].find(([, least]) => Math.abs(value) >= least);
    return `${digits(value / (size || 1))} ${name}`;
  }
  if (unit === 'ratio') return `${digits(100 * value)} %`;
  return `${digits(value)} ${unit}`;
}
const duration = value => inUnit(value, 'ns');
const exactly = (value, unit) => `${inUnit(value, unit)} (${grouped(value)} ${unit})`;

/* ---- drawing ---- */

function svg(name, attributes = {}, text = '') {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text) element.textContent = text;
  return element;
}

/* Return a function from values to positions, linear or logarithmic. */
function scale(low, high, from, to, logarithmic = false) {
  const place = logarithmic ? Math.log : value => value;
  const [first, last] = [place(low), place(high)];
  return value => from + (to - from) * (last === first ? 0.5 : (place(value) - first) / (last - first));
}

/* Return about `wanted` round values between low and high. */
function ticks(low, high, wanted, logarithmic = false) {
  if (logarithmic && high > 3 * low) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
      for (const step of [1, 2, 5]) found.push(step * 10 ** power);
    const inside = found.filter(value => value >= low && value <= high);
    const tens = inside.filter(value => Number.isInteger(+Math.log10(value).toFixed(6)));
    return inside.length > 1.6 * wanted && tens.length > 1 ? tens : inside;
  }
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(value => value >= rough * 0.999);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(value);
  return found;
}

/* Return the index of the sorted value closest to `wanted`. */
function nearest(sorted, wanted) {
  let [low, high] = [0, sorted.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < wanted) low = middle; else high = middle;
  }
  return wanted - sorted[low] < sorted[high] - wanted ? low : high;
}

const tip = byId('tip');
function showTip(lines, x, y) {
  tip.replaceChildren(...lines.map((line, index) => {
    const element = document.createElement(index ? 'span' : 'b');
    element.textContent = line;
    return element;
  }));
  tip.hidden = false;
  const [width, height] = [tip.offsetWidth, tip.offsetHeight];
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${y + 18 + height > innerHeight ? Math.max(8, y - height - 12) : y + 18}px`;
}
const hideTip = () => { tip.hidden = true; };

/* ---- latency over the run, with host activity ---- */

const LEFT = 64, RIGHT = 10;
const write = (drawing, x, y, words, more = {}) => drawing.append(svg('text', { x, y, ...more }, words));
const line = (drawing, style, d) => drawing.append(svg('path', { class: style, d }));
/* Labels at the ends of an axis stay inside the plot. */
const inside = (x, width) => ({ 'text-anchor': x > width - 40 ? 'end' : x < LEFT + 10 ? 'start' : 'middle' });

/* Draw one strip: its name, its grid, and the values as dots or a line. Return its height. */
function drawStripOf(drawing, strip, pass, across, top, width) {
  const known = strip.y.filter(value => value !== null);
  // Both passes share the latency axis, so that they compare at a glance.
  let [low, high] = strip.tall ? data.range : [Math.min(...known), Math.max(...known)];
  const logarithmic = Boolean(strip.tall && data.logarithmic);
  if (!strip.tall && strip.unit !== 'MHz' && strip.unit !== 'bytes') low = Math.min(low, 0);
  // A range below one percent is drawn flat, because four digits would not distinguish its ends.
  if (!strip.tall && high - low < high / 100) [low, high] = [low - high / 100, high * 1.01];
  if (low === high) [low, high] = low ? [low * 0.95, high * 1.05] : [0, 1];
  const room = strip.tall && !logarithmic ? (high - low) * 0.05 : 0;
  [low, high] = [low - room, high + room];
  const height = strip.tall ? 190 : 46;
  write(drawing, LEFT, top + 11, strip.label + (logarithmic ? ' (logarithmic)' : ''));
  top += 18;
  const up = scale(low, high, top + height - 2, top + 2, logarithmic);
  if (pass.warmup > 0)
    drawing.append(svg('rect', { class: 'warm', x: LEFT, y: top, width: Math.max(2, across(pass.warmup) - LEFT), height }));
  // Round numbers of bytes are powers of two.
  const unit = strip.unit === 'bytes' ? LARGER.bytes.find(([, least]) => high >= least)[1] || 1 : 1;
  for (const value of ticks(low / unit, high / unit, strip.tall ? 5 : 2, logarithmic).map(tick => tick * unit)) {
    line(drawing, 'grid', `M${LEFT} ${up(value)}H${width - RIGHT}`);
    write(drawing, LEFT - 6, up(value) + 4, inUnit(value, strip.unit), { 'text-anchor': 'end' });
  }
  let path = '', pen = false;
  strip.y.forEach((value, index) => {
    if (value === null) { pen = false; return; }
    const point = `${across(strip.x[index]).toFixed(1)} ${up(value).toFixed(1)}`;
    path += strip.dots ? `M${point}h0` : `${pen ? 'L' : 'M'}${point}`;
    pen = true;
  });
  line(drawing, strip.dots ? 'dots' : 'lined', path);
  // Draw spikes last, so that nothing covers them.
  for (const mark of strip.marks || []) {
    const place = index => `M${across(strip.x[index]).toFixed(1)} ${up(strip.y[index]).toFixed(1)}h0`;
    line(drawing, `mark ${mark.spike ? 'spike ' : ''}${mark.colour}`, mark.at.map(place).join(''));
  }
  if (strip.tall && pass.median !== null) line(drawing, 'median', `M${LEFT} ${up(pass.median)}H${width - RIGHT}`);
  return 18 + height + 10;
}

function drawPass(figure) {
  const pass = data.passes.find(one => one.pass === figure.dataset.pass);
  const place = figure.querySelector('div'), width = place.clientWidth;
  if (!pass || !width) return;
  const end = pass.x[pass.x.length - 1] || 1;
  const across = scale(0, end, LEFT, width - RIGHT);
  const drawing = svg('svg', { role: 'img', tabindex: 0, 'aria-label':
    `${figure.querySelector('figcaption').textContent}: latency of ${pass.count} iterations` +
    (pass.median === null ? '' : `, median ${duration(pass.median)}`) + '. Left and right step through them.' });
  const latency = { label: 'Latency', unit: 'ns', x: pass.x, y: pass.latency, dots: true, tall: true, marks: pass.marks };
  let top = 4;
  for (const strip of [latency, ...pass.strips]) top += drawStripOf(drawing, strip, pass, across, top, width);
  for (const value of ticks(0, end, Math.max(2, Math.floor(width / 110))))
    write(drawing, across(value), top + 6, pass.timed ? duration(value) : grouped(value), inside(across(value), width));
  write(drawing, width - RIGHT, top + 22, pass.timed ? 'time since the pass began' : 'iteration', { 'text-anchor': 'end' });
  const cursor = svg('path', { class: 'cursor', d: '' });
  drawing.append(cursor);
  drawing.setAttribute('height', top + 28);
  place.replaceChildren(drawing);

  let chosen = 0;
  function point(index) {
    chosen = Math.max(0, Math.min(pass.x.length - 1, index));
    const box = drawing.getBoundingClientRect(), x = across(pass.x[chosen]);
    cursor.setAttribute('d', `M${x} 20V${top - 8}`);
    const lines = [`Iteration ${pass.iteration[chosen]}${pass.x[chosen] < pass.warmup ? ' (warm-up)' : ''}`,
      `latency ${exactly(pass.latency[chosen], 'ns')}`];
    if (pass.told[chosen]) lines.push(pass.told[chosen]);
    if (pass.cpu[chosen] !== null) lines.push(`CPU time ${duration(pass.cpu[chosen])}`);
    for (const strip of pass.strips) {
      const value = strip.y[nearest(strip.x, pass.x[chosen])];
      if (value !== null) lines.push(`${strip.label}: ${inUnit(value, strip.unit)}`);
    }
    showTip(lines, box.left + x, box.top + Math.min(60, box.height));
  }
  drawing.addEventListener('pointermove', event => {
    const x = event.clientX - drawing.getBoundingClientRect().left;
    point(nearest(pass.x, (x - LEFT) / (width - RIGHT - LEFT) * end));
  });
  for (const name of ['pointerleave', 'blur'])
    drawing.addEventListener(name, () => { cursor.setAttribute('d', ''); hideTip(); });
  drawing.addEventListener('keydown', event => {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 20, PageUp: -20 }[event.key];
    if (step) { event.preventDefault(); point(chosen + step); }
  });
}

/* ---- the distribution ---- */

function drawHistogram() {
  const bins = data.histogram, place = byId('histogram')?.querySelector('div');
  if (!bins || !place?.clientWidth) return;
  const width = place.clientWidth, across = scale(bins.low, bins.high, LEFT, width - RIGHT, bins.logarithmic);
  const names = Object.keys(bins.counts), count = bins.counts[names[0]].length;
  const most = Math.max(...names.flatMap(name => bins.counts[name]));
  const head = 34 * bins.quantiles.length + 4, floor = head + 190;
  const up = scale(0, most, floor, head + 4), step = (width - RIGHT - LEFT) / count;
  const drawing = svg('svg', { role: 'img', height: floor + 58, 'aria-label':
    'Histogram of latencies. ' + bins.quantiles.map(one => `${one.label} ${duration(one.value)}`).join(', ') });
  for (const value of ticks(0, most, 4)) {
    line(drawing, 'grid', `M${LEFT} ${up(value)}H${width - RIGHT}`);
    write(drawing, LEFT - 6, up(value) + 4, grouped(value), { 'text-anchor': 'end' });
  }
  bins.quantiles.forEach((one, index) => {
    const y = 34 * index + 24, x = across(one.value), known = one.low !== null || one.high !== null;
    const from = one.low !== null ? across(one.low) : known ? LEFT : x;
    const to = one.high !== null ? across(one.high) : known ? width - RIGHT : x;
    drawing.append(svg('rect', { class: 'band', x: from, y, width: Math.max(1, to - from), height: floor - y }));
    const ends = (one.low === null ? '' : `M${from} ${y - 5}v10`) + (one.high === null ? '' : `M${to} ${y - 5}v10`);
    line(drawing, 'whisker', `M${from} ${y}H${to}${ends}`);
    drawing.append(svg('circle', { class: 'point', cx: x, cy: y, r: 4.5 }));
    const words = `${one.label} ${duration(one.value)}${known && one.high === null ? ' (open above)' : ''}`, half = 3.8 * words.length;
    write(drawing, Math.max(half, Math.min(x, width - half)), y - 9, words, { class: 'strong', 'text-anchor': 'middle' });
  });
  if (bins.counts.latency) // keep every non-empty bin visible: a single slow iteration among thousands matters
    line(drawing, 'bars', bins.counts.latency.map((value, index) => value &&
      `M${LEFT + index * step + 0.5} ${floor}V${Math.min(up(value), floor - 2)}h${Math.max(1, step - 1)}V${floor}Z`).filter(Boolean).join(''));
  if (bins.counts.trace)
    line(drawing, 'outline', bins.counts.trace.map((value, index) =>
      `${index ? '' : `M${LEFT} ${up(value)}`}V${up(value)}H${LEFT + (index + 1) * step}`).join(''));
  for (const value of ticks(bins.low, bins.high, Math.max(2, Math.floor(width / 90)), bins.logarithmic))
    write(drawing, across(value), floor + 16, duration(value), inside(across(value), width));
  write(drawing, width - RIGHT, floor + 32, bins.logarithmic ? 'latency (logarithmic)' : 'latency', { 'text-anchor': 'end' });
  names.forEach((name, index) => {
    const style = name === 'latency' ? 'bars' : 'outline';
    drawing.append(svg('rect', { class: style, x: LEFT + index * 96, y: floor + 42, width: 10, height: 8 }));
    write(drawing, LEFT + 16 + index * 96, floor + 50, name === 'latency' ? 'unprofiled' : 'profiled');
  });
  place.replaceChildren(drawing);
  const edge = scale(0, count, 0, 1), at = index => bins.logarithmic
    ? bins.low * (bins.high / bins.low) ** edge(index) : bins.low + (bins.high - bins.low) * edge(index);
  drawing.addEventListener('pointermove', event => {
    const index = Math.floor((event.clientX - drawing.getBoundingClientRect().left - LEFT) / step);
    if (index < 0 || index >= count) hideTip();
    else showTip([`${duration(at(index))} … ${duration(at(index + 1))}`, ...names.map(name =>
      `${name === 'latency' ? 'unprofiled' : 'profiled'}: ${grouped(bins.counts[name][index])} iterations`)], event.clientX, event.clientY);
  });
  drawing.addEventListener('pointerleave', hideTip);
}

/* ---- tables ---- */

function sortBy(heading) {
  const row = heading.parentElement, column = [...row.children].indexOf(heading);
  const falling = heading.getAttribute('aria-sort') === 'descending'
    || (!heading.hasAttribute('aria-sort') && !heading.classList.contains('number'));
  [...row.children].forEach(other => other.removeAttribute('aria-sort'));
  heading.setAttribute('aria-sort', falling ? 'ascending' : 'descending');
  const body = heading.closest('table').tBodies[0];
  const key = line => line.children[column].dataset.order ?? line.children[column].textContent;
  const shown = body.querySelectorAll('tr:not(.more)').length, folded = body.querySelector('tr.more');
  const rows = [...body.rows].map(line => [key(line), line]).sort(([one], [two]) => {
    if ((one === '–') !== (two === '–')) return one === '–' ? 1 : -1; // unknown values are last in both directions
    const order = isNaN(one) || isNaN(two) ? one.localeCompare(two, 'en', { numeric: true }) : one - two;
    return falling ? order : -order;
  });
  rows.forEach(([, line], index) => { if (folded) line.classList.toggle('more', index >= shown); body.append(line); });
}
all('th button').forEach(button => button.addEventListener('click', () => sortBy(button.parentElement)));
all('.expand').forEach(button => button.addEventListener('click', () => {
  const table = button.previousElementSibling.querySelector('table');
  const open = table.classList.toggle('expanded');
  button.setAttribute('aria-expanded', String(open));
  button.textContent = open ? 'Show fewer' : `Show all ${table.tBodies[0].rows.length}`;
}));
all('.copy').forEach(button => button.addEventListener('click', async () => {
  const code = button.parentElement.querySelector('code');
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = 'Copied';
  } catch { // some browsers deny clipboard access to local files: select the text instead
    getSelection().selectAllChildren(code);
    button.textContent = 'Selected';
  }
  setTimeout(() => { button.textContent = 'Copy'; }, 2000);
}));
/* Touch screens have no hover: tapping a number shows its tooltip. */
document.addEventListener('click', event => {
  const exact = event.target.closest('[title]');
  if (exact && exact.tagName !== 'BUTTON') showTip([exact.title], event.clientX, event.clientY);
  else if (!event.target.closest('svg')) hideTip();
});
addEventListener('scroll', hideTip, { passive: true });

/* ---- opening Perfetto: no network access before the click ---- */

const PERFETTO = 'https://ui.perfetto.dev';
const tell = text => { byId('perfetto-note').textContent = text; };

function embeddedTrace() {
  const text = byId('trace').textContent;
  return text ? Uint8Array.from(atob(text), letter => letter.charCodeAt(0)).buffer : null;
}
async function traceBeside() {
  const answer = await fetch(data.trace.url);
  if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
}
/* Perfetto only accepts traces from served pages: a local file offers the trace as a download. */
function offerDownload(before) {
  const link = document.createElement('a');
  const buffer = embeddedTrace();
  link.href = buffer ? URL.createObjectURL(new Blob([buffer])) : data.trace.url;
  link.download = data.trace.file;
  link.textContent = `save ${data.trace.file}`;
  const command = document.createElement('code');
  command.textContent = `aaco report ${data.session} --open`;
  byId('perfetto-note').replaceChildren(`${before} Either run `, command, ' and click there, or ', link,
    ' and drag it onto ui.perfetto.dev.');
}
async function openInPerfetto() {
  if (!navigator.onLine) return offerDownload('This computer is offline, and Perfetto is a web page.');
  if (location.protocol === 'file:') return offerDownload('Perfetto takes no traces from a page that was opened as a file.');
  const ui = open(PERFETTO); // immediately, because browsers only allow it during the click
  if (!ui) return tell('The browser did not let the tab open; allow pop-ups for this page and click again.');
  tell('Reading the trace …');
  let buffer;
  try {
    buffer = embeddedTrace() ?? await traceBeside();
  } catch (error) {
    ui.close();
    return tell(`The trace could not be read (${error.message}); aaco report ${data.session} --open serves it.`);
  }
  tell('Waiting for Perfetto …');
  const begun = Date.now();
  const ping = setInterval(() => {
    if (ui.closed || Date.now() - begun > 20000) {
      stop();
      offerDownload(ui.closed ? 'The tab was closed.' : 'ui.perfetto.dev does not answer; this computer may be offline.');
    } else ui.postMessage('PING', PERFETTO);
  }, 250);
  const stop = () => { clearInterval(ping); removeEventListener('message', hear); };
  function hear(event) {
    if (event.source !== ui || event.origin !== PERFETTO || event.data !== 'PONG') return;
    stop();
    ui.postMessage({ perfetto: { buffer, title: data.title, fileName: data.trace.file } }, PERFETTO);
    tell('Perfetto has the trace.');
  }
  addEventListener('message', hear);
}
byId('perfetto').addEventListener('click', openInPerfetto);

/* ---- the theme, and drawing ---- */

const dark = matchMedia('(prefers-color-scheme: dark)');
let theme = null; // null follows the system
try { theme = localStorage.getItem('aaco-theme'); } catch { /* pages from files may have no storage */ }
function applyTheme(name = theme ?? (dark.matches ? 'dark' : 'light')) {
  document.documentElement.dataset.theme = name;
  recoloured.forEach(redraw => redraw());
}
byId('theme').addEventListener('click', () => {
  theme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  try { localStorage.setItem('aaco-theme', theme); } catch { /* the choice lasts until the page is closed */ }
  applyTheme();
});
dark.addEventListener('change', () => applyTheme());
addEventListener('beforeprint', () => applyTheme('light'));
addEventListener('afterprint', () => applyTheme());

/* Redraw on width or theme changes: unlike SVG, a canvas does not take its colours from the style sheet. */
const resized = [() => all('[data-pass].plot').forEach(drawPass), drawHistogram], recoloured = [];
applyTheme();
let drawnWidth = 0;
new ResizeObserver(() => {
  const width = document.documentElement.clientWidth;
  if (width !== drawnWidth) { drawnWidth = width; resized.forEach(redraw => redraw()); }
}).observe(document.documentElement);
