"use strict";
// One layer: its row, its tensors, its operations, and the ways to its box and to what it holds at the peak.
(() => {
  const { report, element, formatBytes, formatFlops, formatTime, hasLayers } = graphwright;
  if (!hasLayers) return;
  const panel = document.getElementById("layer-detail"), table = document.getElementById("table-layers");
  const LISTED = 40;

  function list(title, rows, count) {
    const part = element("div"), items = element("ul");
    part.append(element("h4", "", title));
    items.tabIndex = 0;
    items.setAttribute("aria-label", title);
    for (const [name, note, figure] of rows.slice(0, LISTED)) {
      const item = element("li"), what = element("span", "", name);
      what.append(element("span", "soft", ` ${note}`));
      item.append(what, element("span", "", figure));
      items.append(item);
    }
    if (!rows.length) items.append(element("li", "", "none"));
    if (count > LISTED) items.append(element("li", "", `and ${(count - LISTED).toLocaleString("en")} more`));
    part.append(items);
    return part;
  }
  // A page of two steps shows a layer under one name.
  const shownAs = (timeline, layer) => report.rows?.[timeline.id]?.[layer] ?? layer;
  function tensorsOf(timeline, layer) {
    const source = timeline.lifetimes.length ? timeline.lifetimes : timeline.liveAtPeak;
    return source.filter((buffer) => shownAs(timeline, buffer[2]) === layer).map(([name, opType, , role, nbytes, first, last]) =>
      [name, `${opType}, ${report.roles[role]}${first === undefined ? "" : `, steps ${first + 1} to ${last + 1}`}`, formatBytes(nbytes)]);
  }
  function operationsOf(layer) {
    const { graph, profile } = report, number = graph ? graph.layers.indexOf(layer) : -1, found = [];
    if (!graph && profile) {
      const of = profile.layers.indexOf(layer), spent = new Map();
      for (const run of profile.runs) if (profile.layerOf[run[3]] === of) { const row = spent.get(run[3]) ?? [run[4], 0]; row[1] += run[2]; spent.set(run[3], row); }
      return [...spent].sort((a, b) => b[1][1] - a[1][1]).map(([name, [opType, time]]) => [profile.names[name], profile.opTypes[opType], formatTime(time * 1e-6)]);
    }
    if (number < 0) return found;
    graph.layerOf.forEach((of, k) => { if (of === number) found.push(k); });
    found.sort((a, b) => graph.costs.time[b] - graph.costs.time[a]);
    return found.map((k) => [graph.nodes[k][0], graph.ops[graph.nodes[k][1]], `${graph.costs.flops[k] ? `${formatFlops(graph.costs.flops[k])}, ` : ""}${formatTime(graph.costs.time[k])}`]);
  }
  function show(layer) {
    const row = table ? [...table.tBodies[0].rows].find((candidate) => candidate.dataset.key === layer) : undefined;
    for (const old of table?.querySelectorAll("tr.chosen") ?? []) { old.classList.remove("chosen"); old.removeAttribute("aria-current"); }
    panel.hidden = layer === null;
    if (layer === null) return;
    const facts = element("dl", "facts");
    if (row) {
      if (row.hidden) graphwright.showOnly("table-layers", null);
      row.classList.add("chosen");
      row.setAttribute("aria-current", "true");
      [...table.tHead.rows[0].cells].forEach((head, column) => {
        if (!column || !row.cells[column].textContent) return;
        const fact = element("div");
        fact.append(element("dt", "", head.textContent), element("dd"));
        fact.lastChild.append(element("strong", "", row.cells[column].textContent));
        facts.append(fact);
      });
      row.scrollIntoView({ block: "nearest" });
    }
    const operations = operationsOf(layer);
    const lists = element("div", "lists"), links = element("p", "links");
    for (const timeline of report.timelines) {
      const tensors = tensorsOf(timeline, layer), title = timeline.title ? `Its largest tensors: ${timeline.title}` : "Its largest tensors";
      lists.append(list(title, tensors, tensors.length));
    }
    if (report.graphs?.length || report.profile) lists.append(list(`Its operations, by ${report.timeWords ?? "measured time"}`, operations, operations.length));
    const link = (href, text) => { const made = element("a", "", text); made.href = href; links.append(made); };
    if (report.graphs?.length) link(`#graph/${encodeURIComponent(layer)}`, "Show it in the graph");
    if (document.getElementById("memory")) link(`#memory/${encodeURIComponent(layer)}`, "What it holds at the peak");
    if (document.getElementById("residuals")) link(`#residuals/${encodeURIComponent(layer)}`, "What becomes of its residuals");
    link("#layers", "Close");
    panel.replaceChildren(element("h3", "", layer || report.noLayer), facts, lists, links);
    panel.scrollIntoView({ block: "nearest" });
  }
  graphwright.routes.layers = show;
  const showRowsOf = (tab) => (layer) => {
    const tables = [...document.querySelectorAll(`#${tab} table.sortable`)].filter((of) => of.querySelector("tbody tr[data-key]"));
    for (const of of tables) graphwright.showOnly(of.id, layer);
    if (layer !== null) tables[0]?.closest(".scroll").scrollIntoView({ block: "center" });
  };
  for (const tab of ["memory", "residuals"]) graphwright.routes[tab] = showRowsOf(tab);
})();
