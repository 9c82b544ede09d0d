//! Reasoning that people see and no model is sent.

use serde::{Deserialize, Serialize};

use super::{Thinking, TurnItem};

/// Stored apart from the items of a turn, so that no prompt can contain it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisplayOnly {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    thoughts: Vec<StreamedThinking>,
}

/// Reasoning that streamed before a message was complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StreamedThinking {
    /// Index of its item. If its message had no content, there is no such item, or it is another one.
    item: usize,
    text: String,
}

impl DisplayOnly {
    pub(super) fn is_empty(&self) -> bool {
        self.thoughts.is_empty()
    }

    pub(super) fn add_thought(&mut self, item: usize, text: String) {
        if !text.is_empty() {
            self.thoughts.push(StreamedThinking { item, text });
        }
    }

    /// Reasoning that streamed before this item, in order.
    pub(super) fn thoughts_before(&self, item: usize) -> impl Iterator<Item = &str> {
        self.thoughts.iter().filter(move |thought| thought.item == item).map(|thought| thought.text.as_str())
    }

    /// Removes reasoning that the items contain themselves, because a provider accepts it back.
    pub(super) fn without_thinking_in(mut self, items: &[TurnItem]) -> Self {
        self.thoughts.retain(|thought| match items.get(thought.item) {
            Some(TurnItem::Assistant(message)) => readable_thinking(message.thinking()) != thought.text,
            Some(TurnItem::User { .. }) | None => true,
        });
        self
    }
}

pub(super) fn readable_thinking<'a>(thinking: impl Iterator<Item = &'a Thinking>) -> String {
    thinking.map(Thinking::readable_text).collect()
}
