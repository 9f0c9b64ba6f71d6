// The layers of the model as a tree of groups that the graph folds and unfolds.

/** Children that a group shows at most, and levels that names may have. */
const TREE = { together: 40, levels: 12 };

/** The layers as a tree of groups by name; runs in topological order where names say nothing. */
class ModelTree {
  /** The tree of all operators of a side; with pauses, so that many of them do not hold up the page. */
  static async grown(side) {
    const { count, edges } = side;
    const tree = new ModelTree();
    tree.side = side;
    const pause = () => new Promise((resume) => setTimeout(resume));
    const root = { part: "", kids: [], named: new Map() };
    for (let position = 0; position < count; position++) {
      if (position % 2000 === 0) await pause();
      tree.plant(root, position);
    }
    await pause();
    tree.live = liveTensors(count, edges);
    await pause();
    tree.root = tree.folded(root, true);
    while (tree.root.kids.length === 1 && tree.root.kids[0].kids) tree.root = tree.root.kids[0];
    await pause();
    tree.leaves = [];
    tree.groups = -1; // the whole is none
    tree.finish(tree.root, null);
    await pause();
    return tree;
  }

  /** Hang a layer below the groups that its name spells; parts keep the separator before them. */
  plant(root, position) {
    const parts = this.side.label(position).match(/[/.]*[^/.]+/g) ?? ["?"];
    const own = parts.splice(Math.min(parts.length - 1, TREE.levels)).join("");
    let at = root;
    for (const part of parts) {
      let next = at.named.get(part);
      if (!next) {
        next = { part, kids: [], named: new Map() };
        at.named.set(part, next);
        at.kids.push(next);
      }
      at = next;
    }
    at.kids.push({ part: own, first: position, position });
  }

  /** A group with one child is its child, one with many is split. */
  folded(node, isRoot = false) {
    if (!node.kids) return node;
    node.named = null;
    node.kids = node.kids.map((kid) => this.folded(kid));
    const [only] = node.kids;
    if (!isRoot && node.kids.length === 1) return Object.assign(only, { part: node.part + only.part });
    node.first = only?.first ?? 0;
    node.kids = this.split(node.kids);
    return node;
  }

  /** Runs of children, cut where the fewest tensors are alive: between residual blocks rather than within one. */
  split(kids) {
    if (kids.length <= TREE.together) return kids;
    const size = Math.min(TREE.together, Math.ceil(Math.sqrt(kids.length)));
    const runs = [];
    for (let start = 0; start < kids.length; ) {
      let end = Math.min(start + size, kids.length);
      for (let cut = start + (size >> 1); cut < Math.min(start + TREE.together, kids.length); cut++) {
        const gain = this.live[kids[end]?.first ?? kids.length] - this.live[kids[cut].first];
        if (gain > 0 || (gain === 0 && Math.abs(cut - start - size) < Math.abs(end - start - size))) end = cut;
      }
      if (kids.length - end < size >> 1 && kids.length - start <= TREE.together) end = kids.length;
      const run = kids.slice(start, end);
      runs.push(run.length === 1 ? run[0] : { run: true, kids: run, first: run[0].first });
      start = end;
    }
    return this.split(runs);
  }

  /** Parents, labels and counts. */
  finish(node, parent) {
    node.parent = parent;
    node.level = parent ? parent.level + 1 : 0;
    if (!node.run) node.label = graphLabel(node, parent, this.side);
    if (!node.kids) {
      node.count = 1;
      node.flagged = this.side.isFlagged(node.position) ? 1 : 0;
      this.leaves[node.position] = node;
      return;
    }
    this.groups++;
    node.count = node.flagged = 0;
    for (const kid of node.kids) {
      this.finish(kid, node);
      node.count += kid.count;
      node.flagged += kid.flagged;
    }
    if (node.run) node.label = [0, -1].map((side) => graphShort(graphEnds(node, side), 10)).join(" … ");
  }
}

/** How many tensors are alive when a layer starts, by its position. */
function liveTensors(count, edges) {
  const last = new Map();
  for (let i = 0; i < edges.length; i += 2) {
    if (edges[i] >= 0 && edges[i + 1] > (last.get(edges[i]) ?? edges[i])) last.set(edges[i], edges[i + 1]);
  }
  const change = new Array(count + 1).fill(0);
  for (const [from, to] of last) {
    change[from + 1]++;
    change[to + 1]--;
  }
  let alive = 0;
  return change.map((by) => (alive += by));
}

/** "block.0" rather than "0", "conv1" rather than "conv1/Conv". */
function graphLabel(node, parent, side) {
  let text = node.part.replace(/^[/.]+/, "");
  const operator = node.kids ? null : side.operator(node.position);
  if (operator && ["/", "."].some((mark) => text.endsWith(mark + operator))) text = text.slice(0, -1 - operator.length);
  let named = parent;
  while (named?.run) named = named.parent;
  const before = /^\d+($|[/.])/.test(text) && named?.part.match(/[^/.]+$/);
  return (before ? before[0] + node.part.slice(0, node.part.search(/[^/.]/)) : "") + text || "?";
}

/** As many characters as there is room for; names differ in their ends more than in their starts. */
function graphShort(text, room) {
  return text.length <= room ? text : `…${text.slice(text.length - room + 1)}`;
}

function graphEnds(node, side) {
  return node.kids ? graphEnds(node.kids.at(side), side) : node.label;
}
