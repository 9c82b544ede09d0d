//! What the model said at one go, block by block in the order in which it came: providers that sign reasoning take it back only
//! where it stood, and a model may think again between two calls.

use serde::{Deserialize, Serialize};

use super::{AROUND, Thinking, blank};

/// A message of the model; `C` is what is known of its calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stored<C>", bound(deserialize = "C: Deserialize<'de>"))]
pub struct Message<C> {
    /// Full name of the model that said it; none where nobody wrote it down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// RFC 3339: when it was complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Its blocks, in order.
    pub blocks: Vec<Block<C>>,
}

/// One piece of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Block<C> {
    /// Reasoning.
    Thinking(Thinking),
    /// Visible text.
    Text {
        /// The text.
        text: String,
    },
    /// A call.
    Call(C),
}

/// A message as it is read: in blocks, or in the three lists of version 1, which did not know their order.
#[derive(Deserialize)]
struct Stored<C> {
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    at: Option<String>,
    #[serde(default = "Vec::new")]
    blocks: Vec<Block<C>>,
    #[serde(default)]
    text: String,
    #[serde(default)]
    thinking: Vec<Thinking>,
    #[serde(default = "Vec::new")]
    calls: Vec<C>,
}

impl<C> From<Stored<C>> for Message<C> {
    fn from(Stored { model, at, blocks, text, thinking, calls }: Stored<C>) -> Self {
        if blocks.is_empty() { Self::new(thinking, text, calls) } else { Self { model, at, blocks } }
    }
}

impl<C> Default for Message<C> {
    fn default() -> Self {
        Self { model: None, at: None, blocks: Vec::new() }
    }
}

impl<C> Message<C> {
    /// A message of these, in the order in which most models speak.
    #[must_use]
    pub fn new(thinking: Vec<Thinking>, text: impl Into<String>, calls: Vec<C>) -> Self {
        let text = Some(text.into()).filter(|text| !text.is_empty());
        let thinking = thinking.into_iter().map(Block::Thinking);
        let text = text.into_iter().map(|text| Block::Text { text });
        let blocks = thinking.chain(text).chain(calls.into_iter().map(Block::Call)).collect();
        Self { model: None, at: None, blocks }
    }

    /// All its visible text, as it streamed.
    #[must_use]
    pub fn text(&self) -> String {
        let text = |block: &'_ Block<C>| match block {
            Block::Text { text } => text.clone(),
            Block::Thinking(_) | Block::Call(_) => String::new(),
        };
        self.blocks.iter().map(text).collect()
    }

    /// Its reasoning, in order.
    pub fn thinking(&self) -> impl Iterator<Item = &Thinking> {
        self.blocks.iter().filter_map(|block| match block {
            Block::Thinking(thinking) => Some(thinking),
            Block::Text { .. } | Block::Call(_) => None,
        })
    }

    /// Its calls, in order.
    pub fn calls(&self) -> impl Iterator<Item = &C> {
        self.blocks.iter().filter_map(|block| match block {
            Block::Call(call) => Some(call),
            Block::Thinking(_) | Block::Text { .. } => None,
        })
    }

    pub(super) fn calls_mut(&mut self) -> impl Iterator<Item = &mut C> {
        self.blocks.iter_mut().filter_map(|block| match block {
            Block::Call(call) => Some(call),
            Block::Thinking(_) | Block::Text { .. } => None,
        })
    }

    /// True when it says anything or asks for anything: no provider takes back one that does not.
    #[must_use]
    pub fn says_something(&self) -> bool {
        self.calls().next().is_some() || !blank(&self.text())
    }

    /// The same message, with something else known of its calls.
    #[must_use]
    pub fn map_calls<D>(self, mut map: impl FnMut(C) -> D) -> Message<D> {
        let block = |block| match block {
            Block::Thinking(thinking) => Block::Thinking(thinking),
            Block::Text { text } => Block::Text { text },
            Block::Call(call) => Block::Call(map(call)),
        };
        Message { model: self.model, at: self.at, blocks: self.blocks.into_iter().map(block).collect() }
    }

    /// About how many bytes a model reads of it.
    pub(super) fn size(&self, of_call: impl Fn(&C) -> usize) -> usize {
        let block = |block: &Block<C>| match block {
            Block::Thinking(thinking) => thinking.size(),
            Block::Text { text } => text.len(),
            Block::Call(call) => of_call(call) + AROUND,
        };
        self.blocks.iter().map(block).sum::<usize>() + AROUND
    }
}
