//! Messages of a session's history, for people.

use serde::{Deserialize, Serialize};

use crate::event::CallEnd;
use crate::ids::{AgentId, Principal, RunId};
use crate::verdict::Verdict;

/// One message of a session's history, for people.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryMessage {
    /// The run that the message belongs to; absent for `reset`.
    pub run_id: Option<RunId>,
    /// `user`, `assistant`, `tool`, `note`, or `reset` at the point where the history was emptied.
    pub role: String,
    pub text: String,
    /// Time at which the message arrived or was complete, RFC 3339. In a turn that an older version stored: the end of
    /// the run.
    pub at: String,
    /// Calls of an assistant message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<HistoryCall>,
    /// The call whose result this tool message is.
    pub call_id: Option<String>,
    /// On a result: how the call ended.
    pub end: Option<CallEnd>,
    /// On a result: the exit code, if the call was a command that exited.
    pub code: Option<i32>,
    /// On a result: unified diffs of the files that the call changed.
    pub diff: Option<String>,
    /// On a result: the duration of the call in milliseconds, if it is known.
    pub ms: Option<f64>,
    /// Reasoning of an assistant message, as it streamed, for people. A message with reasoning alone was cut off.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub thinking: String,
    /// On the first message of a turn: the agent that answered.
    pub agent: Option<AgentId>,
    /// On the first message of a turn: the principal who sent it.
    pub principal: Option<Principal>,
    /// True for partial text that the model does not see.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// True for partial text that the model does see, marked as interrupted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
    /// On the last message of a turn: the verdict.
    pub verdict: Option<Verdict>,
}

impl HistoryMessage {
    /// Makes a message that has only a text.
    #[must_use]
    pub fn new(run_id: Option<RunId>, role: &str, text: &str, at: &str) -> Self {
        Self {
            run_id,
            role: role.to_owned(),
            text: text.to_owned(),
            at: at.to_owned(),
            calls: Vec::new(),
            call_id: None,
            end: None,
            code: None,
            diff: None,
            ms: None,
            thinking: String::new(),
            agent: None,
            principal: None,
            partial: false,
            kept: false,
            verdict: None,
        }
    }

    /// True for a message that has only reasoning: it was cut off before it said anything.
    #[must_use]
    pub fn is_thinking_alone(&self) -> bool {
        !self.thinking.is_empty() && self.text.is_empty() && self.calls.is_empty()
    }
}

/// A call in an assistant message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HistoryCall {
    pub id: String,
    pub tool: String,
    /// The arguments as the model gave them.
    #[schema(value_type = Object)]
    pub arguments: serde_json::Value,
}
