//! Parse and validate an archive line by line, before anything is written.

use std::collections::HashSet;

use jiff::Timestamp;
use quell_kernel::turn::Turn;
use quell_protocol::api::RunView;
use quell_protocol::archive::{
    ARCHIVE_VERSION, ArchiveHeader, ArchiveLineKind, ArchivedRunState, ConfigLine, NoteLine, ResetLine, RunLine,
    SESSION_ARCHIVE, TurnLine,
};
use quell_protocol::session::SessionRequest;
use quell_protocol::{Object, RunId};
use quell_store::{ArchivedHistoryItem, Note, PrivateEndpoints, RunRow, SessionArchive, StoredRunState, StoredSession};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Why an archive was refused, and at which line. Nothing of it was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ArchiveError {
    /// The line number, from 1.
    pub line: usize,
    /// What is wrong, and what to do.
    pub problem: String,
}

#[derive(Debug, Default)]
pub struct ArchiveReader {
    line_number: usize,
    head: Option<ArchiveHeader>,
    run_ids: HashSet<RunId>,
    runs: Vec<RunRow>,
    runs_with_turn: HashSet<RunId>,
    history: Vec<ArchivedHistoryItem>,
    config: Option<String>,
    note_keys: HashSet<String>,
    notes: Vec<Note>,
}

/// The fields of a line that tell how to parse the rest.
#[derive(Deserialize)]
struct LineHeader {
    quell: Option<String>,
    version: Option<u32>,
    kind: Option<String>,
}

impl ArchiveReader {
    /// Reads the next line, without its line end. Empty lines are counted and skipped.
    pub fn read_line(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        self.line_number += 1;
        if bytes.trim_ascii().is_empty() {
            return Ok(());
        }
        let line = self.line_number;
        self.parse_line(bytes).map_err(|problem| ArchiveError { line, problem })
    }

    pub fn finish(self) -> Result<SessionArchive, ArchiveError> {
        let Some(head) = self.head else {
            let problem = "there is nothing here; give the output of `quell sessions export KEY`".to_owned();
            return Err(ArchiveError { line: self.line_number.max(1), problem });
        };
        let ArchiveHeader { key, agent, created_at, last_used_at, .. } = head;
        let session = StoredSession {
            key,
            agent,
            created_at,
            last_used_at,
            turns: 0,
            config: self.config,
            secrets: None,
            private_endpoints: PrivateEndpoints::default(),
            owner: None,
            imported_at: None,
            shared: false,
        };
        Ok(SessionArchive { session, runs: self.runs, history: self.history, notes: self.notes })
    }

    fn parse_line(&mut self, bytes: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8; was the file converted?".to_owned())?;
        let header: LineHeader = parse_json(text)?;
        match (&self.head, header.quell) {
            (None, Some(_)) => self.read_head(text, header.version),
            (None, None) => Err("this is no session exported by quell: the first line has to be its head, \
                                 {\"quell\":\"session\",\"version\":1,...}"
                .to_owned()),
            (Some(_), Some(_)) => Err("a second head; split the file, one session in each".to_owned()),
            (Some(_), None) => self.read_part(text, header.kind.as_deref()),
        }
    }

    fn read_head(&mut self, text: &str, version: Option<u32>) -> Result<(), String> {
        // Checked first, because a newer version may have any other shape.
        if let Some(newer) = version.filter(|version| *version > ARCHIVE_VERSION) {
            return Err(format!(
                "the archive has version {newer}, and this quell reads up to {ARCHIVE_VERSION}; import it with a newer quell"
            ));
        }
        let head: ArchiveHeader = parse_json(text)?;
        if head.quell != SESSION_ARCHIVE {
            return Err(format!("it holds a {:?}; expected a session", head.quell));
        }
        if head.version == 0 {
            return Err("there never was a version 0 of archives".to_owned());
        }
        check_time("createdAt", &head.created_at)?;
        check_time("lastUsedAt", &head.last_used_at)?;
        self.head = Some(head);
        Ok(())
    }

    fn read_part(&mut self, text: &str, kind: Option<&str>) -> Result<(), String> {
        let Some(word) = kind else { return Err("it names no kind; each line after the head has one".to_owned()) };
        match ArchiveLineKind::parse(word) {
            Some(ArchiveLineKind::Run) => self.add_run(parse_json(text)?),
            Some(ArchiveLineKind::Turn) => self.add_turn(parse_json(text)?),
            Some(ArchiveLineKind::Reset) => self.add_reset(parse_json(text)?),
            Some(ArchiveLineKind::Config) => self.set_config(&parse_json(text)?),
            Some(ArchiveLineKind::Note) => self.add_note(parse_json(text)?),
            None => Err(format!(
                "lines of kind {word:?} are unknown to this quell; import it with a newer one, or remove them if you can do \
                 without what they hold"
            )),
        }
    }

    fn add_reset(&mut self, line: ResetLine) -> Result<(), String> {
        check_time("at", &line.at)?;
        self.history.push(ArchivedHistoryItem::Reset { at: line.at });
        Ok(())
    }

    fn set_config(&mut self, line: &ConfigLine) -> Result<(), String> {
        let config = line.config.to_text();
        let request: SessionRequest = parse_json(&config)?;
        if request.api_key.is_some() || request.mcp_api_key.is_some() {
            return Err("a configuration is imported without its keys; give them with POST /api/sessions".to_owned());
        }
        // A session that was opened by its key alone names no user and chat to check.
        if !(request.user_id.is_empty() && request.chat_id.is_empty()) {
            let own_key = request.key().map_err(|error| error.to_string())?;
            if self.head.as_ref().is_some_and(|head| head.key != own_key) {
                return Err(format!("the configuration is that of session {own_key}"));
            }
        }
        if self.config.replace(config).is_some() {
            return Err("a second configuration".to_owned());
        }
        Ok(())
    }

    fn add_note(&mut self, line: NoteLine) -> Result<(), String> {
        let NoteLine { key, category, text, at, .. } = line;
        check_time("at", &at)?;
        if !self.note_keys.insert(key.clone()) {
            return Err(format!("the note {key:?} occurs twice"));
        }
        self.notes.push(Note { key, category, text, at });
        Ok(())
    }

    fn add_run(&mut self, line: RunLine) -> Result<(), String> {
        let Some(head) = &self.head else { return Err("it comes before the head".to_owned()) };
        let RunLine { id, agent, principal, fingerprint, state, steered_into, accepted_at, view, .. } = line;
        check_time("acceptedAt", &accepted_at)?;
        let state = match (state, steered_into) {
            (ArchivedRunState::Ended, None) => StoredRunState::Ended,
            (ArchivedRunState::Steered, Some(into)) => StoredRunState::Steered { into },
            (ArchivedRunState::Ended, Some(_)) => {
                return Err("a run that ended was not steered into another one".to_owned());
            }
            (ArchivedRunState::Steered, None) => return Err("it does not say into which run it was steered".to_owned()),
        };
        let view = view.to_text();
        let parsed_view: RunView = parse_json(&view).map_err(|problem| format!("the view of run {id}: {problem}"))?;
        if parsed_view.run_id != id || parsed_view.session_key != head.key {
            return Err(format!("the view of run {id} is that of another run or session"));
        }
        if state == StoredRunState::Ended && (parsed_view.state != "ended" || parsed_view.receipt.is_none()) {
            return Err(format!(
                "run {id} is not over, it is {:?}; only what is over can be imported",
                parsed_view.state
            ));
        }
        if !self.run_ids.insert(id.clone()) {
            return Err(format!("run {id} occurs twice"));
        }
        let session = head.key.clone();
        self.runs.push(RunRow { id, session, agent, principal, fingerprint, state, accepted_at, view });
        Ok(())
    }

    fn add_turn(&mut self, line: TurnLine) -> Result<(), String> {
        let TurnLine { run, turn, .. } = line;
        let turn = turn.to_text();
        let parsed_turn = Turn::from_stored(&turn).map_err(|error| match std::error::Error::source(&error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        })?;
        if *parsed_turn.run_id() != run {
            return Err(format!("the turn is of run {}, and the line says {run}", parsed_turn.run_id()));
        }
        if !self.run_ids.contains(&run) {
            return Err(format!("the turn is of run {run}, which no line before it holds"));
        }
        if !self.runs_with_turn.insert(run.clone()) {
            return Err(format!("run {run} has a second turn"));
        }
        self.history.push(ArchivedHistoryItem::Turn { run, turn });
        Ok(())
    }
}

/// Parses the line as `T`. Positions in the error are within the line.
fn parse_json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let read = serde_json::from_str(text).map(|Object(value)| value);
    read.map_err(|error| {
        let what = if error.is_data() { "it does not have the expected form" } else { "it is no JSON" };
        format!("{what}: {error}")
    })
}

fn check_time(field: &str, text: &str) -> Result<(), String> {
    let read: Result<Timestamp, _> = text.parse();
    read.map(drop).map_err(|_| format!("{field} is {text:?}; expected a time such as 2026-11-20T10:00:00Z"))
}
