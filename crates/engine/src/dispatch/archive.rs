//! Sessions in and out as lines of JSON, and copies of everything. What comes in is checked line by line before any of it is
//! written: a session that was imported is as sound as one that was lived here.

mod reader;

use quell_protocol::api::{Provenance, RunView, SessionRow};
use quell_protocol::audit::Action;
use quell_protocol::{RunId, SessionKey};

use super::{Caller, Deed, Engine};
use crate::cell::Notice;
use crate::session::importable;
use crate::store::{Archive, Imported, Spool, StoreError, StoredSession};
pub use reader::{ArchiveReader, BadArchive};

/// Why a session was not imported. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// There is one of that key.
    #[error(
        "there is a session {0:?} already; delete it first (`quell sessions delete KEY`, after an export if it is worth \
         keeping), or import into another daemon"
    )]
    SessionExists(SessionKey),
    /// A run of it is there, in another session.
    #[error(
        "run {0:?} of the archive is in this database already, in another session; its receipt cannot be of two. Delete that \
         session first, or import into another daemon"
    )]
    RunExists(RunId),
    /// Its session would have endpoints of its own.
    #[error(
        "the session in the archive has a baseUrl or an mcpUrl of its own: importing it takes a token with scope endpoints"
    )]
    Endpoints,
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Engine {
    /// A session as lines of JSON: its runs that are over and their turns, as they were at one moment. None when there is no
    /// such session.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn export_session(&self, key: &SessionKey) -> Result<Option<Spool>, StoreError> {
        self.close_books_of(key).await?;
        self.inner().store.export_session(key.clone()).await
    }

    /// Copies the whole database as it is at one moment.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn backup(&self, caller: &Caller) -> Result<Spool, StoreError> {
        let spool = self.inner().store.snapshot().await?;
        tracing::info!(principal = %caller.principal, bytes = spool.length(), "the database is copied out");
        let detail = format!("bytes: {}", spool.length());
        self.audit(caller, Deed { action: Action::Backup, target: None, detail: Some(detail) });
        Ok(spool)
    }

    /// The bytes of a spool from `at` on, as many as are handed out at a time; none at its end.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn piece(&self, spool: &Spool, at: u64) -> Result<Vec<u8>, StoreError> {
        self.inner().store.piece(spool.clone(), at).await
    }

    /// Takes a session in, whole or not at all; the next message to it sees what was said.
    ///
    /// # Errors
    /// [`ImportError`]; nothing was written then.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn import_session(&self, caller: &Caller, archive: Archive) -> Result<SessionRow, ImportError> {
        let (engine, caller) = (self.clone(), caller.clone());
        let done = self.seen_through(async move { engine.store_archive(&caller, archive).await });
        done.await.ok_or(StoreError::Closed)?
    }

    /// Who has just read that a run is over finds it in an export, although its end is stored a moment after it is announced.
    pub(super) async fn close_books_of(&self, key: &SessionKey) -> Result<(), StoreError> {
        let runs = &self.inner().runs;
        for cell in runs.over_of_session(key).iter().filter_map(|run| runs.cell(run)) {
            // One whose turn was refused is left to who tries that again.
            if cell.is_unrecorded() {
                continue;
            }
            match runs.store_end(&cell).await {
                // Deleted, or never accepted.
                Ok(()) | Err(StoreError::NoSuchRun(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn store_archive(&self, caller: &Caller, mut archive: Archive) -> Result<SessionRow, ImportError> {
        let at = self.inner().clock.rfc3339(self.inner().clock.now());
        mark(&mut archive, caller, &at)?;
        let (session, runs) = (archive.session.clone(), archive.runs.len());
        let turns = match self.inner().store.import_session(archive, at).await? {
            Imported::Yes { turns } => turns,
            Imported::SessionExists => return Err(ImportError::SessionExists(session.key)),
            Imported::RunExists(run) => return Err(ImportError::RunExists(run)),
        };
        // Memory may know an older session of this key, which was deleted.
        self.inner().sessions.forget_history(&session.key);
        tracing::info!(session = %session.key, principal = %caller.principal, "session imported");
        let deed = Deed::to(Action::ImportSession, "session", session.key.as_str());
        self.audit(caller, deed.with(format!("runs: {runs}; turns that the model sees: {turns}")));
        self.inner().hub.publish(&Notice::Session { key: session.key.clone(), reason: "import" });
        Ok(self.session_row(StoredSession { turns, ..session }))
    }
}

/// Marks everything as imported, for ever: nobody here has seen it happen, and whose it was is what the archive claims.
fn mark(archive: &mut Archive, caller: &Caller, at: &str) -> Result<(), ImportError> {
    if let Some(config) = &archive.session.config {
        archive.session.private = importable(config, caller).ok_or(ImportError::Endpoints)?;
    }
    archive.session.owner = Some(caller.principal.clone());
    archive.session.imported_at = Some(at.to_owned());
    for run in &mut archive.runs {
        let claimed = run.principal.to_string();
        run.principal = caller.principal.clone();
        // The reader has checked that it is a view.
        if let Ok(mut view) = serde_json::from_str::<RunView>(&run.view) {
            // One that was imported before keeps what was claimed first.
            let claims = view.imported.take().and_then(|imported| imported.claims).or(Some(claimed));
            view.imported = Some(Provenance { at: at.to_owned(), by: Some(caller.principal.clone()), claims });
            view.principal = caller.principal.clone();
            run.view = serde_json::to_string(&view).unwrap_or_default();
        }
    }
    Ok(())
}
