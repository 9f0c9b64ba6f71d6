// What the reader looks at: a layer, a cause, an order, a filter. It lives in the address, so that links lead there.

const listeners = new Map();

/** Call `action` whenever something of this kind happens: "select", "hover", "view" or "theme". */
function on(kind, action) {
  listeners.set(kind, [...(listeners.get(kind) ?? []), action]);
}

/** Call it no more. */
function off(kind, action) {
  listeners.set(kind, listeners.get(kind).filter((one) => one !== action));
}

function emit(kind, ...details) {
  for (const action of listeners.get(kind) ?? []) action(...details);
}

/** The address: `#layer=conv1&sort=name:desc&filter=conv&flagged=1`; `at` tells layers of one name apart. */
const place = {
  last: new URLSearchParams(),

  /** Whether it is a plain link to a place of the page, such as `#graph`. */
  isAnchor() {
    return location.hash.length > 1 && !location.hash.includes("=");
  },

  /** The keys; behind a plain link those before it, but for what was open. */
  read() {
    if (this.isAnchor()) for (const key of ["layer", "at", "cause"]) this.last.delete(key);
    else this.last = new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B"));
    return new URLSearchParams(this.last);
  },

  /** Change some keys; null removes one. `replace` leaves no entry in the history. */
  write(changes, replace = false) {
    const now = this.read();
    for (const [key, value] of Object.entries(changes)) value === null ? now.delete(key) : now.set(key, value);
    const text = [...now].map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&");
    const target = text ? `#${text}` : location.pathname + location.search;
    history[replace ? "replaceState" : "pushState"](null, "", target);
  },
};

/** Position of the selected layer, null where none is. */
let selected = null;

/** Select a layer by its position, or none with null; everything that shows layers follows. */
function select(position, { remember = true } = {}) {
  if (position === selected) return;
  selected = position;
  if (remember) {
    const name = position === null ? null : layers.label(position);
    place.write({ layer: name, at: position === null || layers.find(name) === position ? null : position, cause: null });
  }
  emit("select", position);
}

/** Point at a layer without selecting it; null for none. */
function hover(position) {
  emit("hover", position);
}

/** The layer that the address names, else null. */
function layerOfAddress() {
  const now = place.read();
  // A report that was written without its case has no layers to open.
  if (!now.has("layer") || !document.getElementById("data-layers")) return null;
  const at = Number(now.get("at") ?? -1);
  if (at >= 0 && at < layers.count && layers.label(at) === now.get("layer")) return at;
  const found = layers.find(now.get("layer"));
  return found < 0 ? null : found;
}

/** What draws each section of the page into its place: `views.charts = (root) => { … }`. */
const views = {};
