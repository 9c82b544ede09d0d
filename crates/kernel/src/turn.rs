//! The turn: what a run leaves in history.
//!
//! Two types keep history valid by construction. A [`TurnDraft`] grows while the run works and may be in any state; a [`Turn`]
//! comes only from [`TurnDraft::seal`] or from a checked load, and in it every call stands together with its one result, so
//! that an unanswered call or an orphan result cannot even be written down. Nothing here knows a provider's dialect; that is
//! [`crate::view`].

mod compaction;
mod draft;
mod for_people;
mod history;
mod ids;
mod message;
mod output;
#[cfg(test)]
pub(crate) mod sample;
mod seal;
mod stored;
#[cfg(test)]
mod tests;
mod window;

use quell_protocol::{CallEnd, CallId, RunId, Usage, Verdict};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::picture::{sources, weight};
pub(crate) use compaction::newest_compaction;
pub use compaction::{Compaction, readable, turns_to_summarise};
pub use draft::TurnDraft;
pub use for_people::ForPeople;
pub(crate) use ids::derived_call_id;
pub use message::{Block, Message};
pub(crate) use output::Clipped;
pub use output::with_ends;
pub(crate) use seal::INTERRUPTED_MARK;
pub use stored::{InvalidTurn, TURN_VERSION};
pub use window::within_chars;

/// The code of a run that failed because the model refused the request. A model refuses whatever follows a request that it
/// refused, so that turn leaves what models see; people still see it.
pub const REFUSED: &str = "refused";

/// The code of a run that failed because the model did not take the pictures of the request, or older ones. That turn leaves what
/// models see, too; when it had no picture of its own, the pictures before it do as well, since every later request would fail of
/// them.
pub const VISION: &str = "vision";

/// Begins what a model reads of the end of a sub-run in the background, as a message of its user.
pub const NEWS: &str = "[The background ";

/// The code of a run whose message a hook kept back: no model reads it, now or later; people still see it.
pub const WITHHELD: &str = "withheld";

/// A piece of reasoning as the provider gave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Thinking {
    /// Reasoning that can be read.
    Shown {
        /// The reasoning, which may be empty where a provider sends the signature alone.
        text: String,
        /// The provider's proof that it made it. Without one a provider that signs does not take the reasoning back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
    },
    /// Reasoning that needs no proof, as the chat dialect's `reasoning_content`: some models refuse a call of theirs without the
    /// reasoning that led to it.
    Open {
        /// The reasoning.
        #[serde(rename = "open")]
        text: String,
    },
    /// Reasoning that only its provider can read.
    Redacted {
        /// The reasoning, encrypted, which is its own proof.
        #[serde(rename = "redacted")]
        data: String,
    },
}

impl Thinking {
    /// True when a provider would take it back.
    #[must_use]
    pub fn is_returnable(&self) -> bool {
        match self {
            Self::Shown { signature, .. } => signature.as_deref().is_some_and(|signature| !blank(signature)),
            Self::Open { text } => !blank(text),
            Self::Redacted { data } => !blank(data),
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Shown { text, .. } | Self::Open { text } => text.len(),
            Self::Redacted { data } => data.len(),
        }
    }
}

/// A tool invocation that the model asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Its id, unique within the turn once [`TurnDraft::finish_message`] returned it.
    pub id: CallId,
    /// The tool's name as the model gave it.
    pub tool: String,
    /// Arguments as the model gave them.
    pub arguments: Value,
}

impl ToolCall {
    /// A call as it came over the wire. An id that is no id (empty, absurdly long) is left for
    /// [`TurnDraft::finish_message`] to replace.
    #[must_use]
    pub fn from_wire(id: &str, tool: impl Into<String>, arguments: Value) -> Self {
        Self { id: ids::wire_id(id), tool: tool.into(), arguments }
    }
}

/// A complete message of the model.
pub type AssistantMessage = Message<ToolCall>;

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallResult {
    /// How it ended.
    pub end: CallEnd,
    /// What the model reads.
    pub output: String,
    /// The pictures that came with it, as absolute paths of their files: a model that sees is shown them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pictures: Vec<String>,
    /// Exit code, where the call was a command that exited. For people; a model reads it in the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// Microseconds from the start of the call to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_us: Option<u64>,
    /// RFC 3339: when it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

impl CallResult {
    /// A result that says only this.
    #[must_use]
    pub fn new(end: CallEnd, output: impl Into<String>) -> Self {
        Self { end, output: output.into(), pictures: Vec::new(), code: None, took_us: None, at: None }
    }

    /// The sources of its pictures.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &str> {
        self.pictures.iter().map(String::as_str)
    }

    /// Milliseconds that the call took, where they are known.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "285 years in microseconds are exact")]
    pub fn ms(&self) -> Option<f64> {
        self.took_us.map(|us| us as f64 / 1000.0)
    }

    /// The result of a call that never began. The words are the same whether a tool's caller or a seal says them.
    #[must_use]
    pub fn not_started() -> Self {
        Self::new(CallEnd::NotStarted, seal::NOT_STARTED)
    }

    /// The result of a call that was stopped while it ran and had printed `output`.
    #[must_use]
    pub fn stopped(output: &str) -> Self {
        let output = match output {
            "" => seal::STOPPED_SILENT.into(),
            printed => format!("{}\n{printed}", seal::STOPPED),
        };
        Self::new(CallEnd::Stopped, output)
    }

    /// The same result, of a call that came to its own end after the request was stopped.
    #[must_use]
    pub fn after_the_stop(self) -> Self {
        match self.end {
            CallEnd::Ok | CallEnd::Error => Self { output: format!("{}\n{}", seal::AFTER_STOP, self.output), ..self },
            CallEnd::Stopped | CallEnd::NotStarted | CallEnd::Denied => self,
        }
    }
}

/// What the model sees of a message that was cut while it streamed (row X8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartialPolicy {
    /// Nothing; it is kept for people.
    #[default]
    Discard,
    /// Its text, marked as interrupted.
    Keep,
}

/// What closes a draft.
#[derive(Debug, Clone)]
pub struct Sealing<'a> {
    /// How the run ended.
    pub verdict: &'a Verdict,
    /// What becomes of a cut message.
    pub policy: PartialPolicy,
    /// RFC 3339.
    pub sealed_at: String,
    /// Tokens of the run.
    pub usage: Usage,
}

/// A sealed turn: valid, and never changed again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "stored::Unchecked")]
pub struct Turn {
    version: u32,
    run_id: RunId,
    #[serde(skip_serializing_if = "Option::is_none")]
    compaction: Option<Compaction>,
    items: Vec<Item>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partial: Option<Partial>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    #[serde(skip_serializing_if = "ForPeople::is_empty")]
    for_people: ForPeople,
    verdict: Verdict,
    sealed_at: String,
    usage: Usage,
}

/// One piece of a turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Item {
    /// What the user said; the first item of a turn is always one.
    User {
        /// The text.
        text: String,
        /// RFC 3339: when it came.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<String>,
    },
    /// A complete message of the model, with the results of its calls. It holds visible text or a call, and of its reasoning
    /// what its provider takes back.
    Assistant(Message<AnsweredCall>),
}

/// A call with its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnsweredCall {
    /// The call.
    pub call: ToolCall,
    /// Its result.
    pub result: CallResult,
    /// Id of the result where sealing had to make it up; absent where the tool itself answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synthetic: Option<String>,
}

/// What had streamed of a message that was cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partial {
    /// Visible text.
    pub text: String,
    /// Reasoning; never shown to a model, since the provider's signature comes last.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub thinking: String,
    /// Whether a model sees the text.
    pub policy: PartialPolicy,
}

impl Turn {
    /// The run that left it.
    #[must_use]
    pub fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// What stands in for turns before this one.
    #[must_use]
    pub fn compaction(&self) -> Option<&Compaction> {
        self.compaction.as_ref()
    }

    /// About how many bytes a model reads of it.
    #[must_use]
    pub fn size(&self) -> usize {
        if self.is_left_out() { 0 } else { items_size(&self.items) }
    }

    /// The turn with only the ends of long results, for a reader with little room.
    fn shortened(&self) -> Self {
        let mut turn = self.clone();
        for item in &mut turn.items {
            let Item::Assistant(message) = item else { continue };
            message.calls_mut().for_each(|call| call.result.output = output::shortened(&call.result.output));
        }
        turn
    }

    /// True when models see nothing of it but its note.
    #[must_use]
    pub(crate) fn is_left_out(&self) -> bool {
        seal::is_refusal(&self.verdict) || self.is_unseen() || seal::is_withheld(&self.verdict)
    }

    /// True when a model did not take the pictures of it, or those before it.
    #[must_use]
    pub(crate) fn is_unseen(&self) -> bool {
        seal::is_blindness(&self.verdict)
    }

    /// The sources of its pictures, in order: in what the user said, and with the results of calls.
    pub(crate) fn pictures(&self) -> impl Iterator<Item = &str> {
        self.items.iter().flat_map(|item| match item {
            Item::User { text, .. } => sources(text).collect::<Vec<_>>(),
            Item::Assistant(message) => message.calls().flat_map(|call| call.result.sources()).collect(),
        })
    }

    /// Everything complete, in order.
    #[must_use]
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// What had streamed of a cut message.
    #[must_use]
    pub fn partial(&self) -> Option<&Partial> {
        self.partial.as_ref()
    }

    /// What the model is told about the end of this turn.
    #[must_use]
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// How the run ended.
    #[must_use]
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// RFC 3339.
    #[must_use]
    pub fn sealed_at(&self) -> &str {
        &self.sealed_at
    }

    /// Tokens of the run.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// The answer of a completed run: the text of its last message, when that asked for no call. A cut message is never one.
    #[must_use]
    pub fn final_text(&self) -> Option<String> {
        if self.verdict != Verdict::Completed {
            return None;
        }
        let last = self.messages().next_back();
        last.filter(|message| message.calls().next().is_none()).map(Message::text)
    }

    /// What people are shown for the run as a whole: its answer, else what had streamed of a message that was cut.
    #[must_use]
    pub fn shown_text(&self) -> Option<String> {
        let partial = || self.partial.as_ref().map(|partial| partial.text.clone());
        self.final_text().or_else(partial).filter(|text| !text.is_empty())
    }

    /// All its calls in order: id, tool, result.
    pub fn results(&self) -> impl Iterator<Item = (&CallId, &str, &CallResult)> {
        self.answered().map(|AnsweredCall { call, result, .. }| (&call.id, call.tool.as_str(), result))
    }

    /// The result of one of its calls.
    #[must_use]
    pub fn result_of(&self, call: &CallId) -> Option<&CallResult> {
        self.answered().find(|answered| answered.call.id == *call).map(|answered| &answered.result)
    }

    /// Ids of the results that sealing made up.
    pub fn synthetic_ids(&self) -> impl Iterator<Item = &str> {
        self.answered().filter_map(|call| call.synthetic.as_deref())
    }

    fn answered(&self) -> impl Iterator<Item = &AnsweredCall> {
        self.messages().flat_map(Message::calls)
    }

    fn messages(&self) -> impl DoubleEndedIterator<Item = &Message<AnsweredCall>> {
        self.items.iter().filter_map(|item| match item {
            Item::Assistant(message) => Some(message),
            Item::User { .. } => None,
        })
    }
}

/// About how many bytes a model reads of these items; the dialects add a little around each.
fn items_size(items: &[Item]) -> usize {
    let call =
        |call: &AnsweredCall| call.call.tool.len() + call.call.arguments.to_string().len() + call.result.output.len();
    let item = |item: &Item| match item {
        Item::User { text, .. } => weight(text) + AROUND,
        Item::Assistant(message) => message.size(call),
    };
    items.iter().map(item).sum()
}

/// What a dialect writes around a message or a call.
const AROUND: usize = 40;

/// True for text that no provider takes as content.
#[must_use]
pub fn blank(text: &str) -> bool {
    text.trim().is_empty()
}
