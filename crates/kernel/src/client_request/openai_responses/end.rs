//! How a stored response ended that did not complete. Its last item has it, and clients get the item without it.

use quell_protocol::Verdict;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The field of a stored item, or of a stored response.
const FIELD: &str = "quell_end";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncompleteEnd {
    pub verdict: Verdict,
    /// Bytes at the end of its text that were cut off while they streamed. The text before them is finished.
    pub cut_bytes: usize,
}

impl IncompleteEnd {
    /// Adds it to an item or a response.
    pub fn mark(&self, value: &mut Value) {
        value[FIELD] = json!(self);
    }

    pub fn of(value: &Value) -> Option<Self> {
        value.get(FIELD).and_then(|end| serde_json::from_value(end.clone()).ok())
    }

    /// Removes it, for clients.
    pub fn remove(value: &mut Value) {
        if let Some(fields) = value.as_object_mut() {
            fields.remove(FIELD);
        }
    }
}
