// Unpacks what the page carries in fewer bytes, at once and in any browser: DEFLATE as RFC 1951 tells it. Runs before
// the program, which it unpacks, too; the policy of the page knows the checksums of both.

/** Text that was packed as `<bytes>:<base64>`. */
function unpackText(packed) {
  const [size, encoded] = packed.trim().split(":");
  const bytes = Uint8Array.from(atob(encoded), (letter) => letter.charCodeAt(0));
  return new TextDecoder().decode(inflate(bytes, Number(size)));
}

const DAMAGED = "what this page carries is damaged";

function inflate(bytes, size) {
  const out = new Uint8Array(size);
  let [place, length] = [0, 0];
  const take = (count) => {
    if (place + count > 8 * bytes.length) throw new Error(DAMAGED);
    let value = 0;
    for (let i = 0; i < count; i++, place++) value |= ((bytes[place >> 3] >> (place & 7)) & 1) << i;
    return value;
  };
  /** A symbol by its code: codes of one length follow each other, and shorter ones come first. */
  const decode = ({ counts, symbols }) => {
    if (place >= 8 * bytes.length) throw new Error(DAMAGED);
    let [code, first, index] = [0, 0, 0];
    for (let long = 1; long < 16; long++) {
      code |= (bytes[place >> 3] >> (place & 7)) & 1;
      place++;
      if (code - first < counts[long]) return symbols[index + code - first];
      index += counts[long];
      first = (first + counts[long]) << 1;
      code <<= 1;
    }
    throw new Error(DAMAGED);
  };
  const copyBlock = ([literals, distances]) => {
    for (;;) {
      const symbol = decode(literals);
      if (symbol === 256) return;
      if (symbol < 256) {
        out[length++] = symbol;
        continue;
      }
      const count = LENGTHS.start[symbol - 257] + take(LENGTHS.extra[symbol - 257]);
      const back = decode(distances);
      const from = length - DISTANCES.start[back] - take(DISTANCES.extra[back]);
      for (let i = 0; i < count; i++) out[length++] = out[from + i];
    }
  };
  const storedBlock = () => {
    place = (place + 7) & ~7;
    const count = take(16);
    place += 16;
    out.set(bytes.subarray(place >> 3, (place >> 3) + count), length);
    length += count;
    place += 8 * count;
  };
  const tables = () => {
    const [literals, distances, codes] = [take(5) + 257, take(5) + 1, take(4) + 4];
    const short = new Array(19).fill(0);
    for (let i = 0; i < codes; i++) short[CODE_ORDER[i]] = take(3);
    const table = codesOf(short);
    const lengths = [];
    while (lengths.length < literals + distances) {
      const symbol = decode(table);
      if (symbol < 16) lengths.push(symbol);
      else if (symbol === 16) lengths.push(...new Array(3 + take(2)).fill(lengths.at(-1)));
      else lengths.push(...new Array(symbol === 17 ? 3 + take(3) : 11 + take(7)).fill(0));
    }
    return [codesOf(lengths.slice(0, literals)), codesOf(lengths.slice(literals))];
  };
  for (let last = false; !last; ) {
    last = take(1) === 1;
    const kind = take(2);
    if (kind === 0) storedBlock();
    else copyBlock(kind === 1 ? FIXED : tables());
  }
  return out;
}

/** How many codes there are of each length, and the symbols in the order of their codes. */
function codesOf(lengths) {
  const counts = new Array(16).fill(0);
  for (const long of lengths) if (long) counts[long]++;
  const symbols = [...lengths.keys()].filter((i) => lengths[i]).sort((a, b) => lengths[a] - lengths[b] || a - b);
  return { counts, symbols };
}

/** Starts and extra bits of lengths or distances: `groups` of so many each, with one more bit from group to group. */
function steps(first, groups) {
  const [start, extra] = [[], []];
  let at = first;
  for (const [bits, count] of groups)
    for (let i = 0; i < count; i++) {
      start.push(at);
      extra.push(bits);
      at += 1 << bits;
    }
  return { start, extra };
}

const LENGTHS = steps(3, [[0, 8], [1, 4], [2, 4], [3, 4], [4, 4], [5, 4]]);
// The longest has a code of its own.
Object.assign(LENGTHS, { start: [...LENGTHS.start.slice(0, 28), 258], extra: [...LENGTHS.extra.slice(0, 28), 0] });
const DISTANCES = steps(1, [[0, 4], ...[...Array(13).keys()].map((i) => [i + 1, 2])]);
const CODE_ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
const FIXED = [
  codesOf([...Array(288).keys()].map((i) => (i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8))),
  codesOf(new Array(30).fill(5)),
];

/** Run the program; a page whose program is damaged is one to read. */
function runProgram() {
  const script = document.createElement("script");
  try {
    script.textContent = unpackText(document.getElementById("program").textContent);
  } catch (error) {
    document.documentElement.classList.remove("scripted");
    throw error;
  }
  document.body.append(script);
}

runProgram();
