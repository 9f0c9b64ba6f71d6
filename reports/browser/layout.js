// The worker that places the boxes of a graph; runs behind dagre and knows nothing of the page.
//
// It is sent {boxes: [width, height, group], groups: [group around it], edges: [from, to]}, all by number and -1 for no
// group, and answers {boxes: [x, y], groups: [x, y, width, height], edges: [[x, y] …], width, height} with the upper left
// corners of boxes and groups, or {failure: text}.

const HEADER = 22; // room for the name of a group, above what it holds
const FOOTER = 6;

onmessage = ({ data }) => {
  try {
    postMessage(placed(data));
  } catch (error) {
    postMessage({ failure: String(error.message ?? error) });
  }
};

function placed({ boxes, groups, edges }) {
  const graph = new dagre.graphlib.Graph({ compound: groups.length > 0 });
  graph.setGraph({ rankdir: "TB", nodesep: 22, edgesep: 12, ranksep: 28, marginx: 16, marginy: 16 });
  groups.forEach((_, i) => graph.setNode(`g${i}`, {}));
  boxes.forEach(([width, height], i) => graph.setNode(`b${i}`, { width, height }));
  groups.forEach((around, i) => around >= 0 && graph.setParent(`g${i}`, `g${around}`));
  boxes.forEach(([, , around], i) => around >= 0 && graph.setParent(`b${i}`, `g${around}`));
  edges.forEach(([from, to]) => graph.setEdge(`b${from}`, `b${to}`, {}));
  dagre.layout(graph);

  const frames = groups.map((_, i) => corner(graph.node(`g${i}`)));
  const down = roomForHeaders(frames);
  return {
    boxes: boxes.map((_, i) => corner(graph.node(`b${i}`))).map(([x, y]) => [x, down(y)]),
    groups: frames.map(([x, y, width, height]) => {
      const top = down(y) - HEADER;
      return [x, top, width, down(y + height) + FOOTER - top];
    }),
    edges: edges.map(([from, to]) => graph.edge(`b${from}`, `b${to}`).points.map(({ x, y }) => [x, down(y)])),
    width: graph.graph().width,
    height: down(graph.graph().height),
  };
}

function corner({ x, y, width, height }) {
  return [x - width / 2, y - height / 2, width, height];
}

/** Moves down what lies below the upper edge of a group, for its name, and a little below its lower edge. */
function roomForHeaders(frames) {
  const steps = new Map();
  const widen = (y, by) => steps.set(Math.round(y), Math.max(steps.get(Math.round(y)) ?? 0, by));
  for (const [, y, , height] of frames) {
    widen(y, HEADER);
    widen(y + height + 1, FOOTER);
  }
  const rows = [...steps].sort((a, b) => a[0] - b[0]);
  return (y) => rows.reduce((sum, [row, by]) => (row <= y + 0.5 ? sum + by : sum), y);
}
