//! Reads an archive line by line, each checked before anything is written.

use std::collections::HashSet;

use jiff::Timestamp;
use quell_kernel::turn::Turn;
use quell_protocol::api::RunView;
use quell_protocol::archive::{
    ConfigLine, Head, Kind, NoteLine, ResetLine, RunLine, RunState, SESSION, TurnLine, VERSION,
};
use quell_protocol::session::SessionRequest;
use quell_protocol::{Object, RunId};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::store::{Archive, Archived, Note, PrivateEndpoints, RunRow, StoredSession, StoredState};

/// Why an archive was refused, and where. Nothing of it was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct BadArchive {
    /// The number of the line, from 1.
    pub line: usize,
    /// What is wrong with it, and what to do.
    pub problem: String,
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
    config: Option<String>,
    known: HashSet<String>,
    notes: Vec<Note>,
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
        let session = StoredSession {
            key,
            agent,
            created_at,
            last_used_at,
            turns: 0,
            config: self.config,
            secrets: None,
            private: PrivateEndpoints::default(),
            owner: None,
            imported_at: None,
        };
        Ok(Archive { session, runs: self.runs, past: self.past, notes: self.notes })
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
            Some(Kind::Reset) => self.reset(read(text)?),
            Some(Kind::Config) => self.config(&read(text)?),
            Some(Kind::Note) => self.note(read(text)?),
            None => Err(format!(
                "lines of kind {word:?} are unknown to this quell; import it with a newer one, or remove them if you can do \
                 without what they hold"
            )),
        }
    }

    fn reset(&mut self, line: ResetLine) -> Result<(), String> {
        time("at", &line.at)?;
        self.past.push(Archived::Reset { at: line.at });
        Ok(())
    }

    fn config(&mut self, line: &ConfigLine) -> Result<(), String> {
        let config = line.config.text();
        let said: SessionRequest = read(&config)?;
        if said.api_key.is_some() || said.mcp_api_key.is_some() {
            return Err("a configuration is imported without its keys; give them with POST /api/sessions".to_owned());
        }
        // One that was asked for by its key alone says of no user and chat whose it is.
        if !(said.user_id.is_empty() && said.chat_id.is_empty()) {
            let own = said.key().map_err(|error| error.to_string())?;
            if self.head.as_ref().is_some_and(|head| head.key != own) {
                return Err(format!("the configuration is that of session {own}"));
            }
        }
        if self.config.replace(config).is_some() {
            return Err("a second configuration".to_owned());
        }
        Ok(())
    }

    fn note(&mut self, line: NoteLine) -> Result<(), String> {
        let NoteLine { key, category, text, at, .. } = line;
        time("at", &at)?;
        if !self.known.insert(key.clone()) {
            return Err(format!("the note {key:?} stands here twice"));
        }
        self.notes.push(Note { key, category, text, at });
        Ok(())
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

/// The line in one of its shapes. Places in the text are within the line.
fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let read = serde_json::from_str(text).map(|Object(value)| value);
    read.map_err(|error| {
        let what = if error.is_data() { "it is not as this version writes it" } else { "it is no JSON" };
        format!("{what}: {error}")
    })
}

fn time(field: &str, text: &str) -> Result<(), String> {
    let read: Result<Timestamp, _> = text.parse();
    read.map(drop).map_err(|_| format!("{field} is {text:?}, and a time is wanted, such as 2026-11-20T10:00:00Z"))
}
