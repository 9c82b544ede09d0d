//! What both versions of the protocol can say: what an editor is shown, what it is asked, and how a prompt ends.
//! [`crate::v1`] and [`crate::v2`] write it in their words.

use std::path::PathBuf;

use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::diff::FileEdit;
use crate::wire::{Meta, RpcError};

/// The editor's side of one prompt.
pub(crate) trait EditorTurn: Send + Sync {
    fn send(&self, update: EditorUpdate) -> Result<(), RpcError>;

    /// Asks a person for a permission.
    ///
    /// # Cancel safety
    /// If dropped, the editor is told that the answer is not needed any more.
    fn ask(&self, request: PermissionRequest) -> BoxFuture<'static, Result<PermissionOutcome, RpcError>>;

    /// Reports what the run does. The first report says that it has begun.
    fn report(&self, activity: RunActivity) -> Result<(), RpcError>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunActivity {
    Working,
    /// Nothing goes on until a person has answered.
    WaitsForPerson,
}

/// A change of the conversation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum EditorUpdate {
    /// Continues a message.
    AddedText(MessageText),
    /// A message of the history.
    WholeText(MessageText),
    CallAnnounced {
        call: CallDescription,
        status: CallStatus,
    },
    /// A call has begun, or ended without a result.
    CallStatus {
        id: String,
        status: CallStatus,
    },
    /// All that a running call has printed; Markdown.
    CallOutput {
        id: String,
        output: String,
    },
    CallEnded(EndedCall),
    Plan(Vec<PlanItem>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MessageText {
    pub(crate) role: MessageRole,
    /// The id of the message; the same in the stream and in the history.
    pub(crate) message: String,
    pub(crate) text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageRole {
    User,
    Agent,
    Thought,
}

/// What is known of a call when it begins.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CallDescription {
    pub(crate) id: String,
    pub(crate) tool: String,
    pub(crate) title: String,
    pub(crate) kind: CallKind,
    pub(crate) location: Option<FileLocation>,
    pub(crate) arguments: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallKind {
    Read,
    Edit,
    Search,
    Execute,
    Fetch,
    Think,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallStatus {
    Pending,
    InProgress,
    Completed,
    Failed,
    /// Ended by a stop, or never begun because of one.
    Cancelled,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileLocation {
    pub(crate) path: PathBuf,
    /// From 1.
    pub(crate) line: Option<u32>,
}

/// What is known of a call when it has ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EndedCall {
    pub(crate) id: String,
    pub(crate) status: CallStatus,
    pub(crate) raw: Value,
    pub(crate) content: CallContent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallContent {
    /// Markdown.
    Texts(Vec<String>),
    Diffs(Vec<FileEdit>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlanItem {
    pub(crate) text: String,
    pub(crate) status: PlanStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlanStatus {
    Pending,
    InProgress,
    Completed,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PermissionRequest {
    pub(crate) call: CallDescription,
    /// What a person should know before the answer.
    pub(crate) note: Option<String>,
    pub(crate) choices: Vec<PermissionChoice>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PermissionChoice {
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    pub(crate) kind: ChoiceKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChoiceKind {
    AllowOnce,
    AllowAlways,
    RejectOnce,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PermissionOutcome {
    /// The id of a choice.
    Selected(String),
    /// The editor has given up the whole turn.
    Cancelled,
}

/// How a prompt ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PromptEnd {
    pub(crate) reason: EndReason,
    /// The receipt, if the end of the run is known.
    pub(crate) meta: Option<Meta>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndReason {
    EndTurn,
    MaxTokens,
    MaxTurnRequests,
    Refusal,
    Cancelled,
}

/// A block of a prompt that Quell reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PromptBlock {
    Text(String),
    Link { name: String, uri: String },
    Picture { uri: Option<String>, media_type: String, data: String },
    TextFile { uri: String, text: String },
    BinaryFile { uri: String, media_type: Option<String>, data: String },
}
