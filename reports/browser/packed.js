// Numbers as text of few characters; see reports/page/packing.py.

const PACKED_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#()*+,-.:;=?@[]^_|~$";

/** Codes of so many characters each. */
function unpacked(text, width) {
  const base = PACKED_DIGITS.length;
  const codes = [];
  for (let at = 0; at < text.length; at += width) {
    let code = 0;
    for (let i = 0; i < width; i++) code = code * base + PACKED_DIGITS.indexOf(text[at + i]);
    codes.push(code);
  }
  return codes;
}

/** Counts; those up to a hundred are exact. */
const unpackCounts = (text) => unpacked(text, 2).map((code) => (code ? Math.round(2 ** ((code - 1) / 100)) : 0));

/** Real numbers to three digits. */
function unpackReals(text) {
  const [steps, lowest, half] = [2200, -64, 128 * 2200];
  return unpacked(text, 3).map((code) => {
    if (!code) return 0;
    const place = (code - 1) % half;
    const size = (1 + (place % steps) / steps) * 2 ** (Math.floor(place / steps) + lowest);
    return code > half ? -size : size;
  });
}

/** Levels in dB; null where one was not measured. */
const unpackLevels = (text) =>
  unpacked(text, 2).map((code) => (code === 6802 ? null : code === 6801 ? Infinity : code / 20 - 100));

/** Heights as parts of the highest. */
const unpackHeights = (text) => unpacked(text, 1).map((code) => code / (PACKED_DIGITS.length - 1));

/** Numbers of channels. */
const unpackPlaces = (text) => unpacked(text, 3);
