//! Convert engine notices to gateway events, with text deltas throttled to one per 75 ms and run.
//!
//! The first delta of a run is sent at once. Waiting text is always sent before a tool start or the end of the run.
//! Each `chat` event carries the text of its step so far, so that nothing is lost if one is dropped.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use quell_engine::Engine;
use quell_engine::engine::{AgentActivity, EngineNotice};
use quell_protocol::api::ComputeStatus;
use quell_protocol::{EventKind, Receipt, RunEvent, RunId, SessionKey, Usage, Verdict};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::gateway_events;
use super::methods::WsClient;
use super::outbox::{ClientOutbox, DropPolicy};
use super::payloads;
use super::peer::WsRole;

/// Time between two deltas of one run, as in OpenClaw's gateway.
const DELTA_INTERVAL: Duration = Duration::from_millis(75);
/// Cumulative text is left out beyond this many bytes, as in OpenClaw's gateway.
const MAX_CUMULATIVE_TEXT: usize = 500_000;

/// Payload of Quell's own event `run`, sent when a run begins to end, and with the receipt when it has ended.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RunEventPayload<'a> {
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

pub(super) struct EventForwarder {
    client: Arc<WsClient>,
    runs: HashMap<RunId, ChatStream>,
    /// When the first waiting delta is due.
    next_flush: Option<Instant>,
}

/// The text of one run as this connection has received it.
struct ChatStream {
    session: String,
    seq: u64,
    /// Number of the last run event, to notice lost events.
    last_seq: u64,
    /// Events up to this number are part of a text that was fetched from the run itself.
    covered_seq: u64,
    text: String,
    pending: String,
    /// The next text does not continue the client's text: the client must replace it.
    replace: bool,
    last_sent: Option<Instant>,
}

impl EventForwarder {
    pub(super) fn new(client: Arc<WsClient>) -> Self {
        Self { client, runs: HashMap::new(), next_flush: None }
    }

    /// Forwards a notice, if the client follows its session.
    pub(super) fn forward_notice(&mut self, notice: &EngineNotice) {
        match notice {
            EngineNotice::Run(event) => self.forward_run_event(event),
            EngineNotice::Cancelling { run_id, session_key, .. } if !self.is_followed(run_id, session_key) => {}
            EngineNotice::Cancelling { run_id, session_key, reason } => {
                self.flush_run(run_id);
                let payload = json!({"runId": run_id, "sessionKey": session_key, "reason": reason});
                self.client.outbox.push_event("execution:cancel", &payload, DropPolicy::MustDeliver);
            }
            EngineNotice::Amended { run_id, session_key, .. } if !self.is_followed(run_id, session_key) => {}
            EngineNotice::Amended { run_id, session_key, amendment } => {
                let payload = json!({"runId": run_id, "sessionKey": session_key, "amendment": amendment});
                self.client.outbox.push_event("run.amended", &payload, DropPolicy::MustDeliver);
            }
            EngineNotice::Agent { agent, status, active } => {
                let here = AgentActivity { status: *status, active: active.clone() };
                let AgentActivity { status, mut active } = self.client.engine().with_peer_activity(agent, here);
                self.client.engine().retain_visible_runs(&self.client.peer.caller, &mut active);
                let payload = json!({"agentId": agent, "computeStatus": status, "activeRuns": active});
                self.client.outbox.push_event("agents.changed", &payload, DropPolicy::MustDeliver);
            }
            EngineNotice::AgentListChanged { agent, change } => {
                let payload =
                    json!({"agentId": agent, "computeStatus": ComputeStatus::Idle, "activeRuns": [], "change": change});
                self.client.outbox.push_event("agents.changed", &payload, DropPolicy::MustDeliver);
            }
            EngineNotice::Session { key, reason, active_elsewhere } => {
                let is_readable = self.client.engine().may_hear_of_session(&self.client.peer.caller, key);
                if self.client.subscriptions.wants_sessions() && is_readable {
                    let here = || self.client.engine().active_run_ids_of_session(key);
                    let active = active_elsewhere.clone().unwrap_or_else(here);
                    let payload = json!({"sessionKey": key, "key": key, "reason": reason, "hasActiveRun": !active.is_empty(), "activeRunIds": active});
                    self.client.outbox.push_event("sessions.changed", &payload, DropPolicy::MustDeliver);
                }
            }
            EngineNotice::Hold { held } => {
                self.client.outbox.push_event("hold.changed", &json!({"held": held}), DropPolicy::MustDeliver)
            }
            EngineNotice::Shutdown { reason } => {
                self.flush_all();
                self.client.outbox.push_event("shutdown", &json!({"reason": reason}), DropPolicy::MustDeliver);
            }
        }
    }

    /// Waits until a throttled delta is due; pending for ever when none waits.
    ///
    /// # Cancel safety
    /// Safe: it has no effect.
    pub(super) async fn wait_until_due(&self) {
        match self.next_flush {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn flush_due(&mut self) {
        let now = Instant::now();
        for (id, chat) in &mut self.runs {
            if chat.next_flush().is_some_and(|due| due <= now) {
                chat.flush(id, &self.client.outbox);
            }
        }
        self.next_flush = self.runs.values().filter_map(ChatStream::next_flush).min();
    }

    /// Forgets waiting text of runs that the client may not read any more.
    pub(super) fn drop_unreadable_runs(&mut self) {
        let Self { client, runs, .. } = self;
        let is_readable = |id: &RunId, chat: &ChatStream| {
            SessionKey::parse(&chat.session)
                .is_ok_and(|key| client.engine().may_follow_run(&client.peer.caller, id, &key))
        };
        runs.retain(|id, chat| is_readable(id, chat));
    }

    fn flush_all(&mut self) {
        for (id, chat) in &mut self.runs {
            chat.flush(id, &self.client.outbox);
        }
    }

    fn flush_run(&mut self, id: &RunId) {
        if let Some(chat) = self.runs.get_mut(id) {
            chat.flush(id, &self.client.outbox);
        }
    }

    /// An operator follows every session that it may read, a node those of them to which it has subscribed.
    fn is_followed(&self, run: &RunId, session: &SessionKey) -> bool {
        let is_wanted = self.client.peer.role == WsRole::Operator || self.client.subscriptions.wants_chat(session);
        is_wanted && self.client.engine().may_follow_run(&self.client.peer.caller, run, session)
    }

    fn forward_run_event(&mut self, event: &RunEvent) {
        let is_followed = self.is_followed(&event.run_id, &event.session_key);
        // An approver sees the waiting calls of all runs.
        if is_followed || self.client.peer.caller.may_approve() {
            gateway_events::send_approval_event(&self.client, event);
        }
        if !is_followed {
            return;
        }
        gateway_events::send_session_message(&self.client, event);
        if !self.client.peer.run_events {
            self.send_chat_event(event);
        }
        self.send_agent_event(event);
        let payload = |state, verdict| RunEventPayload {
            state,
            verdict,
            receipt: None,
            steps: None,
            run_id: &event.run_id,
            session_key: &event.session_key,
            seq: event.seq,
        };
        match &event.kind {
            EventKind::Ending { verdict } => {
                self.client.outbox.push_event("run", &payload("ending", verdict), DropPolicy::MustDeliver)
            }
            EventKind::Ended { verdict, receipt, steps, .. } => {
                let ended =
                    RunEventPayload { receipt: Some(receipt), steps: Some(*steps), ..payload("ended", verdict) };
                self.client.outbox.push_event("run", &ended, DropPolicy::MustDeliver);
                self.runs.remove(&event.run_id);
            }
            _ => {}
        }
    }

    fn send_chat_event(&mut self, event: &RunEvent) {
        if matches!(event.kind, EventKind::Queued { .. }) {
            // Do not track it yet: another run may take the message in, and then no more events come under this id.
            return;
        }
        // The event `started` (2) follows `queued` (1). A client that connects later has missed earlier events.
        let last_seq = if event.seq == 2 { 1 } else { 0 };
        let new_stream = || ChatStream::new(event.session_key.to_string(), last_seq);
        let chat = self.runs.entry(event.run_id.clone()).or_insert_with(new_stream);
        let missed = event.seq > chat.last_seq + 1;
        chat.last_seq = event.seq;
        if missed {
            chat.catch_up(self.client.engine(), &event.run_id);
        }
        match &event.kind {
            EventKind::TextDelta { text } => {
                if event.seq > chat.covered_seq {
                    chat.text.push_str(text);
                    chat.pending.push_str(text);
                }
                if chat.last_sent.is_none_or(|sent| sent.elapsed() >= DELTA_INTERVAL) {
                    chat.flush(&event.run_id, &self.client.outbox);
                }
            }
            EventKind::StepStarted { .. } if event.seq <= chat.covered_seq => {}
            EventKind::StepStarted { .. } => chat.begin_step(&event.run_id, &self.client.outbox),
            EventKind::ToolStarted { .. } => chat.flush(&event.run_id, &self.client.outbox),
            EventKind::Ending { verdict: verdict @ Verdict::Aborted { .. } } => {
                chat.flush(&event.run_id, &self.client.outbox);
                chat.send_aborted(&event.run_id, verdict, &self.client.outbox);
            }
            EventKind::Ended { verdict, text, receipt, .. } => {
                chat.flush(&event.run_id, &self.client.outbox);
                match verdict {
                    Verdict::Completed => {
                        chat.send_completed(&event.run_id, text.as_deref(), &receipt.usage, &self.client.outbox);
                    }
                    Verdict::Failed { code, message } => {
                        chat.send_failed(&event.run_id, code, message, &self.client.outbox)
                    }
                    // `send_aborted` announced it when the stop came.
                    Verdict::Aborted { .. } => {}
                }
            }
            _ => {}
        }
        self.next_flush = [self.next_flush, chat.next_flush()].into_iter().flatten().min();
    }

    fn send_agent_event(&self, event: &RunEvent) {
        let Some((stream, data, drop_policy)) = agent_event_data(&event.kind) else { return };
        if stream == "tool" && !self.client.peer.tool_events
            || drop_policy == DropPolicy::Droppable && self.client.peer.run_events
        {
            return;
        }
        let payload = json!({
            "runId": event.run_id,
            "sessionKey": event.session_key,
            "seq": event.seq,
            "stream": stream,
            "ts": payloads::now_ms(self.client.engine().clock()),
            "data": data,
        });
        self.client.outbox.push_event("agent", &payload, drop_policy);
    }
}

impl ChatStream {
    fn new(session: String, last_seq: u64) -> Self {
        Self {
            session,
            seq: 0,
            last_seq,
            covered_seq: 0,
            text: String::new(),
            pending: String::new(),
            replace: false,
            last_sent: None,
        }
    }

    /// When the waiting text is due; `None` if there is none.
    fn next_flush(&self) -> Option<Instant> {
        (!self.pending.is_empty()).then(|| self.last_sent.map_or_else(Instant::now, |sent| sent + DELTA_INTERVAL))
    }

    /// Fetches the text from the run itself after events were lost.
    fn catch_up(&mut self, engine: &Engine, run: &RunId) {
        let Some(live_run) = engine.live_run(run) else {
            if engine.cluster().is_some() {
                // It may be on another node: the text goes on from here.
                self.replace = true;
            } else {
                // The run has ended; its last event is on its way and carries the whole text.
                self.covered_seq = u64::MAX;
            }
            return;
        };
        let (covered, text) = live_run.streaming_snapshot();
        self.covered_seq = covered;
        if text != self.text {
            self.pending.clone_from(&text);
            self.text = text;
            self.replace = true;
        }
    }

    fn begin_step(&mut self, run: &RunId, outbox: &ClientOutbox) {
        self.flush(run, outbox);
        self.replace = !self.text.is_empty();
        self.text.clear();
    }

    fn flush(&mut self, run: &RunId, outbox: &ClientOutbox) {
        if self.pending.is_empty() {
            return;
        }
        let delta = std::mem::take(&mut self.pending);
        let mut payload = self.next_payload(run, "delta");
        payload["deltaText"] = json!(delta);
        if self.text.len() <= MAX_CUMULATIVE_TEXT {
            payload["message"] = payloads::assistant_message(&self.text);
        }
        if std::mem::take(&mut self.replace) {
            payload["replace"] = json!(true);
        }
        self.last_sent = Some(Instant::now());
        outbox.push_event("chat", &payload, DropPolicy::Droppable);
    }

    fn send_aborted(&mut self, run: &RunId, verdict: &Verdict, outbox: &ClientOutbox) {
        let mut payload = self.next_payload(run, "aborted");
        if let Verdict::Aborted { reason, .. } = verdict {
            payload["stopReason"] = json!(reason);
        }
        if !self.text.is_empty() {
            payload["message"] = payloads::assistant_message(&self.text);
        }
        outbox.push_event("chat", &payload, DropPolicy::MustDeliver);
    }

    fn send_completed(&mut self, run: &RunId, text: Option<&str>, usage: &Usage, outbox: &ClientOutbox) {
        let mut payload = self.next_payload(run, "final");
        payload["message"] = payloads::assistant_message(text.unwrap_or(&self.text));
        payload["usage"] = json!(usage);
        payload["stopReason"] = json!("stop");
        outbox.push_event("chat", &payload, DropPolicy::MustDeliver);
    }

    fn send_failed(&mut self, run: &RunId, code: &str, message: &str, outbox: &ClientOutbox) {
        let mut payload = self.next_payload(run, "error");
        payloads::add_failure(&mut payload, code, message);
        outbox.push_event("chat", &payload, DropPolicy::MustDeliver);
    }

    fn next_payload(&mut self, run: &RunId, state: &str) -> Value {
        self.seq += 1;
        json!({"runId": run, "sessionKey": self.session, "seq": self.seq, "state": state})
    }
}

/// Converts a run event to an `agent` event: stream, data, drop policy.
fn agent_event_data(kind: &EventKind) -> Option<(&'static str, Value, DropPolicy)> {
    let must_deliver = DropPolicy::MustDeliver;
    Some(match kind {
        EventKind::Started { agent } => ("lifecycle", json!({"phase": "start", "agentId": agent}), must_deliver),
        EventKind::TextDelta { text } => ("assistant", json!({"delta": text}), DropPolicy::Droppable),
        EventKind::ThinkingDelta { text } => ("thinking", json!({"delta": text}), DropPolicy::Droppable),
        EventKind::ToolStarted { call_id, tool, arguments } => {
            ("tool", json!({"phase": "start", "toolCallId": call_id, "name": tool, "args": arguments}), must_deliver)
        }
        EventKind::ToolOutput { call_id, stream, text } => (
            "tool",
            json!({"phase": "update", "toolCallId": call_id, "stream": stream, "partialResult": text}),
            DropPolicy::Droppable,
        ),
        EventKind::ToolEnded { call_id, end, output, .. } => {
            ("tool", json!({"phase": "result", "toolCallId": call_id, "end": end, "result": output}), must_deliver)
        }
        EventKind::Compacted { turns, summary } => {
            ("compaction", json!({"phase": "end", "turns": turns, "summary": summary}), must_deliver)
        }
        EventKind::ApprovalRequested { id, call_id, tool, arguments, escalation, expires_at, quorum } => (
            "approval",
            json!({"phase": "requested", "id": id, "toolCallId": call_id, "name": tool, "args": arguments, "escalation": escalation, "expiresAt": expires_at, "quorum": quorum}),
            must_deliver,
        ),
        EventKind::ApprovalUpdated { id, allowed_by, quorum } => {
            ("approval", json!({"phase": "updated", "id": id, "allowedBy": allowed_by, "quorum": quorum}), must_deliver)
        }
        EventKind::ApprovalResolved { id, decision, by, reason } => (
            "approval",
            json!({"phase": "resolved", "id": id, "decision": decision, "by": by, "reason": reason}),
            must_deliver,
        ),
        EventKind::Ended { verdict: Verdict::Failed { message, .. }, .. } => {
            ("lifecycle", json!({"phase": "error", "error": message}), must_deliver)
        }
        EventKind::Ended { verdict: Verdict::Aborted { reason, .. }, .. } => {
            ("lifecycle", json!({"phase": "end", "aborted": true, "stopReason": reason}), must_deliver)
        }
        EventKind::Ended { verdict: Verdict::Completed, .. } => ("lifecycle", json!({"phase": "end"}), must_deliver),
        _ => return None,
    })
}
