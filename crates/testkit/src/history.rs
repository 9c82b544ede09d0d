//! Strict checkers of the conversation in a request, one per wire dialect, and a corpus of histories for them.
//!
//! They hold what real providers enforce plus what the strictest of them do, and know nothing of Quell: neither its types
//! nor how it derives a history. Every broken rule is reported with its place.

pub mod anthropic;
pub mod corpus;
pub mod openai;
#[cfg(test)]
mod tests;

use std::fmt;

use serde_json::{Map, Value};

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// A rule of a provider.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Rule {
            $($(#[$doc])* $name,)*
        }

        impl Rule {
            /// Every rule.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its word in the corpus and in the server's answers.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }
    };
}

rules! {
    /// The body is an object with a model and a non-empty list of messages.
    BodyShape = "body_shape",
    /// Declared tools have the wanted form and distinct names.
    ToolDeclaration = "tool_declaration",
    /// Every role is one the dialect knows.
    UnknownRole = "unknown_role",
    /// No field that the dialect does not know.
    UnknownField = "unknown_field",
    /// Content has a type its role may have.
    ContentType = "content_type",
    /// Text of a user, of the system, or of a block is not blank.
    EmptyText = "empty_text",
    /// An assistant message says or calls something.
    EmptyAssistant = "empty_assistant",
    /// A system message stands only at the beginning, once.
    SystemNotFirst = "system_not_first",
    /// The first message is the user's.
    FirstNotUser = "first_not_user",
    /// The last message leaves the assistant something to answer.
    LastIsAssistant = "last_is_assistant",
    /// Two user messages never follow each other.
    ConsecutiveUser = "consecutive_user",
    /// Two assistant messages never follow each other.
    ConsecutiveAssistant = "consecutive_assistant",
    /// A call has the wanted form and a legal tool name.
    CallShape = "call_shape",
    /// Arguments are a JSON object, in the dialect's wrapping.
    Arguments = "arguments",
    /// An id is there and not empty.
    CallId = "call_id",
    /// No two calls of a request share an id.
    DuplicateCallId = "duplicate_call_id",
    /// Every call has its result.
    UnansweredCall = "unanswered_call",
    /// Every result has its call.
    OrphanResult = "orphan_result",
    /// No call has two results.
    ResultTwice = "result_twice",
    /// Results stand directly after the message with their calls.
    ResultOutOfPlace = "result_out_of_place",
    /// Within their message, results stand before everything else.
    ResultsNotFirst = "results_not_first",
    /// Thinking carries the signature of its provider.
    UnsignedThinking = "unsigned_thinking",
    /// Thinking is not the last block of a message.
    ThinkingLast = "thinking_last",
}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// Where, such as `messages[3].tool_calls[0]`.
    pub place: String,
    /// What was found.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.place, self.rule.as_str(), self.detail)
    }
}

/// Violations found so far.
#[derive(Debug, Default)]
struct Findings(Vec<Violation>);

impl Findings {
    fn add(&mut self, rule: Rule, place: impl Into<String>, detail: impl Into<String>) {
        self.0.push(Violation { rule, place: place.into(), detail: detail.into() });
    }

    fn unknown_fields(&mut self, object: &Map<String, Value>, known: &[&str], place: &str) {
        for name in object.keys().filter(|name| !known.contains(&name.as_str())) {
            self.add(Rule::UnknownField, format!("{place}.{name}"), "is not a field of this dialect here");
        }
    }

    /// Checks what both dialects ask of a body, and returns its messages.
    fn messages<'a>(&mut self, body: &'a Value, known: &[&str]) -> &'a [Value] {
        let Some(object) = body.as_object() else {
            self.add(Rule::BodyShape, "body", "is no object");
            return &[];
        };
        self.unknown_fields(object, known, "body");
        if object.get("model").and_then(Value::as_str).is_none_or(str::is_empty) {
            self.add(Rule::BodyShape, "body.model", "is no name");
        }
        match object.get("messages").and_then(Value::as_array) {
            Some(messages) if !messages.is_empty() => messages,
            Some(_) => {
                self.add(Rule::BodyShape, "body.messages", "is empty");
                &[]
            }
            None => {
                self.add(Rule::BodyShape, "body.messages", "is no list");
                &[]
            }
        }
    }

    /// Checks who may speak after whom. `roles` leaves out system messages.
    fn order(&mut self, roles: &[(usize, &str)]) {
        match roles.first() {
            Some((_, "user")) => {}
            Some((at, role)) => self.add(Rule::FirstNotUser, place(*at), format!("the first message is {role}")),
            None => self.add(Rule::FirstNotUser, "body.messages", "holds only system messages"),
        }
        if let Some((at, "assistant")) = roles.last() {
            self.add(Rule::LastIsAssistant, place(*at), "leaves nothing to answer");
        }
        for pair in roles.windows(2) {
            match pair {
                [(_, "user"), (at, "user")] => {
                    self.add(Rule::ConsecutiveUser, place(*at), "follows another user message");
                }
                [(_, "assistant"), (at, "assistant")] => {
                    self.add(Rule::ConsecutiveAssistant, place(*at), "follows another assistant message");
                }
                _ => {}
            }
        }
    }

    /// Reads an id, where there is one.
    fn id<'a>(&mut self, id: Option<&'a Value>, place: &str) -> Option<&'a str> {
        match id.and_then(Value::as_str) {
            Some(id) if !id.is_empty() => Some(id),
            _ => {
                self.add(Rule::CallId, place, "is missing, empty or no text");
                id.and_then(Value::as_str)
            }
        }
    }
}

fn place(message: usize) -> String {
    format!("messages[{message}]")
}

fn legal_tool_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

/// True for data in base64, which is never empty.
fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    !body.is_empty() && text.len().is_multiple_of(4) && text.len() - body.len() <= 2 && body.bytes().all(legal)
}

fn blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// A call or a result: the message it stands in, its place, its id.
#[derive(Debug, Clone)]
struct Mention<'a> {
    message: usize,
    place: String,
    id: &'a str,
}

/// Matches calls and results. `results` name the message with the calls that each may answer, where its place permits any.
fn pair(findings: &mut Findings, calls: &[Mention<'_>], results: &[(Mention<'_>, Option<usize>)]) {
    for (at, call) in calls.iter().enumerate() {
        if calls.iter().take(at).any(|earlier| earlier.id == call.id) {
            findings.add(Rule::DuplicateCallId, &call.place, format!("{:?} was used before", call.id));
        }
    }
    let mut answered = vec![false; calls.len()];
    let mut strays = Vec::new();
    for (result, answers) in results {
        let open = calls
            .iter()
            .zip(&answered)
            .position(|(call, answered)| !answered && Some(call.message) == *answers && call.id == result.id);
        match open.and_then(|at| answered.get_mut(at)) {
            Some(slot) => *slot = true,
            None => strays.push(result),
        }
    }
    for stray in &strays {
        let named: Vec<bool> = calls
            .iter()
            .zip(&answered)
            .filter(|(call, _)| call.id == stray.id)
            .map(|(_, answered)| *answered)
            .collect();
        let (rule, why) = match named.as_slice() {
            [] => (Rule::OrphanResult, "answers no call"),
            all if all.iter().all(|answered| *answered) => (Rule::ResultTwice, "answers a call that has its result"),
            _ => (Rule::ResultOutOfPlace, "does not stand directly after its call"),
        };
        findings.add(rule, &stray.place, format!("{:?} {why}", stray.id));
    }
    for (call, _) in calls.iter().zip(&answered).filter(|(_, answered)| !**answered) {
        if !strays.iter().any(|stray| stray.id == call.id) {
            findings.add(Rule::UnansweredCall, &call.place, format!("{:?} has no result", call.id));
        }
    }
}
