//! Export and import of sessions: the same bytes come back, and a failed import writes nothing.

use super::*;
use crate::{ImportOutcome, StoreError, TempFile};

async fn read_text(store: &Store, temp_file: TempFile) -> String {
    let mut bytes = Vec::new();
    loop {
        let piece = store.maintenance().read_chunk(temp_file.clone(), bytes.len() as u64).await.unwrap();
        if piece.is_empty() {
            assert_eq!(bytes.len() as u64, temp_file.length());
            return String::from_utf8(bytes).unwrap();
        }
        bytes.extend(piece);
    }
}

pub(crate) async fn export_text(store: &Store, session: &str) -> Option<String> {
    let temp_file = store.archive().export(session_key(session)).await.unwrap()?;
    Some(read_text(store, temp_file).await)
}

fn ended_runs_archive(session: &str, runs: &[&str]) -> SessionArchive {
    let over = |id: &&str| RunRow { state: StoredRunState::Ended, ..accepted_row(id, session) };
    let turn = |id: &&str| ArchivedHistoryItem::Turn { run: run_id(id), turn: format!("turn {id}") };
    session_archive(session, runs.iter().map(over).collect(), runs.iter().map(turn).collect())
}

const NOW: &str = "2026-11-21T00:00:00.000000Z";

pub(crate) async fn ended_runs_are_exported_in_order_and_others_left_out<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    run_to_end(&store, "r1", "s").await;
    store.history().reset(session_key("s"), "2026-11-20T11:00:00.000000Z".into()).await.unwrap();
    run_to_end(&store, "r2", "s").await;
    accept_run(&store, "r3", "s").await;
    store.runs().record_steered(run_id("r3"), run_id("r2")).await.unwrap();
    accept_run(&store, "r4", "s").await;
    store.runs().record_start(run_id("r4"), "at work".into()).await.unwrap();
    // The turn is sealed, but the end is not stored: the next export has both.
    append_turn(&store, "s", "r4", "turn r4", "ending").await.unwrap();
    run_to_end(&store, "other", "t").await;
    let lines = export_text(&store, "s").await.unwrap();
    let marks = ["session", "\"r1\"", "\"r2\"", "\"r3\"", "turn r1", "2026-11-20T11", "turn r2"];
    assert_eq!(lines.lines().count(), marks.len(), "{lines}");
    for (line, mark) in lines.lines().zip(marks) {
        assert!(line.contains(mark), "{mark} is not in {line}");
    }
    assert_eq!(export_text(&store, "unknown").await, None);
}

pub(crate) async fn an_import_is_listed_counts_its_turns_and_is_exported_as_it_was<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    run_to_end(&store, "here", "older").await;
    let mut coming = ended_runs_archive("s", &["r1", "r2", "r3"]);
    coming.history.insert(1, ArchivedHistoryItem::Reset { at: NOW.into() });
    assert_eq!(store.archive().import(coming, NOW.into()).await, Ok(ImportOutcome::Imported { turns: 2 }));
    let session = find_session(&store, "s").await;
    assert_eq!((session.turns, session.last_used_at.as_str()), (2, "2020-01-02T00:00:00.000000Z"));
    assert_eq!(turns(&store, "s").await, ["turn r2", "turn r3"]);
    let (rows, _) = store.sessions().list(all_sessions()).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.key.as_str()).collect::<Vec<_>>(), ["s", "older"]);
    let lines = export_text(&store, "s").await.unwrap();
    assert_eq!(lines.lines().count(), 8, "{lines}");
    // The imported session can be used like any other.
    run_to_end(&store, "r4", "s").await;
    assert_eq!(turns(&store, "s").await.len(), 3);
}

pub(crate) async fn a_refused_import_leaves_nothing<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    run_to_end(&store, "r1", "s").await;
    assert_eq!(
        store.archive().import(ended_runs_archive("s", &["x"]), NOW.into()).await,
        Ok(ImportOutcome::SessionExists)
    );
    let known = store.archive().import(ended_runs_archive("t", &["x", "r1"]), NOW.into()).await;
    assert_eq!(known, Ok(ImportOutcome::RunExists(run_id("r1"))));
    assert_eq!(store.runs().find(run_id("x")).await, Ok(None));
    assert_eq!(store.sessions().find(session_key("t")).await, Ok(None));
    // A turn without its run violates a foreign key: the whole import is rolled back.
    let mut torn = ended_runs_archive("t", &["x"]);
    torn.history.push(ArchivedHistoryItem::Turn { run: run_id("nowhere"), turn: "turn".into() });
    let (torn, beside) =
        tokio::join!(store.archive().import(torn, NOW.into()), store.runs().accept(accepted_row("y", "u")));
    assert!(torn.is_err(), "{torn:?}");
    assert_eq!(beside, Ok(AcceptRunOutcome::New), "the neighbour in its transaction is written");
    assert_eq!(store.runs().find(run_id("x")).await, Ok(None));
}

pub(crate) async fn a_session_without_runs_has_its_own_place_in_the_list<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    for session in ["a", "b"] {
        assert_eq!(
            store.archive().import(ended_runs_archive(session, &[]), NOW.into()).await,
            Ok(ImportOutcome::Imported { turns: 0 })
        );
    }
    run_to_end(&store, "r1", "c").await;
    let page =
        async |cursor| store.sessions().list(SessionListFilter { limit: 1, cursor, ..all_sessions() }).await.unwrap();
    let seen: Vec<String> = read_all(page).await.into_iter().map(|row| row.key.to_string()).collect();
    assert_eq!(seen, ["c", "b", "a"]);
}

pub(crate) async fn a_long_session_is_handed_out_in_pieces_while_the_store_goes_on<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    accept_run(&store, "r1", "s").await;
    let long = format!("turn {}", "x".repeat(900_000));
    append_turn(&store, "s", "r1", &long, "").await.unwrap();
    store.runs().record_end(run_id("r1"), "ended".into(), no_spend()).await.unwrap();
    let temp_file = store.archive().export(session_key("s")).await.unwrap().unwrap();
    let first = store.maintenance().read_chunk(temp_file.clone(), 0).await.unwrap();
    assert!((first.len() as u64) < temp_file.length());
    // The export shows the state of its own moment, whatever is written later.
    delete_session(&store, "s", &[]).await;
    assert!(read_text(&store, temp_file).await.contains(&long));
}

pub(crate) async fn a_closed_store_says_so_to_who_wants_a_copy<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    run_to_end(&store, "r1", "s").await;
    let other = store.clone();
    store.close().await;
    assert!(matches!(other.archive().export(session_key("s")).await, Err(StoreError::Closed)));
}
