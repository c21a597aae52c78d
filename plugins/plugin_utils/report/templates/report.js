"use strict";
{
  const table = document.getElementById("hosts");
  const form = document.getElementById("filter");
  if (table && form) {
    const body = table.tBodies[0];
    const text = document.getElementById("text");
    const verdict = document.getElementById("verdict");
    const worst = [...verdict.options].map((option) => option.value);
    const collator = new Intl.Collator("en", {numeric: true});
    const rows = [...body.rows].map((row) => ({row, words: row.textContent.toLowerCase()}));
    const cell = (row, column) => row.cells[column].textContent;
    const filter = () => {
      const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const each of rows) {
        const fits = words.every((word) => each.words.includes(word));
        each.row.hidden = !fits || (verdict.value !== "" && cell(each.row, 1) !== verdict.value);
        shown += !each.row.hidden;
      }
      document.getElementById("shown").textContent = `${shown} of ${rows.length} hosts`;
    };
    const value = (row, column) => column === 1 ? String(worst.indexOf(cell(row, 1))) : cell(row, column);
    const sort = (head, column) => {
      const ascending = head.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      rows.sort((one, other) => (ascending ? 1 : -1) * collator.compare(value(one.row, column), value(other.row, column)));
      body.append(...rows.map((each) => each.row));
    };
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => sort(head, column));
      head.replaceChildren(button);
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", filter);
    window.addEventListener("hashchange", () => {
      const row = document.getElementById(location.hash.slice(1));
      if (row && row.hidden) {
        text.value = verdict.value = "";
        filter();
        row.scrollIntoView();
      }
    });
    form.hidden = false;
    filter();
  }
}
