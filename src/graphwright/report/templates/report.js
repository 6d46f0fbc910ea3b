"use strict";
// What all parts of a page use. Other scripts add `draw` functions and routes; `start.js` runs them.
window.graphwright = (() => {
  const report = JSON.parse(document.getElementById("report-data").textContent);
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

  function scaled(amount, base, names) {
    let index = 0;
    while (index + 1 < names.length && Math.abs(amount) >= (index ? base - 0.5 : base)) { amount /= base; index += 1; }
    if (index === 0) return `${amount} ${names[0]}`;
    return `${amount.toFixed(Math.abs(amount) < 9.995 ? 2 : Math.abs(amount) < 99.95 ? 1 : 0)} ${names[index]}`;
  }
  const formatBytes = (nbytes) => scaled(nbytes, 1024, units);
  const formatFlops = (flops) => scaled(flops, 1000, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"]);
  function formatTime(seconds) {
    for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) if (seconds >= size || unit === "µs") return `${Number((seconds / size).toPrecision(3))} ${unit}`;
  }
  function shorten(name, width) {
    return name.length <= width ? name : name.slice(0, Math.ceil(width / 2) - 1) + "…" + name.slice(-Math.floor(width / 2));
  }
  // plotly reads a small part of HTML in its texts; names are to be shown as they are.
  const escaped = (name) => name.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  // The computed color of an element is plain rgb, whatever the style sheet chose it from.
  const probe = document.createElement("i");
  probe.hidden = true;
  document.body.append(probe);
  const color = (name) => { probe.style.color = `var(--${name.replace(" ", "-")})`; return getComputedStyle(probe).color; };
  const element = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const layerHref = (layer) => `#layers/${encodeURIComponent(layer)}`;
  const hasLayers = !!document.getElementById("layers");
  function layerLink(layer, className) {
    if (!hasLayers) return element("span", className, layer);
    const link = element("a", className, layer || report.noLayer);
    link.href = layerHref(layer);
    return link;
  }

  const config = { responsive: true, displaylogo: false, displayModeBar: false };
  function layoutBase() {
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 13, color: color("text") },
      margin: { l: 64, r: 16, t: 28, b: 44 }, showlegend: false,
      hoverlabel: { bgcolor: color("panel"), bordercolor: color("line"), font: { family: "system-ui, sans-serif", color: color("text") }, align: "left" },
    };
  }
  // A text beside a point, on a ground of its own, so that no line runs through it.
  const label = (x, y, text, toTheLeft) => ({
    x, y, text, xref: "x", yref: "y", showarrow: true, arrowhead: 0, arrowwidth: 1, arrowcolor: color("soft"), standoff: 5, ax: toTheLeft ? -14 : 14, ay: -20,
    xanchor: toTheLeft ? "right" : "left", bgcolor: color("page"), borderpad: 2,
  });
  const axis = (title) => ({ title: { text: title, standoff: 8 }, gridcolor: color("grid"), linecolor: color("line"), zeroline: false, tickcolor: color("line") });

  function needCharts() {
    if (window.Plotly) return;
    const script = document.createElement("script");
    script.textContent = document.getElementById("chart-library").textContent;
    document.head.append(script);
  }
  // Each drawing is done when it is first seen, and again when the colors change.
  const drawings = [];
  function addDrawing(draw, host) { drawings.push({ draw, host, drawn: false }); }
  function drawVisible() {
    for (const drawing of drawings) if (!drawing.drawn && !drawing.host.closest("[hidden]")) { drawing.drawn = true; drawing.draw(); }
  }
  function redraw() { for (const drawing of drawings) drawing.drawn = false; drawVisible(); }

  const routes = {};  // tab -> what to do with the rest of the hash
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  const panels = tabs.map((tab) => document.getElementById(tab.getAttribute("aria-controls")));
  function select(index) {
    tabs.forEach((tab, k) => {
      tab.setAttribute("aria-selected", String(k === index));
      tab.tabIndex = k === index ? 0 : -1;
      panels[k].hidden = k !== index;
    });
    drawVisible();
    dispatchEvent(new Event("resize"));  // charts that were drawn for another width
  }
  function route() {
    const [id, ...rest] = location.hash.slice(1).split("/");
    const index = tabs.findIndex((tab) => tab.getAttribute("aria-controls") === id);
    if (index < 0) { if (!location.hash && tabs.length) select(0); return; }
    select(index);
    let name = null;
    try { if (rest.length) name = decodeURIComponent(rest.join("/")); } catch { /* not a name: only the tab is shown */ }
    routes[id]?.(name);
    const top = tabs[0].parentElement.getBoundingClientRect().top;  // 0 where the tabs stick to the window
    if (name === null && top <= 0) { const bar = tabs[0].parentElement; bar.style.position = "static"; const place = bar.getBoundingClientRect().top + scrollY; bar.style.position = ""; scrollTo({ top: place, behavior: "instant" }); }
  }
  function bindTabs() {
    for (const [k, tab] of tabs.entries()) tab.addEventListener("keydown", (event) => {
      const next = { ArrowRight: k + 1, ArrowLeft: k - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (next === undefined && event.key !== " ") return;
      event.preventDefault();
      const to = tabs[((next ?? k) + tabs.length) % tabs.length];
      to.focus();
      // Going along the tabs is no visit of each: the back button leads to where one came from.
      history.replaceState(null, "", to.getAttribute("href"));
      route();
    });
    // The browser would scroll to the panel, and the heading of the page out of sight.
    for (const tab of tabs) tab.addEventListener("click", (event) => { event.preventDefault(); history.pushState(null, "", tab.getAttribute("href")); route(); });
    addEventListener("hashchange", route);
    route();
  }
  function bindTheme() {
    const theme = document.getElementById("theme");
    const apply = (name) => { if (name) document.documentElement.dataset.theme = name; else delete document.documentElement.dataset.theme; };
    try { theme.value = localStorage.getItem("graphwright-theme") ?? ""; } catch { /* a page from a file may have no storage */ }
    apply(theme.value);
    theme.addEventListener("change", () => {
      apply(theme.value);
      try { localStorage.setItem("graphwright-theme", theme.value); } catch { /* as above */ }
      redraw();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    // Paper is white, and shows all tabs.
    const hiddenBefore = [];
    addEventListener("beforeprint", () => { hiddenBefore.push(...panels.filter((panel) => panel.hidden)); for (const panel of panels) panel.hidden = false; apply("light"); redraw(); });
    addEventListener("afterprint", () => { for (const panel of hiddenBefore.splice(0)) panel.hidden = true; apply(theme.value); redraw(); });
  }
  return { needCharts, report, units, formatBytes, formatFlops, formatTime, shorten, escaped, color, element, layerHref, layerLink, hasLayers, config, layoutBase, label, axis, addDrawing, drawVisible, redraw, routes, bindTabs, bindTheme };
})();
