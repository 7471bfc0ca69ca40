function inflated(bytes) {  // a deflated stream (RFC 1951) whose first four bytes are its size; the decoding is that of zlib's "puff"
  let at = 0, held = 0, count = 0, out = new Uint8Array(4), n = 0;
  function bits(wanted) {
    for (; count < wanted; count += 8) held |= bytes[at++] << count;
    const value = held & ((1 << wanted) - 1); held >>>= wanted; count -= wanted; return value;
  }
  function put(byte) {
    out[n++] = byte;
    if (n === 4) { const first = out; out = new Uint8Array(new DataView(first.buffer).getUint32(0, true)); out.set(first); }
  }
  function codes(lengths) {  // how many codes have each length, and the symbols in order of their codes
    const of = new Uint16Array(16), next = new Uint16Array(16), symbols = new Uint16Array(lengths.length);
    for (const length of lengths) if (length) of[length]++;
    for (let k = 1; k < 15; k++) next[k + 1] = next[k] + of[k];
    lengths.forEach((length, symbol) => { if (length) symbols[next[length]++] = symbol; });
    return { of, symbols };
  }
  function symbol({ of, symbols }) {
    for (let length = 1, code = 0, first = 0, index = 0; length < 16; length++) {
      if (!count) { held = bytes[at++]; count = 8; }
      code |= held & 1; held >>>= 1; count--;
      if (code - of[length] < first) return symbols[index + code - first];
      index += of[length]; first = (first + of[length]) << 1; code <<= 1;
    }
    throw new Error("The data of this page is damaged.");
  }
  const series = (start, extra) => extra.map(wide => { const base = start; start += 2 ** wide; return [base, wide]; });
  const LENGTHS = series(3, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5]).concat([[258, 0]]);
  const DISTANCES = series(1, Array.from({ length: 30 }, (_, k) => k < 2 ? 0 : (k >> 1) - 1));
  function tables() {  // of a block that brings its own
    const literals = bits(5) + 257, distances = bits(5) + 1, given = bits(4) + 4, lengths = new Uint8Array(19), all = [];
    [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15].forEach((k, i) => { if (i < given) lengths[k] = bits(3); });
    const of = codes(lengths);
    while (all.length < literals + distances) {
      const s = symbol(of), [value, times] = s < 16 ? [s, 1] : s === 16 ? [all[all.length - 1], 3 + bits(2)] : [0, s === 17 ? 3 + bits(3) : 11 + bits(7)];
      for (let k = 0; k < times; k++) all.push(value);
    }
    return [codes(all.slice(0, literals)), codes(all.slice(literals))];
  }
  const FIXED = [codes(Array.from({ length: 288 }, (_, s) => s < 144 ? 8 : s < 256 ? 9 : s < 280 ? 7 : 8)), codes(new Array(30).fill(5))];
  for (let last = 0; !last;) {
    last = bits(1); const type = bits(2);
    if (type === 0) {  // as it is
      held = count = 0; const size = bytes[at] | bytes[at + 1] << 8; at += 4;
      for (let k = 0; k < size; k++) put(bytes[at++]);
      continue;
    }
    const [literals, distances] = type === 1 ? FIXED : tables();
    for (let s; (s = symbol(literals)) !== 256;) {
      if (s < 256) { put(s); continue; }
      const [length, more] = LENGTHS[s - 257], times = length + bits(more), [distance, extra] = DISTANCES[symbol(distances)], back = distance + bits(extra);
      for (let k = 0; k < times; k++) put(out[n - back]);
    }
  }
  return out;
}
function embedded(text) {  // what report_data.py's `embedded` made: the JSON, and `unpacked` for its columns
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  const all = inflated(bytes), start = 8 + new DataView(all.buffer).getUint32(4, true);
  const kinds = { float64: Float64Array, float32: Float32Array, int32: Int32Array, uint16: Uint16Array, uint8: Uint8Array };
  function unpacked({ kind, zeros, at, count }) {
    if (zeros !== undefined) return new kinds[kind](zeros);
    const wide = kinds[kind].BYTES_PER_ELEMENT, found = new Uint8Array(count * wide);
    for (let b = 0; b < wide; b++) for (let i = 0, from = start + at + b * count; i < count; i++) found[i * wide + b] = all[from + i];
    return new kinds[kind](found.buffer);
  }
  return [JSON.parse(new TextDecoder().decode(all.subarray(8, start))), unpacked];
}
