// The table of what a run held: the same rows as the timeline above it, for screen readers and for exact times.
// Exports createLedgerTable and updateLedgerTable.

import { h, reconcileChildren, setText } from "./dom.js";
import {
  endLabel,
  fullName,
  heldMs,
  isLate,
  kindLabel,
  lastReleaseMs,
  STATUS_GLYPHS,
} from "./ledger-labels.js";
import { rowStatus } from "./ledger.js";
import { escapeInvisible, millis, t } from "./texts.js";

const COLUMNS = ["held", "opened", "held-for", "after-stop", "how"];

export function createLedgerTable() {
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

/** Times count from `began`. The column "After the stop" is shown when there was a stop. */
export function updateLedgerTable(table, rows, { began, requested }) {
  table.classList.toggle("no-stop", requested === null);
  reconcileChildren(
    table.tBodies[0],
    rows,
    // A record that was rebuilt after a crash numbers its rows anew: the same number may name another resource.
    (row) => `${row.key} ${row.count} ${row.kind} ${fullName(row)}`,
    createRow,
    (element, row) => updateRow(element, row, began),
  );
}

function createRow(row) {
  const name = escapeInvisible(fullName(row));
  return h(
    "tr",
    { data: { kind: row.kind, held: row.key } },
    h(
      "th",
      { scope: "row", style: { "--depth": String(row.depth) } },
      h("span", { class: "kind" }, kindLabel(row.kind)),
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

function updateRow(element, row, began) {
  const [, opened, heldFor, afterStop, how] = element.children;
  element.dataset.status = rowStatus(row);
  setText(opened, millis(row.spans[0].from - began));
  setText(heldFor, millis(heldMs(row)));
  setText(afterStop, !isLate(row) ? "" : row.open ? "" : `+${millis(lastReleaseMs(row) - row.requested)}`);
  setText(
    how,
    [STATUS_GLYPHS[rowStatus(row)], endLabel(row), row.pid ? `· pid ${row.pid}` : ""]
      .filter(Boolean)
      .join(" "),
  );
}
