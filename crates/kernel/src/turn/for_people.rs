//! What people see of a turn besides what models read: reasoning as it streamed.

use serde::{Deserialize, Serialize};

use super::{Item, Thinking};

/// Kept apart from the items of a turn, so that no view for a model can meet it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForPeople {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    thoughts: Vec<Thought>,
}

/// Reasoning that streamed before a message was complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Thought {
    /// Number of the item that it belongs to. Where the message said nothing there is no such item, or another one.
    item: usize,
    text: String,
}

impl ForPeople {
    pub(super) fn is_empty(&self) -> bool {
        self.thoughts.is_empty()
    }

    pub(super) fn add_thought(&mut self, item: usize, text: String) {
        if !text.is_empty() {
            self.thoughts.push(Thought { item, text });
        }
    }

    /// Reasoning that streamed before this item, in order.
    pub(super) fn thoughts_before(&self, item: usize) -> impl Iterator<Item = &str> {
        self.thoughts.iter().filter(move |thought| thought.item == item).map(|thought| thought.text.as_str())
    }

    /// Forgets what the items themselves hold, because a provider takes it back.
    pub(super) fn without_what_is_in(mut self, items: &[Item]) -> Self {
        self.thoughts.retain(|thought| match items.get(thought.item) {
            Some(Item::Assistant(message)) => readable(message.thinking()) != thought.text,
            Some(Item::User { .. }) | None => true,
        });
        self
    }
}

/// The reasoning of a message, as far as people can read it.
pub(super) fn readable<'a>(thinking: impl Iterator<Item = &'a Thinking>) -> String {
    let text = |thinking: &'a Thinking| match thinking {
        Thinking::Shown { text, .. } | Thinking::Open { text } => text.as_str(),
        Thinking::Redacted { .. } => "",
    };
    thinking.map(text).collect()
}
