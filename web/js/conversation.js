// The turns of the open session: pages of its history as one scrolls up, and its runs as they stream. It
// shows them in order and keeps the newest in sight; it knows neither the composer nor how runs are stopped.
//
//   openConversation(key, place, actions) -> conversation
//     place      {turns, older, scroll, empty, newest}: the elements
//     actions    {inspect(runId), again(text), changed(), stepBegins(runId)}: `changed` is called when a run
//                began, moved on or ended, `stepBegins` before a run goes on to its next step
//   conversation.sending(runId, text)    shows a message before the daemon has it
//   conversation.refused(runId)          the daemon does not have it, or has put it elsewhere
//   conversation.steered(runId, text)    it went to the running run
//   conversation.live(runId, text)       it is a run now
//   conversation.active()                [run]: those of run.js that are shown and not over
//   conversation.isOver(runId)           true for one that is shown and has ended, whatever a list of runs
//                                        says yet
//   conversation.lastEnded()             the run that ended last while we looked, or null
//   conversation.newestRun()             the id of the run at the end, or null
//   conversation.close()                 its place is the next one's; what it is told from then on is dropped

import { Problem } from "./api.js";
import * as clock from "./clock.js";
import { h, keyed } from "./dom.js";
import { mergeNewest, pagesOf } from "./history.js";
import * as live from "./live.js";
import { receiptReader } from "./receipts.js";
import { adopt, apply, finish, fromHistory, newRun, outcome, UNKNOWN } from "./run.js";
import { endOf } from "./run-watch.js";
import { stickToEnd } from "./scroll.js";
import * as store from "./store.js";
import { t, timeElement } from "./texts.js";
import { TurnView } from "./turn.js";

/** A tab is open for days: more turns than these are let go when the reader is at the end. */
const MOST_ITEMS = 300;
/** Lists of runs without one that is shown as active, after which it is asked for itself. */
const MISSED_LISTS = 2;

export { emptySession } from "./empty-session.js";

export function openConversation(key, place, actions) {
  const conversation = new Conversation(key, place, actions);
  conversation.begin();
  return conversation;
}

class Conversation {
  constructor(key, place, actions) {
    Object.assign(this, { key, place, actions });
    this.items = [];
    this.entries = new Map();
    this.dirty = new Set();
    this.pages = pagesOf(key);
    this.loading = false;
    this.lookWanted = false;
    this.loaded = false;
    this.closed = false;
    this.frame = 0;
    this.last = null;
    this.end = stickToEnd(place.scroll, place.turns, place.newest);
    this.receipts = receiptReader(place.scroll);
    this.nearTop = new IntersectionObserver(
      (seen) => seen.some((one) => one.isIntersecting) && this.loadOlder(),
      { root: place.scroll, rootMargin: "600px 0px 0px" },
    );
    this.undo = [];
  }

  begin() {
    this.place.turns.replaceChildren();
    this.undo = [
      store.subscribe("runs", () => this.takeRuns()),
      live.on("run", (event) => this.runNews(event)),
      live.on("sessions.changed", (event) => this.sessionNews(event)),
      live.onState((state) => state === "live" && this.lookAgain()),
    ];
    this.loadNewest();
  }

  close() {
    this.closed = true;
    cancelAnimationFrame(this.frame);
    this.receipts.close();
    this.nearTop.disconnect();
    this.end.close();
    this.undo.forEach((forget) => forget());
    this.entries.forEach((entry) => entry.forget?.());
    this.place.turns.replaceChildren();
    this.place.older.replaceChildren();
    this.place.empty.hidden = true;
  }

  active() {
    return [...this.entries.values()].map((entry) => entry.run).filter((run) => run.state !== "ended");
  }

  isOver(runId) {
    return this.entries.get(runId)?.run.state === "ended";
  }

  lastEnded() {
    return this.last;
  }

  newestRun() {
    return this.items.findLast((item) => item.runId)?.runId ?? null;
  }

  // ---- what the composer tells ----

  sending(runId, text) {
    const entry = this.entryOf(runId);
    entry.sending = true;
    entry.view.showAsked(text, new Date(clock.now()).toISOString(), t("turn.you"));
    this.show([...this.items, { id: `run ${runId}`, runId }]);
    this.end.jump();
  }

  refused(runId) {
    if (this.closed) {
      return;
    }
    this.entries.get(runId)?.forget?.();
    this.entries.delete(runId);
    this.show(this.items.filter((item) => item.runId !== runId));
    this.actions.changed();
  }

  steered(runId, text) {
    const entry = this.entries.get(runId);
    const step = entry?.run.steps[entry.run.steps.length - 1];
    if (step) {
      step.steered.push(text);
      this.touch(entry);
    }
  }

  live(runId, text) {
    if (this.closed) {
      return;
    }
    const entry = this.entryOf(runId);
    entry.sending = false;
    if (text !== null) {
      entry.view.showAsked(text, new Date(clock.now()).toISOString(), t("turn.you"));
    }
    if (!this.items.some((item) => item.runId === runId)) {
      this.show([...this.items, { id: `run ${runId}`, runId }]);
    }
    this.follow(entry);
  }

  // ---- history ----

  async loadNewest() {
    this.place.older.replaceChildren();
    await this.reading(
      () => this.pages.newest(),
      (page) => {
        this.loaded = true;
        this.showPage(mergeNewest(this.items, page).items);
        this.takeRuns();
        this.end.jump();
        this.actions.changed();
      },
    );
  }

  async loadOlder() {
    if (!this.loaded || !this.pages.hasOlder()) {
      return;
    }
    await this.reading(
      () => this.pages.older(),
      (page) => {
        const known = new Set(this.items.map((item) => item.id));
        this.end.hold(() => this.showPage([...page.filter((item) => !known.has(item.id)), ...this.items]));
      },
    );
  }

  /** What happened while nobody was listening. */
  async lookAgain() {
    if (this.loading) {
      this.lookWanted = true;
      return;
    }
    if (!this.loaded) {
      await this.loadNewest();
      return;
    }
    const long = this.isLong();
    await this.reading(
      () => (long ? this.pages.newest() : this.pages.look()),
      (page) => {
        const { items, gap, older } = mergeNewest(this.items, page);
        if (gap && this.pages.hasOlder()) {
          this.loaded = false;
          this.items = [];
        } else if (long) {
          this.letGo(items.splice(0, older));
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
    return this.items.length > MOST_ITEMS && this.end.isThere();
  }

  /** Old turns leave the page; who scrolls up reads them again. One that is not over stays followed. */
  letGo(items) {
    for (const { runId } of items) {
      if (this.entries.get(runId)?.run.state === "ended") {
        this.entries.delete(runId);
      }
    }
  }

  /** One page at a time; a problem is shown where the page would be. */
  async reading(read, take) {
    if (this.loading) {
      return;
    }
    this.loading = true;
    let page;
    try {
      page = await read();
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
    take(page);
    if (this.lookWanted) {
      this.lookWanted = false;
      this.lookAgain();
    }
  }

  showProblem(problem) {
    const again = h("button", { type: "button", on: { click: () => this.loadNewest() } }, t("chat.retry"));
    const reason = problem.code === "network" ? t("stop.no-answer") : problem.detail;
    this.place.older.replaceChildren(h("p", { class: "problem" }, t("chat.load-failed", { reason })), again);
  }

  /**
   * Shows items of the history: turns that were listened to keep what they show, and learn what the history
   * knows better.
   */
  showPage(items) {
    for (const item of items) {
      const known = this.entries.get(item.runId);
      if (item.messages && !known) {
        this.remember(item);
      } else if (item.messages && known.run.state === "ended" && !known.told) {
        known.told = true;
        adopt(known.run, fromHistory(item.messages));
        this.touch(known);
      }
    }
    this.show(items);
    this.showOlder();
  }

  remember(item) {
    const entry = this.entryOf(item.runId);
    entry.run = fromHistory(item.messages);
    entry.told = true;
    entry.view.showAsked(entry.run.asked ?? "", item.messages[0].at, this.nameOf(entry.run.askedBy));
    entry.view.update(entry.run);
    if (entry.run.verdict?.kind === "aborted") {
      this.receipts.want(entry.view.answer, item.runId, (receipt) => entry.view.showReceipt(receipt));
    }
  }

  showOlder() {
    const { older } = this.place;
    if (this.pages.hasOlder()) {
      older.replaceChildren(h("p", { class: "hint" }, t("chat.older")));
      // Seen anew, so that a page that did not fill the window is followed by the next.
      this.nearTop.unobserve(older);
      this.nearTop.observe(older);
    } else {
      this.nearTop.unobserve(older);
      older.replaceChildren();
    }
  }

  show(items) {
    this.items = items;
    keyed(
      this.place.turns,
      items,
      (item) => item.id,
      (item) => this.element(item),
    );
    this.place.empty.hidden = items.length > 0 || !this.loaded;
  }

  element(item) {
    if (item.resetAt) {
      return h(
        "p",
        { class: "reset-boundary", role: "separator" },
        h("span", null, t("chat.reset"), " ", timeElement(item.resetAt)),
      );
    }
    const { view } = this.entryOf(item.runId);
    return h("div", { class: "exchange" }, view.asked, view.answer);
  }

  entryOf(runId) {
    let entry = this.entries.get(runId);
    if (!entry) {
      entry = {
        run: newRun(runId),
        view: new TurnView(runId, this.actions),
        forget: null,
        sending: false,
        missed: 0,
        asking: false,
        told: false,
      };
      this.entries.set(runId, entry);
    }
    return entry;
  }

  // ---- runs ----

  /** Runs of this session that began anywhere. What waits in the queue is the composer's to show. */
  takeRuns() {
    if (!this.loaded) {
      return;
    }
    this.missFrom(store.get("runs"));
    for (const run of store.get("runs")) {
      if (run.sessionKey !== this.key || run.state === "queued") {
        continue;
      }
      const entry = this.entries.get(run.runId);
      if (!entry || entry.sending) {
        this.live(run.runId, null);
        this.entries.get(run.runId).view.showAsked(run.text, run.acceptedAt, this.nameOf(run.principal));
      }
    }
    this.showSubRuns();
  }

  /** The end of a run may have been lost: what is shown as active and listed no more is asked for. */
  missFrom(runs) {
    const listed = new Set(runs.map((run) => run.runId));
    for (const entry of this.entries.values()) {
      const missed = entry.run.state !== "ended" && !entry.sending && !listed.has(entry.run.runId);
      entry.missed = missed ? entry.missed + 1 : 0;
      if (entry.missed >= MISSED_LISTS) {
        this.askFor(entry);
      }
    }
  }

  showSubRuns() {
    const below = Map.groupBy(
      store.get("runs").filter((run) => run.parent),
      (run) => run.parent,
    );
    for (const entry of this.entries.values()) {
      // A stop takes its sub-runs with it, whatever a list that is a moment old still has.
      const rows = outcome(entry.run) === "stopped" ? [] : (below.get(entry.run.runId) ?? []);
      if (rows.length > 0 || entry.subRuns) {
        entry.subRuns = rows.length > 0;
        entry.view.showSubRuns(rows, entry.run);
      }
    }
  }

  nameOf(principal = store.get("me")?.principal) {
    return principal === store.get("me")?.principal ? t("turn.you") : principal;
  }

  follow(entry) {
    if (this.closed || entry.forget || entry.run.state === "ended") {
      return;
    }
    entry.forget = live.follow(entry.run.runId, entry.run.seq, (event) => {
      if (event === null) {
        entry.forget = null;
        this.askFor(entry);
        return;
      }
      if (event.type === "step.started") {
        this.actions.stepBegins(entry.run.runId);
      }
      apply(entry.run, event);
      if (entry.run.state === "ended") {
        this.ended(entry);
      }
      this.touch(entry);
    });
    this.touch(entry);
  }

  /**
   * Asks how a run stands that nobody tells of: it is over, and its record says how, or it goes on and is
   * followed again. As long as there is no answer, nothing is said of it.
   */
  async askFor(entry) {
    if (entry.asking) {
      return;
    }
    entry.asking = true;
    entry.missed = 0;
    const isTold = () => this.closed || entry.forget || entry.run.state === "ended";
    const view = await endOf(entry.run.runId, isTold, () => this.follow(entry));
    entry.asking = false;
    if (view && entry.run.state !== "ended") {
      entry.forget?.();
      const { receipt = null, endedAt: at = null } = view;
      finish(entry.run, { verdict: view.verdict ?? entry.run.verdict ?? UNKNOWN, receipt, at });
      // What was said at its end may have been missed with the end; the history has it.
      entry.run.missed = true;
      this.ended(entry);
      this.touch(entry);
    }
  }

  ended(entry) {
    entry.forget = null;
    this.last = entry.run;
    this.showSubRuns();
    store.refresh("sessions");
    // A run that answered was heard to its end; of others, the history says what the model sees.
    if (entry.run.verdict?.kind !== "completed" || entry.run.missed || this.isLong()) {
      this.lookAgain();
    }
  }

  runNews({ state, sessionKey, runId }) {
    if (sessionKey !== this.key || state !== "ended") {
      return;
    }
    const entry = this.entries.get(runId);
    if (!entry) {
      this.lookAgain();
    } else if (entry.run.state !== "ended" && !entry.forget && !entry.sending) {
      this.askFor(entry);
    }
  }

  sessionNews({ sessionKey, reason }) {
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

  /** Many events, one drawing: at 500 tokens a second the screen still changes 60 times. */
  touch(entry) {
    if (this.closed) {
      return;
    }
    this.dirty.add(entry);
    this.frame ||= requestAnimationFrame(() => this.draw());
    if (entry.run.state !== entry.state) {
      entry.state = entry.run.state;
      this.actions.changed();
    }
  }

  draw() {
    this.frame = 0;
    this.dirty.forEach((entry) => entry.view.update(entry.run));
    this.dirty.clear();
  }
}
