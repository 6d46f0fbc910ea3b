"use strict";
// A graph as boxes in boxes: scopes open and close, and each is laid out when it is first opened.
window.graphwright ??= {};
graphwright.drawing = (data) => {
  const picture = document.getElementById("picture"), world = document.getElementById("world"), details = document.getElementById("details");
  const SVG = "http://www.w3.org/2000/svg";
  const PAD = 12, TITLE = 20, GAP_X = 14, GAP_Y = 30, HEIGHT = 32, WIDEST = 1500, LONGEST = 34;
  const kinds = ["", "input", "constant", "output"], hues = ["product", "norm", "element", "operation"];
  const metric = document.getElementById("metric");
  const figures = [
    ["flops", "FLOPs", (x) => graphwright.formatFlops(x)], ["time", graphwright.report?.timeWords ?? "time", (x) => graphwright.formatTime(x)],
    ["moved", "bytes moved", (x) => graphwright.formatBytes(x)], ["peak", "at the peak", (x) => graphwright.formatBytes(x)],
  ];
  const make = (tag, attributes, text) => {
    const made = document.createElementNS(SVG, tag);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const shorten = (name, width) => name.length <= width ? name : name.slice(0, Math.ceil(width / 2) - 1) + "…" + name.slice(-Math.floor(width / 2));

  // What the boxes beside each other are called: those that would look alike begin where they differ.
  function nameApart(parts) {
    const alike = new Map();
    for (const part of parts) {
      part.shown = shorten(part.label, LONGEST);
      if (!alike.has(part.shown)) alike.set(part.shown, []);
      alike.get(part.shown).push(part);
    }
    for (const group of alike.values()) {
      const labels = [...new Set(group.map((part) => part.label))];
      if (labels.length < 2) continue;
      let differ = 0;
      while (labels.every((label) => label[differ] === labels[0][differ])) differ += 1;
      const start = Math.max(...["_", "/", "-", " "].map((mark) => labels[0].lastIndexOf(mark, differ - 1))) + 1;
      for (const part of group) {
        const count = /^\d+ × /.exec(part.label)?.[0] ?? "", before = start > count.length ? count : "";
        part.shown = before + shorten((start ? "…" : "") + part.label.slice(start), LONGEST - before.length);
      }
    }
  }

  // The shape of one value, as "4×28×28×32"; its dtype where it is none of the usual; nothing where nothing is known of it.
  const shapeText = (types) => {
    const found = /^(\w+)\[([^\]]*)\]$/.exec(types ?? "");
    if (!found) return "";
    const [, dtype, sizes] = found, usual = dtype === "float32";
    return (usual ? "" : `${dtype} `) + (/^[*?,]+$/.test(sizes) ? "" : sizes.replaceAll(",", "×") || (usual ? "scalar" : ""));
  };
  // What a closed layer does, in the order in which it does it.
  const PLUMBING = /^(TensorList\w*|Transpose|Reshape|Shape|StridedSlice|Pack|Cast|Identity|ExpandDims|Squeeze|ConcatV2|Fill|Range|Prod|GatherV2|Slice)$/;
  function does(part) {
    const ops = new Set(), stack = [part];
    while (stack.length) { const p = stack.pop(); if (p.node >= 0) ops.add(view.ops[view.nodes[p.node][1]]); else stack.push(...[...p.parts].reverse()); }
    const telling = [...ops].filter((op) => !PLUMBING.test(op)), shown = telling.length ? telling : [...ops];
    return shown.slice(0, 3).join(", ") + (shown.length > 3 ? " …" : "");
  }

  const counted = (count) => `${count.toLocaleString("en")} ${count === 1 ? "node" : "nodes"}`;

  let view, root, leaves, readers, chosen = null, place = { x: 0, y: 0, k: 1 };

  // A part is a leaf (node >= 0) or a scope. Edges between the parts of a scope are found once, when it is first opened.
  function build(tree, parent, label) {
    if (tree.length === 2) return build(tree[1], parent, tree[0]);
    if (typeof tree === "number") {
      const name = view.nodes[tree][0];
      const leaf = { label: label ?? name.slice(name.lastIndexOf("/") + 1), path: name, node: tree, parent, size: 1, givesOutput: view.nodes[tree][2] === 3, hue: view.nodes[tree][2] ? 3 : view.hues[view.nodes[tree][1]] };
      if (view.costs) for (const [key] of figures) leaf[key] = view.costs[key][tree];
      leaves[tree] = leaf;
      return leaf;
    }
    const part = { label: tree[0], node: -1, parent, path: tree[3] ?? "", open: !!tree[1], parts: [], size: 0, edges: null, hue: 3 };
    if (view.costs) for (const [key] of figures) part[key] = 0;
    for (const child of tree[2]) {
      const made = build(child, part);
      part.parts.push(made);
      part.size += made.size;
      part.givesOutput ||= made.givesOutput;
      part.hue = Math.min(part.hue, made.hue);
      if (view.costs) for (const [key] of figures) part[key] += made[key];
    }
    nameApart(part.parts);
    return part;
  }
  const depth = (part) => { let d = 0; for (let p = part.parent; p; p = p.parent) d += 1; return d; };

  // All edges, given once to the scope in which both ends are parts.
  function distribute() {
    const level = new Map();
    const depthOf = (p) => { let d = level.get(p); if (d === undefined) { d = depth(p); level.set(p, d); } return d; };
    const note = (from, to, control) => {
      const type = view.nodes[from][5];
      let a = leaves[from], b = leaves[to];
      while (depthOf(a) > depthOf(b)) a = a.parent;
      while (depthOf(b) > depthOf(a)) b = b.parent;
      while (a.parent !== b.parent) { a = a.parent; b = b.parent; }
      if (a === b) return;
      const scope = a.parent;
      scope.edges ??= new Map();
      let row = scope.edges.get(a);
      if (!row) scope.edges.set(a, row = new Map());
      const edge = row.get(b);
      if (edge) { edge.count += 1; edge.control &&= control; if (edge.type !== type) edge.type = ""; } else row.set(b, { count: 1, control, type });
    };
    view.nodes.forEach((node, k) => {
      for (const from of node[3]) if (typeof from === "number") { note(from, k, false); readers[from].push(k); }
      for (const from of node[4]) { note(from, k, true); readers[from].push(k); }
    });
  }

  // Layers by longest path, back edges left aside; within a layer by the mean place of the neighbors.
  function layOut(scope) {
    for (const part of scope.parts) {
      if (part.node < 0 && part.open) layOut(part);
      else { part.w = Math.min(part.node < 0 ? 268 : 256, Math.max(60, 7 * (part.shown.length + (part.node < 0 ? 2 : 0)) + 16, 6 * (costText(part) ?? kindText(part)).length + 10)); part.h = HEIGHT; }
    }
    const edges = scope.edges ?? new Map(), after = new Map(), before = new Map(), state = new Map(), order = [];
    for (const part of scope.parts) { after.set(part, []); before.set(part, []); }
    for (const first of scope.parts) {
      if (state.has(first)) continue;
      const stack = [[first, [...(edges.get(first)?.keys() ?? [])], 0]];
      state.set(first, 1);
      while (stack.length) {
        const top = stack[stack.length - 1];
        if (top[2] >= top[1].length) { state.set(top[0], 2); order.push(top[0]); stack.pop(); continue; }
        const next = top[1][top[2]++];
        if (state.get(next) === 1) continue;
        after.get(top[0]).push(next); before.get(next).push(top[0]);
        if (!state.has(next)) { state.set(next, 1); stack.push([next, [...(edges.get(next)?.keys() ?? [])], 0]); }
      }
    }
    order.reverse();
    const rank = new Map();
    for (const part of order) rank.set(part, Math.max(0, ...before.get(part).map((p) => rank.get(p) + 1)));
    // What only feeds others, such as a weight, stands just above its reader.
    for (const part of order) if (!before.get(part).length && after.get(part).length) rank.set(part, Math.max(0, Math.min(...after.get(part).map((p) => rank.get(p))) - 1));
    const rows = [];
    for (const part of scope.parts) (rows[rank.get(part)] ??= []).push(part);
    const layers = rows.filter((row) => row);
    // Parts without any edges would make one endless row: they go into a block of their own below.
    const lonely = scope.parts.filter((part) => !before.get(part).length && !after.get(part).length);
    if (lonely.length > 1 && lonely.length < scope.parts.length) {
      const alone = new Set(lonely);
      for (let k = 0; k < layers.length; k += 1) layers[k] = layers[k].filter((part) => !alone.has(part));
    } else if (lonely.length === scope.parts.length) layers.length = 0;
    if (lonely.length > 1 || !layers.length) {
      const width = Math.ceil(Math.sqrt(lonely.length * 2));
      for (let k = 0; k < lonely.length; k += width) layers.push(lonely.slice(k, k + width));
    }
    const shown = layers.filter((row) => row.length);
    const middle = new Map();
    const spread = (row) => { const total = row.reduce((sum, p) => sum + p.w + GAP_X, -GAP_X); let x = -total / 2; for (const p of row) { middle.set(p, x + p.w / 2); x += p.w + GAP_X; } };
    shown.forEach(spread);
    for (let sweep = 0; sweep < 4; sweep += 1) {
      const near = sweep % 2 ? after : before;
      for (const row of sweep % 2 ? [...shown].reverse() : shown) {
        const wish = new Map(row.map((p, k) => { const n = near.get(p); return [p, n.length ? n.reduce((s, q) => s + middle.get(q), 0) / n.length : middle.get(p) + k * 1e-6]; }));
        row.sort((a, b) => wish.get(a) - wish.get(b));
        spread(row);
        let shift = 0;
        for (const p of row) shift += wish.get(p) - middle.get(p);
        for (const p of row) middle.set(p, middle.get(p) + shift / row.length);
      }
    }
    // A layer wider than a screen, such as all weights that one node reads, goes on in the next row.
    const placed = shown.flatMap((row) => {
      const parts = [[]];
      let width = 0;
      for (const p of row) {
        if (width + p.w > WIDEST && width > 0) { parts.push([]); width = 0; }
        parts[parts.length - 1].push(p);
        width += p.w + GAP_X;
      }
      if (parts.length > 1) parts.forEach(spread);
      return parts;
    });
    let left = Infinity, right = -Infinity, y = PAD + (scope.parent ? TITLE : 0);
    for (const row of placed) {
      const tallest = Math.max(...row.map((p) => p.h));
      for (const p of row) { p.x = middle.get(p) - p.w / 2; p.y = y + (tallest - p.h) / 2; left = Math.min(left, p.x); right = Math.max(right, p.x + p.w); }
      y += tallest + GAP_Y;
    }
    const margin = view.served && scope.parts.length > 2 ? PAD + 14 : PAD;  // beside the boxes go edges that skip some
    for (const p of scope.parts) p.x += margin - left;
    scope.w = Math.max(right - left + 2 * margin, 7 * Math.min(scope.label.length, 30) + 40);
    scope.h = y - GAP_Y + PAD;
  }

  // Where an edge that would run behind boxes goes down instead: beside them, on the nearer side; null where nothing is in the way.
  function wayAround(scope, x1, y1, x2, y2) {
    if (!view.served || y2 - y1 < 2 * GAP_Y) return null;
    const at = (y) => x1 + (x2 - x1) * (y - y1) / (y2 - y1);
    let left = Infinity, right = -Infinity;
    for (const p of scope.parts) {
      const x = at(p.y + p.h / 2);
      if (p.y >= y1 && p.y + p.h <= y2 && x > p.x - 8 && x < p.x + p.w + 8) { left = Math.min(left, p.x); right = Math.max(right, p.x + p.w); }
    }
    if (right < left) return null;
    const x = (x1 + x2) / 2;
    return right - x <= x - left ? right + 14 : left - 14;
  }

  function drawParts(scope, into) {
    const lines = make("g", {}), shapes = make("g", {}), boxes = make("g", {});
    for (const [from, row] of scope.edges ?? []) for (const [to, edge] of row) {
      const x1 = from.x + from.w / 2, y1 = from.y + from.h, x2 = to.x + to.w / 2, y2 = to.y, bend = Math.max(18, Math.abs(y2 - y1) / 2);
      const around = wayAround(scope, x1, y1, x2, y2), middle = around ?? (x1 + x2) / 2;
      const line = around === null ? `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2 - 1}`
        : `M${x1} ${y1}C${x1} ${y1 + 26} ${around} ${y1 + 4} ${around} ${y1 + 40}L${around} ${y2 - 40}C${around} ${y2 - 4} ${x2} ${y2 - 26} ${x2} ${y2 - 1}`;
      const path = make("path", { class: "edge" + (edge.control ? " control" : ""), d: line, "stroke-width": Math.min(1 + Math.log2(edge.count), 5) });
      path.setAttribute("marker-end", "url(#arrow)");
      path.style.strokeWidth = Math.min(1 + Math.log2(edge.count) / 1.5, 5);
      edge.path = path;
      lines.append(path);
      const shape = view.served && !edge.control ? shapeText(edge.type) : "";
      const before = around !== null && around < Math.min(x1, x2);  // the label of an edge that goes by on the left stands left of it
      if (shape) shapes.append(make("text", { class: before ? "shape before" : "shape", x: middle + (before ? -6 : 6), y: (y1 + y2) / 2 + 3 }, shape));
    }
    for (const part of scope.parts) {
      const isScope = part.node < 0, classes = ["box"];
      if (isScope) classes.push(part.open ? "open" : view.served && part.givesOutput ? "scope output" : `scope ${hues[part.hue]}`); else classes.push(kinds[view.nodes[part.node][2]] || hues[part.hue]);
      const box = make("g", { class: classes.join(" "), transform: `translate(${part.x} ${part.y})`, tabindex: 0, role: "button" });
      if (isScope) box.setAttribute("aria-expanded", String(part.open));
      box.setAttribute("aria-label", isScope ? `scope ${part.label}, ${counted(part.size)}` : `${view.nodes[part.node][0]}, ${view.ops[view.nodes[part.node][1]]}`);
      box.append(make("rect", { width: part.w, height: part.h, rx: 6 }), make("title", {}, isScope ? `${part.label}: ${counted(part.size)}` : `${view.nodes[part.node][0]} = ${view.ops[view.nodes[part.node][1]]} : ${view.nodes[part.node][5]}`));
      if (isScope && part.open) { box.append(make("text", { x: 8, y: 14 }, `▾ ${shorten(part.label, Math.floor(part.w / 7))}`)); drawParts(part, box); }
      else {
        box.append(make("text", { x: part.w / 2, y: 14 }, (isScope ? "▸ " : "") + part.shown));
        const cost = costText(part);
        box.append(make("text", { x: part.w / 2, y: 26, class: "kind" }, cost ?? kindText(part)));
        if (cost !== null) box.firstChild.style.fill = `color-mix(in oklab, var(--heat-1) ${(100 * Math.sqrt(part[metric.value] / (root[metric.value] || 1))).toFixed(1)}%, var(--heat-0))`;
      }
      box.addEventListener("click", (event) => { event.stopPropagation(); choose(part); });
      box.addEventListener("dblclick", (event) => { event.stopPropagation(); toggle(part); });
      box.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); event.stopPropagation(); choose(part); toggle(part); } });
      part.box = box;
      boxes.append(box);
    }
    into.append(lines, shapes, boxes);
  }

  const kindText = (part) => part.node >= 0 ? shorten(view.ops[view.nodes[part.node][1]], 30) : view.served ? shorten(does(part), 32) : counted(part.size);

  // What a box shows beside its name: the chosen figure, and its share of the whole graph.
  function costText(part) {
    const figure = view.costs && metric ? figures.find(([key]) => key === metric.value) : undefined;
    if (!figure) return null;
    const amount = part[figure[0]], share = root[figure[0]] ? 100 * amount / root[figure[0]] : 0;
    return amount ? `${figure[2](amount)} · ${share < 0.005 ? "<0.01" : share.toFixed(share < 1 ? 2 : 1)} %` : "–";
  }
  const absolute = (part) => { let x = 0, y = 0; for (let p = part; p && p.parent; p = p.parent) { x += p.x; y += p.y; } return { x, y }; };
  const shownFor = (part) => { let shown = part; for (let p = part.parent; p; p = p.parent) if (!p.open && p.parent) shown = p; return shown; };
  // A small map beside a graph of which not all is seen: its boxes, and the part that is seen.
  const map = document.getElementById("map"), MAP_WIDTH = 90, MAP_HEIGHT = 240;
  function drawMap() {
    const k = Math.min(MAP_WIDTH / root.w, MAP_HEIGHT / root.h), shapes = map.querySelector("g");
    map.setAttribute("viewBox", `0 0 ${root.w} ${root.h}`);
    map.setAttribute("width", root.w * k); map.setAttribute("height", root.h * k);
    shapes.replaceChildren();
    const add = (scope, x, y) => { for (const part of scope.parts) { if (part.w * k < 0.5) continue; shapes.append(make("rect", { x: x + part.x, y: y + part.y, width: part.w, height: part.h, class: part.node < 0 && part.open ? "open" : "" })); if (part.node < 0 && part.open) add(part, x + part.x, y + part.y); } };
    add(root, 0, 0);
  }
  function move() {
    const frame = picture.getBoundingClientRect(), whole = place.x >= 0 && place.y >= 0 && place.x + root.w * place.k <= frame.width && place.y + root.h * place.k <= frame.height;
    world.setAttribute("transform", `translate(${place.x} ${place.y}) scale(${place.k})`);  // the frame is read first: then nothing is laid out twice
    map.style.display = whole || frame.width < 500 ? "none" : "";
    const seen = { x: -place.x / place.k, y: -place.y / place.k, width: frame.width / place.k, height: frame.height / place.k };
    for (const key in seen) map.querySelector(".seen").setAttribute(key, seen[key]);
  }

  function draw() {
    layOut(root);
    world.replaceChildren();
    const clear = (scope) => { for (const part of scope.parts ?? []) { part.box = null; clear(part); } for (const row of scope.edges?.values() ?? []) for (const edge of row.values()) edge.path = null; };
    clear(root);
    drawParts(root, world);
    drawMap();
    mark();
  }
  function toggle(part) {
    if (part.node >= 0) return;
    const was = absolute(part);
    part.open = !part.open;
    draw();
    const now = absolute(part);
    place.x += (was.x - now.x) * place.k; place.y += (was.y - now.y) * place.k;
    move();
    if (part === chosen) choose(part);
    part.box?.focus({ preventScroll: true });
  }
  // A tall graph is read from its top, not from afar, when it is shown first; the button shows the whole.
  function fit(whole = true) {
    const frame = picture.getBoundingClientRect();
    place.k = Math.min(1.4, (frame.width - 20) / root.w, (frame.height - 20) / root.h);
    if (!whole) place.k = Math.max(place.k, Math.min(1, (frame.width - 20) / root.w), 0.4);
    place.x = (frame.width - root.w * place.k) / 2; place.y = Math.max(10, (frame.height - root.h * place.k) / 2);
    move();
  }
  function zoom(factor, x, y) {
    const frame = picture.getBoundingClientRect();
    x ??= frame.width / 2; y ??= frame.height / 2;
    const k = Math.min(8, Math.max(0.02, place.k * factor));
    place.x = x - (x - place.x) * k / place.k; place.y = y - (y - place.y) * k / place.k; place.k = k;
    move();
  }
  function mark() {
    for (const old of world.querySelectorAll(".chosen")) old.classList.remove("chosen");
    if (!chosen) return;
    const shown = shownFor(chosen);
    shown.box?.classList.add("chosen");
    for (const [from, row] of shown.parent?.edges ?? []) for (const [to, edge] of row) if (from === shown || to === shown) edge.path?.classList.add("chosen");
  }
  function revealPart(part) {
    for (let p = part.parent; p; p = p.parent) p.open = true;
    draw();
    choose(part);
    const frame = picture.getBoundingClientRect(), at = absolute(part);
    place.k = Math.max(place.k, 0.8);
    place.x = frame.width / 2 - (at.x + part.w / 2) * place.k; place.y = frame.height / 2 - (at.y + Math.min(part.h, frame.height / place.k) / 2) * place.k;
    move();
  }
  const reveal = (number) => revealPart(leaves[number]);
  // The box of a layer: the scope of its name, or else its first node.
  function revealLayer(layer) {
    const last = data.views.length - 1, selector = document.getElementById("view");
    if (view !== data.views[last] && !view.layers?.includes(layer)) { selector.value = last; show(last); }
    const stack = [root];
    let found = null;  // itself, or the one in the block of layers that it is part of
    while (stack.length) { const part = stack.pop(); if (part !== root && (part.path === layer || (part.path.endsWith(`/${layer}`) && part.path.length < (found?.path.length ?? Infinity)))) found = part; if (found?.path === layer) break; stack.push(...(part.parts ?? [])); }
    if (found) { revealPart(found); return true; }
    const number = view.layers?.indexOf(layer) ?? -1, first = number < 0 ? -1 : view.layerOf.indexOf(number);
    if (first >= 0) reveal(first);
    return first >= 0;
  }
  const element = (tag, text) => { const made = document.createElement(tag); if (text !== undefined) made.textContent = text; return made; };
  function links(title, numbers, more, most = 200) {
    if (!numbers.length) return [];
    const list = element("ul");
    for (const number of numbers.slice(0, most)) {
      const item = element("li");
      if (typeof number === "number") { const button = element("button", view.nodes[number][0]); button.type = "button"; button.addEventListener("click", () => reveal(number)); item.append(button, more ? ` ${more(number)}` : ""); }
      else item.textContent = number;
      list.append(item);
    }
    if (numbers.length > most) list.append(element("li", `and ${numbers.length - most} more`));
    return [element("h3", title), list];
  }
  function choose(part) {
    chosen = part;
    mark();
    const pairs = element("dl"), row = (key, text) => { if (text) pairs.append(element("dt", key), element("dd", text)); };
    const costs = () => { if (view.costs) for (const [key, words, format] of figures) row(words, part[key] ? format(part[key]) : ""); };
    const layerOf = (leaf) => view.layers?.[view.layerOf[leaf.node]];
    const layerLine = (layer) => { if (!layer || !graphwright.layerLink) return []; const line = element("p", "Layer: "); line.append(graphwright.layerLink(layer)); return [line]; };
    const weights = (numbers) => { const texts = [...new Set(numbers.flatMap((k) => view.nodes[k][7] ?? []))]; return links("weights", texts); };
    const within = (p) => p.node >= 0 ? [p.node] : p.parts.flatMap(within);
    if (part.node < 0) {
      const counts = new Map(), stack = [part];
      while (stack.length) { const p = stack.pop(); if (p.node >= 0) { const op = view.ops[view.nodes[p.node][1]]; counts.set(op, (counts.get(op) ?? 0) + 1); } else stack.push(...p.parts); }
      row("nodes", part.size.toLocaleString("en"));
      costs();
      for (const [op, count] of [...counts].sort((a, b) => b[1] - a[1]).slice(0, 20)) row(op, String(count));
      const button = element("button", part.open ? "Close" : "Open");
      button.type = "button"; button.addEventListener("click", () => { toggle(part); });
      let inside = part;
      while (inside.node < 0) inside = inside.parts[0];
      const layer = layerOf(inside);
      details.replaceChildren(element("h2", part.path || part.label), ...layerLine(layer && (part.path === layer || part.path.endsWith(`/${layer}`) || part.path.startsWith(`${layer}/`)) ? layer : null), button, ...weights(within(part)), pairs);
      return;
    }
    const [name, op, , inputs, controls, types, attributes] = view.nodes[part.node];
    row("op", view.ops[op]); row("makes", types);
    costs();
    for (const key in attributes) row(key, attributes[key]);
    details.replaceChildren(element("h2", name), ...layerLine(layerOf(part)), ...weights([part.node]), pairs, ...links("reads", inputs), ...links("waits for", controls), ...links("read by", [...new Set(readers[part.node])]));
  }
  function show(index) {
    view = data.views[index]; leaves = []; readers = view.nodes.map(() => []); chosen = null;
    root = build(view.tree, null, undefined);
    root.open = true;
    distribute();
    draw();
    fit(false);
    if (!view.served) return;
    const ends = (kind) => view.nodes.flatMap((node, k) => node[2] === kind ? [k] : []), hint = details.querySelector("p");
    details.replaceChildren(...(hint ? [hint] : []), ...[["inputs", 1], ["outputs", 3]].flatMap(([title, kind]) => links(title, ends(kind), (k) => view.nodes[k][5], 8)));
  }

  picture.addEventListener("wheel", (event) => { event.preventDefault(); const frame = picture.getBoundingClientRect(); zoom(Math.exp(-event.deltaY / 500), event.clientX - frame.left, event.clientY - frame.top); }, { passive: false });
  function goTo(event) {
    if (!event.buttons) return;
    const frame = picture.getBoundingClientRect(), box = map.getBoundingClientRect();
    place.x = frame.width / 2 - (event.clientX - box.left) / box.width * root.w * place.k;
    place.y = frame.height / 2 - (event.clientY - box.top) / box.height * root.h * place.k;
    move();
  }
  for (const kind of ["pointerdown", "pointermove"]) map.addEventListener(kind, goTo);
  let drag = null;
  picture.addEventListener("pointerdown", (event) => { drag = { x: event.clientX - place.x, y: event.clientY - place.y, moved: false, id: event.pointerId }; });
  picture.addEventListener("pointermove", (event) => {
    if (!drag) return;
    if (!drag.moved && Math.hypot(event.clientX - drag.x - place.x, event.clientY - drag.y - place.y) < 4) return;
    if (!drag.moved) { drag.moved = true; picture.setPointerCapture(drag.id); picture.classList.add("dragging"); }
    place.x = event.clientX - drag.x; place.y = event.clientY - drag.y; move();
  });
  for (const kind of ["pointerup", "pointercancel"]) picture.addEventListener(kind, () => { drag = null; picture.classList.remove("dragging"); });
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] }[event.key];
    if (step) { place.x += step[0]; place.y += step[1]; move(); event.preventDefault(); }
    else if (event.key === "+" || event.key === "=") zoom(1.25); else if (event.key === "-") zoom(0.8); else if (event.key === "0") fit();
  });
  document.getElementById("fit").addEventListener("click", () => fit());
  document.getElementById("larger").addEventListener("click", () => zoom(1.25));
  document.getElementById("smaller").addEventListener("click", () => zoom(0.8));
  document.getElementById("close-all").addEventListener("click", () => { const close = (p) => { if (p.node < 0) { p.open = !p.parent; p.parts.forEach(close); } }; close(root); draw(); fit(false); });
  document.getElementById("view").addEventListener("change", (event) => show(Number(event.target.value)));
  const query = document.getElementById("query"), matches = document.getElementById("matches");
  const found = (text) => { const hits = []; for (let k = 0; k < view.nodes.length && hits.length < 30; k += 1) if (view.nodes[k][0].includes(text) || view.nodes[k][6]?.node?.includes(text)) hits.push(k); return hits; };
  query.addEventListener("input", () => matches.replaceChildren(...found(query.value).map((k) => { const option = element("option"); option.value = view.nodes[k][0]; return option; })));
  document.getElementById("search").addEventListener("submit", (event) => { event.preventDefault(); const exact = view.nodes.findIndex((node) => node[0] === query.value || node[6]?.node === query.value); const hit = exact >= 0 ? exact : found(query.value)[0]; if (hit !== undefined && query.value) reveal(hit); });
  metric?.addEventListener("change", draw);
  return { show, revealLayer };
};
