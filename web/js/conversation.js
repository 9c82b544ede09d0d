// The turns of the open session: pages of history while scrolling up, and active runs as they stream.
//
//   openConversation(key, elements, actions) -> conversation
//     elements   {turns, older, scroll, empty, newest}
//     actions    {inspect(runId), insertText(text), onRunsChanged(), onStepStarted(runId)}: `onRunsChanged` is
//                called when a run began, changed or ended, `onStepStarted` before a run's next step
//   conversation.showSending(runId, text)   shows a message before the daemon has answered
//   conversation.removeUnsent(runId)        the daemon did not accept it, or it became no run of its own
//   conversation.showSteered(runId, text)   the message was added to the running run
//   conversation.showRun(runId, text)       the message is a run now
//   conversation.activeRuns()               the runs (run.js) that are shown and have not ended
//   conversation.isOver(runId)              true for a shown run that has ended, whatever a list of runs says
//   conversation.lastEndedRun(), newestRunId()   or null
//   conversation.close()                    later answers no longer touch the elements

import { Problem } from "./api.js";
import { h, reconcileChildren } from "./dom.js";
import { createReceiptLoader } from "./receipt-loader.js";
import { waitForEnd } from "./run-polling.js";
import { applyEvent, finishRun, fromHistory, mergeHistory, newRun, outcome, UNKNOWN_VERDICT } from "./run.js";
import * as clock from "./server-clock.js";
import { historyPages, mergeNewest } from "./session-history.js";
import { stickToBottom } from "./stick-to-bottom.js";
import * as store from "./store.js";
import { t, timeElement } from "./texts.js";
import { TurnView } from "./turn-view.js";
import * as websocket from "./websocket.js";

/** Above this, old turns are removed while the end is in view: a tab may stay open for days. */
const MAX_ITEMS = 300;
/** After this many lists of runs without a shown active run, its end is fetched. */
const MAX_MISSED_LISTS = 2;

export function openConversation(key, elements, actions) {
  const conversation = new Conversation(key, elements, actions);
  conversation.start();
  return conversation;
}

class Conversation {
  constructor(key, elements, actions) {
    Object.assign(this, { key, elements, actions });
    this.items = [];
    this.entries = new Map();
    this.dirty = new Set();
    this.pages = historyPages(key);
    this.loading = false;
    this.reloadWanted = false;
    this.loaded = false;
    this.closed = false;
    this.frame = 0;
    this.lastEnded = null;
    this.autoScroll = stickToBottom(elements.scroll, elements.turns, elements.newest);
    this.receiptLoader = createReceiptLoader(elements.scroll);
    this.topObserver = new IntersectionObserver(
      (entries) => entries.some((one) => one.isIntersecting) && this.loadOlder(),
      { root: elements.scroll, rootMargin: "600px 0px 0px" },
    );
    this.cleanups = [];
  }

  start() {
    this.elements.turns.replaceChildren();
    this.cleanups = [
      store.subscribe("runs", () => this.addActiveRuns()),
      websocket.on("run", (event) => this.onRunEvent(event)),
      websocket.on("sessions.changed", (event) => this.onSessionChanged(event)),
      websocket.onState((state) => state === "live" && this.reloadNewest()),
    ];
    this.loadNewest();
  }

  close() {
    this.closed = true;
    cancelAnimationFrame(this.frame);
    this.receiptLoader.close();
    this.topObserver.disconnect();
    this.autoScroll.close();
    this.cleanups.forEach((unsubscribe) => unsubscribe());
    this.entries.forEach((entry) => entry.unfollow?.());
    this.elements.turns.replaceChildren();
    this.elements.older.replaceChildren();
    this.elements.empty.hidden = true;
  }

  activeRuns() {
    return [...this.entries.values()].map((entry) => entry.run).filter((run) => run.state !== "ended");
  }

  isOver(runId) {
    return this.entries.get(runId)?.run.state === "ended";
  }

  lastEndedRun() {
    return this.lastEnded;
  }

  newestRunId() {
    return this.items.findLast((item) => item.runId)?.runId ?? null;
  }

  // ---- called by the composer ----

  showSending(runId, text) {
    const entry = this.entryOf(runId);
    entry.sending = true;
    entry.view.showUserMessage(text, new Date(clock.now()).toISOString(), t("turn.you"));
    this.show([...this.items, { id: `run ${runId}`, runId }]);
    this.autoScroll.scrollToBottom();
  }

  removeUnsent(runId) {
    if (this.closed) {
      return;
    }
    this.entries.get(runId)?.unfollow?.();
    this.entries.delete(runId);
    this.show(this.items.filter((item) => item.runId !== runId));
    this.actions.onRunsChanged();
  }

  showSteered(runId, text) {
    const entry = this.entries.get(runId);
    const step = entry?.run.steps[entry.run.steps.length - 1];
    if (step) {
      step.steered.push(text);
      this.scheduleUpdate(entry);
    }
  }

  showRun(runId, text) {
    if (this.closed) {
      return;
    }
    const entry = this.entryOf(runId);
    entry.sending = false;
    if (text !== null) {
      entry.view.showUserMessage(text, new Date(clock.now()).toISOString(), t("turn.you"));
    }
    if (!this.items.some((item) => item.runId === runId)) {
      this.show([...this.items, { id: `run ${runId}`, runId }]);
    }
    this.follow(entry);
  }

  // ---- history ----

  async loadNewest() {
    this.elements.older.replaceChildren();
    await this.withPage(
      () => this.pages.newest(),
      (page) => {
        this.loaded = true;
        this.showPage(mergeNewest(this.items, page).items);
        this.addActiveRuns();
        this.autoScroll.scrollToBottom();
        this.actions.onRunsChanged();
      },
    );
  }

  async loadOlder() {
    if (!this.loaded || !this.pages.hasOlder()) {
      return;
    }
    await this.withPage(
      () => this.pages.older(),
      (page) => {
        const known = new Set(this.items.map((item) => item.id));
        this.autoScroll.keepPosition(() =>
          this.showPage([...page.filter((item) => !known.has(item.id)), ...this.items]),
        );
      },
    );
  }

  /** Reads the newest page again, for changes that no event brought. */
  async reloadNewest() {
    if (this.loading) {
      this.reloadWanted = true;
      return;
    }
    if (!this.loaded) {
      await this.loadNewest();
      return;
    }
    const isLong = this.isLong();
    await this.withPage(
      () => (isLong ? this.pages.newest() : this.pages.newestAgain()),
      (page) => {
        const { items, gap, older } = mergeNewest(this.items, page);
        if (gap && this.pages.hasOlder()) {
          this.loaded = false;
          this.items = [];
        } else if (isLong) {
          this.dropEntries(items.splice(0, older));
          this.showPage(items);
        } else {
          this.showPage(items);
        }
      },
    );
    if (!this.loaded && !this.closed) {
      await this.loadNewest();
    }
  }

  isLong() {
    return this.items.length > MAX_ITEMS && this.autoScroll.isAtBottom();
  }

  /** Removes turns that have ended; they are loaded again when scrolled to. */
  dropEntries(items) {
    for (const { runId } of items) {
      if (this.entries.get(runId)?.run.state === "ended") {
        this.entries.delete(runId);
      }
    }
  }

  /** Loads one page at a time, and shows a problem in its place. */
  async withPage(readPage, showResult) {
    if (this.loading) {
      return;
    }
    this.loading = true;
    let page;
    try {
      page = await readPage();
    } catch (problem) {
      if (!(problem instanceof Problem)) {
        throw problem;
      }
      if (!this.closed && !this.loaded) {
        this.showProblem(problem);
      }
      return;
    } finally {
      this.loading = false;
    }
    if (this.closed) {
      return;
    }
    showResult(page);
    if (this.reloadWanted) {
      this.reloadWanted = false;
      this.reloadNewest();
    }
  }

  showProblem(problem) {
    const retryButton = h(
      "button",
      { type: "button", on: { click: () => this.loadNewest() } },
      t("chat.retry"),
    );
    const reason = problem.code === "network" ? t("stop.no-answer") : problem.detail;
    this.elements.older.replaceChildren(
      h("p", { class: "problem" }, t("chat.load-failed", { reason })),
      retryButton,
    );
  }

  /** Shows items of the history. Turns that were followed live keep their content, corrected by the history. */
  showPage(items) {
    for (const item of items) {
      const known = this.entries.get(item.runId);
      if (item.messages && !known) {
        this.showFromHistory(item);
      } else if (item.messages && known.run.state === "ended" && !known.hasHistory) {
        known.hasHistory = true;
        mergeHistory(known.run, fromHistory(item.messages));
        this.scheduleUpdate(known);
      }
    }
    this.show(items);
    this.showOlder();
  }

  showFromHistory(item) {
    const entry = this.entryOf(item.runId);
    const run = fromHistory(item.messages);
    const { view } = entry;
    entry.run = run;
    entry.hasHistory = true;
    view.showUserMessage(run.userText ?? "", item.messages[0].at, this.displayName(run.principal));
    view.update(run);
    if (run.verdict?.kind === "aborted") {
      const { answerElement } = view;
      this.receiptLoader.loadWhenVisible(answerElement, item.runId, (receipt) => view.showReceipt(receipt));
    }
  }

  showOlder() {
    const { older } = this.elements;
    if (this.pages.hasOlder()) {
      older.replaceChildren(h("p", { class: "hint" }, t("chat.older")));
      // Observed anew, so that the next page loads when this one did not fill the window.
      this.topObserver.unobserve(older);
      this.topObserver.observe(older);
    } else {
      this.topObserver.unobserve(older);
      older.replaceChildren();
    }
  }

  show(items) {
    this.items = items;
    reconcileChildren(
      this.elements.turns,
      items,
      (item) => item.id,
      (item) => this.createElement(item),
    );
    this.elements.empty.hidden = items.length > 0 || !this.loaded;
  }

  createElement(item) {
    if (item.resetAt) {
      return h(
        "p",
        { class: "reset-boundary", role: "separator" },
        h("span", null, t("chat.reset"), " ", timeElement(item.resetAt)),
      );
    }
    const { view } = this.entryOf(item.runId);
    return h("div", { class: "exchange" }, view.userElement, view.answerElement);
  }

  entryOf(runId) {
    let entry = this.entries.get(runId);
    if (!entry) {
      entry = {
        run: newRun(runId),
        view: new TurnView(runId, this.actions),
        unfollow: null,
        sending: false,
        missedLists: 0,
        isFetchingEnd: false,
        hasHistory: false,
      };
      this.entries.set(runId, entry);
    }
    return entry;
  }

  // ---- runs ----

  /** Adds active runs of this session from any surface; queued ones are shown by the composer. */
  addActiveRuns() {
    if (!this.loaded) {
      return;
    }
    this.checkMissedEnds(store.get("runs"));
    for (const run of store.get("runs")) {
      if (run.sessionKey !== this.key || run.state === "queued") {
        continue;
      }
      const entry = this.entries.get(run.runId);
      if (!entry || entry.sending) {
        this.showRun(run.runId, null);
        this.entries
          .get(run.runId)
          .view.showUserMessage(run.text, run.acceptedAt, this.displayName(run.principal));
      }
      this.nameAgent(this.entries.get(run.runId), run.agent);
    }
    this.showSubRuns();
  }

  /** The first events of a run name its agent; a page that follows the run late gets a snapshot in their place. */
  nameAgent(entry, agent) {
    if (entry.run.agent === null) {
      entry.run.agent = agent;
      this.scheduleUpdate(entry);
    }
  }

  /** Fetches the end of runs that are shown as active and no longer listed: its event may be lost. */
  checkMissedEnds(runs) {
    const listed = new Set(runs.map((run) => run.runId));
    for (const entry of this.entries.values()) {
      const missed = entry.run.state !== "ended" && !entry.sending && !listed.has(entry.run.runId);
      entry.missedLists = missed ? entry.missedLists + 1 : 0;
      if (entry.missedLists >= MAX_MISSED_LISTS) {
        this.fetchEnd(entry);
      }
    }
  }

  showSubRuns() {
    const childrenOf = Map.groupBy(
      store.get("runs").filter((run) => run.parent),
      (run) => run.parent,
    );
    for (const entry of this.entries.values()) {
      // The list may be older than the stop, which ends sub-runs too.
      const rows = outcome(entry.run) === "stopped" ? [] : (childrenOf.get(entry.run.runId) ?? []);
      if (rows.length > 0 || entry.subRuns) {
        entry.subRuns = rows.length > 0;
        entry.view.showSubRuns(rows, entry.run);
      }
    }
  }

  displayName(principal = store.get("me")?.principal) {
    return principal === store.get("me")?.principal ? t("turn.you") : principal;
  }

  follow(entry) {
    if (this.closed || entry.unfollow || entry.run.state === "ended") {
      return;
    }
    entry.unfollow = websocket.follow(entry.run.runId, entry.run.seq, (event) => {
      if (event === null) {
        entry.unfollow = null;
        this.fetchEnd(entry);
        return;
      }
      if (event.type === "step.started") {
        this.actions.onStepStarted(entry.run.runId);
      }
      applyEvent(entry.run, event);
      if (entry.run.state === "ended") {
        this.onRunEnded(entry);
      }
      this.scheduleUpdate(entry);
    });
    this.scheduleUpdate(entry);
  }

  /** Polls a run that sends no events: follows it again, or finishes it from its record. */
  async fetchEnd(entry) {
    if (entry.isFetchingEnd) {
      return;
    }
    entry.isFetchingEnd = true;
    entry.missedLists = 0;
    const isFollowed = () => this.closed || entry.unfollow || entry.run.state === "ended";
    const view = await waitForEnd(entry.run.runId, isFollowed, () => this.follow(entry));
    entry.isFetchingEnd = false;
    if (view && entry.run.state !== "ended") {
      entry.unfollow?.();
      const { receipt = null, endedAt: at = null } = view;
      finishRun(entry.run, { verdict: view.verdict ?? entry.run.verdict ?? UNKNOWN_VERDICT, receipt, at });
      // Its last output may be missing too; the history has it.
      entry.run.incomplete = true;
      this.onRunEnded(entry);
      this.scheduleUpdate(entry);
    }
  }

  onRunEnded(entry) {
    entry.unfollow = null;
    this.lastEnded = entry.run;
    this.showSubRuns();
    store.refresh("sessions", "session");
    // The history says which partial output the model sees.
    if (entry.run.verdict?.kind !== "completed" || entry.run.incomplete || this.isLong()) {
      this.reloadNewest();
    }
  }

  onRunEvent({ state, sessionKey, runId }) {
    if (sessionKey !== this.key || state !== "ended") {
      return;
    }
    const entry = this.entries.get(runId);
    if (!entry) {
      this.reloadNewest();
    } else if (entry.run.state !== "ended" && !entry.unfollow && !entry.sending) {
      this.fetchEnd(entry);
    }
  }

  onSessionChanged({ sessionKey, reason }) {
    if (sessionKey !== this.key || !["reset", "delete", "import"].includes(reason)) {
      return;
    }
    this.items = this.items.filter((item) => this.entries.get(item.runId)?.run.state !== "ended");
    for (const [runId, entry] of this.entries) {
      if (entry.run.state === "ended") {
        this.entries.delete(runId);
      }
    }
    this.show(this.items);
    this.loadNewest();
  }

  /** Renders once for each frame, however many events arrive. */
  scheduleUpdate(entry) {
    if (this.closed) {
      return;
    }
    this.dirty.add(entry);
    this.frame ||= requestAnimationFrame(() => this.renderDirty());
    if (entry.run.state !== entry.state) {
      entry.state = entry.run.state;
      this.actions.onRunsChanged();
    }
  }

  renderDirty() {
    this.frame = 0;
    this.dirty.forEach((entry) => entry.view.update(entry.run));
    this.dirty.clear();
  }
}
