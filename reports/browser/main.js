// Brings the page to life: sections when they come into view, the address, keys, theme, print.

/** Draw a section into its place, once. */
function mount(name, root) {
  if (root.dataset.mounted) return;
  root.dataset.mounted = "yes";
  performance.mark(`${name}-start`);
  try {
    views[name](root);
  } catch (error) {
    // One section that fails takes nothing else with it.
    console.error(error);
    root.replaceChildren(element("p", { class: "notice" }, `This section cannot be shown: ${error.message}`));
  }
  performance.measure(name, `${name}-start`);
}

function mountWhenSeen() {
  const roots = [...document.querySelectorAll("[data-section]")];
  const watcher = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        watcher.unobserve(entry.target);
        mount(entry.target.dataset.section, entry.target);
      }
    },
    { rootMargin: "600px" },
  );
  for (const root of roots) watcher.observe(root);
}

/** Draw a section now, wherever it is. */
function reveal(name) {
  const root = document.querySelector(`[data-section="${name}"]`);
  if (root) mount(name, root);
  return root;
}

function followAddress() {
  // A link to a place of the page closes the layer, and leaves filters and order as they are.
  if (place.isAnchor()) {
    const folded = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (folded?.closest("details:not([open])")) bringIntoView(folded);
    return select(null, { remember: false });
  }
  const cause = place.read().get("cause");
  if (cause) bringIntoView(document.getElementById(`cause-${cause}`));
  select(layerOfAddress(), { remember: false });
  emit("view");
}

/** Go where the address leads at first, or say that it leads to nothing. */
function arrive() {
  followAddress();
  const now = place.read();
  const [layer, cause] = [now.get("layer"), now.get("cause")];
  const lost = [
    layer !== null && layerOfAddress() === null ? `layer ${layer}` : null,
    cause !== null && !document.getElementById(`cause-${cause}`) ? `cause ${cause}` : null,
  ].filter(Boolean);
  if (lost.length) {
    const text = `The link asks for what this report does not have: ${lost.join(", ")}.`;
    document.querySelector("header.top").append(element("p", { class: "notice", role: "alert" }, text));
  }
  if (layer === null && ["sort", "filter", "columns", "where", "type", "flagged"].some((key) => now.has(key))) reveal("table")?.scrollIntoView();
}

function switchTheme() {
  const root = document.documentElement;
  const dark = root.style.colorScheme
    ? root.style.colorScheme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.style.colorScheme = dark ? "light" : "dark";
  try {
    localStorage.setItem("quantmedic-theme", root.style.colorScheme);
  } catch {
    // Without storage the choice lasts as long as the page.
  }
  announce(`${root.style.colorScheme} theme`);
  emit("theme");
}

async function copy(button) {
  const text = button.parentElement.querySelector("code").textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // A page from a file may not reach the clipboard in every browser; a selection can be copied by hand.
    getSelection().selectAllChildren(button.parentElement.querySelector("code"));
    button.textContent = "selected: press Ctrl+C";
    return;
  }
  button.textContent = "copied";
  announce("copied");
  setTimeout(() => (button.textContent = "copy"), 1500);
}

function addCopyButtons() {
  for (const block of document.querySelectorAll(".first pre, .tab pre, #prescription pre")) {
    const holder = element("div", { class: "copyable" });
    block.replaceWith(holder);
    holder.append(block, element("button", { type: "button", class: "copy", onclick: (e) => copy(e.target) }, "copy"));
  }
}

/** Print shows everything: what is folded is opened for it, and closed again. */
function openForPrint() {
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const details of opened) details.open = true;
    reveal("charts");
    emit("theme");
  });
  addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
    emit("theme");
  });
}

function start() {
  document.getElementById("theme").addEventListener("click", switchTheme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => emit("theme"));
  addCopyButtons();
  openForPrint();
  listenToKeys();
  addEventListener("popstate", followAddress);
  addEventListener("hashchange", followAddress);
  arrive();
  mountWhenSeen();
}

start();
