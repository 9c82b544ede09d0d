//! The run of a response: its events, and its record in the database.

use quell_engine::Engine;
use quell_protocol::{Principal, Verdict};
use quell_store::{
    ConversationItem, EndedResponse, RESPONSE_RETENTION_SECONDS, StoreError, StoredResponse, StoredResponseState,
};
use serde_json::{Value, json};

use super::encoder::{ResponseEncoder, ResponseEvent, ResponseFinish, ResponseVerdict};
use super::history::{continued_items, now};
use crate::client_run::{AnswerOutcome, AnswerPart, AnswerReader};

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

#[derive(Debug)]
pub(super) struct ResponseRun {
    pub(super) engine: Engine,
    pub(super) reader: AnswerReader,
    pub(super) encoder: ResponseEncoder,
    /// `None` if the response is not stored.
    pub(super) record: Option<ResponseRecord>,
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
        if self.record.as_ref().is_some_and(|record| !record.background)
            && let Err(error) = self.store_ended().await
        {
            tracing::error!(%error, "a response could not be stored; its client cannot continue from it");
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
                AnswerPart::Text(text) => self.encoder.push_text(&text, &mut events),
                AnswerPart::Thinking(text) => self.encoder.push_thinking(&text, &mut events),
                AnswerPart::StillWaiting => {}
                ended @ AnswerPart::Ended(_) => self.pending = Some(ended),
            }
        }
        events
    }

    /// The outcome, if the run has ended. A run that has gone without an end has failed.
    fn encode(&mut self, part: Option<AnswerPart>, events: &mut Vec<ResponseEvent>) -> Option<Box<AnswerOutcome>> {
        match part {
            Some(AnswerPart::Text(text)) => self.encoder.push_text(&text, events),
            Some(AnswerPart::Thinking(text)) => self.encoder.push_thinking(&text, events),
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
        self.encoder.finish(finish, events);
        self.verdict = Some(outcome.verdict.clone());
    }

    async fn store_ended(&self) -> Result<(), StoreError> {
        let Some(record) = &self.record else { return Ok(()) };
        let object = self.stored_object();
        let items = self.conversation_items(record, &object);
        let response = self.stored(record, StoredResponseState::Ended, &object);
        self.engine.responses().create(response, items).await
    }

    /// Stores a response in the background as begun.
    pub(super) async fn store_begun(&self) -> Result<(), StoreError> {
        let Some(record) = &self.record else { return Ok(()) };
        let response = self.stored(record, StoredResponseState::Open, &self.encoder.snapshot());
        self.engine.responses().create(response, Vec::new()).await
    }

    /// Stores the end of a response in the background, with its events.
    pub(super) async fn store_end(&self, frames: Vec<String>) -> Result<bool, StoreError> {
        let Some(record) = &self.record else { return Ok(false) };
        let object = self.stored_object();
        let ended = EndedResponse {
            id: self.encoder.ids().response(),
            response: object.to_string(),
            events: Some(json!(frames).to_string()),
            conversation_items: self.conversation_items(record, &object),
        };
        self.engine.responses().end(ended).await
    }

    /// The object with the reasoning to send back.
    fn stored_object(&self) -> Value {
        let mut object = self.encoder.snapshot();
        object["output"] = self.encoder.output().into();
        object
    }

    fn stored(&self, record: &ResponseRecord, state: StoredResponseState, object: &Value) -> StoredResponse {
        StoredResponse {
            id: self.encoder.ids().response(),
            owner: record.owner.clone(),
            run: self.reader.run_id().clone(),
            previous: record.previous.clone(),
            conversation: record.conversation.clone(),
            background: record.background,
            state,
            created_at: record.created_at,
            expires_at: record.created_at.saturating_add(RESPONSE_RETENTION_SECONDS),
            response: object.to_string(),
            input: json!(record.input).to_string(),
        }
    }

    /// What a conversation gets: the request, and what came of the answer.
    fn conversation_items(&self, record: &ResponseRecord, object: &Value) -> Vec<ConversationItem> {
        if record.conversation.is_none() {
            return Vec::new();
        }
        let items = record.input.iter().cloned().chain(continued_items(object));
        items.map(|item| conversation_item(&item)).collect()
    }
}

/// Events that are handed on together, at most.
const MAX_EVENTS_AT_ONCE: usize = 64;

pub(super) fn conversation_item(item: &Value) -> ConversationItem {
    ConversationItem { id: item["id"].as_str().unwrap_or_default().to_owned(), item: item.to_string() }
}
