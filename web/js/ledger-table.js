// What a run held, as a table: the same rows as the picture above it, for those who cannot see that or want
// the exact times. It knows rows (ledger.js) and no picture.

import { standing } from "./ledger.js";
import { endWord, GLYPHS, heldMs, isLate, kindWord, lastOf, nameOf } from "./ledger-words.js";
import { h, keyed, setText } from "./dom.js";
import { inFull, millis, t } from "./texts.js";

const COLUMNS = ["held", "opened", "held-for", "after-stop", "how"];

/** The table, empty. */
export function ledgerTable() {
  return h(
    "table",
    { class: "ledger rows" },
    h("caption", { class: "unseen" }, t("ledger.caption")),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        COLUMNS.map((name) => h("th", { scope: "col", class: `c-${name}` }, t(`ledger.column.${name}`))),
      ),
    ),
    h("tbody"),
  );
}

/** Brings it up to date. Times count from `began`; the column of the stop is there when there was one. */
export function fillLedger(table, rows, { began, requested }) {
  table.classList.toggle("no-stop", requested === null);
  keyed(
    table.tBodies[0],
    rows,
    (row) => `${row.key} ${row.times}`,
    make,
    (element, row) => update(element, row, began),
  );
}

function make(row) {
  const name = inFull(nameOf(row));
  return h(
    "tr",
    { data: { kind: row.kind, held: row.key } },
    h(
      "th",
      { scope: "row", style: { "--depth": String(row.depth) } },
      h("span", { class: "kind" }, kindWord(row.kind)),
      " ",
      row.runId
        ? h("a", { href: `#/r/${encodeURIComponent(row.runId)}` }, name)
        : h("span", { class: "name", title: name }, name),
    ),
    COLUMNS.slice(1).map((column) =>
      h("td", { class: `c-${column}`, data: { label: t(`ledger.column.${column}`) } }),
    ),
  );
}

function update(element, row, began) {
  const [, opened, heldFor, afterStop, how] = element.children;
  element.dataset.standing = standing(row);
  setText(opened, millis(row.spans[0].from - began));
  setText(heldFor, millis(heldMs(row)));
  setText(afterStop, !isLate(row) ? "" : row.open ? "" : `+${millis(lastOf(row) - row.requested)}`);
  setText(
    how,
    [GLYPHS[standing(row)], endWord(row), row.pid ? `· pid ${row.pid}` : ""].filter(Boolean).join(" "),
  );
}
