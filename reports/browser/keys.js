// The keyboard: every key here has a button or a link that does the same.

const KEYS = {
  "/": ["search the layers", () => reveal("table")?.querySelector("input[type=search]")?.focus()],
  j: ["next layer", () => step(1)],
  k: ["previous layer", () => step(-1)],
  f: ["only flagged layers", () => emit("flagged")],
  "?": ["these keys", () => showKeys()],
};

/** Select the layer before or after the selected one. */
function step(by) {
  const next = selected === null ? 0 : selected + by;
  if (next >= 0 && next < layers.count) select(next);
}

function showKeys() {
  const dialog = document.getElementById("keys");
  if (dialog.open) return;
  const rows = Object.entries(KEYS).map(([key, [text]]) =>
    element("div", {}, element("dt", {}, element("kbd", {}, key)), element("dd", {}, text)),
  );
  rows.push(
    element("div", {}, element("dt", {}, element("kbd", {}, "1"), " … ", element("kbd", {}, "9")), element("dd", {}, "cause")),
    element("div", {}, element("dt", {}, element("kbd", {}, "Esc")), element("dd", {}, "close")),
  );
  dialog.querySelector("dl").replaceChildren(...rows);
  dialog.showModal();
}

function toCause(rank) {
  const card = document.querySelectorAll(".cause")[rank - 1];
  if (!card) return;
  if (selected !== null) select(null);
  bringIntoView(card);
  card.querySelector("h3").focus({ preventScroll: true });
}

function listenToKeys() {
  document.getElementById("keys-button").addEventListener("click", showKeys);
  document.getElementById("keys-close").addEventListener("click", () => document.getElementById("keys").close());
  addEventListener("keydown", (event) => {
    // A first Escape empties a search, which browsers do by themselves; a second one leaves it to the other keys.
    if (event.key === "Escape" && event.target.type === "search" && !event.target.value) event.target.blur();
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.matches("input:not([type=radio]), select, textarea")) return;
    if (/^[1-9]$/.test(event.key)) return toCause(Number(event.key));
    const known = KEYS[event.key];
    if (!known || (event.key !== "?" && !document.getElementById("data-layers"))) return;
    event.preventDefault();
    known[1]();
  });
}
