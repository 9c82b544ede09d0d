//! Questions of servers (elicitation): which call one belongs to, and its conversion.
//!
//! The protocol does not say for which call a server asks. With the calls of one run the answer is clear enough; with
//! those of several runs nobody is asked, because the question of one user must not reach another.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use quell_protocol::RunId;
use quell_protocol::question::{QuestionField, QuestionFieldKind, ServerQuestion};
use quell_scope::Cancelled;
use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction};
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::call::CallUpdate;

/// Questions of one call that may be open at the same time; further ones are declined.
const MAX_OPEN_QUESTIONS: usize = 4;
const MAX_FIELDS: usize = 50;
const MAX_OPTIONS: usize = 200;
/// The maximum number of characters of a question; a longer one is declined, because nobody could read it.
const MAX_MESSAGE_CHARS: usize = 4000;
/// The maximum number of characters of a label, a description or an option.
const MAX_LABEL_CHARS: usize = 500;

/// What a person answered to a question of a server.
#[derive(Debug, Clone, PartialEq)]
pub enum QuestionAnswer {
    /// Accepted, with the values of the fields.
    Accepted(Map<String, Value>),
    /// A person declined, or nobody answered in time.
    Declined,
}

/// Asks a person on behalf of a call.
pub trait QuestionAsker: Sync {
    /// Waits for the answer.
    ///
    /// # Errors
    /// [`Cancelled`] when the run was stopped.
    ///
    /// # Cancel safety
    /// Safe: a question whose waiter is dropped is withdrawn.
    fn ask(&self, question: ServerQuestion) -> BoxFuture<'_, Result<QuestionAnswer, Cancelled>>;
}

/// A question on its way to the caller of a tool.
pub(super) struct PendingQuestion {
    pub(super) question: ServerQuestion,
    /// Dropped without an answer, it cancels the question. Closed when the server withdraws it.
    pub(super) reply: oneshot::Sender<QuestionAnswer>,
}

/// The calls of one connection for which the server may ask.
#[derive(Debug, Default)]
pub(super) struct AskableCalls(Mutex<Vec<AskableCall>>);

#[derive(Debug, Clone)]
struct AskableCall {
    run: RunId,
    updates: mpsc::Sender<CallUpdate>,
    questions: Arc<watch::Sender<OpenQuestions>>,
}

/// The questions of one call.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OpenQuestions {
    open: usize,
    last_closed_at: Option<Instant>,
}

impl OpenQuestions {
    /// True while a person is asked: the server cannot go on by itself.
    pub(super) fn is_any_open(self) -> bool {
        self.open > 0
    }

    pub(super) fn last_closed_at(self) -> Option<Instant> {
        self.last_closed_at
    }
}

/// Removes its call when dropped.
pub(super) struct AskableCallGuard<'a> {
    calls: &'a AskableCalls,
    questions: Arc<watch::Sender<OpenQuestions>>,
}

impl AskableCallGuard<'_> {
    pub(super) fn watch_questions(&self) -> watch::Receiver<OpenQuestions> {
        self.questions.subscribe()
    }
}

impl Drop for AskableCallGuard<'_> {
    fn drop(&mut self) {
        self.calls.lock().retain(|call| !Arc::ptr_eq(&call.questions, &self.questions));
    }
}

/// Counts a question of a call as open until it is dropped.
struct OpenQuestionGuard(Arc<watch::Sender<OpenQuestions>>);

impl OpenQuestionGuard {
    fn open(questions: &Arc<watch::Sender<OpenQuestions>>) -> Option<Self> {
        let has_room = questions.send_if_modified(|state| {
            let has_room = state.open < MAX_OPEN_QUESTIONS;
            state.open += usize::from(has_room);
            has_room
        });
        has_room.then(|| Self(Arc::clone(questions)))
    }
}

impl Drop for OpenQuestionGuard {
    fn drop(&mut self) {
        self.0
            .send_modify(|state| *state = OpenQuestions { open: state.open - 1, last_closed_at: Some(Instant::now()) });
    }
}

impl AskableCalls {
    /// Registers a call, before its request is sent.
    pub(super) fn register(&self, run: RunId, updates: mpsc::Sender<CallUpdate>) -> AskableCallGuard<'_> {
        let questions = Arc::new(watch::Sender::default());
        self.lock().push(AskableCall { run, updates, questions: Arc::clone(&questions) });
        AskableCallGuard { calls: self, questions }
    }

    /// Asks the user of the call at work, and waits for the answer. A question that reaches nobody is cancelled.
    ///
    /// # Cancel safety
    /// Safe: a question whose waiter is dropped is withdrawn.
    pub(super) async fn ask(&self, server: &str, params: ElicitRequestParams) -> ElicitResult {
        let question = match to_question(server, params) {
            Ok(question) => question,
            Err(why) => {
                tracing::info!(server, why, "a question of an MCP server was declined");
                return ElicitResult::new(ElicitationAction::Decline);
            }
        };
        let Some(call) = self.newest_of_only_run() else {
            tracing::info!(
                server,
                "a question of an MCP server was cancelled: it is not known whose call it belongs to"
            );
            return ElicitResult::new(ElicitationAction::Cancel);
        };
        let Some(_open) = OpenQuestionGuard::open(&call.questions) else {
            return ElicitResult::new(ElicitationAction::Decline);
        };
        let (reply, answer) = oneshot::channel();
        // waits: in a task of the connection; the call ends it by leaving.
        if call.updates.send(CallUpdate::Question(PendingQuestion { question, reply })).await.is_err() {
            return ElicitResult::new(ElicitationAction::Cancel);
        }
        // waits: as above; a stop of the run drops the sender.
        match answer.await {
            Ok(QuestionAnswer::Accepted(fields)) => {
                ElicitResult::new(ElicitationAction::Accept).with_content(Value::Object(fields))
            }
            Ok(QuestionAnswer::Declined) => ElicitResult::new(ElicitationAction::Decline),
            Err(_stopped) => ElicitResult::new(ElicitationAction::Cancel),
        }
    }

    fn newest_of_only_run(&self) -> Option<AskableCall> {
        let calls = self.lock();
        let newest = calls.last()?;
        calls.iter().all(|call| call.run == newest.run).then(|| newest.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<AskableCall>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Converts a question, if a person can be asked it.
fn to_question(server: &str, params: ElicitRequestParams) -> Result<ServerQuestion, &'static str> {
    let ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } = params else {
        return Err("it wants the user to open a URL, and Quell offers questions with fields only");
    };
    if message.chars().count() > MAX_MESSAGE_CHARS {
        return Err("it is too long");
    }
    let order = requested_schema.property_order.clone().unwrap_or_default();
    let required = requested_schema.required.clone().unwrap_or_default();
    let place = |name: &String| order.iter().position(|other| other == name).unwrap_or(usize::MAX);
    let mut properties: Vec<_> = requested_schema.properties.iter().collect();
    properties.sort_by_key(|(name, _)| place(name));
    if properties.len() > MAX_FIELDS {
        return Err("it has too many fields");
    }
    let fields = properties.into_iter().map(|(name, schema)| {
        let schema = serde_json::to_value(schema).unwrap_or_default();
        to_field(name, &schema, required.contains(name))
    });
    let fields = fields.collect::<Option<Vec<_>>>().ok_or("it has a field of a kind that Quell does not know")?;
    Ok(ServerQuestion { server: server.to_owned(), message, fields })
}

/// Reads the schema of a field, which has one of the few forms that the protocol permits.
fn to_field(name: &str, schema: &Value, required: bool) -> Option<QuestionField> {
    let options_of = |schema: &Value| -> Option<Vec<String>> {
        let plain = schema["enum"].as_array();
        let titled = || schema["oneOf"].as_array().or(schema["anyOf"].as_array());
        let values = plain.or_else(titled)?.iter();
        values.map(|option| option.as_str().or(option["const"].as_str()).map(str::to_owned)).collect()
    };
    let (kind, options) = match (schema["type"].as_str()?, options_of(schema)) {
        ("string", Some(options)) => (QuestionFieldKind::Choice, options),
        ("array", _) => (QuestionFieldKind::Choices, options_of(&schema["items"])?),
        ("string", None) => (QuestionFieldKind::Text, Vec::new()),
        ("number", _) => (QuestionFieldKind::Number, Vec::new()),
        ("integer", _) => (QuestionFieldKind::Integer, Vec::new()),
        ("boolean", _) => (QuestionFieldKind::Boolean, Vec::new()),
        _ => return None,
    };
    let is_short = |text: &str| text.chars().count() <= MAX_LABEL_CHARS;
    if options.len() > MAX_OPTIONS || !is_short(name) || !options.iter().all(|option| is_short(option)) {
        return None;
    }
    let words = |key: &str| schema[key].as_str().map(|text| text.chars().take(MAX_LABEL_CHARS).collect());
    let (title, description) = (words("title"), words("description"));
    let default = Some(schema["default"].clone()).filter(|default| !default.is_null());
    Some(QuestionField { name: name.to_owned(), title, description, kind, options, required, default })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn params(schema: &Value) -> ElicitRequestParams {
        serde_json::from_value(json!({"mode": "form", "message": "Which?", "requestedSchema": schema})).unwrap()
    }

    fn schema() -> Value {
        json!({"type": "object", "required": ["name", "colour"], "properties": {
            "name": {"type": "string", "title": "Name", "description": "Yours."},
            "age": {"type": "integer", "default": 36},
            "colour": {"type": "string", "enum": ["red", "blue"]},
            "sure": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
        }})
    }

    #[test]
    fn each_kind_of_field_is_read() {
        let question = to_question("files", params(&schema())).unwrap();
        let kinds: Vec<String> =
            question.fields.iter().map(|field| format!("{}: {}", field.name, field.describe())).collect();
        for line in [
            "name: text, required · Name · Yours.",
            "age: integer, optional, proposed: 36",
            "colour: choice: red | blue, required",
            "sure: boolean, optional",
            "tags: choices: a | b, optional",
        ] {
            assert!(kinds.contains(&line.to_owned()), "{kinds:#?}");
        }
    }

    #[test]
    fn a_url_and_a_question_that_nobody_could_read_are_declined() {
        let url = json!({"mode": "url", "message": "Go there.", "url": "https://host/", "elicitationId": "1"});
        assert!(to_question("files", serde_json::from_value(url).unwrap()).unwrap_err().contains("URL"));
        let long = json!({"mode": "form", "message": "x".repeat(5000), "requestedSchema": schema()});
        assert_eq!(to_question("files", serde_json::from_value(long).unwrap()), Err("it is too long"));
    }

    #[tokio::test]
    async fn a_question_with_calls_of_two_runs_reaches_nobody() {
        let (calls, (updates, mut received)) = (AskableCalls::default(), mpsc::channel(4));
        let cancelled = ElicitResult::new(ElicitationAction::Cancel);
        assert_eq!(calls.ask("files", params(&schema())).await, cancelled, "there is no call");
        let first = calls.register(RunId::parse("r1").unwrap(), updates.clone());
        let second = calls.register(RunId::parse("r2").unwrap(), updates);
        assert_eq!(calls.ask("files", params(&schema())).await, cancelled);
        assert!(received.try_recv().is_err());
        drop(second);
        let answering = async {
            let Some(CallUpdate::Question(pending)) = received.recv().await else { panic!("no question") };
            assert!(first.watch_questions().borrow().is_any_open());
            pending.reply.send(QuestionAnswer::Declined).unwrap();
        };
        let (answer, ()) = tokio::join!(calls.ask("files", params(&schema())), answering);
        assert_eq!(answer, ElicitResult::new(ElicitationAction::Decline));
        assert!(!first.watch_questions().borrow().is_any_open());
    }
}
