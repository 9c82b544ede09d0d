//! Bodies of remembered notes.

use serde::{Deserialize, Serialize};

/// A note of a session, of an agent or of a sender.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NoteRow {
    /// The key, unique within the session, agent or sender that the note belongs to.
    pub key: String,
    /// Any word: `core` for a note that was stored on purpose, `conversation` for a message that was saved
    /// automatically.
    pub category: String,
    pub text: String,
    /// Time at which the note was stored, RFC 3339.
    pub at: String,
    /// In a search: the relevance, from 0 to 1.
    pub score: Option<f64>,
}

/// A sender in a chat network about whom notes are stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SenderRow {
    /// The name of the channel, a colon, and the network's name of the sender, such as `telegram:12345678`.
    pub sender: String,
    pub notes: u64,
    /// Time at which the newest note was stored, RFC 3339.
    pub newest_at: String,
}

/// Result of deleting the notes of a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NotesForgotten {
    /// The number of deleted notes.
    pub forgotten: u64,
}
