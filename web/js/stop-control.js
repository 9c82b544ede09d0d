// The stop of the open session: asked once it is gentle, asked again it is forced. What it shows, it shows at once and does not
// wait for the daemon. It knows the routes of stops and the line that says how a stop settles; not where its button is.
//
//   stopControl(key, line, facts) -> {press(), mode(), update(), begun(), tell(text), close()}
//     line     the element of the settling line
//     facts    {runs(): [{runId, state, stopping}] not over, sending(): run ids under way to the daemon,
//              arrival(runId): a promise of whether such a one arrived, lastEnded(): run or null,
//              withdrawn(messages): [{runId, text}] that the stop took out of the queue, changed()}
//     mode()   "send" | "stop" | "force"
//     begun()  a new message was sent: the receipt of the last stop has been read
//     tell(text)   a problem, until the next message or stop

import * as api from "./api.js";
import { setText } from "./dom.js";
import { reasonOf } from "./reasons.js";
import { heldLine, receiptLine } from "./receipt.js";
import { t } from "./texts.js";
import * as toasts from "./toasts.js";

const LOOK_MS = 200;

export function stopControl(key, line, facts) {
  /** null, or how hard it was asked. */
  let asked = null;
  let held = "";
  let looking = 0;
  let receiptOf = null;
  let problem = null;

  function stopping() {
    return asked !== null || facts.runs().some((run) => run.stopping);
  }

  function mode() {
    const active = facts.runs().length > 0 || facts.sending().length > 0;
    return active ? (stopping() ? "force" : "stop") : "send";
  }

  function press() {
    if (mode() === "send") {
      return;
    }
    const force = mode() === "force";
    asked = { force: force || Boolean(asked?.force) };
    problem = null;
    const late = facts.sending();
    update();
    facts.changed();
    ask(force, late);
  }

  async function ask(force, late) {
    const body = { keepBackground: true, ...(force ? { force } : {}) };
    try {
      const answer = await api.stop(`${api.session(key)}/stop`, body);
      facts.withdrawn(answer.withdrawn);
      // A message that was under way may have arrived behind the stop; it was meant, too.
      await Promise.all(late.map((runId) => facts.arrival(runId).then((arrived) => arrived && stopRun(runId, force))));
    } catch (error) {
      if (!(error instanceof api.Problem)) {
        throw error;
      }
      asked = null;
      toasts.error(t("stop.failed", { reason: reasonOf(error) }));
    }
    facts.changed();
    update();
  }

  async function stopRun(runId, force) {
    const answer = await api.stop(`${api.run(runId)}/stop`, { ...(force ? { force } : {}) });
    facts.withdrawn(answer.withdrawn || []);
  }

  /** Brings the line up to date; called whenever a run began, moved on or ended. */
  function update() {
    if (mode() === "send" && asked !== null) {
      asked = null;
    }
    const going = stopping() && mode() !== "send";
    line.classList.toggle("stopping", going);
    line.classList.toggle("problem", problem !== null);
    if (problem !== null) {
      setText(line, problem);
    } else if (going) {
      const word = asked?.force ? t("settling.forcing") : t("settling.stopping");
      setText(line, held === "" ? word : `${word} · ${t("settling.waits", { what: held })}`);
      looking ||= setTimeout(look, LOOK_MS);
    } else {
      // Beside a run at work, the receipt of an earlier one would be read as its own; it stands in the turn that it ended.
      const last = mode() === "send" ? facts.lastEnded() : null;
      const receipt = last?.verdict?.kind === "aborted" && last !== receiptOf ? last.receipt : null;
      setText(line, receipt ? receiptLine(receipt) : "");
      line.classList.toggle("leftovers", Boolean(receipt?.leftovers.length));
    }
  }

  /** What a stop still waits for, by name, until it is over. */
  async function look() {
    const [run] = facts.runs().filter((one) => one.state !== "queued");
    try {
      const view = run ? await api.get(api.run(run.runId)) : null;
      held = view ? heldLine(view.held || []) : "";
    } catch {
      // The stop itself does not depend on this look; the next one may come through.
    }
    looking = 0;
    if (stopping() && mode() !== "send") {
      update();
    } else {
      held = "";
    }
  }

  function begun() {
    receiptOf = facts.lastEnded();
    problem = null;
    held = "";
    update();
  }

  function tell(text) {
    problem = text;
    update();
  }

  function close() {
    clearTimeout(looking);
    setText(line, "");
    line.classList.remove("stopping", "problem", "leftovers");
  }

  return { press, mode, update, begun, tell, close };
}
