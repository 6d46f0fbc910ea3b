"use strict";
// Peaks against batch sizes: one line per step, what is resident dotted, the budget dashed.
(() => {
  const { report, units, color, config, layoutBase, axis, formatBytes, escaped } = graphwright;
  const host = document.querySelector("#sweep .plot"), tints = ["residuals", "gradients", "temporaries", "backward"];
  graphwright.addDrawing(() => {
    graphwright.needCharts();
    const power = Math.min(Math.floor(Math.log2(Math.max(report.topBytes, 1)) / 10), units.length - 1), size = 2 ** (10 * power);
    const traces = report.sweep.flatMap((row, k) => [
      { type: "scatter", mode: "lines+markers", name: escaped(row.name), x: row.batches, y: row.peaks.map((peak) => peak / size), line: { color: color(tints[k % tints.length]), width: 2 }, marker: { size: 8 },
        text: row.peaks.map((peak, i) => `<b>${escaped(row.name)}</b><br>batch size ${row.batches[i]}: ${formatBytes(peak)}<br>resident ${formatBytes(row.residents[i])}`), hovertemplate: "%{text}<extra></extra>" },
      { type: "scatter", mode: "lines", name: `${escaped(row.name)}, resident`, x: row.batches, y: row.residents.map((resident) => resident / size), line: { color: color(tints[k % tints.length]), width: 1.5, dash: "dot" }, hoverinfo: "skip" },
    ]);
    const shapes = [], annotations = [];
    if (report.budgetBytes) {
      shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: report.budgetBytes / size, y1: report.budgetBytes / size, line: { color: color("budget"), width: 2, dash: "dash" } });
      annotations.push({ xref: "paper", x: 1, xanchor: "right", y: report.budgetBytes / size, yanchor: "bottom", showarrow: false, text: `budget ${formatBytes(report.budgetBytes)}`, font: { color: color("budget") } });
    }
    Plotly.react(host, traces, { ...layoutBase(), hovermode: "closest", showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, margin: { l: 78, r: 16, t: 40, b: 48 }, shapes, annotations,
      xaxis: { ...axis("batch size"), rangemode: "tozero" }, yaxis: { ...axis(""), ticksuffix: ` ${units[power]}`, rangemode: "tozero" } }, config);
  }, host);
})();
