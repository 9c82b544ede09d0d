//! The turn of a run that is still at work.
//!
//! A draft accepts every change in any order. It ignores a result for an unknown call, and a second result, because the
//! first result of a call stands.

use std::borrow::Cow;
use std::collections::HashSet;

use quell_protocol::{CallEnd, CallId, RunId};

use super::output_buffer::{HeadTailBuffer, shorten_result};
use super::{
    AnsweredCall, AssistantMessage, CallResult, Citations, Compaction, DisplayOnly, MessageBlock, ModelMessage,
    StreamedText, ToolCall, TurnItem, call_ids, is_blank,
};
use crate::image::image_sources;

#[derive(Debug, Clone, PartialEq)]
pub struct TurnDraft {
    run_id: RunId,
    compaction: Option<Compaction>,
    entries: Vec<DraftEntry>,
    partial_text: String,
    partial_thinking: String,
    display_only: DisplayOnly,
}

#[derive(Debug, Clone, PartialEq)]
enum DraftEntry {
    User { text: String, at: Option<String> },
    Message(ModelMessage<DraftCall>),
}

#[derive(Debug, Clone, PartialEq)]
struct DraftCall {
    call: ToolCall,
    state: CallState,
    /// Microseconds from its start until it was cut off.
    ran_us: Option<u64>,
}

impl DraftCall {
    fn image_sources(&self) -> impl Iterator<Item = &str> {
        let result = match &self.state {
            CallState::Done(result) => Some(result),
            CallState::Waiting | CallState::Running(_) => None,
        };
        result.into_iter().flat_map(CallResult::image_sources)
    }
}

#[derive(Debug, Clone, PartialEq)]
enum CallState {
    Waiting,
    Running(HeadTailBuffer),
    Done(CallResult),
}

pub(super) struct OpenCall<'a> {
    pub(super) id: &'a CallId,
    /// Number of the call within the turn, from 0.
    pub(super) ordinal: usize,
    /// Its output so far; `None` if it has not started.
    pub(super) output: Option<&'a HeadTailBuffer>,
}

impl TurnDraft {
    /// Creates a turn with only the user's message.
    pub fn new(run_id: RunId, user: String) -> Self {
        let (partial_text, partial_thinking) = (String::new(), String::new());
        let entries = vec![DraftEntry::User { text: user, at: None }];
        let display_only = DisplayOnly::default();
        Self { run_id, compaction: None, entries, partial_text, partial_thinking, display_only }
    }

    /// Sets the arrival time of the first message, in RFC 3339 format.
    #[must_use]
    pub fn with_asked_at(mut self, asked_at: String) -> Self {
        if let Some(DraftEntry::User { at, .. }) = self.entries.first_mut() {
            *at = Some(asked_at);
        }
        self
    }

    pub fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// Sets the summary that replaces old turns from now on.
    pub fn set_compaction(&mut self, compaction: Compaction) {
        self.compaction = Some(compaction);
    }

    /// The summary that replaces turns before this one.
    pub fn compaction(&self) -> Option<&Compaction> {
        self.compaction.as_ref()
    }

    /// Approximate bytes of it in a model request.
    pub fn size(&self) -> usize {
        super::items_size(&self.items_for_model())
    }

    /// Approximate bytes of memory: texts, reasoning, calls and results, without the message that streams.
    pub fn memory_size(&self) -> usize {
        let of_call = |call: &DraftCall| {
            let result_bytes =
                |result: &CallResult| result.output.len() + result.diff.as_ref().map_or(0, |diff| diff.len());
            let output = if let CallState::Done(result) = &call.state { result_bytes(result) } else { 0 };
            call.call.tool.len() + crate::json_size::memory_size(&call.call.arguments) + output
        };
        let of_block = |block: &MessageBlock<DraftCall>| match block {
            MessageBlock::Text { text } => text.len(),
            MessageBlock::Thinking(thinking) => thinking.size(),
            MessageBlock::Call(call) => of_call(call),
        };
        let of_entry = |entry: &DraftEntry| match entry {
            DraftEntry::User { text, .. } => text.len(),
            DraftEntry::Message(message) => message.blocks.iter().map(of_block).sum(),
        };
        self.entries.iter().map(of_entry).sum()
    }

    /// Shortens the draft to about `max_bytes` in a request: the oldest results first, each to its ends.
    #[must_use]
    pub fn shortened_to_fit(&self, max_bytes: usize) -> Cow<'_, Self> {
        let size = self.size();
        if size <= max_bytes {
            return Cow::Borrowed(self);
        }
        // Shorten by whole quarters, so that the same results stay shortened over many requests and prompt caches work.
        let mut excess = (size - max_bytes).next_multiple_of((max_bytes / 4).max(1));
        let mut draft = self.clone();
        for call in draft.entries.iter_mut().filter_map(DraftEntry::message_mut).flat_map(ModelMessage::calls_mut) {
            if excess == 0 {
                break;
            }
            if let CallState::Done(result) = &mut call.state {
                let shortened = shorten_result(&result.output);
                excess = excess.saturating_sub(result.output.len() - shortened.len());
                result.output = shortened;
            }
        }
        Cow::Owned(draft)
    }

    /// Adds a steered message. `at` is its arrival time in RFC 3339 format.
    pub fn add_user(&mut self, text: String, at: Option<String>) {
        self.entries.push(DraftEntry::User { text, at });
    }

    /// Replaces the text of the first user message.
    pub fn replace_question(&mut self, text: String) {
        if let Some(DraftEntry::User { text: asked, .. }) = self.entries.first_mut() {
            *asked = text;
        }
    }

    /// Replaces the answer, a text for people: that of the last message, if that has no calls. Adds an answer if there
    /// is none. A blank text removes the answer, because a turn holds no empty message. The links below a text stay
    /// citations, so that no model reads them.
    pub fn replace_answer(&mut self, text: String) {
        let last = self.entries.last_mut().and_then(DraftEntry::message_mut);
        if let Some(answer) = last.filter(|message| message.calls().next().is_none()) {
            let first = answer.blocks.iter().position(|block| matches!(block, MessageBlock::Text { .. }));
            answer.blocks.retain(|block| !matches!(block, MessageBlock::Text { .. }));
            let links = answer.citations.as_markdown();
            let text = match text.strip_suffix(&links) {
                Some(own) if !is_blank(own) => own.to_owned(),
                Some(_) | None => {
                    answer.citations = Citations::default();
                    text
                }
            };
            // Blocks before the first text are reasoning and stay.
            answer.blocks.insert(first.unwrap_or(answer.blocks.len()), MessageBlock::Text { text });
            if !answer.has_content() {
                self.entries.pop();
            }
        } else if !is_blank(&text) {
            self.entries.push(DraftEntry::Message(ModelMessage::new(Vec::new(), text, Vec::new())));
        }
    }

    pub fn push_text(&mut self, text: &str) {
        self.partial_text.push_str(text);
    }

    pub fn push_thinking(&mut self, text: &str) {
        self.partial_thinking.push_str(text);
    }

    /// Discards the message that streams, for a retry.
    pub fn clear_partial(&mut self) {
        self.partial_text.clear();
        self.partial_thinking.clear();
    }

    pub fn partial_text(&self) -> &str {
        &self.partial_text
    }

    pub fn partial_thinking(&self) -> &str {
        &self.partial_thinking
    }

    /// Replaces the streamed part by a complete message. Returns its calls, with ids that are unique within the turn. A
    /// message without text and calls is dropped, because no provider accepts it back.
    pub fn finish_message(&mut self, message: AssistantMessage) -> Vec<ToolCall> {
        self.display_only.add_thought(self.entries.len(), std::mem::take(&mut self.partial_thinking));
        self.clear_partial();
        let message = self.with_unique_call_ids(message);
        let calls = message.calls().cloned().collect();
        if message.has_content() {
            let open = |call| DraftCall { call, state: CallState::Waiting, ran_us: None };
            self.entries.push(DraftEntry::Message(message.map_calls(open)));
        }
        calls
    }

    /// Marks a call as started: from now on side effects are possible.
    pub fn begin_call(&mut self, id: &CallId) {
        let Some(call) = self.call_mut(id) else { return };
        if call.state == CallState::Waiting {
            call.state = CallState::Running(HeadTailBuffer::default());
        }
    }

    /// Appends output of a running call. It is kept, up to a limit, for the result that a seal may have to synthesise.
    pub fn append_output(&mut self, id: &CallId, text: &str) {
        self.begin_call(id);
        if let Some(DraftCall { state: CallState::Running(output), .. }) = self.call_mut(id) {
            output.push(text);
        }
    }

    /// Sets the result of a call. The first result stands.
    pub fn finish_call(&mut self, id: &CallId, result: CallResult) {
        if let Some(call) = self.call_mut(id)
            && !matches!(call.state, CallState::Done(_))
        {
            call.state = CallState::Done(result);
        }
    }

    /// Records that an open call is about to be cut off, `ran_us` microseconds after its start.
    pub fn record_cut_off(&mut self, id: &CallId, ran_us: u64) {
        if let Some(call) = self.call_mut(id) {
            call.ran_us = Some(ran_us);
        }
    }

    /// All calls in order: id, tool, and its result if it has one.
    pub fn results(&self) -> impl Iterator<Item = (&CallId, &str, Option<&CallResult>)> {
        self.all_calls().map(|call| {
            let result = match &call.state {
                CallState::Waiting | CallState::Running(_) => None,
                CallState::Done(result) => Some(result),
            };
            (&call.call.id, call.call.tool.as_str(), result)
        })
    }

    pub(super) fn display_only(&self) -> &DisplayOnly {
        &self.display_only
    }

    /// Calls that have started and have no result, in order.
    pub fn running_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.all_calls().filter(|call| matches!(call.state, CallState::Running(_))).map(|call| &call.call)
    }

    /// All calls in order: id, tool, and how the call ended, if it has.
    #[cfg(test)]
    pub(crate) fn calls(&self) -> impl Iterator<Item = (&CallId, &str, Option<CallEnd>)> {
        self.results().map(|(id, tool, result)| (id, tool, result.map(|result| result.end)))
    }

    /// True once the model has produced text, reasoning or calls.
    pub fn has_output(&self) -> bool {
        self.messages().next().is_some() || !self.partial_text.is_empty() || !self.partial_thinking.is_empty()
    }

    /// The number of complete messages of the model.
    pub fn message_count(&self) -> usize {
        self.messages().count()
    }

    pub fn last_text(&self) -> Option<String> {
        self.messages().next_back().map(ModelMessage::text)
    }

    /// What the model has written, as it streamed. The first `known` messages are not its own; `step_start` is the number
    /// of messages before the newest step.
    pub fn streamed_text(&self, known: usize, step_start: usize) -> StreamedText {
        StreamedText::of_messages(self.messages(), known, step_start, &self.partial_text)
    }

    /// Text of the last message, if that has no calls.
    pub fn answer(&self) -> Option<String> {
        self.messages().next_back().filter(|message| message.calls().next().is_none()).map(ModelMessage::text)
    }

    /// Texts of the user, in order.
    pub(crate) fn user_texts(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter_map(|entry| match entry {
            DraftEntry::User { text, .. } => Some(text.as_str()),
            DraftEntry::Message(_) => None,
        })
    }

    /// Sources of its images, in order: those of user messages and of call results.
    pub(crate) fn image_sources(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().flat_map(|entry| match entry {
            DraftEntry::User { text, .. } => image_sources(text).collect::<Vec<_>>(),
            DraftEntry::Message(message) => message.calls().flat_map(DraftCall::image_sources).collect(),
        })
    }

    /// Items for the next model request: without the message that streams, and with a placeholder for each missing
    /// result.
    pub(crate) fn items_for_model(&self) -> Vec<TurnItem> {
        self.items(|_| SyntheticResult {
            result: CallResult::new(CallEnd::NotStarted, "[This call has no result yet.]"),
            synthetic: None,
        })
    }

    /// All complete messages. `synthesise` gives a result for each open call.
    pub(super) fn items(&self, synthesise: impl Fn(&OpenCall<'_>) -> SyntheticResult) -> Vec<TurnItem> {
        let mut ordinal = 0;
        let mut close = |DraftCall { call, state, ran_us }| {
            let output = match &state {
                CallState::Waiting => None,
                CallState::Running(output) => Some(output),
                CallState::Done(result) => {
                    ordinal += 1;
                    return AnsweredCall { call, result: result.clone(), synthetic: None };
                }
            };
            let SyntheticResult { result, synthetic } = synthesise(&OpenCall { id: &call.id, ordinal, output });
            ordinal += 1;
            AnsweredCall { call, result: CallResult { took_us: ran_us, ..result }, synthetic }
        };
        let item = |entry: &DraftEntry| match entry {
            DraftEntry::User { text, at } => TurnItem::User { text: text.clone(), at: at.clone() },
            DraftEntry::Message(message) => {
                let mut message = message.clone();
                message
                    .blocks
                    .retain(|block| !matches!(block, MessageBlock::Thinking(thinking) if !thinking.is_returnable()));
                TurnItem::Assistant(message.map_calls(&mut close))
            }
        };
        self.entries.iter().map(item).collect()
    }

    fn messages(&self) -> impl DoubleEndedIterator<Item = &ModelMessage<DraftCall>> {
        self.entries.iter().filter_map(|entry| match entry {
            DraftEntry::Message(message) => Some(message),
            DraftEntry::User { .. } => None,
        })
    }

    fn all_calls(&self) -> impl Iterator<Item = &DraftCall> {
        self.messages().flat_map(ModelMessage::calls)
    }

    /// Searches from the back, where the running calls are.
    fn call_mut(&mut self, id: &CallId) -> Option<&mut DraftCall> {
        let messages = self.entries.iter_mut().rev().filter_map(DraftEntry::message_mut);
        messages.flat_map(ModelMessage::calls_mut).find(|call| call.call.id == *id)
    }

    fn with_unique_call_ids(&self, message: AssistantMessage) -> AssistantMessage {
        let mut taken: HashSet<CallId> = self.all_calls().map(|call| call.call.id.clone()).collect();
        let mut ordinal = taken.len();
        message.map_calls(|call| {
            let mut id = call.id.clone();
            let mut salt = 0;
            while !call_ids::is_usable(&id) || !taken.insert(id.clone()) {
                id = call_ids::parse_wire_id(&call_ids::derived_call_id(&self.run_id, ordinal, salt));
                salt += 1;
            }
            ordinal += 1;
            ToolCall { id, ..call }
        })
    }
}

impl DraftEntry {
    fn message_mut(&mut self) -> Option<&mut ModelMessage<DraftCall>> {
        match self {
            Self::Message(message) => Some(message),
            Self::User { .. } => None,
        }
    }
}

/// A synthetic result of an open call, with its id.
pub(super) struct SyntheticResult {
    pub(super) result: CallResult,
    pub(super) synthetic: Option<String>,
}
