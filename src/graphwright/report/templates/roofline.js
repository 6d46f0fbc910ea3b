"use strict";
// Log-log: FLOP per byte moved against FLOP per second, below the roofs of the machine.
(() => {
  const { report, element, escaped, color, config, layoutBase, axis, formatFlops, formatTime, layerHref } = graphwright;
  const chart = report.roofline, host = document.querySelector("#roofline-chart .plot");
  if (!chart || !host) return;
  const rate = (flops) => `${formatFlops(flops)}/s`;
  const points = [...chart.layers, ...chart.opTypes];
  const longest = Math.max(...points.map((point) => point.time));
  let bound = false;

  function trace(rows, name, tint, symbol) {
    return {
      type: "scatter", mode: "markers", name, x: rows.map((p) => p.intensity), y: rows.map((p) => p.rate),
      marker: { color: tint, symbol, opacity: .75, size: rows.map((p) => 6 + 22 * Math.sqrt(p.time / longest)), line: { width: 1, color: color("page") } },
      text: rows.map((p) => `<b>${escaped(p.name)}</b><br>${p.intensity.toPrecision(3)} FLOP/B, ${rate(p.rate)}, ${(100 * p.ofRoof).toFixed(0)} % of the roof<br>${formatFlops(p.flops)} in ${formatTime(p.time)}${chart.measured ? "" : " (estimated)"}, limited by ${p.limit}`),
      hovertemplate: "%{text}<extra></extra>", customdata: rows.map((p) => p.layer ?? null),
    };
  }
  function draw() {
    graphwright.needCharts();
    const ridge = chart.flopsPerS / chart.bytesPerS;
    const left = Math.min(ridge, ...points.map((p) => p.intensity)) / 2, right = Math.max(ridge, ...points.map((p) => p.intensity)) * 3;
    const lowest = Math.min(...points.map((p) => p.rate)) / 2, top = Math.max(chart.flopsPerS, ...points.map((p) => p.rate)) * 2.2;
    const roof = {
      type: "scatter", mode: "lines", name: "roofs", x: [left, ridge, right], y: [left * chart.bytesPerS, chart.flopsPerS, chart.flopsPerS],
      line: { color: color("text"), width: 2 }, hoverinfo: "skip",
    };
    const note = (x, y, text, anchor) => ({ x: Math.log10(x), y: Math.log10(y), text, showarrow: false, xanchor: anchor, yanchor: "bottom", font: { color: color("soft") }, bgcolor: color("page"), borderpad: 2 });
    Plotly.react(host, [roof, trace(chart.layers, "layers", color("residuals"), "circle"), trace(chart.opTypes, "op types", color("gradients"), "diamond")], {
      ...layoutBase(), hovermode: "closest", showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, margin: { l: 78, r: 16, t: 40, b: 48 },
      annotations: [note(right, chart.flopsPerS, rate(chart.flopsPerS), "right"),
        note(Math.sqrt(left * ridge), Math.sqrt(left * ridge) * chart.bytesPerS, `${(chart.bytesPerS / 1e9).toPrecision(3)} GB/s`, "right")],
      xaxis: { ...axis("FLOP per byte moved"), type: "log", range: [Math.log10(left), Math.log10(right)], exponentformat: "power", dtick: 1 },
      yaxis: { ...axis(chart.measured ? "measured FLOP per second" : "estimated FLOP per second"), type: "log", range: [Math.log10(lowest), Math.log10(top)], exponentformat: "SI", dtick: 1 },
    }, config);
    if (bound) return;
    bound = true;
    host.on("plotly_click", (event) => { const layer = event.points[0].customdata; if (layer !== null && layer !== undefined) location.hash = layerHref(layer); });
  }
  graphwright.addDrawing(draw, host);
})();
