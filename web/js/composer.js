// The composer: writing, sending, what waits in the queue, and the one button that sends or stops. It knows the keys and the
// routes of sending; how runs look and how a stop settles is for others.
//
//   composer(key, conversation) -> {update(), putBack(text), stop(), mode(), close()}
//     conversation   of conversation.js
//     update()       called when runs began, moved on or ended
//     stop()         as the button does while something runs; mode() says whether something does

import * as api from "./api.js";
import { byId, h, icon, keyed, listen, setText } from "./dom.js";
import { reasonOf } from "./reasons.js";
import { outcome } from "./run.js";
import { stopControl } from "./stop-control.js";
import * as store from "./store.js";
import { oneLine, t } from "./texts.js";
import * as toasts from "./toasts.js";

const POLICY = "quell.policy";
const MODES = {
  send: { icon: "send", text: "composer.send", title: "composer.send-title", hint: "composer.hint.idle" },
  stop: { icon: "stop", text: "composer.stop", title: "composer.stop-title", hint: "composer.hint.running" },
  force: { icon: "force", text: "composer.force", title: "composer.force-title", hint: "composer.hint.stopping" },
};
/** What was written and not sent, by session, so that looking at another one loses nothing. */
const drafts = new Map();

export function composer(key, conversation) {
  const message = byId("message");
  const button = byId("send");
  const busy = byId("send-busy");
  const policy = byId("busy-policy");
  const hint = byId("composer-hint");
  const queue = byId("queue");
  const sends = new Map();
  /** Messages that were handed to a running run, by their own ids, until it has read them. */
  const steers = new Map();
  let shownMode = null;

  const control = stopControl(key, byId("settling"), {
    runs: activeRuns,
    sending: () => [...sends.keys()],
    arrival: (runId) => sends.get(runId)?.done ?? Promise.resolve(false),
    lastEnded: () => conversation.lastEnded(),
    withdrawn: takeBack,
    changed: update,
  });

  function activeRuns() {
    const shown = new Map(conversation.active().map((run) => [run.runId, run]));
    const rows = store.get("runs").filter((run) => run.sessionKey === key && !shown.has(run.runId) && !conversation.isOver(run.runId));
    return [
      ...[...shown.values()].map((run) => ({ runId: run.runId, state: run.state, stopping: outcome(run) === "stopping" })),
      ...rows.map((row) => ({ runId: row.runId, state: row.state, stopping: row.verdict?.kind === "aborted", text: row.text })),
    ].filter((run) => !sends.has(run.runId));
  }

  function update() {
    const mode = control.mode();
    control.update();
    showQueue();
    if (mode !== shownMode) {
      shownMode = mode;
      const look = MODES[mode];
      button.dataset.mode = mode;
      button.classList.toggle("stop-button", mode !== "send");
      button.classList.toggle("primary", mode === "send");
      button.replaceChildren(icon(look.icon), h("span", null, t(look.text)));
      button.title = t(look.title);
      setText(hint, t(look.hint));
    }
    busy.classList.toggle("offered", mode !== "send" && message.value.trim() !== "");
    busy.disabled = mode === "send" || message.value.trim() === "";
  }

  function showQueue() {
    const waiting = activeRuns().filter((run) => run.state === "queued" && run.text !== undefined);
    const pending = [...sends].filter(([, send]) => send.waits).map(([runId, send]) => ({ runId, text: send.text, sending: true }));
    keyed(queue, [...waiting, ...pending], (run) => run.runId, queued, (element, run) => {
      const word = run.sending ? "composer.sending" : steers.has(run.runId) ? "composer.steered" : "composer.queued";
      setText(element.querySelector(".queue-state"), t(word));
      element.querySelector(".withdraw").disabled = Boolean(run.sending);
    });
  }

  /** A message that was handed over waits in the list of runs until the running run has read it; then it is a part of that turn. */
  function followSteers() {
    const rows = new Map(store.get("runs").map((row) => [row.runId, row]));
    for (const [id, steer] of steers) {
      const row = rows.get(id);
      if (row?.state === "queued") {
        steer.listed = true;
      } else if (row) {
        steers.delete(id);
      } else if (steer.listed) {
        steers.delete(id);
        conversation.steered(steer.into, steer.text);
      }
    }
  }

  function queued(run) {
    return h("li", { data: { run: run.runId } }, icon("clock"), h("span", { class: "queue-state" }),
      h("span", { class: "queue-text", dir: "auto" }, oneLine(run.text, 200)),
      h("button", { class: "withdraw quiet-button", type: "button", title: t("composer.withdraw-title"),
        on: { click: (event) => withdraw(run, event.currentTarget) } }, icon("close"), t("composer.withdraw")));
  }

  async function withdraw(run, pressed) {
    pressed.disabled = true;
    try {
      const answer = await api.stop(`${api.run(run.runId)}/stop`, { sessionKey: key });
      if (answer.aborted) {
        takeBack([run]);
      }
    } catch (problem) {
      pressed.disabled = false;
      toasts.error(t("stop.failed", { reason: reasonOf(problem) }));
    }
    store.refresh("runs");
  }

  /** Messages that a stop took out of the queue are the writer's again. */
  function takeBack(messages) {
    const gone = new Set(messages.map((one) => one.runId));
    gone.forEach((runId) => steers.delete(runId));
    if (gone.size > 0) {
      store.put("runs", store.get("runs").filter((run) => !gone.has(run.runId)));
    }
    messages.toReversed().forEach((one) => putBack(one.text));
  }

  function putBack(text) {
    message.value = message.value.trim() === "" ? text : `${text}\n\n${message.value}`;
    grow();
    update();
  }

  async function send() {
    const text = message.value.trim();
    if (text === "") {
      message.focus();
      return;
    }
    const runId = crypto.randomUUID();
    const waits = control.mode() !== "send";
    let arrived;
    sends.set(runId, { text, waits, done: new Promise((resolve) => { arrived = resolve; }) });
    message.value = "";
    drafts.delete(key);
    grow();
    control.begun();
    if (!waits) {
      conversation.sending(runId, text);
    }
    update();
    arrived(await deliver(runId, text, waits));
    update();
  }

  /** True when the daemon has the message. */
  async function deliver(runId, text, waits) {
    const body = { text, idempotencyKey: runId, onBusy: policy.value };
    let answer;
    try {
      answer = await api.post(`${api.session(key)}/runs`, body);
    } catch (problem) {
      if (!(problem instanceof api.Problem)) {
        throw problem;
      }
      sends.delete(runId);
      conversation.refused(runId);
      putBack(text);
      control.tell(refusal(problem));
      return false;
    }
    sends.delete(runId);
    settle(runId, text, answer, waits);
    return true;
  }

  function settle(runId, text, answer, waits) {
    if (answer.runIds) {
      // A stop word is no message: it stopped what there was.
      conversation.refused(runId);
      takeBack(answer.withdrawn || []);
      if (!answer.aborted) {
        toasts.info(t("composer.nothing-ran"));
      }
    } else if (answer.state === "steered") {
      conversation.refused(runId);
      steers.set(answer.messageId ?? runId, { text, into: answer.runId, listed: false });
    } else if (answer.state === "queued" && waits) {
      store.put("runs", [...store.get("runs").filter((run) => run.runId !== answer.runId), queuedRow(answer.runId, text)]);
    } else {
      conversation.live(answer.runId, text);
    }
    store.refresh("runs", "sessions");
  }

  /** The row that the list of runs is about to have, so that the message does not blink out of sight. */
  function queuedRow(runId, text) {
    return {
      runId, text, sessionKey: key, state: "queued", agent: "", principal: store.get("me").principal, acceptedAt: new Date().toISOString(),
      steps: 0, processes: 0, seq: 0, usage: { inputTokens: 0, outputTokens: 0, estimated: false },
    };
  }

  function grow() {
    message.style.setProperty("height", "auto");
    message.style.setProperty("height", `${message.scrollHeight + 2}px`);
  }

  function onKey(event) {
    // While letters are being composed, Enter and Esc belong to the keyboard.
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
      event.preventDefault();
      send();
    }
  }

  function press() {
    if (control.mode() === "send") {
      send();
    } else {
      control.press();
    }
  }

  message.value = drafts.get(key) || "";
  policy.value = remembered() || "queue";
  const forget = [
    listen(message, "input", () => { drafts.set(key, message.value); grow(); update(); }),
    listen(message, "keydown", onKey),
    listen(button, "click", press),
    listen(busy, "click", send),
    listen(byId("composer"), "submit", (event) => event.preventDefault()),
    listen(policy, "change", () => remember(policy.value)),
    store.subscribe("runs", () => {
      followSteers();
      update();
    }),
  ];
  grow();

  function close() {
    drafts.set(key, message.value);
    forget.forEach((leave) => leave());
    control.close();
    queue.replaceChildren();
  }

  return { update, putBack, stop: () => control.press(), mode: () => control.mode(), close };
}

const REFUSED = new Set(["network", "held", "queue_full"]);

/** What happened to the message and what to do; the text itself is back in the composer. */
function refusal(problem) {
  return REFUSED.has(problem.code) ? t(`refused.${problem.code}`) : t("refused.other", { reason: reasonOf(problem) });
}

function remembered() {
  try {
    return localStorage.getItem(POLICY);
  } catch {
    return null;
  }
}

function remember(value) {
  try {
    localStorage.setItem(POLICY, value);
  } catch {
    // Not remembered, but chosen for now.
  }
}
