//! The index of notes in the file.

use std::sync::mpsc;

use futures_util::poll;
use quell_scope::clock::Clock;
use quell_scope::{Cancelled, Point, PointProbe, Scope};

use super::super::notes::{insert_note, query_all_notes};
use super::super::{READER_THREADS, inspect_database};
use super::*;
use crate::NoteScope;
use crate::conformance::notes::{agent_scope, matching_keys, note, save, sender_scope, session_scope};

/// Rows of the index, which stores no texts.
async fn count_indexed(store: &SqliteStore) -> i64 {
    store.read(|db| db.query_row("SELECT count(*) FROM note_words", [], |row| row.get(0))).await.unwrap()
}

/// SQLite's integrity checks must pass on a connection that writes and on one that only reads.
#[tokio::test]
async fn the_index_stays_sound_through_everything_that_happens_to_notes() {
    let (sqlite, store, home) = new_sqlite_store();
    for session in ["s", "t"] {
        accept_run(&store, &format!("run of {session}").replace(' ', "-"), session).await;
    }
    for n in 0..300 {
        let (key, text) = (format!("n{}", n % 40), format!("note {n} of the boat, 배 이야기 {}", n % 7));
        save(&store, session_scope("s"), &key, &text).await;
        save(&store, session_scope("t"), &key, &text).await;
        save(&store, agent_scope("main"), &key, &text).await;
        save(&store, sender_scope("tg:1"), &key, &text).await;
        if n % 3 == 0 {
            store.notes().forget(agent_scope("main"), key).await.unwrap();
        }
    }
    store.history().reset(session_key("s"), "noon".into()).await.unwrap();
    delete_session(&store, "t", &["run-of-t"]).await;
    assert_eq!(store.notes().forget_sender("tg:1".into()).await, Ok(40));
    let kept = store.notes().list(agent_scope("main"), 100, None).await.unwrap().0.len();
    assert_eq!(count_indexed(&sqlite).await, i64::try_from(kept).unwrap());
    assert_eq!(matching_keys(&store, agent_scope("main"), "이야기").await.len(), 10);
    sqlite
        .write(|db| {
            db.execute_batch("INSERT INTO note_words (note_words) VALUES ('integrity-check')")?;
            let found: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
            assert_eq!(found, "ok");
            Ok(())
        })
        .await
        .unwrap();
    assert!(inspect_database(home.path(), FILE).is_ok(), "read by somebody who may not write");
}

/// Regression: deleted rows stayed in free pages, and their words in the index.
#[tokio::test]
async fn of_a_forgotten_sender_no_word_stays_in_the_file() {
    let home = tempfile::tempdir().unwrap();
    for forget in [false, true] {
        let store = Store::open(home.path(), FILE).unwrap();
        // Notes of one page and of many pages, between notes of another scope.
        for (key, more) in [("short", 0), ("long", 9000), ("longer", 90_000)] {
            let text = format!("zygomorph {} zygomatic", "ab ".repeat(more / 3));
            save(&store, sender_scope("tg:4711"), key, &text).await;
            save(&store, agent_scope("main"), key, "boat").await;
        }
        if forget {
            store.notes().forget_sender("tg:4711".into()).await.unwrap();
            assert_eq!(matching_keys(&store, agent_scope("main"), "boat").await.len(), 3);
        }
        store.close().await;
        let mut held = Vec::new();
        for file in std::fs::read_dir(home.path()).unwrap() {
            held.extend(std::fs::read(file.unwrap().path()).unwrap());
        }
        for word in ["zygom", "omatic", "tg:4711"] {
            let found = held.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word.as_bytes()));
            assert_eq!(found, !forget, "{word}");
        }
    }
}

#[tokio::test]
async fn notes_that_are_taken_out_and_put_in_elsewhere_are_the_same_there() {
    let (sqlite, store, _home) = new_sqlite_store();
    for (id, session) in [("a", "from"), ("b", "to")] {
        accept_run(&store, id, session).await;
    }
    for (key, text) in [("b", "서울"), ("a", "boat"), ("b", "boat again")] {
        save(&store, session_scope("from"), key, text).await;
    }
    let read = |scope: NoteScope| {
        let sqlite = sqlite.clone();
        async move { sqlite.read(move |db| query_all_notes(db, &scope)).await.unwrap() }
    };
    let notes = read(session_scope("from")).await;
    assert_eq!(notes, [note("a", "boat"), note("b", "boat again")]);
    let moved = notes.clone();
    sqlite
        .write(move |db| moved.iter().try_for_each(|n| insert_note(db, &session_scope("to"), n).map(drop)))
        .await
        .unwrap();
    assert_eq!(read(session_scope("to")).await, notes);
    assert_eq!(matching_keys(&store, session_scope("to"), "boat").await.len(), 2);
}

#[tokio::test]
async fn a_recall_is_stopped_at_once_while_the_database_answers_nobody() {
    let (sqlite, store, _home) = new_sqlite_store();
    save(&store, agent_scope("main"), "k", "boat").await;
    let (mut reads, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..READER_THREADS {
        let (here, begun) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let mut read = Box::pin(sqlite.read(move |_| {
            let _ = here.send(());
            let _ = ended.recv();
            Ok(())
        }));
        assert!(poll!(read.as_mut()).is_pending());
        // From here on this thread is busy until the test lets it go.
        begun.recv().unwrap();
        reads.push(read);
        ends.push(end);
    }
    let scope = Scope::new(Clock::start(), PointProbe::default());
    let recall = scope.race(Point::Recall, store.notes().search(vec![agent_scope("main")], "boat", 5));
    let stop = async {
        // `join!` polls the recall first, so it waits for the database by now.
        scope.cancel();
    };
    let (recalled, ()) = tokio::join!(recall, stop);
    assert_eq!(recalled, Err(Cancelled));
    drop(ends);
    assert_eq!(matching_keys(&store, agent_scope("main"), "boat").await, ["k"]);
}
