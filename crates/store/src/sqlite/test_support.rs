//! For tests: another program at the database, which looks into it, locks it, damages it, and makes it refuse writes.

use std::path::Path;
use std::time::Duration;

use quell_protocol::RunId;
use rusqlite::{Connection, Params, params};

use super::columns::to_unsigned;
use super::notes;
use crate::{Note, NoteScope};

/// How long a statement waits for a lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// A second connection to the database of a daemon, without the daemon's rules. Every operation panics on an error.
pub struct OtherProgram(Connection);

/// Writes that a database is made to refuse, see [`OtherProgram::refuse`].
#[derive(Debug, Clone, Copy)]
pub enum RefusedWrite {
    Turn,
    RunStart,
    RunEnd,
    /// To record a run as steered before the journal of the other run has a line with this text.
    SteerBeforeJournalLine(&'static str),
    AuditEntry,
    SessionDeletion,
}

#[derive(Debug, Clone, Copy)]
pub enum CountedRows {
    Webhooks,
    PendingReplies,
    PendingReplyDrafts,
    JournalLines,
    JournalLinesWith(&'static str),
    TurnsWith(&'static str),
}

impl OtherProgram {
    #[must_use]
    pub fn connect(data_dir: &Path) -> Self {
        let connection = check(Connection::open(data_dir.join("quell.db")));
        check(connection.busy_timeout(BUSY_TIMEOUT));
        Self(connection)
    }

    /// Takes the lock for writes. It is also released when this is dropped.
    pub fn lock_writes(&self) {
        self.run("BEGIN IMMEDIATE");
    }

    pub fn unlock_writes(&self) {
        self.run("ROLLBACK");
    }

    /// Makes the database refuse one kind of write, until [`OtherProgram::accept_again`].
    pub fn refuse(&self, write: RefusedWrite) {
        let (event, condition) = match write {
            RefusedWrite::Turn => ("INSERT ON history", String::new()),
            RefusedWrite::RunStart => ("UPDATE ON runs WHEN new.state = 'started'", String::new()),
            RefusedWrite::RunEnd => ("UPDATE ON runs WHEN new.state = 'ended'", String::new()),
            RefusedWrite::SteerBeforeJournalLine(text) => (
                "UPDATE ON runs WHEN new.state = 'steered'",
                format!(
                    " WHERE NOT EXISTS (SELECT 1 FROM journal WHERE run = new.steered_into AND line LIKE '%{text}%')"
                ),
            ),
            RefusedWrite::AuditEntry => ("INSERT ON audit", String::new()),
            RefusedWrite::SessionDeletion => ("DELETE ON sessions", String::new()),
        };
        self.run(&format!("CREATE TRIGGER refuse BEFORE {event} BEGIN SELECT RAISE(ABORT, 'not now'){condition}; END"));
    }

    pub fn accept_again(&self) {
        self.run("DROP TRIGGER refuse");
    }

    #[must_use]
    pub fn count(&self, rows: CountedRows) -> u64 {
        match rows {
            CountedRows::Webhooks => self.number("SELECT count(*) FROM hook_outbox", []),
            CountedRows::PendingReplies => self.number("SELECT count(*) FROM channel_traces", []),
            CountedRows::PendingReplyDrafts => {
                self.number("SELECT count(*) FROM channel_traces WHERE draft IS NOT NULL", [])
            }
            CountedRows::JournalLines => self.number("SELECT count(*) FROM journal", []),
            CountedRows::JournalLinesWith(text) => {
                self.number("SELECT count(*) FROM journal WHERE instr(line, ?1)", [text])
            }
            CountedRows::TurnsWith(text) => self.number("SELECT count(*) FROM history WHERE instr(turn, ?1)", [text]),
        }
    }

    /// The tokens of all agents and days.
    #[must_use]
    pub fn total_spend(&self) -> u64 {
        self.number("SELECT ifnull(sum(input + output), 0) FROM spend", [])
    }

    #[must_use]
    pub fn journal_lines(&self, run: &RunId) -> Vec<String> {
        let mut lines = check(self.0.prepare_cached("SELECT line FROM journal WHERE run = ?1 ORDER BY number"));
        check(lines.query_map([run.as_str()], |row| row.get(0))).map(check).collect()
    }

    #[must_use]
    pub fn run_state(&self, run: &RunId) -> String {
        check(self.0.query_row("SELECT state FROM runs WHERE id = ?1", [run.as_str()], |row| row.get(0)))
    }

    /// Writes a note without the daemon.
    pub fn save_note(&self, scope: &NoteScope, note: &Note) {
        check(notes::insert_note(&self.0, scope, note));
    }

    /// Leaves a run as a daemon that dies during it: started, and without a turn.
    pub fn undo_end(&self, run: &RunId) {
        check(self.0.execute("DELETE FROM history WHERE run = ?1", [run.as_str()]));
        check(self.0.execute("UPDATE runs SET state = 'started' WHERE id = ?1", [run.as_str()]));
    }

    /// Leaves all runs as a daemon that dies after their turns: started, with views as of this event.
    pub fn undo_ends_but_turns(&self, seq: u64) {
        let sql = "UPDATE runs SET state = 'started', view = json_set(view, '$.seq', ?1)";
        check(self.0.execute(sql, params![i64::try_from(seq).unwrap_or(i64::MAX)]));
    }

    pub fn replace_journal_lines(&self, containing: &str, line: &str) {
        check(self.0.execute("UPDATE journal SET line = ?2 WHERE instr(line, ?1)", [containing, line]));
    }

    /// Makes the views of open runs unreadable.
    pub fn damage_open_views(&self) {
        self.run("UPDATE runs SET view = '{' WHERE state <> 'ended'");
    }

    pub fn drop_note_index(&self) {
        self.run("DROP TABLE note_words");
    }

    fn run(&self, sql: &str) {
        check(self.0.execute_batch(sql));
    }

    fn number(&self, sql: &str, values: impl Params) -> u64 {
        to_unsigned(check(self.0.query_row(sql, values, |row| row.get(0))))
    }
}

#[track_caller]
fn check<T>(result: rusqlite::Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("the database refused: {error}"))
}
