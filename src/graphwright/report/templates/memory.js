"use strict";
// Memory over the step in bands of tensors, layers or roles, and what less memory costs.
(() => {
  const { report, formatBytes, formatTime, shorten, color, element, layerLink, chart, note, across, lineChart, legendOf } = graphwright;
  const PHASES = ["forward", "backward", "recomputation", "optimizer"], BANDS = 600, LAYERS = 12;
  const top = 1.1 * Math.max(report.topBytes, 1), steps = (step) => (step + 1).toLocaleString("en");
  const presentRoles = report.roles.filter((role) => report.timelines.some((timeline) => timeline.byRole[role].length));
  const bandsBy = document.getElementById("bands"), axisBy = document.getElementById("axis");
  const shownAs = (timeline, layer) => report.rows?.[timeline.id]?.[layer] ?? layer;
  const spanAt = (spans, step) => spans.find(([first, last]) => first <= step && step <= last);
  const phaseAt = (timeline, step) => spanAt(timeline.recomputation, step) ? "recomputation" : PHASES[spanAt(timeline.spans, step)[2]];
  const timed = (timeline) => axisBy?.value === "time" && timeline.times;

  // The largest of what is live at a step; known at every step where lifetimes were given, else at the peak alone.
  function liveAt(timeline, step, count) {
    if (timeline.lifetimes.length === 0) return step === timeline.peakStep ? timeline.liveAtPeak.slice(0, count) : [];
    const found = [];
    for (const life of timeline.lifetimes) if (life[5] <= step && step <= life[6] && found.push(life) === count) break;
    return found;
  }
  const sampleOf = (timeline, step) => { let low = 0, high = timeline.steps.length - 1; while (low < high) { const middle = (low + high + 1) >> 1; if (timeline.steps[middle] <= step) low = middle; else high = middle - 1; } return low; };
  const firstSample = (timeline, step) => { const at = sampleOf(timeline, step); return timeline.steps[at] < step ? at + 1 : at; };

  // What is stacked, from the bottom: each band has its bytes at the samples from `low` on.
  function bandsOf(timeline) {
    const by = timeline.lifetimes.length ? bandsBy?.value ?? "tensors" : "roles", count = timeline.steps.length;
    if (by === "roles") return presentRoles.filter((role) => timeline.byRole[role].length).map((role) => ({ fill: color(role), text: role, low: 0, bytes: timeline.byRole[role] }));
    const last = timeline.stepCount - 1, left = Float64Array.from(timeline.total);
    const take = (bytes, low) => { for (let k = 0; k < bytes.length; k += 1) { bytes[k] = Math.min(bytes[k], Math.max(0, left[low + k])); left[low + k] -= bytes[k]; } return bytes; };
    const rest = (text) => ({ fill: color("before"), text, low: 0, bytes: left });
    if (by === "tensors") {
      const lasting = (life) => life[5] === 0 && life[6] === last, lives = [...timeline.lifetimes].sort((a, b) => b[4] * (b[6] - b[5] + 1) - a[4] * (a[6] - a[5] + 1)).slice(0, BANDS);
      lives.sort((a, b) => lasting(b) - lasting(a) || (lasting(a) ? a[3] - b[3] : a[5] - b[5]));
      const found = [];
      for (const life of lives) {
        const low = firstSample(timeline, life[5]), high = sampleOf(timeline, life[6]);
        if (high >= low) found.push({ life, fill: color(report.roles[life[3]]), text: `${life[0]}: ${formatBytes(life[4])}`, low, bytes: take(new Array(high - low + 1).fill(life[4]), low), edged: true });
      }
      return [...found, rest("smaller tensors and workspace")];
    }
    const sizes = new Map();
    for (const life of timeline.lifetimes) {
      const layer = shownAs(timeline, life[2]);
      if (!sizes.has(layer)) sizes.set(layer, new Float64Array(count));
      const bytes = sizes.get(layer);
      for (let k = firstSample(timeline, life[5]), end = sampleOf(timeline, life[6]); k <= end; k += 1) bytes[k] += life[4];
    }
    const largest = layerNames();
    return [...largest.filter((layer) => sizes.has(layer)).map((layer) => ({ layer, fill: tintOf(largest.indexOf(layer)), text: layer || report.noLayer, low: 0, bytes: take(sizes.get(layer), 0) })), rest("other layers and workspace")];
  }
  const tintOf = (k) => `oklch(${k % 2 ? 0.62 : 0.74} 0.12 ${(k * 137) % 360})`;
  // The same layers in the same colors on all charts: those that hold most while they hold it.
  let named = null;
  function layerNames() {
    if (named) return named;
    const held = new Map();
    for (const timeline of report.timelines) for (const life of timeline.lifetimes) { const layer = shownAs(timeline, life[2]); held.set(layer, (held.get(layer) ?? 0) + life[4] * (life[6] - life[5] + 1) / timeline.stepCount); }
    named = [...held].sort((a, b) => b[1] - a[1]).slice(0, LAYERS).map(([layer]) => layer);
    return named;
  }

  // What charts of memory share: the strip of phases below, the budget, the peak.
  function drawStrip(now, make, from, to, name) {
    const a = Math.max(now.box.left, from), b = Math.min(now.box.right, to), y = now.box.bottom + 3;
    if (b <= a) return;
    make(now.over, "rect", { x: a, y, width: Math.max(b - a, name === "recomputation" ? 2 : 0.7), height: 13, fill: color(name), class: "phase" });
    if (b - a > 7 * name.length + 6) make(now.over, "text", { x: (a + b) / 2, y: y + 10.5, class: "phase", "text-anchor": "middle" }, name);
  }
  function drawLimits(now, make, x, peakBytes) {
    if (report.budgetBytes && report.budgetBytes <= top) across(now, now.py(report.budgetBytes), "budget");
    if (report.budgetBytes) note(now, now.box.right, report.budgetBytes <= top ? now.py(report.budgetBytes) - 5 : 12, `budget ${formatBytes(report.budgetBytes)}${report.budgetBytes > top ? ", above the chart" : ""}`, { class: "budget" });
    if (x < now.box.left || x > now.box.right) return;
    make(now.over, "circle", { cx: x, cy: now.py(peakBytes), r: 4.5, class: "peak" });
    note(now, x, now.py(peakBytes) - 9, `peak ${formatBytes(peakBytes)}`);
  }
  const lastBefore = (count, start, value) => { let low = 0, high = count - 1; while (low < high) { const at = (low + high + 1) >> 1; if (start(at) <= value) low = at; else high = at - 1; } return low; };

  // What was measured, over time; what ran then, where that is known.
  function bindTrack(track) {
    const figure = document.getElementById(track.id), host = figure.querySelector(".plot"), said = figure.querySelector(".said"), { times, bytes } = track;
    const peak = bytes.reduce((best, amount, k) => amount > bytes[best] ? k : best, 0), profile = report.profile, longest = Math.max(...report.tracks.map((other) => other.end));
    let range = null;
    const drawn = chart(host, () => ({
      x: { from: range?.[0] ?? 0, to: range?.[1] ?? longest, title: "time", format: formatTime },
      y: { from: 0, to: top, bytes: true },
      top: 22, below: track.spans.length ? 18 : 0,
      draw(now, make) {
        let path = `M${now.px(times[0]).toFixed(1)} ${now.py(0)}`;
        bytes.forEach((amount, k) => { path += `H${now.px(times[k]).toFixed(1)}V${now.py(amount).toFixed(1)}`; });
        make(now.plot, "path", { d: `${path}H${now.px(track.end).toFixed(1)}V${now.py(0)}Z`, class: "measured" });
        for (const [from, to, phase] of track.spans) drawStrip(now, make, now.px(from), now.px(to), PHASES[phase]);
        drawLimits(now, make, now.px(times[peak]), bytes[peak]);
      },
      hover(value) {
        const running = profile ? profile.runs.filter(([, start, duration]) => start <= value * 1e6 && value * 1e6 < start + duration).slice(0, 4).map((run) => profile.names[run[3]]) : [];
        said.textContent = `${formatBytes(value < times[0] ? 0 : bytes[lastBefore(times.length, (k) => times[k], value)])} after ${formatTime(value)}${running.length ? `, while ${running.join(", ")} ran` : ""}`;
      },
      zoom(first, last) { range = first === null ? null : [Math.max(first, 0), Math.min(last, longest)]; drawn.paint(); },
    }));
  }

  function bindTimeline(timeline) {
    const figure = document.getElementById(timeline.id), host = figure.querySelector(".plot"), slider = figure.querySelector("input");
    const panel = figure.querySelector(".at-step"), detail = figure.querySelector(".band"), count = timeline.steps.length, peakIndex = timeline.steps.indexOf(timeline.peakStep);
    let range = null, chosen = null, cursor = peakIndex, bands = [], line = null;
    const start = (k) => timed(timeline) ? timeline.times[k] : k < count ? timeline.steps[k] + 0.5 : timeline.stepCount + 0.5;
    const middle = (k) => timed(timeline) ? (start(k) + start(k + 1)) / 2 : timeline.steps[k] + 1;
    const indexAt = (value) => lastBefore(count, start, value);
    const isChosen = (band) => chosen !== null && (band.life ? band.life === chosen.life : chosen.life === undefined && band.text === chosen.text);
    slider.max = String(count - 1);

    const drawn = chart(host, () => ({
      x: { from: range?.[0] ?? start(0), to: range?.[1] ?? start(count), title: timed(timeline) ? "measured time of the operations, one after another" : "operations, in the order of execution", whole: !timed(timeline), format: timed(timeline) ? formatTime : undefined },
      y: { from: 0, to: top, bytes: true },
      top: 22, below: 18,
      draw(now, make) {
        const base = new Float64Array(count);
        bands = bandsOf(timeline);
        bands.forEach((band, number) => {
          const { low, bytes } = band, over = [], under = [];
          let before = [NaN, NaN];
          for (let k = 0; k < bytes.length; k += 1) {
            const from = base[low + k], to = from + bytes[k];
            base[low + k] = to;
            if (from === before[0] && to === before[1]) continue;
            before = [from, to];
            const x = now.px(start(low + k)).toFixed(1);
            over.push(`${over.length ? "H" : "M"}${x}${over.length ? "V" : " "}${now.py(to).toFixed(1)}`);
            under.push([x, now.py(from).toFixed(1)]);
          }
          if (!over.length) return;
          let path = `${over.join("")}H${now.px(start(low + bytes.length)).toFixed(1)}`;
          for (let k = under.length - 1; k >= 0; k -= 1) path += `V${under[k][1]}H${under[k][0]}`;
          const shape = make(now.plot, "path", { d: `${path}Z`, fill: band.fill, class: `area ${band.edged && band.life[4] * (now.box.bottom - now.box.top) > 6 * top && now.px(start(low + bytes.length)) - now.px(start(low)) > 6 ? "edged" : ""} ${isChosen(band) ? "chosen" : ""}`, "data-band": number });
          make(shape, "title", {}, band.text);
        });
        const strip = (first, last, name) => drawStrip(now, make, now.px(start(firstSample(timeline, first))), now.px(start(sampleOf(timeline, last) + 1)), name);
        for (const [first, last, phase] of timeline.spans) strip(first, last, PHASES[phase]);
        for (const [first, last] of timeline.recomputation) strip(first, last, "recomputation");
        line = make(now.over, "line", { y1: now.box.top, y2: now.box.bottom, class: "cursor-line" });
        drawLimits(now, make, now.px(middle(peakIndex)), timeline.peakBytes);
        moveLine();
      },
      hover(value, target) { show(indexAt(value), bands[target.dataset.band]); },
      choose(value, target) { const band = bands[target.dataset.band]; if (band) choose(band, indexAt(value)); },
      zoom(first, last) { range = first === null ? null : [Math.max(first, start(0)), Math.min(last, start(count))]; drawn.paint(); },
    }));
    function moveLine() {
      const now = drawn?.now ?? null;
      if (!line || !now?.px) return;
      const x = now.px(middle(cursor));
      line.setAttribute("x1", x); line.setAttribute("x2", x);
      line.style.display = x < now.box.left || x > now.box.right ? "none" : "";
    }
    function show(index, band) {
      const step = timeline.steps[cursor = index];
      moveLine();
      slider.value = String(index);
      const phase = PHASES[timeline.phase[index]], around = PHASES[spanAt(timeline.spans, step)[2]], amid = [around, "recomputation"].includes(phase) ? "" : ` amid ${around}`;
      const where = `operation ${steps(step)} of ${timeline.stepCount.toLocaleString("en")}, ${phase}${amid}`;
      slider.setAttribute("aria-valuetext", `${where}, ${formatBytes(timeline.total[index])}`);
      const title = element("p");
      title.append(element("strong", "", formatBytes(timeline.total[index])), ` at ${where}${index === peakIndex ? " (the peak)" : ""}: `, element("span", "live-name", timeline.labels[index]));
      const roles = presentRoles.filter((role) => timeline.byRole[role][index]).map((role) => `${role} ${formatBytes(timeline.byRole[role][index])}`);
      panel.replaceChildren(title, element("p", "soft", roles.join(", ")));
      const live = liveAt(timeline, step, 8);
      if (band?.life && !live.includes(band.life)) live[Math.min(7, live.length)] = band.life;
      if (live.length) {
        const list = element("ul");
        for (const life of live) {
          const [name, opType, layer, role, nbytes] = life, row = element("li", life === band?.life ? "pointed" : ""), what = element("span", "live-name"), button = element("button", "plain", name);
          button.type = "button";
          button.addEventListener("click", () => choose({ life, text: name }, cursor));
          what.append(button, element("span", "soft", ` ${opType}${layer ? ", " : ""}`));
          if (layer) { const link = layerLink(shownAs(timeline, layer)); if (name.startsWith(`${layer}/`)) link.replaceChildren(...element("i", "", layer.split("/").pop()).childNodes); what.append(link); }
          row.append(element("i", `swatch ${report.roles[role].replace(" ", "-")}`), what, element("span", "", formatBytes(nbytes)));
          list.append(row);
        }
        panel.append(list);
      } else panel.append(element("p", "soft", timeline.lifetimes.length ? "Nothing large is live here." : "Buffers are itemized at the peak only."));
      if (timeline.lifetimesLeftOut) panel.append(element("p", "soft", `${timeline.lifetimesLeftOut.toLocaleString("en")} smaller buffers are not listed.`));
    }
    // What was clicked: what it is, where it comes from, and what keeps it.
    function choose(band, index) {
      chosen = isChosen(band) ? null : band;
      drawn.paint();
      detail.hidden = chosen === null;
      if (chosen === null) return;
      const facts = element("dl", "facts"), close = element("button", "", "Close");
      const fact = (term, text, more) => { if (!text) return; const row = element("div"), said = element("dd"); said.append(text, more ? element("span", "", more) : ""); row.append(element("dt", "", term), said); facts.append(row); };
      const { life, layer } = chosen, at = (step) => `operation ${steps(step)} of ${timeline.stepCount.toLocaleString("en")}, ${phaseAt(timeline, step)}`;
      close.type = "button";
      close.addEventListener("click", () => choose(chosen, index));
      if (life) {
        const [name, opType, , role, nbytes, first, last, type, source, keeper] = life, whole = first === 0 && last === timeline.stepCount - 1;
        const again = timeline.lifetimes.filter((other) => other !== life && other[0] === name);
        fact("size", formatBytes(nbytes), `${(100 * nbytes / timeline.peakBytes).toPrecision(2)} % of the peak`);
        fact("made by", opType, type);
        fact("role", report.roles[role]);
        fact("layer", layerLink(shownAs(timeline, life[2])));
        fact("source line", source);
        if (first === undefined) fact("live", "at the peak");
        else if (whole) fact("live", "during the whole step");
        else { fact("made at", at(first)); fact("kept alive until", at(last), last === timeline.stepCount - 1 ? "the end of the step" : `by ${keeper}, which reads it last`); }
        if (again.length) fact("made again", again.map((other) => at(other[5])).join("; "));
      } else if (layer !== undefined) {
        const lives = liveAt(timeline, timeline.steps[index], Infinity).filter((other) => shownAs(timeline, other[2]) === layer);
        fact("holds", formatBytes(lives.reduce((sum, other) => sum + other[4], 0)), `in ${lives.length} tensors at ${at(timeline.steps[index])}`);
        fact("largest", lives.slice(0, 4).map((other) => `${other[0]} ${formatBytes(other[4])}`).join(", "));
        fact("layer", layerLink(layer));
      } else fact("holds", formatBytes(chosen.bytes[index - chosen.low] ?? 0), `at ${at(timeline.steps[index])}`);
      detail.replaceChildren(element("h4", "live-name", life ? life[0] : chosen.text), facts, close);
    }
    slider.addEventListener("input", () => show(Number(slider.value)));
    figure.querySelector(".cursor button").addEventListener("click", () => show(peakIndex));
    show(peakIndex);
    return () => { range = null; drawn.paint(); };
  }

  function drawCurve() {
    const curve = report.curve;
    if (!curve) return;
    const points = [...curve.points].sort((first, second) => first.peak_bytes - second.peak_bytes), all = [...points, curve.chosen, ...(curve.measured ? [curve.measured] : [])];
    const describe = (point) => `${formatBytes(point.peak_bytes)} for ${(100 * point.overhead).toFixed(1)} % more time`;
    const most = Math.max(...all.map((point) => point.overhead), 0.01), upright = (now, nbytes, name, text, y) => {
      if (nbytes > now.x.to) return;
      const x = now.px(nbytes);
      graphwright.upright(now, x, name);
      note(now, x, y, text, { class: name });
    };
    lineChart(document.querySelector("#curve .plot"), document.querySelector("#curve .said"), () => ({
      x: { from: 0, to: 1.06 * Math.max(...all.map((point) => point.peak_bytes)), bytes: true, title: "peak memory" },
      y: { from: Math.min(0, ...all.map((point) => 1.1 * point.overhead)), to: 1.15 * most, format: (value) => `${Number((100 * value).toPrecision(3))} %`, title: "extra time" },
      top: 34,
      rows: [{ color: color("residuals"), points: points.map((point) => [point.peak_bytes, point.overhead, describe(point)]) },
        { color: color("recomputation"), bare: true, size: () => 8, points: [[curve.chosen.peak_bytes, curve.chosen.overhead, `chosen: ${describe(curve.chosen)}`]] },
        ...(curve.measured ? [{ color: color("gradients"), bare: true, size: () => 8, points: [[curve.measured.peak_bytes, curve.measured.overhead, `measured: ${describe(curve.measured)}`]] }] : [])],
      draw(now) {
        upright(now, curve.budgetBytes, "budget", `budget ${formatBytes(curve.budgetBytes)}`, 29);
        upright(now, curve.lowerBoundBytes, "bound", `lower bound ${formatBytes(curve.lowerBoundBytes)}`, Math.abs(now.px(curve.budgetBytes) - now.px(curve.lowerBoundBytes)) < 210 ? 13 : 29);
        const at = now.py(curve.chosen.overhead);
        note(now, now.px(curve.chosen.peak_bytes) - 36, at < now.box.top + 10 ? at + 12 : at + 4, "chosen");
        if (curve.measured) note(now, now.px(curve.measured.peak_bytes) + 46, now.py(curve.measured.overhead) + 4, "measured");
      },
    }));
  }

  const legend = document.getElementById("legend"), repaint = [];
  function drawLegend() {
    const phases = PHASES.filter((name, k) => report.timelines.some((timeline) => name === "recomputation" ? timeline.recomputation.length : timeline.spans.some((span) => span[2] === k))).map((name) => [name, name]);
    const bands = bandsBy?.value === "layers" ? [...layerNames().map((layer, k) => [shorten(layer || report.noLayer, 40), tintOf(k)]), ["others", "before"]] : presentRoles.map((role) => [role, role]);
    legendOf(legend, [["bands:"], ...bands, [""], ["strip below:"], ...phases]);
  }
  for (const timeline of report.timelines) if (document.querySelector(`#${timeline.id} .plot`)) repaint.push(bindTimeline(timeline));
  for (const select of [bandsBy, axisBy]) select?.addEventListener("change", () => { drawLegend(); for (const paint of repaint) paint(); });
  if (legend) drawLegend();
  for (const track of report.tracks) bindTrack(track);
  drawCurve();
})();
