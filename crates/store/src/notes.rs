//! Notes of a session, an agent or a sender, found by their words.

use std::fmt;

use quell_kernel::memory::CATEGORY_CONVERSATION;
use quell_protocol::memory::SenderRow;
use quell_protocol::{AgentId, SessionKey};

use crate::{StoreFuture, StorePage};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NoteScope {
    /// A session; deleted with its history.
    Session(SessionKey),
    /// An agent, in all its sessions.
    Agent(AgentId),
    /// A sender in a channel: `CHANNEL:SENDER`.
    Sender(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Unique in the scope: saving it again replaces the note.
    pub key: String,
    /// Free text, such as `core` or `conversation`.
    pub category: String,
    pub text: String,
    /// RFC 3339.
    pub at: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct FoundNote {
    pub note: Note,
    /// Relevance from 0 to 1, see [`quell_kernel::memory::WordWeights`].
    pub score: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaveNoteOutcome {
    New,
    /// The note replaced the one with the same key.
    Replaced,
    /// The session does not exist, or does not any more; nothing was written.
    NoSession,
    /// The note was cancelled while the write was queued.
    Cancelled,
}

/// Whether a note of this scope may still be written.
pub type NoteWriteCheck = Box<dyn Fn(&NoteScope) -> bool + Send>;

impl NoteScope {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Session(_) => "session",
            Self::Agent(_) => "agent",
            Self::Sender(_) => "sender",
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Session(key) => key.as_str(),
            Self::Agent(agent) => agent.as_str(),
            Self::Sender(sender) => sender,
        }
    }
}

impl fmt::Display for NoteScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind(), self.name())
    }
}

impl Note {
    /// The text that a search looks in. The key of a saved message consists of ids and is left out: it is no part of
    /// the text.
    pub(crate) fn searchable_text(&self) -> String {
        if self.category == CATEGORY_CONVERSATION { self.text.clone() } else { format!("{}\n{}", self.key, self.text) }
    }
}

pub trait NoteStore: Send + Sync {
    /// Saves a note. Replaces the note with the same key, which then counts as the newest.
    fn save(&self, scope: NoteScope, note: Note) -> StoreFuture<'_, SaveNoteOutcome>;

    /// As [`NoteStore::save`], but skips the write if `wanted` is false when the write runs. A caller that cancels a
    /// note and then deletes its scope can so be sure that no queued write brings it back.
    fn save_if(&self, scope: NoteScope, note: Note, wanted: NoteWriteCheck) -> StoreFuture<'_, SaveNoteOutcome>;

    /// Finds the notes of each scope that contain words of the query, at most `limit` for each scope, the most
    /// relevant first. [`parse_query_words`](quell_kernel::memory::parse_query_words) splits the query, and
    /// [`WordWeights`](quell_kernel::memory::WordWeights) scores the notes.
    fn search(&self, scopes: Vec<NoteScope>, query: &str, limit: usize) -> StoreFuture<'_, Vec<Vec<FoundNote>>>;

    /// Lists the notes of a scope, last saved first, and the cursor of the next page.
    fn list(&self, scope: NoteScope, limit: usize, cursor: Option<String>) -> StoreFuture<'_, StorePage<Note>>;

    /// Deletes a note. False when there is none with this key.
    fn forget(&self, scope: NoteScope, key: String) -> StoreFuture<'_, bool>;

    /// Lists the senders that have notes, the one with the newest note first, and the cursor of the next page.
    fn list_senders(&self, limit: usize, cursor: Option<String>) -> StoreFuture<'_, StorePage<SenderRow>>;

    /// Deletes all notes of a sender, and the sender's name. Returns the number of deleted notes. No deleted text may
    /// stay readable on the disk.
    fn forget_sender(&self, sender: String) -> StoreFuture<'_, u64>;
}
