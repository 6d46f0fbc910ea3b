"use strict";
(() => {
  graphwright.bindTheme();
  document.querySelectorAll("table.sortable").forEach(graphwright.bindTable);
  graphwright.bindTabs();
  graphwright.drawVisible();
  document.documentElement.dataset.drawn = "true";
})();
