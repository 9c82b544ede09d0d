//! The stream of a task: the task, then changes of its state and its answer as it grows.
//!
//! It closes at a terminal state, and when the task comes to wait for input. A client that leaves changes nothing;
//! `SubscribeToTask` begins again: with the task, and with the text of its current step from the beginning.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use quell_protocol::api::RunView;
use quell_protocol::approval::ApprovalRow;
use quell_protocol::{ErrorCode, EventKind, RunEvent};
use serde_json::{Value, json};

use super::A2aBinding;
use super::errors::A2aError;
use super::tasks::{A2aTaskState, answer_artifact, input_required_update, status_update};
use crate::http::{RunEventReader, problem_response};
use crate::keep_alive::KEEP_ALIVE_INTERVAL;

pub(super) struct TaskStream {
    binding: A2aBinding,
    /// What is sent next.
    ready: VecDeque<Value>,
    /// `None` for a stream that has all that it will send.
    events: Option<(RunEventReader, TaskUpdates)>,
}

impl TaskStream {
    /// A stream of a task that is over.
    pub(super) fn of_ended(task: &Value, binding: A2aBinding) -> Self {
        Self { binding, ready: VecDeque::from([json!({"task": task})]), events: None }
    }

    /// Begins with this task; `updates` continues it.
    pub(super) fn begin(task: Value, reader: RunEventReader, updates: TaskUpdates, binding: A2aBinding) -> Self {
        Self { binding, ready: VecDeque::from([json!({"task": task})]), events: Some((reader, updates)) }
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(part) = self.ready.pop_front() {
                return Some(Event::default().data(self.binding.wrap(part).to_string()));
            }
            let (reader, updates) = self.events.as_mut()?;
            match reader.next().await {
                Some(Ok(event)) => {
                    self.ready.extend(updates.read_event(&event));
                    if updates.is_finished {
                        self.events = None;
                    }
                }
                Some(Err(end)) => {
                    self.events = None;
                    let error = A2aError::Problem(problem_response(ErrorCode::Unauthorized, end.reason()));
                    return Some(Event::default().event("error").data(error.to_json(&self.binding).to_string()));
                }
                None => self.events = None,
            }
        }
    }
}

impl IntoResponse for TaskStream {
    fn into_response(self) -> Response {
        let events = stream::unfold(self, |mut task_stream| async move {
            let event = task_stream.next().await?;
            Some((Ok::<_, Infallible>(event), task_stream))
        });
        let sse = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_INTERVAL));
        ([("x-accel-buffering", "no")], sse).into_response()
    }
}

/// Makes updates of a task from the events of its run, which come from the first one on.
#[derive(Debug)]
pub(super) struct TaskUpdates {
    /// The task that began the stream shows the state as of this event. Text is sent in any case.
    shown_until: u64,
    /// Bytes of the answer that the client has.
    answer_bytes: usize,
    /// The next text begins the answer anew: each step of the agent has its own.
    begins_anew: bool,
    /// Questions that wait for an answer, with the updates that ask them.
    questions: Vec<(String, Value)>,
    is_finished: bool,
}

impl TaskUpdates {
    /// For a task that is shown as it was when it was accepted.
    pub(super) fn from_beginning() -> Self {
        Self { shown_until: 0, answer_bytes: 0, begins_anew: true, questions: Vec::new(), is_finished: false }
    }

    /// For a task that is shown as it is in `view`, with the calls that wait for a person.
    pub(super) fn after(view: &RunView, waiting: &[ApprovalRow]) -> Self {
        let questions = waiting.iter().map(|row| (row.id.clone(), input_required_update(view, row))).collect();
        Self { shown_until: view.seq, questions, ..Self::from_beginning() }
    }

    /// What the client is told of an event.
    fn read_event(&mut self, event: &RunEvent) -> Vec<Value> {
        match &event.kind {
            EventKind::StepStarted { .. } => self.begins_anew = true,
            EventKind::TextDelta { text } => return vec![self.answer_update(event, text)],
            EventKind::Snapshot { text, .. } if !text.is_empty() => {
                self.begins_anew = true;
                let answer = self.answer_update(event, text);
                return std::iter::once(answer).chain(self.state_update(event)).collect();
            }
            // What was not streamed, such as the answer of a run that has left the memory.
            EventKind::Ended { text: Some(text), .. } if text.len() != self.answer_bytes => {
                self.begins_anew = true;
                let answer = self.answer_update(event, text);
                return std::iter::once(answer).chain(self.state_update(event)).collect();
            }
            _ => {}
        }
        self.state_update(event).into_iter().collect()
    }

    fn answer_update(&mut self, event: &RunEvent, text: &str) -> Value {
        let append = !std::mem::take(&mut self.begins_anew);
        self.answer_bytes = if append { self.answer_bytes + text.len() } else { text.len() };
        json!({"artifactUpdate": {
            "taskId": event.run_id,
            "contextId": event.session_key,
            "artifact": answer_artifact(text),
            "append": append,
        }})
    }

    fn state_update(&mut self, event: &RunEvent) -> Option<Value> {
        let (mut state, mut update) = status_update(event)?;
        match self.apply_to_questions(event, &update) {
            QuestionChange::EventTells => {}
            QuestionChange::AlreadyTold => return None,
            QuestionChange::OthersWait(question) => (state, update) = (A2aTaskState::InputRequired, question),
        }
        if event.seq <= self.shown_until {
            return None;
        }
        self.is_finished = state.is_terminal() || state == A2aTaskState::InputRequired;
        Some(update)
    }

    /// `update` tells the state that the event brings the task into, whatever other calls do.
    fn apply_to_questions(&mut self, event: &RunEvent, update: &Value) -> QuestionChange {
        match &event.kind {
            EventKind::ApprovalRequested { id, .. } => self.add_question(id, update),
            EventKind::SubRunApprovalRequested { approval } => self.add_question(&approval.id, update),
            EventKind::ApprovalResolved { id, .. } => self.remove_question(id),
            EventKind::SubRunApprovalResolved { approval } => self.remove_question(&approval.id),
            EventKind::Snapshot { approvals, .. } => self.replace_questions(event, approvals),
            _ => QuestionChange::EventTells,
        }
    }

    fn add_question(&mut self, id: &str, update: &Value) -> QuestionChange {
        if self.questions.iter().any(|(asked, _)| asked == id) {
            return QuestionChange::AlreadyTold;
        }
        self.questions.push((id.to_owned(), update.clone()));
        QuestionChange::EventTells
    }

    fn remove_question(&mut self, id: &str) -> QuestionChange {
        self.questions.retain(|(asked, _)| asked != id);
        // Another call of the same step, or of another sub-agent, still waits.
        self.questions
            .first()
            .map_or(QuestionChange::EventTells, |(_, other)| QuestionChange::OthersWait(other.clone()))
    }

    /// After missed events: the questions are now those that wait as of the snapshot.
    fn replace_questions(&mut self, event: &RunEvent, approvals: &[ApprovalRow]) -> QuestionChange {
        let waiting = approvals.iter().map(|row| (row.id.clone(), input_required_update(event, row))).collect();
        let known = std::mem::replace(&mut self.questions, waiting);
        let is_known = |id: &str| known.iter().any(|(asked, _)| asked == id);
        if known.len() == self.questions.len() && self.questions.iter().all(|(id, _)| is_known(id)) {
            return QuestionChange::AlreadyTold;
        }
        let new = self.questions.iter().find(|(id, _)| !is_known(id)).or(self.questions.first());
        new.map_or(QuestionChange::EventTells, |(_, question)| QuestionChange::OthersWait(question.clone()))
    }
}

/// What an event changes about the calls that a client is asked about.
enum QuestionChange {
    /// The event tells the state itself.
    EventTells,
    /// The client has been told already.
    AlreadyTold,
    /// The task waits for input, by this update.
    OthersWait(Value),
}

#[cfg(test)]
mod tests {
    use quell_protocol::approval::ApprovalState;
    use quell_protocol::{CallId, RunId, SessionKey};

    use super::*;

    fn event(seq: u64, kind: EventKind) -> RunEvent {
        RunEvent {
            run_id: RunId::parse("r").unwrap(),
            session_key: SessionKey::parse("s").unwrap(),
            seq,
            at: "2026-01-01T00:00:00.000000Z".to_owned(),
            kind,
        }
    }

    fn delta(seq: u64, text: &str) -> RunEvent {
        event(seq, EventKind::TextDelta { text: text.to_owned() })
    }

    fn request(seq: u64, id: &str) -> RunEvent {
        let kind = EventKind::ApprovalRequested {
            id: id.to_owned(),
            call_id: CallId::parse("c").unwrap(),
            tool: "shell".to_owned(),
            arguments: json!({}),
            escalation: None,
            expires_at: String::new(),
            quorum: 1,
        };
        event(seq, kind)
    }

    fn resolution(seq: u64, id: &str) -> RunEvent {
        let kind =
            EventKind::ApprovalResolved { id: id.to_owned(), decision: "allow".to_owned(), by: None, reason: None };
        event(seq, kind)
    }

    fn texts(updates: &mut TaskUpdates, events: &[RunEvent]) -> Vec<(String, bool)> {
        let parts = events.iter().flat_map(|event| updates.read_event(event));
        let of = |part: Value| {
            let update = part.get("artifactUpdate")?.clone();
            let text = update["artifact"]["parts"][0]["text"].as_str()?.to_owned();
            Some((text, update["append"].as_bool()?))
        };
        parts.filter_map(of).collect()
    }

    fn states(updates: &mut TaskUpdates, events: &[RunEvent]) -> Vec<String> {
        let parts = events.iter().flat_map(|event| updates.read_event(event));
        let of = |part: Value| part["statusUpdate"]["status"]["state"].as_str().map(str::to_owned);
        parts.filter_map(of).collect()
    }

    #[test]
    fn the_text_of_each_step_begins_the_answer_anew() {
        let step = |seq, step| event(seq, EventKind::StepStarted { step });
        let events = [step(1, 1), delta(2, "a"), delta(3, "b"), step(4, 2), delta(5, "c")];
        let expected = [("a".to_owned(), false), ("b".to_owned(), true), ("c".to_owned(), false)];
        assert_eq!(texts(&mut TaskUpdates::from_beginning(), &events), expected);
        // A client that comes later gets the same text.
        let mut later = TaskUpdates { shown_until: 4, ..TaskUpdates::from_beginning() };
        assert_eq!(texts(&mut later, &events), expected);
    }

    #[test]
    fn a_stream_ends_when_the_task_comes_to_wait_for_input() {
        let mut updates = TaskUpdates::from_beginning();
        assert_eq!(states(&mut updates, &[request(1, "a")]), ["TASK_STATE_INPUT_REQUIRED"]);
        assert!(updates.is_finished);
        // One that begins while the task waits goes on, and ends at the next question.
        let mut later = TaskUpdates { shown_until: 2, ..TaskUpdates::from_beginning() };
        let waiting = [request(1, "a"), request(2, "b")];
        assert!(states(&mut later, &waiting).is_empty() && !later.is_finished);
        assert_eq!(states(&mut later, &[resolution(3, "a")]), ["TASK_STATE_INPUT_REQUIRED"]);
        assert!(later.is_finished);
    }

    fn waiting_row(id: &str) -> ApprovalRow {
        let row = json!({
            "id": id, "runId": "r2", "sessionKey": "s2", "agent": "helper", "principal": "ann", "callId": "c",
            "tool": "shell", "arguments": {}, "requestedAt": "", "expiresAt": "", "state": "pending",
        });
        serde_json::from_value(row).unwrap()
    }

    fn sub_request(seq: u64, id: &str) -> RunEvent {
        event(seq, EventKind::SubRunApprovalRequested { approval: Box::new(waiting_row(id)) })
    }

    fn sub_resolution(seq: u64, id: &str) -> RunEvent {
        let approval = ApprovalRow { state: ApprovalState::Cancelled, ..waiting_row(id) };
        event(seq, EventKind::SubRunApprovalResolved { approval: Box::new(approval) })
    }

    fn snapshot(seq: u64, ids: &[&str]) -> RunEvent {
        let approvals = ids.iter().map(|id| waiting_row(id)).collect();
        let [earlier_text, text, thinking] = std::array::from_fn(|_| String::new());
        event(seq, EventKind::Snapshot { earlier_text, text, thinking, calls: Vec::new(), approvals })
    }

    #[test]
    fn a_question_of_a_sub_agent_is_one_of_the_task() {
        let mut updates = TaskUpdates::from_beginning();
        let told = updates.read_event(&sub_request(1, "a"));
        assert!(updates.is_finished);
        let update = &told[0]["statusUpdate"];
        assert_eq!((&update["taskId"], &update["status"]["state"]), (&json!("r"), &json!("TASK_STATE_INPUT_REQUIRED")));
        let parts = &update["status"]["message"]["parts"];
        assert!(parts[0]["text"].as_str().unwrap().starts_with("The sub-agent helper wants to call shell."), "{parts}");
        assert_eq!(parts[1]["data"]["approval"], "a");
        // Stopped alone, it leaves a task that works on.
        let mut later = TaskUpdates { shown_until: 1, ..TaskUpdates::from_beginning() };
        let events = [sub_request(1, "a"), sub_resolution(2, "a")];
        assert_eq!(states(&mut later, &events), ["TASK_STATE_WORKING"]);
    }

    #[test]
    fn a_shown_question_is_not_asked_again() {
        let shown = || TaskUpdates {
            questions: vec![("a".to_owned(), json!({}))],
            shown_until: 1,
            ..TaskUpdates::from_beginning()
        };
        assert!(states(&mut shown(), &[sub_request(2, "a"), snapshot(3, &["a"])]).is_empty());
        assert_eq!(states(&mut shown(), &[snapshot(3, &["a", "b"])]), ["TASK_STATE_INPUT_REQUIRED"]);
        assert_eq!(states(&mut shown(), &[sub_request(2, "a"), sub_resolution(3, "a")]), ["TASK_STATE_WORKING"]);
    }

    #[test]
    fn a_snapshot_tells_what_waits_after_missed_events() {
        let mut missed = TaskUpdates::from_beginning();
        assert_eq!(states(&mut missed, &[snapshot(9, &["a"])]), ["TASK_STATE_INPUT_REQUIRED"]);
        assert!(missed.is_finished);
        let mut resolved = TaskUpdates { shown_until: 1, ..TaskUpdates::from_beginning() };
        assert_eq!(states(&mut resolved, &[sub_request(1, "a"), snapshot(9, &[])]), ["TASK_STATE_WORKING"]);
        // What the snapshot is of is a part of the task that was shown.
        let mut covered = TaskUpdates { shown_until: 9, ..TaskUpdates::from_beginning() };
        assert!(states(&mut covered, &[snapshot(9, &["a"])]).is_empty() && !covered.is_finished);
        assert_eq!(states(&mut covered, &[sub_resolution(10, "a")]), ["TASK_STATE_WORKING"]);
    }

    #[test]
    fn an_answered_question_leads_back_to_work() {
        let mut updates = TaskUpdates { shown_until: 1, ..TaskUpdates::from_beginning() };
        let events = [request(1, "a"), resolution(2, "a"), delta(3, "done")];
        assert_eq!(states(&mut updates, &events), ["TASK_STATE_WORKING"]);
        assert!(!updates.is_finished);
    }
}
