//! Tests of the store against real files.

mod amendments;
mod archive;
mod audit;
mod backup;
mod history;
mod journal;
mod lists;
mod notes;
mod opening;
mod outbox;
mod ownership;
mod retention;
mod spend;
mod traces;
mod trouble;
mod writing;

use quell_protocol::{AgentId, Principal, RunId, SessionKey, Usage};
use tempfile::TempDir;

use super::{AcceptedRow, RunFilter, RunRow, SessionFilter, Spent, Store, StoredState};

const FILE: &str = "quell.db";

/// A new store and the directory it lives in.
fn fresh() -> (Store, TempDir) {
    let home = tempfile::tempdir().unwrap();
    (open(&home), home)
}

fn open(home: &TempDir) -> Store {
    Store::open(home.path(), FILE).unwrap()
}

fn run_id(text: &str) -> RunId {
    RunId::parse(text).unwrap()
}

fn key(text: &str) -> SessionKey {
    SessionKey::parse(text).unwrap()
}

/// A run that used nothing.
fn nothing() -> Spent {
    let (agent, usage) = (AgentId::parse("main").unwrap(), Usage::default());
    Spent { agent, day: "2026-01-01".to_owned(), usage, counted: usage }
}

/// A run as it is accepted.
fn row(id: &str, session: &str) -> RunRow {
    RunRow {
        id: run_id(id),
        session: key(session),
        agent: AgentId::parse("main").unwrap(),
        principal: Principal::parse("admin").unwrap(),
        fingerprint: format!("hash of {id}"),
        state: StoredState::Accepted,
        accepted_at: "2026-11-20T10:00:00.000000Z".into(),
        view: format!("accepted {id}"),
    }
}

async fn accept(store: &Store, id: &str, session: &str) {
    assert_eq!(store.accept_run(row(id, session)).await, Ok(AcceptedRow::New));
}

/// A run with its whole life behind it.
async fn live(store: &Store, id: &str, session: &str) {
    accept(store, id, session).await;
    store.start_run(run_id(id), format!("started {id}")).await.unwrap();
    store.append_turn(key(session), run_id(id), format!("turn {id}"), format!("ending {id}")).await.unwrap();
    store.end_run(run_id(id), format!("ended {id}"), nothing()).await.unwrap();
}

fn all_runs() -> RunFilter {
    RunFilter { session: None, principal: None, limit: 100, cursor: None }
}

fn all_sessions() -> SessionFilter {
    SessionFilter { search: None, limit: 100, cursor: None }
}

fn ids(rows: &[RunRow]) -> Vec<&str> {
    rows.iter().map(|row| row.id.as_str()).collect()
}
