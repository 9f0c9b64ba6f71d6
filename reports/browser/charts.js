// The error graphs: where the error is born, and six of metric by data set, over one axis of layers. Worse is up.
// Ranks are places along the axis, in topological order; positions are those of every section.

const GRAPH_METRICS = {
  mse: { label: "MSE", unit: "log scale", better: -1 },
  nmse: { label: "NMSE", unit: "noise over signal, log scale", better: -1 },
  cosine: { label: "Cosine", unit: "1 = equal", better: 1 },
  sqnr_db: { label: "SQNR", unit: "dB", better: 1 },
};
const GRAPH_ROLES = ["representative", "validation"];
/** How far the axes reach from the worst layer: 80 dB, or as many decades; what is better is drawn at the end. */
const GRAPH_DEPTH = { mse: 8, nmse: 8, cosine: Infinity, sqnr_db: 80 };
const GRAPH_NAMES = 5;

/** What all graphs share: `range` and `full` of the x axis, the rank pointed at, the graph that is pointed at. */
const errorGraphs = { list: [], local: false, relative: false, cursor: null, pointed: null };

views.charts = (root) => {
  const indices = section("errors").index;
  const order = Array.from({ length: layers.count }, (_, position) => position);
  if (indices) order.sort((a, b) => indices[a] - indices[b]);
  const xs = order.map((position) => (indices ? indices[position] : position));
  const full = [(xs[0] ?? 0) - 0.5, (xs.at(-1) ?? 0) + 0.5];
  const tip = element("div", { class: "plot-tip", hidden: true });
  Object.assign(errorGraphs, { root, order, xs, full, range: full, tip });
  errorGraphs.ranks = new Map(order.map((position, rank) => [position, rank]));
  drawGraphs();
  on("theme", drawGraphs);
  on("select", () => errorGraphs.list.forEach((graph) => graph.plot?.redraw(false)));
  on("hover", (position) => pointAt(position === null ? null : errorGraphs.ranks.get(position), null));
  new ResizeObserver(fitGraphs).observe(root);
};

// Paper is white: colours are asked for anew before main.js has everything drawn for print.
addEventListener("beforeprint", () => (probe.style.colorScheme = "light"));
addEventListener("afterprint", () => (probe.style.colorScheme = ""));

/** A colour of the theme, looked up once per drawing. */
function ink(property) {
  if (!errorGraphs.inks.has(property)) errorGraphs.inks.set(property, colour(property));
  return errorGraphs.inks.get(property);
}

/** Draw everything anew: in another theme, of another metric. */
function drawGraphs() {
  const { root, tip } = errorGraphs;
  const focused = [...root.querySelectorAll("button, .plot")].indexOf(document.activeElement);
  for (const graph of errorGraphs.list) graph.plot?.destroy();
  const birth = birthGraph();
  const six = GRAPH_ROLES.flatMap((role) => ["mse", "cosine", "sqnr_db"].map((metric) => errorGraph(metric, role)));
  errorGraphs.list = [birth, ...six];
  const grid = element("div", { class: "plot-grid" }, ...six.map((graph) => graph.figure));
  root.replaceChildren(birth.figure, graphTools(), grid, tip);
  errorGraphs.inks = new Map();
  const widths = errorGraphs.list.map((graph) => graph.place?.clientWidth);
  errorGraphs.list.forEach((graph, i) => graph.place && plotGraph(graph, widths[i]));
  if (focused >= 0) root.querySelectorAll("button, .plot")[focused]?.focus({ preventScroll: true });
  const pointed = errorGraphs.list.find((graph) => graph.name === errorGraphs.pointed?.name);
  if (errorGraphs.cursor !== null) pointAt(errorGraphs.cursor, pointed, true);
}

// What is drawn

/** SQNR of a share of noise. */
const noiseLevel = (nmse) => (nmse > 0 ? -10 * Math.log10(nmse) : nmse === 0 ? Infinity : NaN);

/** Values in the order of the axis; what is not finite comes as text. */
const alongAxis = (values, change = Number) =>
  errorGraphs.order.map((position) => (values[position] === null ? null : change(Number(values[position]))));

function errorGraph(metric, role) {
  const errors = section("errors");
  const shown = metric === "mse" && errorGraphs.relative ? "nmse" : metric;
  const { label, unit, better } = GRAPH_METRICS[shown];
  const graph = { name: `${metric}-${role}`, shown, role, better, title: `${label} · ${role}`, unit, height: 170 };
  const found = errors.sets[role];
  if (!found) return framed(Object.assign(graph, { note: `not measured on the ${role} set` }));
  const read = (kind) =>
    shown === "sqnr_db" ? alongAxis(found[kind].nmse, noiseLevel) : alongAxis(found[kind][shown]);
  graph.values = { accumulated: read("accumulated"), rounding: read("rounding") };
  graph.limit = Number(errors.limits[shown] ?? NaN);
  graph.main = errorGraphs.local ? "rounding" : "accumulated";
  scaleGraph(graph, errorGraphs.local ? ["rounding"] : ["rounding", "accumulated"]);
  const marked = graph.heights[graph.main];
  const ranks = errors.flagged[graph.name].map((position) => errorGraphs.ranks.get(position));
  graph.flagged = ranks.filter((rank) => marked[rank] !== null);
  graph.flaggedSet = new Set(graph.flagged);
  graph.named = graph.flagged;
  graph.over = overText(graph);
  const measured = graph.values.accumulated.filter((value) => value !== null && !Number.isNaN(value)).length;
  graph.summary = `${graph.flagged.length} of ${measured} layers ${graph.over}`;
  if (errorGraphs.local) graph.summary += ", accumulated";
  const samples = [...new Set(found.samples)].filter((n) => n !== null);
  if (samples.length) graph.unit += ` · n = ${samples.join(" … ")}`;
  return framed(graph);
}

/** "over 0.01": the threshold in words; that of the MSE may be one of the NMSE. */
function overText(graph) {
  if (Number.isFinite(graph.limit)) return `${graph.better > 0 ? "below" : "over"} ${errorText(graph, graph.limit)}`;
  const relative = Number(section("errors").limits.nmse ?? NaN);
  return graph.shown === "mse" && Number.isFinite(relative) ? `over ${formatNumber(relative)} × power` : "flagged";
}

function birthGraph() {
  const { birth, limits, sets } = section("errors");
  const { role } = birth;
  const title = `${birth.title} · ${role}`;
  const graph = { name: "birth", shown: "sqnr_db", role, better: 1, title, unit: "dB", height: 220 };
  const added = alongAxis(birth.added, noiseLevel);
  const accumulated = sets[role] ? alongAxis(sets[role].accumulated.nmse, noiseLevel) : [];
  if (accumulated.every((v) => v === null)) graph.note = `not measured on the ${role} set`;
  else if (added.every((v) => v === null)) graph.note = "not measured: what each layer adds";
  if (graph.note) return framed(graph);
  graph.origin = errorGraphs.order.map((position) => birth.origins[birth.origin[position]] ?? null);
  const own = (rank) => graph.origin[rank] === "born" || graph.origin[rank] === "added";
  graph.values = {
    added: added.map((value, rank) => (own(rank) ? null : value)),
    own: added.map((value, rank) => (own(rank) ? value : null)),
    accumulated,
  };
  graph.main = "accumulated";
  graph.limit = Number(limits.sqnr_db ?? NaN);
  scaleGraph(graph, ["added", "own", "accumulated"]);
  graph.born = errorGraphs.order.flatMap((_, rank) => (graph.origin[rank] === "born" ? [rank] : []));
  graph.named = [...graph.born].sort((a, b) => added[a] - added[b]).slice(0, GRAPH_NAMES);
  graph.summary = birth.summary;
  graph.text = birth.text;
  return framed(graph);
}

/** The y axis, and how high each value is drawn: MSE by its logarithm, what is better than the axis at its end. */
function scaleGraph(graph, kinds) {
  graph.lines = kinds;
  const { shown, better, values } = graph;
  const logarithmic = better < 0;
  const height = logarithmic ? Math.log10 : (value) => value;
  const finite = kinds.flatMap((kind) => values[kind]).map((v) => (v === null ? NaN : height(v)));
  graph.line = errorGraphs.local && !graph.origin ? NaN : height(graph.limit);
  finite.push(graph.line);
  let [low, high] = [Infinity, -Infinity];
  for (const v of finite) if (Number.isFinite(v)) [low, high] = [Math.min(low, v), Math.max(high, v)];
  if (low > high) [low, high] = logarithmic ? [-3, 0] : [0, 1];
  if (better > 0) high = Math.min(high, low + GRAPH_DEPTH[shown]);
  else low = Math.max(low, high - GRAPH_DEPTH[shown]);
  const pad = 0.07 * (high - low) || (shown === "cosine" ? 0.005 : 0.5);
  graph.ends = [low - pad, shown === "cosine" ? Math.min(high + pad, 1.0005) : high + pad];
  const drawnAt = (v) => {
    if (v === null || Number.isNaN(v)) return null;
    return Math.min(Math.max(height(v), graph.ends[0]), graph.ends[1]);
  };
  graph.heights = Object.fromEntries(kinds.map((kind) => [kind, values[kind].map(drawnAt)]));
}

// Where it is drawn

/** The figure of a graph; what it shows is in its attributes as well, for those who look at the page from outside. */
function framed(graph) {
  graph.readout = element("span", { class: "readout" }, graph.note ?? graph.summary);
  const title = [element("b", {}, graph.title), " ", element("small", {}, graph.unit)];
  const head = element("figcaption", {}, ...title, graph.readout);
  graph.place = graph.note
    ? null
    : element("div", {
        class: "plot", role: "img", tabindex: 0, onkeydown: (event) => graphKey(event, graph),
        onblur: () => pointAt(null, null), "aria-label": `${graph.title.replace(" · ", " ")}: ${graph.summary}`,
      });
  if (graph.place) graph.place.style.height = `${graph.height}px`;
  graph.figure = element("figure", { class: "plot-card", "data-graph": graph.name }, head);
  if (graph.origin) graph.figure.append(birthLegend(graph));
  if (graph.place) graph.figure.append(graph.place);
  if (graph.text) graph.figure.append(element("p", { class: "muted" }, graph.text));
  for (const kind of ["flagged", "born"]) {
    if (graph[kind]) graph.figure.dataset[kind] = graph[kind].map((rank) => errorGraphs.order[rank]).join(" ");
  }
  return graph;
}

function birthLegend(graph) {
  const limit = Number.isFinite(graph.limit) ? { limit: "threshold" } : {};
  return legend({
    line: "accumulated", bar: "added by the layer", own: "added, half of its noise or more", born: "born", ...limit,
  });
}

const legend = (samples) =>
  element("span", { class: "plot-legend" },
    ...Object.entries(samples).map(([kind, text]) => element("span", { class: `sample ${kind}` }, text)));

function graphTools() {
  const choice = (text, key, value) =>
    element("button", {
      type: "button", "aria-pressed": String(errorGraphs[key] === value),
      onclick: () => { errorGraphs[key] = value; drawGraphs(); },
    }, text);
  const group = (label, ...buttons) =>
    element("span", { role: "group", "aria-label": label, class: "choice" }, ...buttons);
  const samples = errorGraphs.local
    ? { rounding: "rounding (local)", flagged: "accumulated error over its threshold" }
    : { line: "accumulated", rounding: "rounding (local)", limit: "threshold", flagged: "over it" };
  errorGraphs.reset = element("button", { type: "button", onclick: () => zoomGraphs(errorGraphs.full) }, "Reset zoom");
  errorGraphs.reset.disabled = errorGraphs.range === errorGraphs.full;
  return element("div", { class: "plot-tools" },
    group("Error", choice("accumulated", "local", false), choice("local only", "local", true)),
    group("Squared error", choice("MSE", "relative", false), choice("NMSE", "relative", true)),
    errorGraphs.reset, legend(samples));
}

/** uPlot draws lines by their extremes in each column of pixels, so that peaks stay with any number of layers. */
function plotGraph(graph, width) {
  const dots = (u, series, first, last) => last - first <= u.bbox.width / devicePixelRatio / 6;
  const curve = (kind) => {
    const strong = kind === "accumulated" || kind === "own";
    const paint = ink(strong ? "--chart-series" : "--chart-local");
    if (kind === "added" || kind === "own") return { width: 0, fill: paint, paths: noiseBars, points: { show: false } };
    return { width: strong ? 1.6 : 1.2, stroke: paint, points: { show: dots, size: strong ? 3.5 : 2, fill: paint } };
  };
  const axis = { stroke: ink("--chart-muted"), font: "11px system-ui, sans-serif", ticks: { show: false }, gap: 4 };
  const grid = { stroke: ink("--chart-grid"), width: 1 };
  const places = GRAPH_STEPS.filter((step) => Number.isInteger(step));
  const options = {
    width,
    height: graph.height,
    legend: { show: false },
    padding: [10, 10, 0, 0],
    scales: {
      x: { time: false, range: () => errorGraphs.range },
      y: { range: () => graph.ends, dir: graph.better > 0 ? -1 : 1 },
    },
    axes: [
      { ...axis, grid: { show: false }, size: 22, space: 44, incrs: places, values: (u, at) => at.map(String) },
      {
        ...axis, grid, size: 44, space: 26, incrs: graph.better > 0 ? GRAPH_STEPS : places,
        values: (u, at) => at.map((v) => (graph.better > 0 ? String(Number(v.toFixed(6))) : `1e${v}`)),
      },
    ],
    series: [{}, ...graph.lines.map(curve)],
    cursor: { y: false, drag: { setScale: false, dist: 5 }, bind: { dblclick: () => null }, points: { size: 7 } },
    hooks: {
      draw: [(u) => decorate(u, graph)],
      setCursor: [(u) => pointAt(u.cursor.idx ?? null, graph)],
      setSelect: [(u) => {
        const { left, width: wide } = u.select;
        if (wide > 4) zoomGraphs([u.posToVal(left, "x"), u.posToVal(left + wide, "x")]);
        u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      }],
    },
  };
  graph.plot = new uPlot(options, [errorGraphs.xs, ...graph.lines.map((kind) => graph.heights[kind])], graph.place);
  const over = graph.plot.over;
  // Where the graph is zoomed, a click may be the first half of a double click, which shows all.
  let waiting = null;
  over.addEventListener("click", () => {
    const rank = graph.plot.cursor.idx;
    clearTimeout(waiting);
    if (rank === null || rank === undefined) return;
    const choose = () => select(errorGraphs.order[rank]);
    errorGraphs.range === errorGraphs.full ? choose() : (waiting = setTimeout(choose, 250));
  });
  over.addEventListener("dblclick", () => {
    clearTimeout(waiting);
    zoomGraphs(errorGraphs.full);
  });
}

const GRAPH_STEPS = [-4, -3, -2, -1, 0, 1, 2, 3, 4].flatMap((power) => [1, 2, 5].map((n) => Number(`${n}e${power}`)));

/** Bars from the foot; where several share a place, the tallest. */
function noiseBars(u, series, first, last) {
  const fill = new Path2D();
  const foot = u.bbox.top + u.bbox.height;
  const step = Math.abs(u.valToPos(1, "x", true) - u.valToPos(0, "x", true));
  const width = Math.round(Math.min(Math.max(0.66 * step, devicePixelRatio), 12 * devicePixelRatio));
  const tops = new Map();
  for (let rank = first; rank <= last; rank++) {
    const value = u.data[series][rank];
    if (value === null) continue;
    const x = Math.round(u.valToPos(u.data[0][rank], "x", true) - width / 2);
    tops.set(x, Math.min(tops.get(x) ?? foot, u.valToPos(value, "y", true)));
  }
  for (const [x, top] of tops) fill.rect(x, top, width, foot - top);
  return { fill, stroke: null, clip: null, flags: 1 };
}

const DIAMOND = [0, 5, 0, -5];

/** Threshold, selected layer, circles and names, above the lines. */
function decorate(u, graph) {
  const { ctx, bbox } = u;
  const unit = devicePixelRatio;
  const at = (rank) => u.valToPos(errorGraphs.xs[rank], "x", true);
  const heights = graph.heights[graph.main];
  const up = (rank) => u.valToPos(heights[rank], "y", true);
  const seen = (rank) => errorGraphs.xs[rank] >= errorGraphs.range[0] && errorGraphs.xs[rank] <= errorGraphs.range[1];
  ctx.save();
  ctx.font = `600 ${10.5 * unit}px system-ui, sans-serif`;
  [ctx.textAlign, ctx.textBaseline] = ["left", "alphabetic"];
  const taken = [];
  ctx.beginPath();
  ctx.rect(bbox.left, 0, bbox.width, bbox.top + bbox.height);
  ctx.clip();
  if (Number.isFinite(graph.line)) {
    const y = u.valToPos(graph.line, "y", true);
    stroke(ctx, ink("--chart-flag"), 1.3 * unit, [6 * unit, 4 * unit], [bbox.left, y, bbox.left + bbox.width, y]);
    taken.push([bbox.left, y - 2 * unit, bbox.left + bbox.width, y + 2 * unit]);
  }
  const chosen = selected === null ? undefined : errorGraphs.ranks.get(selected);
  if (chosen !== undefined && seen(chosen)) {
    stroke(ctx, ink("--accent"), 1.6 * unit, [], [at(chosen), bbox.top, at(chosen), bbox.top + bbox.height]);
    ctx.fillStyle = ink("--accent");
    ctx.fillRect(at(chosen) - 4 * unit, bbox.top - 6 * unit, 8 * unit, 6 * unit);
  }
  const cells = new Set();
  for (const rank of (graph.flagged ?? graph.born).filter(seen)) {
    const [x, y] = [at(rank), up(rank)];
    // Marks that would lie on each other are drawn once.
    if (taken.length < 200) taken.push([x - 4 * unit, y - 4 * unit, x + 4 * unit, y + 4 * unit]);
    const cell = `${Math.round(x / (5 * unit))} ${Math.round(y / (5 * unit))}`;
    if (cells.has(cell)) continue;
    cells.add(cell);
    ctx.strokeStyle = ctx.fillStyle = ink("--chart-flag");
    ctx.lineWidth = 1.6 * unit;
    ctx.beginPath();
    if (graph.origin) DIAMOND.forEach((dx, i) => ctx.lineTo(x + dx * unit, y + DIAMOND[3 - i] * unit));
    else ctx.arc(x, y, 4.5 * unit, 0, 2 * Math.PI);
    graph.origin ? ctx.fill() : ctx.stroke();
  }
  if (Number.isFinite(graph.line)) {
    const text = errorText(graph, graph.limit);
    const right = bbox.left + bbox.width - 2 * unit - ctx.measureText(text).width;
    taken.push(write(ctx, text, right, u.valToPos(graph.line, "y", true) - 4 * unit));
  }
  const worst = [...graph.named].filter((rank) => seen(rank) && heights[rank] !== null);
  if (!graph.origin) worst.sort((a, b) => graph.better * (heights[a] - heights[b]));
  nameLayers(ctx, worst.slice(0, 3 * GRAPH_NAMES), at, up, bbox, taken, unit);
  ctx.restore();
}

/** As many names as have room, the worst first. */
function nameLayers(ctx, ranks, at, up, bbox, taken, unit) {
  let written = 0;
  for (const rank of ranks) {
    if (written === GRAPH_NAMES) return;
    const text = shortName(layers.label(errorGraphs.order[rank]));
    const width = ctx.measureText(text).width;
    const x = Math.min(Math.max(at(rank) - width / 2, bbox.left + 2 * unit), bbox.left + bbox.width - width - 2 * unit);
    const free = [up(rank) - 8 * unit, up(rank) + 16 * unit].find((y) => {
      if (y - 9 * unit < 0 || y > bbox.top + bbox.height) return false;
      const box = [x, y - 10 * unit, x + width, y + 2 * unit];
      return taken.every((other) => box[0] > other[2] || box[2] < other[0] || box[1] > other[3] || box[3] < other[1]);
    });
    if (free === undefined) continue;
    taken.push(write(ctx, text, x, free));
    written += 1;
  }
}

/** Text on a halo of the paper's colour, so that lines do not cross it; the box that it takes. */
function write(ctx, text, x, y) {
  const unit = devicePixelRatio;
  ctx.lineWidth = 3 * unit;
  ctx.lineJoin = "round";
  ctx.setLineDash([]);
  ctx.strokeStyle = ink("--card");
  ctx.strokeText(text, x, y);
  ctx.fillStyle = ink("--chart-flag");
  ctx.fillText(text, x, y);
  return [x, y - 10 * unit, x + ctx.measureText(text).width, y + 2 * unit];
}

function stroke(ctx, paint, width, dash, [x1, y1, x2, y2]) {
  ctx.strokeStyle = paint;
  ctx.lineWidth = width;
  ctx.setLineDash(dash);
  ctx.beginPath();
  ctx.moveTo(x1, y1);
  ctx.lineTo(x2, y2);
  ctx.stroke();
  ctx.setLineDash([]);
}

/** Layers differ in the end of their names. */
const shortName = (name) => (name.length > 26 ? `…${name.slice(-25)}` : name);

function fitGraphs() {
  for (const { plot, place, height } of errorGraphs.list) {
    const width = place?.clientWidth;
    if (plot && width && plot.width !== width) plot.setSize({ width, height });
  }
}

// Pointing, zooming, keys

/** Show all graphs from one layer to another. */
function zoomGraphs([from, to]) {
  const [first, last] = errorGraphs.full;
  const room = Math.max(0, 3 - (to - from)) / 2;
  const range = [Math.max(from - room, first), Math.min(to + room, last)];
  errorGraphs.range = range[0] <= first && range[1] >= last ? errorGraphs.full : range;
  errorGraphs.reset.disabled = errorGraphs.range === errorGraphs.full;
  const [min, max] = errorGraphs.range;
  for (const { plot } of errorGraphs.list) plot?.setScale("x", { min, max });
}

/** Move the cursor of all graphs to a rank, or away with null; the tooltip stands in the graph that is pointed at. */
function pointAt(rank, graph, again = false) {
  rank ??= null;
  if (graph === null && errorGraphs.notifying) return;
  const same = rank === errorGraphs.cursor && (graph ?? null) === errorGraphs.pointed;
  if (same && !again) return;
  Object.assign(errorGraphs, { cursor: rank, pointed: graph ?? null });
  for (const other of errorGraphs.list) {
    if (!other.plot) continue;
    const left = rank === null ? -10 : other.plot.valToPos(errorGraphs.xs[rank], "x");
    const inside = left >= 0 && left <= other.plot.bbox.width / devicePixelRatio;
    other.plot.setCursor({ left: inside ? left : -10, top: inside ? 10 : -10 }, false);
    other.readout.textContent = rank === null ? other.summary : readout(other, rank);
    other.readout.classList.toggle("flag", rank !== null && Boolean(other.flaggedSet?.has(rank)));
  }
  showTip();
  if (!graph) return;
  errorGraphs.notifying = true;
  hover(rank === null ? null : errorGraphs.order[rank]);
  errorGraphs.notifying = false;
}

const errorText = (graph, value) =>
  graph.shown === "sqnr_db" && value !== null ? `${formatLevel(value)} dB` : formatNumber(value);

/** One value in short: "17.3 dB ○ below 20.0 dB". */
function readout(graph, rank) {
  const value = errorText(graph, graph.values[graph.main][rank]);
  if (graph.origin) return `${value}, ${graph.origin[rank] ?? "origin not measured"}`;
  if (!graph.flaggedSet.has(rank)) return value;
  return `${value} ○ ${errorGraphs.local ? "accumulated " : ""}${graph.over}`;
}

function tipLines(graph, rank) {
  const { values } = graph;
  const accumulated = `accumulated ${errorText(graph, values.accumulated[rank])}`;
  const threshold = Number.isFinite(graph.limit) ? `threshold ${errorText(graph, graph.limit)}` : graph.over;
  if (graph.origin) {
    const added = values.added[rank] ?? values.own[rank];
    const adds = added === Infinity ? "adds nothing" : `adds ${errorText(graph, added)}`;
    return [graph.origin[rank] ?? "origin not measured", adds, accumulated, threshold];
  }
  const calm = Number.isFinite(graph.limit) ? `${threshold}, not flagged` : "not flagged";
  const word = graph.flaggedSet.has(rank) ? `○ flagged: ${graph.over}` : calm;
  return [accumulated, `rounding ${errorText(graph, values.rounding[rank])}`, word];
}

function showTip() {
  const { tip, pointed: graph, cursor: rank, root } = errorGraphs;
  tip.hidden = !graph?.plot || rank === null;
  if (tip.hidden) return;
  const position = errorGraphs.order[rank];
  const line = (text) => element("div", { class: /^○|^born/.test(text) ? "flag" : null }, text);
  const lines = tipLines(graph, rank).map(line);
  tip.replaceChildren(element("b", {}, `${errorGraphs.xs[rank]} ${layers.label(position)}`), ...lines);
  const [over, frame] = [graph.plot.over.getBoundingClientRect(), root.getBoundingClientRect()];
  const x = over.left - frame.left + graph.plot.valToPos(errorGraphs.xs[rank], "x");
  const left = x + 14 + tip.offsetWidth > frame.width ? x - 14 - tip.offsetWidth : x + 14;
  tip.style.left = `${Math.max(left, 0)}px`;
  tip.style.top = `${over.top - frame.top + 8}px`;
}

/** Left and right go from layer to layer, Home and End to the ends, Enter selects, + and - zoom, Escape lets go. */
function graphKey(event, graph) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const last = errorGraphs.xs.length - 1;
  const now = errorGraphs.cursor ?? (selected === null ? null : errorGraphs.ranks.get(selected));
  const moves = { ArrowLeft: (now ?? 1) - 1, ArrowRight: (now ?? -1) + 1, Home: 0, End: last };
  if (event.key in moves) moveCursor(Math.min(Math.max(moves[event.key], 0), last), graph);
  else if (event.key === "Enter" && errorGraphs.cursor !== null) select(errorGraphs.order[errorGraphs.cursor]);
  else if (event.key === "+" || event.key === "-") zoomBy(event.key === "+" ? 0.5 : 2);
  else if (event.key === "Escape" && errorGraphs.cursor !== null) pointAt(null, graph);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

function moveCursor(rank, graph) {
  const [from, to] = errorGraphs.range;
  const x = errorGraphs.xs[rank];
  const shift = x < from ? x - 0.5 - from : x > to ? x + 0.5 - to : 0;
  if (shift) zoomGraphs([from + shift, to + shift]);
  pointAt(rank, graph, true);
  announce(`${layers.label(errorGraphs.order[rank])}: ${tipLines(graph, rank).join(", ")}`);
}

/** Zoom about the layer that is pointed at, else about the middle. */
function zoomBy(factor) {
  const [from, to] = errorGraphs.range;
  const centre = errorGraphs.cursor === null ? (from + to) / 2 : errorGraphs.xs[errorGraphs.cursor];
  zoomGraphs([centre - (centre - from) * factor, centre + (to - centre) * factor]);
}
