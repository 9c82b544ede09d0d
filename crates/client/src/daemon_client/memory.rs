//! Routes of memory notes: of a session, an agent or a sender.

use quell_protocol::memory::{NoteRow, NotesForgotten, SenderRow};
use quell_protocol::{AgentId, SessionKey};
use reqwest::Method;

use super::{ClientError, ClientRequestTimeout, DaemonClient, ListResult};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotesOwner {
    /// Notes of a session.
    Session(SessionKey),
    /// Notes of an agent, known in all its sessions.
    Agent(AgentId),
    /// Notes of a sender in a chat network: channel, colon, the network's id of the sender.
    Sender(String),
}

impl NotesOwner {
    fn path(&self) -> [&str; 4] {
        match self {
            Self::Session(key) => ["api", "sessions", key.as_str(), "memory"],
            Self::Agent(id) => ["api", "agents", id.as_str(), "memory"],
            Self::Sender(sender) => ["api", "senders", sender, "memory"],
        }
    }
}

impl DaemonClient {
    /// Lists all notes, newest first.
    ///
    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn list_notes(&self, owner: &NotesOwner) -> ListResult<NoteRow> {
        self.list_items(&owner.path(), &[]).await
    }

    /// Lists the notes that match `query`, most relevant first.
    ///
    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn search_notes(&self, owner: &NotesOwner, query: &str, limit: usize) -> ListResult<NoteRow> {
        self.list_items(&owner.path(), &[("query", query), ("limit", &limit.to_string())]).await
    }

    /// Deletes a note; fails if there is no such note.
    ///
    /// # Cancel safety
    /// If dropped, the note may or may not have been forgotten.
    pub async fn forget_note(&self, owner: &NotesOwner, key: &str) -> Result<(), ClientError> {
        let [api, kind, whose, memory] = owner.path();
        let request = self.build_request(Method::DELETE, &[api, kind, whose, memory, key], &[])?;
        self.fetch_body(request, ClientRequestTimeout::Default).await.map(drop)
    }

    /// Lists the senders that have notes, the one with the newest note first.
    ///
    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn list_senders(&self) -> ListResult<SenderRow> {
        self.list_items(&["api", "senders"], &[]).await
    }

    /// Deletes all notes of a sender; fails if there are none.
    ///
    /// # Cancel safety
    /// If dropped, the notes may or may not have been forgotten.
    pub async fn forget_sender(&self, sender: &str) -> Result<NotesForgotten, ClientError> {
        let request = self.build_request(Method::DELETE, &["api", "senders", sender, "memory"], &[])?;
        self.fetch_json(request, ClientRequestTimeout::Default).await
    }
}
