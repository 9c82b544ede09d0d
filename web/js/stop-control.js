// The stop of the open session: the first press is gentle, the second forced. It shows its effect at once, before the
// daemon answers. While the connection is lost, stops wait in pending-stops.js.
//
//   new StopControl(key, line, host) -> {press(), mode(), update(), onMessageSent(), close()}
//     line     the element of the status line
//     host     {runs(): [{runId, state, stopping}] that have not ended, sending(): ids of messages without an answer,
//              arrival(runId): a promise of whether such a message arrived, lastEndedRun(), principal(),
//              onWithdrawn(messages): [{runId, text}] removed from the queue, onChange(), onFailure(text, problem):
//              a stop failed, onNotice(text): the result of a stop that the line has no place for}
//     mode()   "send" | "stop" | "force"
//     onMessageSent()     hides the last receipt
//     close()             a pending stop continues, and a failure is still reported

import * as api from "./api.js";
import { setText } from "./dom.js";
import { stopErrorText } from "./error-texts.js";
import { isWaitingForConnection, sendStop, UNKNOWN_RUN } from "./pending-stops.js";
import { heldLine, receiptLine } from "./receipt.js";
import { activeStopRequest, buttonMode, isNothingStopped, newStopRequest } from "./stop-request.js";
import { oneLine, t } from "./texts.js";
import * as websocket from "./websocket.js";

const POLL_MS = 200;

export class StopControl {
  constructor(key, line, host) {
    Object.assign(this, { key, line, host });
    /** null, or the request of stop-request.js. */
    this.request = null;
    this.heldText = "";
    this.pollTimer = 0;
    this.dismissedRun = null;
    this.lateText = "";
    this.closed = false;
    this.unsubscribe = websocket.onState((state) => this.onConnectionChanged(state));
    /** Aborts the HTTP request of the session's stop. */
    this.controller = null;
  }

  mode() {
    return buttonMode(this.request, this.host.runs(), this.host.sending());
  }

  press() {
    const mode = this.mode();
    if (mode === "send") {
      return;
    }
    const late = this.host.sending();
    this.request = newStopRequest(mode === "force" ? "forced" : "gentle", this.host.runs(), late);
    this.lateText = "";
    this.host.onChange();
    if (websocket.state() === "lost") {
      this.sendForRuns(this.request);
    } else {
      this.requestStop(this.request, late);
    }
    this.host.onChange();
  }

  /**
   * A session's stop covers the runs that are active when it arrives. After a lost connection it might hit later
   * runs, so it is aborted, and the runs are stopped by their ids.
   */
  onConnectionChanged(state) {
    if (state === "lost") {
      this.controller?.abort();
    }
    this.host.onChange();
  }

  sendForRuns(request) {
    const force = request.push === "forced";
    for (const runId of request.ids) {
      sendStop(
        runId,
        { force },
        {
          onAnswer: (answer) => this.onStopAnswered(answer),
          onRefusal: (problem) => this.onStopRefused(request, problem),
        },
      );
    }
  }

  onStopAnswered({ state, aborted, verdict, withdrawn }) {
    this.host.onWithdrawn(withdrawn ?? []);
    if (state === "ended" && !aborted && !isByPerson(verdict)) {
      this.showTooLate();
    }
    this.host.onChange();
  }

  /** As a toast when the line is about another run or session by now. */
  showTooLate() {
    const text = t("stop.too-late");
    if (this.closed || this.host.runs().some((run) => !this.request?.ids.has(run.runId))) {
      this.host.onNotice(text);
    } else {
      this.lateText = text;
    }
  }

  /** The daemon also keeps the stop of an unknown run, for a message that arrives later. */
  onStopRefused(request, problem) {
    if (!UNKNOWN_RUN.has(problem.code)) {
      this.clearRequest(request);
      this.host.onFailure(stopErrorText("stop.failed", problem), problem);
    }
    this.host.onChange();
  }

  async requestStop(request, late) {
    const force = request.push === "forced" ? { force: true } : {};
    // Messages without an answer are stopped too: once now, and again after they have arrived.
    late.forEach((runId) => this.stopUnknownRun(runId, force));
    try {
      const answer = await this.stopSession({ keepBackground: true, ...force });
      this.host.onWithdrawn(answer.withdrawn);
      const stoppedLate = await Promise.all(late.map((runId) => this.stopArrivedRun(runId, force)));
      if (isNothingStopped(answer) && !stoppedLate.includes(true)) {
        await this.onNothingStopped(request);
      }
    } catch (error) {
      if (!(error instanceof api.Problem)) {
        throw error;
      }
      if (error.code === "network") {
        this.sendForRuns(request);
      } else {
        this.clearRequest(request);
        this.host.onFailure(stopErrorText("stop.failed", error), error);
      }
    }
    this.host.onChange();
  }

  async stopSession(body) {
    const controller = new AbortController();
    this.controller = controller;
    try {
      return await api.stop(`${api.sessionPath(this.key)}/stop`, body, { signal: controller.signal });
    } finally {
      if (this.controller === controller) {
        this.controller = null;
      }
    }
  }

  /** The daemon keeps this stop and answers 404. Over the WebSocket that logs no error on the console. */
  async stopUnknownRun(runId, force) {
    try {
      const answer =
        websocket.state() === "live"
          ? await websocket.request("runs.stop", { runId, ...force })
          : await api.stop(`${api.runPath(runId)}/stop`, force);
      this.host.onWithdrawn(answer.withdrawn ?? []);
    } catch (error) {
      if (!(error instanceof api.Problem)) {
        throw error;
      }
    }
  }

  async stopArrivedRun(runId, force) {
    const arrived = await this.host.arrival(runId);
    if (arrived) {
      const answer = await api.stop(`${api.runPath(runId)}/stop`, force);
      this.host.onWithdrawn(answer.withdrawn ?? []);
    }
    return arrived;
  }

  /** The run belongs to somebody else, or had already ended. */
  async onNothingStopped(request) {
    this.clearRequest(request);
    this.host.onChange();
    const remaining = this.host.runs().find((run) => request.ids.has(run.runId));
    const view = remaining && (await api.get(api.runPath(remaining.runId)));
    if (view && view.state !== "ended" && view.principal !== this.host.principal()) {
      this.host.onFailure(t("stop.not-yours", { principal: oneLine(view.principal, 60) }));
    }
  }

  clearRequest(request) {
    if (this.request === request) {
      this.request = null;
    }
  }

  /** Call it when runs began, changed or ended. */
  update() {
    if (this.closed) {
      return;
    }
    this.request = activeStopRequest(this.request, this.host.runs(), this.host.sending());
    const mode = this.mode();
    // Not while another run is active: the receipt would seem to be that run's.
    const last = mode === "send" ? this.host.lastEndedRun() : null;
    const receipt = last?.verdict?.kind === "aborted" && last !== this.dismissedRun ? last.receipt : null;
    const stopping = mode === "force";
    this.line.classList.toggle("stopping", stopping);
    this.line.classList.toggle("leftovers", Boolean(receipt?.leftovers.length));
    const end = this.lateText || (receipt ? receiptLine(receipt) : "");
    setText(this.line, stopping ? this.settlingText() : mode === "send" ? end : "");
    if (stopping && !this.isWaiting()) {
      this.pollTimer ||= setTimeout(() => this.pollHeld(), POLL_MS);
    }
  }

  settlingText() {
    const text = t(this.request?.push === "forced" ? "settling.forcing" : "settling.stopping");
    if (this.isWaiting()) {
      return `${text} · ${t("settling.connection")}`;
    }
    return this.heldText === "" ? text : `${text} · ${t("settling.waits", { what: this.heldText })}`;
  }

  isWaiting() {
    return [...(this.request?.ids ?? [])].some(isWaitingForConnection);
  }

  async pollHeld() {
    const run = this.host.runs().find((one) => one.state !== "queued");
    try {
      const view = run ? await api.get(api.runPath(run.runId)) : null;
      this.heldText = heldLine(view?.held ?? []);
    } catch {
      // The next poll may succeed.
    }
    if (this.closed) {
      return;
    }
    this.pollTimer = 0;
    if (this.mode() === "force") {
      this.update();
    } else {
      this.heldText = "";
    }
  }

  onMessageSent() {
    this.dismissedRun = this.host.lastEndedRun();
    this.lateText = "";
    this.heldText = "";
  }

  close() {
    this.closed = true;
    this.unsubscribe();
    clearTimeout(this.pollTimer);
    this.pollTimer = 0;
    setText(this.line, "");
    this.line.classList.remove("stopping", "leftovers");
  }
}

function isByPerson(verdict) {
  return verdict?.kind === "aborted" && (verdict.reason === "user" || verdict.reason === "command");
}
