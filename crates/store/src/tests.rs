//! Tests of the store against real files.

mod amendments;
mod archive;
mod audit;
mod backup;
mod disk_errors;
mod history;
mod hook_outbox;
mod journal;
mod lists;
mod notes;
mod opening;
mod ownership;
mod pending_replies;
mod retention;
mod spend;
mod writing;

use quell_protocol::{AgentId, Principal, RunId, SessionKey, Usage};
use tempfile::TempDir;

use super::{AcceptRunOutcome, RunListFilter, RunRow, RunSpend, SessionListFilter, Store, StoredRunState};

const FILE: &str = "quell.db";

/// A new store, and its data directory.
fn new_store() -> (Store, TempDir) {
    let home = tempfile::tempdir().unwrap();
    (open_store(&home), home)
}

fn open_store(home: &TempDir) -> Store {
    Store::open(home.path(), FILE).unwrap()
}

fn run_id(text: &str) -> RunId {
    RunId::parse(text).unwrap()
}

fn session_key(text: &str) -> SessionKey {
    SessionKey::parse(text).unwrap()
}

/// A run that used no tokens.
fn no_spend() -> RunSpend {
    let (agent, usage) = (AgentId::parse("main").unwrap(), Usage::default());
    RunSpend { agent, day: "2026-01-01".to_owned(), usage, already_counted: usage }
}

/// The row of an accepted run.
fn accepted_row(id: &str, session: &str) -> RunRow {
    RunRow {
        id: run_id(id),
        session: session_key(session),
        agent: AgentId::parse("main").unwrap(),
        principal: Principal::parse("admin").unwrap(),
        fingerprint: format!("hash of {id}"),
        state: StoredRunState::Accepted,
        accepted_at: "2026-11-20T10:00:00.000000Z".into(),
        view: format!("accepted {id}"),
    }
}

async fn accept_run(store: &Store, id: &str, session: &str) {
    assert_eq!(store.accept_run(accepted_row(id, session)).await, Ok(AcceptRunOutcome::New));
}

/// Takes a run through all its states.
async fn run_to_end(store: &Store, id: &str, session: &str) {
    accept_run(store, id, session).await;
    store.record_run_start(run_id(id), format!("started {id}")).await.unwrap();
    store.append_turn(session_key(session), run_id(id), format!("turn {id}"), format!("ending {id}")).await.unwrap();
    store.record_run_end(run_id(id), format!("ended {id}"), no_spend()).await.unwrap();
}

fn all_runs() -> RunListFilter {
    RunListFilter { session: None, principal: None, limit: 100, cursor: None }
}

fn all_sessions() -> SessionListFilter {
    SessionListFilter { search: None, limit: 100, cursor: None }
}

fn run_ids(rows: &[RunRow]) -> Vec<&str> {
    rows.iter().map(|row| row.id.as_str()).collect()
}
