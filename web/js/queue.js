// The messages that wait in the open session: each can be withdrawn, and one that was handed to a running run
// leaves the list when that run has read it. It knows the list and the stop of one message; not the composer.
//
//   new Queue(list, key, {takeBack(messages), arrived(runId, text)})
//     show(rows)                    [{runId, text, sending?}]
//     handOver(id, text, into)      a message that waits for the next step of run `into`
//     stepBegins(runId)             the run goes on to its next step, and reads what was handed to it:
//                                   `arrived` is called for each
//     forget(ids)                   these were withdrawn

import * as api from "./api.js";
import { h, icon, keyed, setText } from "./dom.js";
import { stopFailure } from "./reasons.js";
import * as store from "./store.js";
import { oneLine, t } from "./texts.js";
import * as toasts from "./toasts.js";

export class Queue {
  constructor(list, key, actions) {
    Object.assign(this, { list, key, actions });
    this.handed = new Map();
    this.unfollow = store.subscribe("runs", (rows) => this.follow(rows));
  }

  close() {
    this.unfollow();
    this.list.replaceChildren();
  }

  show(rows) {
    keyed(
      this.list,
      rows,
      (row) => row.runId,
      (row) => this.line(row),
      (element, row) => {
        const word = row.sending
          ? "composer.sending"
          : this.handed.has(row.runId)
            ? "composer.steered"
            : "composer.queued";
        setText(element.querySelector(".queue-state"), t(word));
        element.querySelector(".withdraw").disabled = Boolean(row.sending);
      },
    );
  }

  handOver(id, text, into) {
    this.handed.set(id, { text, into, listed: false });
  }

  forget(ids) {
    ids.forEach((id) => this.handed.delete(id));
  }

  stepBegins(runId) {
    const read = [...this.handed].filter(([, message]) => message.into === runId);
    for (const [id, message] of read) {
      this.handed.delete(id);
      this.actions.arrived(runId, message.text);
    }
    if (read.length > 0) {
      const gone = new Set(read.map(([id]) => id));
      store.put(
        "runs",
        store.get("runs").filter((row) => !gone.has(row.runId)),
      );
    }
  }

  /** One that was not read before its run ended has become a run of its own, or was withdrawn with it. */
  follow(rows) {
    const states = new Map(rows.map((row) => [row.runId, row.state]));
    for (const [id, message] of this.handed) {
      message.listed ||= states.has(id);
      if (message.listed && states.get(id) !== "queued") {
        this.handed.delete(id);
      }
    }
  }

  line(row) {
    return h(
      "li",
      { data: { run: row.runId } },
      icon("clock"),
      h("span", { class: "queue-state" }),
      h("span", { class: "queue-text", dir: "auto" }, oneLine(row.text, 200)),
      h(
        "button",
        {
          class: "withdraw quiet-button",
          type: "button",
          title: t("composer.withdraw-title"),
          on: { click: (event) => this.withdraw(row, event.currentTarget) },
        },
        icon("close"),
        t("composer.withdraw"),
      ),
    );
  }

  async withdraw(row, button) {
    button.disabled = true;
    try {
      const answer = await api.stop(`${api.run(row.runId)}/stop`, { sessionKey: this.key });
      if (answer.aborted) {
        this.actions.takeBack([row]);
      }
    } catch (problem) {
      button.disabled = false;
      toasts.error(stopFailure("stop.failed", problem), problem);
    }
    store.refresh("runs");
  }
}
