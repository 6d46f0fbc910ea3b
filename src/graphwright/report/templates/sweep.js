"use strict";
// Peaks against batch sizes: one line per step, what is resident dotted, the budget dashed.
(() => {
  const { report, color, formatBytes, note, across, lineChart, legendOf } = graphwright;
  const host = document.querySelector("#sweep .plot"), tints = ["residuals", "gradients", "temporaries", "backward"];
  const highest = Math.max(report.topBytes, 1), above = report.budgetBytes > 1.5 * highest, top = 1.08 * (above ? highest : Math.max(highest, report.budgetBytes ?? 0));
  const tint = (k) => color(tints[k % tints.length]), sizes = [...new Set(report.sweep.flatMap((row) => row.points.map((point) => point.batch)))].sort((a, b) => a - b);
  legendOf(document.querySelector("#sweep .legend"), [...report.sweep.map((row, k) => [row.name, tints[k % tints.length]]), ["dotted: resident", ""]]);
  lineChart(host, document.querySelector("#sweep .said"), () => ({
    x: { from: 0, to: 1.03 * sizes.at(-1), title: "batch size", ticks: sizes },
    y: { from: 0, to: top, bytes: true },
    top: 20,
    rows: report.sweep.flatMap((row, k) => [
      { color: tint(k), points: row.points.map((point) => [point.batch, point.peak_bytes, `${row.name}, batch size ${point.batch}: ${formatBytes(point.peak_bytes)}, of which ${formatBytes(point.resident_bytes)} are resident`]) },
      { color: tint(k), dotted: true, points: row.points.map((point) => [point.batch, point.resident_bytes]) },
    ]),
    draw(now) {
      if (!report.budgetBytes) return;
      if (!above) across(now, now.py(report.budgetBytes), "budget");
      note(now, now.box.right, above ? 14 : now.py(report.budgetBytes) - 5, `budget ${formatBytes(report.budgetBytes)}${above ? ", above the chart" : ""}`, { class: "budget" });
    },
  }));
})();
