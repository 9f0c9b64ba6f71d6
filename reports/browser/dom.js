// Elements, text and colours. Text goes in as text, never as markup.

/** An element: `element("button", {class: "x", onclick: f, "aria-label": "y"}, "text", child)`. */
function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** An SVG element, in the same way. */
function drawn(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

const probe = element("span", { hidden: true });

/** The colour that a custom property has in the present theme, as a canvas takes it: `colour("--accent")`. */
function colour(property) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${property})`;
  return getComputedStyle(probe).color;
}

/** Say something to those who listen to the page instead of looking at it. */
function announce(text) {
  document.getElementById("announcer").textContent = text;
}

/** Scroll to a node, and open what it is folded into. */
function bringIntoView(node) {
  node?.closest("details")?.setAttribute("open", "");
  node?.scrollIntoView();
}
