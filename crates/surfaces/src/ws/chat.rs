//! Events of runs in the gateway's words: `chat`, `agent`, `run`, `agents.changed`, `execution:cancel`.
//!
//! Live text is paced: the first piece of a run goes out at once, later ones at most every 75 ms, and whatever waits goes out
//! before a tool start or the end. Each `chat` carries the text of its step so far, so a dropped one is no loss.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use quell_engine::Engine;
use quell_engine::dispatch::Notice;
use quell_protocol::api::ComputeStatus;
use quell_protocol::{EventKind, Receipt, RunEvent, RunId, SessionKey, Usage, Verdict};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::handshake::{Peer, Role};
use super::methods::Subscriptions;
use super::outbox::{Outbox, Weight};
use super::shapes;

/// Between two deltas of one run (research: openclaw.md 1.7).
const PACE: Duration = Duration::from_millis(75);
/// Cumulative text beyond this many characters is not repeated (research: openclaw.md 1.7).
const CUMULATIVE: usize = 500_000;

/// Quell's own event `run`: its end begins, its end with the proof.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct News<'a> {
    state: &'static str,
    verdict: &'a Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<&'a Receipt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<u32>,
    run_id: &'a RunId,
    session_key: &'a SessionKey,
    seq: u64,
}

/// What one connection has been told about its runs.
pub(super) struct Chats {
    engine: Engine,
    outbox: Arc<Outbox>,
    peer: Peer,
    subscriptions: Arc<Subscriptions>,
    runs: HashMap<RunId, Chat>,
    /// No delta that waits is due before.
    due: Option<Instant>,
}

/// What the connection has been told about one run.
struct Chat {
    session: String,
    seq: u64,
    /// Number of the last run event seen, to notice dropped deltas.
    last: u64,
    /// Up to this number, events are told already by a text that came from the run itself.
    covered: u64,
    text: String,
    pending: String,
    /// The client's text does not begin with what it has: it must be replaced.
    replace: bool,
    sent: Option<Instant>,
}

impl Chats {
    pub(super) fn new(engine: Engine, outbox: Arc<Outbox>, peer: Peer, subscriptions: Arc<Subscriptions>) -> Self {
        Self { engine, outbox, peer, subscriptions, runs: HashMap::new(), due: None }
    }

    /// Tells the client what happened, if it is for it.
    pub(super) fn show(&mut self, notice: &Notice) {
        match notice {
            Notice::Run(event) => self.run_event(event),
            Notice::Cancelling { session_key, .. } if !self.follows(session_key) => {}
            Notice::Cancelling { run_id, session_key, reason } => {
                self.flush_run(run_id);
                let payload = json!({"runId": run_id, "sessionKey": session_key, "reason": reason});
                self.outbox.event("execution:cancel", &payload, Weight::Fact);
            }
            Notice::Amended { session_key, .. } if !self.follows(session_key) => {}
            Notice::Amended { run_id, session_key, amendment } => {
                let payload = json!({"runId": run_id, "sessionKey": session_key, "amendment": amendment});
                self.outbox.event("run.amended", &payload, Weight::Fact);
            }
            Notice::Agent { agent, status, active } => {
                let payload = json!({"agentId": agent, "computeStatus": status, "activeRuns": active});
                self.outbox.event("agents.changed", &payload, Weight::Fact);
            }
            Notice::Society { agent, change } => {
                let payload =
                    json!({"agentId": agent, "computeStatus": ComputeStatus::Idle, "activeRuns": [], "change": change});
                self.outbox.event("agents.changed", &payload, Weight::Fact);
            }
            Notice::Session { key, reason } => {
                if self.subscriptions.sessions() {
                    let active = self.engine.active_of(key);
                    let payload = json!({"sessionKey": key, "key": key, "reason": reason, "hasActiveRun": !active.is_empty(), "activeRunIds": active});
                    self.outbox.event("sessions.changed", &payload, Weight::Fact);
                }
            }
            Notice::Hold { held } => self.outbox.event("hold.changed", &json!({"held": held}), Weight::Fact),
            Notice::Shutdown { reason } => {
                self.flush();
                self.outbox.event("shutdown", &json!({"reason": reason}), Weight::Fact);
            }
        }
    }

    /// Waits until a paced delta may be due; for ever when none waits.
    ///
    /// # Cancel safety
    /// Safe: it only waits.
    pub(super) async fn due(&self) {
        match self.due {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Sends what is due.
    pub(super) fn flush_due(&mut self) {
        let now = Instant::now();
        for (id, chat) in &mut self.runs {
            if chat.due().is_some_and(|due| due <= now) {
                chat.flush(id, &self.outbox);
            }
        }
        self.due = self.runs.values().filter_map(Chat::due).min();
    }

    /// Sends all that waits.
    fn flush(&mut self) {
        for (id, chat) in &mut self.runs {
            chat.flush(id, &self.outbox);
        }
    }

    fn flush_run(&mut self, id: &RunId) {
        if let Some(chat) = self.runs.get_mut(id) {
            chat.flush(id, &self.outbox);
        }
    }

    /// An operator follows every session, a node those that it subscribed to.
    fn follows(&self, session: &SessionKey) -> bool {
        self.peer.role == Role::Operator || self.subscriptions.chat(session)
    }

    fn run_event(&mut self, event: &RunEvent) {
        if !self.follows(&event.session_key) {
            return;
        }
        if !self.peer.run_events {
            self.chat_event(event);
        }
        self.agent_event(event);
        let news = |state, verdict| News {
            state,
            verdict,
            receipt: None,
            steps: None,
            run_id: &event.run_id,
            session_key: &event.session_key,
            seq: event.seq,
        };
        match &event.kind {
            EventKind::Ending { verdict } => self.outbox.event("run", &news("ending", verdict), Weight::Fact),
            EventKind::Ended { verdict, receipt, steps, .. } => {
                let ended = News { receipt: Some(receipt), steps: Some(*steps), ..news("ended", verdict) };
                self.outbox.event("run", &ended, Weight::Fact);
                self.runs.remove(&event.run_id);
            }
            _ => {}
        }
    }

    fn chat_event(&mut self, event: &RunEvent) {
        if matches!(event.kind, EventKind::Queued { .. }) {
            // Not one to remember yet: another run may take the message over, and then nothing more comes under this id.
            return;
        }
        // A run is queued, then started; whoever begins to listen later has missed something.
        let before = if event.seq == 2 { 1 } else { 0 };
        let fresh = || Chat::new(event.session_key.to_string(), before);
        let chat = self.runs.entry(event.run_id.clone()).or_insert_with(fresh);
        let missed = event.seq > chat.last + 1;
        chat.last = event.seq;
        if missed {
            chat.catch_up(&self.engine, &event.run_id);
        }
        match &event.kind {
            EventKind::TextDelta { text } => {
                if event.seq > chat.covered {
                    chat.text.push_str(text);
                    chat.pending.push_str(text);
                }
                if chat.sent.is_none_or(|sent| sent.elapsed() >= PACE) {
                    chat.flush(&event.run_id, &self.outbox);
                }
            }
            EventKind::StepStarted { .. } if event.seq <= chat.covered => {}
            EventKind::StepStarted { .. } => chat.new_step(&event.run_id, &self.outbox),
            EventKind::ToolStarted { .. } => chat.flush(&event.run_id, &self.outbox),
            EventKind::Ending { verdict: verdict @ Verdict::Aborted { .. } } => {
                chat.flush(&event.run_id, &self.outbox);
                chat.aborted(&event.run_id, verdict, &self.outbox);
            }
            EventKind::Ended { verdict, text, receipt, .. } => {
                chat.flush(&event.run_id, &self.outbox);
                match verdict {
                    Verdict::Completed => {
                        chat.completed(&event.run_id, text.as_deref(), &receipt.usage, &self.outbox);
                    }
                    Verdict::Failed { code, message } => chat.failed(&event.run_id, code, message, &self.outbox),
                    // It was announced when the stop came.
                    Verdict::Aborted { .. } => {}
                }
            }
            _ => {}
        }
        self.due = [self.due, chat.due()].into_iter().flatten().min();
    }

    fn agent_event(&self, event: &RunEvent) {
        let Some((stream, data, weight)) = agent_stream(&event.kind) else { return };
        if stream == "tool" && !self.peer.tool_events || weight == Weight::Droppable && self.peer.run_events {
            return;
        }
        let payload = json!({
            "runId": event.run_id,
            "sessionKey": event.session_key,
            "seq": event.seq,
            "stream": stream,
            "ts": shapes::now_ms(self.engine.clock()),
            "data": data,
        });
        self.outbox.event("agent", &payload, weight);
    }
}

impl Chat {
    fn new(session: String, last: u64) -> Self {
        Self {
            session,
            seq: 0,
            last,
            covered: 0,
            text: String::new(),
            pending: String::new(),
            replace: false,
            sent: None,
        }
    }

    /// When the text that waits may go out.
    fn due(&self) -> Option<Instant> {
        (!self.pending.is_empty()).then(|| self.sent.map_or_else(Instant::now, |sent| sent + PACE))
    }

    /// Deltas were dropped: the text comes from the run itself.
    fn catch_up(&mut self, engine: &Engine, run: &RunId) {
        let Some(cell) = engine.live(run) else {
            // It is over and forgotten; its end, which is on its way, tells the whole text.
            self.covered = u64::MAX;
            return;
        };
        let (covered, text) = cell.streaming();
        self.covered = covered;
        if text != self.text {
            self.pending.clone_from(&text);
            self.text = text;
            self.replace = true;
        }
    }

    fn new_step(&mut self, run: &RunId, outbox: &Outbox) {
        self.flush(run, outbox);
        self.replace = !self.text.is_empty();
        self.text.clear();
    }

    fn flush(&mut self, run: &RunId, outbox: &Outbox) {
        if self.pending.is_empty() {
            return;
        }
        let delta = std::mem::take(&mut self.pending);
        let mut payload = self.payload(run, "delta");
        payload["deltaText"] = json!(delta);
        if self.text.len() <= CUMULATIVE {
            payload["message"] = shapes::assistant(&self.text);
        }
        if std::mem::take(&mut self.replace) {
            payload["replace"] = json!(true);
        }
        self.sent = Some(Instant::now());
        outbox.event("chat", &payload, Weight::Droppable);
    }

    fn aborted(&mut self, run: &RunId, verdict: &Verdict, outbox: &Outbox) {
        let mut payload = self.payload(run, "aborted");
        if let Verdict::Aborted { reason, .. } = verdict {
            payload["stopReason"] = json!(reason);
        }
        if !self.text.is_empty() {
            payload["message"] = shapes::assistant(&self.text);
        }
        outbox.event("chat", &payload, Weight::Fact);
    }

    fn completed(&mut self, run: &RunId, text: Option<&str>, usage: &Usage, outbox: &Outbox) {
        let mut payload = self.payload(run, "final");
        payload["message"] = shapes::assistant(text.unwrap_or(&self.text));
        payload["usage"] = json!(usage);
        payload["stopReason"] = json!("stop");
        outbox.event("chat", &payload, Weight::Fact);
    }

    fn failed(&mut self, run: &RunId, code: &str, message: &str, outbox: &Outbox) {
        let mut payload = self.payload(run, "error");
        shapes::failure(&mut payload, code, message);
        outbox.event("chat", &payload, Weight::Fact);
    }

    fn payload(&mut self, run: &RunId, state: &str) -> Value {
        self.seq += 1;
        json!({"runId": run, "sessionKey": self.session, "seq": self.seq, "state": state})
    }
}

/// A run event as an `agent` event: stream, data, weight.
fn agent_stream(kind: &EventKind) -> Option<(&'static str, Value, Weight)> {
    let fact = Weight::Fact;
    Some(match kind {
        EventKind::Started { agent } => ("lifecycle", json!({"phase": "start", "agentId": agent}), fact),
        EventKind::TextDelta { text } => ("assistant", json!({"delta": text}), Weight::Droppable),
        EventKind::ThinkingDelta { text } => ("thinking", json!({"delta": text}), Weight::Droppable),
        EventKind::ToolStarted { call_id, tool, arguments } => {
            ("tool", json!({"phase": "start", "toolCallId": call_id, "name": tool, "args": arguments}), fact)
        }
        EventKind::ToolOutput { call_id, stream, text } => (
            "tool",
            json!({"phase": "update", "toolCallId": call_id, "stream": stream, "partialResult": text}),
            Weight::Droppable,
        ),
        EventKind::ToolEnded { call_id, end, output, .. } => {
            ("tool", json!({"phase": "result", "toolCallId": call_id, "end": end, "result": output}), fact)
        }
        EventKind::Compacted { turns, summary } => {
            ("compaction", json!({"phase": "end", "turns": turns, "summary": summary}), fact)
        }
        EventKind::ApprovalRequested { id, call_id, tool, arguments, expires_at } => (
            "approval",
            json!({"phase": "requested", "id": id, "toolCallId": call_id, "name": tool, "args": arguments, "expiresAt": expires_at}),
            fact,
        ),
        EventKind::ApprovalResolved { id, decision, by } => {
            ("approval", json!({"phase": "resolved", "id": id, "decision": decision, "by": by}), fact)
        }
        EventKind::Ended { verdict: Verdict::Failed { message, .. }, .. } => {
            ("lifecycle", json!({"phase": "error", "error": message}), fact)
        }
        EventKind::Ended { verdict: Verdict::Aborted { reason, .. }, .. } => {
            ("lifecycle", json!({"phase": "end", "aborted": true, "stopReason": reason}), fact)
        }
        EventKind::Ended { verdict: Verdict::Completed, .. } => ("lifecycle", json!({"phase": "end"}), fact),
        _ => return None,
    })
}
