//! Strict checkers of the conversation in a request, one per wire dialect, and a corpus of histories for them.
//!
//! They enforce the rules of real providers, including those of the strictest. They know nothing of Quell, neither its
//! types nor how it builds a history. Every broken rule is reported with its place.

pub mod anthropic;
pub mod corpus;
pub mod gemini;
pub mod openai;
pub mod responses;
#[cfg(test)]
mod tests;

use std::fmt;

use serde_json::{Map, Value};

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum HistoryRule {
            $($(#[$doc])* $name,)*
        }

        impl HistoryRule {
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its name in the corpus and in the server's answers.
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
    /// Declared tools have the required form and distinct names.
    ToolDeclaration = "tool_declaration",
    /// Every role is one of the dialect.
    UnknownRole = "unknown_role",
    /// Every field is one of the dialect.
    UnknownField = "unknown_field",
    /// Content has a type that its role allows.
    ContentType = "content_type",
    /// Text of a user, of the system, or of a block is not blank.
    EmptyText = "empty_text",
    /// An assistant message has text or a call.
    EmptyAssistant = "empty_assistant",
    /// There is at most one system message, at the beginning.
    SystemNotFirst = "system_not_first",
    /// The first message is the user's.
    FirstNotUser = "first_not_user",
    /// The last message is not the assistant's.
    LastIsAssistant = "last_is_assistant",
    /// Two user messages never follow each other.
    ConsecutiveUser = "consecutive_user",
    /// Two assistant messages never follow each other.
    ConsecutiveAssistant = "consecutive_assistant",
    /// A call has the required form and a valid tool name.
    CallShape = "call_shape",
    /// Arguments are a JSON object, in the dialect's encoding.
    Arguments = "arguments",
    /// An id is present and not empty.
    CallId = "call_id",
    /// Call ids are unique in a request.
    DuplicateCallId = "duplicate_call_id",
    /// Every call has its result.
    UnansweredCall = "unanswered_call",
    /// Every result has its call.
    OrphanResult = "orphan_result",
    /// No call has two results.
    ResultTwice = "result_twice",
    /// Results follow directly after the message with their calls.
    ResultOutOfPlace = "result_out_of_place",
    /// Within their message, results come first.
    ResultsNotFirst = "results_not_first",
    /// Thinking carries the signature of its provider.
    UnsignedThinking = "unsigned_thinking",
    /// Thinking is not the last block of a message.
    ThinkingLast = "thinking_last",
    /// No reasoning item occurs twice.
    ReasoningTwice = "reasoning_twice",
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryViolation {
    pub rule: HistoryRule,
    /// Such as `messages[3].tool_calls[0]`.
    pub place: String,
    pub detail: String,
}

impl HistoryViolation {
    pub(crate) fn new(rule: HistoryRule, place: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { rule, place: place.into(), detail: detail.into() }
    }
}

impl fmt::Display for HistoryViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.place, self.rule.as_str(), self.detail)
    }
}

#[derive(Debug, Default)]
struct HistoryFindings(Vec<HistoryViolation>);

impl HistoryFindings {
    fn add(&mut self, rule: HistoryRule, place: impl Into<String>, detail: impl Into<String>) {
        self.0.push(HistoryViolation::new(rule, place, detail));
    }

    /// Adds a violation unless the condition holds.
    fn expect(&mut self, holds: bool, rule: HistoryRule, place: impl Into<String>, detail: impl Into<String>) {
        if !holds {
            self.add(rule, place, detail);
        }
    }

    /// `known` holds the names of all fields, with spaces between them.
    fn check_unknown_fields(&mut self, object: &Map<String, Value>, known: &str, place: &str) {
        for name in object.keys().filter(|name| !known.split(' ').any(|known| known == *name)) {
            self.add(HistoryRule::UnknownField, format!("{place}.{name}"), "is not a field of this dialect here");
        }
    }

    /// Checks the rules for a body that all dialects share; returns its messages, which are the field `list`.
    fn check_body<'a>(&mut self, body: &'a Value, known: &str, list: &str) -> &'a [Value] {
        let Some(object) = body.as_object() else {
            self.add(HistoryRule::BodyShape, "body", "is no object");
            return &[];
        };
        self.check_unknown_fields(object, known, "body");
        let messages = list_of(body, list);
        let place = format!("body.{list}");
        self.expect(!messages.is_empty(), HistoryRule::BodyShape, place, "is no list, or an empty one");
        messages
    }

    /// Checks the name of the model, in a dialect that has it in the body.
    fn check_model_name(&mut self, body: &Value) {
        let is_named = !body.is_object() || !text_of(body, "model").is_empty();
        self.expect(is_named, HistoryRule::BodyShape, "body.model", "is no name");
    }

    /// Checks that each tool has a legal name of its own. `name_of` names a tool that has the form of its dialect.
    fn check_tools<'a>(&mut self, tools: &'a [Value], name_of: impl Fn(&'a Value) -> Option<&'a str>) {
        let mut names = Vec::new();
        for (at, tool) in tools.iter().enumerate() {
            match name_of(tool).filter(|name| is_valid_tool_name(name) && !names.contains(name)) {
                Some(name) => names.push(name),
                None => {
                    let detail = "is no tool of this dialect with a legal name of its own";
                    self.add(HistoryRule::ToolDeclaration, format!("tools[{at}]"), detail);
                }
            }
        }
    }

    /// Checks the order of roles. `roles` excludes system messages.
    fn check_role_order(&mut self, roles: &[(usize, &str)]) {
        match roles.first() {
            Some((_, "user")) => {}
            Some((at, role)) => {
                self.add(HistoryRule::FirstNotUser, message_place(*at), format!("the first message is {role}"))
            }
            None => self.add(HistoryRule::FirstNotUser, "body.messages", "holds only system messages"),
        }
        if let Some((at, "assistant")) = roles.last() {
            self.add(HistoryRule::LastIsAssistant, message_place(*at), "leaves nothing to answer");
        }
        for pair in roles.windows(2) {
            let (at, rule) = match pair {
                [(_, "user"), (at, "user")] => (at, HistoryRule::ConsecutiveUser),
                [(_, "assistant"), (at, "assistant")] => (at, HistoryRule::ConsecutiveAssistant),
                _ => continue,
            };
            self.add(rule, message_place(*at), "follows another message of its role");
        }
    }

    /// Checks an id; returns it if present.
    fn check_call_id<'a>(&mut self, id: Option<&'a Value>, place: &str) -> Option<&'a str> {
        let id = id.and_then(Value::as_str);
        self.expect(id.is_some_and(|id| !id.is_empty()), HistoryRule::CallId, place, "is missing, empty or no text");
        id
    }
}

/// A text field; empty if it is missing or no text.
pub(crate) fn text_of<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// A list field; empty if it is missing or no list.
pub(crate) fn list_of<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    object.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn message_place(message: usize) -> String {
    format!("messages[{message}]")
}

fn is_valid_tool_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

/// True for a `data:` URL of one of the four media types that all services take.
fn is_data_url(url: &str) -> bool {
    ["png", "jpeg", "gif", "webp"]
        .iter()
        .find_map(|kind| url.strip_prefix("data:image/")?.strip_prefix(kind)?.strip_prefix(";base64,"))
        .is_some_and(is_base64)
}

const WRONG_PICTURE: &str = "is a picture that is neither data of a known kind nor a URL";

/// True for non-empty base64.
fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    !body.is_empty() && text.len().is_multiple_of(4) && text.len() - body.len() <= 2 && body.bytes().all(legal)
}

fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// A call or a result: index of its message, its place, its id.
#[derive(Debug, Clone)]
struct CallReference<'a> {
    message: usize,
    place: String,
    id: &'a str,
}

/// Matches calls and results. Each result comes with the index of the message whose calls it may answer, if any.
fn match_calls_to_results(
    findings: &mut HistoryFindings,
    calls: &[CallReference<'_>],
    results: &[(CallReference<'_>, Option<usize>)],
) {
    for (at, call) in calls.iter().enumerate() {
        if calls.iter().take(at).any(|earlier| earlier.id == call.id) {
            findings.add(HistoryRule::DuplicateCallId, &call.place, format!("{:?} was used before", call.id));
        }
    }
    let mut answered = vec![false; calls.len()];
    let mut strays = Vec::new();
    for (result, answers) in results {
        let mut open = calls.iter().zip(&mut answered);
        match open.find(|(call, has)| !**has && Some(call.message) == *answers && call.id == result.id) {
            Some((_, answered)) => *answered = true,
            None => strays.push(result),
        }
    }
    for stray in &strays {
        let mut named = calls.iter().zip(&answered).filter(|(call, _)| call.id == stray.id).peekable();
        let (rule, why) = if named.peek().is_none() {
            (HistoryRule::OrphanResult, "answers no call")
        } else if named.all(|(_, answered)| *answered) {
            (HistoryRule::ResultTwice, "answers a call that has its result")
        } else {
            (HistoryRule::ResultOutOfPlace, "does not stand directly after its call")
        };
        findings.add(rule, &stray.place, format!("{:?} {why}", stray.id));
    }
    for (call, _) in calls.iter().zip(&answered).filter(|(_, answered)| !**answered) {
        if !strays.iter().any(|stray| stray.id == call.id) {
            findings.add(HistoryRule::UnansweredCall, &call.place, format!("{:?} has no result", call.id));
        }
    }
}
