// The composer: the text field, sending, and the one button that sends or stops.
//
//   new Composer(key, conversation, {onSent(), agent()})    `conversation` of conversation.js, and the agent of the
//     session's next run
//     -> {update(), onStepStarted(runId), insertText(text), stop(), mode(), close()}
//     update()       call it when runs began, changed or ended
//     insertText()   puts text back into the field, or into the draft when another session is open
//     mode()         "send" | "stop" | "force"
//     close()        later answers no longer touch the elements

import * as api from "./api.js";
import { byId, h, icon, isComposing, isSecondClick, listen, setText } from "./dom.js";
import { newId } from "./ids.js";
import { readSetting, saveSetting } from "./local-storage.js";
import { readDraft, writeDraft } from "./message-drafts.js";
import { MessageQueue } from "./message-queue.js";
import { RefusalLine, refusalText } from "./refusal-line.js";
import { may, reasonAgainst, restrict } from "./rights.js";
import { outcome } from "./run.js";
import { StopControl } from "./stop-control.js";
import * as store from "./store.js";
import { oneLine, t } from "./texts.js";
import * as toasts from "./toasts.js";

const POLICY_KEY = "quell.policy";
const BUTTON_MODES = {
  send: { icon: "send", text: "composer.send", title: "composer.send-title", hint: "composer.hint.idle" },
  stop: { icon: "stop", text: "composer.stop", title: "composer.stop-title", hint: "composer.hint.running" },
  force: {
    icon: "force",
    text: "composer.force",
    title: "composer.force-title",
    hint: "composer.hint.stopping",
  },
};
/** Elements are shared; this composer owns them. */
let openComposer = null;

export class Composer {
  constructor(key, conversation, host) {
    Object.assign(this, { key, conversation, host });
    this.author = store.get("me")?.principal;
    this.message = byId("message");
    this.button = byId("send");
    this.busyButton = byId("send-busy");
    this.policy = byId("busy-policy");
    /** Messages that the daemon has not answered yet: id -> {text, whileBusy, done, stopped}. */
    this.sends = new Map();
    /** The last message without an answer, which may have arrived: {runId, text, policy}. */
    this.unanswered = null;
    /** Messages whose texts were put back into the field: a late answer must not do it again. */
    this.restoredIds = new Set();
    this.shownMode = null;
    this.queue = new MessageQueue(byId("queue"), key, {
      onWithdrawn: (messages) => this.restoreMessages(messages),
      onSteered: (runId, text) => conversation.showSteered(runId, text),
    });
    this.refusalLine = new RefusalLine(byId("refusal"), key);
    this.control = new StopControl(key, byId("settling"), {
      runs: () => this.activeRuns(),
      sending: () => [...this.sends.keys()],
      arrival: (runId) => this.sends.get(runId)?.done ?? Promise.resolve(false),
      lastEndedRun: () => conversation.lastEndedRun(),
      onWithdrawn: (messages) => this.restoreMessages(messages),
      onChange: () => this.update(),
      principal: () => store.get("me")?.principal,
      onFailure: (text, problem) => toasts.error(text, problem),
      onNotice: (text) => toasts.info(text),
    });
    this.message.value = readDraft(this.author, key);
    this.policy.value = readSetting(POLICY_KEY) || "queue";
    this.restrictFields();
    this.cleanups = [
      listen(this.message, "input", () => this.onInput()),
      listen(this.message, "keydown", (event) => this.onKey(event)),
      listen(this.button, "click", (event) => this.onPress(event)),
      listen(this.busyButton, "click", () => this.send()),
      listen(byId("composer"), "submit", (event) => event.preventDefault()),
      listen(byId("mcp-insert"), "click", () => this.openMcpPicker()),
      listen(this.policy, "change", () => saveSetting(POLICY_KEY, this.policy.value)),
      store.subscribe("runs", () => this.update()),
    ];
    openComposer = this;
    this.resize();
  }

  restrictFields() {
    const reason = reasonAgainst("write");
    restrict(this.message, reason);
    restrict(this.policy, reason);
    restrict(byId("mcp-insert"), reason, t("composer.mcp"));
    this.message.placeholder = t(reason === "" ? "composer.placeholder" : "composer.read-only");
  }

  close() {
    openComposer = null;
    this.keepDraft();
    this.refusalLine.clear();
    this.cleanups.forEach((cleanup) => cleanup());
    this.control.close();
    this.queue.close();
  }

  mode() {
    return this.control.mode();
  }

  onStepStarted(runId) {
    this.queue.onStepStarted(runId);
  }

  /** The button changes under the pointer: the second click of a double click is ignored. */
  onPress(event) {
    if (isSecondClick(event)) {
      return;
    }
    if (this.mode() === "send") {
      this.send();
    } else {
      this.stop();
    }
  }

  stop() {
    this.sends.forEach((send) => {
      send.stopped = true;
    });
    this.control.press();
  }

  /** Active runs of this session from any surface. Shown runs are more current than the list of the store. */
  activeRuns() {
    const shownRuns = this.conversation.activeRuns();
    const ids = new Set(shownRuns.map((run) => run.runId));
    const rows = store.get("runs").filter((row) => row.sessionKey === this.key && !ids.has(row.runId));
    return [
      ...shownRuns.map((run) => ({
        runId: run.runId,
        state: run.state,
        stopping: outcome(run) === "stopping",
      })),
      ...rows
        .filter((row) => !this.conversation.isOver(row.runId))
        .map((row) => ({
          runId: row.runId,
          state: row.state,
          stopping: row.verdict?.kind === "aborted",
          text: row.text,
        })),
    ].filter((run) => !this.sends.has(run.runId));
  }

  update() {
    if (openComposer !== this) {
      return;
    }
    this.control.update();
    const runs = this.activeRuns();
    this.clearArrivedDraft(runs);
    const pending = [...this.sends]
      .filter(([, send]) => send.whileBusy)
      .map(([runId, { text }]) => ({ runId, text, sending: true }));
    this.queue.show([...runs.filter((run) => run.state === "queued" && run.text !== undefined), ...pending]);
    const mode = this.mode();
    if (mode !== this.shownMode) {
      this.shownMode = mode;
      this.showMode(mode);
    }
    const isAvailable = mode !== "send" && this.message.value.trim() !== "";
    this.busyButton.classList.toggle("available", isAvailable);
    this.busyButton.disabled = !isAvailable;
  }

  /** Clears the field when the message without an answer turns out to be a run. */
  clearArrivedDraft(runs) {
    const unanswered = this.unanswered;
    if (unanswered && runs.some((run) => run.runId === unanswered.runId)) {
      this.unanswered = null;
      if (this.message.value.trim() === unanswered.text) {
        this.message.value = "";
        this.keepDraft();
        this.resize();
        this.refusalLine.clear();
      }
    }
  }

  keepDraft() {
    writeDraft(this.author, this.key, this.message.value);
  }

  showMode(mode) {
    const { icon: iconName, text, title, hint } = BUTTON_MODES[mode];
    this.button.dataset.mode = mode;
    this.button.classList.toggle("stop-button", mode !== "send");
    this.button.classList.toggle("primary", mode === "send");
    this.button.replaceChildren(icon(iconName), h("span", null, t(text)));
    restrict(this.button, reasonAgainst(mode === "send" ? "write" : "stop"), t(title));
    setText(byId("composer-hint"), may("write") ? t(hint) : "");
  }

  /** Puts the texts of withdrawn messages back into the field. */
  restoreMessages(messages) {
    const removedIds = new Set(messages.map((one) => one.runId));
    this.queue.remove(removedIds);
    if (removedIds.size > 0) {
      store.set(
        "runs",
        store.get("runs").filter((run) => !removedIds.has(run.runId)),
      );
    }
    const fresh = messages.filter((one) => !this.restoredIds.has(one.runId));
    fresh.forEach((one) => this.restoredIds.add(one.runId));
    fresh.reverse().forEach((one) => this.insertText(one.text));
  }

  insertText(text) {
    const composer = this.currentComposer();
    const current = composer ? composer.message.value : readDraft(this.author, this.key);
    const combined = current.trim() === "" ? text : `${text}\n\n${current}`;
    writeDraft(this.author, this.key, combined);
    if (!composer) {
      return;
    }
    composer.message.value = combined;
    composer.resize();
    composer.update();
  }

  /** Offers prompts and resources of MCP servers, whose text comes into the field. */
  async openMcpPicker() {
    const module = await import("./mcp-picker.js").catch(() => null);
    if (!module || openComposer !== this || document.querySelector("dialog[open]")) {
      return;
    }
    module.openMcpPicker({
      agent: this.host.agent(),
      insert: (text) => this.insertText(text),
      onClosed: () => this.message.focus(),
    });
  }

  /** The open composer of the same author and session: this one, or a later one. */
  currentComposer() {
    return openComposer?.author === this.author && openComposer?.key === this.key ? openComposer : null;
  }

  async send() {
    const text = this.message.value.trim();
    if (text === "") {
      this.message.focus();
      return;
    }
    const isRetry = this.unanswered?.text === text && this.unanswered.policy === this.policy.value;
    // The same id makes a retry idempotent.
    const runId = isRetry ? this.unanswered.runId : newId();
    const whileBusy = this.mode() !== "send";
    let resolveArrival;
    this.sends.set(runId, {
      text,
      whileBusy,
      done: new Promise((resolve) => {
        resolveArrival = resolve;
      }),
    });
    this.message.value = "";
    this.keepDraft();
    this.resize();
    this.refusalLine.clear();
    this.control.onMessageSent();
    this.host.onSent();
    if (!whileBusy) {
      this.conversation.showSending(runId, text);
    }
    this.update();
    resolveArrival(await this.postMessage(runId, text, whileBusy));
    this.update();
  }

  /** True when the daemon has the message. */
  async postMessage(runId, text, whileBusy) {
    const body = { text, idempotencyKey: runId, onBusy: this.policy.value };
    try {
      const answer = await api.post(`${api.sessionPath(this.key)}/runs`, body);
      this.sends.delete(runId);
      this.showAccepted(runId, text, answer, whileBusy);
      return true;
    } catch (problem) {
      if (!(problem instanceof api.Problem)) {
        throw problem;
      }
      const { stopped } = this.sends.get(runId);
      this.sends.delete(runId);
      this.conversation.removeUnsent(runId);
      this.onRefused(problem, { runId, text, policy: body.onBusy, stopped });
      return false;
    }
  }

  onRefused(problem, message) {
    const composer = this.currentComposer();
    this.restoredIds.add(message.runId);
    this.insertText(message.text);
    if (composer) {
      // A message that was stopped while it was sent needs a new id: the stop is kept for the old one.
      composer.unanswered = problem.code === "network" && !message.stopped ? message : null;
      composer.refusalLine.show(problem);
    } else {
      toasts.error(`${oneLine(this.key, 40)}: ${refusalText(problem)}`);
    }
  }

  showAccepted(runId, text, answer, whileBusy) {
    if (answer.runIds) {
      // The text was a stop word: it made no run.
      this.conversation.removeUnsent(runId);
      this.restoreMessages(answer.withdrawn || []);
      if (!answer.aborted) {
        toasts.info(t("composer.nothing-ran"));
      }
    } else if (answer.state === "steered") {
      this.conversation.removeUnsent(runId);
      this.queue.addSteered(answer.messageId ?? runId, text, answer.runId);
    } else if (answer.state === "queued" && whileBusy) {
      const others = store.get("runs").filter((run) => run.runId !== answer.runId);
      store.set("runs", [...others, queuedRow(answer.runId, this.key, text)]);
    } else {
      this.conversation.showRun(answer.runId, text);
    }
    store.refresh("runs", "sessions", "session");
  }

  onInput() {
    // It was about another text.
    this.refusalLine.clear();
    this.keepDraft();
    this.resize();
    this.update();
  }

  resize() {
    this.message.style.setProperty("height", "auto");
    this.message.style.setProperty("height", `${this.message.scrollHeight + 2}px`);
  }

  onKey(event) {
    if (event.key === "Enter" && !event.shiftKey && !isComposing(event)) {
      event.preventDefault();
      this.send();
    }
  }
}

/** The row of a queued run until the list of runs has it, so that the message does not flicker. */
function queuedRow(runId, key, text) {
  return {
    runId,
    text,
    sessionKey: key,
    state: "queued",
    agent: "",
    principal: store.get("me").principal,
    surface: "page",
    acceptedAt: new Date().toISOString(),
    steps: 0,
    processes: 0,
    seq: 0,
    usage: { inputTokens: 0, outputTokens: 0, estimated: false },
  };
}
