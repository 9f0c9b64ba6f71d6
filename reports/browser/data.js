// The data that the page carries, one JSON object per section, parsed when it is first asked for. See reports/page/data.py.

const parsed = new Map();

/** One section: `section("errors").limits.mse`. */
function section(name) {
  if (!parsed.has(name)) parsed.set(name, readSection(document.getElementById(`data-${name}`).textContent));
  return parsed.get(name);
}

/** Its text is JSON, or packed. */
function readSection(text) {
  return JSON.parse(text.trimStart().startsWith("{") ? text : unpackText(text));
}

/** One quantity of all layers. See reports/page/packed.py. */
class LayerColumn {
  constructor(key, group, packed) {
    this.key = key;
    this.group = group.name;
    this.short = group.short;
    this.label = packed.label;
    this.unit = packed.unit ?? null;
    this.numeric = !packed.text;
    this.packed = packed;
  }

  get description() {
    return section("layers").texts[this.packed.about];
  }

  get values() {
    this.unpacked ??= this.packed.same ? layers.columns.get(this.packed.same).values : unpack(this.packed);
    return this.unpacked;
  }
}

/** Values of a packed column; what is not finite is written as text and read as a number. */
function unpack(packed) {
  const read = (value) => (!packed.text && typeof value === "string" ? Number(value) : value);
  if ("all" in packed) return new Array(layers.count).fill(read(packed.all));
  if (packed.list) return packed.list.map(read);
  const wide = packed.at.length / layers.count;
  const codes = unpackCodes(packed.at, wide);
  if (packed.of) {
    const known = packed.of.map(read);
    return codes.map((code) => known[code]);
  }
  const finite = finiteReader(packed, wide);
  const others = [null, NaN, Infinity, -Infinity];
  return codes.map((code) => (code < others.length ? others[code] : finite(code - others.length)));
}

function unpackCodes(text, wide) {
  const alphabet = section("layers").alphabet;
  const digits = new Uint8Array(128);
  for (let digit = 0; digit < alphabet.length; digit++) digits[alphabet.charCodeAt(digit)] = digit;
  const codes = new Array(text.length / wide).fill(0);
  for (let at = 0; at < text.length; at++) {
    const place = Math.floor(at / wide);
    codes[place] = codes[place] * alphabet.length + digits[text.charCodeAt(at)];
  }
  return codes;
}

/** Reads counts, levels with fixed decimals, or numbers with significant digits. */
function finiteReader({ low, unit }, wide) {
  if (low !== undefined) return (code) => code + low;
  const codes = section("layers").alphabet.length ** wide;
  if (unit === "dB") return (code) => (code - Math.floor(codes / 2)) / (wide === 4 ? 1000 : 100);
  const digits = wide === 4 ? 5 : 3;
  const smallest = 10 ** (digits - 1);
  const half = Math.floor(Math.floor((codes - 5) / (18 * smallest)) / 2);
  return (code) => {
    if (code === 0) return 0;
    const mantissa = ((code - 1) % (9 * smallest)) + smallest;
    const rest = Math.floor((code - 1) / (9 * smallest));
    const exponent = Math.floor(rest / 2) - half - digits + 1;
    const size = exponent <= 0 && exponent > -23 ? mantissa / 10 ** -exponent : Number(`${mantissa}e${exponent}`);
    return rest % 2 ? -size : size;
  };
}

/** All layers, by position: a position is the number of a row in every section. */
const layers = {
  get count() {
    return section("layers").count;
  },

  /** Columns by key, in the order of the table; `values` holds one per layer, unpacked when first asked for. */
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
