//! Export and import sessions as JSON Lines, and copy the database. An import is validated line by line before anything
//! is written, so an imported session is as valid as one that was made here.

mod reader;

use quell_kernel::api_key::KeyRefusal;
use quell_protocol::api::{Provenance, RunView, SessionRow};
use quell_protocol::audit::Action;
use quell_protocol::{RunId, SessionKey};
use quell_store::{ImportOutcome, SessionArchive, StoreError, StoredSession, TempFile};

use super::client_runs::is_model_call_session;
use super::{AuditAction, Caller, Engine};
use crate::live_run::EngineNotice;
use crate::session::{config_without_workdir, importable_endpoints};
pub use reader::{ArchiveError, ArchiveReader};

/// Why a session was not imported. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error(
        "there is a session {0:?} already; delete it first (`quell sessions delete KEY`, after an export if it is worth \
         keeping), or import into another daemon"
    )]
    SessionExists(SessionKey),
    /// A run of the archive exists in another session of this database.
    #[error(
        "run {0:?} of the archive is in this database already, in another session; a run belongs to one session only. Delete \
         that session first, or import into another daemon"
    )]
    RunExists(RunId),
    #[error("the session {0:?} lists plain model calls; an admin can import it")]
    Reserved(SessionKey),
    /// The archived session has endpoints of its own, and the caller may not set those.
    #[error(
        "the session in the archive has a baseUrl or an mcpUrl of its own: importing it takes a token with scope endpoints"
    )]
    EndpointsForbidden,
    /// The token of the caller is not for the agent of the session.
    #[error(transparent)]
    Forbidden(#[from] KeyRefusal),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Engine {
    /// Exports a session as JSON Lines: its ended runs and their turns, as they were at one moment. `None` if there is
    /// no such session.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn export_session(&self, key: &SessionKey) -> Result<Option<TempFile>, StoreError> {
        self.store_ended_runs(key).await?;
        self.inner().store.archive().export(key.clone()).await
    }

    /// Copies the whole database as it is at one moment.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn backup(&self, caller: &Caller) -> Result<TempFile, StoreError> {
        let temp_file = self.inner().store.maintenance().snapshot().await?;
        tracing::info!(principal = %caller.principal, bytes = temp_file.length(), "the database was copied");
        let detail = format!("bytes: {}", temp_file.length());
        self.audit(caller, AuditAction { action: Action::Backup, target: None, detail: Some(detail) });
        Ok(temp_file)
    }

    /// One chunk of a temporary file's bytes from `offset` on; empty at the end of the file.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn read_chunk(&self, temp_file: &TempFile, offset: u64) -> Result<Vec<u8>, StoreError> {
        self.inner().store.maintenance().read_chunk(temp_file.clone(), offset).await
    }

    /// Imports a session, whole or not at all. Its next run continues on the imported history.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn import_session(&self, caller: &Caller, archive: SessionArchive) -> Result<SessionRow, ImportError> {
        let (engine, caller) = (self.clone(), caller.clone());
        let imported = self.run_detached(async move { engine.store_archive(&caller, archive).await });
        imported.await.ok_or(StoreError::Closed)?
    }

    /// Stores the ends of the session's runs before an export. An end is stored a moment after it is announced; without
    /// this, a caller that has just read of an end would miss it in the export.
    pub(super) async fn store_ended_runs(&self, key: &SessionKey) -> Result<(), StoreError> {
        let runs = &self.inner().runs;
        for live_run in runs.ended_runs_of_session(key).iter().filter_map(|run| runs.live_run(run)) {
            // Its turn was refused; the retry of the run's end stores it.
            if live_run.is_unrecorded() {
                continue;
            }
            match runs.store_run_end(&live_run).await {
                // Deleted, or never accepted.
                Ok(()) | Err(StoreError::NoSuchRun(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn store_archive(&self, caller: &Caller, mut archive: SessionArchive) -> Result<SessionRow, ImportError> {
        caller.key.check_agent(&archive.session.agent)?;
        let at = self.inner().clock.rfc3339(self.inner().clock.now());
        mark_imported(&mut archive, caller, &at)?;
        let (session, runs) = (archive.session.clone(), archive.runs.len());
        if is_model_call_session(&session.key) && !caller.is_admin() {
            return Err(ImportError::Reserved(session.key));
        }
        let claim = self.inner().sessions.owners().claim(&session.key, &caller.principal);
        let turns = match self.inner().store.archive().import(archive, at).await? {
            ImportOutcome::Imported { turns } => turns,
            ImportOutcome::SessionExists => return Err(ImportError::SessionExists(session.key)),
            ImportOutcome::RunExists(run) => return Err(ImportError::RunExists(run)),
        };
        claim.confirm(&self.inner().store).await;
        // The history cache may hold a deleted session with the same key.
        self.inner().sessions.forget_history(&session.key);
        tracing::info!(session = %session.key, principal = %caller.principal, "session imported");
        let audit_action = AuditAction::on_target(Action::ImportSession, "session", session.key.as_str());
        self.audit(caller, audit_action.with_detail(format!("runs: {runs}; turns that the model sees: {turns}")));
        self.inner().hub.publish(&EngineNotice::session_changed(session.key.clone(), "import"));
        Ok(self.build_session_row(StoredSession { turns, ..session }))
    }
}

/// Marks the session and its runs as imported, permanently: this daemon did not see them happen, and the original
/// principal is only a claim of the archive.
fn mark_imported(archive: &mut SessionArchive, caller: &Caller, at: &str) -> Result<(), ImportError> {
    if let Some(config) = &archive.session.config {
        archive.session.private_endpoints =
            importable_endpoints(config, caller).ok_or(ImportError::EndpointsForbidden)?;
        archive.session.config = config_without_workdir(config);
    }
    archive.session.owner = Some(caller.principal.clone());
    archive.session.imported_at = Some(at.to_owned());
    for run in &mut archive.runs {
        let claimed = run.principal.to_string();
        run.principal = caller.principal.clone();
        // The reader has checked that it is a valid view.
        if let Ok(mut view) = serde_json::from_str::<RunView>(&run.view) {
            // A run that was imported before keeps the first claim.
            let claims = view.imported.take().and_then(|imported| imported.claims).or(Some(claimed));
            view.imported = Some(Provenance { at: at.to_owned(), by: Some(caller.principal.clone()), claims });
            view.principal = caller.principal.clone();
            run.view = serde_json::to_string(&view).unwrap_or_default();
        }
    }
    Ok(())
}
