// Draws the map of a disk, and answers for it: which file lies here, where does this file lie.
//
// The data come as columns of numbers (see pack.rs) and stay in typed arrays. A row of the picture is a long bar, cut
// into lines like text; a tile of it sums what lies within. Zoomed out, tiles are summed from 65536 buckets made
// once, zoomed in from the segments themselves, so that a frame costs the same whatever the disk. Names reach
// the page by textContent alone.
"use strict";
(() => {
  const CLASSES = ["metadata", "fragmented", "contiguous", "unknown", "outside", "reclaimable", "free"];
  const LABELS = ["metadata", "fragmented files", "contiguous files", "unknown", "outside volumes", "reclaimable",
    "free"];
  const FREE = 6;
  const NONE = 0xffffffff;
  const BUCKETS = 65536;
  const HITS_SHOWN = 200;
  // What of the host's row is left out: see folds.rs.
  const HOST = "host", DATA_PARTS = 32, GAP_BYTES_MIN = 65536, GAP_FACTOR = 2;
  const NOTHING_FOUND = "none: search, or click in a row";
  const LINES = 6, TILE_HEIGHT = 18, ORIGIN_HEIGHT = 3, GAP = 6, LABELS_HEIGHT = 14, GUTTER = 74, EDGE = 8;
  // Viridis, as in colors.rs, with steps between.
  const VIRIDIS = ["#440154", "#481a6c", "#472f7d", "#414487", "#39568c", "#31688e", "#2a788e", "#23888e", "#1f988b",
    "#22a884", "#35b779", "#54c568", "#7ad151", "#a5db36", "#d2e21b", "#fde725"];
  const STEPS = 96;
  const ORIGIN = Array.from({ length: STEPS }, (_, step) => {
    const place = step / (STEPS - 1) * (VIRIDIS.length - 1), left = Math.min(VIRIDIS.length - 2, Math.floor(place));
    const part = (color, at) => parseInt(color.slice(at, at + 2), 16);
    const mixed = [1, 3, 5].map((at) =>
      Math.round(part(VIRIDIS[left], at) * (left + 1 - place) + part(VIRIDIS[left + 1], at) * (place - left)));
    return `rgb(${mixed.join(" ")})`;
  });

  const root = document.querySelector(".map");
  const part = (name) => root.querySelector(`[data-part="${name}"]`);
  const element = (name, text, className) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const whole = new Intl.NumberFormat("en");
  const counted = (count, one, many) => `${whole.format(count)} ${count === 1 ? one : many}`;
  // As the rest of Leandisk says it: cut to `places` decimals, which three digits have no need of.
  const human = (bytes, places = 1) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = 0;
    while (bytes >= 1024 && unit + 1 < units.length) { bytes /= 1024; unit += 1; }
    const scale = unit === 0 || bytes >= 100 ? 1 : 10 ** places;
    return `${Math.floor(bytes * scale) / scale} ${units[unit]}`;
  };

  // ---- data

  class Reader {
    constructor(bytes) { this.bytes = bytes; this.at = 0; }
    number() {
      let value = 0, scale = 1, byte;
      do {
        byte = this.bytes[this.at++];
        value += (byte & 0x7f) * scale;
        scale *= 128;
      } while (byte >= 0x80);
      return value;
    }
    signed() {
      const value = this.number();
      return value % 2 === 0 ? value / 2 : -(value + 1) / 2;
    }
    text(length = this.number()) {
      this.at += length;
      return new TextDecoder().decode(this.bytes.subarray(this.at - length, this.at));
    }
    column(made, scale = 1) {
      for (let index = 0; index < made.length; index++) made[index] = this.number() * scale;
      return made;
    }
  }

  async function inflated() {
    const text = part("data").textContent.trim();
    const binary = atob(text);
    const packed = new Uint8Array(binary.length);
    for (let index = 0; index < packed.length; index++) packed[index] = binary.charCodeAt(index);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  function decoded(bytes) {
    const reader = new Reader(bytes);
    const disk = { title: reader.text(), bytes: reader.number() };
    const unit = 2 ** reader.number();
    disk.cellBytes = reader.number();
    disk.unnamed = reader.number();
    disk.volumes = Array.from({ length: reader.number() }, () => ({
      index: reader.number(), start: reader.number() * unit, size: reader.number() * unit,
      filesystem: reader.text(), label: reader.text(),
    }));
    const files = { count: reader.number() };
    files.volume = reader.column(new Uint16Array(files.count));
    files.size = reader.column(new Float64Array(files.count));
    files.fragments = reader.column(new Uint32Array(files.count));
    files.stack = reader.column(new Uint32Array(files.count));
    files.shared = reader.column(new Uint16Array(files.count));
    files.rest = reader.column(new Uint16Array(files.count));
    let length = 0;
    for (const rest of files.rest) length += rest;
    files.text = reader.bytes.subarray(reader.at, reader.at + length);
    reader.at += length;
    disk.files = files;

    const count = reader.number();
    const size = reader.column(new Float64Array(count), unit);
    const start = new Float64Array(count);
    for (let index = 0, at = 0; index < count; index++) { start[index] = at; at += size[index]; }
    const kind = reader.column(new Uint8Array(count));
    const owner = new Uint32Array(count);
    for (let index = 0, last = 0; index < count; index++) {
      const code = reader.number();
      if (code === 0) { owner[index] = NONE; continue; }
      last += code % 2 === 1 ? (code - 1) / 2 : -code / 2;
      owner[index] = last;
    }
    disk.pieces = { count, start, size, kind, owner };
    disk.layers = Array.from({ length: reader.number() }, () => {
      const layer = { name: reader.text(), about: reader.text() };
      const placeUnit = 2 ** reader.number();
      layer.cellBytes = reader.number();
      layer.runCount = reader.number();
      const runs = reader.number();
      const from = reader.column(new Float64Array(runs), unit);
      const size = reader.column(new Float64Array(runs), unit);
      const change = new Float64Array(runs);
      for (let index = 0; index < runs; index++) change[index] = reader.signed();
      const stored = reader.column(new Float64Array(runs));
      const place = new Float64Array(runs);
      for (let index = 0, at = 0, end = 0; index < runs; index++) {
        from[index] += at;
        at = from[index] + size[index];
        stored[index] = stored[index] === 0 ? size[index] : (stored[index] - 1) * placeUnit;
        place[index] = end + change[index] * placeUnit;
        end = place[index] + stored[index];
      }
      layer.runs = { count: runs, from, size, place, stored };
      return layer;
    });
    return disk;
  }

  // The names, decoded when they are first asked for.
  let names = null;
  function nameOf(index) {
    if (!names) {
      names = new Array(disk.files.count);
      const { shared, rest, text } = disk.files;
      const decoder = new TextDecoder();
      const buffer = new Uint8Array(1 << 18);
      for (let file = 0, at = 0; file < names.length; file++) {
        buffer.set(text.subarray(at, at + rest[file]), shared[file]);
        at += rest[file];
        names[file] = decoder.decode(buffer.subarray(0, shared[file] + rest[file]));
      }
    }
    return names[index];
  }

  // The last index whose value is at most `value`; -1 if there is none.
  function lastAtMost(sorted, value) {
    let low = 0, high = sorted.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (sorted[middle] <= value) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  // The order of positive numbers, by their bits, sixteen at a time.
  function ordered(keys) {
    const count = keys.length;
    let order = new Uint32Array(count);
    let isSorted = true;
    for (let index = 0; index < count; index++) {
      order[index] = index;
      if (index > 0 && keys[index] < keys[index - 1]) isSorted = false;
    }
    if (isSorted) return order;
    const digits = new Uint16Array(keys.buffer, keys.byteOffset, count * 4);
    let next = new Uint32Array(count);
    for (let digit = 0; digit < 4; digit++) {
      const ends = new Uint32Array(65537);
      for (let index = 0; index < count; index++) ends[digits[index * 4 + digit] + 1] += 1;
      for (let value = 0; value < 65536; value++) ends[value + 1] += ends[value];
      for (let index = 0; index < count; index++) {
        const entry = order[index];
        next[ends[digits[entry * 4 + digit]]++] = entry;
      }
      [order, next] = [next, order];
    }
    return order;
  }

  // ---- rows

  class Row {
    constructor(name, about, segments, start, end) {
      Object.assign(this, { name, about, segments, start, length: Math.max(1, end - start) });
      this.view = { start, length: this.length };
      this.sum();
    }

    static ofGuest(disk) {
      const { count, start, size, kind, owner } = disk.pieces;
      const segments = { count, at: start, size, from: start, kind, owner };
      return new Row("guest", `the virtual disk, ${human(disk.bytes)}`, segments, 0, disk.bytes);
    }

    // The pieces where the runs of a layer put them, in the layer's order.
    static ofLayer(disk, layer) {
      const { runs } = layer;
      const { start, size, kind, owner } = disk.pieces;
      const order = ordered(runs.place);
      const folds = Row.fold(layer, order);
      const firsts = new Uint32Array(runs.count);
      let count = 0;
      for (let run = 0; run < runs.count; run++) {
        const first = Math.max(0, lastAtMost(start, runs.from[run]));
        const last = lastAtMost(start, runs.from[run] + runs.size[run] - 0.5);
        firsts[run] = first;
        count += Math.max(0, last - first + 1);
      }
      const made = {
        count, at: new Float64Array(count), size: new Float64Array(count), from: new Float64Array(count),
        kind: new Uint8Array(count), owner: new Uint32Array(count),
      };
      let filled = 0, low = Infinity, high = 0;
      for (const run of order) {
        const from = runs.from[run], end = from + runs.size[run], scale = runs.stored[run] / runs.size[run];
        low = Math.min(low, runs.place[run]);
        high = Math.max(high, runs.place[run] + runs.stored[run]);
        for (let piece = firsts[run]; piece < start.length && start[piece] < end; piece++) {
          const left = Math.max(from, start[piece]), right = Math.min(end, start[piece] + size[piece]);
          made.at[filled] = runs.place[run] + (left - from) * scale;
          made.size[filled] = (right - left) * scale;
          made.from[filled] = left;
          made.kind[filled] = kind[piece];
          made.owner[filled] = owner[piece];
          filled += 1;
        }
      }
      if (runs.count === 0) low = 0;
      const row = new Row(layer.name, "", made, low, high);
      row.folds = folds;
      const leftOut = folds.length > 0 ? `, ${human(folds.at(-1).leftOut)} without data left out` : "";
      row.about = `${layer.about} · ${human(low)} to ${human(row.address(high))}${leftOut} · ` +
        `${counted(layer.runCount, "run", "runs")} in the disk’s order`;
      row.runs = runs;
      return row;
    }

    // Moves the runs of the host's row together where long stretches without data of the disk lie between them, by the rule of
    // folds.rs. Answers where something is left out, and how much until there.
    static fold(layer, order) {
      const { runs } = layer;
      const folds = [];
      if (layer.name !== HOST) return folds;
      let data = 0;
      for (const run of order) data += runs.stored[run];
      const gap = Math.max(GAP_BYTES_MIN, Math.floor(data / DATA_PARTS));
      let end = null, leftOut = 0;
      for (const run of order) {
        const place = runs.place[run];
        const from = end ?? place;
        if (place - from > gap * GAP_FACTOR) {
          const middle = from - leftOut + gap / 2;
          leftOut += place - from - gap;
          folds.push({ middle, leftOut });
        }
        end = Math.max(from, place + runs.stored[run]);
        runs.place[run] = place - leftOut;
      }
      return folds;
    }

    // The layer's address that is drawn at a place of the row.
    address(drawn) {
      let leftOut = 0;
      for (const fold of this.folds ?? []) if (fold.middle <= drawn) leftOut = fold.leftOut;
      return drawn + leftOut;
    }

    // Sums the segments into buckets, from which any wide view is drawn.
    sum() {
      const { segments } = this;
      this.bucketBytes = this.length / BUCKETS;
      this.buckets = new Float64Array(BUCKETS * CLASSES.length);
      this.bucketFrom = new Float64Array(BUCKETS).fill(-1);
      const most = new Float64Array(BUCKETS);
      for (let index = 0; index < segments.count; index++) {
        this.spread(segments, index, this.start, this.bucketBytes, 0, BUCKETS, this.buckets, this.bucketFrom, most);
      }
    }

    // Adds a segment to tiles of `step` bytes from `origin`, of which those from `first` up to `last` are wanted.
    spread(segments, index, origin, step, first, last, shares, from, most) {
      const at = segments.at[index], end = at + segments.size[index];
      let tile = Math.max(first, Math.floor((at - origin) / step));
      for (; tile < last; tile++) {
        const left = Math.max(at, origin + tile * step), right = Math.min(end, origin + (tile + 1) * step);
        if (left >= end) break;
        const bytes = right - left;
        if (bytes <= 0) continue;
        shares[tile * CLASSES.length + segments.kind[index]] += bytes;
        if (bytes > most[tile]) {
          most[tile] = bytes;
          from[tile] = segments.from[index];
        }
      }
    }

    // The shares of each class, and the place on the virtual disk, of `count` tiles of the view.
    tiles(count) {
      const step = this.view.length / count;
      const shares = new Float64Array(count * CLASSES.length), from = new Float64Array(count).fill(-1);
      const most = new Float64Array(count);
      const { segments, view } = this;
      if (step >= this.bucketBytes) {
        const first = Math.max(0, Math.floor((view.start - this.start) / this.bucketBytes));
        const last = Math.min(BUCKETS, Math.ceil((view.start + view.length - this.start) / this.bucketBytes));
        for (let bucket = first; bucket < last; bucket++) {
          const left = this.start + bucket * this.bucketBytes, right = left + this.bucketBytes;
          const low = Math.max(0, Math.floor((left - view.start) / step));
          const high = Math.min(count - 1, Math.floor((right - view.start) / step));
          for (let tile = low; tile <= high; tile++) {
            const overlap = Math.min(right, view.start + (tile + 1) * step) - Math.max(left, view.start + tile * step);
            if (overlap <= 0) continue;
            let total = 0;
            for (let kind = 0; kind < CLASSES.length; kind++) {
              const bytes = this.buckets[bucket * CLASSES.length + kind] * overlap / this.bucketBytes;
              shares[tile * CLASSES.length + kind] += bytes;
              total += bytes;
            }
            if (total > most[tile]) { most[tile] = total; from[tile] = this.bucketFrom[bucket]; }
          }
        }
      } else {
        for (let index = this.firstAfter(view.start); index < segments.count; index++) {
          if (segments.at[index] >= view.start + view.length) break;
          this.spread(segments, index, view.start, step, 0, count, shares, from, most);
        }
      }
      return { shares, from, step };
    }

    // The first segment that reaches past `at`.
    firstAfter(at) {
      const index = Math.max(0, lastAtMost(this.segments.at, at));
      return index < this.segments.count && this.segments.at[index] + this.segments.size[index] <= at ? index + 1 : index;
    }

    // Segments by owner, sorted when first asked for.
    byOwner() {
      if (!this.ownerEnds) {
        const { owner, count } = this.segments;
        const ends = new Uint32Array(disk.files.count + 1);
        for (let index = 0; index < count; index++) if (owner[index] !== NONE) ends[owner[index] + 1] += 1;
        for (let file = 0; file < disk.files.count; file++) ends[file + 1] += ends[file];
        const sorted = new Uint32Array(ends[disk.files.count]);
        const next = ends.slice();
        for (let index = 0; index < count; index++) if (owner[index] !== NONE) sorted[next[owner[index]]++] = index;
        this.ownerEnds = ends;
        this.ownerSegments = sorted;
      }
      return this;
    }

    eachOf(file, each) {
      this.byOwner();
      for (let index = this.ownerEnds[file]; index < this.ownerEnds[file + 1]; index++) each(this.ownerSegments[index]);
    }

    // In how many contiguous extents a file lies here.
    extentsOf(file) {
      let count = 0, end = -1;
      this.eachOf(file, (index) => {
        if (this.segments.at[index] !== end) count += 1;
        end = this.segments.at[index] + this.segments.size[index];
      });
      return count;
    }

    // Where a byte of the virtual disk lies here; null if it does not.
    placeOf(from) {
      if (!this.runs) return from;
      const run = lastAtMost(this.runs.from, from);
      if (run < 0 || from >= this.runs.from[run] + this.runs.size[run]) return null;
      return this.runs.place[run] + (from - this.runs.from[run]) * this.runs.stored[run] / this.runs.size[run];
    }

    isZoomed() { return this.view.length < this.length * 0.9999; }

    // Shows `length` bytes from `start`, or the nearest to it that there is.
    show(start, length) {
      const least = Math.min(this.length, 512 * Math.max(1, this.count || 1));
      this.view.length = Math.min(this.length, Math.max(least, length));
      this.view.start = Math.min(this.start + this.length - this.view.length, Math.max(this.start, start));
    }

    // The segment that fills most of the bytes from `start` to `end`, and how many pieces and files are there.
    most(start, end) {
      const { segments } = this;
      const owners = new Set();
      let best = -1, bytes = 0, pieces = 0;
      for (let index = this.firstAfter(start); index < segments.count && segments.at[index] < end; index++) {
        const overlap = Math.min(end, segments.at[index] + segments.size[index]) - Math.max(start, segments.at[index]);
        if (overlap <= 0) continue;
        pieces += 1;
        if (segments.owner[index] !== NONE) owners.add(segments.owner[index]);
        // A file tells more than what lies around it.
        const weight = segments.owner[index] === NONE ? overlap / 4 : overlap;
        if (weight > bytes) { best = index; bytes = weight; }
      }
      return { best, pieces, files: owners.size };
    }
  }

  // ---- picture

  let disk, rows, colors;
  // Files that are highlighted, the row that is zoomed, what is under the pointer or the keyboard's cursor.
  const state = { marked: [], focus: null, hover: null, byPlace: false };

  function readColors() {
    const style = getComputedStyle(root);
    const color = (name) => style.getPropertyValue(`--${name}`).trim();
    colors = {
      classes: CLASSES.map(color), track: color("track"), edge: color("edge"), ink: color("ink"),
      faint: color("faint"), veil: color("veil"), mark: color("mark"), paper: color("paper"),
    };
  }

  function makeRow(row, index) {
    const figure = element("figure");
    const caption = element("figcaption");
    caption.append(element("strong", row.name), element("span", row.about));
    row.window = element("span", "", "window");
    caption.append(row.window);
    const stage = element("div", undefined, "stage");
    row.base = element("canvas");
    row.overlay = element("canvas");
    row.overlay.tabIndex = 0;
    row.overlay.setAttribute("role", "img");
    row.overlay.setAttribute("aria-label", `${row.name}: ${row.about}. Arrow keys move the cursor, plus and minus zoom, ` +
      "Enter marks the file, zero shows all.");
    stage.append(row.base, row.overlay);
    figure.append(caption, stage);
    part("rows").append(figure);
    row.hasVolumes = index === 0;
    row.pitch = TILE_HEIGHT + ORIGIN_HEIGHT + GAP + (row.hasVolumes ? LABELS_HEIGHT : 0);
    listen(row);
  }

  function measure(row) {
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    const width = Math.max(240, row.base.parentElement.clientWidth);
    const height = LINES * row.pitch;
    for (const canvas of [row.base, row.overlay]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    // A whole number of the screen's pixels, so that no seams show.
    row.tile = Math.max(2, Math.round(3 * ratio)) / ratio;
    row.columns = Math.max(1, Math.floor((width - GUTTER - EDGE) / row.tile));
    row.count = row.columns * LINES;
    row.ratio = ratio;
  }

  function context(canvas, row) {
    const drawing = canvas.getContext("2d");
    drawing.setTransform(row.ratio, 0, 0, row.ratio, 0, 0);
    drawing.clearRect(0, 0, canvas.width, canvas.height);
    return drawing;
  }

  const lineTop = (row, line) => line * row.pitch + (row.hasVolumes ? LABELS_HEIGHT : 0);

  function drawBase(row) {
    const drawing = context(row.base, row);
    const { shares, from, step } = row.tiles(row.count);
    const snap = (y) => Math.round(y * row.ratio) / row.ratio;
    drawing.fillStyle = colors.edge;
    for (let line = 0; line < LINES; line++) {
      drawing.fillRect(GUTTER - 1, lineTop(row, line) - 1, row.columns * row.tile + 2, TILE_HEIGHT + 2);
    }
    drawing.fillStyle = colors.track;
    for (let line = 0; line < LINES; line++) {
      drawing.fillRect(GUTTER, lineTop(row, line), row.columns * row.tile, TILE_HEIGHT);
    }
    const base = new Float64Array(row.count);
    for (let kind = 0; kind < CLASSES.length; kind++) {
      drawing.fillStyle = colors.classes[kind];
      for (let tile = 0; tile < row.count; tile++) {
        const share = shares[tile * CLASSES.length + kind];
        if (share <= 0) continue;
        const x = GUTTER + tile % row.columns * row.tile, bottom = lineTop(row, Math.floor(tile / row.columns)) + TILE_HEIGHT;
        // A trace is a line of one pixel at least.
        const least = kind !== FREE && base[tile] === 0 ? 1 / row.ratio : 0;
        const height = Math.min(TILE_HEIGHT, base[tile] + Math.max(least, share / step * TILE_HEIGHT));
        const top = snap(bottom - height), foot = snap(bottom - base[tile]);
        if (state.byPlace) drawing.fillStyle = kind === FREE ? colors.classes[FREE] : placeColor(from[tile]);
        if (foot > top) drawing.fillRect(x, top, row.tile, foot - top);
        base[tile] = height;
      }
    }
    for (let tile = 0; tile < row.count; tile++) {
      if (from[tile] < 0) continue;
      drawing.fillStyle = placeColor(from[tile]);
      const y = lineTop(row, Math.floor(tile / row.columns)) + TILE_HEIGHT + 1;
      drawing.fillRect(GUTTER + tile % row.columns * row.tile, y, row.tile, ORIGIN_HEIGHT);
    }
    drawLabels(row, drawing, step);
    row.window.textContent = row.isZoomed()
      ? `showing ${human(row.view.length)} from ${human(row.address(row.view.start), 2)}` : "";
  }

  const placeColor = (from) => ORIGIN[Math.min(STEPS - 1, Math.floor(from / disk.bytes * STEPS))];

  function drawLabels(row, drawing, step) {
    drawing.font = "11px system-ui, sans-serif";
    drawing.fillStyle = colors.faint;
    drawing.textAlign = "right";
    drawing.textBaseline = "middle";
    // Close to each other, addresses need more digits.
    const close = row.columns * step < row.view.start / 200;
    const first = row.address(row.view.start);
    for (let line = 0; line < LINES; line++) {
      const at = row.address(row.view.start + line * row.columns * step);
      const text = close ? `+${human(at - first, 2)}` : human(at, 2);
      drawing.fillText(close && line === 0 ? human(at, 2) : text, GUTTER - 8, lineTop(row, line) + TILE_HEIGHT / 2 + 1);
    }
    if (!row.hasVolumes) return;
    drawing.textAlign = "left";
    drawing.textBaseline = "alphabetic";
    const ticks = [];
    for (const volume of disk.volumes) {
      const tile = Math.floor((volume.start - row.view.start) / step);
      const end = Math.ceil((volume.start + volume.size - row.view.start) / step);
      if (end <= 0 || tile >= row.count) continue;
      ticks.push({ volume, tile: Math.max(0, tile), begins: tile >= 0 });
    }
    ticks.forEach(({ volume, tile, begins }, index) => {
      const line = Math.floor(tile / row.columns), x = GUTTER + tile % row.columns * row.tile, y = lineTop(row, line);
      const next = ticks[index + 1];
      const right = next && Math.floor(next.tile / row.columns) === line
        ? GUTTER + next.tile % row.columns * row.tile : GUTTER + row.columns * row.tile;
      drawing.fillStyle = colors.ink;
      if (begins) drawing.fillRect(x, y - LABELS_HEIGHT + 3, 1, LABELS_HEIGHT - 3);
      const text = fitting(drawing, volumeName(volume), right - x - 10);
      drawing.fillText(text, x + 5, y - 4);
    });
  }

  function fitting(drawing, text, width) {
    if (drawing.measureText(text).width <= width) return text;
    const letters = Array.from(text);
    while (letters.length > 0 && drawing.measureText(letters.join("") + "…").width > width) letters.pop();
    return letters.length > 2 ? letters.join("") + "…" : "";
  }

  const volumeName = (volume) =>
    `${volume.index} ${volume.filesystem || "unknown"}${volume.label ? ` “${volume.label}”` : ""}`;

  // Marks the tiles that bytes from `at` on touch.
  function mark(row, tiles, at, size) {
    const step = row.view.length / row.count;
    const first = Math.floor((at - row.view.start) / step), last = Math.ceil((at + size - row.view.start) / step);
    for (let tile = Math.max(0, first); tile < Math.min(row.count, Math.max(last, first + 1)); tile++) tiles[tile] = 1;
  }

  function marksOf(row, files) {
    const tiles = new Uint8Array(row.count);
    for (const file of files) {
      row.eachOf(file, (index) => mark(row, tiles, row.segments.at[index], row.segments.size[index]));
    }
    return tiles;
  }

  // The tiles of a row that hold what another, zoomed row shows.
  function marksOfFocus(row, focus) {
    const tiles = new Uint8Array(row.count);
    const { view, runs } = focus;
    const low = view.start, high = view.start + view.length;
    if (!runs) {
      eachPlace(row, low, high, (at, size) => mark(row, tiles, at, size));
      return tiles;
    }
    for (let run = 0; run < runs.count; run++) {
      if (runs.place[run] >= high || runs.place[run] + runs.stored[run] <= low) continue;
      const scale = runs.size[run] / runs.stored[run];
      const left = runs.from[run] + Math.max(0, low - runs.place[run]) * scale;
      const right = runs.from[run] + (Math.min(high, runs.place[run] + runs.stored[run]) - runs.place[run]) * scale;
      eachPlace(row, left, right, (at, size) => mark(row, tiles, at, size));
    }
    return tiles;
  }

  // Where the virtual disk's bytes from `low` to `high` lie in a row.
  function eachPlace(row, low, high, each) {
    if (!row.runs) { each(low, high - low); return; }
    const { count, from, size, place, stored } = row.runs;
    for (let run = Math.max(0, lastAtMost(from, low)); run < count && from[run] < high; run++) {
      const left = Math.max(low, from[run]), right = Math.min(high, from[run] + size[run]);
      if (right <= left) continue;
      const scale = stored[run] / size[run];
      each(place[run] + (left - from[run]) * scale, (right - left) * scale);
    }
  }

  function drawOverlay(row) {
    const drawing = context(row.overlay, row);
    const place = (tile) => [GUTTER + tile % row.columns * row.tile, lineTop(row, Math.floor(tile / row.columns))];
    const veil = (tiles) => {
      drawing.fillStyle = colors.veil;
      eachStretch(row, tiles, 0, (tile, count) => {
        const [x, y] = place(tile);
        drawing.fillRect(x, y, count * row.tile, TILE_HEIGHT + 1 + ORIGIN_HEIGHT);
      });
    };
    const files = state.marked.length > 0 ? state.marked : state.hover && state.hover.file !== NONE ? [state.hover.file] : [];
    if (state.marked.length === 0 && state.focus && state.focus !== row) veil(row.focusMarks);
    if (files.length > 0) {
      const tiles = state.marked.length > 0 ? row.fileMarks : marksOf(row, files);
      if (state.marked.length > 0) veil(tiles);
      drawing.fillStyle = colors.mark;
      eachStretch(row, tiles, 1, (tile, count) => {
        const [x, y] = place(tile);
        drawing.fillRect(x, y - 2, count * row.tile, 2);
        drawing.fillRect(x, y + TILE_HEIGHT, count * row.tile, 2);
        drawing.fillRect(x, y - 2, 1, TILE_HEIGHT + 4);
        drawing.fillRect(x + count * row.tile - 1, y - 2, 1, TILE_HEIGHT + 4);
      });
    }
    if (state.hover) {
      const at = row === state.hover.row ? state.hover.at : state.hover.from === null ? null : row.placeOf(state.hover.from);
      if (at === null) return;
      const tile = Math.floor((at - row.view.start) / row.view.length * row.count);
      if (tile < 0 || tile >= row.count) return;
      const [x, y] = place(tile);
      drawing.lineWidth = 2;
      drawing.strokeStyle = colors.paper;
      drawing.strokeRect(x - 3, y - 4, row.tile + 6, TILE_HEIGHT + 8);
      drawing.strokeStyle = colors.ink;
      drawing.strokeRect(x - 2, y - 3, row.tile + 4, TILE_HEIGHT + 6);
    }
  }

  // Stretches of tiles with `value`, within a line.
  function eachStretch(row, tiles, value, each) {
    for (let tile = 0; tile < row.count;) {
      if (tiles[tile] !== value) { tile += 1; continue; }
      const end = (Math.floor(tile / row.columns) + 1) * row.columns;
      let next = tile + 1;
      while (next < end && tiles[next] === value) next += 1;
      each(tile, next - tile);
      tile = next;
    }
  }

  // Redraws at the next frame: everything, or what lies over it.
  const due = { base: false, frame: 0 };
  function redraw(base) {
    due.base ||= base;
    due.frame ||= requestAnimationFrame(() => {
      due.frame = 0;
      if (due.base) {
        due.base = false;
        for (const row of rows) {
          drawBase(row);
          if (state.marked.length > 0) row.fileMarks = marksOf(row, state.marked);
          if (state.focus && state.focus !== row) row.focusMarks = marksOfFocus(row, state.focus);
        }
      }
      for (const row of rows) drawOverlay(row);
    });
  }

  function resize() {
    readColors();
    for (const row of rows) measure(row);
    redraw(true);
  }

  // ---- what is under the pointer

  function hover(row, tile) {
    if (tile === null) state.hover = null;
    else {
      const step = row.view.length / row.count;
      const start = row.view.start + tile * step;
      const { best, pieces, files } = row.most(start, start + step);
      const { segments } = row;
      const at = best < 0 ? start : Math.max(start, segments.at[best]);
      const inside = best < 0 ? 0 : (at - segments.at[best]) / Math.max(1, segments.size[best]);
      let from = null;
      if (best >= 0) {
        const scale = row.runs ? row.runs : null;
        from = segments.from[best] + (scale ? lengthOnDisk(row, best) : segments.size[best]) * inside;
      }
      state.hover = {
        row, tile, at, from, pieces, files,
        file: best < 0 ? NONE : segments.owner[best], kind: best < 0 ? -1 : segments.kind[best],
      };
    }
    describe();
    redraw(false);
  }

  // How many bytes of the virtual disk a segment of a layer holds: more than it takes if it is compressed.
  function lengthOnDisk(row, index) {
    const run = lastAtMost(row.runs.from, row.segments.from[index]);
    return row.segments.size[index] * row.runs.size[run] / Math.max(1, row.runs.stored[run]);
  }

  function describe() {
    const list = part("here");
    list.replaceChildren();
    const { hover } = state;
    part("hint").hidden = hover !== null;
    if (!hover) return;
    const add = (term, text) => list.append(element("dt", term), element("dd", text));
    const { files } = disk;
    if (hover.file !== NONE) {
      list.append(element("dt", "File"), element("dd", nameOf(hover.file), "path"));
      add("Size", human(files.size[hover.file]));
      add("Fragments", `${whole.format(files.fragments[hover.file])} on the volume, ` +
        `${whole.format(files.stack[hover.file])} down to the host`);
    } else {
      const isFile = hover.kind === 1 || hover.kind === 2;
      const unnamed = isFile && disk.cellBytes === 0 ? " (one that lost its name here)" : "";
      add("What", hover.kind < 0 ? "nothing of this disk" : LABELS[hover.kind] + unnamed);
    }
    if (hover.from !== null) {
      const volume = disk.volumes.find((volume) => volume.start <= hover.from && hover.from < volume.start + volume.size);
      if (volume) add("Volume", volumeName(volume));
    }
    for (const row of rows) {
      const at = row === hover.row ? hover.at : hover.from === null ? null : row.placeOf(hover.from);
      add(`In the ${row.name}`, at === null ? "not held" : `byte ${whole.format(Math.floor(row.address(at)))} (${human(row.address(at))})`);
    }
    if (hover.pieces > 1) {
      add("This tile", `${counted(hover.pieces, "piece", "pieces")} of ${counted(hover.files, "file", "files")}; ` +
        "the largest is told");
    }
  }

  // ---- search

  let lowered = null;
  function search(text) {
    const wanted = text.toLowerCase();
    if (wanted === "") { select([]); results([], 0); return; }
    if (disk.files.count > 0) nameOf(0);
    lowered ||= names === null ? [] : names.map((name) => name.toLowerCase());
    const hits = [];
    for (let file = 0; file < lowered.length; file++) if (lowered[file].includes(wanted)) hits.push(file);
    select(hits);
    const { fragments } = disk.files;
    results(hits.sort((a, b) => fragments[b] - fragments[a] || a - b));
  }

  function results(hits) {
    const list = part("hits");
    list.replaceChildren();
    for (const file of hits.slice(0, HITS_SHOWN)) {
      const button = element("button");
      button.type = "button";
      button.append(element("span", nameOf(file), "path"), element("span",
        `${human(disk.files.size[file])} · ${counted(disk.files.fragments[file], "fragment", "fragments")}`, "facts"));
      button.addEventListener("click", () => select([file], true));
      const item = element("li");
      item.append(button);
      list.append(item);
    }
    part("more").textContent = hits.length > HITS_SHOWN ? `and ${whole.format(hits.length - HITS_SHOWN)} more` : "";
  }

  function select(files) {
    state.marked = files;
    for (const row of rows) row.fileMarks = files.length > 0 ? marksOf(row, files) : null;
    const extents = rows.map((row) => files.reduce((sum, file) => sum + row.extentsOf(file), 0));
    const where = rows.map((row, index) => `${index === 0 ? counted(extents[0], "extent", "extents")
      : whole.format(extents[index])} in the ${row.name}`).join(", ");
    const asked = part("search").value !== "";
    part("found").textContent = files.length > 0 ? `${counted(files.length, "file", "files")}: ${where}`
      : asked ? "no file has that in its path" : NOTHING_FOUND;
    part("fit").hidden = files.length === 0;
    redraw(false);
  }

  // Shows the part of the guest's row from the first to the last byte of the highlighted files.
  function fit() {
    const row = rows[0];
    let low = Infinity, high = -Infinity;
    for (const file of state.marked) {
      row.eachOf(file, (index) => {
        low = Math.min(low, row.segments.at[index]);
        high = Math.max(high, row.segments.at[index] + row.segments.size[index]);
      });
    }
    if (high < low) return;
    const margin = (high - low) * 0.04;
    show(row, low - margin, high - low + 2 * margin);
  }

  // ---- moving

  function show(row, start, length) {
    row.show(start, length);
    if (row.isZoomed()) state.focus = row;
    else if (state.focus === row) state.focus = rows.find((other) => other.isZoomed()) || null;
    redraw(true);
  }

  // Zooms so that the byte at `at` stays where it is.
  function zoom(row, factor, at) {
    const length = Math.min(row.length, row.view.length * factor);
    show(row, at - (at - row.view.start) * length / row.view.length, length);
  }

  function reset() {
    for (const row of rows) row.show(row.start, row.length);
    state.focus = null;
    redraw(true);
  }

  const middle = (row) => row.view.start + row.view.length / 2;

  function tileAt(row, event) {
    const box = row.overlay.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - GUTTER) / row.tile);
    const line = Math.floor((event.clientY - box.top) / row.pitch);
    if (line < 0 || line >= LINES) return null;
    return line * row.columns + Math.min(row.columns - 1, Math.max(0, column));
  }

  function listen(row) {
    const { overlay } = row;
    const pointers = new Map();
    let moved = false, gap = 0;
    const addressAt = (event) => row.view.start + (tileAt(row, event) ?? 0) / row.count * row.view.length;

    overlay.addEventListener("wheel", (event) => {
      // Within a longer page the wheel scrolls, unless the row was chosen before.
      if (root.dataset.wheel !== "always" && !event.ctrlKey && document.activeElement !== overlay) return;
      event.preventDefault();
      const turn = event.deltaMode === 1 ? event.deltaY * 16 : event.deltaY;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        show(row, row.view.start + (event.deltaX || turn) / 600 * row.view.length / LINES, row.view.length);
      } else zoom(row, Math.exp(Math.max(-1, Math.min(1, turn * (event.ctrlKey ? 0.01 : 0.002)))), addressAt(event));
      hover(row, tileAt(row, event));
    }, { passive: false });

    overlay.addEventListener("pointerdown", (event) => {
      overlay.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      moved = false;
      gap = 0;
    });
    overlay.addEventListener("pointermove", (event) => {
      const last = pointers.get(event.pointerId);
      if (!last) { hover(row, tileAt(row, event)); return; }
      const dx = event.clientX - last.x, dy = event.clientY - last.y;
      if (!moved && Math.abs(dx) + Math.abs(dy) < 4) return;
      moved = true;
      pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      if (pointers.size === 1) {
        const tiles = dx / row.tile + Math.round(dy / row.pitch * 8) / 8 * row.columns;
        show(row, row.view.start - tiles * row.view.length / row.count, row.view.length);
        return;
      }
      const [a, b] = pointers.values();
      const now = Math.max(1, Math.hypot(a.x - b.x, a.y - b.y));
      if (gap > 0) zoom(row, gap / now, addressAt({ clientX: (a.x + b.x) / 2, clientY: (a.y + b.y) / 2 }));
      gap = now;
    });
    const lift = (event) => {
      if (pointers.delete(event.pointerId) && !moved && event.type === "pointerup") {
        hover(row, tileAt(row, event));
        choose();
      }
    };
    overlay.addEventListener("pointerup", lift);
    overlay.addEventListener("pointercancel", lift);
    // A finger that is lifted leaves; what it pointed at stays told.
    overlay.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse" && pointers.size === 0) hover(row, null);
    });
    overlay.addEventListener("dblclick", (event) => zoom(row, 0.25, addressAt(event)));
    overlay.addEventListener("blur", () => hover(row, null));
    overlay.addEventListener("focus", () => {
      if (overlay.matches(":focus-visible")) moveTo(row, Math.floor(row.count / 2));
    });
    overlay.addEventListener("keydown", (event) => key(row, event));
  }

  // Highlights the file under the cursor, or none.
  function choose() {
    part("search").value = "";
    results([]);
    select(state.hover && state.hover.file !== NONE ? [state.hover.file] : []);
  }

  // Moves the keyboard's cursor, and the view with it where it would leave.
  function moveTo(row, tile) {
    const step = row.view.length / row.count;
    if (tile < 0 || tile >= row.count) {
      const lines = tile < 0 ? Math.floor(tile / row.columns) : Math.floor(tile / row.columns) - LINES + 1;
      const before = row.view.start;
      show(row, before + lines * row.columns * step, row.view.length);
      tile -= Math.round((row.view.start - before) / step);
    }
    hover(row, Math.min(row.count - 1, Math.max(0, tile)));
  }

  function key(row, event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const tile = state.hover && state.hover.row === row ? state.hover.tile : Math.floor(row.count / 2);
    const at = row.view.start + (tile + 0.5) / row.count * row.view.length;
    const far = event.shiftKey ? 10 : 1;
    const actions = {
      ArrowLeft: () => moveTo(row, tile - far), ArrowRight: () => moveTo(row, tile + far),
      ArrowUp: () => moveTo(row, tile - row.columns), ArrowDown: () => moveTo(row, tile + row.columns),
      PageUp: () => moveTo(row, tile - row.count), PageDown: () => moveTo(row, tile + row.count),
      Home: () => { show(row, row.start, row.view.length); hover(row, 0); },
      End: () => { show(row, row.start + row.length, row.view.length); hover(row, row.count - 1); },
      "+": () => { zoom(row, 0.5, at); hover(row, tile); }, "=": () => { zoom(row, 0.5, at); hover(row, tile); },
      "-": () => { zoom(row, 2, at); hover(row, tile); }, 0: () => { reset(); hover(row, tile); },
      Enter: choose, Escape: () => { part("search").value = ""; results([]); select([]); },
    };
    if (!Object.hasOwn(actions, event.key)) return;
    event.preventDefault();
    actions[event.key]();
  }

  // ---- start

  function legend() {
    const list = part("legend");
    const totals = new Float64Array(CLASSES.length);
    const { count, kind, size } = disk.pieces;
    for (let index = 0; index < count; index++) totals[kind[index]] += size[index];
    CLASSES.forEach((name, index) => {
      if (totals[index] === 0) return;
      const item = element("li");
      item.append(element("i", undefined, `swatch ${name}`), element("span", LABELS[index]), element("b", human(totals[index])));
      list.append(item);
    });
    const item = element("li");
    item.append(element("i", undefined, "ramp"), element("span", "place on the virtual disk, in the line under each row"));
    list.append(item);
  }

  function notes() {
    const told = [];
    if (disk.cellBytes > 0) {
      told.push(`The disk is too intricate for one page: it is shown in cells of ${human(disk.cellBytes)}, without names.`);
    } else if (disk.unnamed > 0) {
      told.push(`${counted(disk.unnamed, "file is", "files are")} shown without a name, to keep this page small: ` +
        "the smallest of the least fragmented.");
    }
    part("note").textContent = told.join(" ");
  }

  async function start() {
    disk = decoded(await inflated());
    rows = [Row.ofGuest(disk), ...disk.layers.map((layer) => Row.ofLayer(disk, layer))];
    legend();
    notes();
    part("found").textContent = NOTHING_FOUND;
    rows.forEach(makeRow);
    resize();
    let wait = 0;
    part("search").addEventListener("input", (event) => {
      clearTimeout(wait);
      wait = setTimeout(() => search(event.target.value), 100);
    });
    part("search").addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.target.value = ""; search(""); }
      if (event.key === "Enter") { event.preventDefault(); clearTimeout(wait); search(event.target.value); }
    });
    const target = () => state.focus || rows[0];
    part("in").addEventListener("click", () => zoom(target(), 0.5, middle(target())));
    part("out").addEventListener("click", () => zoom(target(), 2, middle(target())));
    part("all").addEventListener("click", reset);
    part("fit").addEventListener("click", fit);
    part("colors").addEventListener("change", (event) => { 
      state.byPlace = event.target.value === "place";
      root.dataset.colors = event.target.value;
      redraw(true);
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.target instanceof HTMLInputElement) return;
      event.preventDefault();
      part("search").focus();
    });
    new ResizeObserver(resize).observe(part("rows"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", resize);
    // Once the first picture is painted, the page answers.
    requestAnimationFrame(() => setTimeout(() => {
      root.dataset.state = "ready";
      performance.mark("ready");
      // What the first look at a file would have to wait for.
      const later = [() => disk.files.count > 0 && nameOf(0), ...rows.map((row) => () => row.byOwner())];
      const next = () => { if (later.length > 0) { later.shift()(); setTimeout(next, 0); } };
      setTimeout(next, 0);
    }, 0));
  }

  start().catch((error) => {
    root.dataset.state = "failed";
    part("note").textContent = `The map cannot be drawn: ${error.message}`;
    throw error;
  });
})();
