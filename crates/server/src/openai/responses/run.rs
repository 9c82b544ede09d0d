//! The run of a response: its events, and its record in the database.

use quell_engine::Engine;
use quell_kernel::client_request::openai_responses::IncompleteEnd;
use quell_protocol::{Principal, RunId, StopReason, Verdict};
use quell_store::{ConversationItem, EndedResponse, RESPONSE_RETENTION_SECONDS, StoredResponse, StoredResponseState};
use serde_json::{Value, json};

use super::begun::BegunResponse;
use super::encoder::{ResponseEvent, ResponseFinish, ResponseVerdict};
use super::history::{continued_items, now};
use super::ids::ResponseIds;
use super::live::SharedEncoder;
use crate::client_run::{AnswerOutcome, AnswerPart, AnswerReader, UNSTORED};

/// What is stored of a response besides its object.
#[derive(Debug, Clone)]
pub(super) struct ResponseRecord {
    pub(super) owner: Principal,
    pub(super) previous: Option<String>,
    pub(super) conversation: Option<String>,
    pub(super) background: bool,
    pub(super) created_at: i64,
    /// The items of the request.
    pub(super) input: Vec<Value>,
}

impl ResponseRecord {
    /// True if the database has the response from its beginning on, and not only its end.
    pub(super) fn is_begun_first(&self) -> bool {
        self.background || self.conversation.is_some()
    }

    pub(super) fn stored(&self, run: &RunId, state: StoredResponseState, object: &Value) -> StoredResponse {
        StoredResponse {
            id: ResponseIds::of_run(run).response(),
            owner: self.owner.clone(),
            run: run.clone(),
            previous: self.previous.clone(),
            conversation: self.conversation.clone(),
            background: self.background,
            state,
            created_at: self.created_at,
            expires_at: self.created_at.saturating_add(RESPONSE_RETENTION_SECONDS),
            response: object.to_string(),
            input: json!(self.input).to_string(),
        }
    }

    /// The end of a response of which nothing has come, because it failed inside.
    pub(super) fn failed(&self, run: &RunId, mut object: Value) -> EndedResponse {
        object["status"] = "failed".into();
        object["error"] = json!({"code": "server_error", "message": "the response failed inside the daemon"});
        let id = ResponseIds::of_run(run).response();
        EndedResponse { id, response: object.to_string(), events: None, conversation_items: Vec::new() }
    }
}

#[derive(Debug)]
pub(super) struct ResponseRun {
    pub(super) engine: Engine,
    pub(super) reader: AnswerReader,
    pub(super) encoder: SharedEncoder,
    /// `None` if the response is not stored.
    pub(super) record: Option<ResponseRecord>,
    /// `None` if the database does not have it before its end.
    pub(super) begun: Option<BegunResponse>,
    /// A part that was read and is not encoded yet.
    pub(super) pending: Option<AnswerPart>,
    /// How the run ended, once it has.
    pub(super) verdict: Option<Verdict>,
}

/// What a run gave next.
#[derive(Debug)]
pub(super) enum RunStep {
    Events(Vec<ResponseEvent>),
    StillWaiting,
}

impl ResponseRun {
    /// The next events; `None` after the last ones. The last ones are returned once a response in the foreground is
    /// stored, so that whoever has them can continue from it.
    ///
    /// # Cancel safety
    /// Dropped while it stores, the response is stored all the same.
    pub(super) async fn next(&mut self) -> Option<RunStep> {
        if self.verdict.is_some() {
            return None;
        }
        let part = match self.pending.take() {
            Some(part) => Some(part),
            // waits: for the run, which whoever owns this stops when the client is gone.
            None => self.reader.next().await,
        };
        let mut events = Vec::new();
        let Some(outcome) = self.encode(part, &mut events) else {
            return Some(if events.is_empty() { RunStep::StillWaiting } else { RunStep::Events(events) });
        };
        self.finish(&outcome, &mut events);
        if self.record.as_ref().is_some_and(|record| !record.background) {
            self.store_foreground_end(&mut events).await;
        }
        Some(RunStep::Events(events))
    }

    /// More events if they are here, without the last ones.
    pub(super) fn try_next(&mut self) -> Vec<ResponseEvent> {
        let mut events = Vec::new();
        while events.len() < MAX_EVENTS_AT_ONCE
            && self.verdict.is_none()
            && self.pending.is_none()
            && let Some(part) = self.reader.try_next()
        {
            match part {
                AnswerPart::Text(text) => self.encoder.lock().push_text(&text, &mut events),
                AnswerPart::Thinking(text) => self.encoder.lock().push_thinking(&text, &mut events),
                AnswerPart::StillWaiting => {}
                ended @ AnswerPart::Ended(_) => self.pending = Some(ended),
            }
        }
        events
    }

    /// The outcome, if the run has ended. A run that has gone without an end has failed.
    fn encode(&mut self, part: Option<AnswerPart>, events: &mut Vec<ResponseEvent>) -> Option<Box<AnswerOutcome>> {
        match part {
            Some(AnswerPart::Text(text)) => self.encoder.lock().push_text(&text, events),
            Some(AnswerPart::Thinking(text)) => self.encoder.lock().push_thinking(&text, events),
            Some(AnswerPart::StillWaiting) => {}
            Some(AnswerPart::Ended(outcome)) => return Some(outcome),
            None => {
                let (code, message) = ("internal".to_owned(), "the run has gone".to_owned());
                let verdict = Verdict::Failed { code, message };
                return Some(Box::new(AnswerOutcome { verdict, answer: None, usage: Default::default() }));
            }
        }
        None
    }

    fn finish(&mut self, outcome: &AnswerOutcome, events: &mut Vec<ResponseEvent>) {
        let answer = outcome.answer.as_ref();
        let end = ResponseVerdict::of(&outcome.verdict, answer.map(|answer| &answer.end));
        let message = answer.and_then(|_| self.reader.model_message());
        let message = message.map(|message| message.map_calls(|answered| answered.call));
        let calls = answer.map(|answer| answer.calls.clone()).unwrap_or_default();
        let finish = ResponseFinish { end, message, calls, usage: outcome.usage, ended_at: now() };
        self.encoder.lock().finish(finish, events);
        self.verdict = Some(outcome.verdict.clone());
    }

    pub(super) async fn store_foreground_end(&mut self, events: &mut Vec<ResponseEvent>) {
        let Some(record) = &self.record else { return };
        let object = self.stored_object();
        if self.begun.is_some() {
            // waits: for the database, after the end of the run.
            self.store_begun_end(&object, None, events).await;
            return;
        }
        let response = record.stored(self.reader.run_id(), StoredResponseState::Ended, &object);
        if let Err(error) = self.engine.responses().create(response, Vec::new()).await {
            tracing::error!(%error, "a response could not be stored; its client cannot continue from it");
        }
    }

    /// Stores the end of a response in the background, with the events before the last ones.
    pub(super) async fn store_background_end(&mut self, before: Vec<String>, events: &mut Vec<ResponseEvent>) {
        let object = self.stored_object();
        let frames = before.into_iter().chain(events.iter().map(|event| event.frame.clone()));
        let frames = json!(frames.collect::<Vec<_>>()).to_string();
        // waits: for the database, after the end of the run.
        self.store_begun_end(&object, Some(frames), events).await;
    }

    /// Stores the end of a response that the database has as begun. One that cannot be stored has failed: nobody could
    /// read it again, and its conversation lacks it.
    async fn store_begun_end(&mut self, object: &Value, frames: Option<String>, events: &mut Vec<ResponseEvent>) {
        let (Some(record), Some(begun)) = (&self.record, &mut self.begun) else { return };
        let extends = self.verdict.as_ref().is_some_and(|verdict| extends_conversation(verdict, object, record));
        let items = if extends { continued_items(record.input.clone(), object) } else { Vec::new() };
        let ended = EndedResponse {
            id: self.encoder.lock().ids().response(),
            response: object.to_string(),
            events: frames,
            conversation_items: items.iter().map(conversation_item).collect(),
        };
        if let Err(error) = begun.end(ended).await {
            tracing::error!(%error, "the end of a response could not be stored; it has failed");
            let message = "the response could not be stored; send the request again";
            self.encoder.lock().replace_end(message, events);
            self.verdict = Some(Verdict::Failed { code: UNSTORED.to_owned(), message: message.to_owned() });
        }
    }

    /// The object with the reasoning to send back, and with its end if it did not complete.
    fn stored_object(&self) -> Value {
        let encoder = self.encoder.lock();
        let mut object = encoder.snapshot();
        object["output"] = encoder.output().into();
        drop(encoder);
        if let Some(verdict) = self.verdict.clone().filter(|verdict| *verdict != Verdict::Completed) {
            IncompleteEnd { verdict, cut_bytes: self.reader.cut_bytes() }.mark(&mut object);
        }
        object
    }
}

/// True if a conversation gets the items of a response that ended so. It does not if the client sends the request again:
/// it failed, or the daemon went away from a client that waited.
pub(super) fn extends_conversation(verdict: &Verdict, object: &Value, record: &ResponseRecord) -> bool {
    match verdict {
        Verdict::Completed | Verdict::Failed { .. } => object["status"] != "failed",
        Verdict::Aborted { reason: StopReason::Shutdown | StopReason::DaemonStopped, .. } => record.background,
        Verdict::Aborted { .. } => true,
    }
}

/// Events that are handed on together, at most.
const MAX_EVENTS_AT_ONCE: usize = 64;

/// An item of a conversation.
pub(super) fn conversation_item(item: &Value) -> ConversationItem {
    ConversationItem { id: item["id"].as_str().unwrap_or_default().to_owned(), item: item.to_string() }
}
