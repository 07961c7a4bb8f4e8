"use strict";
// Sort a table by the column whose heading was pressed: numbers by data-key, text by itself, what is missing last.
for (const table of document.querySelectorAll("table.data")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  table.querySelectorAll("thead th").forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" }[heading.getAttribute("aria-sort")];
      table.querySelectorAll("thead th").forEach((other) => other.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", next);
      const sign = next === "descending" ? -1 : 1;
      const key = (row) => row.cells[column]?.dataset.key;
      const missing = (row) => key(row) === undefined;
      const compare = (a, b) => {
        if (missing(a) || missing(b)) return missing(a) - missing(b);
        const [x, y] = [Number(key(a)), Number(key(b))];
        return sign * (Number.isNaN(x) || Number.isNaN(y) ? key(a).localeCompare(key(b)) : x - y);
      };
      body.append(...(next === "none" ? original : [...original].sort(compare)));
    });
  });
}
