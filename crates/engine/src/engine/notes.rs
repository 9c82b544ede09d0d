//! List and delete notes on behalf of people.

use quell_protocol::api::Page;
use quell_protocol::audit::Action;
use quell_protocol::memory::{NoteRow, SenderRow};
use quell_store::StoreError;

use super::SessionError;
use super::{AuditAction, Caller, Engine};
use crate::memory::{FoundNote, Note, NoteScope};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteFilter {
    /// Only notes with words of this text, the most relevant first, on one page; without it all notes, the newest
    /// first.
    pub query: Option<String>,
    pub limit: usize,
    /// Where the previous page ended; `None` for the first page.
    pub cursor: Option<String>,
}

impl Engine {
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_notes(&self, scope: NoteScope, filter: NoteFilter) -> Result<Page<NoteRow>, StoreError> {
        let memory = &self.inner().services.memory;
        let Some(query) = filter.query else {
            let (notes, next_cursor) = memory.notes().list(scope, filter.limit, filter.cursor).await?;
            return Ok(Page { items: notes.into_iter().map(|note| note_row(note, None)).collect(), next_cursor });
        };
        let found = memory.notes().search(vec![scope], &query, filter.limit).await?;
        let rows = found.into_iter().flatten().map(|FoundNote { note, score }| note_row(note, Some(score)));
        Ok(Page { items: rows.collect(), next_cursor: None })
    }

    /// Deletes a note. False if there is none with that key. Notes of a session may be deleted by its creator and by
    /// admins.
    ///
    /// # Errors
    /// [`SessionError`]: the caller did not create the session, or the store's error.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn forget_note(&self, caller: &Caller, scope: NoteScope, key: String) -> Result<bool, SessionError> {
        if let NoteScope::Session(session) = &scope {
            self.check_owner(caller, session)?;
        }
        let audit_action = AuditAction::on_target(Action::ForgetNote, "note", &key).with_detail(format!("of {scope}"));
        let (engine, requester) = (self.clone(), caller.clone());
        let outcome = self.run_detached(async move {
            let forgotten = engine.inner().services.memory.notes().forget(scope, key).await?;
            if forgotten {
                engine.audit(&requester, audit_action);
            }
            Ok::<_, StoreError>(forgotten)
        });
        Ok(outcome.await.ok_or(StoreError::Closed)??)
    }

    /// The senders with notes, the one with the newest note first.
    ///
    /// # Errors
    /// The store's error; also for an invalid cursor.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_senders(&self, limit: usize, cursor: Option<String>) -> Result<Page<SenderRow>, StoreError> {
        let (items, next_cursor) = self.inner().services.memory.notes().list_senders(limit, cursor).await?;
        Ok(Page { items, next_cursor })
    }

    /// Deletes all notes of a sender, given as `CHANNEL:SENDER`. Returns their number.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn forget_sender(&self, caller: &Caller, sender: String) -> Result<u64, StoreError> {
        let audit_action = AuditAction::on_target(Action::ForgetSender, "sender", &sender);
        let (engine, requester) = (self.clone(), caller.clone());
        let outcome = self.run_detached(async move {
            let forgotten = engine.inner().services.memory.forget_sender(sender, engine.clock().now()).await?;
            if forgotten > 0 {
                engine.audit(&requester, audit_action.with_detail(format!("notes: {forgotten}")));
            }
            Ok(forgotten)
        });
        outcome.await.ok_or(StoreError::Closed)?
    }
}

fn note_row(note: Note, score: Option<f64>) -> NoteRow {
    let Note { key, category, text, at } = note;
    NoteRow { key, category, text, at, score }
}
