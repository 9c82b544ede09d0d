//! The turn of a run that is still at work. It takes everything in any order and never refuses; what it cannot place (a
//! result for a call that does not exist, a second result) it drops, since the first word about a call is the true one.

use std::borrow::Cow;
use std::collections::HashSet;

use quell_protocol::{CallEnd, CallId, RunId};

use super::output::{Clipped, shortened};
use super::{
    AnsweredCall, AssistantMessage, Block, CallResult, Compaction, ForPeople, Item, Message, Thinking, ToolCall, ids,
};
use crate::picture::sources;

/// A growing turn.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnDraft {
    run: RunId,
    compaction: Option<Compaction>,
    entries: Vec<Entry>,
    partial_text: String,
    partial_thinking: String,
    for_people: ForPeople,
}

#[derive(Debug, Clone, PartialEq)]
enum Entry {
    User { text: String, at: Option<String> },
    Message(Message<DraftCall>),
}

#[derive(Debug, Clone, PartialEq)]
struct DraftCall {
    call: ToolCall,
    state: CallState,
    /// How long it had run when it was cut off, in microseconds.
    ran_us: Option<u64>,
}

impl DraftCall {
    fn pictures(&self) -> impl Iterator<Item = &str> {
        let result = match &self.state {
            CallState::Done(result) => Some(result),
            CallState::Waiting | CallState::Running(_) => None,
        };
        result.into_iter().flat_map(CallResult::sources)
    }
}

#[derive(Debug, Clone, PartialEq)]
enum CallState {
    Waiting,
    Running(Clipped),
    Done(CallResult),
}

/// A call without a result.
pub(super) struct OpenCall<'a> {
    pub(super) id: &'a CallId,
    /// Number within the turn, from 0.
    pub(super) ordinal: usize,
    /// What it printed so far; none when it has not begun.
    pub(super) output: Option<&'a Clipped>,
}

impl TurnDraft {
    /// A turn that holds what the user said and nothing else.
    #[must_use]
    pub fn new(run: RunId, user: String) -> Self {
        let (partial_text, partial_thinking) = (String::new(), String::new());
        let entries = vec![Entry::User { text: user, at: None }];
        let for_people = ForPeople::default();
        Self { run, compaction: None, entries, partial_text, partial_thinking, for_people }
    }

    /// The same turn, whose first message came at this time, RFC 3339.
    #[must_use]
    pub fn asked_at(mut self, came: String) -> Self {
        if let Some(Entry::User { at, .. }) = self.entries.first_mut() {
            *at = Some(came);
        }
        self
    }

    /// The run at work.
    #[must_use]
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// From now on a summary stands in for old turns.
    pub fn compact(&mut self, compaction: Compaction) {
        self.compaction = Some(compaction);
    }

    /// What stands in for turns before this one.
    #[must_use]
    pub fn compaction(&self) -> Option<&Compaction> {
        self.compaction.as_ref()
    }

    /// About how many bytes a model reads of it.
    #[must_use]
    pub fn size(&self) -> usize {
        super::items_size(&self.as_sent())
    }

    /// About how many bytes of memory it takes: what was said, thought, asked for and answered, without what streams.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let of_call = |call: &DraftCall| {
            let output = if let CallState::Done(result) = &call.state { result.output.len() } else { 0 };
            call.call.tool.len() + crate::json::size(&call.call.arguments) + output
        };
        let of_block = |block: &Block<DraftCall>| match block {
            Block::Text { text } | Block::Thinking(Thinking::Shown { text, .. } | Thinking::Open { text }) => {
                text.len()
            }
            Block::Thinking(Thinking::Redacted { data }) => data.len(),
            Block::Call(call) => of_call(call),
        };
        let of_entry = |entry: &Entry| match entry {
            Entry::User { text, .. } => text.len(),
            Entry::Message(message) => message.blocks.iter().map(of_block).sum(),
        };
        self.entries.iter().map(of_entry).sum()
    }

    /// The draft as a view shows it in so many bytes: the oldest results give way first, and of each its ends stay.
    #[must_use]
    pub fn fitting(&self, room: usize) -> Cow<'_, Self> {
        let size = self.size();
        if size <= room {
            return Cow::Borrowed(self);
        }
        // By whole quarters: what gave way stays the same over many requests, and so does the prompt cache.
        let mut excess = (size - room).next_multiple_of((room / 4).max(1));
        let mut draft = self.clone();
        for call in draft.entries.iter_mut().filter_map(Entry::message_mut).flat_map(Message::calls_mut) {
            if excess == 0 {
                break;
            }
            if let CallState::Done(result) = &mut call.state {
                let shortened = shortened(&result.output);
                excess = excess.saturating_sub(result.output.len() - shortened.len());
                result.output = shortened;
            }
        }
        Cow::Owned(draft)
    }

    /// Adds a steered message that came at this time, RFC 3339.
    pub fn add_user(&mut self, text: String, at: Option<String>) {
        self.entries.push(Entry::User { text, at });
    }

    /// Puts another text in the place of the message that the turn began with.
    pub fn ask_instead(&mut self, text: String) {
        if let Some(Entry::User { text: asked, .. }) = self.entries.first_mut() {
            *asked = text;
        }
    }

    /// Puts another text in the place of the answer: of what the last message says, if that asks for nothing. Where the model
    /// said nothing, this is what it said.
    pub fn answer_instead(&mut self, text: String) {
        let last = self.entries.last_mut().and_then(Entry::message_mut);
        let Some(answer) = last.filter(|message| message.calls().next().is_none()) else {
            self.entries.push(Entry::Message(Message::new(Vec::new(), text, Vec::new())));
            return;
        };
        let first = answer.blocks.iter().position(|block| matches!(block, Block::Text { .. }));
        answer.blocks.retain(|block| !matches!(block, Block::Text { .. }));
        // What stood before the first text was reasoning, and is all there.
        answer.blocks.insert(first.unwrap_or(answer.blocks.len()), Block::Text { text });
    }

    /// Adds text of the message that streams.
    pub fn push_text(&mut self, text: &str) {
        self.partial_text.push_str(text);
    }

    /// Adds reasoning of the message that streams.
    pub fn push_thinking(&mut self, text: &str) {
        self.partial_thinking.push_str(text);
    }

    /// Forgets the message that streams, as a retry does.
    pub fn drop_partial(&mut self) {
        self.partial_text.clear();
        self.partial_thinking.clear();
    }

    /// Text of the message that streams.
    #[must_use]
    pub fn partial_text(&self) -> &str {
        &self.partial_text
    }

    /// Reasoning of the message that streams.
    #[must_use]
    pub fn partial_thinking(&self) -> &str {
        &self.partial_thinking
    }

    /// Puts a complete message in place of what streamed, and returns its calls with ids that are unique within the turn.
    /// A message that says nothing and asks for nothing leaves no trace: no provider takes it back.
    pub fn finish_message(&mut self, message: AssistantMessage) -> Vec<ToolCall> {
        self.for_people.add_thought(self.entries.len(), std::mem::take(&mut self.partial_thinking));
        self.drop_partial();
        let message = self.with_own_ids(message);
        let calls = message.calls().cloned().collect();
        if message.says_something() {
            let open = |call| DraftCall { call, state: CallState::Waiting, ran_us: None };
            self.entries.push(Entry::Message(message.map_calls(open)));
        }
        calls
    }

    /// A call starts now: from here on side effects are possible.
    pub fn begin_call(&mut self, id: &CallId) {
        let Some(call) = self.call(id) else { return };
        if call.state == CallState::Waiting {
            call.state = CallState::Running(Clipped::default());
        }
    }

    /// A running call printed something. Kept, within bounds, for the result that a seal writes in its stead.
    pub fn append_output(&mut self, id: &CallId, text: &str) {
        self.begin_call(id);
        if let Some(DraftCall { state: CallState::Running(output), .. }) = self.call(id) {
            output.push(text);
        }
    }

    /// A call is over. Its first result stands.
    pub fn finish_call(&mut self, id: &CallId, result: CallResult) {
        if let Some(call) = self.call(id)
            && !matches!(call.state, CallState::Done(_))
        {
            call.state = CallState::Done(result);
        }
    }

    /// An open call is about to be cut off, so many microseconds after it began.
    pub fn cut_off(&mut self, id: &CallId, ran_us: u64) {
        if let Some(call) = self.call(id) {
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

    pub(super) fn for_people(&self) -> &ForPeople {
        &self.for_people
    }

    /// Calls that have begun and have no result, in order.
    pub fn running(&self) -> impl Iterator<Item = &ToolCall> {
        self.all_calls().filter(|call| matches!(call.state, CallState::Running(_))).map(|call| &call.call)
    }

    /// All calls in order: id, tool, and how it ended if it has.
    pub fn calls(&self) -> impl Iterator<Item = (&CallId, &str, Option<CallEnd>)> {
        self.results().map(|(id, tool, result)| (id, tool, result.map(|result| result.end)))
    }

    /// True once the model produced anything.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.messages().next().is_some() || !self.partial_text.is_empty() || !self.partial_thinking.is_empty()
    }

    /// Text of the last complete message.
    #[must_use]
    pub fn last_text(&self) -> Option<String> {
        self.messages().next_back().map(Message::text)
    }

    /// What the last message says, if that asks for nothing.
    #[must_use]
    pub fn answer(&self) -> Option<String> {
        self.messages().next_back().filter(|message| message.calls().next().is_none()).map(Message::text)
    }

    /// What the user said in it, in order.
    pub(crate) fn said(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::User { text, .. } => Some(text.as_str()),
            Entry::Message(_) => None,
        })
    }

    /// The sources of its pictures, in order: in what the user said, and with the results of calls.
    pub(crate) fn pictures(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().flat_map(|entry| match entry {
            Entry::User { text, .. } => sources(text).collect::<Vec<_>>(),
            Entry::Message(message) => message.calls().flat_map(DraftCall::pictures).collect(),
        })
    }

    /// The draft as the next model call sees it: what streams is not said yet, and a call without a result says so.
    pub(crate) fn as_sent(&self) -> Vec<Item> {
        self.items(|_| AnsweredAs {
            result: CallResult::new(CallEnd::NotStarted, "[This call has no result yet.]"),
            synthetic: None,
        })
    }

    /// Everything complete, with an answer made up for each open call.
    pub(super) fn items(&self, answer: impl Fn(&OpenCall<'_>) -> AnsweredAs) -> Vec<Item> {
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
            let AnsweredAs { result, synthetic } = answer(&OpenCall { id: &call.id, ordinal, output });
            ordinal += 1;
            AnsweredCall { call, result: CallResult { took_us: ran_us, ..result }, synthetic }
        };
        let item = |entry: &Entry| match entry {
            Entry::User { text, at } => Item::User { text: text.clone(), at: at.clone() },
            Entry::Message(message) => {
                let mut message = message.clone();
                message.blocks.retain(|block| !matches!(block, Block::Thinking(thinking) if !thinking.is_returnable()));
                Item::Assistant(message.map_calls(&mut close))
            }
        };
        self.entries.iter().map(item).collect()
    }

    fn messages(&self) -> impl DoubleEndedIterator<Item = &Message<DraftCall>> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Message(message) => Some(message),
            Entry::User { .. } => None,
        })
    }

    fn all_calls(&self) -> impl Iterator<Item = &DraftCall> {
        self.messages().flat_map(Message::calls)
    }

    /// From the back, where the calls at work are.
    fn call(&mut self, id: &CallId) -> Option<&mut DraftCall> {
        let messages = self.entries.iter_mut().rev().filter_map(Entry::message_mut);
        messages.flat_map(Message::calls_mut).find(|call| call.call.id == *id)
    }

    fn with_own_ids(&self, message: AssistantMessage) -> AssistantMessage {
        let mut taken: HashSet<CallId> = self.all_calls().map(|call| call.call.id.clone()).collect();
        let mut ordinal = taken.len();
        message.map_calls(|call| {
            let mut id = call.id.clone();
            let mut salt = 0;
            while !ids::usable(&id) || !taken.insert(id.clone()) {
                id = ids::wire_id(&ids::derived_call_id(&self.run, ordinal, salt));
                salt += 1;
            }
            ordinal += 1;
            ToolCall { id, ..call }
        })
    }
}

impl Entry {
    fn message_mut(&mut self) -> Option<&mut Message<DraftCall>> {
        match self {
            Self::Message(message) => Some(message),
            Self::User { .. } => None,
        }
    }
}

/// The answer to an open call.
pub(super) struct AnsweredAs {
    pub(super) result: CallResult,
    pub(super) synthetic: Option<String>,
}
