// The data that the page carries, one JSON object per section, parsed when it is first asked for. See reports/page/data.py.

const parsed = new Map();

/** One section: `section("errors").limits.mse`. */
function section(name) {
  if (!parsed.has(name)) parsed.set(name, JSON.parse(carried.get(`data-${name}`)));
  return parsed.get(name);
}

/** One quantity of all layers. See reports/page/layer_table.py. */
class LayerColumn {
  constructor(key, group, written) {
    this.key = key;
    this.group = group.name;
    this.short = group.short;
    this.label = written.label;
    this.unit = written.unit ?? null;
    this.numeric = !written.text;
    this.written = written;
  }

  get description() {
    return section("layers").texts[this.written.about];
  }

  get values() {
    const { same, values } = this.written;
    this.parsed ??= same ? layers.columns.get(same).values : this.read(JSON.parse(values));
    return this.parsed;
  }

  /** What is not finite is written as text. */
  read(values) {
    return this.numeric ? values.map((value) => (typeof value === "string" ? Number(value) : value)) : values;
  }
}

/** All layers, by position: a position is the number of a row in every section. */
const layers = {
  get count() {
    return section("layers").count;
  },

  /** Columns by key, in the order of the table; `values` holds one per layer, parsed when first asked for. */
  get columns() {
    if (!this.known) {
      this.known = new Map();
      for (const group of section("layers").groups)
        for (const column of group.columns) {
          const key = group.prefix ? `${group.prefix}.${column.key}` : column.key;
          this.known.set(key, new LayerColumn(key, group, column));
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
