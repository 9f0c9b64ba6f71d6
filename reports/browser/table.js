// The layer table: every quantity a column. Only the rows in view are in the document.

const OVERSCAN = 8;
const NAME_END = 14;
const KEY_STEPS = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity };
/** Fixed stops in dB, so that two reports compare; the tint deepens below each. */
const LEVEL_STOPS = [40, 30, 20, 10];
const UNITS_SHOWN = ["dB", "bits", "levels", "steps", "codes", "σ"];
const LEGEND = "● over a threshold · – not measured · SQNR tinted below 40, 30, 20, 10 dB";
const COMPARISONS = {
  "<": (a, b) => a < b,
  "<=": (a, b) => a <= b,
  ">=": (a, b) => a >= b,
  ">": (a, b) => a > b,
  "=": (a, b) => a === b,
};

views.table = (root) => new LayerTable(root);

/** `KEY` or `KEY:desc`; null for the order of the network. */
function parseSort(text) {
  if (!text) return null;
  const descending = text.endsWith(":desc");
  const key = descending ? text.slice(0, -5) : text;
  return layers.columns.has(key) ? { key, descending } : null;
}

/** `KEY<20`. */
function parseCondition(text) {
  const [, key, comparison, value] = /^(.+?)(<=|>=|<|>|=)(.+)$/.exec(text ?? "") ?? [];
  if (!layers.columns.get(key)?.numeric || !Number.isFinite(Number(value))) return null;
  return { key, comparison, value: Number(value) };
}

/** What was not measured sorts behind all measured values. */
function isMissing(value) {
  return value === null || Number.isNaN(value) || (Array.isArray(value) && !value.length);
}

/** Positions ordered by one column, in either direction; equal ones keep their order, missing ones come last. */
function sortPositions(positions, { key, descending }) {
  const values = layers.columns.get(key).values;
  const keys = Array.isArray(values.find((v) => v !== null)) ? values.map((v) => v && v.join(", ")) : values;
  const known = positions.filter((position) => !isMissing(values[position]));
  const sign = descending ? -1 : 1;
  known.sort((a, b) => (keys[a] < keys[b] ? -sign : keys[a] > keys[b] ? sign : a - b));
  return [...known, ...positions.filter((position) => isMissing(values[position]))];
}

/** Characters that the numbers of a column take; see formatNumber. */
function numberWidth({ values, unit }) {
  if (unit === "dB") return 6;
  let [least, most, whole] = [Infinity, 0, true];
  for (const value of values) {
    if (!value || !Number.isFinite(value)) continue;
    least = Math.min(least, Math.abs(value));
    most = Math.max(most, Math.abs(value));
    whole &&= Number.isInteger(value);
  }
  if (whole) return Math.max(5, Math.min(9, Math.log10(most + 1) + 2));
  return least < 1e-3 || most >= 1e6 ? 9 : least < 1e-2 ? 8 : 7;
}

/** A field of a CSV file; text that a spreadsheet would run as a formula gets an apostrophe before it. */
function csvField(value) {
  if (value === null) return "";
  if (typeof value === "number") return String(value).replace("Infinity", "inf").replace("NaN", "nan");
  const text = Array.isArray(value) ? value.join(" ") : String(value);
  const inert = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(inert) ? `"${inert.replaceAll('"', '""')}"` : inert;
}

class LayerTable {
  constructor(root) {
    this.presets = new Map(section("layers").presets.map((preset) => [preset.name, preset]));
    this.limits = section("errors").limits;
    this.rows = [];
    this.drawn = new Map();
    this.active = 0;
    this.build(root);
    this.follow();
    on("view", () => this.follow());
    on("flagged", () => this.change({ flagged: !this.view.flagged }));
    on("select", (position) => this.showSelected(position));
    on("hover", (position) => this.pointAt(position));
    if (selected !== null) this.showSelected(selected);
  }

  // What is shown, and the address that it lives in.

  /** Take columns, order and filters from the address. */
  follow() {
    const now = place.read();
    const asked = now.get("columns") ?? "default";
    const sort = now.has("sort") ? parseSort(now.get("sort")) : this.sortOf(asked);
    const view = { filter: now.get("filter") ?? "", type: now.get("type") ?? "", flagged: now.get("flagged") === "1" };
    this.set({ ...view, sort, where: parseCondition(now.get("where")), columns: this.columnsOf(asked), preset: asked });
  }

  columnsOf(asked) {
    const preset = this.presets.get(asked);
    if (preset && !preset.columns) return [...layers.columns.keys()];
    const keys = preset ? preset.columns : asked.split(",");
    const known = keys.filter((key) => layers.columns.has(key));
    return known.length ? known : this.columnsOf("default");
  }

  sortOf(name) {
    const key = this.presets.get(name)?.sort;
    return key ? parseSort(key.startsWith("-") ? `${key.slice(1)}:desc` : key) : null;
  }

  /** Change what is shown and say so in the address. */
  change(changes) {
    this.set({ ...this.view, ...changes });
    const { sort, filter, type, flagged, where, preset } = this.view;
    const own = this.sortOf(preset);
    const written = sort ? sort.key + (sort.descending ? ":desc" : "") : own ? "" : null;
    place.write(
      {
        sort: own && sort && own.key === sort.key && own.descending === sort.descending ? null : written,
        filter: filter || null,
        type: type || null,
        flagged: flagged ? "1" : null,
        where: where ? where.key + where.comparison + where.value : null,
        columns: preset === "default" ? null : preset,
      },
      true,
    );
    announce(this.status.textContent);
  }

  set(view) {
    performance.mark("table-update-start");
    this.view = view;
    this.rows = this.filtered();
    if (view.sort) this.rows = sortPositions(this.rows, view.sort);
    this.active = Math.max(0, this.rows.indexOf(selected));
    this.drawn.clear();
    this.drawTools();
    this.drawHead();
    this.scroller.scrollTop = 0;
    this.drawRows();
    performance.measure("table-update", "table-update-start");
  }

  filtered() {
    const { filter, type, flagged, where } = this.view;
    const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
    const types = layers.columns.get("op_type")?.values;
    const bound = where && layers.columns.get(where.key).values;
    const rows = [];
    for (let position = 0; position < layers.count; position++) {
      if (flagged && !layers.isDegraded(position) && !layers.value("findings", position)?.length) continue;
      if (type && types?.[position] !== type) continue;
      if (where && (bound[position] === null || !COMPARISONS[where.comparison](bound[position], where.value))) continue;
      if (words.length && !words.every((word) => this.haystack(position).includes(word))) continue;
      rows.push(position);
    }
    return rows;
  }

  /** Names, operator and findings of a layer in lower case. */
  haystack(position) {
    this.haystacks ??= [];
    return (this.haystacks[position] ??= ["name", "float_name", "quantized_name", "op_type", "findings"]
      .map((key) => layers.value(key, position) ?? "")
      .join(" ")
      .toLowerCase());
  }

  // The document.

  build(root) {
    const find = () => this.change({ filter: this.search.value.trim() });
    this.search = this.input("search", "Filter layers", "name, operator or finding", find);
    this.type = element("select", { "aria-label": "Operator", onchange: () => this.change({ type: this.type.value }) });
    const types = [...new Set(layers.columns.get("op_type")?.values ?? [])].filter(Boolean).sort();
    this.type.append(new Option("all operators", ""), ...types.map((type) => new Option(type)));
    this.flag = this.button("flagged only", () => this.change({ flagged: !this.view.flagged }));
    this.flag.title = "degraded, or with findings";
    const compare = () => this.compare();
    this.whereKey = element("select", { "aria-label": "Column to compare", onchange: compare });
    this.comparison = element("select", { "aria-label": "Comparison", onchange: compare });
    this.comparison.append(...Object.keys(COMPARISONS).map((comparison) => new Option(comparison)));
    this.bound = this.input("number", "Value to compare with", "value", compare);
    this.bound.step = "any";
    const where = [this.whereKey, this.comparison, this.bound];
    this.status = element("span", { class: "layers-count" });
    this.presetButtons = [...this.presets.keys()].map((name) => this.button(name, () => this.choosePreset(name)));
    this.more = this.button("columns …", () => this.toggleColumns());
    this.more.setAttribute("aria-expanded", "false");
    this.panel = element("div", { class: "layers-columns", role: "group", "aria-label": "Columns", hidden: true });
    this.panel.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.toggleColumns();
    });
    const left = section("layers").left_out;
    const save = (text, keys) => this.button(text, () => this.save(keys()));
    const saves = [
      save("save as CSV", () => this.view.columns),
      save("CSV, all columns", () => [...layers.columns.keys()]),
    ];
    root.replaceChildren(
      this.tools(this.search, this.type, this.flag, this.group("layers-where", "Where a column", where), this.status),
      this.tools(
        this.group("layers-presets", "Ready tables", this.presetButtons),
        this.more,
        this.group("layers-save", "Save", saves),
      ),
      this.panel,
      this.buildGrid(),
      element("p", { class: "layers-foot muted" }, LEGEND),
    );
    if (!left.length) return;
    const summary = element("summary", {}, `${left.length} columns are left out to keep this page small`);
    const text = element("p", { class: "muted" }, `quantmedic show CASE prints them: ${left.join("; ")}.`);
    root.append(element("details", {}, summary, text));
  }

  tools(...children) {
    return element("div", { class: "layers-tools" }, ...children);
  }

  group(name, label, children) {
    return element("span", { class: name, role: "group", "aria-label": label }, ...children);
  }

  button(text, onclick) {
    return element("button", { type: "button", onclick }, text);
  }

  input(type, label, placeholder, oninput) {
    return element("input", { type, placeholder, "aria-label": label, oninput });
  }

  buildGrid() {
    this.widths = element("colgroup");
    this.head = element("thead");
    this.body = element("tbody");
    const parts = [this.widths, this.head, this.body];
    this.grid = element("table", { role: "grid", tabindex: 0, "aria-label": "Layers" }, ...parts);
    this.scroller = element("div", { class: "layers-scroll" }, this.grid);
    this.above = element("tr", { class: "layers-space", "aria-hidden": "true" });
    this.below = this.above.cloneNode();
    this.scroller.addEventListener("scroll", () => {
      this.frame ??= requestAnimationFrame(() => {
        this.frame = null;
        this.drawRows();
      });
    });
    const rowOf = (event) => event.target.closest("tr[data-position]");
    this.body.addEventListener("click", (event) => {
      const row = rowOf(event);
      if (!row || !getSelection().isCollapsed) return;
      this.grid.focus({ preventScroll: true });
      select(Number(row.dataset.position));
    });
    this.body.addEventListener("mouseover", (event) => {
      const row = rowOf(event);
      if (row) hover(Number(row.dataset.position));
    });
    this.body.addEventListener("mouseleave", () => hover(null));
    this.grid.addEventListener("keydown", (event) => this.onKey(event));
    // A click focuses too, and must not move what it is on.
    this.grid.addEventListener("focus", () => this.grid.matches(":focus-visible") && this.activate(this.active));
    new ResizeObserver(() => this.drawRows()).observe(this.scroller);
    return this.scroller;
  }

  /** Tools show what is in force. */
  drawTools() {
    const { filter, type, flagged, where, preset, columns } = this.view;
    if (this.search.value.trim() !== filter) this.search.value = filter;
    this.type.value = type;
    this.flag.setAttribute("aria-pressed", flagged);
    for (const button of this.presetButtons) button.setAttribute("aria-pressed", button.textContent === preset);
    const key = where?.key ?? this.whereKey.value;
    const numeric = [...layers.columns.values()].filter((c) => c.numeric && (c.key === key || columns.includes(c.key)));
    const options = numeric.map((c) => new Option(c.short ? `${c.short} ${c.label}` : c.label, c.key));
    this.whereKey.replaceChildren(new Option("where …", ""), ...options);
    this.whereKey.value = key;
    if (where) this.comparison.value = where.comparison;
    if (where && Number(this.bound.value) !== where.value) this.bound.value = where.value;
    if (!where && document.activeElement !== this.bound) this.bound.value = "";
    this.status.textContent = `${this.rows.length} of ${layers.count} layers`;
    for (const box of this.panel.querySelectorAll("input[type=checkbox]")) box.checked = columns.includes(box.value);
  }

  compare() {
    const value = this.bound.value === "" ? NaN : Number(this.bound.value);
    const key = this.whereKey.value;
    const where = key && Number.isFinite(value) ? { key, comparison: this.comparison.value, value } : null;
    if (where || this.view.where) this.change({ where });
  }

  drawHead() {
    const columns = this.view.columns.map((key) => layers.columns.get(key));
    const widths = columns.map((column) => this.width(column));
    this.edges = [0];
    for (const width of widths) this.edges.push(this.edges.at(-1) + width);
    this.across = [0, 0];
    this.grid.style.width = `max(100%, ${this.edges.at(-1)}ch)`;
    // The name takes what is left.
    const style = (place) => (columns[place].key === "name" ? null : `width:${widths[place]}ch`);
    this.widths.replaceChildren(...widths.map((_, place) => element("col", { style: style(place) })));
    const groups = [];
    for (const { short } of columns) {
      if (groups.at(-1)?.short === short) groups.at(-1).span++;
      else groups.push({ short, span: 1 });
    }
    const over = groups.map(({ short, span }) => element("td", { colspan: span }, element("span", {}, short)));
    this.head.replaceChildren(
      element("tr", { class: "layers-groups", "aria-hidden": "true" }, ...over),
      element("tr", { "aria-rowindex": 1 }, ...columns.map((column) => this.heading(column))),
    );
    this.grid.setAttribute("aria-rowcount", this.rows.length + 1);
    this.grid.setAttribute("aria-colcount", columns.length);
  }

  heading(column) {
    const { sort } = this.view;
    const order = sort?.key === column.key ? (sort.descending ? "descending" : "ascending") : null;
    const unit = UNITS_SHOWN.includes(column.unit) && column.unit !== column.label ? ` ${column.unit}` : "";
    const button = this.button(column.label, () => this.sortBy(column));
    if (unit) button.append(element("small", {}, unit));
    if (order) button.append(element("span", { "aria-hidden": "true" }, order === "ascending" ? " ▲" : " ▼"));
    button.dataset.key = column.key;
    button.title = `${column.group}: ${column.description}\n${column.key}`;
    button.setAttribute("aria-label", `${column.group}: ${column.label}${unit}`);
    return element("th", { scope: "col", class: this.cellClass(column), "aria-sort": order }, button);
  }

  /** First click: the worst or largest on top, or A to Z; second: the other way; third: the order of the network. */
  sortBy(column) {
    const first = column.numeric && column.unit !== "dB" && column.label !== "cosine" && column.key !== "index";
    const { key } = column;
    const now = this.view.sort?.key === key ? this.view.sort.descending : null;
    const next = now === null ? { key, descending: first } : { key, descending: !first };
    this.change({ sort: now === !first ? null : next });
    this.head.querySelector(`[data-key="${CSS.escape(key)}"]`).focus({ preventScroll: true });
  }

  cellClass(column) {
    return column.key === "name" ? "layers-name" : column.numeric ? "num" : null;
  }

  /** Width in characters. */
  width(column) {
    if (column.key === "name") return innerWidth < 736 ? 20 : 30;
    const label = Math.max(...column.label.split(" ").map((word) => word.length)) + 3.5;
    if (column.key === "index") return 6.5;
    if (column.numeric) return Math.max(numberWidth(column) + 2.6, label);
    const lengths = column.values.slice(0, 2000).map((value) => formatValue(value ?? "", column).length);
    const longest = Math.max(...lengths);
    return Math.max(label, Math.min(longest + 3, column.key === "op_type" ? 15 : 28));
  }

  /** The rows in view, and some beside them; rows that stay are used again. */
  drawRows() {
    const height = this.height ?? 28;
    const top = this.scroller.scrollTop;
    this.lookAcross();
    const first = Math.max(0, Math.floor(top / height) - OVERSCAN);
    const last = Math.min(this.rows.length, Math.ceil((top + this.scroller.clientHeight) / height) + OVERSCAN);
    const shown = this.rows.slice(first, last);
    const isDrawn = shown.length === this.drawn.size && shown.every((position) => this.drawn.has(position));
    if (isDrawn && shown.length) return this.mark();
    const kept = new Map(shown.map((position) => [position, this.drawn.get(position) ?? this.row(position)]));
    this.drawn = kept;
    let index = first + 2;
    for (const row of kept.values()) row.setAttribute("aria-rowindex", index++);
    this.above.style.height = `${first * height}px`;
    this.below.style.height = `${(this.rows.length - last) * height}px`;
    this.body.replaceChildren(this.above, ...kept.values(), this.below);
    this.mark();
    const measured = kept.values().next().value?.getBoundingClientRect().height;
    if (!measured || Math.abs(measured - height) < 0.01) return;
    // The reader's font or zoom makes rows of another height.
    this.height = measured;
    this.drawRows();
  }

  /** Which columns are in view: of a wide table, only those are in the document, and what leads to the name. */
  lookAcross() {
    const { edges, scroller, across } = this;
    const count = edges.length - 1;
    const wide = count > 24;
    if (!wide && across[1] === count) return;
    const scale = this.grid.offsetWidth / edges[count];
    const left = scroller.scrollLeft / scale;
    const right = left + scroller.clientWidth / scale;
    const first = wide ? edges.findIndex((edge) => edge > left) - 1 : 0;
    const after = wide ? edges.findIndex((edge) => edge >= right) : count;
    const last = after < 0 ? count : after;
    if (first >= across[0] && last <= across[1]) return;
    this.across = [Math.max(0, first - 3), Math.min(count, last + 3)];
    this.drawn.clear();
  }

  row(position) {
    const { columns } = this.view;
    const lead = columns.indexOf("name") + 1;
    const [first, last] = [Math.max(lead, this.across[0]), Math.max(lead, this.across[1])];
    const cells = (from, to) =>
      columns.slice(from, to).map((key, place) => {
        const cell = this.cell(layers.columns.get(key), position);
        cell.ariaColIndex = from + place + 1;
        return cell;
      });
    const gap = (size) => (size > 0 ? [element("td", { colspan: size, "aria-hidden": "true" })] : []);
    const row = element("tr", { id: `layers-row-${position}`, "data-position": position });
    row.append(...cells(0, lead), ...gap(first - lead), ...cells(first, last), ...gap(columns.length - last));
    return row;
  }

  cell(column, position) {
    const value = column.values[position];
    if (column.key === "name") {
      const name = layers.label(position);
      const flag = layers.isDegraded(position) ? element("span", { class: "flag", title: "degraded" }, "●") : null;
      // Names differ at their ends: what does not fit is left out before it.
      const text = [name.slice(0, -NAME_END), name.slice(-NAME_END)].map((part) => element("span", {}, part));
      return element("th", { scope: "row", class: "layers-name", title: name }, element("div", {}, flag, ...text));
    }
    const aligned = column.numeric ? "num" : "";
    if (value === null) return element("td", { class: `${aligned} nm`, "aria-label": NOT_MEASURED }, "–");
    const text = formatValue(value, column);
    if (!column.numeric) return element("td", { title: text.length > 20 ? text : null }, text);
    if (this.isBeyond(column, value)) {
      return element("td", { class: "num beyond", title: "over the threshold" }, `● ${text}`);
    }
    const tint = column.key.endsWith("sqnr_db") ? LEVEL_STOPS.filter((stop) => value < stop).length : 0;
    return element("td", { class: `num level-${tint}` }, text);
  }

  /** Whether an accumulated error is over the threshold that makes its layer degraded. */
  isBeyond(column, value) {
    const [, metric] = /\.accumulated\.(mse|nmse|cosine|sqnr_db)$/.exec(column.key) ?? [];
    const limit = this.limits[metric] ?? null;
    if (limit === null) return false;
    return metric.endsWith("se") ? value > limit : value < limit;
  }

  // One row: selected, pointed at, reached by the keyboard.

  mark() {
    for (const [position, row] of this.drawn) {
      row.setAttribute("aria-selected", position === selected);
      row.classList.toggle("layers-active", position === this.rows[this.active]);
    }
    const active = this.drawn.get(this.rows[this.active]);
    this.grid.setAttribute("aria-activedescendant", active?.id ?? "");
  }

  pointAt(position) {
    for (const [at, row] of this.drawn) row.classList.toggle("layers-hover", at === position);
  }

  showSelected(position) {
    const index = position === null ? -1 : this.rows.indexOf(position);
    index < 0 ? this.mark() : this.activate(index);
  }

  activate(index) {
    this.active = Math.max(0, Math.min(index, this.rows.length - 1));
    const height = this.height ?? 28;
    const room = this.scroller.clientHeight - this.head.offsetHeight;
    const top = this.active * height;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    if (top + height > this.scroller.scrollTop + room) this.scroller.scrollTop = top + height - room;
    this.drawRows();
  }

  onKey(event) {
    if (event.target !== this.grid || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" && this.rows.length) return select(this.rows[this.active]);
    if (!(event.key in KEY_STEPS)) return;
    event.preventDefault();
    this.activate(this.active + KEY_STEPS[event.key]);
    hover(this.rows[this.active] ?? null);
  }

  // Columns.

  choosePreset(name) {
    this.change({ preset: name, columns: this.columnsOf(name), sort: this.sortOf(name) });
  }

  toggleColumns() {
    if (!this.panel.childElementCount) this.buildColumns();
    this.panel.hidden = !this.panel.hidden;
    this.more.setAttribute("aria-expanded", !this.panel.hidden);
    (this.panel.hidden ? this.more : this.panel.querySelector("input")).focus();
  }

  buildColumns() {
    const fields = Object.entries(Object.groupBy(layers.columns.values(), (column) => column.group)).map(
      ([name, columns]) => element("fieldset", {}, element("legend", {}, name), ...columns.map((c) => this.choice(c))),
    );
    const find = this.input("search", "Find a column", "find a column", () => {
      const wanted = find.value.trim().toLowerCase();
      for (const field of fields) {
        for (const label of field.querySelectorAll("label")) label.hidden = !label.dataset.find.includes(wanted);
        field.hidden = !field.querySelector("label:not([hidden])");
      }
    });
    const tools = this.tools(find, this.button("close", () => this.toggleColumns()));
    this.panel.replaceChildren(tools, element("div", { class: "layers-fields" }, element("div", {}, ...fields)));
  }

  choice(column) {
    const { key, label, group, description } = column;
    const box = element("input", { type: "checkbox", value: key, onchange: () => this.chooseColumn(key, box.checked) });
    box.checked = this.view.columns.includes(key);
    const found = `${group} ${label} ${key} ${description}`.toLowerCase();
    return element("label", { title: description, "data-find": found }, box, ` ${label}`);
  }

  /** Columns stand in the order of the list, whatever the order in which they were chosen. */
  chooseColumn(key, wanted) {
    const chosen = new Set(this.view.columns);
    wanted ? chosen.add(key) : chosen.delete(key);
    const columns = [...layers.columns.keys()].filter((one) => chosen.has(one));
    if (columns.length) this.change({ columns, preset: columns.join(",") });
  }

  save(keys) {
    const columns = keys.map((key) => layers.columns.get(key));
    const lines = [keys, ...this.rows.map((position) => columns.map((column) => csvField(column.values[position])))];
    const blob = new Blob([lines.map((line) => `${line.join(",")}\n`).join("")], { type: "text/csv" });
    const link = element("a", { href: URL.createObjectURL(blob), download: "layers.csv" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    announce(`saved ${this.rows.length} layers`);
  }
}
