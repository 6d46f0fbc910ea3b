"use strict";
// Charts as SVG: axes, areas, lines and marks. A chart is drawn anew when its width, its range or the colors change.
(() => {
  const { addDrawing, formatBytes } = graphwright;
  const SVG = "http://www.w3.org/2000/svg";
  const make = (parent, tag, attributes, text) => {
    const made = document.createElementNS(SVG, tag);
    for (const key in attributes) if (attributes[key] !== undefined) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };
  // About `count` round figures; bytes are round in powers of two.
  function ticks(axis, count) {
    const { from, to, log, bytes, whole } = axis;
    if (log) {
      const first = Math.ceil(Math.log10(from) - 1e-9), last = Math.floor(Math.log10(to) + 1e-9), by = Math.max(1, Math.ceil((last - first) / count));
      return Array.from({ length: Math.floor((last - first) / by) + 1 }, (_, k) => 10 ** (first + k * by));
    }
    const rough = (to - from) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
    const steps = bytes ? [0.5, 1].map((m) => m * 2 ** Math.ceil(Math.log2(rough))) : [0.5, 1, 2, 5, 10].map((m) => m * power);
    let at = steps.findIndex((step) => step >= rough * 0.999);
    while (at > 0 && (to - from) / steps[at] < 1.5) at -= 1;  // one figure alone says nothing of the scale
    let by = steps[at];
    if (whole || bytes) by = Math.max(1, by);
    const found = [];
    for (let k = Math.ceil(from / by - 1e-9); k * by <= to * (1 + 1e-9); k += 1) found.push(k * by + 0);  // no -0
    return found;
  }
  const roundBytes = (nbytes) => formatBytes(nbytes).replace(/(\.\d*?)0+ /, "$1 ").replace(/\. /, " ");

  // `spec()` says what is drawn now: { x, y, draw, hover, choose, zoom, below, mark }. An axis is { from, to, title, log, bytes, whole, format, ticks }.
  graphwright.chart = (host, spec) => {
    const svg = make(host, "svg", { class: "chart", "aria-hidden": "true" });
    let now = null, width = 0, drag = null;
    const scale = (axis, low, high) => {
      const of = axis.log ? Math.log10 : (value) => value, from = of(axis.from), span = of(axis.to) - from || 1;
      return { to: (value) => low + (of(value) - from) / span * (high - low), back: (at) => { const value = from + (at - low) / (high - low) * span; return axis.log ? 10 ** value : value; } };
    };
    function paint() {
      width = host.clientWidth;
      const height = host.clientHeight;
      if (!width || !height) return;
      now = spec(width);
      const { x, y, below = 0 } = now;
      svg.replaceChildren();
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      const yTicks = (y.ticks ?? ticks(y, 5)).map((value) => [value, y.format ? y.format(value) : y.bytes ? roundBytes(value) : value.toLocaleString("en")]);
      const left = 14 + 7.2 * Math.max(3, ...yTicks.map(([, text]) => text.length)) + (y.title ? 18 : 0);
      const box = { left, right: width - 12, top: now.top ?? 14, bottom: height - below - (x.title ? 42 : 24) };
      const across = scale(x, box.left, box.right), up = scale(y, box.bottom, box.top);
      Object.assign(now, { box, px: across.to, py: up.to, valueAt: across.back, height });
      const grid = make(svg, "g", { class: "grid" });
      for (const [value, text] of yTicks) {
        const at = up.to(value);
        make(grid, "line", { x1: box.left, x2: box.right, y1: at, y2: at });
        make(grid, "text", { x: box.left - 7, y: at + 4, "text-anchor": "end" }, text);
      }
      let free = box.left - 24;
      for (const value of x.ticks ?? ticks(x, Math.max(2, Math.floor((box.right - box.left) / 110)))) {
        const at = across.to(value), text = x.format ? x.format(value) : x.bytes ? roundBytes(value) : value.toLocaleString("en"), half = 3.6 * text.length;
        if (at - half < free) continue;
        free = at + half + 10;
        make(grid, "line", { x1: at, x2: at, y1: box.bottom + below, y2: box.bottom + below + 5, class: "tick" });
        const right = at + half > width - 2;
        make(grid, "text", { x: right ? width - 2 : at, y: box.bottom + below + 18, "text-anchor": right ? "end" : "middle" }, text);
      }
      if (x.title) make(grid, "text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, x.title);
      if (y.title) make(grid, "text", { transform: `translate(13 ${(box.top + box.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, y.title);
      const id = `clip-${host.parentElement.id || "chart"}`;
      make(make(make(svg, "defs", {}), "clipPath", { id }), "rect", { x: box.left, y: 0, width: box.right - box.left, height });
      now.plot = make(svg, "g", { "clip-path": `url(#${id})` });
      now.over = make(svg, "g", {});
      now.draw(now, make);
    }
    const valueOf = (event) => now.valueAt(event.clientX - svg.getBoundingClientRect().left);
    const inside = (event) => { const at = event.clientX - svg.getBoundingClientRect().left; return now && at >= now.box.left && at <= now.box.right; };
    svg.addEventListener("pointermove", (event) => {
      if (!now) return;
      if (drag && now.zoom) {
        drag.to = valueOf(event);
        const [a, b] = [now.px(drag.from), now.px(drag.to)];
        drag.rect ??= make(svg, "rect", { class: "range", y: now.box.top, height: now.box.bottom - now.box.top });
        drag.rect.setAttribute("x", Math.max(now.box.left, Math.min(a, b)));
        drag.rect.setAttribute("width", Math.max(0, Math.min(now.box.right, Math.max(a, b)) - Math.max(now.box.left, Math.min(a, b))));
      } else if (inside(event)) now.hover?.(valueOf(event), event.target);
    });
    svg.addEventListener("pointerdown", (event) => { if (now?.zoom && inside(event) && event.pointerType !== "touch") drag = { from: valueOf(event), at: event.clientX, to: null, rect: null }; });
    addEventListener("pointerup", (event) => {
      if (!drag) return;
      const { from, to, at } = drag;
      drag.rect?.remove();
      drag = null;
      if (to !== null && Math.abs(event.clientX - at) > 5) { svg.dataset.dragged = "true"; now.zoom(Math.min(from, to), Math.max(from, to)); }
    });
    svg.addEventListener("click", (event) => {
      if (svg.dataset.dragged) { delete svg.dataset.dragged; return; }
      if (now && inside(event)) now.choose?.(valueOf(event), event.target);
    });
    svg.addEventListener("dblclick", () => now?.zoom?.(null));
    addEventListener("resize", () => { if (host.clientWidth && host.clientWidth !== width) paint(); });
    addDrawing(paint, host);
    return { paint, get now() { return now; } };
  };

  // A text on a ground of its own, kept inside the box.
  graphwright.note = (now, x, y, text, options = {}) => {
    const half = 3.7 * text.length, at = Math.max(now.box.left + half, Math.min(now.box.right - half, x));
    make(now.over, "text", { x: at, y, class: `note ${options.class ?? ""}`, "text-anchor": "middle" }, text);
  };
  graphwright.upright = (now, x, className) => make(now.over, "line", { x1: x, x2: x, y1: now.box.top, y2: now.box.bottom, class: className });
  graphwright.across = (now, y, className) => make(now.over, "line", { x1: now.box.left, x2: now.box.right, y1: y, y2: y, class: className });

  // Lines through points with a mark at each, which says what it is when one points at it. `rows` are { name, color, points: [[x, y, text]], dotted, symbol }.
  graphwright.lineChart = (host, said, spec) => graphwright.chart(host, (width) => {
    const { rows, ...axes } = spec(width);
    return {
      ...axes,
      draw(now) {
        for (const { color, points, dotted, bare, size = () => 5, layer } of rows) {
          if (!bare) make(now.plot, "polyline", { points: points.map(([x, y]) => `${now.px(x).toFixed(1)},${now.py(y).toFixed(1)}`).join(" "), class: `curve ${dotted ? "dotted" : ""}`, stroke: color });
          if (!dotted) points.forEach(([x, y, text], k) => {
            const mark = make(now.over, "circle", { cx: now.px(x).toFixed(1), cy: now.py(y).toFixed(1), r: size(k), fill: color, class: "mark", "data-text": text, "data-layer": layer?.(k) });
            make(mark, "title", {}, text);
          });
        }
        axes.draw?.(now, make);
      },
      hover(value, target) { if (target.dataset.text) said.textContent = target.dataset.text; },
      choose(value, target) { if (target.dataset.layer !== undefined) location.hash = graphwright.layerHref(target.dataset.layer); else if (target.dataset.text) said.textContent = target.dataset.text; },
    };
  });
})();
