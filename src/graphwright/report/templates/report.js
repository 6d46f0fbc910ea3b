"use strict";
// What all parts of a page use. Other scripts add `draw` functions and routes; `start.js` runs them.
window.graphwright = (() => {
  const report = window.reportData;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  // Names come once for the whole page.
  const word = (k) => report.words[k], buffer = ([name, opType, layer, role, nbytes, first, last, type, source, keeper]) =>
    [word(name), word(opType), word(layer), role, nbytes, first, last, word(type), word(source), word(keeper)];
  for (const timeline of report.timelines) Object.assign(timeline, { labels: timeline.labels.map(word), lifetimes: timeline.lifetimes.map(buffer), liveAtPeak: timeline.liveAtPeak.map(buffer) });

  // What is written decides, not what is meant: 1023.9999 MiB is written 1.00 GiB.
  function scaled(amount, base, names) {
    let index = 0;
    const text = () => { const size = Math.abs(amount); return index || !Number.isInteger(amount) ? amount.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0) : String(amount); };
    while (index + 1 < names.length && Math.abs(Number(text())) >= base) { amount /= base; index += 1; }
    return `${text()} ${names[index]}`;
  }
  const formatBytes = (nbytes) => scaled(nbytes, 1024, units);
  const formatFlops = (flops) => scaled(flops, 1000, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"]);
  function formatTime(seconds) {
    for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) if (seconds >= size || unit === "µs") return `${Number((seconds / size).toPrecision(3))} ${unit}`;
  }
  function shorten(name, width) {
    return name.length <= width ? name : name.slice(0, Math.ceil(width / 2) - 1) + "…" + name.slice(-Math.floor(width / 2));
  }
  // The computed color of an element is plain rgb, whatever the style sheet chose it from.
  const probe = document.createElement("i");
  probe.hidden = true;
  document.body.append(probe);
  const color = (name) => { probe.style.color = `var(--${name.replace(" ", "-")})`; return getComputedStyle(probe).color; };
  const BREAKS = /(?<=[/_])(?=\S)|(?<=[A-Za-z0-9])(?=[A-Z][a-z])/;  // where names may go on in the next line, as `breakable` in page.py has it
  const element = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.append(...String(text).split(BREAKS).flatMap((part, k) => k ? [document.createElement("wbr"), part] : [part]));
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

  // Entries are a name and a color of the theme, or any other, or the name of a group alone, or "" for the next line; with `toggle` each can be switched off and on.
  function legendOf(host, entries, toggle) {
    host.replaceChildren(...entries.map(([name, tint]) => {
      if (tint === undefined) return element("li", name ? "group" : "break", name);
      const entry = element("li", "key"), swatch = element("i", "swatch");
      swatch.style.background = tint.includes("(") ? tint : tint ? `var(--${tint.replace(" ", "-")})` : "none";
      if (!toggle) { entry.append(...(tint ? [swatch] : []), name); return entry; }
      const label = element("label"), box = element("input");
      box.type = "checkbox"; box.checked = true;
      box.addEventListener("change", () => toggle(name, box.checked));
      label.append(box, swatch, name);
      entry.append(label);
      return entry;
    }));
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
    const bar = tabs[index].parentElement, tab = tabs[index];
    if (bar.scrollWidth > bar.clientWidth) bar.scrollLeft = tab.offsetLeft - bar.offsetLeft - 24;
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
  return { report, formatBytes, formatFlops, formatTime, shorten, color, element, layerHref, layerLink, hasLayers, legendOf, addDrawing, drawVisible, redraw, routes, bindTabs, bindTheme };
})();
