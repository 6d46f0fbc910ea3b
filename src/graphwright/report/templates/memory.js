"use strict";
// Memory over the step, and what less memory costs.
(() => {
  const { report, units, formatBytes, shorten, escaped, color, element, layerLink, hasLayers, config, layoutBase, label, axis } = graphwright;
  const exponent = Math.min(Math.floor(Math.log2(Math.max(report.topBytes, 1)) / 10), units.length - 1);
  const unitBytes = 2 ** (10 * exponent);
  const unit = units[exponent];
  const axisTop = () => 1.12 * report.topBytes / unitBytes;

  // The largest of what is live at a step; known at every step where lifetimes were given, else at the peak alone.
  function liveAt(timeline, step, count) {
    const found = [];
    if (timeline.lifetimes.length === 0) return step === timeline.peakStep ? timeline.liveAtPeak.slice(0, count) : found;
    for (const life of timeline.lifetimes) {
      if (life[5] <= step && step <= life[6]) {
        found.push(life);
        if (found.length === count) break;
      }
    }
    return found;
  }
  const phase = (timeline, index) => ["forward", "backward", "recomputation"][timeline.phase[index]];
  const presentRoles = report.roles.filter((role) => report.timelines.some((timeline) => timeline.byRole[role].length));

  function hoverText(timeline, index) {
    const step = timeline.steps[index];
    const lines = [`<b>${escaped(shorten(timeline.labels[index], 56))}</b>`,
      `step ${(step + 1).toLocaleString("en")}, ${phase(timeline, index)}: <b>${formatBytes(timeline.total[index])}</b>`];
    for (const role of [...presentRoles].reverse()) {
      const nbytes = timeline.byRole[role][index];
      if (nbytes) lines.push(`${role} ${formatBytes(nbytes)}`);
    }
    const live = liveAt(timeline, step, 4);
    if (live.length) lines.push("largest:", ...live.map((buffer) => `  ${escaped(shorten(buffer[0], 44))} ${formatBytes(buffer[4])}`));
    return lines.join("<br>");
  }

  function drawTimeline(timeline) {
    graphwright.needCharts();
    const plot = document.querySelector(`#${timeline.id} .plot`);
    if (!plot) return;
    const x = timeline.steps.map((step) => step + 1);
    const inUnit = (values) => values.map((value) => value / unitBytes);
    const traces = presentRoles.filter((role) => timeline.byRole[role].length).map((role) => ({
      type: "scatter", mode: "lines", stackgroup: "memory", name: role, x, y: inUnit(timeline.byRole[role]),
      line: { width: 0, shape: "hv", color: color(role) }, fillcolor: color(role), hoverinfo: "skip",
    }));
    traces.push({
      type: "scatter", mode: "lines", name: "total", x, y: inUnit(timeline.total), line: { width: 1, shape: "hv", color: color("outline") },
      text: x.map((_, index) => hoverText(timeline, index)), hovertemplate: "%{text}<extra></extra>",
    });
    traces.push({
      type: "scatter", mode: "markers", name: "peak", x: [timeline.peakStep + 1], y: [timeline.peakBytes / unitBytes],
      marker: { size: 9, color: color("text"), line: { width: 2, color: color("page") } }, cliponaxis: false, hoverinfo: "skip",
    });
    const band = (first, last, name) => ({
      type: "rect", xref: "x", yref: "paper", x0: first + 0.5, x1: last + 1.5, y0: 0, y1: 0.035, line: { width: 0 }, fillcolor: color(name),
    });
    const shapes = [band(0, timeline.stepCount - 1, "forward"),
      ...timeline.backward.map(([first, last]) => band(first, last, "backward")),
      ...timeline.recomputation.map(([first, last]) => band(first, last, "recomputation"))];
    const annotations = [label(timeline.peakStep + 1, timeline.peakBytes / unitBytes, `peak ${formatBytes(timeline.peakBytes)}`, timeline.peakStep > timeline.stepCount / 2)];
    if (report.budgetBytes) {
      const y = report.budgetBytes / unitBytes;
      const top = axisTop();
      const line = { type: "line", xref: "paper", x0: 0, x1: 1, yref: "y", y0: y, y1: y };
      // A pale line below the dashes sets them off from the areas.
      shapes.push({ ...line, line: { color: color("veil"), width: 4 } }, { ...line, line: { color: color("budget"), width: 2, dash: "dash" } });
      annotations.push({ xref: "paper", x: 1, xanchor: "right", yref: "paper", y: 1, yanchor: "bottom", showarrow: false,
        text: y <= top ? `╌╌ budget ${formatBytes(report.budgetBytes)}` : `budget ${formatBytes(report.budgetBytes)}, above the chart`, font: { color: color("budget") } });
    }
    const cursor = timeline.cursor ?? timeline.peakStep + 1;
    shapes.push({ type: "line", xref: "x", x0: cursor, x1: cursor, yref: "paper", y0: 0, y1: 1, line: { color: color("soft"), width: 1 } });
    timeline.cursorShape = shapes.length - 1;
    const layout = {
      ...layoutBase(), shapes, annotations, hovermode: "x", hoverdistance: -1,
      xaxis: { ...axis("step"), range: [0.5, timeline.stepCount + 0.5], anchor: "y", showgrid: false, position: 0, ticklabelstandoff: 5 },
      yaxis: { ...axis(""), ticksuffix: ` ${unit}`, range: [0, axisTop()], domain: [0.045, 1], fixedrange: true },
    };
    Plotly.react(plot, traces, layout, config);
  }

  function bindTimeline(timeline) {
    const figure = document.getElementById(timeline.id);
    const plot = figure.querySelector(".plot");
    if (!plot) return;
    const slider = figure.querySelector("input");
    const panel = figure.querySelector(".at-step");
    const peakIndex = timeline.steps.indexOf(timeline.peakStep);
    slider.max = String(timeline.steps.length - 1);

    let moving = false;
    function moveCursor() {
      // One redraw per frame, however fast the pointer moves.
      if (moving) return;
      moving = true;
      requestAnimationFrame(() => {
        moving = false;
        const shape = `shapes[${timeline.cursorShape}]`;
        Plotly.relayout(plot, { [`${shape}.x0`]: timeline.cursor, [`${shape}.x1`]: timeline.cursor });
      });
    }
    function show(index) {
      const step = timeline.steps[index];
      if (timeline.cursor !== step + 1) {
        const first = timeline.cursor === undefined;
        timeline.cursor = step + 1;
        if (!first) moveCursor();
      }
      slider.value = String(index);
      const where = `step ${(step + 1).toLocaleString("en")} of ${timeline.stepCount.toLocaleString("en")}, ${phase(timeline, index)}`;
      slider.setAttribute("aria-valuetext", `${where}, ${formatBytes(timeline.total[index])}`);
      panel.replaceChildren();
      const title = element("p");
      title.append(element("strong", "", formatBytes(timeline.total[index])), ` at ${where}${index === peakIndex ? " (the peak)" : ""}: `,
        element("span", "live-name", timeline.labels[index]));
      const roles = presentRoles.filter((role) => timeline.byRole[role][index]).map((role) => `${role} ${formatBytes(timeline.byRole[role][index])}`);
      panel.append(title, element("p", "soft", roles.join(", ")));
      const live = liveAt(timeline, step, 8);
      if (live.length) {
        const list = element("ul");
        for (const [name, opType, layer, role, nbytes] of live) {
          const row = element("li");
          const what = element("span", "live-name");
          what.append(name, element("span", "soft", ` ${opType}${layer ? ", " : ""}`));
          if (layer) what.append(hasLayers ? layerLink(report.rows?.[timeline.id]?.[layer] ?? layer) : element("span", "soft", layer));
          row.append(element("i", `swatch ${report.roles[role].replace(" ", "-")}`), what, element("span", "", formatBytes(nbytes)));
          list.append(row);
        }
        panel.append(list);
      } else {
        panel.append(element("p", "soft", timeline.lifetimes.length ? "Nothing large is live here." : "Buffers are itemized at the peak only."));
      }
      if (timeline.lifetimesLeftOut) panel.append(element("p", "soft", `${timeline.lifetimesLeftOut.toLocaleString("en")} smaller buffers are not listed.`));
    }
    plot.on("plotly_hover", (event) => {
      const point = event.points.find((candidate) => candidate.data.name === "total");
      if (point) show(point.pointIndex);
    });
    slider.addEventListener("input", () => show(Number(slider.value)));
    figure.querySelector("button").addEventListener("click", () => show(peakIndex));
    show(peakIndex);
  }

  function drawCurve() {
    const curve = report.curve;
    if (!curve) return;
    graphwright.needCharts();
    const points = [...curve.points].sort((first, second) => first.peakBytes - second.peakBytes);
    const describe = (point) => `${formatBytes(point.peakBytes)}, ${(100 * point.overhead).toFixed(1)} % more time`;
    const line = (nbytes, name, dash) => ({ type: "line", yref: "paper", y0: 0, y1: 1, xref: "x", x0: nbytes / unitBytes, x1: nbytes / unitBytes,
      line: { color: color(name), width: 2, dash } });
    const note = (nbytes, name, text) => ({ xref: "x", x: nbytes / unitBytes, yref: "paper", y: 1, yanchor: "bottom", showarrow: false, text, font: { color: color(name) } });
    const traces = [
      { type: "scatter", mode: "lines+markers", x: points.map((point) => point.peakBytes / unitBytes), y: points.map((point) => point.overhead),
        line: { color: color("residuals"), width: 2 }, marker: { size: 7 }, text: points.map(describe), hovertemplate: "%{text}<extra></extra>" },
      { type: "scatter", mode: "markers", x: [curve.chosen.peakBytes / unitBytes], y: [curve.chosen.overhead],
        marker: { size: 14, symbol: "diamond", color: color("recomputation"), line: { width: 2, color: color("page") } },
        hovertemplate: `chosen: ${describe(curve.chosen)}<extra></extra>`, cliponaxis: false },
    ];
    const top = Math.max(...points.map((point) => point.overhead), curve.chosen.overhead, 0.01);
    Plotly.react(document.querySelector("#curve .plot"), traces, {
      ...layoutBase(), hovermode: "closest",
      shapes: [line(curve.budgetBytes, "budget", "dash"), line(curve.lowerBoundBytes, "bound", "dot")],
      annotations: [note(curve.budgetBytes, "budget", "budget"), note(curve.lowerBoundBytes, "bound", "lower bound"),
        label(curve.chosen.peakBytes / unitBytes, curve.chosen.overhead, "chosen", true)],
      xaxis: { ...axis("peak memory"), ticksuffix: ` ${unit}`, rangemode: "tozero" },
      yaxis: { ...axis("extra time"), tickformat: ".0%", range: [-0.04 * top, 1.15 * top] },
    }, config);
  }

  function drawLegend() {
    const entries = [...presentRoles, "forward", "backward"];
    if (report.timelines.some((timeline) => timeline.recomputation.length)) entries.push("recomputation");
    document.getElementById("legend").replaceChildren(...entries.map((name) => {
      const entry = element("li", "key");
      entry.append(element("i", `swatch ${name.replace(" ", "-")}`), name);
      return entry;
    }));
  }

  if (document.getElementById("legend")) drawLegend();
  for (const timeline of report.timelines) {
    const plot = document.querySelector(`#${timeline.id} .plot`);
    if (!plot) continue;
    let bound = false;
    graphwright.addDrawing(() => { drawTimeline(timeline); if (!bound) { bound = true; bindTimeline(timeline); } }, plot);
  }
  if (report.curve) graphwright.addDrawing(drawCurve, document.getElementById("curve"));
})();
