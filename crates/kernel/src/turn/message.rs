//! A model's message as ordered blocks of reasoning, text and calls.
//!
//! The order matters: providers that sign reasoning accept it back only at its original position, and a model may
//! reason between two calls.

use serde::{Deserialize, Serialize};

use super::{Citations, FRAMING_BYTES, Thinking, is_blank};

/// A message of the model. `C` is the type of its calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "StoredMessage<C>", bound(deserialize = "C: Deserialize<'de>"))]
pub struct ModelMessage<C> {
    /// Full name of the model that wrote it, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Time of its completion in RFC 3339 format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    pub blocks: Vec<MessageBlock<C>>,
    /// The pages on which its text is based. For people; models do not read them.
    #[serde(default, skip_serializing_if = "Citations::is_empty")]
    pub citations: Citations,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum MessageBlock<C> {
    Thinking(Thinking),
    Text { text: String },
    Call(C),
}

/// Stored form of a message: blocks, or the three lists of version 1, which did not keep the order.
#[derive(Deserialize)]
struct StoredMessage<C> {
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    at: Option<String>,
    #[serde(default = "Vec::new")]
    blocks: Vec<MessageBlock<C>>,
    #[serde(default)]
    citations: Citations,
    #[serde(default)]
    text: String,
    #[serde(default)]
    thinking: Vec<Thinking>,
    #[serde(default = "Vec::new")]
    calls: Vec<C>,
}

impl<C> From<StoredMessage<C>> for ModelMessage<C> {
    fn from(StoredMessage { model, at, blocks, citations, text, thinking, calls }: StoredMessage<C>) -> Self {
        if blocks.is_empty() { Self::new(thinking, text, calls) } else { Self { model, at, blocks, citations } }
    }
}

impl<C> Default for ModelMessage<C> {
    fn default() -> Self {
        Self { model: None, at: None, blocks: Vec::new(), citations: Citations::default() }
    }
}

impl<C> ModelMessage<C> {
    /// A message with reasoning first, then text, then calls, which is the usual order.
    pub fn new(thinking: Vec<Thinking>, text: impl Into<String>, calls: Vec<C>) -> Self {
        let text = Some(text.into()).filter(|text| !text.is_empty());
        let thinking = thinking.into_iter().map(MessageBlock::Thinking);
        let text = text.into_iter().map(|text| MessageBlock::Text { text });
        let blocks = thinking.chain(text).chain(calls.into_iter().map(MessageBlock::Call)).collect();
        Self { blocks, ..Self::default() }
    }

    /// The text that the model wrote, joined without separators, as it streamed.
    pub fn own_text(&self) -> String {
        let text = |block: &'_ MessageBlock<C>| match block {
            MessageBlock::Text { text } => text.clone(),
            MessageBlock::Thinking(_) | MessageBlock::Call(_) => String::new(),
        };
        self.blocks.iter().map(text).collect()
    }

    /// The text for people: what the model wrote, with the links to its citations below.
    pub fn text(&self) -> String {
        let mut shown = self.own_text();
        if !is_blank(&shown) {
            shown.push_str(&self.citations.as_markdown());
        }
        shown
    }

    pub fn thinking(&self) -> impl Iterator<Item = &Thinking> {
        self.blocks.iter().filter_map(|block| match block {
            MessageBlock::Thinking(thinking) => Some(thinking),
            MessageBlock::Text { .. } | MessageBlock::Call(_) => None,
        })
    }

    pub fn calls(&self) -> impl Iterator<Item = &C> {
        self.blocks.iter().filter_map(|block| match block {
            MessageBlock::Call(call) => Some(call),
            MessageBlock::Thinking(_) | MessageBlock::Text { .. } => None,
        })
    }

    pub(crate) fn calls_mut(&mut self) -> impl Iterator<Item = &mut C> {
        self.blocks.iter_mut().filter_map(|block| match block {
            MessageBlock::Call(call) => Some(call),
            MessageBlock::Thinking(_) | MessageBlock::Text { .. } => None,
        })
    }

    /// True when it has visible text or calls. No provider accepts a message without both.
    pub fn has_content(&self) -> bool {
        self.calls().next().is_some() || !is_blank(&self.text())
    }

    #[must_use]
    pub fn map_calls<D>(self, mut map: impl FnMut(C) -> D) -> ModelMessage<D> {
        let block = |block| match block {
            MessageBlock::Thinking(thinking) => MessageBlock::Thinking(thinking),
            MessageBlock::Text { text } => MessageBlock::Text { text },
            MessageBlock::Call(call) => MessageBlock::Call(map(call)),
        };
        let blocks = self.blocks.into_iter().map(block).collect();
        ModelMessage { model: self.model, at: self.at, blocks, citations: self.citations }
    }

    /// Approximate bytes of it in a model request.
    pub(super) fn size(&self, of_call: impl Fn(&C) -> usize) -> usize {
        let block = |block: &MessageBlock<C>| match block {
            MessageBlock::Thinking(thinking) => thinking.size(),
            MessageBlock::Text { text } => text.len(),
            MessageBlock::Call(call) => of_call(call) + FRAMING_BYTES,
        };
        self.blocks.iter().map(block).sum::<usize>() + FRAMING_BYTES
    }
}
