// The data that the page carries, one JSON object per section, parsed when it is first asked for. See reports/page.py.

const parsed = new Map();

/** One section: `section("errors").limits.mse`. */
function section(name) {
  if (!parsed.has(name)) parsed.set(name, JSON.parse(document.getElementById(`data-${name}`).textContent));
  return parsed.get(name);
}

/** All layers, by position: a position is the number of a row in every section. */
const layers = {
  get count() {
    return section("layers").count;
  },

  /** Columns by key, in the order of the table; numbers that are not finite are read as such. */
  get columns() {
    if (!this.known) {
      this.known = new Map();
      for (const column of section("layers").columns) {
        if (column.numeric) column.values = column.values.map((v) => (typeof v === "string" ? Number(v) : v));
        this.known.set(column.key, column);
      }
    }
    return this.known;
  },

  /** One value; null where it was not measured or the column does not exist. */
  value(key, position) {
    return this.columns.get(key)?.values[position] ?? null;
  },

  /** The name that people see: of the float model where it has one. */
  label(position) {
    return this.value("float_name", position) ?? this.value("name", position) ?? "?";
  },

  /** The error of one layer: `error("accumulated", "sqnr_db", "validation", 7)`. */
  error(kind, metric, role, position) {
    return this.value(`output.${role}.${kind}.${metric}`, position);
  },

  /** Where a name is first found, else -1. */
  find(name) {
    for (let position = 0; position < this.count; position++) if (this.label(position) === name) return position;
    return -1;
  },

  /** Whether the accumulated error of a layer is over a threshold. */
  isDegraded(position) {
    this.degraded ??= new Set(section("layers").degraded);
    return this.degraded.has(position);
  },
};
