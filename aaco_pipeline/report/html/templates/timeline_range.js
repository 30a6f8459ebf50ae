/* ---- the timeline: its data, and the sums of a range ---- */

/* Decode the columns: starts are deltas, and every activity is assigned a free row of its lane. */
function spelledOut(given) {
  const { slices } = given, count = slices.start.length;
  const start = new Float64Array(count), end = new Float64Array(count), inside = new Int32Array(count).fill(-1);
  let time = 0;
  for (let index = 0; index < count; index++) {
    time += slices.start[index];
    start[index] = time;
    end[index] = time + slices.took[index];
  }
  slices.inside.forEach((places, index) => { if (places) inside[index] = index - places; });
  const lanes = given.lanes.map(lane => ({ ...lane, slices: [], rows: 0 }));
  slices.lane.forEach((lane, index) => lanes[lane].slices.push(index));
  const row = new Int32Array(count);
  for (const lane of lanes) {
    const free = [], most = lane.kind === 'call' ? 12 : 8;
    for (const index of lane.slices) {
      let at = inside[index] < 0 ? 0 : row[inside[index]] + 1;
      if (lane.kind === 'call') // a call is below all calls that are still open
        for (let open = free.length - 1; open >= at; open--) if (free[open] > start[index]) { at = open + 1; break; }
      while (at < free.length && free[at] > start[index]) at++;
      free[at] = Math.max(free[at] ?? 0, end[index]);
      row[index] = Math.min(at, most - 1);
    }
    lane.rows = Math.max(1, Math.min(free.length, most));
  }
  return { ...given, lanes, start, end, row, inside, name: slices.name, lane: slices.lane,
    iteration: slices.iteration.flatMap(([times, number]) => Array(times).fill(number)),
    short: new Set(slices.short) };
}

/* Inside a window every activity is known; elsewhere a range is widened to complete cells with exact sums. */
function widened(drawn, from, to) {
  if (!drawn.cells) return [from, to];
  const within = time => drawn.windows.some(([first, last]) => time >= first && time <= last);
  const { edges } = drawn.cells;
  const before = edges.filter(edge => edge <= from), after = edges.find(edge => edge >= to);
  return [within(from) || !before.length ? from : before[before.length - 1], within(to) || after === undefined ? to : after];
}

/* Return the length of the union of intervals, which are sorted by start. */
function unionOf(intervals) {
  let covered = 0, until = -Infinity;
  for (const [from, to] of intervals) {
    if (to > until) { covered += to - Math.max(from, until); until = to; }
  }
  return covered;
}

/* What lies in a range: busy time of every lane and device as unions, kernels by their own time, idle time by cause.
   All figures are whole nanoseconds; the range is the one given, widened to whole cells outside the windows. */
function sumsOf(drawn, wantedFrom, wantedTo) {
  const [from, to] = widened(drawn, Math.round(wantedFrom), Math.round(wantedTo));
  const lanes = drawn.lanes.map(() => 0), devices = new Map(), kernels = new Map(), idle = new Map();
  const add = (map, key, time, count = 0) => {
    const held = map.get(key) ?? { time: 0, count: 0 };
    map.set(key, { time: held.time + time, count: held.count + count });
  };
  for (const lane of drawn.lanes) if (lane.kind !== 'call') devices.set(lane.device, 0);
  for (const [first, last] of drawn.windows) {
    const [begin, stop] = [Math.max(from, first), Math.min(to, last)];
    if (stop <= begin) continue;
    const clipped = index => [Math.max(drawn.start[index], begin), Math.min(drawn.end[index], stop)];
    const touching = lane => lane.slices.filter(index => drawn.start[index] < stop && drawn.end[index] >= begin);
    const running = new Map([...devices.keys()].map(device => [device, []]));
    drawn.lanes.forEach((lane, at) => {
      const found = touching(lane), pieces = found.map(clipped).filter(([one, two]) => two > one);
      lanes[at] += unionOf(pieces);
      if (lane.kind === 'kernel' || lane.kind === 'copy') running.get(lane.device).push(...pieces);
      for (const index of lane.kind === 'kernel' ? found : []) {
        const [one, two] = clipped(index), length = Math.max(two - one, 0);
        add(kernels, drawn.name[index], length, drawn.start[index] >= begin ? 1 : 0);
        // Time nested in another kernel's operator is not that kernel's own time.
        if (drawn.inside[index] >= 0) add(kernels, drawn.name[drawn.inside[index]], -length);
      }
      for (const index of lane.kind === 'idle' ? found : []) {
        const [one, two] = clipped(index);
        if (two > one) add(idle, `${lane.device} ${drawn.name[index]}`, two - one);
      }
    });
    for (const [device, pieces] of running)
      devices.set(device, devices.get(device) + unionOf(pieces.sort(([one], [two]) => one - two)));
  }
  const { edges = [0], lanes: ofLanes, devices: ofDevices, kernels: ofKernels, idle: ofIdle } = drawn.cells ?? {};
  for (let cell = 0; cell + 1 < edges.length; cell++) {
    if (edges[cell] < from || edges[cell + 1] > to || isWindow(drawn, edges[cell], edges[cell + 1])) continue;
    ofLanes.forEach((busy, at) => { lanes[at] += busy[cell]; });
    for (const { device, busy } of ofDevices) devices.set(device, devices.get(device) + busy[cell]);
    for (let at = 0; at < ofKernels[cell].length; at += 3)
      add(kernels, ofKernels[cell][at], ofKernels[cell][at + 1], ofKernels[cell][at + 2]);
    for (let at = 0; at < ofIdle[cell].length; at += 3)
      add(idle, `${ofIdle[cell][at]} ${ofIdle[cell][at + 1]}`, ofIdle[cell][at + 2]);
  }
  return {
    from, to, length: to - from, lanes, devices: [...devices],
    kernels: [...kernels].map(([name, held]) => ({ name, ...held })).filter(one => one.time || one.count)
      .sort((one, two) => two.time - one.time || one.name - two.name),
    idle: [...idle].map(([key, { time }]) => {
      const [device, name] = key.split(' ').map(Number);
      return { device, name, time };
    }).sort((one, two) => one.device - two.device || two.time - one.time),
  };
}
const isWindow = (drawn, first, last) => drawn.windows.some(([one, two]) => one === first && two === last);

/* ---- a range in words ---- */

const LISTED = 8;
const percent = (part, whole) => !(whole > 0) ? '–' : part > 0 && part < 1e-4 * whole ? '< 0.01 %'
  : inUnit(+(part / whole).toPrecision(3), 'ratio');

/* A small table: all columns but the first are numbers, and `full` is shown on hover. */
function smallTable(caption, columns, rows) {
  const table = document.createElement('table'), head = table.createTHead().insertRow(), body = table.createTBody();
  table.createCaption().textContent = caption;
  columns.forEach((label, at) => {
    const cell = document.createElement('th');
    cell.scope = 'col';
    cell.textContent = label;
    if (at) cell.className = 'number';
    head.append(cell);
  });
  for (const { cells, full } of rows) {
    const row = body.insertRow();
    cells.forEach((text, at) => {
      const cell = row.insertCell();
      if (at) cell.className = 'number';
      const shown = at ? cell : cell.appendChild(document.createElement('span'));
      if (!at) shown.className = 'name';
      if (typeof text === 'number') { cell.title = exactly(text, 'ns'); shown.textContent = duration(text); }
      else shown.textContent = text;
      if (!at && full) cell.title = full;
    });
  }
  return table;
}

function showSums(drawn, sums, place, told) {
  const several = sums.devices.length > 1, of = device => several ? `Device ${device ?? 'unknown'}: ` : '';
  const whole = sums.kernels.reduce((sum, one) => sum + one.time, 0);
  const named = sums.kernels.filter(one => !drawn.names[one.name].others), listed = named.slice(0, LISTED);
  const rest = sums.kernels.filter(one => !listed.includes(one)), idle = sums.idle.reduce((sum, one) => sum + one.time, 0);
  const busy = sums.devices.map(([device, time]) =>
    ({ cells: [`Device ${device ?? 'unknown'}, all its lanes`, time, percent(time, sums.length)] }));
  drawn.lanes.forEach((lane, at) => {
    const label = several ? lane.label : lane.label.replace(/^Device \w+, /, '');
    if (lane.kind !== 'idle') busy.push({ cells: [label, sums.lanes[at], percent(sums.lanes[at], sums.length)] });
  });
  const kernels = listed.map(({ name, time, count }) =>
    ({ cells: [drawn.names[name].label, time, grouped(count), percent(time, whole)], full: drawn.names[name].full }));
  if (rest.length) {
    const [time, count] = rest.reduce(([sum, times], one) => [sum + one.time, times + one.count], [0, 0]);
    kernels.push({ cells: ['all others', time, grouped(count), percent(time, whole)] });
  }
  const causes = sums.idle.map(({ device, name, time }) =>
    ({ cells: [of(device) + drawn.names[name].full, time, percent(time, sums.length)], full: drawn.names[name].full }));
  const heading = document.createElement('p');
  heading.className = 'range-told';
  heading.textContent = told;
  const tables = document.createElement('div'), first = document.createElement('div'), second = document.createElement('div');
  tables.className = 'range-tables';
  tables.append(first, second);
  first.append(smallTable('Busy of the range: the union of what ran', ['Lane', 'Time', 'Of it'], busy));
  const ofKernels = `Kernels by their own time${several ? ', of all devices' : ''}`;
  if (kernels.length) second.append(smallTable(ofKernels, ['Kernel', 'Time', 'Begun', 'Of them'], kernels));
  if (causes.length) first.append(smallTable('Idle of the range, by cause', ['Cause', 'Time', 'Of it'], causes));
  place.replaceChildren(heading, tables);
  const [[device, time]] = sums.devices, [top] = listed, [cause] = [...sums.idle].sort((one, two) => two.time - one.time);
  return [told, `device ${device ?? 'unknown'} busy ${percent(time, sums.length)}`,
    ...(top ? [`most in ${drawn.names[top.name].label}, ${percent(top.time, whole)} of the kernels' time`] : []),
    ...(cause ? [`idle ${duration(idle)}, most of it ${drawn.names[cause.name].label}`] : [])].join('; ') + '.';
}
