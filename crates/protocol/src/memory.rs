//! Notes, as the doors show them.

use serde::{Deserialize, Serialize};

/// A note of a session, of an agent or of a sender.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NoteRow {
    /// Its key, once in what it is of.
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

/// Somebody in a chat network of whom something is remembered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SenderRow {
    /// The channel, a colon, and the network's name of who writes, such as `telegram:12345678`.
    pub sender: String,
    /// How many notes.
    pub notes: u64,
    /// RFC 3339: when the newest was remembered.
    pub newest_at: String,
}

/// What was forgotten of somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NotesForgotten {
    /// How many notes.
    pub forgotten: u64,
}
