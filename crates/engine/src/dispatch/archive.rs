//! Sessions in and out as lines of JSON, and copies of everything. What comes in is checked line by line before any of it is written: a session that
//! was imported is as sound as one that was lived here.

use std::collections::HashSet;

use jiff::Timestamp;
use quell_kernel::turn::Turn;
use quell_protocol::api::{RunView, SessionRow};
use quell_protocol::archive::{Head, Kind, ResetLine, RunLine, RunState, SESSION, TurnLine, VERSION};
use quell_protocol::audit::Action;
use quell_protocol::{RunId, SessionKey};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Caller, Deed, Engine};
use crate::cell::Notice;
use crate::store::{Archive, Archived, Imported, RunRow, Spool, StoreError, StoredSession, StoredState};

/// Why an archive was refused, and where. Nothing of it was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct BadArchive {
    /// The number of the line, from 1.
    pub line: usize,
    /// What is wrong with it, and what to do.
    pub problem: String,
}

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
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Reads an archive line by line.
#[derive(Debug, Default)]
pub struct ArchiveReader {
    number: usize,
    head: Option<Head>,
    ids: HashSet<RunId>,
    runs: Vec<RunRow>,
    sealed: HashSet<RunId>,
    past: Vec<Archived>,
}

/// Of a line, what says how the rest is to be read.
#[derive(Deserialize)]
struct Peek {
    quell: Option<String>,
    version: Option<u32>,
    kind: Option<String>,
}

impl ArchiveReader {
    /// Takes the next line, without its end. Empty ones count and mean nothing.
    ///
    /// # Errors
    /// [`BadArchive`] names the line and what is wrong with it.
    pub fn line(&mut self, bytes: &[u8]) -> Result<(), BadArchive> {
        self.number += 1;
        if bytes.trim_ascii().is_empty() {
            return Ok(());
        }
        let line = self.number;
        self.take(bytes).map_err(|problem| BadArchive { line, problem })
    }

    /// What was read.
    ///
    /// # Errors
    /// [`BadArchive`] when there was no head.
    pub fn finish(self) -> Result<Archive, BadArchive> {
        let Some(head) = self.head else {
            let problem = "there is nothing here; give the output of `quell sessions export KEY`".to_owned();
            return Err(BadArchive { line: self.number.max(1), problem });
        };
        let Head { key, agent, created_at, last_used_at, .. } = head;
        let session = StoredSession { key, agent, created_at, last_used_at, turns: 0, config: None, secrets: None };
        Ok(Archive { session, runs: self.runs, past: self.past })
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8; was the file converted?".to_owned())?;
        let peek: Peek = read(text)?;
        match (&self.head, peek.quell) {
            (None, Some(_)) => self.head(text, peek.version),
            (None, None) => Err("this is no session exported by quell: the first line has to be its head, \
                                 {\"quell\":\"session\",\"version\":1,...}"
                .to_owned()),
            (Some(_), Some(_)) => Err("a second head; split the file, one session in each".to_owned()),
            (Some(_), None) => self.part(text, peek.kind.as_deref()),
        }
    }

    fn head(&mut self, text: &str, version: Option<u32>) -> Result<(), String> {
        // Before the rest, since a newer version may have any other shape.
        if let Some(newer) = version.filter(|version| *version > VERSION) {
            return Err(format!(
                "the archive has version {newer}, and this quell reads up to {VERSION}; import it with a newer quell"
            ));
        }
        let head: Head = read(text)?;
        if head.quell != SESSION {
            return Err(format!("it holds a {:?}, and a session is wanted", head.quell));
        }
        if head.version == 0 {
            return Err("there never was a version 0 of archives".to_owned());
        }
        time("createdAt", &head.created_at)?;
        time("lastUsedAt", &head.last_used_at)?;
        self.head = Some(head);
        Ok(())
    }

    fn part(&mut self, text: &str, kind: Option<&str>) -> Result<(), String> {
        let Some(word) = kind else { return Err("it names no kind; each line after the head has one".to_owned()) };
        match Kind::named(word) {
            Some(Kind::Run) => self.run(read(text)?),
            Some(Kind::Turn) => self.turn(read(text)?),
            Some(Kind::Reset) => {
                let ResetLine { at, .. } = read(text)?;
                time("at", &at)?;
                self.past.push(Archived::Reset { at });
                Ok(())
            }
            None => Err(format!(
                "lines of kind {word:?} are unknown to this quell; import it with a newer one, or remove them if you can do \
                 without what they hold"
            )),
        }
    }

    fn run(&mut self, line: RunLine) -> Result<(), String> {
        let Some(head) = &self.head else { return Err("it comes before the head".to_owned()) };
        let RunLine { id, agent, principal, fingerprint, state, steered_into, accepted_at, view, .. } = line;
        time("acceptedAt", &accepted_at)?;
        let state = match (state, steered_into) {
            (RunState::Ended, None) => StoredState::Ended,
            (RunState::Steered, Some(into)) => StoredState::Steered { into },
            (RunState::Ended, Some(_)) => return Err("a run that ended was steered nowhere".to_owned()),
            (RunState::Steered, None) => return Err("it does not say into which run it was steered".to_owned()),
        };
        let view = view.text();
        let seen: RunView = read(&view).map_err(|problem| format!("the view of run {id}: {problem}"))?;
        if seen.run_id != id || seen.session_key != head.key {
            return Err(format!("the view of run {id} is that of another run or session"));
        }
        if state == StoredState::Ended && (seen.state != "ended" || seen.receipt.is_none()) {
            return Err(format!("run {id} is not over, it is {:?}; only what is over can be imported", seen.state));
        }
        if !self.ids.insert(id.clone()) {
            return Err(format!("run {id} stands here twice"));
        }
        let session = head.key.clone();
        self.runs.push(RunRow { id, session, agent, principal, fingerprint, state, accepted_at, view });
        Ok(())
    }

    fn turn(&mut self, line: TurnLine) -> Result<(), String> {
        let TurnLine { run, turn, .. } = line;
        let turn = turn.text();
        let sound = Turn::from_stored(&turn).map_err(|error| match std::error::Error::source(&error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        })?;
        if *sound.run_id() != run {
            return Err(format!("the turn is of run {}, and the line says {run}", sound.run_id()));
        }
        if !self.ids.contains(&run) {
            return Err(format!("the turn is of run {run}, which no line before it holds"));
        }
        if !self.sealed.insert(run.clone()) {
            return Err(format!("run {run} has a second turn here"));
        }
        self.past.push(Archived::Turn { run, turn });
        Ok(())
    }
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
        let (answer, answered) = tokio::sync::oneshot::channel();
        let (engine, caller) = (self.clone(), caller.clone());
        self.inner().runs.spawn(async move {
            // Nobody may be waiting any more.
            let _ = answer.send(engine.store_archive(&caller, archive).await);
        });
        answered.await.map_err(|_| StoreError::Closed)?
    }

    /// Who has just read that a run is over finds it in an export, although its end is stored a moment after it is announced.
    async fn close_books_of(&self, key: &SessionKey) -> Result<(), StoreError> {
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

    async fn store_archive(&self, caller: &Caller, archive: Archive) -> Result<SessionRow, ImportError> {
        let (session, runs) = (archive.session.clone(), archive.runs.len());
        let at = self.inner().clock.rfc3339(self.inner().clock.now());
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

/// The line in one of its shapes. Places in the text are within the line.
fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| {
        let what = if error.is_data() { "it is not as this version writes it" } else { "it is no JSON" };
        format!("{what}: {error}")
    })
}

fn time(field: &str, text: &str) -> Result<(), String> {
    let read: Result<Timestamp, _> = text.parse();
    read.map(drop).map_err(|_| format!("{field} is {text:?}, and a time is wanted, such as 2026-11-20T10:00:00Z"))
}
