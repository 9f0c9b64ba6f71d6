// Numbers as the rest of the report writes them; see reports/text.py.

const NOT_MEASURED = "not measured";

/** A number to three significant digits; counts stay exact. */
function formatNumber(value, digits = 3) {
  if (value === null || value === undefined) return NOT_MEASURED;
  if (Number.isNaN(value)) return "not a number";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const rounded = Number(value.toPrecision(digits));
  const magnitude = Math.abs(rounded);
  if (magnitude >= 1000 && magnitude < 1e6) return rounded.toFixed(0);
  if (magnitude !== 0 && (magnitude < 1e-4 || magnitude >= 10 ** digits)) {
    const [mantissa, exponent] = rounded.toExponential().split("e");
    return `${mantissa}e${Number(exponent)}`;
  }
  return String(rounded);
}

/** A level in dB with one decimal, without its unit. */
function formatLevel(value) {
  return Number.isFinite(value) ? (Math.round(value * 10) / 10 + 0).toFixed(1) : formatNumber(value);
}

/** A value of a column of the layer table. */
function formatValue(value, column) {
  if (value === null || value === undefined) return NOT_MEASURED;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.map((item) => formatValue(item, column)).join(", ");
  if (typeof value !== "number") return String(value);
  return column.unit === "dB" ? formatLevel(value) : formatNumber(value);
}
