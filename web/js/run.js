// The state of a run as the page shows it: a reducer over run events. Pure.
//
//   newRun(runId)          a run without any event
//   applyEvent(run, event) changes the run by one RunEvent and returns it. Events come in the order of `seq`;
//                          one that was applied before changes nothing
//   finishRun(run, {verdict, receipt, at})   ends the run as its record says
//   fromHistory(messages)  the run of one turn of a session's history
//   mergeHistory(run, history)   corrects a run that was followed live by the run of `fromHistory`
//   outcome(run)           "queued" | "running" | "stopping" | "ending" | "completed" | "failed" | "stopped"
//                          | "unknown"
//
// A run:  {runId, seq, agent, state, startedAt, endedAt, steps, calls: Map, verdict, receipt, compacted, fallbacks, searches, incomplete,
//         retry: null | {attempt, attempts, delayMs, reason}}; from the history also userText, principal, modelNote
// A step: {number, text, thinking, calls: [call], partial: null | "cut" | "not-seen" | "kept", steered: [text]}
// A call: {id, tool, arguments, output, dropped, result, diff, waiting, started, end, ms,
//         approval: id | null, over}

/** Characters of live output that are kept for each call, from its end. */
export const MAX_OUTPUT = 65_536;

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
    fallbacks: [],
    searches: [],
    incomplete: false,
    retry: null,
  };
}

/** The verdict of a run that has ended in an unknown way. */
export const UNKNOWN_VERDICT = { kind: "unknown" };

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

export function applyEvent(run, event) {
  // After a crash the end may have a lower number than events that were seen before.
  const isEnd = event.type === "run.ended";
  const isNew = run.state === "ended" ? isEnd && event.seq > run.seq : isEnd || event.seq > run.seq;
  if (!isNew) {
    return run;
  }
  const gap = event.seq > run.seq + 1;
  run.seq = Math.max(run.seq, event.seq);
  const reducer = REDUCERS[event.type];
  if (reducer) {
    // Any event after a failed attempt ends the retry.
    run.retry = null;
    reducer(run, event, gap);
  }
  return run;
}

const REDUCERS = {
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
    findOrAddStep(run, event.step);
  },
  "text.delta": (run, event) => {
    currentStep(run).text += event.text;
  },
  "thinking.delta": (run, event) => {
    currentStep(run).thinking += event.text;
  },
  "tool.waiting": (run, event) => {
    const call = findOrAddCall(run, event.callId);
    call.tool = event.tool;
    call.arguments = event.arguments;
    call.waiting = !call.started;
  },
  "tool.started": (run, event) => {
    const call = findOrAddCall(run, event.callId);
    call.waiting = false;
    call.tool = event.tool;
    call.arguments = event.arguments;
    call.approval = null;
    call.started = true;
  },
  "tool.output": (run, event) => appendOutput(findOrAddCall(run, event.callId), event.text),
  "tool.ended": (run, event) => {
    const call = findOrAddCall(run, event.callId);
    call.end = event.end;
    call.result = event.output;
    // The result contains the output: keep one copy.
    call.output = "";
    call.diff = event.diff ?? null;
    call.ms = event.ms;
    call.approval = null;
    call.waiting = false;
  },
  "approval.requested": (run, event) => {
    const call = findOrAddCall(run, event.callId);
    call.tool = event.tool;
    call.arguments = event.arguments;
    call.approval = event.id;
    call.waiting = false;
  },
  "approval.resolved": (run, event) => {
    for (const call of run.calls.values()) {
      if (call.approval === event.id) {
        call.approval = null;
      }
    }
  },
  "run.snapshot": applySnapshot,
  "model.retry": (run, { attempt, attempts, delayMs, reason }) => {
    run.retry = { attempt, attempts, delayMs, reason };
  },
  "model.search": (run, { query }) => {
    run.searches.push(query);
  },
  "model.fallback": (run, { from, to, reason }) => {
    run.fallbacks.push({ from, to, reason });
  },
  "context.compacted": (run, event) => {
    run.compacted += event.turns;
  },
  "run.ending": (run, event) => {
    run.state = "ending";
    run.verdict = event.verdict;
    if (event.verdict.kind !== "completed") {
      markCutOff(run);
    }
  },
  "run.ended": (run, event) => {
    finishRun(run, event);
    if (event.verdict.kind === "completed" && event.text && run.steps.every((one) => one.text === "")) {
      // A run that was followed after its end sends no deltas.
      currentStep(run).text = event.text;
    }
  },
};

export function finishRun(run, { verdict, receipt, at }) {
  run.state = "ended";
  run.verdict = verdict;
  run.receipt = receipt;
  run.endedAt = at ?? run.endedAt;
  if (verdict.kind !== "completed") {
    markCutOff(run);
  }
  for (const call of run.calls.values()) {
    endCall(call, verdict);
  }
}

/** Ends open calls the same way as the sealed turn does. */
function endCall(call, verdict) {
  call.approval = null;
  call.over = true;
  if (call.end === null && (verdict.kind === "aborted" || verdict.kind === "failed")) {
    call.end = call.started ? "stopped" : "not_started";
  }
}

/** Marks text that was still streaming as cut off. The history says whether the model sees it. */
function markCutOff(run) {
  const last = lastStepWithContent(run);
  if (last && last.text !== "" && last.calls.length === 0 && last.partial === null) {
    last.partial = "cut";
  }
}

function lastStepWithContent(run) {
  return run.steps.findLast((one) => one.text !== "" || one.calls.length > 0);
}

function findOrAddStep(run, number) {
  let found = run.steps.find((one) => one.number === number);
  if (!found) {
    found = { number, text: "", thinking: "", calls: [], partial: null, steered: [] };
    run.steps.push(found);
  }
  return found;
}

function currentStep(run) {
  return run.steps.length === 0 ? findOrAddStep(run, 1) : run.steps[run.steps.length - 1];
}

function findOrAddCall(run, id) {
  let call = run.calls.get(id);
  if (!call) {
    call = {
      id,
      tool: "",
      arguments: null,
      output: "",
      dropped: 0,
      result: null,
      diff: null,
      waiting: false,
      started: false,
      end: null,
      ms: null,
      approval: null,
    };
    run.calls.set(id, call);
    currentStep(run).calls.push(call);
  }
  return call;
}

function appendOutput(call, text) {
  // A carriage return overwrites the last line (progress output).
  const all = text.startsWith("\r")
    ? call.output.slice(0, call.output.lastIndexOf("\n") + 1) + text.slice(1)
    : call.output + text;
  const excess = all.length - MAX_OUTPUT;
  // Drop a quarter at once, so that not every line copies the whole output.
  if (excess > MAX_OUTPUT / 4) {
    call.output = all.slice(excess);
    call.dropped += excess;
  } else {
    call.output = all;
  }
}

/** Replaces missed events: sets the text of the current step and adds unknown calls. */
function applySnapshot(run, event, gap) {
  const current = currentStep(run);
  run.state = "running";
  // A snapshot has no steps that began and ended in between; the history has them after the end.
  run.incomplete = run.incomplete || gap;
  // Text of a step only grows, and ends before its calls: other text belongs to a later step.
  const isLaterStep =
    current.calls.length > 0
      ? event.text !== current.text && event.text !== ""
      : !event.text.startsWith(current.text);
  for (const row of event.calls) {
    const call = findOrAddCall(run, row.callId);
    call.tool = row.tool;
    call.waiting = row.waiting === true;
    call.started ||= call.approval === null && !call.waiting;
    call.end = row.end ?? call.end;
    if (row.output !== undefined && call.result === null) {
      call.result = row.output;
      call.output = "";
      call.diff = row.diff ?? null;
      call.ms = row.ms ?? call.ms;
    }
  }
  // A fractional number, so that no real step has it.
  const target = isLaterStep ? findOrAddStep(run, current.number + 0.5) : current;
  target.text = event.text;
  target.thinking = event.thinking;
}

/** Takes from the history what the model sees of the run, and events that were missed. */
export function mergeHistory(run, history) {
  run.modelNote = history.modelNote;
  run.agent ??= history.agent;
  if (run.verdict?.kind === UNKNOWN_VERDICT.kind && history.verdict) {
    run.verdict = history.verdict;
  }
  // After a crash of the daemon the history may have less than what was followed live: keep the longer.
  if (run.incomplete && textLength(history) >= textLength(run)) {
    run.steps = history.steps;
    run.calls = history.calls;
    run.incomplete = false;
    return;
  }
  for (const call of run.calls.values()) {
    call.end = history.calls.get(call.id)?.end ?? call.end;
  }
  run.steps.forEach((item, index) => {
    item.steered = item.steered.length > 0 ? item.steered : (history.steps[index]?.steered ?? []);
  });
  const last = lastStepWithContent(run);
  const lastInHistory = lastStepWithContent(history);
  if (last?.partial && lastInHistory?.text.trim() === last.text.trim()) {
    last.partial = lastInHistory.partial;
  }
}

function textLength(run) {
  return run.steps.reduce((sum, one) => sum + one.text.length, 0);
}

export function fromHistory(messages) {
  const run = newRun(messages[0].runId);
  run.state = "ended";
  run.modelNote = null;
  for (const message of messages) {
    addMessage(run, message);
    run.verdict = message.verdict || run.verdict;
    run.endedAt = message.at;
  }
  return run;
}

function addMessage(run, message) {
  if (message.role === "user") {
    // The first message began the run; later ones were steered into it.
    if (run.userText === undefined) {
      run.userText = message.text;
      run.principal = message.principal;
      run.agent = message.agent ?? null;
    } else {
      currentStep(run).steered.push(message.text);
    }
  } else if (message.role === "assistant") {
    const number = run.steps.length + 1;
    const one = findOrAddStep(run, number);
    one.text = message.text;
    one.thinking = message.thinking ?? "";
    one.partial = message.kept ? "kept" : message.partial ? "not-seen" : null;
    for (const made of message.calls || []) {
      const call = findOrAddCall(run, made.id);
      call.tool = made.tool;
      call.arguments = made.arguments;
    }
  } else if (message.role === "tool") {
    const call = findOrAddCall(run, message.callId);
    call.result = message.text;
    call.diff = message.diff ?? null;
    call.end = message.end ?? call.end;
    call.ms = message.ms ?? call.ms;
    call.over = true;
  } else if (message.role === "note") {
    run.modelNote = message.text;
  }
}
