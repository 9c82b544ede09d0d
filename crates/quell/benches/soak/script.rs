//! What the driver tells the model server, and what that answers: JSON, a line each.

use std::collections::HashMap;
use std::time::Duration;

use quell_testkit::Behaviour;
use quell_testkit::model::{Step, Stream};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One answer of the model.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Say {
    /// A thought, then text, complete.
    Text(String),
    /// Takes the request and sends nothing.
    Silent,
    /// Begins and is silent then.
    Begin,
    /// A token every so many milliseconds, without end.
    Tokens(u64),
    /// A status, with a Retry-After.
    Refuse(u16, Option<String>),
    /// A thought, then these calls: tool and arguments.
    Calls(Vec<(String, Value)>),
}

/// An order to the model server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// What to answer to requests whose last marker is this, in order; afterwards a word.
    Script(HashMap<String, Vec<Say>>),
    /// What is left of these is not needed any more.
    Forget(Vec<String>),
    /// How it stands.
    Count,
}

/// How the model server stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Standing {
    pub(crate) requests: usize,
    /// Of them, in the Anthropic dialect.
    pub(crate) anthropic: usize,
    pub(crate) connections: usize,
    /// Every history that was refused, and whatever else was odd.
    pub(crate) complaints: Vec<String>,
}

impl From<Say> for Behaviour {
    fn from(say: Say) -> Self {
        let thought = || Stream::new().thinking("Let me see. ");
        match say {
            Say::Text(text) => thought().text(text).into(),
            Say::Silent => Self::SilentBeforeHeaders,
            Say::Begin => thought().text("So far ").step(Step::Silent).into(),
            Say::Tokens(ms) => thought().step(Step::TokensForever { every: Duration::from_millis(ms) }).into(),
            Say::Refuse(code, Some(after)) => {
                let body = serde_json::json!({"error": {"message": "scripted", "type": "scripted"}}).to_string();
                Self::Status { code, headers: vec![("retry-after".to_owned(), after)], body }
            }
            Say::Refuse(code, None) => Self::status(code),
            Say::Calls(calls) => {
                let add = |stream: Stream, (nth, (tool, arguments)): (usize, (String, Value))| {
                    stream.tool_call(format!("c{nth}"), tool, &arguments)
                };
                calls.into_iter().enumerate().fold(thought().text("I look."), add).into()
            }
        }
    }
}
