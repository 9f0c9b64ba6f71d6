// The graph of the model: boxes for layers and for groups of layers that fold, placed by a worker (layout.js).

/** Boxes seen at first and at most, milliseconds until one may cancel, and sizes of boxes. */
const GRAPH = { first: 40, most: 300, patience: 2500, height: 38, letter: 6.65 };

/**
 * What boxes are coloured by: the column, and the fixed limits of the ramp's steps from harmless to bad. A layer that
 * holds the columns of a network output is as bad as the worst of these (`least`).
 */
const GRAPH_COLOURS = [
  {
    name: "accumulated",
    column: "output.ROLE.accumulated.sqnr_db",
    least: "worst_output_sqnr_db",
    says: "SQNR of all errors up to this layer; at an output, of its worst column",
  },
  { name: "local", column: "output.ROLE.rounding.sqnr_db", says: "SQNR of rounding this output alone" },
  {
    name: "worst channel",
    column: "output.ROLE.accumulated.worst_channel_sqnr_db",
    least: "worst_output_sqnr_db",
    says: "SQNR of the worst channel",
  },
  { name: "bits", column: "output.quantizer.bits", says: "output", unit: "bits", stops: [16, 12, 8, 6, 4, 2] },
  { name: "time", column: "time_share", says: "share of the time", unit: "%", stops: [0.1, 0.5, 1, 2, 5, 10] },
].map((mode) => ({ unit: "dB", stops: [40, 30, 25, 20, 15, 10], ...mode }));

function graphCount(number, word) {
  return `${number} ${word}${number === 1 ? "" : "s"}`;
}

/** Address of the worker's program, which the page carries compressed. */
async function layoutProgram() {
  return URL.createObjectURL(new Blob([await decompress(document.getElementById("layout-worker").textContent)]));
}

/** Let the worker place the boxes: a promise that fails where it cannot start, gives up or `stop` is called. */
function placedByWorker(request) {
  const job = {};
  job.places = new Promise((resolve, reject) => {
    let worker, address;
    const end = (settle, value) => {
      worker?.terminate();
      URL.revokeObjectURL(address);
      settle(value);
      job.over = true;
    };
    job.stop = () => end(reject, new Error("cancelled"));
    const start = (program) => {
      if (job.over) return URL.revokeObjectURL(program);
      address = program;
      worker = new Worker(address);
      worker.onerror = (event) => {
        event.preventDefault();
        end(reject, new Error("this browser does not run the program that places them"));
      };
      worker.onmessage = ({ data }) => (data.failure ? end(reject, new Error(data.failure)) : end(resolve, data));
      worker.postMessage(request);
    };
    layoutProgram().then(start).catch((error) => end(reject, error));
  });
  return job;
}

/** The same answer without a worker: one column in the order of the tree, long edges at its side. */
function placedInColumn({ boxes, groups, edges }, order) {
  const places = { boxes: [], groups: [], edges: [], height: 16 };
  const open = [];
  const close = (depth) => {
    while (open.length > depth) {
      places.height += 4;
      const frame = open.pop();
      frame[3] = places.height - frame[1];
      places.height += 12;
    }
  };
  const depth = (group) => (group < 0 ? 0 : 1 + depth(groups[group]));
  const deepest = Math.max(...groups.map(depth), 0);
  const [width] = boxes[0];
  for (const { box, group } of order) {
    const level = depth(box === undefined ? groups[group] : boxes[box][2]);
    close(level);
    if (box === undefined) {
      open.push((places.groups[group] = [16 + 12 * level, places.height, width + 24 * (deepest - level), 0]));
      places.height += 26;
    } else {
      places.boxes[box] = [16 + 12 * deepest, places.height];
      places.height += boxes[box][1] + 16;
    }
  }
  close(0);
  const right = 16 + 12 * deepest + width;
  for (const [from, to] of edges) {
    const [top, end] = [places.boxes[from][1], places.boxes[to][1]];
    const gap = end - top - boxes[from][1];
    const side = right + 12 * deepest + 24 + Math.min(160, Math.abs(end - top) / 10);
    const [y, z] = [top + boxes[from][1] / 2, end + boxes[to][1] / 2];
    const down = [[right - width / 2, end - gap], [right - width / 2, end]];
    places.edges.push(gap > 0 && gap < 60 ? down : [[right, y], [side, y], [side, z], [right, z]]);
  }
  return { ...places, width: right + 12 * deepest + 200 };
}

/** A smooth line through the points of an edge. */
function graphPath(points) {
  const [start, ...rest] = points.map(([x, y]) => [Math.round(x * 10) / 10, Math.round(y * 10) / 10]);
  if (rest.length === 1) return `M${start}L${rest[0]}`;
  const between = ([x, y], [nextX, nextY]) => [(x + nextX) / 2, (y + nextY) / 2];
  const ends = rest.slice(1).map((point, i) => (i === rest.length - 2 ? point : between(rest[i], point)));
  return `M${start}${ends.map((end, i) => `Q${rest[i]} ${end}`).join("")}`;
}

/** The drawn graph and what one can do with it. A node is one of the tree, shown as a box, or as a frame when open. */
class ModelGraph {
  constructor(root, tree) {
    this.side = tree.side;
    this.data = section("graph");
    this.role = section("meta").role;
    const ours = (mode) => ({ ...mode, column: mode.column.replace("ROLE", this.role), worth: new Map() });
    const modes = GRAPH_COLOURS.map(ours);
    this.modes = modes.filter(({ column }) => layers.columns.get(column)?.values.some((value) => value !== null));
    this.mode = this.modes[0] ?? modes[0];
    this.tree = tree;
    const input = { label: this.data.input ?? "input", parent: tree.root, level: 1 };
    this.input = this.side.edges.includes(-1) ? input : null;
    this.worst = this.worstLayer();
    this.view = { x: 0, y: 0, k: 1 };
    this.build(root);
    this.listen();
    this.open = this.openAtFirst();
    for (const at of this.side.placesOf(this.side.first ?? selected).slice(0, 1)) this.unfoldTo(this.tree.leaves[at]);
    this.layOut(() => this.lookFirst());
  }

  // What is known of a node.

  valueAt({ column, least }, position) {
    const [value, other] = [column, least].map((key) => layers.value(key, position));
    return value === null || other === null ? value : Math.min(value, other);
  }

  /** The worst value of a node's layers; of time the sum; null where nothing was measured. */
  value(node, mode = this.mode) {
    const known = mode.worth.get(node);
    if (known !== undefined) return known;
    let value = node.kids ? null : this.valueAt(mode, node.position);
    if (mode.unit === "%" && value !== null) value *= 100;
    for (const kid of node.kids ?? []) {
      const one = this.value(kid, mode);
      if (value === null || one === null) value ??= one;
      else value = mode.unit === "%" ? value + one : Math.min(value, one);
    }
    mode.worth.set(node, value);
    return value;
  }

  valueText(node, mode = this.mode) {
    const value = this.value(node, mode);
    if (value === null) return NOT_MEASURED;
    return `${mode.unit === "dB" ? formatLevel(value) : formatNumber(value, 2)} ${mode.unit}`;
  }

  /** The class of a node's step on the ramp. */
  tone(node) {
    return this.toneOf(node === this.input ? null : this.value(node));
  }

  toneOf(value) {
    if (value === null) return "tone-none";
    return `tone-${this.mode.stops.filter((stop) => (this.mode.unit === "%" ? value >= stop : value < stop)).length}`;
  }

  isFlagged(node) {
    return !node.kids && node.flagged > 0;
  }

  worstLayer() {
    let [found, least] = [null, Infinity];
    for (let position = 0; position < layers.count; position++) {
      const value = this.valueAt(this.mode, position);
      if (value !== null && value < least) [found, least] = [position, value];
    }
    return found;
  }

  /** What a node is, in lines: for the tip and for those who listen. */
  describe(node) {
    if (node === this.input) return [node.label, "input of the network"];
    if (node.kids) {
      const flagged = node.flagged ? `● ${node.flagged} with accumulated error past a threshold` : "none past a threshold";
      const size = `group of ${graphCount(node.count, "layer")}, ${flagged}`;
      return [node.label, size, `${this.mode.unit === "%" ? "" : "worst "}${this.mode.name}: ${this.valueText(node)}`];
    }
    const { position } = node;
    const attributes = Object.entries(this.data.attributes?.[position] ?? {});
    return [
      this.side.label(position),
      `${this.side.operator(position)}${this.aloneText(node)}${node.flagged ? ", ● accumulated error past a threshold" : ""}`,
      ...this.modes.map((mode) => `${mode.name}: ${this.valueText(node, mode)}`),
      ...attributes.slice(0, 8).map(([key, value]) => `${key} = ${Array.isArray(value) ? value.join(", ") : value}`),
    ].map((line) => graphShort(line, 200));
  }

  describeEdge({ from, to, producers }) {
    const [first] = producers;
    const label = (box) => this.scene.boxes[box].node.label;
    const names = [...producers].slice(0, 4).map((p) => (p < 0 ? this.input.label : this.side.label(p)));
    const layer = this.side.layerOf(first);
    const tensor = layers.value("output.float_name", layer) ?? layers.value("output.name", layer);
    return [
      `${label(from)} → ${label(to)}`,
      `written by ${names.join(", ")}${producers.size > 4 ? ` and ${producers.size - 4} more` : ""}`,
      ...(producers.size === 1 && tensor ? [`tensor ${tensor}`] : []),
    ].map((line) => graphShort(line, 200));
  }

  // What is open.

  /** Whole levels as long as they stay few boxes, then the way to the worst flagged layer. */
  openAtFirst() {
    const { root, leaves } = this.tree;
    this.open = new Set([root]);
    for (let level = [root], boxes = 0; ; ) {
      boxes += level.reduce((sum, { kids }) => sum + kids.length, 0);
      level = level.flatMap(({ kids }) => kids.filter((kid) => kid.kids));
      const more = level.reduce((sum, { kids }) => sum + kids.length - 1, 0);
      if (!level.length || boxes + more > GRAPH.first) break;
      boxes -= level.length;
      for (const group of level) this.open.add(group);
    }
    if (this.worst !== null && layers.isDegraded(this.worst)) this.unfoldTo(leaves[this.worst]);
    return this.open;
  }

  /** Open the groups around a node; true where one was shut. */
  unfoldTo(node) {
    let changed = false;
    for (let at = node.parent; at; at = at.parent) {
      changed ||= !this.open.has(at);
      this.open.add(at);
    }
    return changed;
  }

  fold(node) {
    this.open.delete(node);
    for (const kid of node.kids) if (kid.kids && this.open.has(kid)) this.fold(kid);
  }

  /** Boxes and frames below a node that would be placed. */
  shown(node) {
    return node.kids && this.open.has(node) ? node.kids.reduce((sum, kid) => sum + this.shown(kid), 1) : 1;
  }

  /** Fold the groups farthest from a node until few enough boxes are left; how many were folded. */
  makeRoom(node) {
    const kept = new Set();
    for (let at = node; at; at = at.parent) kept.add(at);
    for (let folded = 0; ; folded++) {
      const others = [...this.open].filter((group) => !kept.has(group));
      if (this.shown(this.tree.root) <= GRAPH.most || !others.length) return folded;
      const distance = (group) => Math.abs(group.first + group.count / 2 - node.first);
      this.fold(others.reduce((far, group) => (distance(group) > distance(far) ? group : far)));
    }
  }

  toggle(node) {
    const before = this.where(node);
    const opening = !this.open.has(node);
    if (opening) this.open.add(node);
    else this.fold(node);
    announce(opening ? `${node.label} unfolded: ${node.kids.length} boxes` : `${node.label} folded`);
    this.active = node;
    this.layOut(() => this.keep(node, before), opening ? this.makeRoom(node) : 0);
  }

  /** What a node stands for on the screen while its group may be shut. */
  visible(position) {
    if (position === null || position === undefined) return null;
    let found = this.tree.leaves[position];
    for (let at = found.parent; at; at = at.parent) if (!this.open.has(at)) found = at;
    return found;
  }

  /** Nodes that show a layer: one, or several that were folded into it. */
  nodesOf(layer) {
    return new Set(this.side.placesOf(layer).map((at) => this.visible(at)));
  }

  aloneText(node) {
    return !node.kids && node !== this.input && this.side.isAlone(node.position) ? `, only in the ${this.side.name} model` : "";
  }

  /** Show an operator: open its groups, bring it to the middle. */
  reveal(position, { middle = false } = {}) {
    const node = this.tree.leaves[position];
    if (!this.unfoldTo(node)) {
      this.mark();
      return middle ? this.centre(node) : this.bringIn(node);
    }
    this.layOut(() => this.centre(node), this.makeRoom(node));
  }

  // From what is open to a picture.

  /** Boxes are layers and shut groups, frames are open groups; both in the order of the tree. */
  sceneOf() {
    const scene = { boxes: [], frames: [], order: [] };
    const owner = new Int32Array(this.side.count);
    const own = (node, box) => {
      if (node.kids) for (const kid of node.kids) own(kid, box);
      else owner[node.position] = box;
    };
    const visit = (node, around) => {
      if (node.kids && this.open.has(node)) {
        const group = scene.frames.push({ node, around }) - 1;
        scene.order.push({ group });
        for (const kid of node.kids) visit(kid, group);
        return;
      }
      const box = scene.boxes.push({ node, around, next: [], before: [] }) - 1;
      scene.order.push({ box });
      if (node !== this.input) own(node, box);
    };
    if (this.input) visit(this.input, -1);
    for (const kid of this.tree.root.kids) visit(kid, -1);
    scene.edges = this.edgesBetween(owner, scene.boxes.length);
    for (const { from, to } of scene.edges) {
      scene.boxes[from].next.push(to);
      scene.boxes[to].before.push(from);
    }
    return scene;
  }

  /** Edges between boxes, with the layers that write what flows there. */
  edgesBetween(owner, boxes) {
    const found = new Map();
    const { edges } = this.side;
    for (let i = 0; i < edges.length; i += 2) {
      const from = edges[i] < 0 ? 0 : owner[edges[i]];
      const to = owner[edges[i + 1]];
      if (from === to) continue;
      const key = from * boxes + to;
      if (!found.has(key)) found.set(key, { from, to, producers: new Set() });
      found.get(key).producers.add(edges[i]);
    }
    return [...found.values()];
  }

  /** Place and draw what is open; `then` moves the picture. */
  async layOut(then, folded = 0) {
    const scene = this.sceneOf();
    this.value(this.tree.root);
    const longest = Math.max(...scene.boxes.map(({ node }) => node.label.length + (node.kids ? 6 : 0)));
    const width = Math.min(226, Math.max(132, Math.round(longest * GRAPH.letter) + 20));
    const height = (node) => GRAPH.height + (node.kids && node.flagged ? 10 : 0);
    const request = {
      boxes: scene.boxes.map(({ node, around }) => [width, height(node), around]),
      groups: scene.frames.map(({ around }) => around),
      edges: scene.edges.map(({ from, to }) => [from, to]),
    };
    const says = [];
    if (folded) says.push(`${graphCount(folded, "group")} far off folded: at most ${GRAPH.most} boxes are shown.`);
    const places = await this.placesOf(request, scene.order, says);
    if (!places) return;
    this.note.textContent = says.join(" ");
    if (says.length) announce(this.note.textContent);
    this.scene = scene;
    this.size = [places.width, places.height];
    this.seats = new Map(scene.boxes.map(({ node }, i) => [node, [...places.boxes[i], width, height(node)]]));
    scene.frames.forEach(({ node }, i) => this.seats.set(node, places.groups[i]));
    this.paths = places.edges.map(graphPath);
    this.draw();
    then();
  }

  /** Places by the worker, else in one column, which is said; null where something newer has been asked for. */
  async placesOf(request, order, says) {
    this.job?.stop?.();
    const job = (this.job = {});
    this.holder.setAttribute("aria-busy", "true");
    const waiting = setTimeout(() => {
      this.note.textContent = `Placing ${request.boxes.length} boxes …`;
      this.cancel.hidden = false;
    }, GRAPH.patience);
    let places;
    try {
      if (request.boxes.length + request.groups.length > GRAPH.most) throw new Error(`more than ${GRAPH.most} boxes`);
      Object.assign(job, placedByWorker(request));
      places = await job.places;
    } catch (error) {
      places = placedInColumn(request, order);
      says.push(`The boxes stand in one column in topological order: ${error.message}.`);
    }
    clearTimeout(waiting);
    if (this.job !== job) return null;
    this.holdFocus = document.activeElement === this.cancel;
    this.cancel.hidden = true;
    this.holder.removeAttribute("aria-busy");
    return places;
  }

  draw() {
    const { boxes, frames, edges } = this.scene;
    const held = this.holdFocus || this.svg.contains(document.activeElement);
    this.nodes = new Map();
    this.lines = new Map(edges.map((edge, i) => [this.drawEdge(edge, this.paths[i]), edge]));
    this.canvas.replaceChildren(
      drawn("g", {}, ...frames.map(({ node }) => this.drawPaper(...this.seats.get(node)))),
      drawn("g", { "aria-hidden": "true" }, ...this.lines.keys()),
      drawn("g", {}, ...frames.map(({ node }) => this.drawTitle(node, ...this.seats.get(node)))),
      drawn("g", {}, ...boxes.map(({ node }) => this.drawBox(node, ...this.seats.get(node)))),
    );
    this.map.setAttribute("viewBox", `0 0 ${this.size.join(" ")}`);
    const small = boxes.map(({ node }) => {
      const [x, y, width, height] = this.seats.get(node);
      return drawn("rect", { class: `${this.tone(node)}${node.flagged ? " flagged" : ""}`, x, y, width, height });
    });
    this.map.replaceChildren(...small, this.window);
    if (!this.seats.has(this.active)) this.active = [...this.nodesOf(selected)][0] ?? boxes[0].node;
    this.mark();
    if (held) this.elementOf(this.active).focus({ preventScroll: true });
  }

  elementOf(node) {
    for (const [shape, known] of this.nodes) if (known === node) return shape;
    return null;
  }

  drawEdge({ from, to }, d) {
    const { boxes } = this.scene;
    const [start, end] = [from, to].map((box) => this.seats.get(boxes[box].node)[1]);
    // An edge that passes boxes by on its way to where they meet again is told apart.
    const skips = Math.abs(end - start) > 110 && boxes[to].before.length > 1 && boxes[from].next.length > 1;
    return drawn(
      "g",
      { class: `edge${skips ? " skip" : ""}` },
      drawn("path", { class: "reach", d }),
      drawn("path", { class: "line", d, "marker-end": `url(#graph-arrow-${this.side.name})` }),
    );
  }

  /** A box or frame as an item of the tree. */
  item(node, kind, x, y, ...shapes) {
    const open = node.kids ? String(this.open.has(node)) : null;
    const shape = drawn(
      "g",
      {
        class: `node ${kind}${this.isFlagged(node) ? " flagged" : ""}`,
        transform: `translate(${Math.round(x)} ${Math.round(y)})`,
        role: "treeitem",
        tabindex: -1,
        "aria-label": this.describe(node).join(", "),
        "aria-level": node.level,
        "aria-expanded": open,
      },
      ...shapes,
    );
    this.nodes.set(shape, node);
    return shape;
  }

  drawPaper(x, y, width, height) {
    return drawn("rect", { class: "frame", x, y, width, height, rx: 8 });
  }

  drawTitle(node, x, y, width) {
    const room = Math.max(6, Math.floor((width - (node.flagged ? 74 : 40)) / GRAPH.letter));
    const title = drawn("text", { x: 9, y: 15 }, `▾ ${graphShort(node.label, room)}`);
    const shapes = [drawn("rect", { class: "paper", width, height: 22, rx: 8 }), title];
    if (node.flagged) shapes.push(drawn("text", { class: "count", x: width - 9, y: 15 }, `● ${node.flagged}`));
    return this.item(node, "title", x, y, ...shapes);
  }

  drawBox(node, x, y, width, height) {
    const room = Math.floor((width - 18) / GRAPH.letter);
    const shapes = [drawn("rect", { class: "paper", width, height, rx: 5 })];
    if (node.kids) {
      shapes.unshift(drawn("rect", { class: "paper behind", x: 4, y: 4, width, height, rx: 5 }));
      const count = node.flagged ? `● ${node.flagged}` : "";
      shapes.push(
        drawn("text", { class: "name", x: 9, y: 16 }, `▸ ${graphShort(node.label, room - 2 - count.length)}`),
        drawn("text", { class: "count", x: width - 9, y: 16 }, count),
        drawn("text", { x: 9, y: 30 }, graphCount(node.count, "layer")),
        drawn("text", { class: "value", x: width - 9, y: 30 }, this.valueText(node)),
      );
      const bar = (name, share) => drawn("rect", { class: name, x: 9, y: 37, width: (width - 18) * share, height: 5 });
      if (node.flagged) shapes.push(bar("track", 1), bar("share", node.flagged / node.count));
    } else {
      const below = node === this.input ? "input" : this.side.operator(node.position);
      const value = node === this.input ? "" : this.boxValue(node);
      shapes.push(
        drawn("text", { class: "name", x: 9, y: 16 }, graphShort(node.label, room)),
        drawn("text", { x: 9, y: 30 }, below.slice(0, room - value.length - 1)),
        drawn("text", { class: "value", x: width - 9, y: 30 }, value),
      );
    }
    const kind = node.kids ? "group " : this.aloneText(node) ? "alone " : "";
    return this.item(node, `box ${kind}${this.tone(node)}`, x, y, ...shapes);
  }

  /** What a box says beside the type of its operator. */
  boxValue(node) {
    return this.aloneText(node) ? "only here" : `${node.flagged ? "● " : ""}${this.valueText(node)}`;
  }

  /** Show what is selected, pointed at and in reach of the keyboard. */
  mark() {
    if (!this.scene) return;
    const chosen = this.nodesOf(selected);
    for (const [shape, node] of this.nodes) {
      shape.classList.toggle("chosen", chosen.has(node));
      shape.classList.toggle("pointed", node === this.pointed);
      shape.setAttribute("aria-selected", chosen.has(node));
      shape.setAttribute("tabindex", node === this.active ? 0 : -1);
    }
    for (const [line, { from, to }] of this.lines) {
      const ends = [from, to].map((box) => this.scene.boxes[box].node);
      line.classList.toggle("on", ends.some((node) => chosen.has(node) || node === this.pointed));
    }
  }

  // Where one looks.

  /** The part of the view that the drawer leaves free: [width, height]. */
  free() {
    const { left, right, height } = this.svg.getBoundingClientRect();
    const drawer = document.getElementById("drawer");
    const own = right - (this.map.classList.contains("idle") ? 0 : this.map.clientWidth + 12);
    const edge = drawer.hidden ? own : Math.min(own, drawer.getBoundingClientRect().left);
    return [edge - left > 160 ? edge - left : right - left, height];
  }

  look(x, y, k = this.view.k, glide = true) {
    const { width, height } = this.svg.getBoundingClientRect();
    const within = (at, size, room) => Math.min(room - 60, Math.max(60 - size * k, at));
    this.view = { x: within(x, this.size[0], width), y: within(y, this.size[1], height), k };
    this.canvas.classList.toggle("glide", glide);
    this.canvas.style.transform = `translate(${this.view.x}px, ${this.view.y}px) scale(${k})`;
    const all = this.size[0] * k <= width && this.size[1] * k <= height;
    this.map.classList.toggle("idle", all);
    const seen = { x: -this.view.x / k, y: -this.view.y / k, width: width / k, height: height / k };
    for (const [name, value] of Object.entries(seen)) this.window.setAttribute(name, value);
    this.hideTip();
  }

  fit() {
    const [width, height] = this.free();
    const k = Math.min(1.2, width / this.size[0], height / this.size[1]);
    this.look((width - this.size[0] * k) / 2, Math.max(0, (height - this.size[1] * k) / 2), k);
  }

  /** All of it where it can be read so, else the selected or worst layer. */
  lookFirst() {
    const [width, height] = this.free();
    if (Math.min(width / this.size[0], height / this.size[1]) >= 0.7) return this.fit();
    this.view.k = 0.9;
    const [node] = [selected, this.side.first, this.worst].flatMap((layer) => [...this.nodesOf(layer)]);
    this.centre(node ?? this.scene.boxes[0].node, false);
  }

  /** A node's place on the screen: middle of its upper edge. */
  where(node) {
    const [x, y, width] = this.seats.get(node);
    return [(x + width / 2) * this.view.k + this.view.x, y * this.view.k + this.view.y];
  }

  /** Hold a node where it was while the others move. */
  keep(node, [x, y]) {
    const [nowX, nowY] = this.where(node);
    this.look(this.view.x + x - nowX, this.view.y + y - nowY, this.view.k, false);
    this.bringIn(node);
  }

  centre(node, glide = true) {
    const [x, y] = this.where(node);
    const [width, height] = this.free();
    this.look(this.view.x + width / 2 - x, this.view.y + height / 2 - y, this.view.k, glide);
  }

  /** Move the picture as little as it takes to see a node. */
  bringIn(node) {
    const [x, y] = this.where(node);
    const [width, height] = this.free();
    const half = (Math.min(this.seats.get(node)[2], 240) / 2) * this.view.k + 12;
    const by = (at, low, high) => (high < low ? 0 : Math.min(high, Math.max(low, at)) - at);
    const [right, down] = [by(x, half, width - half), by(y, 24, height - 70)];
    if (right || down) this.look(this.view.x + right, this.view.y + down);
  }

  zoom(by, [x, y] = this.free().map((side) => side / 2)) {
    const k = Math.min(3, Math.max(0.05, this.view.k * by));
    const ratio = k / this.view.k;
    this.look(x - (x - this.view.x) * ratio, y - (y - this.view.y) * ratio, k, false);
  }

  // The page around the picture.

  build(root) {
    const button = (text, title, onclick) => element("button", { type: "button", title, onclick }, text);
    const set = (name, ...parts) => element("div", { class: "model-set", role: "group", "aria-label": name }, ...parts);
    this.colours = this.modes.map((mode) => button(mode.name, mode.says, () => this.colourBy(mode)));
    this.note = element("span", { class: "muted" });
    this.cancel = element("button", { type: "button", hidden: true, onclick: () => this.job.stop?.() }, "Cancel");
    this.legend = element("div", { class: "model-legend muted" });
    this.tip = element("div", { class: "model-tip", hidden: true, "aria-hidden": "true" });
    this.canvas = drawn("g", { class: "model-canvas" });
    const size = { refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse" };
    const arrow = { id: `graph-arrow-${this.side.name}`, class: "graph-arrow", viewBox: "0 0 8 8", orient: "auto", ...size };
    const head = drawn("defs", {}, drawn("marker", arrow, drawn("path", { d: "M0 0L8 4L0 8z" })));
    const picture = { class: "model-picture", role: "tree", "aria-label": `Graph of the ${this.side.name} model` };
    this.svg = drawn("svg", picture, head, this.canvas);
    this.window = drawn("rect", { class: "window" });
    this.map = drawn("svg", { class: "model-map", "aria-hidden": "true" });
    this.holder = element("div", { class: "model-view" }, this.svg, this.map, this.tip);
    this.beside = this.side.name === "quantized" && this.data.float ? this.besideButton() : null;
    const bar = element(
      "div",
      { class: "model-bar" },
      element("b", {}, this.side.title),
      this.side.name === "quantized" ? set("Colour by", element("span", { class: "muted" }, "Colour by"), ...this.colours) : null,
      set(
        "Picture",
        this.beside,
        button("−", "smaller", () => this.zoom(1 / 1.3)),
        button("+", "larger", () => this.zoom(1.3)),
        button("fit", "see all of it", () => this.fit()),
        button("fold", "as it was at first", () => this.layOut(() => this.lookFirst(), void this.openAtFirst())),
      ),
      set("Progress", this.note, this.cancel),
    );
    const help =
      "Click a layer to select it, a group to unfold it, its title to fold it. Drag to move, Ctrl and wheel to zoom. " +
      "Keys: arrows follow the edges, Enter selects or unfolds, Shift and arrows move, + − 0 zoom.";
    const card = element("div", { class: "model-card" }, bar, this.holder, this.legend);
    this.drawLegend();
    if (this.side.name === "float") return root.append(card);
    this.panes = element("div", { class: "model-panes" }, card);
    root.replaceChildren(
      element("p", { class: "lead" }, this.summary()),
      this.panes,
      element("p", { class: "muted model-help" }, help),
    );
  }

  /** Shows the float model's graph beside this one, and takes it away again. */
  besideButton() {
    const toggle = () => {
      const shown = this.other === undefined;
      button.setAttribute("aria-pressed", shown);
      this.panes.classList.toggle("two", shown);
      if (shown) this.openOther();
      else {
        this.panes.lastChild.remove();
        this.other.end();
        this.other = undefined;
      }
      this.fitAgain();
    };
    const title = "the float model's graph beside it: what is selected in one is selected in the other";
    const button = element("button", { type: "button", title, "aria-pressed": false, onclick: toggle }, "float beside it");
    return button;
  }

  openOther() {
    this.other = null;
    const pane = element("div");
    this.panes.append(pane);
    ModelTree.grown(new FloatSide(this.sharedLayer())).then((tree) => {
      if (this.other === null) this.other = new FloatGraph(pane, tree);
    });
    // One above the other, they fill the window.
    if (matchMedia("(max-width: 62rem)").matches) this.panes.scrollIntoView();
  }

  /** The layer that is looked at, or the last one before it that the float model has, too. */
  sharedLayer() {
    let at = selected ?? this.worst ?? 0;
    while (at > 0 && this.side.isAlone(at)) at--;
    return at;
  }

  /** Once the page has given it another size. */
  fitAgain() {
    requestAnimationFrame(() => this.scene && this.lookFirst());
  }

  summary() {
    const { root, leaves, groups } = this.tree;
    const known = this.worst !== null;
    const worst = known ? `; worst: ${graphShort(layers.label(this.worst), 80)}, ${this.valueText(leaves[this.worst])}` : "";
    const flagged = root.flagged ? `${root.flagged} past a threshold (●)` : "none past a threshold";
    const size = `${graphCount(layers.count, "layer")} in ${graphCount(groups, "group")}`;
    return `${size}, ${flagged}${worst}. Values on the ${this.role} set.`;
  }

  drawLegend() {
    const { stops, unit, says, column } = this.mode;
    const swatch = (tone, text) => element("span", {}, element("i", { class: tone, "aria-hidden": "true" }), text);
    const kinds = [...new Set(layers.columns.get(column)?.values)].filter((bits) => bits !== null).sort((a, b) => b - a);
    const [first, last] = unit === "%" ? ["<", "≥"] : ["≥", "<"];
    const middle = stops.slice(1).map((stop, i) => `${stops[i]} – ${stop}`);
    const steps = [`${first} ${stops[0]}`, ...middle, `${last} ${stops.at(-1)}`].map((text, i) => [`tone-${i}`, text]);
    const shown = unit === "bits" ? kinds.map((bits) => [this.toneOf(bits), bits]) : steps;
    const alone = this.side.twins ? [this.aloneSwatch()] : [];
    this.legend.replaceChildren(
      element("b", {}, `${says}, ${unit}`),
      ...shown.map(([tone, text]) => swatch(tone, text)),
      swatch("tone-none", NOT_MEASURED),
      swatch("flagged", "● accumulated error past a threshold"),
      swatch("share", "share of these in a group"),
      ...alone,
    );
    this.colours.forEach((shape, i) => shape.setAttribute("aria-pressed", this.modes[i] === this.mode));
  }

  aloneSwatch() {
    return element("span", {}, element("i", { class: "alone", "aria-hidden": "true" }), "only in this model");
  }

  colourBy(mode) {
    this.mode = mode;
    this.drawLegend();
    if (this.scene) this.draw();
  }

  showTip(lines, { clientX, clientY }) {
    const { left, top, width, height } = this.holder.getBoundingClientRect();
    const [name, ...rest] = lines;
    this.tip.replaceChildren(element("b", {}, name), ...rest.map((line) => element("div", {}, line)));
    this.tip.hidden = false;
    const [x, y] = [clientX - left + 14, clientY - top + 14];
    this.tip.style.left = `${Math.max(0, Math.min(x, width - this.tip.offsetWidth - 4))}px`;
    this.tip.style.top = `${y + this.tip.offsetHeight > height ? Math.max(0, y - this.tip.offsetHeight - 24) : y}px`;
  }

  hideTip() {
    this.tip.hidden = true;
  }

  // What one does.

  nodeAt(target) {
    return this.nodes?.get(target.closest?.("[role=treeitem]"));
  }

  act(node) {
    this.active = node;
    if (node.kids) this.toggle(node);
    else if (node !== this.input) this.choose(node);
    this.mark();
  }

  choose(node) {
    select(this.side.layerOf(node.position));
  }

  listen() {
    const { svg } = this;
    svg.addEventListener("click", ({ target }) => {
      const node = this.nodeAt(target);
      if (node && !this.dragged) this.act(node);
    });
    svg.addEventListener("pointerover", (event) => this.pointAt(event));
    svg.addEventListener("pointerleave", () => this.pointAt({ target: svg }));
    svg.addEventListener("focusin", ({ target }) => {
      const node = this.nodeAt(target);
      if (!node || !target.matches(":focus-visible")) return;
      // The browser scrolls to where the node stood, which may be far outside of the picture.
      this.bringIn(node);
      this.holder.scrollIntoView({ block: "nearest" });
      const { left: clientX, bottom: clientY } = target.getBoundingClientRect();
      this.showTip(this.describe(node), { clientX, clientY });
    });
    svg.addEventListener("focusout", () => this.hideTip());
    svg.addEventListener("keydown", (event) => this.onKey(event));
    svg.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    this.drags(svg, (dx, dy) => this.look(this.view.x + dx, this.view.y + dy, this.view.k, false));
    this.drags(this.map, (dx, dy, event) => this.lookByMap(event));
    this.map.addEventListener("pointerdown", (event) => this.lookByMap(event));
    this.heard = {
      select: (layer) => this.onSelect(layer),
      hover: (layer) => {
        this.pointed = [...this.nodesOf(layer)][0] ?? null;
        this.mark();
      },
    };
    for (const [kind, action] of Object.entries(this.heard)) on(kind, action);
    new ResizeObserver(() => this.scene && this.look(this.view.x, this.view.y, this.view.k, false)).observe(svg);
    // A layer that is selected while the graph is out of sight is shown when it comes into sight.
    new IntersectionObserver(([entry]) => {
      this.inSight = entry.isIntersecting;
      if (this.inSight && this.missed) this.onSelect(selected);
    }).observe(svg);
  }

  /** Hear no more of what the page selects. */
  end() {
    for (const [kind, action] of Object.entries(this.heard)) off(kind, action);
  }

  onSelect(layer) {
    this.missed = !this.inSight;
    const [at] = this.side.placesOf(layer);
    if (at === undefined || !this.inSight || !this.scene) return this.mark();
    // Of several operators that are one layer, the one that was clicked stays in reach of the keyboard.
    const here = this.side.placesOf(layer).includes(this.active?.position);
    if (!here) this.active = this.tree.leaves[at];
    this.reveal(this.active.position, { middle: !here && this.isBeside });
  }

  /** Whether the other model's graph is shown, too. */
  get isBeside() {
    return this.side.name === "float" || this.other !== undefined;
  }

  pointAt(event) {
    const node = this.nodeAt(event.target);
    const edge = this.lines?.get(event.target.closest?.(".edge"));
    const position = node?.position ?? null;
    const layer = position === null ? null : this.side.layerOf(position);
    if (position !== (this.pointed?.position ?? null)) hover(layer);
    if (node?.kids || position !== null) this.pointed = node;
    this.mark();
    if (edge) event.target.parentNode.classList.add("on");
    if (edge) this.showTip(this.describeEdge(edge), event);
    else if (node) this.showTip(this.describe(node), event);
    else this.hideTip();
  }

  drags(shape, move) {
    shape.addEventListener("pointerdown", (down) => {
      this.dragged = false;
      let [x, y] = [down.clientX, down.clientY];
      const moved = (event) => {
        if (!this.dragged && Math.hypot(event.clientX - x, event.clientY - y) < 4) return;
        if (!this.dragged) shape.setPointerCapture(down.pointerId);
        this.dragged = true;
        move(event.clientX - x, event.clientY - y, event);
        [x, y] = [event.clientX, event.clientY];
      };
      const end = () => {
        shape.removeEventListener("pointermove", moved);
        removeEventListener("pointerup", end);
        removeEventListener("pointercancel", end);
      };
      if (down.button !== 0) return;
      shape.addEventListener("pointermove", moved);
      addEventListener("pointerup", end);
      addEventListener("pointercancel", end);
    });
  }

  lookByMap({ clientX, clientY }) {
    const at = new DOMPoint(clientX, clientY).matrixTransform(this.map.getScreenCTM().inverse());
    const { width, height } = this.svg.getBoundingClientRect();
    this.look(width / 2 - at.x * this.view.k, height / 2 - at.y * this.view.k, this.view.k, false);
  }

  onWheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const { left, top } = this.svg.getBoundingClientRect();
    this.zoom(Math.exp(-event.deltaY / 300), [event.clientX - left, event.clientY - top]);
  }

  onKey(event) {
    const node = this.nodeAt(event.target);
    if (!node || event.ctrlKey || event.metaKey || event.altKey) return;
    const way = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
    const { boxes } = this.scene;
    const keys = {
      Enter: () => this.act(node),
      " ": () => this.act(node),
      Home: () => this.goTo(boxes[0].node),
      End: () => this.goTo(boxes.at(-1).node),
      "+": () => this.zoom(1.3),
      "-": () => this.zoom(1 / 1.3),
      0: () => this.fit(),
    };
    const move = () => this.look(this.view.x - 80 * way[0], this.view.y - 80 * way[1]);
    const go = () => this.goTo(this.neighbour(node, ...way));
    const action = way ? (event.shiftKey ? move : go) : keys[event.key];
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  }

  /** Down and up follow the edges, left and right go along a row; left of it all and above it is the group around. */
  neighbour(node, right, down) {
    const [x, y] = this.seats.get(node);
    const { boxes, frames } = this.scene;
    const box = boxes.find((one) => one.node === node);
    if (!box) return down > 0 || right > 0 ? node.kids[0] : this.seats.has(node.parent) ? node.parent : null;
    const near = (nodes) => {
      const far = (one) => Math.abs(this.seats.get(one)[0] - x) + Math.abs(this.seats.get(one)[1] - y);
      return nodes.reduce((best, one) => (best && far(best) <= far(one) ? best : one), null);
    };
    const row = () => boxes.map((one) => one.node).filter((one) => {
      const [otherX, otherY] = this.seats.get(one);
      return Math.abs(otherY - y) < 20 && (otherX - x) * right > 0;
    });
    const found = near(down ? (down > 0 ? box.next : box.before).map((i) => boxes[i].node) : row());
    return found ?? (right < 0 || down < 0 ? frames[box.around]?.node : null);
  }

  goTo(node) {
    if (!node) return;
    this.active = node;
    this.mark();
    this.bringIn(node);
    this.elementOf(node).focus({ preventScroll: true });
  }
}

/** The float model: no errors and no colours, but what was folded, and what the other model lacks. */
class FloatGraph extends ModelGraph {
  valueAt() {
    return null;
  }

  worstLayer() {
    return null;
  }

  describe(node) {
    if (node === this.input || node.kids) return super.describe(node).slice(0, node.kids ? 1 : 2).concat(this.sizeText(node));
    const layer = this.side.layerOf(node.position);
    const twin = layer === null ? [] : [`layer ${layers.label(layer)} of the quantized model`];
    return [this.side.label(node.position), `${this.side.operator(node.position)}${this.aloneText(node)}`, ...twin];
  }

  sizeText(node) {
    return node.kids ? [`group of ${graphCount(node.count, "operator")}`] : [];
  }

  valueText() {
    return "";
  }

  boxValue(node) {
    const layer = this.side.layerOf(node.position);
    if (layer === null) return "only here";
    return this.side.placesOf(layer)[0] === node.position ? "" : "folded";
  }

  tone(node) {
    return node === this.input ? "tone-none" : "tone-twin";
  }

  drawLegend() {
    const folded = element("span", {}, element("b", {}, "folded"), "part of the layer before it");
    this.legend.replaceChildren(this.aloneSwatch(), folded);
  }

  choose(node) {
    const layer = this.side.layerOf(node.position);
    if (layer === null) return announce(`${this.side.label(node.position)} is only in the float model`);
    select(layer);
  }
}

views.graph = async (root) => {
  if (!layers.count) return;
  try {
    new ModelGraph(root, await ModelTree.grown(new QuantizedSide()));
  } catch (error) {
    console.error(error);
    root.replaceChildren(element("p", { class: "notice" }, `The graph cannot be shown: ${error.message}`));
  }
};
