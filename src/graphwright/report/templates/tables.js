"use strict";
// Tables: sorted by a column, filtered, with columns to choose, and arrow keys from row to row.
(() => {
  const { element } = graphwright;
  const filters = new Map();

  function sortBy(table, column, descending) {
    const head = table.tHead.rows[0].cells[column], body = table.tBodies[0];
    const numeric = head.classList.contains("number");
    const key = (row) => numeric ? Number(row.cells[column].dataset.value) : row.cells[column].textContent;
    const sign = descending ? -1 : 1;
    const compare = numeric ? (a, b) => key(a) - key(b) : (a, b) => key(a).localeCompare(key(b), "en", { numeric: true });
    body.append(...[...body.rows].sort((a, b) => sign * compare(a, b)));
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  }

  function addBars(table) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (head.dataset.bar === undefined) return;
      const cells = [...table.tBodies[0].rows].map((row) => row.cells[column]);
      const largest = Math.max(...cells.map((cell) => Number(cell.dataset.value)));
      if (!(largest > 0)) return;
      for (const cell of cells) { cell.dataset.share = ""; cell.style.setProperty("--share", Math.max(0, Number(cell.dataset.value) / largest).toFixed(3)); }
    });
  }

  // What a reader types: text that a row must contain in any cell, or /a regular expression/.
  function matcher(text) {
    const pattern = /^\/(.*)\/(i?)$/.exec(text);
    if (pattern) { const wanted = new RegExp(pattern[1], pattern[2]); return (row) => [...row.cells].some((cell) => wanted.test(cell.textContent)); }
    const words = text.toLowerCase().split(/\s+/).filter((word) => word);
    return (row) => { const all = row.textContent.toLowerCase(); return words.every((word) => all.includes(word)); };
  }

  function bindTable(table) {
    const heads = [...table.tHead.rows[0].cells], rows = () => [...table.tBodies[0].rows], total = rows().length;
    const region = table.closest(".scroll"), title = region.getAttribute("aria-label");
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const numeric = head.classList.contains("number");
      sortBy(table, column, head.hasAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : numeric);
    }));
    addBars(table);
    // A table whose bars fall from row to row comes sorted by them.
    const falls = (column) => { const values = rows().map((row) => Number(row.cells[column].dataset.value)); return values[0] > values.at(-1) && values.every((value, k) => !k || values[k - 1] >= value); };
    heads.find((head, column) => head.dataset.bar !== undefined && falls(column))?.setAttribute("aria-sort", "descending");
    const seeMore = () => region.classList.toggle("more", region.clientHeight > 0 && region.scrollTop + region.clientHeight < region.scrollHeight - 8);
    region.addEventListener("scroll", seeMore, { passive: true });
    new ResizeObserver(seeMore).observe(region);

    const tools = element("div", "table-tools"), input = element("input"), count = element("span", "count"), only = element("button");
    input.type = "search"; input.placeholder = "Filter: words, or /regex/"; input.setAttribute("aria-label", `Filter ${title}`);
    count.setAttribute("role", "status");
    only.type = "button"; only.hidden = true;
    let onlyKey = null;
    function apply() {
      let matches = () => true;
      try { matches = matcher(input.value.trim()); input.removeAttribute("aria-invalid"); input.title = ""; }
      catch (error) { input.setAttribute("aria-invalid", "true"); input.title = error.message; count.textContent = "not a regular expression"; return; }
      let shown = 0;
      for (const row of rows()) { row.hidden = (onlyKey !== null && row.dataset.key !== onlyKey) || !matches(row); shown += !row.hidden; }
      const all = Number(table.dataset.rowCount), first = total < all ? "the first " : "", number = (value) => value.toLocaleString("en");
      count.textContent = `${shown === total ? first : `${number(shown)} of ${first}`}${number(total)}${total < all && shown === total ? ` of ${number(all)}` : ""} rows`;
      seeMore();
      only.hidden = onlyKey === null;
      only.textContent = `only ${graphwright.shorten(onlyKey || graphwright.report.noLayer, 48)} ✕`;
      only.setAttribute("aria-label", "show the rows of all layers");
      makeOneTabStop();
    }
    input.addEventListener("input", apply);
    only.addEventListener("click", () => { onlyKey = null; apply(); input.focus(); });
    filters.set(table.id, (key) => { onlyKey = key; input.value = ""; apply(); });

    const chooser = element("details"), choices = element("fieldset");
    const summary = element("summary", "", "Columns");
    chooser.append(summary, choices);
    choices.append(element("legend", "", "shown columns"));
    // Where there is little room, words and what figures say twice give way to the figures that a table is sorted by.
    const narrow = matchMedia("(max-width: 40rem)").matches && heads.some((head) => head.classList.contains("number"));
    const shownFirst = (head) => head.dataset.optional === undefined && !(narrow && head.dataset.wide !== undefined);
    const showColumn = (column, shown) => {
      for (const row of [table.tHead.rows[0], ...rows()]) row.cells[column].hidden = !shown;
      const hidden = heads.filter((head) => head.hidden).length;
      summary.textContent = hidden ? `Columns (${hidden} hidden)` : "Columns";
    };
    const boxes = new Map();
    heads.forEach((head, column) => {
      if (column === 0) return;
      const choice = element("label"), box = element("input");
      box.type = "checkbox"; box.checked = shownFirst(head);
      boxes.set(column, box);
      box.addEventListener("change", () => showColumn(column, box.checked));
      choice.append(box, ` ${head.textContent}${head.title ? ` (${head.title})` : ""}`);
      choices.append(choice);
      if (!box.checked) showColumn(column, false);
    });
    // Then names take less room, or where that does not do, figures give way, from the right, until what is left is seen without scrolling; two of them stay.
    if (narrow) {
      const fit = new ResizeObserver(() => {
        if (!region.clientWidth) return;
        fit.disconnect();
        const shown = () => [...boxes].filter(([, box]) => box.checked);
        const tooWide = () => region.scrollWidth > region.clientWidth;
        table.classList.toggle("tight", tooWide());
        if (tooWide()) table.classList.remove("tight");
        while (tooWide() && shown().length > 2) { const [column, box] = shown().filter(([k]) => !heads[k].hasAttribute("aria-sort")).pop(); box.checked = false; showColumn(column, false); }
        if (!chooser.isConnected && ![...boxes.values()].every((box) => box.checked)) { tools.append(chooser); region.before(tools); }
      });
      fit.observe(region);
    }
    chooser.addEventListener("keydown", (event) => { if (event.key === "Escape") { chooser.open = false; summary.focus(); } });
    // A short table is seen as a whole.
    if (total > 12) tools.append(input, chooser, only, count);
    else if (!heads.every(shownFirst)) tools.append(chooser);
    if (tools.childElementCount) region.before(tools);

    // One row can be tabbed to; arrow keys go to the others. What leads somewhere follows its link.
    const stop = (row) => row.cells[0].querySelector("a") ?? row;
    function makeOneTabStop(chosen) {
      const seen = rows().filter((row) => !row.hidden);
      for (const row of rows()) stop(row).tabIndex = -1;
      const first = chosen ?? seen[0];
      if (first) stop(first).tabIndex = 0;
    }
    for (const row of rows()) for (const link of row.querySelectorAll("td a")) link.tabIndex = -1;
    table.tBodies[0].addEventListener("keydown", (event) => {
      const seen = rows().filter((row) => !row.hidden), at = seen.indexOf(event.target.closest("tr"));
      const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: seen.length - 1, PageDown: Math.min(at + 10, seen.length - 1), PageUp: Math.max(at - 10, 0) }[event.key];
      if (event.key === "Enter" && event.target.tagName === "TR") event.target.querySelector("a")?.click();
      if (next === undefined) return;
      event.preventDefault();
      if (!seen[next]) return;
      makeOneTabStop(seen[next]);
      stop(seen[next]).focus();
    });
    apply();
  }
  graphwright.bindTable = bindTable;
  graphwright.showOnly = (id, key) => filters.get(id)?.(key);
})();
