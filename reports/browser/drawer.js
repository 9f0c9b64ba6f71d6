// One layer from near: what is wrong with it, its distributions and channels, its quantizers, neighbours and facts.

const DRAWER_ROLES = ["representative", "validation"];
const DRAWER_SIGNS = { gt: ">", ge: "≥", lt: "<", le: "≤" };
const DRAWER_PLOT = { width: 320, height: 168, left: 44, right: 6, top: 10, bottom: 20 };
/** Bins of each channel's histogram; see engine/case/records.py. */
const DRAWER_CHANNEL_BINS = 32;
const drawer = { root: document.getElementById("drawer"), from: null, byIndex: false };

/** A name cut in the middle: whole names stand among the facts. */
function drawerName(text, limit = 90) {
  const half = Math.floor((limit - 1) / 2);
  return text.length > limit ? `${text.slice(0, half)}…${text.slice(-half)}` : text;
}

const drawerFact = (key) => layers.value(key, selected);
const drawerLevel = (value) => (value === null ? NOT_MEASURED : `${formatLevel(value)} dB`);
const drawerKey = (key) => element("code", { title: layers.columns.get(key)?.description }, key);

/** A table: `heads`, and rows whose first cell names them. */
function drawerTable(caption, heads, rows, kind = "") {
  const cells = ([first, ...others]) =>
    element("tr", {}, element("th", { scope: "row" }, first), ...others.map((cell) => element("td", {}, cell)));
  return element(
    "table",
    { class: `dr-table ${kind}` },
    element("caption", { class: "vh" }, caption),
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows.map(cells)),
  );
}

const drawerPart = (title, ...content) =>
  content.some(Boolean) ? element("section", {}, element("h3", {}, title), ...content) : null;

// Pictures

/** Round numbers between two, about as many as asked for. */
function drawerTicks(start, stop, wanted = 5) {
  const rough = (stop - start) / wanted;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * unit).find((n) => n >= rough) ?? rough;
  const ticks = [];
  for (let n = Math.ceil(start / step); n * step <= stop * (1 + 1e-9) && ticks.length < 12; n++) ticks.push(n * step);
  return ticks;
}

/** A figure that describes what is under the pointer: `describe(x)` gets the place across the plot, 0 to 1. */
function drawerFigure(title, summary, note, describe, ...marks) {
  const { width, height, left, right } = DRAWER_PLOT;
  const caption = element("figcaption", {}, element("b", {}, title), element("span", { class: "dr-note" }, note));
  const picture = drawn(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${summary}`, class: "dr-plot" },
    ...marks,
  );
  const say = (text) => (caption.lastChild.textContent = text);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * width;
    say(describe((x - left) / (width - left - right)) ?? note);
  });
  picture.addEventListener("pointerleave", () => say(note));
  return element("figure", {}, caption, picture);
}

/** Places on the plot: functions from values to coordinates. */
function drawerScales(start, stop, low, high) {
  const [x0, x1] = [DRAWER_PLOT.left, DRAWER_PLOT.width - DRAWER_PLOT.right];
  const [y0, y1] = [DRAWER_PLOT.height - DRAWER_PLOT.bottom, DRAWER_PLOT.top];
  return {
    x: (value) => x0 + ((value - start) / (stop - start)) * (x1 - x0),
    y: (value) => y0 + ((value - low) / (high - low)) * (y1 - y0),
    ...{ x0, x1, y0, y1 },
  };
}

const drawerText = (x, y, anchor, text) => drawn("text", { x, y, "text-anchor": anchor, class: "dr-text" }, text);
const drawerLine = (x1, y1, x2, y2, kind) => drawn("line", { x1, y1, x2, y2, class: kind });
const drawerBottom = ({ x0, x1, y0 }) => drawerLine(x0, y0, x1, y0, "dr-axis");

/** The marks of the left axis: a line across the plot and a text for each value. */
const drawerSide = ({ y, x0, x1 }, values, text) =>
  values.flatMap((v) => [drawerLine(x0, y(v), x1, y(v), "dr-grid"), drawerText(x0 - 4, y(v) + 3.5, "end", text(v))]);

function readSpread(written) {
  if (!written) return null;
  const [start, stop, low, high, clipped, floats, quantized] = written;
  return { start, stop, low, high, clipped, floats, quantized };
}

/** What all of the spreads and, unless they are far wider, their quantizers' ranges span. */
function spannedBy(spreads) {
  const known = spreads.filter(Boolean);
  const start = Math.min(...known.map((s) => s.start));
  const stop = Math.max(...known.map((s) => s.stop));
  const [least, most] = [start - (stop - start), stop + (stop - start)];
  const ends = known.flatMap((s) => [s.low, s.high]).filter((end) => end !== null && end >= least && end <= most);
  return [Math.min(start, ...ends), Math.max(stop, ...ends)];
}

/** Float values as bars, deployed ones as an outline over them; clipped bars in red, the range dashed. */
function spreadFigure(title, spread, [start, stop], scale) {
  const bins = spread.floats.length;
  const width = (spread.stop - spread.start) / bins;
  const edge = (bin) => spread.start + bin * width;
  const sum = (counts) => counts.reduce((a, b) => a + b, 0) || 1;
  const shared = spread.quantized && Math.abs(sum(spread.quantized) / sum(spread.floats) - 1) > 0.02;
  const [per, perQuantized] = shared ? [sum(spread.floats), sum(spread.quantized)] : [1, 1];
  const heights = [...spread.floats.map((n) => n / per), ...(spread.quantized ?? []).map((n) => n / perQuantized)];
  const top = Math.log10(Math.max(...heights));
  const floor = Math.min(Math.log10(Math.min(...heights.filter(Boolean))) - 0.25, top - 1);
  const plot = drawerScales(start, stop, floor, top + 0.05);
  // As the share is counted: beyond the range by more than half a step.
  const half = (scale ?? 0) / 2;
  const isOut = (bin) => {
    const middle = edge(bin) + width / 2;
    return (spread.low !== null && middle < spread.low - half) || (spread.high !== null && middle > spread.high + half);
  };
  const level = (share) => plot.y(share > 0 ? Math.log10(share) : floor);
  const bars = spread.floats.map((count, bin) => {
    if (!count) return null;
    const y = level(count / per);
    const wide = Math.max(plot.x(edge(bin + 1)) - plot.x(edge(bin)) - 0.4, 0.6);
    const kind = isOut(bin) ? "dr-bar dr-out" : "dr-bar";
    const [x, height] = [plot.x(edge(bin)), plot.y0 - y];
    return drawn("rect", { x, y, width: wide, height, class: kind, "data-count": count });
  });
  const steps = (spread.quantized ?? []).map(
    (count, bin) => `V${level(count / perQuantized)}H${plot.x(edge(bin + 1))}`,
  );
  const outline = `M${plot.x(edge(0))} ${plot.y0}${steps.join("")}V${plot.y0}`;
  const ends = [spread.low, spread.high].filter((end) => end !== null);
  const inside = ends.filter((end) => end >= start && end <= stop);
  const range = ends.length ? `range ${formatNumber(spread.low)} … ${formatNumber(spread.high)}` : "no single range";
  const share = spread.clipped === null ? "" : `, ${formatNumber(100 * spread.clipped)} % clipped`;
  const powers = [];
  const every = Math.ceil((top - floor) / 4);
  for (let power = Math.ceil(floor); power <= top; power += every) powers.push(power);
  const percentText = (power) => `${power < -4 ? `1e${power + 2}` : formatNumber(100 * 10 ** power)}%`;
  const countText = (power) => (shared ? percentText(power) : formatNumber(10 ** power));
  const levels = scale ? (spread.high - spread.low) / scale : Infinity;
  const codes = levels <= 64 ? Array.from({ length: Math.round(levels) + 1 }, (_, i) => spread.low + i * scale) : [];
  const drawnCodes = codes.filter((code) => code >= start && code <= stop).map(plot.x);
  const describe = (across) => {
    const bin = Math.floor((start + across * (stop - start) - spread.start) / width);
    if (!(bin >= 0 && bin < bins)) return null;
    const share = (counts) => `${formatNumber((100 * counts[bin]) / sum(counts))} %`;
    const both = `float ${share(spread.floats)}${spread.quantized ? `, quantized ${share(spread.quantized)}` : ""}`;
    return `${formatNumber(edge(bin))} … ${formatNumber(edge(bin + 1))}: ${both}`;
  };
  return drawerFigure(
    title,
    `values from ${formatNumber(spread.start)} to ${formatNumber(spread.stop)}, ${range}${share}`,
    range + share,
    describe,
    ...drawerSide(plot, powers, countText),
    ...bars.filter(Boolean),
    ...(steps.length ? [drawn("path", { d: outline, class: "dr-step" })] : []),
    drawerBottom(plot),
    ...drawnCodes.map((x) => drawerLine(x, plot.y0, x, plot.y0 + 4, "dr-axis")),
    ...drawerTicks(start, stop).map((v) => drawerText(plot.x(v), DRAWER_PLOT.height - 6, "middle", formatNumber(v))),
    ...inside.map((end) => drawerLine(plot.x(end), plot.y1 - 4, plot.x(end), plot.y0, "dr-range")),
  );
}

function readChannels(written) {
  if (!written) return null;
  const [total, indices, lows, highs, levels, storedLows, storedHighs] = written;
  const rows = indices.map((index, i) => ({
    // What is not finite is written as text.
    ...{ index, low: lows[i], high: highs[i], sqnr: levels[i] === null ? null : Number(levels[i]) },
    ...(storedLows ? { storedLow: storedLows[i], storedHigh: storedHighs[i] } : {}),
  }));
  return { total, rows };
}

/** What all channels span, 0 included. */
function spannedByChannels(strips) {
  const rows = strips.flatMap((strip) => strip?.rows ?? []);
  const ends = rows.flatMap((row) => [row.low, row.high, row.storedLow ?? 0, row.storedHigh ?? 0]);
  return [Math.min(0, ...ends), Math.max(0, ...ends)];
}

/** Each channel a bar from its smallest to its largest value, ends of the stored values marked. */
function channelsFigure(title, { total, rows }, [bottom, top], low, high, limit) {
  const ordered = drawer.byIndex ? [...rows].sort((a, b) => a.index - b.index) : rows;
  const plot = drawerScales(0, rows.length, bottom, top > bottom ? top : bottom + 1);
  const wide = (plot.x1 - plot.x0) / rows.length;
  const isBad = (row) => limit !== null && row.sqnr !== null && row.sqnr < limit;
  const bars = ordered.flatMap((row, i) => {
    const [x, gap] = [plot.x(i), Math.min(wide * 0.25, 1.5)];
    const tall = Math.max(plot.y(row.low) - plot.y(row.high), 1);
    const kind = isBad(row) ? "dr-bar dr-out" : "dr-bar";
    const bar = drawn("rect", { x, y: plot.y(row.high), width: wide - gap, height: tall, class: kind });
    const ends = row.storedLow === undefined ? [] : [row.storedLow, row.storedHigh];
    return [bar, ...ends.map((end) => drawerLine(x, plot.y(end), x + wide - gap, plot.y(end), "dr-end"))];
  });
  const bad = rows.filter(isBad).length;
  const more = total > rows.length ? `${rows.length} worst, ${total - rows.length} more` : `all ${total}`;
  const note = `${more}${bad ? `, ${bad} below ${formatLevel(limit)} dB` : ""}`;
  const describe = (across) => {
    const row = ordered[Math.floor(across * rows.length)];
    if (!row) return null;
    const span = (low, high) => `${formatNumber(low)} … ${formatNumber(high)}`;
    const stored = row.storedLow === undefined ? "" : `, stored ${span(row.storedLow, row.storedHigh)}`;
    return `channel ${row.index}: ${span(row.low, row.high)}${stored}, ${drawerLevel(row.sqnr)}`;
  };
  const worst = rows.length ? `; the worst is channel ${rows[0].index} with ${drawerLevel(rows[0].sqnr)}` : "";
  const ends = [low, high].filter((end) => end !== null && end >= bottom && end <= top);
  return drawerFigure(
    title,
    note + worst,
    note,
    describe,
    ...drawerSide(plot, drawerTicks(bottom, top, 4), formatNumber),
    ...bars,
    ...ends.map((end) => drawerLine(plot.x0, plot.y(end), plot.x1, plot.y(end), "dr-range")),
    drawerBottom(plot),
    drawerText(plot.x0, DRAWER_PLOT.height - 6, "start", drawer.byIndex ? "lowest index" : "worst"),
    drawerText(plot.x1, DRAWER_PLOT.height - 6, "end", drawer.byIndex ? "highest index" : "best of these"),
  );
}

function readHistograms(written, channels) {
  if (!written || !channels) return null;
  const [start, stop, bytes] = written;
  const heights = bytes.map((height) => height / 255);
  const bins = DRAWER_CHANNEL_BINS;
  const rows = channels.rows
    .slice(0, heights.length / bins)
    .map((row, i) => ({ ...row, heights: heights.slice(i * bins, (i + 1) * bins) }));
  return { start, stop, total: channels.total, rows };
}

/** Each channel a histogram that lies on its side: values upwards, counts to the right, of its own fullest bin. */
function histogramsFigure(title, { start, stop, total, rows }) {
  const ordered = drawer.byIndex ? [...rows].sort((a, b) => a.index - b.index) : rows;
  const plot = drawerScales(0, rows.length, start, stop);
  const wide = (plot.x1 - plot.x0) / rows.length;
  const edge = (bin) => plot.y(start + (bin * (stop - start)) / DRAWER_CHANNEL_BINS);
  const outlines = ordered.map((row, i) => {
    const x = plot.x(i);
    const steps = row.heights.map((height, bin) => `H${(x + height * wide * 0.92).toFixed(1)}V${edge(bin + 1).toFixed(1)}`);
    const outline = `M${x.toFixed(1)} ${edge(0).toFixed(1)}${steps.join("")}H${x.toFixed(1)}Z`;
    return drawn("path", { d: outline, class: "dr-bar", "data-channel": row.index });
  });
  const note = total > rows.length ? `${rows.length} worst, ${total - rows.length} more` : `all ${total}`;
  const describe = (across) => {
    const row = ordered[Math.floor(across * rows.length)];
    if (!row) return null;
    const used = row.heights.filter(Boolean).length;
    const span = `${formatNumber(row.low)} … ${formatNumber(row.high)}`;
    return `channel ${row.index}: ${span}, ${used} of ${DRAWER_CHANNEL_BINS} bins used, ${drawerLevel(row.sqnr)}`;
  };
  return drawerFigure(
    title,
    note,
    note,
    describe,
    ...drawerSide(plot, drawerTicks(start, stop, 4), formatNumber),
    ...outlines,
    drawerBottom(plot),
    drawerText(plot.x0, DRAWER_PLOT.height - 6, "start", drawer.byIndex ? "lowest index" : "worst"),
    drawerText(plot.x1, DRAWER_PLOT.height - 6, "end", drawer.byIndex ? "highest index" : "best of these"),
  );
}

function drawerPictures(detail) {
  const spreads = (detail.spreads ?? []).map(readSpread);
  const channels = (detail.channels ?? []).map(readChannels);
  const weights = readSpread(detail.weights);
  const stored = readChannels(detail.weight_channels);
  const found = [];
  const limit = section("errors").limits.sqnr_db ?? null;
  const span = spreads.some(Boolean) && spannedBy(spreads);
  const across = spannedByChannels(channels);
  const scale = (which) => drawerFact(`${which}.quantizer.scale`);
  const [low, high] = [drawerFact("output.quantizer.low"), drawerFact("output.quantizer.high")];
  DRAWER_ROLES.forEach((role, i) => {
    const [spread, strip] = [spreads[i], channels[i]];
    if (spread) found.push([i, spreadFigure(`output, ${role}`, spread, span, scale("output"))]);
    if (strip) found.push([i + 2, channelsFigure(`channels, ${role}`, strip, across, low, high, limit)]);
  });
  if (weights) found.push([4, spreadFigure("weights", weights, spannedBy([weights]), scale("weight"))]);
  const own = spannedByChannels([stored]);
  if (stored) found.push([5, channelsFigure("channels of the weights", stored, own, null, null, null)]);
  const shapes = readHistograms(detail.weight_histograms, stored);
  if (shapes) found.push([6, histogramsFigure("a histogram for each channel of the weights", shapes)]);
  return found.sort((a, b) => a[0] - b[0]).map(([, figure]) => figure);
}

function distributions(detail) {
  if (!detail.spreads && !detail.weights && !detail.channels) {
    const { shown } = section("details");
    const none = runningInputText() === null ? "No values of this layer were measured." : "No values were kept of it.";
    if (shown === layers.count) return element("p", { class: "muted" }, none);
    const ask = element("code", {}, `quantmedic show CASE --layer ${drawerName(layers.label(selected))}`);
    const held = `This page holds the distributions of ${shown} layers only. `;
    return element("p", { class: "muted" }, held, ask, " shows the others.");
  }
  const figures = element("div", { class: "dr-figures" }, ...drawerPictures(detail));
  const order = element("button", { type: "button", "aria-pressed": String(drawer.byIndex) }, "channels by index");
  order.addEventListener("click", () => {
    drawer.byIndex = !drawer.byIndex;
    order.setAttribute("aria-pressed", String(drawer.byIndex));
    figures.replaceChildren(...drawerPictures(detail));
  });
  const limit = section("errors").limits.sqnr_db ?? null;
  const key = (kind, text) => element("span", {}, element("i", { class: `dr-key ${kind}` }), text);
  const legend = element(
    "p",
    { class: "dr-legend" },
    ...[key("dr-bar", "float"), key("dr-step", "quantized"), key("dr-range", "quantizer's range")],
    key("dr-out", limit === null ? "clipped" : `clipped, or below ${formatLevel(limit)} dB`),
    detail.channels || detail.weight_channels ? order : null,
  );
  return element("div", {}, legend, figures);
}

// Words

function bitsText(output, weights) {
  if (output !== null) return `${output} bits`;
  return weights === null ? "not quantized" : `weights in ${weights} bits`;
}

/** What was measured of the inputs of a layer of a language model; null where nothing was. */
function runningInputText() {
  const [noise, clipped, scale, needed] = ["noise", "clipped", "scale", "scale_needed"].map((key) =>
    drawerFact(`running_input.${key}`),
  );
  if (noise === null) return null;
  const level = noise > 0 ? `keep ${formatLevel(-10 * Math.log10(noise))} dB` : "are as in float";
  const cut = clipped === null ? "" : `, ${formatNumber(100 * clipped)} % of them are cut off`;
  const ratio = drawerFact("running_input.scale_ratio");
  const off = ratio < 1 ? `${formatNumber(1 / ratio)} times too small` : `${formatNumber(ratio)} times as large`;
  const times = ratio === null ? "" : ` (${off})`;
  const fits = scale === null ? "" : `; their stored scale is ${formatNumber(scale)}, these texts need ${formatNumber(needed)}${times}`;
  return `Its inputs, quantized while the model ran, ${level}${cut}${fits}.`;
}

function flagText() {
  if (drawerFact("degraded") === null) return runningInputText() ?? "Its error was not measured.";
  const within = "Its error is within the thresholds";
  if (!layers.isDegraded(selected)) return drawerFlagged(selected) ? `${within}, yet a rule fired.` : `${within}.`;
  const born = { true: "It is born here: no input is degraded.", false: "An input is degraded already." };
  const [whole, worst] = [`output.${section("meta").role}.accumulated.sqnr_db`, "worst_output_sqnr_db"].map(drawerFact);
  const column = worst !== null && worst < whole ? `the worst column of its output has ${formatLevel(worst)} dB` : null;
  return `Degraded: ${column ?? "its error is over a threshold"}. ${born[drawerFact("born")] ?? ""}`;
}

function findingList(findings) {
  const { rules } = section("details");
  const items = findings.map(([rule, message, by]) => {
    const [name, severity, cause, card] = rules[rule];
    const code = by ?? card;
    const title = code ? element("a", { href: `#cause-${code}` }, `${rule} ${name}`) : `${rule} ${name}`;
    const explained = by ? element("span", { class: "muted" }, ` explained by ${by}`) : null;
    const head = element("span", { class: `chip chip-${severity}`, title: `cause: ${cause}` }, severity);
    return element("li", {}, head, " ", title, explained, element("div", {}, message));
  });
  return items.length ? element("ul", { class: "dr-findings" }, ...items) : null;
}

function errorTable() {
  const kinds = { rounding: "local", step: "operator alone", accumulated: "accumulated" };
  const labels = { sqnr_db: "SQNR, dB", worst_channel_sqnr_db: "worst channel, dB", cosine: "cosine", mse: "MSE" };
  const value = (role, kind, key) => drawerFact(`output.${role}.${kind}.${key}`);
  const pairs = DRAWER_ROLES.flatMap((role) => Object.keys(kinds).map((kind) => [role, kind]));
  const keys = Object.keys(labels).filter((key) => pairs.some(([role, kind]) => value(role, kind, key) !== null));
  const text = (key, number) => formatValue(number, { unit: key.endsWith("db") ? "dB" : null });
  const rows = pairs
    .filter(([role, kind]) => keys.some((key) => value(role, kind, key) !== null))
    .map(([role, kind]) => [`${kinds[kind]}, ${role}`, ...keys.map((key) => text(key, value(role, kind, key)))]);
  const heads = ["error", ...keys.map((key) => labels[key])];
  return rows.length ? drawerTable("Errors of the output", heads, rows, "dr-numbers") : null;
}

function quantizerTable() {
  const [owners, read] = [["output", "weight"], (which) => (key) => drawerFact(`${which}.quantizer.${key}`)];
  const word = (value, yes, no) => (value === null ? null : value ? yes : no);
  const joined = (...texts) => texts.filter((text) => text !== null).join(", ");
  const rows = Object.entries({
    scale: (of) => of("scale") !== null && formatNumber(of("scale")),
    "zero point": (of) => of("zero_point") !== null && String(of("zero_point")),
    codes: (of) => joined(of("bits") && `${of("bits")} bits`, word(of("signed"), "signed", "unsigned")),
    grid: (of) => word(of("symmetric"), "symmetric", "asymmetric"),
    granularity: (of) => of("granularity")?.replace("_", " "),
    axis: (of) => of("axis") !== null && String(of("axis")),
    range: (of) => of("low") !== null && `${formatNumber(of("low"))} … ${formatNumber(of("high"))}`,
  }).map(([name, text]) => [name, ...owners.map((which) => text(read(which)))]);
  const known = [1, 2].filter((i) => rows.some((row) => row[i]));
  const picked = (row) => [row[0], ...known.map((i) => row[i] || "–")];
  const kept = rows.filter((row) => known.some((i) => row[i])).map(picked);
  return known.length ? drawerTable("Quantizers", picked(["quantizer of", "output", "weights"]), kept) : null;
}

function drawerNeighbours(title, positions) {
  const link = (position) => {
    if (position < 0) return element("span", { class: "muted" }, "input of the network");
    const point = { onmouseenter: () => hover(position), onmouseleave: () => hover(null) };
    const attributes = { type: "button", onclick: () => select(position), ...point };
    return element("button", attributes, drawerName(layers.label(position), 60));
  };
  const links = positions.length ? positions.map(link) : ["none"];
  return element("p", { class: "dr-links" }, element("b", {}, title), ...links);
}

/** Layers that read each layer. */
function drawerReaders(position) {
  drawer.readers ??= Object.entries(section("details").layers).reduce((found, [reader, { inputs = [] }]) => {
    for (const writer of inputs) found.set(writer, [...(found.get(writer) ?? []), Number(reader)]);
    return found;
  }, new Map());
  return drawer.readers.get(position) ?? [];
}

/** All facts, written when they are asked for. */
function factList() {
  const folded = element("details", {}, element("summary", {}, "All facts of this layer"));
  folded.addEventListener("toggle", () => {
    if (folded.children.length > 1) return;
    const known = [...layers.columns.values()].filter((column) => drawerFact(column.key) !== null);
    const name = ({ key, description }) =>
      element("span", {}, element("code", {}, key), element("small", {}, description ?? ""));
    const rows = known.map((column) => [name(column), formatValue(drawerFact(column.key), column)]);
    folded.append(drawerTable("Facts", ["fact", "value"], rows));
  });
  return folded;
}

// The drawer itself

const drawerFlagged = (position) => layers.isDegraded(position) || layers.value("findings", position)?.length > 0;

function drawerNextFlagged() {
  for (let i = 1; i < layers.count; i++) {
    const position = (selected + i) % layers.count;
    if (drawerFlagged(position)) return position;
  }
  return null;
}

function drawLayer() {
  const detail = section("details").layers[selected] ?? {};
  const unflagged = runningInputText() === null ? "Not flagged" : "What was measured";
  const flag = drawerFlagged(selected) ? "Why flagged" : unflagged;
  const readers = drawerReaders(selected);
  const go = (id, text, label, position) => {
    const disabled = position === null || position < 0 || position >= layers.count;
    const attributes = { type: "button", id, "aria-label": label, disabled, onclick: () => select(position) };
    return element("button", attributes, text);
  };
  const bits = drawerFact("output.quantizer.bits");
  const executed = drawerFact("executed_as");
  const chips = [
    drawerFact("op_type"),
    bitsText(bits, layers.value("weight.quantizer.bits", selected)),
    executed && `executed as ${executed}`,
    `layer ${selected + 1} of ${layers.count}`,
  ].flatMap((text) => (text ? element("span", { class: "chip" }, text) : []));
  const [floatName, otherName] = [drawerFact("float_name"), drawerFact("quantized_name")];
  const attributes = Object.entries(section("graph").attributes?.[selected] ?? {});
  const parts = [
    drawerPart(flag, element("p", {}, flagText()), findingList(detail.findings ?? [])),
    drawerPart("Errors", errorTable()),
    drawerPart("Distributions", distributions(detail)),
    drawerPart("Quantizers", quantizerTable()),
    drawerPart("Neighbours", drawerNeighbours("reads", detail.inputs ?? []), drawerNeighbours("read by", readers)),
    drawerPart("Attributes", attributes.length ? drawerTable("Attributes", ["attribute", "value"], attributes) : null),
    factList(),
  ];
  const escape = element("kbd", {}, "Esc");
  const bar = element(
    "div",
    { class: "dr-go" },
    go("drawer-back", "‹", "previous layer", selected - 1),
    go("drawer-on", "›", "next layer", selected + 1),
    go("drawer-flagged", "next flagged", null, drawerNextFlagged()),
    element("button", { type: "button", id: "drawer-close", onclick: () => select(null) }, "close ", escape),
  );
  const head = element(
    "div",
    { class: "dr-head" },
    element("h2", { id: "drawer-title", tabindex: -1 }, drawerName(layers.label(selected), 160)),
    otherName && floatName && otherName !== floatName
      ? element("p", { class: "muted dr-name" }, "quantized ", element("code", {}, drawerName(otherName, 160)))
      : null,
    element("p", { class: "dr-chips" }, ...chips),
  );
  drawer.root.replaceChildren(bar, head, ...parts.filter(Boolean));
}

function openDrawer() {
  const was = drawer.root.contains(document.activeElement) ? document.activeElement.id : null;
  const opening = drawer.root.hidden;
  if (opening) drawer.from = document.activeElement;
  drawer.root.hidden = false;
  drawLayer();
  drawer.root.scrollTop = 0;
  // Who steps through the layers goes on stepping; who was elsewhere stays there once it is open.
  const again = was && document.getElementById(was);
  if (again && !again.disabled) again.focus();
  else if (opening || was !== null) document.getElementById("drawer-title").focus({ preventScroll: true });
}

function closeDrawer() {
  if (drawer.root.hidden) return;
  const inside = drawer.root.contains(document.activeElement);
  drawer.root.hidden = true;
  drawer.root.replaceChildren();
  // Going back takes the focus from what it closes before this runs.
  const lost = document.activeElement === document.body;
  if ((inside || lost) && drawer.from?.isConnected) drawer.from.focus({ preventScroll: true });
}

on("select", (position) => (position === null ? closeDrawer() : openDrawer()));
drawer.root?.setAttribute("aria-labelledby", "drawer-title");
addEventListener("keydown", (event) => {
  // In a search, Escape empties the search.
  if (event.key !== "Escape" || (event.target.type === "search" && event.target.value)) return;
  if (selected !== null && !document.querySelector("dialog[open]")) select(null);
});
