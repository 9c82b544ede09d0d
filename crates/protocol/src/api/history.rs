//! The history of a session, as people read it.

use serde::{Deserialize, Serialize};

use crate::event::CallEnd;
use crate::ids::{AgentId, Principal, RunId};
use crate::verdict::Verdict;

/// One message of a session's history, for people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryMessage {
    /// The run that left it; absent for `reset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// `user`, `assistant`, `tool`, `note`, or `reset` where the history was emptied.
    pub role: String,
    /// Its text.
    pub text: String,
    /// RFC 3339: when it came or was complete. Of what an older version stored, when its run ended.
    pub at: String,
    /// Calls of an assistant message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<HistoryCall>,
    /// The call that a tool message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// On a result: how the call ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<CallEnd>,
    /// On a result: the exit code, where the call was a command that exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// On a result: the milliseconds that the call took, where they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ms: Option<f64>,
    /// Reasoning of an assistant message, as it streamed, for people. A message that has nothing else was never complete.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub thinking: String,
    /// On the first message of a turn: the agent that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentId>,
    /// On the first message of a turn: who said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Principal>,
    /// True for partial text that the model does not see.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// True for partial text that the model does see, marked as interrupted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
    /// Verdict of the turn, on its last message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

impl HistoryMessage {
    /// A message without anything but its text.
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
            ms: None,
            thinking: String::new(),
            agent: None,
            principal: None,
            partial: false,
            kept: false,
            verdict: None,
        }
    }

    /// True for reasoning alone, of a message that said nothing: only people who follow the run care.
    #[must_use]
    pub fn is_thinking_alone(&self) -> bool {
        !self.thinking.is_empty() && self.text.is_empty() && self.calls.is_empty()
    }
}

/// A call in a history message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HistoryCall {
    /// The call's id.
    pub id: String,
    /// The tool's name.
    pub tool: String,
    /// Arguments as the model gave them.
    #[schema(value_type = Object)]
    pub arguments: serde_json::Value,
}
