"use strict";
// The roofline, on logarithmic axes: what a layer or op type computes per byte it moves, and how fast. The larger a mark, the more time.
(() => {
  const { report, color, formatTime, formatFlops, layerHref, note, lineChart, legendOf } = graphwright;
  const chart = report.roofline, host = document.querySelector("#roofline-chart .plot");
  if (!chart || !host) return;
  const ridge = chart.flopsPerS / chart.bytesPerS, points = [...chart.layers, ...chart.opTypes];
  const left = Math.min(ridge / 20, ...points.map((p) => p.intensity)) / 2, right = Math.max(ridge * 20, ...points.map((p) => p.intensity)) * 2;
  const low = Math.min(...points.map((p) => p.flops_per_s), chart.flopsPerS / 100) / 2, top = 2.5 * Math.max(chart.flopsPerS, ...points.map((p) => p.flops_per_s));
  const rate = (flops) => `${formatFlops(flops)}/s`;
  const words = (p) => `${p.name}: ${rate(p.flops_per_s)}, ${(100 * p.of_roof).toPrecision(3)} % of the roof (${p.limit}); ${p.intensity.toPrecision(3)} FLOP per byte; ${formatFlops(p.flops)} in ${formatTime(p.time_s)}`;
  const hidden = new Set();
  function marks(rows, name, tint, isLayer) {
    const most = Math.max(...rows.map((p) => p.time_s), 1e-30);
    return { color: color(tint), bare: true, points: hidden.has(name) ? [] : rows.map((p) => [p.intensity, p.flops_per_s, words(p)]), size: (k) => 3.5 + 9 * Math.sqrt(rows[k].time_s / most), layer: isLayer ? (k) => rows[k].layer : undefined };
  }
  const drawn = lineChart(host, document.querySelector("#roofline-chart .said"), () => ({
    x: { from: left, to: right, log: true, title: "FLOP per byte moved", format: (value) => String(value) },
    y: { from: low, to: top, log: true, format: rate },
    rows: [{ color: color("text"), dotted: true, points: [[left, left * chart.bytesPerS], [ridge, chart.flopsPerS], [right, chart.flopsPerS]] },
      marks(chart.layers, "layers", "residuals", true), marks(chart.opTypes, "op types", "gradients", false)],
    draw(now) {
      note(now, now.box.right, now.py(chart.flopsPerS) - 6, rate(chart.flopsPerS));
      note(now, now.px(Math.sqrt(left * ridge)) - 30, now.py(Math.sqrt(left * ridge) * chart.bytesPerS) - 12, `${(chart.bytesPerS / 1e9).toPrecision(3)} GB/s`);
    },
  }));
  legendOf(document.querySelector("#roofline-chart .legend"), [["layers", "residuals"], ["op types", "gradients"]], (name, on) => { if (on) hidden.delete(name); else hidden.add(name); drawn.paint(); });
})();
