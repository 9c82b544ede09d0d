//! Turns, which runs leave in history: their items, results and visibility to models.
//!
//! Two types keep history valid by construction. A [`TurnDraft`] grows while the run works and may be in any state. A
//! [`Turn`] comes only from [`TurnDraft::seal`] or from a checked load. It stores every call together with its one
//! result, so that it cannot express an unanswered call or an orphan result. The dialects of providers are in
//! [`crate::prompt`].

mod call_ids;
mod char_window;
mod citation;
mod compaction;
mod display_only;
mod draft;
mod history;
mod message;
mod output_buffer;
#[cfg(test)]
pub(crate) mod samples;
mod seal;
mod stored;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use quell_protocol::{CallEnd, CallId, RunId, Usage, Verdict};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::image::{estimate_text_size, image_sources};
pub(crate) use call_ids::derived_call_id;
pub use char_window::newest_within_chars;
pub use citation::Citations;
pub(crate) use compaction::newest_compaction;
pub use compaction::{Compaction, newest_that_fit, turns_to_summarise};
pub use display_only::DisplayOnly;
pub use draft::TurnDraft;
pub use message::{MessageBlock, ModelMessage};
pub(crate) use output_buffer::HeadTailBuffer;
pub use output_buffer::keep_both_ends;
pub(crate) use seal::INTERRUPTED_MARK;
pub use stored::{InvalidTurn, TURN_VERSION};

/// Error code of a run whose request the model refused. A model also refuses everything that follows such a request. So
/// models no longer see that turn; people still see it.
pub const CODE_REFUSED: &str = "refused";

/// Error code of a run that failed because the model did not accept the images of the request, or older ones. Models no
/// longer see that turn. If it had no image of its own, they no longer see the images before it either, because every
/// later request would fail too.
pub const CODE_VISION: &str = "vision";

/// Prefix of the user message that tells a model of the end of a background sub-run.
pub const BACKGROUND_NEWS_PREFIX: &str = "[The background ";

/// The result of a call that the client itself carries out, as long as the client has not brought its own.
pub const RETURNED_TO_CLIENT: &str = "[This call was given to the client, which carries it out itself.]";

/// The user message of a turn whose run summarised the conversation on request.
pub const COMPACTION_REQUEST: &str = "[The user asked to summarise the conversation so far.]";

/// The user message of a turn with a message that somebody added in the assistant's name.
pub const ADDED_MESSAGE_REQUEST: &str =
    "[The next message was added to the conversation in the assistant's name. It answers no request.]";

/// True for the message of a run that stands where models need a message of the user, and that nobody wrote.
pub fn is_stand_in_request(text: &str) -> bool {
    [COMPACTION_REQUEST, ADDED_MESSAGE_REQUEST].contains(&text)
}

/// Error code of a run whose message a hook withheld: no model ever sees it; people do.
pub const CODE_WITHHELD: &str = "withheld";

/// A piece of reasoning, or of a provider's own search, as the provider gave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Thinking {
    Shown {
        /// May be empty if the provider sends only the signature.
        text: String,
        /// The provider's signature. A provider that signs does not accept its reasoning back without it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
    },
    /// Reasoning without a signature, such as `reasoning_content` of the chat dialect. Some models refuse their own
    /// call without the reasoning that led to it.
    Open {
        #[serde(rename = "open")]
        text: String,
    },
    /// Reasoning that only its provider can read.
    Redacted {
        /// The encrypted reasoning, which needs no signature.
        #[serde(rename = "redacted")]
        data: String,
    },
    /// A reasoning item of the Responses API: its summary can be read, the reasoning itself only by its provider.
    Item {
        #[serde(rename = "item")]
        id: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        summary: Vec<String>,
        encrypted: String,
    },
    /// The signature of the block that follows, which Gemini accepts back only on that block.
    BlockSignature {
        #[serde(rename = "block_signature")]
        signature: String,
    },
    /// A part of a web search that the provider itself carried out, in its own format, which it wants back unchanged.
    WebSearch {
        #[serde(rename = "web_search")]
        part: Value,
    },
}

impl Thinking {
    /// True when a provider would accept it back.
    pub fn is_returnable(&self) -> bool {
        match self {
            Self::Shown { signature, .. } => signature.as_deref().is_some_and(|signature| !is_blank(signature)),
            Self::Open { text } => !is_blank(text),
            Self::Redacted { data } => !is_blank(data),
            Self::Item { id, encrypted, .. } => !is_blank(id) && !is_blank(encrypted),
            Self::BlockSignature { signature } => !is_blank(signature),
            Self::WebSearch { part } => part.is_object(),
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Shown { text, .. } | Self::Open { text } => text.len(),
            Self::Redacted { data } => data.len(),
            Self::Item { summary, encrypted, .. } => summary.iter().map(String::len).sum::<usize>() + encrypted.len(),
            Self::BlockSignature { signature } => signature.len(),
            Self::WebSearch { part } => part.to_string().len(),
        }
    }

    /// The part that people can read, in paragraphs; empty if there is none.
    pub fn readable_text(&self) -> Cow<'_, str> {
        match self {
            Self::Shown { text, .. } | Self::Open { text } => text.into(),
            Self::Item { summary, .. } => summary.join("\n\n").into(),
            Self::Redacted { .. } | Self::BlockSignature { .. } | Self::WebSearch { .. } => "".into(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Unique within the turn once [`TurnDraft::finish_message`] has returned it.
    pub id: CallId,
    /// Name of the tool as the model wrote it.
    pub tool: String,
    pub arguments: Value,
}

impl ToolCall {
    /// A call as received. [`TurnDraft::finish_message`] replaces an invalid id, such as an empty or far too long one.
    pub fn from_wire(id: &str, tool: impl Into<String>, arguments: Value) -> Self {
        Self { id: call_ids::parse_wire_id(id), tool: tool.into(), arguments }
    }
}

pub type AssistantMessage = ModelMessage<ToolCall>;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallResult {
    pub end: CallEnd,
    /// The text for the model.
    pub output: String,
    /// Images of the result, for models with vision: absolute paths of files, or the URLs that a client sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pictures: Vec<String>,
    /// Exit code of a command that exited. For people; the model reads it in the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// Unified diffs of the files that the call changed. For people; models do not read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<Box<str>>,
    /// Microseconds from the start of the call to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_us: Option<u64>,
    /// Time of the result in RFC 3339 format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

impl CallResult {
    /// A result without images, code and times.
    pub fn new(end: CallEnd, output: impl Into<String>) -> Self {
        Self { end, output: output.into(), pictures: Vec::new(), code: None, diff: None, took_us: None, at: None }
    }

    pub(crate) fn image_sources(&self) -> impl Iterator<Item = &str> {
        self.pictures.iter().map(String::as_str)
    }

    /// Duration of the call in milliseconds, if known.
    #[expect(clippy::cast_precision_loss, reason = "microseconds of up to 285 years are exact")]
    pub fn duration_ms(&self) -> Option<f64> {
        self.took_us.map(|us| us as f64 / 1000.0)
    }

    /// The result of a call that never started. The agent loop and the seal use the same text.
    pub fn not_started() -> Self {
        Self::new(CallEnd::NotStarted, seal::NOT_STARTED)
    }

    /// The result of a call that was stopped while it ran, with its `output` so far.
    pub fn stopped(output: &str) -> Self {
        let output = match output {
            "" => seal::STOPPED_WITHOUT_OUTPUT.into(),
            printed => format!("{}\n{printed}", seal::STOPPED_WITH_OUTPUT),
        };
        Self::new(CallEnd::Stopped, output)
    }

    /// Marks the result of a call that completed after the request was stopped.
    #[must_use]
    pub fn marked_after_stop(self) -> Self {
        match self.end {
            CallEnd::Ok | CallEnd::Error => Self { output: format!("{}\n{}", seal::AFTER_STOP, self.output), ..self },
            CallEnd::Stopped | CallEnd::NotStarted | CallEnd::Denied => self,
        }
    }
}

/// What the model sees of a message that was cut off while it streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartialPolicy {
    /// Nothing. The text is kept for people.
    #[default]
    Discard,
    /// Its text, marked as interrupted.
    Keep,
}

#[derive(Debug, Clone)]
pub struct SealOptions<'a> {
    pub verdict: &'a Verdict,
    pub policy: PartialPolicy,
    /// RFC 3339.
    pub sealed_at: String,
    pub usage: Usage,
}

/// A sealed turn: valid, and never changed again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "stored::UncheckedTurn")]
pub struct Turn {
    version: u32,
    run_id: RunId,
    #[serde(skip_serializing_if = "Option::is_none")]
    compaction: Option<Compaction>,
    items: Vec<TurnItem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partial: Option<PartialMessage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    #[serde(skip_serializing_if = "DisplayOnly::is_empty")]
    for_people: DisplayOnly,
    verdict: Verdict,
    sealed_at: String,
    usage: Usage,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TurnItem {
    /// A message of the user. The first item of a turn is always one.
    User {
        text: String,
        /// Time of arrival in RFC 3339 format.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<String>,
    },
    /// A complete message of the model, with the results of its calls. It contains visible text or a call, and only
    /// reasoning that its provider accepts back.
    Assistant(ModelMessage<AnsweredCall>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnsweredCall {
    pub call: ToolCall,
    pub result: CallResult,
    /// Id of a result that sealing synthesised; `None` for the tool's own result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synthetic: Option<String>,
}

/// The streamed part of a message that was cut off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialMessage {
    pub text: String,
    /// Reasoning. It is never sent to a model, because its signature would have come last.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub thinking: String,
    pub policy: PartialPolicy,
}

/// What a model has written in a run, as it streamed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamedText {
    /// The texts of the steps before the newest one, without separators.
    pub earlier: String,
    /// The text of the newest step.
    pub step: String,
}

impl StreamedText {
    fn of_messages<'a, C: 'a>(
        messages: impl Iterator<Item = &'a ModelMessage<C>>,
        known: usize,
        step_start: usize,
        partial: &str,
    ) -> Self {
        let mut text = Self::default();
        for (index, message) in messages.enumerate().skip(known) {
            let part = if index < step_start { &mut text.earlier } else { &mut text.step };
            part.push_str(&message.own_text());
        }
        text.step.push_str(partial);
        text
    }
}

impl Turn {
    pub fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// True if its run summarised the conversation on request, and did nothing else.
    pub fn is_compaction_request(&self) -> bool {
        matches!(self.items.first(), Some(TurnItem::User { text, .. }) if text == COMPACTION_REQUEST)
    }

    /// The summary that replaces turns before this one.
    pub fn compaction(&self) -> Option<&Compaction> {
        self.compaction.as_ref()
    }

    /// Approximate bytes of it in a model request.
    pub fn size(&self) -> usize {
        if self.is_hidden_from_models() { 0 } else { items_size(&self.items) }
    }

    /// The turn with long results shortened to their ends.
    fn with_shortened_results(&self) -> Self {
        let mut turn = self.clone();
        for item in &mut turn.items {
            let TurnItem::Assistant(message) = item else { continue };
            message
                .calls_mut()
                .for_each(|call| call.result.output = output_buffer::shorten_result(&call.result.output));
        }
        turn
    }

    /// True when models see at most the note of this turn.
    pub(crate) fn is_hidden_from_models(&self) -> bool {
        [CODE_REFUSED, CODE_VISION, CODE_WITHHELD].into_iter().any(|code| self.has_failed_with(code))
            || self.is_undone_session_work()
    }

    /// True if its run was to summarise the conversation or to add a message, and has not done so: there is nothing that
    /// models need to know of it.
    fn is_undone_session_work(&self) -> bool {
        let is_stand_in = matches!(self.items.first(), Some(TurnItem::User { text, .. }) if is_stand_in_request(text));
        is_stand_in && self.verdict != Verdict::Completed && self.compaction.is_none()
    }

    /// The note, as far as models see it.
    pub(crate) fn note_for_models(&self) -> Option<&str> {
        self.note().filter(|_| !self.is_undone_session_work())
    }

    /// True when a model did not accept the images of this turn, or those before it.
    pub(crate) fn is_vision_failure(&self) -> bool {
        self.has_failed_with(CODE_VISION)
    }

    fn has_failed_with(&self, wanted: &str) -> bool {
        matches!(&self.verdict, Verdict::Failed { code, .. } if code == wanted)
    }

    /// Sources of its images, in order: those of user messages and of call results.
    pub(crate) fn image_sources(&self) -> impl Iterator<Item = &str> {
        self.items.iter().flat_map(|item| match item {
            TurnItem::User { text, .. } => image_sources(text).collect::<Vec<_>>(),
            TurnItem::Assistant(message) => message.calls().flat_map(|call| call.result.image_sources()).collect(),
        })
    }

    /// Complete messages with their calls, in order.
    pub fn items(&self) -> &[TurnItem] {
        &self.items
    }

    /// The streamed part of a message that was cut off.
    pub fn partial(&self) -> Option<&PartialMessage> {
        self.partial.as_ref()
    }

    /// Text about the end of this turn, for people and, mostly, for the model.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// The answer of a completed run: the text of its last message, if that has no calls. A message cut off is never
    /// one.
    pub fn final_text(&self) -> Option<String> {
        if self.verdict != Verdict::Completed {
            return None;
        }
        let last = self.messages().next_back();
        last.filter(|message| message.calls().next().is_none()).map(ModelMessage::text)
    }

    /// The text that people see for the whole run: its answer, or the streamed part of a message that was cut off.
    pub fn shown_text(&self) -> Option<String> {
        let partial = || self.partial.as_ref().map(|partial| partial.text.clone());
        self.final_text().or_else(partial).filter(|text| !text.is_empty())
    }

    /// What the model has written, as it streamed: see [`TurnDraft::streamed_text`].
    pub fn streamed_text(&self, known: usize, step_start: usize) -> StreamedText {
        let partial = self.partial.as_ref().map(|partial| partial.text.as_str());
        StreamedText::of_messages(self.messages(), known, step_start, partial.unwrap_or_default())
    }

    /// All calls in order: id, tool, result.
    pub fn results(&self) -> impl Iterator<Item = (&CallId, &str, &CallResult)> {
        self.answered_calls().map(|AnsweredCall { call, result, .. }| (&call.id, call.tool.as_str(), result))
    }

    pub fn result_of(&self, call: &CallId) -> Option<&CallResult> {
        self.answered_calls().find(|answered| answered.call.id == *call).map(|answered| &answered.result)
    }

    /// Ids of the results that sealing synthesised.
    #[cfg(test)]
    pub(crate) fn synthetic_ids(&self) -> impl Iterator<Item = &str> {
        self.answered_calls().filter_map(|call| call.synthetic.as_deref())
    }

    fn answered_calls(&self) -> impl Iterator<Item = &AnsweredCall> {
        self.messages().flat_map(ModelMessage::calls)
    }

    fn messages(&self) -> impl DoubleEndedIterator<Item = &ModelMessage<AnsweredCall>> {
        self.items.iter().filter_map(|item| match item {
            TurnItem::Assistant(message) => Some(message),
            TurnItem::User { .. } => None,
        })
    }
}

/// Approximate bytes of these items in a model request, with a constant for the syntax of the dialect.
fn items_size(items: &[TurnItem]) -> usize {
    let call =
        |call: &AnsweredCall| call.call.tool.len() + call.call.arguments.to_string().len() + call.result.output.len();
    let item = |item: &TurnItem| match item {
        TurnItem::User { text, .. } => estimate_text_size(text) + FRAMING_BYTES,
        TurnItem::Assistant(message) => message.size(call),
    };
    items.iter().map(item).sum()
}

/// Approximate bytes of syntax around a message or a call.
const FRAMING_BYTES: usize = 40;

/// True for text that no provider accepts as content.
pub fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}
