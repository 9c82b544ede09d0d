//! The routes of the memory: notes of a session, of an agent or of a sender.

use quell_protocol::memory::{NoteRow, NotesForgotten, SenderRow};
use quell_protocol::{AgentId, SessionKey};
use reqwest::Method;

use super::{Link, LinkError, ListOf, Span};

/// Whose notes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotesOf {
    /// A session's.
    Session(SessionKey),
    /// An agent's, of all its sessions.
    Agent(AgentId),
    /// Of who writes in a chat network: the channel, a colon, and the network's name of them.
    Sender(String),
}

impl NotesOf {
    fn path(&self) -> [&str; 4] {
        match self {
            Self::Session(key) => ["api", "sessions", key.as_str(), "memory"],
            Self::Agent(id) => ["api", "agents", id.as_str(), "memory"],
            Self::Sender(sender) => ["api", "senders", sender, "memory"],
        }
    }
}

impl Link {
    /// All notes, the one remembered last first.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn notes(&self, of: &NotesOf) -> ListOf<NoteRow> {
        self.list(&of.path(), &[]).await
    }

    /// The notes that are about `query`, the most relevant first.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn search_notes(&self, of: &NotesOf, query: &str, limit: usize) -> ListOf<NoteRow> {
        self.list(&of.path(), &[("query", query), ("limit", &limit.to_string())]).await
    }

    /// Forgets a note.
    ///
    /// # Errors
    /// Every [`LinkError`]; also when there is no such note.
    ///
    /// # Cancel safety
    /// Dropping it may or may not leave the note forgotten.
    pub async fn forget_note(&self, of: &NotesOf, key: &str) -> Result<(), LinkError> {
        let [api, kind, whose, memory] = of.path();
        let request = self.request(Method::DELETE, &[api, kind, whose, memory, key], &[])?;
        self.answer(request, Span::Ordinary).await.map(drop)
    }

    /// Of whom in chat networks something is remembered, the newest note first.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn senders(&self) -> ListOf<SenderRow> {
        self.list(&["api", "senders"], &[]).await
    }

    /// Forgets all notes of a sender.
    ///
    /// # Errors
    /// Every [`LinkError`]; also when nothing is remembered of them.
    ///
    /// # Cancel safety
    /// Dropping it may or may not leave the sender forgotten.
    pub async fn forget_sender(&self, sender: &str) -> Result<NotesForgotten, LinkError> {
        let request = self.request(Method::DELETE, &["api", "senders", sender, "memory"], &[])?;
        self.ask(request, Span::Ordinary).await
    }
}
