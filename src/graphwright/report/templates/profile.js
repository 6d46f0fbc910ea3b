"use strict";
// A measured step on a canvas: a lane per thread, an operation per bar; wheel and drag, or the keyboard.
(() => {
  const { report, element, color, formatBytes, formatTime, layerLink, shorten } = graphwright;
  const profile = report.profile, figure = document.getElementById("profile");
  if (!profile || !figure) return;
  const canvas = figure.querySelector("canvas"), panel = figure.querySelector(".at-step"), LEFT = 8, AXIS = 22, directions = ["forward", "backward", "optimizer"];
  const byLane = profile.lanes.map(() => []);
  profile.runs.forEach((run, k) => byLane[run[0]].push(k));
  const laneHeight = Math.max(34, Math.min(64, 320 / profile.lanes.length));
  canvas.style.height = `${Math.min(640, laneHeight * profile.lanes.length + AXIS + 4)}px`;
  let from = 0, to = profile.end || 1, chosen = profile.runs.reduce((best, run, k) => run[2] > profile.runs[best][2] ? k : best, 0), pending = false;
  const width = () => canvas.clientWidth - 2 * LEFT;
  const xOf = (time) => LEFT + (time - from) / (to - from) * width();
  const rows = () => (canvas.clientHeight - AXIS) / profile.lanes.length;

  function paint() {
    pending = false;
    const scale = devicePixelRatio || 1, context = canvas.getContext("2d"), height = rows();
    canvas.width = canvas.clientWidth * scale; canvas.height = canvas.clientHeight * scale;
    context.scale(scale, scale);
    const tints = [color("forward"), color("backward"), color("optimizer")], text = color("text"), soft = color("soft"), line = color("line"), page = color("page"), mark = color("chosen");
    context.font = "12px system-ui, sans-serif";
    profile.lanes.forEach((lane, k) => {
      const y = k * height;
      context.strokeStyle = line; context.beginPath(); context.moveTo(0, y + height); context.lineTo(canvas.clientWidth, y + height); context.stroke();
      let painted = -1;
      for (const number of byLane[k]) {
        const [, start, duration, name, , direction] = profile.runs[number];
        if (start + duration < from || start > to) continue;
        const x1 = xOf(start), x2 = Math.max(xOf(start + duration), x1 + 0.75);
        if (x2 < painted + 0.5 && number !== chosen) continue;  // less than a pixel beside the last
        painted = x2;
        context.fillStyle = tints[direction];
        context.fillRect(x1, y + 17, x2 - x1, height - 22);
        if (x2 - x1 > 46) { context.fillStyle = page; context.save(); context.beginPath(); context.rect(x1, y, x2 - x1 - 3, height); context.clip(); context.fillText(profile.names[name].slice(profile.names[name].lastIndexOf("/") + 1), Math.max(x1, 0) + 4, y + 17 + (height - 22) / 2 + 4); context.restore(); }
      }
      context.fillStyle = soft; context.fillText(lane, LEFT, y + 13);
    });
    const [lane, start, duration] = profile.runs[chosen];
    context.strokeStyle = mark; context.lineWidth = 2; context.strokeRect(xOf(start) - 1, lane * height + 16, Math.max(3, duration / (to - from) * width() + 2), height - 20); context.lineWidth = 1;
    context.fillStyle = text;
    const step = 10 ** Math.floor(Math.log10((to - from) / 4)), by = [1, 2, 5, 10, 20].map((m) => m * step).find((s) => (to - from) / s <= Math.max(2, width() / 75));
    for (let time = Math.ceil(from / by) * by; time <= to; time += by) {
      const said = formatTime(Math.max(0, time) * 1e-6);
      const half = context.measureText(said).width / 2, x = xOf(time);
      context.fillRect(x, canvas.clientHeight - AXIS, 1, 4);
      context.fillText(said, Math.max(0, Math.min(x - half, canvas.clientWidth - 2 * half - 2)), canvas.clientHeight - 5);
    }
  }
  const refresh = () => { if (!pending) { pending = true; requestAnimationFrame(paint); } };
  function choose(number) {
    chosen = number;
    const [lane, start, duration, name, opType, direction, allocated] = profile.runs[number];
    const title = element("p");
    title.append(element("strong", "", formatTime(duration * 1e-6)), ` in ${profile.opTypes[opType]} `, element("span", "live-name", profile.names[name]));
    const more = element("p", "soft", `${directions[direction]}, ${profile.lanes[lane]}, starts at ${formatTime(start * 1e-6)}${allocated ? `, allocates ${formatBytes(allocated)}` : ""}. Layer: `);
    more.append(layerLink(profile.layers[profile.layerOf[name]]));
    panel.replaceChildren(title, more);
    refresh();
  }
  function zoom(factor, at) {
    const middle = at ?? (from + to) / 2, all = profile.end || 1;
    const span = Math.min(all, Math.max((to - from) * factor, 1));
    from = Math.max(0, Math.min(middle - (middle - from) * span / (to - from), all - span)); to = from + span;
    refresh();
  }
  function shift(time) { const span = to - from; from = Math.max(0, Math.min(from + time, (profile.end || 1) - span)); to = from + span; refresh(); }
  function nearest(lane, time) {
    let best = -1, distance = Infinity;
    for (const number of byLane[lane] ?? []) { const [, start, duration] = profile.runs[number], d = time < start ? start - time : Math.max(0, time - start - duration); if (d < distance) { distance = d; best = number; } }
    return [best, distance];
  }
  const place = (event) => { const box = canvas.getBoundingClientRect(); return [Math.min(profile.lanes.length - 1, Math.floor((event.clientY - box.top) / rows())), from + (event.clientX - box.left - LEFT) / width() * (to - from)]; };
  let drag = null;
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoom(Math.exp(event.deltaY / 400), place(event)[1]); }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, moved: false }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) { if (Math.abs(event.clientX - drag.x) > 2) { drag.moved = true; shift((drag.x - event.clientX) / width() * (to - from)); drag.x = event.clientX; } return; }
    const [lane, time] = place(event), [number, distance] = nearest(lane, time);
    if (number >= 0 && distance < 4 / width() * (to - from)) { canvas.title = `${shorten(profile.names[profile.runs[number][3]], 70)}: ${formatTime(profile.runs[number][2] * 1e-6)}`; canvas.style.cursor = "pointer"; } else { canvas.title = ""; canvas.style.cursor = ""; }
  });
  canvas.addEventListener("pointerup", (event) => { if (drag && !drag.moved) { const [lane, time] = place(event), [number] = nearest(lane, time); if (number >= 0) choose(number); } drag = null; });
  const showAll = () => { from = 0; to = profile.end || 1; refresh(); };
  canvas.addEventListener("dblclick", showAll);
  for (const button of figure.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => { const factor = Number(button.dataset.zoom); if (factor) zoom(factor); else showAll(); });
  canvas.addEventListener("keydown", (event) => {
    const [lane, start, duration] = profile.runs[chosen], at = byLane[lane].indexOf(chosen);
    const next = { ArrowLeft: byLane[lane][at - 1], ArrowRight: byLane[lane][at + 1], Home: byLane[lane][0], End: byLane[lane].at(-1) }[event.key];
    if (next !== undefined) choose(next);
    else if (event.key === "ArrowUp" || event.key === "ArrowDown") { const to = nearest(lane + (event.key === "ArrowUp" ? -1 : 1), start + duration / 2)[0]; if (to >= 0) choose(to); }
    else if (event.key === "+" || event.key === "=") zoom(0.6, start + duration / 2);
    else if (event.key === "-") zoom(1 / 0.6);
    else if (event.key === "0") showAll();
    else return;
    event.preventDefault();
    const [, first, length] = profile.runs[chosen];
    if (first + length < from || first > to) shift(first + length / 2 - (from + to) / 2);
  });
  addEventListener("resize", () => { if (canvas.clientWidth) refresh(); });
  let bound = false;
  graphwright.addDrawing(() => { if (!bound) { bound = true; choose(chosen); } paint(); }, canvas);
})();
