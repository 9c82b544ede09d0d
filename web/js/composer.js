// The composer: writing, sending, and the one button that sends or stops. It knows the keys and the routes of
// sending; how runs look, what waits in the queue and how a stop settles is for others.
//
//   new Composer(key, conversation, sent)
//                  -> {update(), stepBegins(runId), putBack(text), stop(), mode(), close()}
//     conversation   of conversation.js; sent() is called when a message is sent
//     update()       called when runs began, moved on or ended; stepBegins(runId) when one is about to go on
//                    to its next step
//     stop()         as the button does while something runs; mode() says whether something does
//     close()        its elements are the next one's; answers that are still to come touch them no more

import * as api from "./api.js";
import * as drafts from "./drafts.js";
import { byId, h, icon, isComposing, isSecondHalf, listen, setText } from "./dom.js";
import { newId } from "./new-id.js";
import { Queue } from "./queue.js";
import { reasonOf } from "./reasons.js";
import { recall, remember } from "./remembered.js";
import { outcome } from "./run.js";
import { StopControl } from "./stop-control.js";
import * as store from "./store.js";
import { oneLine, t } from "./texts.js";
import * as toasts from "./toasts.js";

const POLICY = "quell.policy";
const MODES = {
  send: { icon: "send", text: "composer.send", title: "composer.send-title", hint: "composer.hint.idle" },
  stop: { icon: "stop", text: "composer.stop", title: "composer.stop-title", hint: "composer.hint.running" },
  force: {
    icon: "force",
    text: "composer.force",
    title: "composer.force-title",
    hint: "composer.hint.stopping",
  },
};
const REFUSED = new Set(["network", "held", "queue_full"]);
/** The composer that the elements belong to. */
let present = null;

export class Composer {
  constructor(key, conversation, sent) {
    Object.assign(this, { key, conversation, sent });
    this.writer = store.get("me")?.principal;
    this.message = byId("message");
    this.button = byId("send");
    this.busy = byId("send-busy");
    this.policy = byId("busy-policy");
    /** Messages that are under way to the daemon: id -> {text, waits, done, stopped}. */
    this.sends = new Map();
    /** The message that the daemon did not answer: {runId, text, policy}; it may have it all the same. */
    this.unanswered = null;
    /** Messages whose texts are back in the field: a stop that finds one late brings its text again. */
    this.returned = new Set();
    this.shownMode = null;
    this.queue = new Queue(byId("queue"), key, {
      takeBack: (messages) => this.takeBack(messages),
      arrived: (runId, text) => conversation.steered(runId, text),
    });
    this.control = new StopControl(key, byId("settling"), {
      runs: () => this.activeRuns(),
      sending: () => [...this.sends.keys()],
      arrival: (runId) => this.sends.get(runId)?.done ?? Promise.resolve(false),
      lastEnded: () => conversation.lastEnded(),
      withdrawn: (messages) => this.takeBack(messages),
      changed: () => this.update(),
      principal: () => store.get("me")?.principal,
      failed: (text, problem) => toasts.error(text, problem),
      noted: (text) => toasts.info(text),
    });
    this.message.value = drafts.read(this.writer, key);
    this.policy.value = recall(POLICY) || "queue";
    this.forget = [
      listen(this.message, "input", () => this.typed()),
      listen(this.message, "keydown", (event) => this.onKey(event)),
      listen(this.button, "click", (event) => this.pressed(event)),
      listen(this.busy, "click", () => this.send()),
      listen(byId("composer"), "submit", (event) => event.preventDefault()),
      listen(this.policy, "change", () => remember(POLICY, this.policy.value)),
      store.subscribe("runs", () => this.update()),
    ];
    present = this;
    this.grow();
  }

  close() {
    present = null;
    this.keepDraft();
    this.forget.forEach((leave) => leave());
    this.control.close();
    this.queue.close();
  }

  mode() {
    return this.control.mode();
  }

  stepBegins(runId) {
    this.queue.stepBegins(runId);
  }

  /** Send turns into Stop, and Stop into Force, under the pointer. */
  pressed(event) {
    if (isSecondHalf(event)) {
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

  /** Runs of this session that are not over, whoever began them: those that are shown know it first. */
  activeRuns() {
    const shown = this.conversation.active();
    const ids = new Set(shown.map((run) => run.runId));
    const rows = store.get("runs").filter((row) => row.sessionKey === this.key && !ids.has(row.runId));
    return [
      ...shown.map((run) => ({ runId: run.runId, state: run.state, stopping: outcome(run) === "stopping" })),
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
    if (present !== this) {
      return;
    }
    this.control.update();
    const runs = this.activeRuns();
    this.noticeArrival(runs);
    const pending = [...this.sends]
      .filter(([, send]) => send.waits)
      .map(([runId, { text }]) => ({ runId, text, sending: true }));
    this.queue.show([...runs.filter((run) => run.state === "queued" && run.text !== undefined), ...pending]);
    const mode = this.mode();
    if (mode !== this.shownMode) {
      this.shownMode = mode;
      this.showMode(mode);
    }
    const offered = mode !== "send" && this.message.value.trim() !== "";
    this.busy.classList.toggle("offered", offered);
    this.busy.disabled = !offered;
  }

  /** A message that seemed lost runs after all: it need not be sent again. */
  noticeArrival(runs) {
    const lost = this.unanswered;
    if (lost && runs.some((run) => run.runId === lost.runId)) {
      this.unanswered = null;
      if (this.message.value.trim() === lost.text) {
        this.message.value = "";
        this.keepDraft();
        this.grow();
      }
    }
  }

  keepDraft() {
    drafts.write(this.writer, this.key, this.message.value);
  }

  showMode(mode) {
    const look = MODES[mode];
    this.button.dataset.mode = mode;
    this.button.classList.toggle("stop-button", mode !== "send");
    this.button.classList.toggle("primary", mode === "send");
    this.button.replaceChildren(icon(look.icon), h("span", null, t(look.text)));
    this.button.title = t(look.title);
    setText(byId("composer-hint"), t(look.hint));
  }

  /** Messages that a stop took out of the queue are the writer's again. */
  takeBack(messages) {
    const gone = new Set(messages.map((one) => one.runId));
    this.queue.forget(gone);
    if (gone.size > 0) {
      store.put(
        "runs",
        store.get("runs").filter((run) => !gone.has(run.runId)),
      );
    }
    const fresh = messages.filter((one) => !this.returned.has(one.runId));
    fresh.forEach((one) => this.returned.add(one.runId));
    fresh.reverse().forEach((one) => this.putBack(one.text));
  }

  /** Into the field where it was written, or into the draft of that session when another one is open. */
  putBack(text) {
    const here = this.heir();
    const before = here ? here.message.value : drafts.read(this.writer, this.key);
    const joined = before.trim() === "" ? text : `${text}\n\n${before}`;
    drafts.write(this.writer, this.key, joined);
    if (!here) {
      return;
    }
    here.message.value = joined;
    here.grow();
    here.update();
  }

  /** The open composer of the same writer and session: this one, or one that was opened anew since. */
  heir() {
    return present?.writer === this.writer && present?.key === this.key ? present : null;
  }

  async send() {
    const text = this.message.value.trim();
    if (text === "") {
      this.message.focus();
      return;
    }
    const again = this.unanswered?.text === text && this.unanswered.policy === this.policy.value;
    // The same id for the same message: should the daemon have it already, it is not sent twice.
    const runId = again ? this.unanswered.runId : newId();
    const waits = this.mode() !== "send";
    let arrived;
    this.sends.set(runId, {
      text,
      waits,
      done: new Promise((resolve) => {
        arrived = resolve;
      }),
    });
    this.message.value = "";
    this.keepDraft();
    this.grow();
    this.control.begun();
    this.sent();
    if (!waits) {
      this.conversation.sending(runId, text);
    }
    this.update();
    arrived(await this.deliver(runId, text, waits));
    this.update();
  }

  /** True when the daemon has the message. */
  async deliver(runId, text, waits) {
    const body = { text, idempotencyKey: runId, onBusy: this.policy.value };
    try {
      const answer = await api.post(`${api.session(this.key)}/runs`, body);
      this.sends.delete(runId);
      this.settle(runId, text, answer, waits);
      return true;
    } catch (problem) {
      if (!(problem instanceof api.Problem)) {
        throw problem;
      }
      const { stopped } = this.sends.get(runId);
      this.sends.delete(runId);
      this.conversation.refused(runId);
      this.refused(problem, { runId, text, policy: body.onBusy, stopped });
      return false;
    }
  }

  refused(problem, message) {
    const here = this.heir();
    this.returned.add(message.runId);
    this.putBack(message.text);
    if (here) {
      // One that was stopped on its way is over wherever it is; under the same id it would end at once again.
      here.unanswered = problem.code === "network" && !message.stopped ? message : null;
      here.control.tell(refusal(problem));
    } else {
      toasts.error(`${oneLine(this.key, 40)}: ${refusal(problem)}`);
    }
  }

  settle(runId, text, answer, waits) {
    if (answer.runIds) {
      // A stop word is no message: it stopped what there was.
      this.conversation.refused(runId);
      this.takeBack(answer.withdrawn || []);
      if (!answer.aborted) {
        toasts.info(t("composer.nothing-ran"));
      }
    } else if (answer.state === "steered") {
      this.conversation.refused(runId);
      this.queue.handOver(answer.messageId ?? runId, text, answer.runId);
    } else if (answer.state === "queued" && waits) {
      const others = store.get("runs").filter((run) => run.runId !== answer.runId);
      store.put("runs", [...others, queuedRow(answer.runId, this.key, text)]);
    } else {
      this.conversation.live(answer.runId, text);
    }
    store.refresh("runs", "sessions");
  }

  typed() {
    this.keepDraft();
    this.grow();
    this.update();
  }

  grow() {
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

/** The row that the list of runs is about to have, so that the message does not blink out of sight. */
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

/** What happened to the message and what to do; the text itself is back in the composer. */
function refusal(problem) {
  return REFUSED.has(problem.code)
    ? t(`refused.${problem.code}`)
    : t("refused.other", { reason: reasonOf(problem) });
}
