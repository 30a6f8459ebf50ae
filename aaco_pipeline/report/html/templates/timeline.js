/* ---- the timeline: drawing and navigation ---- */

const strip = byId('strip');
const drawn = data.timeline && strip ? spelledOut(data.timeline) : null;
const AXIS = 18, BAND = 16, HEAD = 18, GAP = 6, TALL = { kernel: 22, copy: 16, idle: 16, call: 15 };
const MAP = 46, SMALLEST = 50;
let view = [0, 1], range = null, selected = -1, hostOpen = false, found = { names: new Set(), slices: [] };
/* Position of each lane: its top, its row height, and whether it is a folded thread. */
let placed = [], foldAt = null;

const bounds = () => { const room = drawn.length * 0.01 || 1; return [-room, drawn.length + room]; };
/* Pan and zoom within the recording. */
function see(from, to) {
  const [first, last] = bounds();
  const span = Math.min(Math.max(to - from, SMALLEST), last - first);
  const start = Math.min(Math.max(from, first), last - span);
  view = [start, start + span];
  drawStrip();
}
function zoom(factor, around = (view[0] + view[1]) / 2) {
  see(around - (around - view[0]) * factor, around + (view[1] - around) * factor);
}
const pan = share => see(view[0] + share * (view[1] - view[0]), view[1] + share * (view[1] - view[0]));
const lookAt = (from, to) => { const room = (to - from) * 0.02; see(from - room, to + room); };

function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
const kindName = kind => ({ '-1': '--call', '-2': '--copy', '-3': '--faint' })[kind] ?? `--kind-${Math.min(kind, 7)}`;
/* Return black or white, whichever has more contrast. */
function inkOn(hex) {
  const [red, green, blue] = [1, 3, 5].map(at => (parseInt(hex.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.2 ? '#101214' : '#ffffff';
}
function fitted(name, room, pen) {
  if (pen.measureText(name).width <= room) return name;
  let length = Math.min(name.length, Math.floor(room / 5));
  while (length > 0 && pen.measureText(name.slice(0, length) + '…').width > room) length--;
  return length > 1 ? name.slice(0, length) + '…' : '';
}
/* Size a canvas to its container and the screen resolution. */
function penOf(canvas, height) {
  const style = getComputedStyle(canvas.parentElement), density = devicePixelRatio || 1;
  const width = canvas.parentElement.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  canvas.width = Math.round(width * density);
  canvas.height = Math.round(height * density);
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext('2d');
  pen.scale(density, density);
  pen.font = '11.5px system-ui, sans-serif';
  return [pen, width];
}
/* Diagonal lines that distinguish idle time and set-up without colour. */
function hatched(pen, ink) {
  const tile = document.createElement('canvas');
  tile.width = tile.height = 6;
  const mark = tile.getContext('2d');
  mark.strokeStyle = ink;
  mark.beginPath();
  for (const shift of [-6, 0, 6]) { mark.moveTo(shift, 6); mark.lineTo(shift + 6, 0); }
  mark.stroke();
  return pen.createPattern(tile, 'repeat');
}

/* ---- positions ---- */

const hostLanes = drawn ? drawn.lanes.filter(lane => lane.kind === 'call') : [];
function placeLanes() {
  placed = [];
  foldAt = null;
  let top = AXIS + BAND + (drawn.iterations.number.length ? BAND : 0) + 4;
  drawn.lanes.forEach((lane, index) => {
    if (lane.kind === 'call' && foldAt === null) { foldAt = top; top += HEAD + (hostOpen ? 0 : 10); }
    if (lane.kind === 'call' && !hostOpen) return;
    const tall = TALL[lane.kind];
    placed[index] = { top: top + HEAD, tall };
    top += HEAD + lane.rows * tall + GAP;
  });
  return top + 4;
}

/* ---- drawing ---- */

function drawStrip() {
  if (!strip?.parentElement.clientWidth || !drawn) return;
  const height = placeLanes(), [pen, width] = penOf(strip, height), across = scale(view[0], view[1], 0, width);
  const named = ['text', 'muted', 'line', 'faint', 'accent', 'card', 'soft'].map(name => [name, colour(`--${name}`)]);
  const ink = Object.fromEntries(named);
  const scene = { pen, width, height, across, ink, hatch: hatched(pen, ink.muted), colours: new Map() };
  drawAxis(scene);
  drawLanes(scene);
  drawMarks(scene);
  drawLabels(scene);
  drawMap();
}

/* Drawn above the dimmed area. */
function drawLabels({ pen, ink }) {
  pen.fillStyle = ink.muted;
  drawn.lanes.forEach((lane, index) => { if (placed[index]) pen.fillText(lane.label, 0, placed[index].top - 5); });
  if (foldAt === null) return;
  const threads = hostLanes.length === 1 ? 'Host thread' : `${hostLanes.length} host threads`;
  pen.fillStyle = ink.text;
  pen.fillText(`${hostOpen ? '▾' : '▸'} ${threads}${hostOpen ? '' : ', folded: click or press h'}`, 0, foldAt + 13);
}

function drawAxis({ pen, width, height, across, ink }) {
  for (const value of ticks(view[0], view[1], Math.max(2, Math.floor(width / 110)))) {
    const x = across(value);
    pen.fillStyle = ink.line;
    pen.fillRect(x, 2, 1, height);
    pen.fillStyle = ink.muted;
    const words = duration(value);
    if (x + 3 + pen.measureText(words).width < width) pen.fillText(words, x + 3, 12);
  }
}

function drawLanes(scene) {
  const { pen, width, across, ink } = scene, seen = drawn.cells ? cellsSeen() : [];
  drawn.lanes.forEach((lane, index) => {
    const place = placed[index];
    if (!place) return;
    const { top, tall } = place, full = lane.rows * tall;
    pen.fillStyle = ink.faint;
    pen.fillRect(0, top, width, full);
    for (const cell of seen) drawCell(scene, lane, index, cell, top, full);
    for (const slice of lane.slices) {
      if (drawn.end[slice] < view[0]) continue;
      if (drawn.start[slice] > view[1]) break;
      drawSlice(scene, slice, top + drawn.row[slice] * tall + 1, tall - 2);
    }
  });
  if (foldAt === null || hostOpen) return;
  // Folded threads are one thin line that shows when any of them was in a call.
  pen.fillStyle = ink.faint;
  pen.fillRect(0, foldAt + HEAD, width, 8);
  pen.fillStyle = colour('--call');
  for (const lane of hostLanes) for (const slice of lane.slices) if (drawn.row[slice] === 0) {
    const from = Math.max(across(drawn.start[slice]), 0), to = Math.min(across(drawn.end[slice]), width);
    if (to >= from) pen.fillRect(from, foldAt + HEAD + 1, Math.max(to - from, 0.75), 6);
  }
}
const cellsSeen = () => drawn.cells.edges.slice(0, -1).map((edge, cell) => cell).filter(cell =>
  drawn.cells.edges[cell + 1] > view[0] && drawn.cells.edges[cell] < view[1]
  && !isWindow(drawn, drawn.cells.edges[cell], drawn.cells.edges[cell + 1]));

/* A cell is an outline with a height proportional to busy time; individual activities are filled boxes. */
function drawCell({ pen, across, ink, hatch }, lane, index, cell, top, full) {
  const { edges, lanes, kernels } = drawn.cells;
  const share = lanes[index][cell] / (edges[cell + 1] - edges[cell]);
  if (!share) return;
  const [from, to] = [across(edges[cell]), across(edges[cell + 1])], tall = Math.max(1, share * (full - 2));
  pen.fillStyle = lane.kind === 'idle' ? hatch : ink.soft;
  pen.fillRect(from, top + full - 1 - tall, Math.max(to - from - 0.5, 0.75), tall);
  pen.fillStyle = ink.accent;
  pen.fillRect(from, top + full - 1 - tall, Math.max(to - from - 0.5, 0.75), 1.5);
  const holds = lane.kind === 'kernel' && kernels[cell].some((name, at) => at % 3 === 0 && found.names.has(name));
  if (holds) { pen.fillStyle = ink.text; pen.fillRect(from, top, Math.max(to - from - 0.5, 1.5), 3); }
}

function drawSlice(scene, slice, y, tall) {
  const { pen, width, across, ink, hatch, colours } = scene;
  const from = Math.max(across(drawn.start[slice]), -1), to = Math.min(across(drawn.end[slice]), width + 1);
  const name = drawn.names[drawn.name[slice]], isFound = found.names.has(drawn.name[slice]);
  if (!colours.has(name.kind)) colours.set(name.kind, colour(kindName(name.kind)));
  const fill = colours.get(name.kind), wide = Math.max(to - from - (to - from > 4 ? 1 : 0), 0.75);
  pen.globalAlpha = found.names.size && !isFound ? 0.25 : drawn.short.has(slice) ? 0.55 : 1;
  // Many short pauses within a few pixels must not look like a long one: weight each by its width.
  if (name.kind === -3 && to - from < 0.75) pen.globalAlpha *= Math.max(to - from, 0.03);
  pen.fillStyle = name.kind === -3 ? hatch : fill;
  pen.fillRect(from, y, wide, tall);
  if (wide > 34) {
    const plain = name.kind === -3, words = fitted(name.label, wide - 8, pen);
    if (plain && words) {
      pen.fillStyle = ink.card;
      pen.fillRect(Math.max(from, 0) + 2, y, pen.measureText(words).width + 5, tall);
    }
    pen.fillStyle = plain || drawn.short.has(slice) ? ink.text : inkOn(fill);
    pen.fillText(words, Math.max(from, 0) + 4, y + tall / 2 + 4);
  }
  pen.globalAlpha = 1;
  if (!isFound && slice !== selected) return;
  pen.strokeStyle = ink.text;
  pen.lineWidth = slice === selected ? 3 : 1;
  pen.strokeRect(from + 0.5, y + 0.5, Math.max(wide - 1, slice === selected ? 3 : 1), tall - 1);
}

const PARTS = { set_up: 'set-up', steady: 'steady part', interruption: 'interruption', tear_down: 'tear-down' };
function drawMarks({ pen, width, height, across, ink, hatch }) {
  const clip = (from, to) => { const one = Math.max(across(from), 0); return [one, Math.min(across(to), width) - one]; };
  const boxed = (from, to, y, words, fill, ruled) => {
    const [x, wide] = clip(from, to);
    if (wide <= 0) return;
    pen.fillStyle = fill;
    pen.fillRect(x, y, Math.max(wide - 1, 0.75), BAND - 3);
    if (ruled) { pen.fillStyle = hatch; pen.fillRect(x, y, Math.max(wide - 1, 0.75), BAND - 3); }
    const told = wide > 24 ? fitted(words, wide - 8, pen) : '';
    if (!told) return;
    pen.fillStyle = fill;
    pen.fillRect(x + 2, y, pen.measureText(told).width + 5, BAND - 3);
    pen.fillStyle = ink.text;
    pen.fillText(told, x + 4, y + 10);
  };
  for (const { part, start, end } of drawn.parts) {
    const [x, wide] = clip(start, end), steady = part === 'steady';
    boxed(start, end, AXIS, PARTS[part] ?? part, steady ? ink.soft : ink.faint, !steady);
    if (steady || wide <= 0) continue;
    pen.globalAlpha = 0.6; // dimmed: not part of the judged window
    pen.fillStyle = ink.card;
    pen.fillRect(x, AXIS + BAND, wide, height);
    pen.globalAlpha = 1;
  }
  if (drawn.window) {
    const [x, wide] = clip(drawn.window.start, drawn.window.end);
    pen.fillStyle = ink.accent;
    if (wide > 0) pen.fillRect(x, AXIS + BAND - 3, wide, 2);
    for (const edge of [drawn.window.start, drawn.window.end]) pen.fillRect(across(edge) - 0.75, AXIS, 1.5, height);
  }
  drawn.iterations.number.forEach((number, at) => boxed(drawn.iterations.start[at], drawn.iterations.end[at], AXIS + BAND,
    `iteration ${number}`, at % 2 ? ink.faint : ink.line));
  if (!range) return;
  const [x, wide] = clip(range[0], range[1]);
  pen.globalAlpha = 0.16;
  pen.fillStyle = ink.accent;
  pen.fillRect(x, 0, Math.max(wide, 1), height);
  pen.globalAlpha = 1;
  for (const edge of range) pen.fillRect(across(edge) - 1, 0, 2, height);
}

/* Overview of the recording: device utilization, fully drawn intervals, and the visible range. */
let busyShares = null;
function sharesOfMap(count) {
  if (busyShares?.length === count) return busyShares;
  const step = drawn.length / count || 1, time = new Float64Array(count);
  const spread = (from, to, busy) => {
    const first = Math.max(0, Math.floor(from / step)), last = Math.min(count - 1, Math.floor(to / step));
    for (let bin = first; bin <= last; bin++)
      time[bin] += busy * (Math.min(to, (bin + 1) * step) - Math.max(from, bin * step)) / (to - from || 1);
  };
  const runs = lane => lane.device === drawn.judged && (lane.kind === 'kernel' || lane.kind === 'copy');
  const pieces = drawn.lanes.filter(runs).flatMap(lane => lane.slices).sort((one, two) => drawn.start[one] - drawn.start[two]);
  for (const [first, last] of drawn.windows) {
    let until = first;
    for (const slice of pieces) {
      const from = Math.max(drawn.start[slice], until), to = Math.min(drawn.end[slice], last);
      if (to > from) { spread(from, to, to - from); until = to; }
    }
  }
  const { edges = [0], devices = [] } = drawn.cells ?? {}, busy = devices.find(one => one.device === drawn.judged)?.busy;
  for (let cell = 0; busy && cell + 1 < edges.length; cell++)
    if (!isWindow(drawn, edges[cell], edges[cell + 1])) spread(edges[cell], edges[cell + 1], busy[cell]);
  return busyShares = [...time].map(one => one / step);
}
function drawMap() {
  const map = byId('strip-map'), [pen, width] = penOf(map, MAP), across = scale(...bounds(), 0, width);
  const [faint, accent, card, text] = ['--faint', '--accent', '--card', '--text'].map(colour);
  pen.fillStyle = faint;
  pen.fillRect(0, 4, width, MAP - 14);
  const shares = sharesOfMap(Math.max(50, Math.min(600, Math.floor(width / 2)))), step = drawn.length / shares.length;
  pen.fillStyle = accent;
  shares.forEach((share, at) => {
    const tall = share && Math.max(1, Math.min(share, 1) * (MAP - 14));
    pen.fillRect(across(at * step), MAP - 10 - tall, across((at + 1) * step) - across(at * step), tall);
  });
  pen.globalAlpha = 0.6;
  pen.fillStyle = card;
  for (const { part, start, end } of drawn.parts)
    if (part !== 'steady') pen.fillRect(across(start), 4, across(end) - across(start), MAP - 14);
  pen.globalAlpha = 1;
  pen.fillStyle = text;
  for (const [first, last] of drawn.cells ? drawn.windows : [])
    pen.fillRect(across(first), MAP - 7, Math.max(across(last) - across(first), 2), 3);
  pen.strokeStyle = text;
  pen.lineWidth = 2;
  pen.strokeRect(across(view[0]) + 1, 3, Math.max(across(view[1]) - across(view[0]) - 2, 3), MAP - 12);
}

/* ---- descriptions of activities ---- */

function sliceAt(x, y) {
  const across = scale(view[0], view[1], 0, strip.clientWidth);
  for (const [index, lane] of drawn.lanes.entries()) {
    const place = placed[index];
    if (!place || y < place.top || y >= place.top + lane.rows * place.tall) continue;
    const row = Math.floor((y - place.top) / place.tall);
    for (let at = lane.slices.length - 1; at >= 0; at--) {
      const slice = lane.slices[at];
      if (drawn.row[slice] !== row) continue;
      const [from, to] = [across(drawn.start[slice]), across(drawn.end[slice])];
      if (x >= Math.min(from, to - 3) && x <= Math.max(to, from + 3)) return slice;
    }
  }
  return -1;
}
/* Return the lane and number of the cell at a point of the canvas. */
function cellAt(x, y) {
  const beneath = (lane, at) => placed[at] && y >= placed[at].top && y < placed[at].top + lane.rows * placed[at].tall;
  const index = drawn.lanes.findIndex(beneath), time = scale(0, strip.clientWidth, view[0], view[1])(x);
  if (index < 0 || !drawn.cells) return null;
  const { edges } = drawn.cells, cell = cellsSeen().find(one => edges[one] <= time && time < edges[one + 1]);
  return cell === undefined ? null : { index, cell };
}
const iterationAt = time => {
  const { number, start, end } = drawn.iterations, at = start.findIndex((first, one) => first <= time && time < end[one]);
  return at < 0 ? null : number[at];
};
/* Return the idle interval that ends when a device's activity begins. */
const idleUntil = new Map();
if (drawn) for (const lane of drawn.lanes) if (lane.kind === 'idle') for (const slice of lane.slices)
  idleUntil.set(`${lane.device} ${drawn.end[slice]}`, slice);

function toldOf(slice) {
  const name = drawn.names[drawn.name[slice]], lane = drawn.lanes[drawn.lane[slice]];
  const length = drawn.end[slice] - drawn.start[slice];
  const within = sliceChildren.get(slice) ?? 0, own = lane.kind === 'kernel' ? drawn.iteration[slice] : undefined;
  const number = own === undefined ? iterationAt(drawn.start[slice]) : own < 0 ? null : own;
  const lines = [lane.kind === 'idle' ? `Idle, ${name.full}` : name.label, `took ${exactly(length, 'ns')}`];
  if (within) lines.push(`of it itself ${exactly(Math.max(length - within, 0), 'ns')}`);
  lines.push(`begins at ${duration(drawn.start[slice])}${number === null ? '' : `, in iteration ${number}`}`, lane.label);
  const ran = lane.kind === 'kernel' || lane.kind === 'copy';
  const before = ran ? idleUntil.get(`${lane.device} ${drawn.start[slice]}`) : undefined;
  if (before !== undefined) {
    const idle = duration(drawn.end[before] - drawn.start[before]);
    lines.push(`before it the device was idle for ${idle}: ${drawn.names[drawn.name[before]].label}`);
  }
  if (drawn.short.has(slice)) lines.push('too short to be timed individually');
  return lines;
}
const sliceChildren = new Map();
if (drawn) drawn.inside.forEach((parent, slice) => {
  if (parent >= 0) sliceChildren.set(parent, (sliceChildren.get(parent) ?? 0) + drawn.end[slice] - drawn.start[slice]);
});
function toldOfCell({ index, cell }) {
  const { edges, lanes, kernels } = drawn.cells, length = edges[cell + 1] - edges[cell], lane = drawn.lanes[index];
  const lines = [`${lane.label}: ${lane.kind === 'idle' ? 'idle' : 'busy'} ${percent(lanes[index][cell], length)}`,
    `a cell of ${duration(length)} from ${duration(edges[cell])} on; single activities are not drawn here`];
  let most = -1;
  for (let at = 0; at < kernels[cell].length; at += 3)
    if (most < 0 || kernels[cell][at + 1] > kernels[cell][most + 1]) most = at;
  if (lane.kind === 'kernel' && most >= 0)
    lines.push(`of its kernels the most: ${drawn.names[kernels[cell][most]].label}, ${duration(kernels[cell][most + 1])}`);
  return lines;
}

/* Describe the selection below the timeline, with its full name folded. */
function tellSelected() {
  const name = drawn.names[drawn.name[selected]], place = byId('spoken');
  place.textContent = toldOf(selected).join('; ') + '.';
  const full = byId('strip-full');
  full.hidden = !name.full || name.kind === -3;
  full.querySelector('code').textContent = name.full ?? '';
}
function select(slice) {
  selected = slice;
  if (drawn.lanes[drawn.lane[slice]].kind === 'call' && !hostOpen) fold(true);
  const [from, to] = [drawn.start[slice], drawn.end[slice]];
  if (from < view[0] || to > view[1]) see(from - (view[1] - view[0]) / 4, from + (view[1] - view[0]) * 3 / 4);
  tellSelected();
  drawStrip();
}
/* Go to the next search result, or without a search to the next activity. */
function step(by) {
  const shown = slice => hostOpen || drawn.lanes[drawn.lane[slice]].kind !== 'call';
  const among = found.names.size ? found.slices : [...drawn.start.keys()].filter(shown);
  if (!among.length) return;
  const at = among.indexOf(selected);
  select(among[at < 0 ? (by > 0 ? 0 : among.length - 1) : (at + by + among.length) % among.length]);
  tellFound();
}

/* ---- searching, folding, and sums of a range ---- */

function search(text) {
  const wanted = text.trim().toLowerCase();
  const hit = ({ label, full }) => label.toLowerCase().includes(wanted) || (full ?? '').toLowerCase().includes(wanted);
  const names = new Set(wanted ? drawn.names.keys() : []);
  for (const name of names) if (!hit(drawn.names[name])) names.delete(name);
  // A search without results dims everything; an empty search dims nothing.
  found = { names: wanted && !names.size ? new Set([-1]) : names,
    slices: [...drawn.start.keys()].filter(slice => names.has(drawn.name[slice])) };
  all('[data-step]').forEach(button => { button.disabled = !found.slices.length; });
  tellFound();
  drawStrip();
}
function tellFound() {
  const count = found.slices.length, at = found.slices.indexOf(selected), which = at < 0 ? '' : `${grouped(at + 1)} of `;
  const many = `${which}${grouped(count)} ${count === 1 ? 'activity' : 'activities'}${drawn.cells ? ', where drawn in full' : ''}`;
  byId('strip-found').textContent = !found.names.size ? '' : count ? many : `none of what is drawn${drawn.cells ? ' in full' : ''}`;
}
function fold(open) {
  hostOpen = open;
  byId('strip-host')?.setAttribute('aria-expanded', String(open));
  drawStrip();
}
function sumUp(from, to) {
  const sums = sumsOf(drawn, Math.max(0, Math.min(from, to)), Math.min(drawn.length, Math.max(from, to)));
  range = [sums.from, sums.to];
  const asWindow = drawn.window && range[0] === drawn.window.start && range[1] === drawn.window.end;
  const wider = sums.length > Math.ceil(Math.abs(to - from)) + 1 ? ', widened to whole cells' : '';
  const inside = asWindow && drawn.window.interrupted ? ', with its interruptions' : '';
  const told = `${asWindow ? 'The judged window' : 'Range'}${inside}: ${exactly(sums.length, 'ns')}`;
  const where = ` from ${duration(sums.from)} to ${duration(sums.to)}${wider}`;
  byId('range-said').textContent = showSums(drawn, sums, byId('range'), told + where);
  drawStrip();
}
function unselect() {
  range = null;
  byId('range').replaceChildren();
  byId('range-said').textContent = '';
  drawStrip();
}
const sumSeen = () => sumUp(view[0], view[1]);
const stretchRange = share => range ? sumUp(range[0], Math.max(range[1] + share * (view[1] - view[0]), range[0] + 1)) : sumSeen();

/* ---- mouse, fingers and keys ---- */

function listenToStrip() {
  const pointers = new Map();
  let begun = null; // start and action of a drag
  const at = event => { const box = strip.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  const timeAt = x => view[0] + (view[1] - view[0]) * x / strip.clientWidth;
  strip.addEventListener('pointerdown', event => {
    strip.setPointerCapture(event.pointerId);
    const [x, y] = at(event);
    pointers.set(event.pointerId, [x, y]);
    const moves = event.pointerType === 'touch' || event.shiftKey || event.button === 1 || y < AXIS;
    begun = { x, time: timeAt(x), moves, far: false };
  });
  strip.addEventListener('pointermove', event => {
    const [x, y] = at(event);
    if (!pointers.has(event.pointerId)) {
      const slice = sliceAt(x, y), cell = slice < 0 ? cellAt(x, y) : null;
      if (slice >= 0) showTip(toldOf(slice), event.clientX, event.clientY);
      else if (cell) showTip(toldOfCell(cell), event.clientX, event.clientY); else hideTip();
      return;
    }
    hideTip();
    const before = [...pointers.values()].map(([place]) => place);
    pointers.set(event.pointerId, [x, y]);
    const after = [...pointers.values()].map(([place]) => place);
    begun.far ||= Math.abs(x - begun.x) > 4;
    if (after.length === 2) {
      // The time range between the two fingers stays between them.
      const apart = Math.max(Math.abs(after[0] - after[1]), 10) / Math.max(Math.abs(before[0] - before[1]), 10);
      begun.moves = true;
      zoom(1 / apart, timeAt((after[0] + after[1]) / 2));
    } else if (begun.moves) pan((before[0] - after[0]) / strip.clientWidth);
    else if (begun.far) sumUp(begun.time, timeAt(x));
  });
  strip.addEventListener('pointerup', event => {
    if (begun && !begun.far && pointers.size === 1) {
      const [x, y] = at(event), slice = sliceAt(x, y);
      if (foldAt !== null && y >= foldAt && y < foldAt + HEAD + (hostOpen ? 0 : 10)) fold(!hostOpen);
      else if (slice >= 0) { selected = slice; tellSelected(); drawStrip(); } else if (range) unselect();
    }
    pointers.delete(event.pointerId);
  });
  strip.addEventListener('pointercancel', event => pointers.delete(event.pointerId));
  strip.addEventListener('pointerleave', hideTip);
  // The wheel scrolls the page until the timeline is clicked or focused.
  strip.addEventListener('wheel', event => {
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / strip.clientWidth);
    else if (event.ctrlKey || event.metaKey || document.activeElement === strip)
      zoom(Math.exp(event.deltaY * (event.ctrlKey ? 0.01 : 0.002)), timeAt(at(event)[0]));
    else return;
    event.preventDefault();
  }, { passive: false });
  strip.addEventListener('keydown', event => {
    const across = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const action = across ? () => event.shiftKey ? stretchRange(0.05 * across) : pan(0.2 * across) : {
      '+': () => zoom(0.6), '=': () => zoom(0.6), '-': () => zoom(1 / 0.6), 0: () => see(...bounds()),
      n: () => step(1), p: () => step(-1), h: () => fold(!hostOpen), s: sumSeen, Escape: unselect, '/': () => byId('strip-search').focus(),
      f: () => { const full = byId('strip-full'); full.open = !full.open; } }[event.key];
    if (action && !event.ctrlKey && !event.metaKey) { event.preventDefault(); action(); }
  });
  listenBeside();
}

/* The buttons, the search field and the overview. */
function listenBeside() {
  const press = (selector, act) => all(selector).forEach(button => button.addEventListener('click', () => act(button.dataset)));
  press('[data-zoom]', ({ zoom: name }) => ({ in: () => zoom(0.5), out: () => zoom(2), all: () => see(...bounds()) })[name]());
  press('[data-moment]', ({ moment }) => { const one = drawn.moments[+moment]; lookAt(one.start, one.end); });
  press('[data-step]', ({ step: by }) => step(+by));
  press('#strip-host', () => fold(!hostOpen));
  press('#strip-seen', sumSeen);
  press('#strip-window', () => { lookAt(drawn.window.start, drawn.window.end); sumUp(drawn.window.start, drawn.window.end); });
  const field = byId('strip-search'), map = byId('strip-map');
  field.addEventListener('input', () => search(field.value));
  field.addEventListener('keydown', event => {
    if (event.key === 'Enter') { event.preventDefault(); step(event.shiftKey ? -1 : 1); }
    if (event.key === 'Escape') { field.value = ''; search(''); }
  });
  const follow = event => {
    if (!event.buttons) return;
    const box = map.getBoundingClientRect(), [first, last] = bounds(), half = (view[1] - view[0]) / 2;
    const middle = first + (last - first) * (event.clientX - box.left) / box.width;
    see(middle - half, middle + half);
  };
  map.addEventListener('pointerdown', event => { map.setPointerCapture(event.pointerId); follow(event); });
  map.addEventListener('pointermove', follow);
}

/* The colour legend; every activity also has a name. */
function drawLegend() {
  const kinds = drawn.kinds.map((label, kind) => [label, `var(${kindName(kind)})`]);
  if (hostLanes.length) kinds.push(['Host calls', 'var(--call)']);
  if (drawn.lanes.some(lane => lane.kind === 'copy')) kinds.push(['Copies', 'var(--copy)']);
  byId('legend').replaceChildren(...kinds.map(([label, fill]) => {
    const item = document.createElement('span'), box = svg('svg', { viewBox: '0 0 12 12', 'aria-hidden': true });
    const square = svg('rect', { width: 12, height: 12, rx: 2 });
    square.style.fill = fill;
    box.append(square);
    item.append(box, label);
    return item;
  }));
}

if (drawn) {
  const [first] = drawn.windows;
  view = bounds();
  listenToStrip();
  drawLegend();
  if (drawn.cells && first) lookAt(first[0], first[1]);
  resized.push(drawStrip);
  recoloured.push(drawStrip);
}
