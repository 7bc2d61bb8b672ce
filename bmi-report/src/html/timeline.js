"use strict";
// Draws Chrome's trace events: spans (X, B and E, b and e), arrows (s, t, f) and counters (C).
(() => {
  const ROW = 18, LABEL = 190, TOP = 22;
  const holder = document.getElementById("trace");
  document.getElementById("trace-view").hidden = false;
  const canvas = holder.querySelector("canvas");
  const pen = canvas.getContext("2d");
  const data = JSON.parse(document.getElementById("trace-events").textContent);
  const events = (Array.isArray(data) ? data : data && data.traceEvents) || [];

  // Collects what is in the events: rows by process and thread, spans, arrows.
  const names = new Map(), rows = new Map(), spans = [], arrows = [], open = new Map(), flows = new Map();
  const key = (event) => `${event.pid}\u0000${event.tid}`;
  const rowOf = (event) => {
    const id = key(event);
    if (!rows.has(id)) rows.set(id, { id, pid: event.pid, tid: event.tid, spans: [], counts: [], depth: 1 });
    return rows.get(id);
  };
  const add = (event, begin, end, args) => {
    const span = { name: String(event.name), begin, end, args, row: rowOf(event), depth: 0 };
    span.row.spans.push(span);
    spans.push(span);
  };
  const time = (value) => (Number.isFinite(Number(value)) ? Number(value) : 0);
  const ordered = events.filter((event) => event && typeof event === "object")
    .sort((a, b) => time(a.ts) - time(b.ts));
  for (const event of ordered) {
    const at = time(event.ts), pair = `${event.cat}\u0000${event.id}\u0000${event.name}`;
    switch (event.ph) {
      case "M": {
        const isProcess = event.name === "process_name";
        if (isProcess || event.name === "thread_name") {
          names.set(isProcess ? `${event.pid}` : key(event), String((event.args || {}).name));
        }
        break;
      }
      case "X": add(event, at, at + Math.max(0, time(event.dur)), event.args); break;
      case "i": case "I": add(event, at, at, event.args); break;
      case "C": rowOf(event).counts.push({ at, value: time(Object.values(event.args || {})[0]) }); break;
      case "B": open.set(key(event), [...(open.get(key(event)) || []), event]); break;
      case "E": {
        const begun = (open.get(key(event)) || []).pop();
        if (begun) add(begun, time(begun.ts), at, begun.args);
        break;
      }
      case "b": open.set(pair, event); break;
      case "e": {
        const begun = open.get(pair);
        if (begun) add(begun, time(begun.ts), at, begun.args);
        open.delete(pair);
        break;
      }
      case "s": case "t": case "f": {
        const flow = `${event.cat}\u0000${event.id}`, last = flows.get(flow), here = { row: rowOf(event), at };
        if (last && event.ph !== "s") arrows.push({ from: last, to: here, name: String(event.name) });
        flows.set(flow, here);
        break;
      }
    }
  }
  // Spans that overlap are below each other.
  for (const row of rows.values()) {
    row.spans.sort((a, b) => a.begin - b.begin || b.end - a.end);
    const ends = [];
    for (const span of row.spans) {
      let depth = ends.findIndex((end) => end <= span.begin);
      if (depth < 0) depth = ends.length < 12 ? ends.length : 11;
      ends[depth] = span.end;
      span.depth = depth;
    }
    row.depth = Math.max(1, ends.length);
  }
  const order = [...rows.values()].sort((a, b) =>
    a.pid === b.pid ? (a.tid > b.tid) - (a.tid < b.tid) : (a.pid > b.pid) - (a.pid < b.pid));
  let bottom = TOP, process;
  for (const row of order) {
    if (row.pid !== process) { row.first = true; process = row.pid; bottom += ROW; }
    row.top = bottom;
    bottom += row.depth * ROW + 4;
  }
  holder.style.height = `${Math.min(560, bottom + 8)}px`;
  let first = Infinity, last = -Infinity;
  for (const span of spans) { first = Math.min(first, span.begin); last = Math.max(last, span.end); }
  for (const row of order) for (const count of row.counts) {
    first = Math.min(first, count.at); last = Math.max(last, count.at);
  }
  if (!(last > first)) { first = Number.isFinite(first) ? first : 0; last = first + 1; }
  const all = { begin: first - (last - first) * 0.01, end: last + (last - first) * 0.01 };
  const view = { ...all, up: 0 };

  const kinds = [...new Set(spans.map((span) => span.name))];
  const colour = (name) => `--c${kinds.indexOf(name) % 6}`;
  const duration = (us) => us >= 1e6 ? `${(us / 1e6).toPrecision(3)} s` : us >= 1e3 ? `${(us / 1e3).toPrecision(3)} ms`
    : us >= 1 || us === 0 ? `${Number(us.toPrecision(3))} µs` : `${(us * 1e3).toPrecision(3)} ns`;
  // As many digits as tell one line of the grid from the next.
  const label = (at, step) => {
    const [unit, name] = step >= 1e6 ? [1e6, "s"] : step >= 1e3 ? [1e3, "ms"] : step >= 1 ? [1, "µs"] : [1e-3, "ns"];
    return `${(at / unit).toFixed(Math.max(0, -Math.floor(Math.log10(step / unit))))} ${name}`;
  };
  const short = (text, width) => {
    const room = Math.floor(width / 6.6);
    return room < 3 ? "" : text.length > room ? `${text.slice(0, room - 1)}…` : text;
  };
  const x = (at, width) => LABEL + (at - view.begin) / (view.end - view.begin) * (width - LABEL);

  const draw = () => {
    const width = holder.clientWidth, height = holder.clientHeight, scale = window.devicePixelRatio || 1;
    const style = getComputedStyle(document.documentElement), css = (name) => style.getPropertyValue(name).trim();
    canvas.width = width * scale;
    canvas.height = height * scale;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.fillStyle = css("--paper");
    pen.fillRect(0, 0, width, height);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.save();
    pen.beginPath();
    pen.rect(LABEL, 0, width - LABEL, height);
    pen.clip();
    grid(width, height, css);
    pen.translate(0, -view.up);
    for (const row of order) drawRow(row, width, height, css);
    pen.strokeStyle = css("--ink");
    pen.fillStyle = css("--ink");
    for (const arrow of arrows) drawArrow(arrow, width);
    pen.restore();
    drawLabels(width, height, css);
  };
  const grid = (width, height, css) => {
    const rough = (view.end - view.begin) / Math.max(2, (width - LABEL) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
    for (let at = Math.ceil(view.begin / step) * step; at <= view.end; at += step) {
      const place = x(at, width);
      pen.fillStyle = css("--grid");
      pen.fillRect(place, 0, 1, height);
      pen.fillStyle = css("--dim");
      pen.fillText(label(at, step), place + 4, 10);
    }
  };
  const drawRow = (row, width, height, css) => {
    if (row.top - view.up > height || row.top + row.depth * ROW - view.up < 0) return;
    for (const span of row.spans) {
      const from = x(span.begin, width), wide = Math.max(1.5, x(span.end, width) - from);
      if (from > width || from + wide < LABEL) continue;
      const top = row.top + span.depth * ROW;
      pen.fillStyle = css(colour(span.name));
      pen.fillRect(from, top + 1, wide, ROW - 2);
      pen.fillStyle = css("--inside");
      pen.fillText(short(span.name, Math.min(wide, width) - 8), Math.max(from, LABEL) + 4, top + ROW / 2 + 1);
    }
    if (!row.counts.length) return;
    const most = Math.max(1, ...row.counts.map((count) => count.value));
    pen.fillStyle = css("--quiet");
    row.counts.forEach((count, number) => {
      const next = row.counts[number + 1], from = x(count.at, width);
      const high = (ROW - 2) * count.value / most;
      pen.fillRect(from, row.top + ROW - 1 - high, Math.max(1, x(next ? next.at : last, width) - from), high);
    });
  };
  const drawArrow = ({ from, to }, width) => {
    const [a, b, c, d] = [x(from.at, width), from.row.top + ROW / 2, x(to.at, width), to.row.top + ROW / 2];
    if (Math.max(a, c) < LABEL || Math.min(a, c) > width) return;
    const angle = Math.atan2(d - b, c - a);
    pen.globalAlpha = 0.6;
    pen.beginPath();
    pen.moveTo(a, b);
    pen.lineTo(c, d);
    pen.stroke();
    pen.beginPath();
    pen.moveTo(c, d);
    pen.lineTo(c - 7 * Math.cos(angle - 0.4), d - 7 * Math.sin(angle - 0.4));
    pen.lineTo(c - 7 * Math.cos(angle + 0.4), d - 7 * Math.sin(angle + 0.4));
    pen.fill();
    pen.globalAlpha = 1;
  };
  const drawLabels = (width, height, css) => {
    pen.save();
    pen.translate(0, -view.up);
    for (const row of order) {
      if (row.first) {
        pen.fillStyle = css("--ink");
        pen.font = "bold 12px system-ui, sans-serif";
        pen.fillText(short(names.get(`${row.pid}`) || `process ${row.pid}`, LABEL - 12), 8, row.top - ROW / 2);
        pen.font = "12px system-ui, sans-serif";
      }
      pen.fillStyle = css("--dim");
      pen.fillText(short(names.get(row.id) || String(row.tid), LABEL - 26), 18, row.top + ROW / 2);
    }
    pen.restore();
    pen.fillStyle = css("--rule");
    pen.fillRect(LABEL - 1, 0, 1, height);
  };

  const bound = () => {
    const most = Math.max(0, bottom + 8 - holder.clientHeight);
    view.up = Math.min(most, Math.max(0, view.up));
    draw();
  };
  const zoom = (factor, at) => {
    const wide = Math.min((all.end - all.begin) * 4, Math.max((all.end - all.begin) * 1e-7, (view.end - view.begin) * factor));
    const share = (at - view.begin) / (view.end - view.begin);
    view.begin = at - share * wide;
    view.end = view.begin + wide;
    draw();
  };
  const move = (share) => {
    const by = share * (view.end - view.begin);
    view.begin += by;
    view.end += by;
    draw();
  };
  const time_at = (event) => {
    const place = (event.offsetX - LABEL) / Math.max(1, holder.clientWidth - LABEL);
    return view.begin + place * (view.end - view.begin);
  };
  const hit = (event) => {
    const at = time_at(event), y = event.offsetY + view.up;
    const slack = 2 * (view.end - view.begin) / Math.max(1, holder.clientWidth - LABEL);
    return spans.find((span) => {
      const top = span.row.top + span.depth * ROW;
      return y >= top && y < top + ROW && at >= span.begin - slack && at <= span.end + slack;
    });
  };
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.004), time_at(event));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons & 1) {
      view.up -= event.movementY;
      move(-event.movementX / Math.max(1, holder.clientWidth - LABEL));
      bound();
      return window.readOut.hide();
    }
    const span = hit(event);
    if (!span) return window.readOut.hide();
    const facts = Object.entries(span.args || {}).map(([name, value]) =>
      `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`);
    const begin = `at ${duration(Math.max(0, span.begin))}`;
    window.readOut.show([`${span.name}, ${duration(span.end - span.begin)}, ${begin}`, ...facts].join("\n"), event);
  });
  canvas.addEventListener("pointerleave", () => window.readOut.hide());
  canvas.addEventListener("dblclick", () => { Object.assign(view, all); bound(); });
  canvas.addEventListener("keydown", (event) => {
    const middle = (view.begin + view.end) / 2;
    const actions = {
      "+": () => zoom(0.8, middle), "-": () => zoom(1.25, middle),
      ArrowLeft: () => move(-0.1), ArrowRight: () => move(0.1),
      ArrowUp: () => { view.up -= ROW; bound(); }, ArrowDown: () => { view.up += ROW; bound(); },
      "0": () => { Object.assign(view, all, { up: 0 }); bound(); },
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  });
  addEventListener("resize", bound);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  bound();
})();
