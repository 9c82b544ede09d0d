// The stop of the open session: asked once it is gentle, asked again it is forced. What it shows, it shows at
// once and does not wait for the daemon. It knows the routes of stops and the line that says how a stop
// settles; not where its button is. Which runs a stop was meant for is in asked-stop.js.
//
//   new StopControl(key, line, facts) -> {press(), mode(), update(), begun(), tell(text), close()}
//     line     the element of the settling line
//     facts    {runs(): [{runId, state, stopping}] not over, sending(): run ids under way to the daemon,
//              arrival(runId): a promise of whether such a one arrived, lastEnded(): run or null,
//              withdrawn(messages): [{runId, text}] that the stop took out of the queue, changed(),
//              principal(): who presses, failed(text, problem): a stop that did not stop, told until it is
//              read, noted(text): what became of a stop, where the line has no place for it}
//     mode()   "send" | "stop" | "force"
//     begun()  a new message was sent: the receipt of the last stop has been read
//     tell(text)   a problem, until the next message or stop
//     close()      the line is the next one's; a stop that is under way goes on, and is told if it failed
//
// A stop that the daemon does not answer, because the connection is lost, is kept for the runs that it was
// meant for (kept-stops.js), and says so.

import * as api from "./api.js";
import { asking, modeOf, stillAsked, stoppedNothing } from "./asked-stop.js";
import { setText } from "./dom.js";
import { isWaiting, keep, UNKNOWN_RUN } from "./kept-stops.js";
import * as live from "./live.js";
import { stopFailure } from "./reasons.js";
import { heldLine, receiptLine } from "./receipt.js";
import { oneLine, t } from "./texts.js";

const LOOK_MS = 200;

export class StopControl {
  constructor(key, line, facts) {
    Object.assign(this, { key, line, facts });
    /** null, or the stop that was asked here, with the runs that it was meant for. */
    this.asked = null;
    this.held = "";
    this.looking = 0;
    this.readReceiptOf = null;
    this.problem = null;
    /** What became of a stop that came too late. */
    this.late = "";
    this.closed = false;
    this.forget = live.onState((state) => this.connectionChanged(state));
    /** Ends the request of a stop that is under way. */
    this.under = null;
  }

  mode() {
    return modeOf(this.asked, this.facts.runs(), this.facts.sending());
  }

  press() {
    const mode = this.mode();
    if (mode === "send") {
      return;
    }
    const late = this.facts.sending();
    this.asked = asking(mode === "force" ? "forced" : "gentle", this.facts.runs(), late);
    this.problem = null;
    this.late = "";
    this.facts.changed();
    if (live.state() === "lost") {
      this.keepFor(this.asked);
    } else {
      this.ask(this.asked, late);
    }
    this.facts.changed();
  }

  /**
   * The session's stop covers what runs in it when it arrives. One that arrives after the connection was lost
   * would find runs that nobody meant, so that it is given up, and its runs are stopped by their ids.
   */
  connectionChanged(state) {
    if (state === "lost") {
      this.under?.abort();
    }
    this.facts.changed();
  }

  keepFor(asked) {
    const force = asked.how === "forced";
    for (const runId of asked.ids) {
      keep(runId, { force }, {
        answered: (answer) => this.keptAnswered(answer),
        refused: (problem) => this.keptRefused(asked, problem),
      });
    }
  }

  keptAnswered({ state, aborted, verdict, withdrawn }) {
    this.facts.withdrawn(withdrawn ?? []);
    if (state === "ended" && !aborted && !isByPerson(verdict)) {
      this.tooLate();
    }
    this.facts.changed();
  }

  /** Beside another run at work, or another session, the line is not about this run any more. */
  tooLate() {
    const text = t("stop.too-late");
    if (this.closed || this.facts.runs().some((run) => !this.asked?.ids.has(run.runId))) {
      this.facts.noted(text);
    } else {
      this.late = text;
    }
  }

  /** A run that the daemon does not know is over, or never arrived there; its stop is kept for it there. */
  keptRefused(asked, problem) {
    if (!UNKNOWN_RUN.has(problem.code)) {
      this.drop(asked);
      this.facts.failed(stopFailure("stop.failed", problem), problem);
    }
    this.facts.changed();
  }

  async ask(asked, late) {
    const force = asked.how === "forced" ? { force: true } : {};
    // A message that is under way was meant, too, wherever it is by now: a stop goes ahead of it, and another
    // one behind it once it has arrived.
    late.forEach((runId) => this.stopAhead(runId, force));
    try {
      const answer = await this.stopSession({ keepBackground: true, ...force });
      this.facts.withdrawn(answer.withdrawn);
      const caught = await Promise.all(late.map((runId) => this.stopLate(runId, force)));
      if (stoppedNothing(answer) && !caught.includes(true)) {
        await this.nothingStopped(asked);
      }
    } catch (error) {
      if (!(error instanceof api.Problem)) {
        throw error;
      }
      if (error.code === "network") {
        this.keepFor(asked);
      } else {
        this.drop(asked);
        this.facts.failed(stopFailure("stop.failed", error), error);
      }
    }
    this.facts.changed();
  }

  async stopSession(body) {
    const mine = new AbortController();
    this.under = mine;
    try {
      return await api.stopUntil(mine.signal, `${api.session(this.key)}/stop`, body);
    } finally {
      if (this.under === mine) {
        this.under = null;
      }
    }
  }

  /**
   * The daemon keeps a stop of a run that it does not know yet, and says that there is none. Over the socket
   * that answer is not one more error on the console.
   */
  async stopAhead(runId, force) {
    try {
      const answer =
        live.state() === "live"
          ? await live.request("runs.stop", { runId, ...force })
          : await api.stop(`${api.run(runId)}/stop`, force);
      this.facts.withdrawn(answer.withdrawn ?? []);
    } catch (error) {
      if (!(error instanceof api.Problem)) {
        throw error;
      }
    }
  }

  /** True when there was a run to stop. */
  async stopLate(runId, force) {
    const arrived = await this.facts.arrival(runId);
    if (arrived) {
      const answer = await api.stop(`${api.run(runId)}/stop`, force);
      this.facts.withdrawn(answer.withdrawn ?? []);
    }
    return arrived;
  }

  /** What runs here is somebody else's, or was over already: the button must not say that it is stopping. */
  async nothingStopped(asked) {
    this.drop(asked);
    this.facts.changed();
    const shown = this.facts.runs().find((run) => asked.ids.has(run.runId));
    const view = shown && (await api.get(api.run(shown.runId)));
    if (view && view.state !== "ended" && view.principal !== this.facts.principal()) {
      this.facts.failed(t("stop.not-yours", { principal: oneLine(view.principal, 60) }));
    }
  }

  drop(asked) {
    if (this.asked === asked) {
      this.asked = null;
    }
  }

  /** Brings the line up to date; called whenever a run began, moved on or ended. */
  update() {
    if (this.closed) {
      return;
    }
    this.asked = stillAsked(this.asked, this.facts.runs(), this.facts.sending());
    const mode = this.mode();
    // Beside a run at work, the receipt of an earlier one would be read as its own; it stands in the turn
    // that it ended.
    const last = mode === "send" ? this.facts.lastEnded() : null;
    const receipt = last?.verdict?.kind === "aborted" && last !== this.readReceiptOf ? last.receipt : null;
    const stopping = mode === "force" && this.problem === null;
    this.line.classList.toggle("stopping", stopping);
    this.line.classList.toggle("problem", this.problem !== null);
    this.line.classList.toggle("leftovers", Boolean(receipt?.leftovers.length));
    const end = this.late || (receipt ? receiptLine(receipt) : "");
    setText(this.line, this.problem ?? (stopping ? this.settling() : mode === "send" ? end : ""));
    if (stopping && !this.isWaiting()) {
      this.looking ||= setTimeout(() => this.look(), LOOK_MS);
    }
  }

  settling() {
    const word = t(this.asked?.how === "forced" ? "settling.forcing" : "settling.stopping");
    if (this.isWaiting()) {
      return `${word} · ${t("settling.connection")}`;
    }
    return this.held === "" ? word : `${word} · ${t("settling.waits", { what: this.held })}`;
  }

  isWaiting() {
    return [...(this.asked?.ids ?? [])].some(isWaiting);
  }

  /** What a stop still waits for, by name, until it is over. */
  async look() {
    const run = this.facts.runs().find((one) => one.state !== "queued");
    try {
      const view = run ? await api.get(api.run(run.runId)) : null;
      this.held = heldLine(view?.held ?? []);
    } catch {
      // The stop itself does not depend on this look; the next one may come through.
    }
    if (this.closed) {
      return;
    }
    this.looking = 0;
    if (this.mode() === "force") {
      this.update();
    } else {
      this.held = "";
    }
  }

  begun() {
    this.readReceiptOf = this.facts.lastEnded();
    this.problem = null;
    this.late = "";
    this.held = "";
  }

  tell(text) {
    this.problem = text;
    this.update();
  }

  close() {
    this.closed = true;
    this.forget();
    clearTimeout(this.looking);
    this.looking = 0;
    setText(this.line, "");
    this.line.classList.remove("stopping", "problem", "leftovers");
  }
}

/** True for an end that a person's stop made: then the receipt is what there is to tell. */
function isByPerson(verdict) {
  return verdict?.kind === "aborted" && (verdict.reason === "user" || verdict.reason === "command");
}
