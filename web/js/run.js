// What a run looks like, from its events. Pure: it knows neither elements nor texts nor the daemon.
//
//   newRun(runId)          a run of which nothing is known
//   apply(run, event)      takes one RunEvent in; the run is changed and given back. Events come in the order
//                          of their `seq`; one that was seen before changes nothing
//   finish(run, {verdict, receipt, at})   the run is over, as its record says
//   fromHistory(messages)  the run that the messages of one turn of a session's history tell about
//   adopt(run, told)       corrects a run that was listened to by what its history tells (`told`, from
//                          fromHistory)
//   outcome(run)           "queued" | "running" | "stopping" | "ending" | "completed" | "failed" | "stopped"
//                        | "unknown"
//
// A run:  {runId, seq, agent, state, startedAt, endedAt, steps, calls: Map, verdict, receipt, compacted, missed,
//          retry: null | {attempt, attempts, delayMs, reason}}; from the history also asked, askedBy, told
// A step: {number, text, thinking, calls: [call], partial: null | "cut" | "not-seen" | "kept", steered: [text]}
// A call: {id, tool, arguments, output, dropped, result, begun, end, ms, approval: id | null, gone}

/** Characters of live output that are kept per call; the end of it is what one wants to see. */
export const MOST_OUTPUT = 65_536;

export function newRun(runId) {
  return {
    runId,
    seq: 0,
    agent: null,
    state: "queued",
    startedAt: null,
    endedAt: null,
    steps: [],
    calls: new Map(),
    verdict: null,
    receipt: null,
    compacted: 0,
    missed: false,
    retry: null,
  };
}

/** What stands for the verdict of a run that is over and of which nobody knows how it ended. */
export const UNKNOWN = { kind: "unknown" };

export function outcome(run) {
  if (run.state === "ended" || run.state === "ending") {
    const kind = run.verdict?.kind;
    if (kind === "aborted") {
      return run.state === "ended" ? "stopped" : "stopping";
    }
    return run.state === "ended" ? kind || "completed" : "ending";
  }
  return run.state;
}

export function apply(run, event) {
  // The end counts whatever its number: after a crash, the daemon numbers it by what it still knows.
  const isEnd = event.type === "run.ended";
  const news = run.state === "ended" ? isEnd && event.seq > run.seq : isEnd || event.seq > run.seq;
  if (!news) {
    return run;
  }
  const gap = event.seq > run.seq + 1;
  run.seq = Math.max(run.seq, event.seq);
  const take = TAKERS[event.type];
  if (take) {
    // Whatever follows a failed attempt says that the next one got through, or that the run ends.
    run.retry = null;
    take(run, event, gap);
  }
  return run;
}

const TAKERS = {
  "run.queued": (run, event) => {
    run.agent = event.agent;
  },
  "run.started": (run, event) => {
    run.agent = event.agent;
    run.state = "running";
    run.startedAt = event.at;
  },
  "step.started": (run, event) => {
    run.state = "running";
    step(run, event.step);
  },
  "text.delta": (run, event) => {
    current(run).text += event.text;
  },
  "thinking.delta": (run, event) => {
    current(run).thinking += event.text;
  },
  "tool.started": (run, event) => {
    const call = callOf(run, event.callId);
    call.tool = event.tool;
    call.arguments = event.arguments;
    call.approval = null;
    call.begun = true;
  },
  "tool.output": (run, event) => print(callOf(run, event.callId), event.text),
  "tool.ended": (run, event) => {
    const call = callOf(run, event.callId);
    call.end = event.end;
    call.result = event.output;
    // The result has it all; two copies in each call of a long session are one too many.
    call.output = "";
    call.ms = event.ms;
    call.approval = null;
  },
  "approval.requested": (run, event) => {
    const call = callOf(run, event.callId);
    call.tool = event.tool;
    call.arguments = event.arguments;
    call.approval = event.id;
  },
  "approval.resolved": (run, event) => {
    for (const call of run.calls.values()) {
      if (call.approval === event.id) {
        call.approval = null;
      }
    }
  },
  "run.snapshot": snapshot,
  "model.retry": (run, { attempt, attempts, delayMs, reason }) => {
    run.retry = { attempt, attempts, delayMs, reason };
  },
  "context.compacted": (run, event) => {
    run.compacted += event.turns;
  },
  "run.ending": (run, event) => {
    run.state = "ending";
    run.verdict = event.verdict;
    if (event.verdict.kind !== "completed") {
      cut(run);
    }
  },
  "run.ended": (run, event) => {
    finish(run, event);
    if (event.verdict.kind === "completed" && event.text && run.steps.every((one) => one.text === "")) {
      // The end was all that came: whoever follows an ended run hears no deltas any more.
      current(run).text = event.text;
    }
  },
};

export function finish(run, { verdict, receipt, at }) {
  run.state = "ended";
  run.verdict = verdict;
  run.receipt = receipt;
  run.endedAt = at ?? run.endedAt;
  if (verdict.kind !== "completed") {
    cut(run);
  }
  for (const call of run.calls.values()) {
    close(call, verdict);
  }
}

/** Nothing of a run that is over goes on or waits. The words are those of the sealed turn. */
function close(call, verdict) {
  call.approval = null;
  call.gone = true;
  if (call.end === null && (verdict.kind === "aborted" || verdict.kind === "failed")) {
    call.end = call.begun ? "stopped" : "not_started";
  }
}

/**
 * What had streamed when the end came is not an answer: no call closed the message. The history knows whether
 * the model sees it.
 */
function cut(run) {
  const last = lastWords(run);
  if (last && last.text !== "" && last.calls.length === 0 && last.partial === null) {
    last.partial = "cut";
  }
}

/** The last step of which anything came. */
function lastWords(run) {
  return run.steps.findLast((one) => one.text !== "" || one.calls.length > 0);
}

function step(run, number) {
  let found = run.steps.find((one) => one.number === number);
  if (!found) {
    found = { number, text: "", thinking: "", calls: [], partial: null, steered: [] };
    run.steps.push(found);
  }
  return found;
}

function current(run) {
  return run.steps.length === 0 ? step(run, 1) : run.steps[run.steps.length - 1];
}

function callOf(run, id) {
  let call = run.calls.get(id);
  if (!call) {
    call = {
      id,
      tool: "",
      arguments: null,
      output: "",
      dropped: 0,
      result: null,
      begun: false,
      end: null,
      ms: null,
      approval: null,
    };
    run.calls.set(id, call);
    current(run).calls.push(call);
  }
  return call;
}

function print(call, text) {
  // A return at the beginning takes back the line that is open: progress.
  const all = text.startsWith("\r")
    ? call.output.slice(0, call.output.lastIndexOf("\n") + 1) + text.slice(1)
    : call.output + text;
  const over = all.length - MOST_OUTPUT;
  // Cut with room to spare, so that not every single line costs a copy of the whole.
  if (over > MOST_OUTPUT / 4) {
    call.output = all.slice(over);
    call.dropped += over;
  } else {
    call.output = all;
  }
}

/**
 * Stands in for what was missed: the text of the step at work replaces ours, and calls that we did not see
 * get a line.
 */
function snapshot(run, event, gap) {
  const known = current(run);
  run.state = "running";
  // Steps that began and ended in between are not in a snapshot; the history has them when the run is over.
  run.missed = run.missed || gap;
  // Text does not go on behind a call, and only grows: anything else is the text of a later step.
  const later =
    known.calls.length > 0
      ? event.text !== known.text && event.text !== ""
      : !event.text.startsWith(known.text);
  for (const row of event.calls) {
    const call = callOf(run, row.callId);
    call.tool = row.tool;
    call.begun ||= call.approval === null;
    call.end = row.end ?? call.end;
    if (row.output !== undefined && call.result === null) {
      call.result = row.output;
      call.output = "";
      call.ms = row.ms ?? call.ms;
    }
  }
  // Between two numbers, so that no real step is taken for this one.
  const now = later ? step(run, known.number + 0.5) : known;
  now.text = event.text;
  now.thinking = event.thinking;
}

/**
 * The history knows better than a listener what a run left: what the model sees of it, and what a slow line
 * lost.
 */
export function adopt(run, told) {
  run.told = told.told;
  if (run.verdict?.kind === UNKNOWN.kind && told.verdict) {
    run.verdict = told.verdict;
  }
  // What we heard and nobody wrote down, because the daemon died, is all there is of it.
  if (run.missed && said(told) >= said(run)) {
    run.steps = told.steps;
    run.calls = told.calls;
    run.missed = false;
    return;
  }
  for (const call of run.calls.values()) {
    call.end = told.calls.get(call.id)?.end ?? call.end;
  }
  run.steps.forEach((step, index) => {
    step.steered = step.steered.length > 0 ? step.steered : (told.steps[index]?.steered ?? []);
  });
  const last = lastWords(run);
  const lastTold = lastWords(told);
  if (last?.partial && lastTold?.text.trim() === last.text.trim()) {
    last.partial = lastTold.partial;
  }
}

function said(run) {
  return run.steps.reduce((sum, one) => sum + one.text.length, 0);
}

export function fromHistory(messages) {
  const run = newRun(messages[0].runId);
  run.state = "ended";
  run.told = null;
  for (const message of messages) {
    take(run, message);
    run.verdict = message.verdict || run.verdict;
    run.endedAt = message.at;
  }
  return run;
}

function take(run, message) {
  if (message.role === "user") {
    // The first message began the run; later ones were handed to it while it ran.
    if (run.asked === undefined) {
      run.asked = message.text;
      run.askedBy = message.principal;
      run.agent = message.agent ?? null;
    } else {
      current(run).steered.push(message.text);
    }
  } else if (message.role === "assistant") {
    const number = run.steps.length + 1;
    const one = step(run, number);
    one.text = message.text;
    one.thinking = message.thinking ?? "";
    one.partial = message.kept ? "kept" : message.partial ? "not-seen" : null;
    for (const made of message.calls || []) {
      const call = callOf(run, made.id);
      call.tool = made.tool;
      call.arguments = made.arguments;
    }
  } else if (message.role === "tool") {
    const call = callOf(run, message.callId);
    call.result = message.text;
    call.end = message.end ?? call.end;
    call.ms = message.ms ?? call.ms;
    call.gone = true;
  } else if (message.role === "note") {
    run.told = message.text;
  }
}
