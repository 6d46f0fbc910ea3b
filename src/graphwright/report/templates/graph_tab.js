"use strict";
// The graph of the inspection, built when its tab is first opened.
(() => {
  const { report } = graphwright;
  const host = document.querySelector("#graph .graph");
  if (!report.graphs?.length || !host) return;
  let drawing = null, wanted = null;
  graphwright.addDrawing(() => {
    drawing ??= graphwright.drawing({ views: report.graphs });
    if (!host.dataset.shown) { host.dataset.shown = "true"; drawing.show(0); }
    if (wanted !== null) drawing.revealLayer(wanted);
    wanted = null;
  }, host);
  graphwright.routes.graph = (layer) => { if (layer === null) return; if (drawing) drawing.revealLayer(layer); else wanted = layer; graphwright.drawVisible(); };
})();
