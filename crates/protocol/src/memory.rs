//! Notes, as the doors show them.

use serde::{Deserialize, Serialize};

/// A note of a session or of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NoteRow {
    /// Its key, once in its session or agent.
    pub key: String,
    /// A free word: `core` when it was remembered on purpose, `conversation` when a message was saved by itself.
    pub category: String,
    /// What is remembered.
    pub text: String,
    /// RFC 3339: when it was remembered.
    pub at: String,
    /// In a search, how relevant it is: from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
}
