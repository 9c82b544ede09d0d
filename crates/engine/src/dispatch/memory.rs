//! What people see of the memory: look through the notes of a session, an agent or a sender, forget one, forget a sender.

use quell_protocol::api::List;
use quell_protocol::audit::Action;
use quell_protocol::memory::{NoteRow, SenderRow};

use super::SessionError;
use super::{Caller, Deed, Engine};
use crate::memory::{FoundNote, Note, NoteScope};
use crate::store::StoreError;

/// Which notes to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteFilter {
    /// Only those that have words of this, the most relevant first, on one page; else all, the newest first.
    pub query: Option<String>,
    /// Most rows to answer.
    pub limit: usize,
    /// Where the page before ended; `None` for the first.
    pub cursor: Option<String>,
}

impl Engine {
    /// Notes.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn notes(&self, scope: NoteScope, filter: NoteFilter) -> Result<List<NoteRow>, StoreError> {
        let memory = &self.inner().workshop.memory;
        let Some(query) = filter.query else {
            let (notes, next_cursor) = memory.newest(scope, filter.limit, filter.cursor).await?;
            return Ok(List { items: notes.into_iter().map(|note| row(note, None)).collect(), next_cursor });
        };
        let found = memory.recall(vec![scope], &query, filter.limit).await?;
        let rows = found.into_iter().flatten().map(|FoundNote { note, score }| row(note, Some(score)));
        Ok(List { items: rows.collect(), next_cursor: None })
    }

    /// Forgets a note. False when there is none with that key. Notes of a session are forgotten by who began it, and by admins.
    ///
    /// # Errors
    /// [`SessionError`]: the session is somebody else's, or the store's error.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn forget_note(&self, caller: &Caller, scope: NoteScope, key: String) -> Result<bool, SessionError> {
        if let NoteScope::Session(session) = &scope {
            self.check_owner(caller, session).await?;
        }
        let deed = Deed::to(Action::ForgetNote, "note", &key).with(format!("of {scope}"));
        let (engine, who) = (self.clone(), caller.clone());
        let done = self.seen_through(async move {
            let forgotten = engine.inner().workshop.memory.forget(scope, key).await?;
            if forgotten {
                engine.audit(&who, deed);
            }
            Ok::<_, StoreError>(forgotten)
        });
        Ok(done.await.ok_or(StoreError::Closed)??)
    }

    /// The senders of whom something is remembered, the one with the newest note first.
    ///
    /// # Errors
    /// The store's error; also when the cursor is not one.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn senders(&self, limit: usize, cursor: Option<String>) -> Result<List<SenderRow>, StoreError> {
        let (items, next_cursor) = self.inner().workshop.memory.senders(limit, cursor).await?;
        Ok(List { items, next_cursor })
    }

    /// Forgets all notes of a sender, `CHANNEL:SENDER`. Answers how many there were.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn forget_sender(&self, caller: &Caller, sender: String) -> Result<u64, StoreError> {
        let deed = Deed::to(Action::ForgetSender, "sender", &sender);
        let (engine, who) = (self.clone(), caller.clone());
        let done = self.seen_through(async move {
            let forgotten = engine.inner().workshop.memory.forget_sender(sender, engine.inner().clock.now()).await?;
            if forgotten > 0 {
                engine.audit(&who, deed.with(format!("notes: {forgotten}")));
            }
            Ok(forgotten)
        });
        done.await.ok_or(StoreError::Closed)?
    }
}

fn row(note: Note, score: Option<f64>) -> NoteRow {
    let Note { key, category, text, at } = note;
    NoteRow { key, category, text, at, score }
}
