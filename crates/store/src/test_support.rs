//! For tests: another program at the database, which looks into it, locks it, damages it, and makes it refuse writes.

use std::path::Path;
use std::time::Duration;

use quell_protocol::RunId;
use rusqlite::params_from_iter;

use crate::postgres::test_support::ConnectionThread;
use crate::{Note, NoteScope, StoreLocation, sqlite};

/// How long a statement waits for a lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// A second connection to the database of a daemon, without the daemon's rules. Every operation blocks the thread and
/// panics on an error.
pub struct OtherProgram(ProgramConnection);

/// Both understand `$1` for the first value of a statement.
enum ProgramConnection {
    Sqlite(rusqlite::Connection),
    Postgres(ConnectionThread),
}

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
    ResponseEnd,
}

#[derive(Debug, Clone, Copy)]
pub enum CountedRows {
    Webhooks,
    PendingReplies,
    PendingReplyDrafts,
    JournalLines,
    JournalLinesWith(&'static str),
    TurnsWith(&'static str),
    /// Of nodes in a cluster, which only a database on a server has.
    Memberships,
}

impl OtherProgram {
    /// Connects to the SQLite database of a data directory.
    #[must_use]
    pub fn connect(data_dir: &Path) -> Self {
        Self::connect_to(&StoreLocation::Sqlite { file: "quell.db".to_owned() }, data_dir)
    }

    #[must_use]
    pub fn connect_to(location: &StoreLocation, data_dir: &Path) -> Self {
        Self(match location {
            StoreLocation::Sqlite { file } => {
                let connection = check(rusqlite::Connection::open(data_dir.join(file)));
                check(connection.busy_timeout(BUSY_TIMEOUT));
                ProgramConnection::Sqlite(connection)
            }
            StoreLocation::Postgres(settings) => ProgramConnection::Postgres(check(ConnectionThread::start(settings))),
        })
    }

    /// Keeps daemons from writing. It is also released when this is dropped.
    pub fn lock_writes(&self) {
        match &self.0 {
            ProgramConnection::Sqlite(_) => self.run("BEGIN IMMEDIATE"),
            ProgramConnection::Postgres(database) => check(database.lock_writes()),
        }
    }

    pub fn unlock_writes(&self) {
        self.run("ROLLBACK");
    }

    /// Makes the database refuse one kind of write, until [`OtherProgram::accept_again`].
    pub fn refuse(&self, write: RefusedWrite) {
        let event = match write {
            RefusedWrite::Turn => "INSERT ON history FOR EACH ROW",
            RefusedWrite::RunStart => "UPDATE ON runs FOR EACH ROW WHEN (new.state = 'started')",
            RefusedWrite::RunEnd => "UPDATE ON runs FOR EACH ROW WHEN (new.state = 'ended')",
            RefusedWrite::SteerBeforeJournalLine(_) => "UPDATE ON runs FOR EACH ROW WHEN (new.state = 'steered')",
            RefusedWrite::AuditEntry => "INSERT ON audit FOR EACH ROW",
            RefusedWrite::ResponseEnd => "UPDATE ON responses FOR EACH ROW",
            RefusedWrite::SessionDeletion => "DELETE ON sessions FOR EACH ROW",
        };
        let condition = match write {
            RefusedWrite::SteerBeforeJournalLine(text) => {
                format!("NOT EXISTS (SELECT 1 FROM journal WHERE run = new.steered_into AND line LIKE '%{text}%')")
            }
            _ => "true".to_owned(),
        };
        self.run(&match &self.0 {
            ProgramConnection::Sqlite(_) => format!(
                "CREATE TRIGGER refuse BEFORE {event} BEGIN SELECT RAISE(ABORT, 'not now') WHERE {condition}; END"
            ),
            ProgramConnection::Postgres(_) => format!(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN IF {condition} THEN RAISE 'not now'; END IF; RETURN new; END $$;
                 CREATE TRIGGER refuse BEFORE {event} EXECUTE FUNCTION refuse()"
            ),
        });
    }

    pub fn accept_again(&self) {
        self.run(match &self.0 {
            ProgramConnection::Sqlite(_) => "DROP TRIGGER refuse",
            ProgramConnection::Postgres(_) => "DROP FUNCTION refuse CASCADE",
        });
    }

    #[must_use]
    pub fn count(&self, rows: CountedRows) -> u64 {
        match rows {
            CountedRows::Webhooks => self.number("count(*)", "hook_outbox", &[]),
            CountedRows::PendingReplies => self.number("count(*)", "channel_traces", &[]),
            CountedRows::PendingReplyDrafts => self.number("count(draft)", "channel_traces", &[]),
            CountedRows::JournalLines => self.number("count(*)", "journal", &[]),
            CountedRows::JournalLinesWith(text) => {
                self.number("count(*)", "journal WHERE replace(line, $1, '') <> line", &[text])
            }
            CountedRows::Memberships => self.number("count(*)", "nodes", &[]),
            CountedRows::TurnsWith(text) => {
                self.number("count(*)", "history WHERE replace(turn, $1, '') <> turn", &[text])
            }
        }
    }

    /// The tokens of all agents and days.
    #[must_use]
    pub fn total_spend(&self) -> u64 {
        let table = match &self.0 {
            ProgramConnection::Sqlite(_) => "spend",
            ProgramConnection::Postgres(_) => "total_spend",
        };
        self.number("coalesce(sum(input + output), 0)", table, &[])
    }

    #[must_use]
    pub fn journal_lines(&self, run: &RunId) -> Vec<String> {
        self.texts("SELECT line FROM journal WHERE run = $1 ORDER BY number", &[run.as_str()])
    }

    #[must_use]
    pub fn run_state(&self, run: &RunId) -> String {
        self.texts("SELECT state FROM runs WHERE id = $1", &[run.as_str()]).remove(0)
    }

    /// Writes a note without the daemon.
    pub fn save_note(&self, scope: &NoteScope, note: &Note) {
        match &self.0 {
            ProgramConnection::Sqlite(database) => drop(check(sqlite::insert_note(database, scope, note))),
            ProgramConnection::Postgres(database) => drop(check(database.save_note(scope.clone(), note.clone()))),
        }
    }

    /// Leaves a run as a daemon that dies during it: started, and without a turn.
    pub fn undo_end(&self, run: &RunId) {
        self.texts("DELETE FROM history WHERE run = $1", &[run.as_str()]);
        self.texts("UPDATE runs SET state = 'started' WHERE id = $1", &[run.as_str()]);
    }

    /// Leaves all runs as a daemon that dies after their turns: started, with views as of this event.
    pub fn undo_ends_but_turns(&self, seq: u64) {
        for id in self.texts("SELECT id FROM runs", &[]) {
            let view = self.texts("SELECT view FROM runs WHERE id = $1", &[&id]).remove(0);
            let mut view: serde_json::Value = check(serde_json::from_str(&view));
            view["seq"] = seq.into();
            self.texts("UPDATE runs SET state = 'started', view = $1 WHERE id = $2", &[&view.to_string(), &id]);
        }
    }

    pub fn replace_journal_lines(&self, containing: &str, line: &str) {
        let sql = "UPDATE journal SET line = $1 WHERE replace(line, $2, '') <> line";
        self.texts(sql, &[line, containing]);
    }

    /// Makes the views of open runs unreadable.
    pub fn damage_open_views(&self) {
        self.run("UPDATE runs SET view = '{' WHERE state <> 'ended'");
    }

    pub fn drop_note_index(&self) {
        self.run(match &self.0 {
            ProgramConnection::Sqlite(_) => "DROP TABLE note_words",
            ProgramConnection::Postgres(_) => "ALTER TABLE notes DROP COLUMN words",
        });
    }

    fn run(&self, statements: &str) {
        match &self.0 {
            ProgramConnection::Sqlite(database) => check(database.execute_batch(statements)),
            ProgramConnection::Postgres(database) => check(database.run(statements.to_owned())),
        }
    }

    /// Executes a statement; returns the texts in the first column of its rows.
    fn texts(&self, sql: &str, values: &[&str]) -> Vec<String> {
        match &self.0 {
            ProgramConnection::Sqlite(database) => {
                let mut statement = check(database.prepare_cached(sql));
                check(statement.query_map(params_from_iter(values), |row| row.get(0))).map(check).collect()
            }
            ProgramConnection::Postgres(database) => {
                check(database.query_texts(sql.to_owned(), values.iter().map(|&value| value.to_owned()).collect()))
            }
        }
    }

    fn number(&self, aggregate: &str, rows: &str, values: &[&str]) -> u64 {
        check(self.texts(&format!("SELECT CAST({aggregate} AS text) FROM {rows}"), values).concat().parse())
    }
}

#[track_caller]
fn check<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("the database refused: {error}"))
}
