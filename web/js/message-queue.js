// The list of messages that wait in the open session. Each can be withdrawn; a steered message leaves the list when
// the running run has read it.
//
//   new MessageQueue(list, key, {onWithdrawn(messages), onSteered(runId, text)})
//     show(rows)                    [{runId, text, sending?}]
//     addSteered(id, text, into)    a message that waits for the next step of run `into`
//     onStepStarted(runId)          calls `onSteered` for each message that this run reads now
//     remove(ids)                   forgets steered messages that were withdrawn

import * as api from "./api.js";
import { h, icon, reconcileChildren, setText } from "./dom.js";
import { stopErrorText } from "./error-texts.js";
import { may } from "./rights.js";
import * as store from "./store.js";
import { oneLine, t } from "./texts.js";
import * as toasts from "./toasts.js";

export class MessageQueue {
  constructor(list, key, actions) {
    Object.assign(this, { list, key, actions });
    this.steered = new Map();
    this.unsubscribe = store.subscribe("runs", (rows) => this.dropDelivered(rows));
  }

  close() {
    this.unsubscribe();
    this.list.replaceChildren();
  }

  show(rows) {
    reconcileChildren(
      this.list,
      rows,
      (row) => row.runId,
      (row) => this.createItem(row),
      (element, row) => {
        const textKey = row.sending
          ? "composer.sending"
          : this.steered.has(row.runId)
            ? "composer.steered"
            : "composer.queued";
        setText(element.querySelector(".queue-state"), t(textKey));
        element.querySelector(".withdraw").disabled = Boolean(row.sending) || !may("stop");
      },
    );
  }

  addSteered(id, text, into) {
    this.steered.set(id, { text, into, listed: false });
  }

  remove(ids) {
    ids.forEach((id) => this.steered.delete(id));
  }

  onStepStarted(runId) {
    const readMessages = [...this.steered].filter(([, message]) => message.into === runId);
    for (const [id, message] of readMessages) {
      this.steered.delete(id);
      this.actions.onSteered(runId, message.text);
    }
    if (readMessages.length > 0) {
      const removedIds = new Set(readMessages.map(([id]) => id));
      store.set(
        "runs",
        store.get("runs").filter((row) => !removedIds.has(row.runId)),
      );
    }
  }

  /** Forgets steered messages that are no longer queued: they became runs, or were withdrawn. */
  dropDelivered(rows) {
    const states = new Map(rows.map((row) => [row.runId, row.state]));
    for (const [id, message] of this.steered) {
      message.listed ||= states.has(id);
      if (message.listed && states.get(id) !== "queued") {
        this.steered.delete(id);
      }
    }
  }

  createItem(row) {
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
          on: { click: (event) => this.withdrawMessage(row, event.currentTarget) },
        },
        icon("close"),
        t("composer.withdraw"),
      ),
    );
  }

  async withdrawMessage(row, button) {
    button.disabled = true;
    try {
      const answer = await api.stop(`${api.runPath(row.runId)}/stop`, { sessionKey: this.key });
      if (answer.aborted) {
        this.actions.onWithdrawn([row]);
      }
    } catch (problem) {
      button.disabled = false;
      toasts.error(stopErrorText("stop.failed", problem), problem);
    }
    store.refresh("runs");
  }
}
