//! Notes: unique per key, found in every script, safe against any query, deleted with their scope.

use std::sync::mpsc;

use futures_util::poll;
use quell_scope::clock::Clock;
use quell_scope::{Cancelled, Point, PointProbe, Scope};
use rstest::rstest;

use super::super::notes::{insert_note, query_all_notes};
use super::super::{DeleteSessionOutcome, FoundNote, Note, NoteScope, SaveNoteOutcome, StoreError};
use super::*;

fn session_scope(session: &str) -> NoteScope {
    NoteScope::Session(session_key(session))
}

fn agent_scope(agent: &str) -> NoteScope {
    NoteScope::Agent(AgentId::parse(agent).unwrap())
}

fn note(key: &str, text: &str) -> Note {
    Note { key: key.into(), category: "core".into(), text: text.into(), at: "noon".into() }
}

async fn save(store: &Store, scope: NoteScope, key: &str, text: &str) -> SaveNoteOutcome {
    store.save_note(scope, note(key, text)).await.unwrap()
}

async fn search(store: &Store, scope: NoteScope, query: &str) -> Vec<FoundNote> {
    store.search_notes(vec![scope], query, 10).await.unwrap().remove(0)
}

async fn matching_keys(store: &Store, scope: NoteScope, query: &str) -> Vec<String> {
    search(store, scope, query).await.into_iter().map(|found| found.note.key).collect()
}

/// Rows of the index, which stores no texts.
async fn count_indexed(store: &Store) -> i64 {
    store.read(|db| db.query_row("SELECT count(*) FROM note_words", [], |row| row.get(0))).await.unwrap()
}

#[tokio::test]
async fn a_key_stands_once_in_its_scope_and_the_last_word_counts() {
    let (store, _home) = new_store();
    accept_run(&store, "a", "s").await;
    assert_eq!(save(&store, session_scope("s"), "colour", "blue").await, SaveNoteOutcome::New);
    assert_eq!(save(&store, session_scope("s"), "size", "small").await, SaveNoteOutcome::New);
    assert_eq!(save(&store, session_scope("s"), "colour", "green").await, SaveNoteOutcome::Replaced);
    assert_eq!(save(&store, agent_scope("main"), "colour", "black").await, SaveNoteOutcome::New);
    let (page, more) = store.note_page(session_scope("s"), 10, None).await.unwrap();
    assert_eq!(page, [note("colour", "green"), note("size", "small")], "the last remembered first");
    assert_eq!(more, None);
    assert!(matching_keys(&store, session_scope("s"), "blue").await.is_empty(), "the old words are gone");
    assert_eq!(matching_keys(&store, session_scope("s"), "green colour").await, ["colour"]);
    assert_eq!(search(&store, agent_scope("main"), "colour").await[0].note.text, "black");
    assert_eq!(count_indexed(&store).await, 3);
}

#[tokio::test]
async fn a_session_that_is_not_there_has_no_notes() {
    let (store, _home) = new_store();
    assert_eq!(save(&store, session_scope("nobody"), "a", "b").await, SaveNoteOutcome::NoSession);
    assert_eq!(count_indexed(&store).await, 0);
    assert!(matching_keys(&store, session_scope("nobody"), "b").await.is_empty());
    assert_eq!(store.note_page(session_scope("nobody"), 5, None).await, Ok((vec![], None)));
}

#[rstest]
#[case("안녕하세요, 서울에서 만나요", "서울은 어때?", "서울")]
#[case("我最喜欢的颜色是蓝色", "我喜欢什么颜色？", "喜欢")]
#[case("東京タワーの近くに住んでいます", "東京に住む", "タワー")]
#[case("Mein Café heißt Zürich", "cafe zurich?", "CAFÉ")]
#[case("He likes colours", "which colour does he like", "COLOUR")]
#[case("Ответ: Ёлка", "ёлка", "ЁЛКА")]
#[tokio::test]
async fn notes_are_found_in_every_script(#[case] text: &str, #[case] asked: &str, #[case] word: &str) {
    let (store, _home) = new_store();
    save(&store, agent_scope("main"), "it", text).await;
    save(&store, agent_scope("main"), "other", "nothing to do with that; 不同; 다른").await;
    assert_eq!(matching_keys(&store, agent_scope("main"), asked).await.first().map(String::as_str), Some("it"));
    assert_eq!(matching_keys(&store, agent_scope("main"), word).await, ["it"]);
    let whole = search(&store, agent_scope("main"), text).await;
    assert!(whole[0].score > 0.99, "{whole:?}");
}

#[tokio::test]
async fn signs_are_found_together_and_not_one_by_one() {
    let (store, _home) = new_store();
    save(&store, agent_scope("main"), "apart", "京 is far from 東").await;
    save(&store, agent_scope("main"), "reversed", "京東").await;
    assert!(matching_keys(&store, agent_scope("main"), "東京").await.is_empty());
    assert_eq!(matching_keys(&store, agent_scope("main"), "東").await.len(), 2, "a single sign is a word of its own");
}

#[rstest]
#[case("\"")]
#[case("*")]
#[case("blue\" OR \"1\"=\"1")]
#[case("NEAR(blue green, 2)")]
#[case("blue AND")]
#[case("NOT blue")]
#[case("scope : 1")]
#[case("^blue - {words} : + \\ ' ; -- \u{0} %")]
#[case("")]
#[tokio::test]
async fn no_query_is_a_wrong_one(#[case] query: &str) {
    let (store, _home) = new_store();
    save(&store, agent_scope("main"), "colour", "blue").await;
    save(&store, agent_scope("other"), "colour", "blue scope 1 and not near").await;
    let found = search(&store, agent_scope("main"), query).await;
    assert_eq!(found.len(), usize::from(query.contains("blue")), "{found:?}");
}

#[tokio::test]
async fn scores_are_shares_and_order_the_answer() {
    let (store, _home) = new_store();
    for other in 0..20 {
        save(&store, agent_scope("main"), &format!("n{other}"), "the weather is what it is").await;
    }
    save(&store, agent_scope("main"), "both", "the fence is green").await;
    save(&store, agent_scope("main"), "one", "the fence").await;
    let found = search(&store, agent_scope("main"), "is the fence green?").await;
    let keys: Vec<&str> = found.iter().map(|found| found.note.key.as_str()).collect();
    assert_eq!(keys[..2], ["both", "one"], "{found:#?}");
    assert!((found[0].score - 1.0).abs() < 1e-9 && found[1].score > 0.4, "{found:#?}");
    assert!(found[2..].iter().all(|common| common.score < 0.2), "{found:#?}");
}

#[tokio::test]
async fn equal_scores_are_ordered_by_how_much_of_a_note_is_about_it() {
    let (store, _home) = new_store();
    save(&store, agent_scope("main"), "passing", &format!("{} and a boat", "much else ".repeat(40))).await;
    save(&store, agent_scope("main"), "about", "the boat: a boat").await;
    assert_eq!(matching_keys(&store, agent_scope("main"), "boat").await, ["about", "passing"]);
}

#[tokio::test]
async fn the_sender_of_a_saved_message_is_not_searched() {
    let (store, _home) = new_store();
    let saved = Note { category: "conversation".into(), ..note("http_alice_1", "paint it blue") };
    store.save_note(agent_scope("main"), saved).await.unwrap();
    assert!(matching_keys(&store, agent_scope("main"), "alice").await.is_empty());
    assert_eq!(matching_keys(&store, agent_scope("main"), "paint").await, ["http_alice_1"]);
}

#[tokio::test]
async fn a_scope_does_not_see_the_notes_of_another() {
    let (store, _home) = new_store();
    for (id, session) in [("a", "1"), ("b", "2")] {
        accept_run(&store, id, session).await;
        save(&store, session_scope(session), "k", &format!("boat of {session}")).await;
    }
    save(&store, NoteScope::Sender("1".into()), "k", "boat of a sender").await;
    let scopes = vec![session_scope("1"), session_scope("2"), NoteScope::Sender("1".into()), agent_scope("1")];
    let found = store.search_notes(scopes, "boat 1 2", 10).await.unwrap();
    let texts = |at: usize| found[at].iter().map(|found| found.note.text.as_str()).collect::<Vec<_>>();
    assert_eq!(
        [texts(0), texts(1), texts(2), texts(3)],
        [vec!["boat of 1"], vec!["boat of 2"], vec!["boat of a sender"], vec![]]
    );
}

#[tokio::test]
async fn a_reset_forgets_the_notes_of_the_session_and_no_others() {
    let (store, _home) = new_store();
    run_to_end(&store, "a", "s").await;
    accept_run(&store, "b", "t").await;
    save(&store, session_scope("s"), "k", "boat").await;
    save(&store, session_scope("t"), "k", "boat").await;
    save(&store, agent_scope("main"), "k", "boat").await;
    assert_eq!(store.reset_session(session_key("s"), "noon".into()).await, Ok(true));
    assert!(matching_keys(&store, session_scope("s"), "boat").await.is_empty());
    assert_eq!(matching_keys(&store, session_scope("t"), "boat").await.len(), 1);
    assert_eq!(matching_keys(&store, agent_scope("main"), "boat").await.len(), 1);
    assert_eq!(count_indexed(&store).await, 2);
    // A session without turns since the last reset can have notes, too.
    save(&store, session_scope("s"), "k", "boat").await;
    assert_eq!(store.reset_session(session_key("s"), "dusk".into()).await, Ok(true));
    assert_eq!(count_indexed(&store).await, 2);
}

#[tokio::test]
async fn a_deleted_session_leaves_no_note_and_no_word() {
    let (store, _home) = new_store();
    run_to_end(&store, "a", "s").await;
    save(&store, session_scope("s"), "k", "boat").await;
    save(&store, agent_scope("main"), "k", "boat").await;
    assert_eq!(store.delete_session(session_key("s"), vec![]).await, Ok(DeleteSessionOutcome::Deleted));
    assert_eq!(count_indexed(&store).await, 1);
    run_to_end(&store, "b", "s").await;
    assert!(
        matching_keys(&store, session_scope("s"), "boat").await.is_empty(),
        "a new session of that name remembers nothing"
    );
}

#[tokio::test]
async fn a_deleted_agent_leaves_no_note_to_another_one_of_its_name() {
    let (store, _home) = new_store();
    for agent in ["made", "main"] {
        save(&store, agent_scope(agent), "k", "boat").await;
    }
    store.delete_agents(vec![AgentId::parse("made").unwrap()]).await.unwrap();
    assert!(matching_keys(&store, agent_scope("made"), "boat").await.is_empty());
    assert_eq!((matching_keys(&store, agent_scope("main"), "boat").await.len(), count_indexed(&store).await), (1, 1));
}

/// SQLite's integrity checks must pass on a connection that writes and on one that only reads.
#[tokio::test]
async fn the_index_stays_sound_through_everything_that_happens_to_notes() {
    let (store, home) = new_store();
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
            store.forget_note(agent_scope("main"), key).await.unwrap();
        }
    }
    store.reset_session(session_key("s"), "noon".into()).await.unwrap();
    let _ = store.delete_session(session_key("t"), vec![run_id("run-of-t")]).await.unwrap();
    assert_eq!(store.forget_sender("tg:1".into()).await, Ok(40));
    let kept = store.note_page(agent_scope("main"), 100, None).await.unwrap().0.len();
    assert_eq!(count_indexed(&store).await, i64::try_from(kept).unwrap());
    assert_eq!(matching_keys(&store, agent_scope("main"), "이야기").await.len(), 10);
    store
        .write(|db| {
            db.execute_batch("INSERT INTO note_words (note_words) VALUES ('integrity-check')")?;
            let found: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
            assert_eq!(found, "ok");
            Ok(())
        })
        .await
        .unwrap();
    assert!(super::super::inspect_database(home.path(), FILE).is_ok(), "read by somebody who may not write");
}

#[tokio::test]
async fn a_note_is_forgotten_by_its_key() {
    let (store, _home) = new_store();
    save(&store, agent_scope("main"), "a/b ü", "boat").await;
    assert_eq!(store.forget_note(agent_scope("main"), "other".into()).await, Ok(false));
    assert_eq!(store.forget_note(agent_scope("nobody"), "a/b ü".into()).await, Ok(false));
    assert_eq!(store.forget_note(agent_scope("main"), "a/b ü".into()).await, Ok(true));
    assert!(matching_keys(&store, agent_scope("main"), "boat").await.is_empty());
    assert_eq!(count_indexed(&store).await, 0);
}

fn sender_scope(sender: &str) -> NoteScope {
    NoteScope::Sender(sender.to_owned())
}

/// The names and note counts of all senders, read in pages of `limit`.
async fn list_senders(store: &Store, limit: usize) -> Vec<(String, u64)> {
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let (page, next) = store.sender_page(limit, cursor).await.unwrap();
        assert!(page.len() <= limit);
        seen.extend(page.into_iter().map(|row| (row.sender, row.notes)));
        cursor = next;
        if cursor.is_none() {
            return seen;
        }
    }
}

#[tokio::test]
async fn senders_are_listed_by_their_newest_note() {
    let (store, _home) = new_store();
    accept_run(&store, "a", "s").await;
    assert_eq!(store.sender_page(10, None).await, Ok((vec![], None)));
    save(&store, session_scope("s"), "k", "boat").await;
    save(&store, agent_scope("main"), "k", "boat").await;
    for (sender, key) in [("tg:1", "a"), ("tg:2", "a"), ("irc:a/b ü", "a"), ("tg:1", "b"), ("tg:1", "a")] {
        save(&store, sender_scope(sender), key, "boat").await;
    }
    let all = [("tg:1", 2), ("irc:a/b ü", 1), ("tg:2", 1)].map(|(sender, notes)| (sender.to_owned(), notes));
    for limit in [1, 2, 3, 10] {
        assert_eq!(list_senders(&store, limit).await, all, "{limit}");
    }
    assert_eq!(store.sender_page(1, None).await.unwrap().0[0].newest_at, "noon");
    let foreign = store.sender_page(1, Some("n0000000000000001".into())).await;
    assert_eq!(foreign, Err(StoreError::BadCursor));
}

#[tokio::test]
async fn a_forgotten_sender_leaves_no_note_no_word_and_no_name() {
    let (store, _home) = new_store();
    accept_run(&store, "a", "s").await;
    for scope in [sender_scope("tg:1"), sender_scope("tg:2"), session_scope("s"), agent_scope("main")] {
        save(&store, scope.clone(), "k", "boat").await;
        save(&store, scope, "l", "another boat").await;
    }
    assert_eq!(store.forget_sender("tg:3".into()).await, Ok(0));
    // Scopes of other kinds are no senders.
    assert_eq!(store.forget_sender("main".into()).await, Ok(0));
    assert_eq!(store.forget_sender("tg:1".into()).await, Ok(2));
    assert_eq!(store.forget_sender("tg:1".into()).await, Ok(0), "they are gone");
    assert!(matching_keys(&store, sender_scope("tg:1"), "boat").await.is_empty());
    assert_eq!(list_senders(&store, 10).await, [("tg:2".to_owned(), 2)]);
    assert_eq!((count_indexed(&store).await, is_name_known(&store, "tg:1").await), (6, false));
    assert_eq!(save(&store, sender_scope("tg:1"), "k", "boat").await, SaveNoteOutcome::New);
    assert_eq!(
        matching_keys(&store, sender_scope("tg:1"), "boat").await,
        ["k"],
        "whoever writes again is remembered again"
    );
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
            store.forget_sender("tg:4711".into()).await.unwrap();
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
async fn the_name_of_a_sender_goes_with_the_last_note() {
    let (store, _home) = new_store();
    for key in ["k", "l"] {
        save(&store, sender_scope("tg:1"), key, "boat").await;
    }
    save(&store, agent_scope("main"), "k", "boat").await;
    for (key, named_still) in [("k", true), ("other", true), ("l", false)] {
        store.forget_note(sender_scope("tg:1"), key.into()).await.unwrap();
        assert_eq!(is_name_known(&store, "tg:1").await, named_still, "{key}");
    }
    store.forget_note(agent_scope("main"), "k".into()).await.unwrap();
    assert!(is_name_known(&store, "main").await, "agents are no secret");
}

/// True when the name is in the table of scopes.
async fn is_name_known(store: &Store, name: &'static str) -> bool {
    let sql = "SELECT count(*) FROM note_scopes WHERE name = ?1";
    store.read(move |db| db.query_row(sql, [name], |row| row.get::<_, i64>(0))).await.unwrap() > 0
}

#[tokio::test]
async fn pages_of_notes_run_from_new_to_old_without_a_gap() {
    let (store, _home) = new_store();
    for n in 0..5 {
        save(&store, agent_scope("main"), &format!("n{n}"), "x").await;
        save(&store, agent_scope("other"), &format!("n{n}"), "x").await;
    }
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let (page, next) = store.note_page(agent_scope("main"), 2, cursor).await.unwrap();
        seen.extend(page.into_iter().map(|note| note.key));
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, ["n4", "n3", "n2", "n1", "n0"]);
    let foreign = store.note_page(agent_scope("main"), 2, Some("r0000000000000001".into())).await;
    assert_eq!(foreign, Err(StoreError::BadCursor));
}

#[tokio::test]
async fn notes_that_are_taken_out_and_put_in_elsewhere_are_the_same_there() {
    let (store, _home) = new_store();
    for (id, session) in [("a", "from"), ("b", "to")] {
        accept_run(&store, id, session).await;
    }
    for (key, text) in [("b", "서울"), ("a", "boat"), ("b", "boat again")] {
        save(&store, session_scope("from"), key, text).await;
    }
    let read = |scope: NoteScope| {
        let store = store.clone();
        async move { store.read(move |db| query_all_notes(db, &scope)).await.unwrap() }
    };
    let notes = read(session_scope("from")).await;
    assert_eq!(notes, [note("a", "boat"), note("b", "boat again")]);
    let moved = notes.clone();
    store
        .write(move |db| moved.iter().try_for_each(|n| insert_note(db, &session_scope("to"), n).map(drop)))
        .await
        .unwrap();
    assert_eq!(read(session_scope("to")).await, notes);
    assert_eq!(matching_keys(&store, session_scope("to"), "boat").await.len(), 2);
}

#[tokio::test]
async fn a_recall_is_stopped_at_once_while_the_database_answers_nobody() {
    let (store, _home) = new_store();
    save(&store, agent_scope("main"), "k", "boat").await;
    let (mut reads, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..super::super::READER_THREADS {
        let (here, begun) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let mut read = Box::pin(store.read(move |_| {
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
    let recall = scope.race(Point::Recall, store.search_notes(vec![agent_scope("main")], "boat", 5));
    let stop = async {
        // `join!` polls the recall first, so it waits for the database by now.
        scope.cancel();
    };
    let (recalled, ()) = tokio::join!(recall, stop);
    assert_eq!(recalled, Err(Cancelled));
    drop(ends);
    assert_eq!(matching_keys(&store, agent_scope("main"), "boat").await, ["k"]);
}
