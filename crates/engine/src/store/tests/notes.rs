//! Notes: kept once per key, found in every script by any query, gone with what they are of.

use std::sync::mpsc;

use futures_util::poll;
use rstest::rstest;

use super::super::notes::{insert_note, notes_of};
use super::super::{Deleted, FoundNote, Note, NoteScope, Remembered, StoreError};
use super::*;
use crate::clock::Clock;
use crate::scope::{Cancelled, Point, Probe, Scope};

fn of_session(session: &str) -> NoteScope {
    NoteScope::Session(key(session))
}

fn of_agent(agent: &str) -> NoteScope {
    NoteScope::Agent(AgentId::parse(agent).unwrap())
}

fn note(key: &str, text: &str) -> Note {
    Note { key: key.into(), category: "core".into(), text: text.into(), at: "noon".into() }
}

async fn remember(store: &Store, scope: NoteScope, key: &str, text: &str) -> Remembered {
    store.remember(scope, note(key, text)).await.unwrap()
}

async fn found(store: &Store, scope: NoteScope, query: &str) -> Vec<FoundNote> {
    store.search_notes(vec![scope], query, 10).await.unwrap().remove(0)
}

async fn keys(store: &Store, scope: NoteScope, query: &str) -> Vec<String> {
    found(store, scope, query).await.into_iter().map(|found| found.note.key).collect()
}

/// Rows of the index, which knows no texts.
async fn indexed(store: &Store) -> i64 {
    store.read(|db| db.query_row("SELECT count(*) FROM note_words", [], |row| row.get(0))).await.unwrap()
}

#[tokio::test]
async fn a_key_stands_once_in_its_scope_and_the_last_word_counts() {
    let (store, _home) = fresh();
    accept(&store, "a", "s").await;
    assert_eq!(remember(&store, of_session("s"), "colour", "blue").await, Remembered::New);
    assert_eq!(remember(&store, of_session("s"), "size", "small").await, Remembered::New);
    assert_eq!(remember(&store, of_session("s"), "colour", "green").await, Remembered::Replaced);
    assert_eq!(remember(&store, of_agent("main"), "colour", "black").await, Remembered::New);
    let (page, more) = store.note_page(of_session("s"), 10, None).await.unwrap();
    assert_eq!(page, [note("colour", "green"), note("size", "small")], "the last remembered first");
    assert_eq!(more, None);
    assert!(keys(&store, of_session("s"), "blue").await.is_empty(), "the old words are gone");
    assert_eq!(keys(&store, of_session("s"), "green colour").await, ["colour"]);
    assert_eq!(found(&store, of_agent("main"), "colour").await[0].note.text, "black");
    assert_eq!(indexed(&store).await, 3);
}

#[tokio::test]
async fn a_session_that_is_not_there_has_no_notes() {
    let (store, _home) = fresh();
    assert_eq!(remember(&store, of_session("nobody"), "a", "b").await, Remembered::NoSession);
    assert_eq!(indexed(&store).await, 0);
    assert!(keys(&store, of_session("nobody"), "b").await.is_empty());
    assert_eq!(store.note_page(of_session("nobody"), 5, None).await, Ok((vec![], None)));
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
    let (store, _home) = fresh();
    remember(&store, of_agent("main"), "it", text).await;
    remember(&store, of_agent("main"), "other", "nothing to do with that; 不同; 다른").await;
    assert_eq!(keys(&store, of_agent("main"), asked).await.first().map(String::as_str), Some("it"));
    assert_eq!(keys(&store, of_agent("main"), word).await, ["it"]);
    let whole = found(&store, of_agent("main"), text).await;
    assert!(whole[0].score > 0.99, "{whole:?}");
}

#[tokio::test]
async fn signs_are_found_together_and_not_one_by_one() {
    let (store, _home) = fresh();
    remember(&store, of_agent("main"), "apart", "京 is far from 東").await;
    remember(&store, of_agent("main"), "reversed", "京東").await;
    assert!(keys(&store, of_agent("main"), "東京").await.is_empty());
    assert_eq!(keys(&store, of_agent("main"), "東").await.len(), 2, "a single sign is a word of its own");
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
    let (store, _home) = fresh();
    remember(&store, of_agent("main"), "colour", "blue").await;
    remember(&store, of_agent("other"), "colour", "blue scope 1 and not near").await;
    let found = found(&store, of_agent("main"), query).await;
    assert_eq!(found.len(), usize::from(query.contains("blue")), "{found:?}");
}

#[tokio::test]
async fn scores_are_shares_and_order_the_answer() {
    let (store, _home) = fresh();
    for other in 0..20 {
        remember(&store, of_agent("main"), &format!("n{other}"), "the weather is what it is").await;
    }
    remember(&store, of_agent("main"), "both", "the fence is green").await;
    remember(&store, of_agent("main"), "one", "the fence").await;
    let found = found(&store, of_agent("main"), "is the fence green?").await;
    let keys: Vec<&str> = found.iter().map(|found| found.note.key.as_str()).collect();
    assert_eq!(keys[..2], ["both", "one"], "{found:#?}");
    assert!((found[0].score - 1.0).abs() < 1e-9 && found[1].score > 0.4, "{found:#?}");
    assert!(found[2..].iter().all(|common| common.score < 0.2), "{found:#?}");
}

#[tokio::test]
async fn equal_scores_are_ordered_by_how_much_of_a_note_is_about_it() {
    let (store, _home) = fresh();
    remember(&store, of_agent("main"), "passing", &format!("{} and a boat", "much else ".repeat(40))).await;
    remember(&store, of_agent("main"), "about", "the boat: a boat").await;
    assert_eq!(keys(&store, of_agent("main"), "boat").await, ["about", "passing"]);
}

#[tokio::test]
async fn who_wrote_a_saved_message_is_no_word_of_it() {
    let (store, _home) = fresh();
    let saved = Note { category: "conversation".into(), ..note("http_alice_1", "paint it blue") };
    store.remember(of_agent("main"), saved).await.unwrap();
    assert!(keys(&store, of_agent("main"), "alice").await.is_empty());
    assert_eq!(keys(&store, of_agent("main"), "paint").await, ["http_alice_1"]);
}

#[tokio::test]
async fn a_scope_does_not_see_the_notes_of_another() {
    let (store, _home) = fresh();
    for (id, session) in [("a", "1"), ("b", "2")] {
        accept(&store, id, session).await;
        remember(&store, of_session(session), "k", &format!("boat of {session}")).await;
    }
    remember(&store, NoteScope::Sender("1".into()), "k", "boat of a sender").await;
    let scopes = vec![of_session("1"), of_session("2"), NoteScope::Sender("1".into()), of_agent("1")];
    let found = store.search_notes(scopes, "boat 1 2", 10).await.unwrap();
    let texts = |at: usize| found[at].iter().map(|found| found.note.text.as_str()).collect::<Vec<_>>();
    assert_eq!(
        [texts(0), texts(1), texts(2), texts(3)],
        [vec!["boat of 1"], vec!["boat of 2"], vec!["boat of a sender"], vec![]]
    );
}

#[tokio::test]
async fn a_reset_forgets_the_notes_of_the_session_and_no_others() {
    let (store, _home) = fresh();
    live(&store, "a", "s").await;
    accept(&store, "b", "t").await;
    remember(&store, of_session("s"), "k", "boat").await;
    remember(&store, of_session("t"), "k", "boat").await;
    remember(&store, of_agent("main"), "k", "boat").await;
    assert_eq!(store.reset_session(key("s"), "noon".into()).await, Ok(true));
    assert!(keys(&store, of_session("s"), "boat").await.is_empty());
    assert_eq!(keys(&store, of_session("t"), "boat").await.len(), 1);
    assert_eq!(keys(&store, of_agent("main"), "boat").await.len(), 1);
    assert_eq!(indexed(&store).await, 2);
    // A session that has said nothing since may have remembered something all the same.
    remember(&store, of_session("s"), "k", "boat").await;
    assert_eq!(store.reset_session(key("s"), "dusk".into()).await, Ok(true));
    assert_eq!(indexed(&store).await, 2);
}

#[tokio::test]
async fn a_deleted_session_leaves_no_note_and_no_word() {
    let (store, _home) = fresh();
    live(&store, "a", "s").await;
    remember(&store, of_session("s"), "k", "boat").await;
    remember(&store, of_agent("main"), "k", "boat").await;
    assert_eq!(store.delete_session(key("s"), vec![]).await, Ok(Deleted::Yes));
    assert_eq!(indexed(&store).await, 1);
    live(&store, "b", "s").await;
    assert!(keys(&store, of_session("s"), "boat").await.is_empty(), "a new session of that name remembers nothing");
}

#[tokio::test]
async fn a_deleted_agent_leaves_no_note_to_another_one_of_its_name() {
    let (store, _home) = fresh();
    for agent in ["made", "main"] {
        remember(&store, of_agent(agent), "k", "boat").await;
    }
    store.delete_agents(vec![AgentId::parse("made").unwrap()]).await.unwrap();
    assert!(keys(&store, of_agent("made"), "boat").await.is_empty());
    assert_eq!((keys(&store, of_agent("main"), "boat").await.len(), indexed(&store).await), (1, 1));
}

/// Whether what SQLite itself checks finds nothing, with a connection that may write and with one that may not.
#[tokio::test]
async fn the_index_stays_sound_through_everything_that_happens_to_notes() {
    let (store, home) = fresh();
    for session in ["s", "t"] {
        accept(&store, &format!("run of {session}").replace(' ', "-"), session).await;
    }
    for n in 0..300 {
        let (key, text) = (format!("n{}", n % 40), format!("note {n} of the boat, 배 이야기 {}", n % 7));
        remember(&store, of_session("s"), &key, &text).await;
        remember(&store, of_session("t"), &key, &text).await;
        remember(&store, of_agent("main"), &key, &text).await;
        remember(&store, of_sender("tg:1"), &key, &text).await;
        if n % 3 == 0 {
            store.forget_note(of_agent("main"), key).await.unwrap();
        }
    }
    store.reset_session(key("s"), "noon".into()).await.unwrap();
    let _ = store.delete_session(key("t"), vec![run_id("run-of-t")]).await.unwrap();
    assert_eq!(store.forget_sender("tg:1".into()).await, Ok(40));
    let kept = store.note_page(of_agent("main"), 100, None).await.unwrap().0.len();
    assert_eq!(indexed(&store).await, i64::try_from(kept).unwrap());
    assert_eq!(keys(&store, of_agent("main"), "이야기").await.len(), 10);
    store
        .write(|db| {
            db.execute_batch("INSERT INTO note_words (note_words) VALUES ('integrity-check')")?;
            let found: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
            assert_eq!(found, "ok");
            Ok(())
        })
        .await
        .unwrap();
    assert!(super::super::inspect(home.path(), FILE).is_ok(), "read by somebody who may not write");
}

#[tokio::test]
async fn a_note_is_forgotten_by_its_key() {
    let (store, _home) = fresh();
    remember(&store, of_agent("main"), "a/b ü", "boat").await;
    assert_eq!(store.forget_note(of_agent("main"), "other".into()).await, Ok(false));
    assert_eq!(store.forget_note(of_agent("nobody"), "a/b ü".into()).await, Ok(false));
    assert_eq!(store.forget_note(of_agent("main"), "a/b ü".into()).await, Ok(true));
    assert!(keys(&store, of_agent("main"), "boat").await.is_empty());
    assert_eq!(indexed(&store).await, 0);
}

fn of_sender(sender: &str) -> NoteScope {
    NoteScope::Sender(sender.to_owned())
}

/// The names and counts of all senders, read in pages of this size.
async fn senders(store: &Store, limit: usize) -> Vec<(String, u64)> {
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
    let (store, _home) = fresh();
    accept(&store, "a", "s").await;
    assert_eq!(store.sender_page(10, None).await, Ok((vec![], None)));
    remember(&store, of_session("s"), "k", "boat").await;
    remember(&store, of_agent("main"), "k", "boat").await;
    for (sender, key) in [("tg:1", "a"), ("tg:2", "a"), ("irc:a/b ü", "a"), ("tg:1", "b"), ("tg:1", "a")] {
        remember(&store, of_sender(sender), key, "boat").await;
    }
    let all = [("tg:1", 2), ("irc:a/b ü", 1), ("tg:2", 1)].map(|(sender, notes)| (sender.to_owned(), notes));
    for limit in [1, 2, 3, 10] {
        assert_eq!(senders(&store, limit).await, all, "{limit}");
    }
    assert_eq!(store.sender_page(1, None).await.unwrap().0[0].newest_at, "noon");
    let foreign = store.sender_page(1, Some("n0000000000000001".into())).await;
    assert_eq!(foreign, Err(StoreError::BadCursor));
}

#[tokio::test]
async fn a_forgotten_sender_leaves_no_note_no_word_and_no_name() {
    let (store, _home) = fresh();
    accept(&store, "a", "s").await;
    for scope in [of_sender("tg:1"), of_sender("tg:2"), of_session("s"), of_agent("main")] {
        remember(&store, scope.clone(), "k", "boat").await;
        remember(&store, scope, "l", "another boat").await;
    }
    assert_eq!(store.forget_sender("tg:3".into()).await, Ok(0));
    // Names of other kinds are no names of senders.
    assert_eq!(store.forget_sender("main".into()).await, Ok(0));
    assert_eq!(store.forget_sender("tg:1".into()).await, Ok(2));
    assert_eq!(store.forget_sender("tg:1".into()).await, Ok(0), "they are gone");
    assert!(keys(&store, of_sender("tg:1"), "boat").await.is_empty());
    assert_eq!(senders(&store, 10).await, [("tg:2".to_owned(), 2)]);
    assert_eq!((indexed(&store).await, named(&store, "tg:1").await), (6, false));
    assert_eq!(remember(&store, of_sender("tg:1"), "k", "boat").await, Remembered::New);
    assert_eq!(keys(&store, of_sender("tg:1"), "boat").await, ["k"], "whoever writes again is remembered again");
}

/// Deleted rows stayed in pages that were free, and their words in the index.
#[tokio::test]
async fn of_a_forgotten_sender_no_word_stays_in_the_file() {
    let home = tempfile::tempdir().unwrap();
    for forget in [false, true] {
        let store = Store::open(home.path(), FILE).unwrap();
        // Of one page and of many, between those of others.
        for (key, more) in [("short", 0), ("long", 9000), ("longer", 90_000)] {
            let text = format!("zygomorph {} zygomatic", "ab ".repeat(more / 3));
            remember(&store, of_sender("tg:4711"), key, &text).await;
            remember(&store, of_agent("main"), key, "boat").await;
        }
        if forget {
            store.forget_sender("tg:4711".into()).await.unwrap();
            assert_eq!(keys(&store, of_agent("main"), "boat").await.len(), 3);
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
    let (store, _home) = fresh();
    for key in ["k", "l"] {
        remember(&store, of_sender("tg:1"), key, "boat").await;
    }
    remember(&store, of_agent("main"), "k", "boat").await;
    for (key, named_still) in [("k", true), ("other", true), ("l", false)] {
        store.forget_note(of_sender("tg:1"), key.into()).await.unwrap();
        assert_eq!(named(&store, "tg:1").await, named_still, "{key}");
    }
    store.forget_note(of_agent("main"), "k".into()).await.unwrap();
    assert!(named(&store, "main").await, "agents are no secret");
}

/// Whether the memory knows this name.
async fn named(store: &Store, name: &'static str) -> bool {
    let sql = "SELECT count(*) FROM note_scopes WHERE name = ?1";
    store.read(move |db| db.query_row(sql, [name], |row| row.get::<_, i64>(0))).await.unwrap() > 0
}

#[tokio::test]
async fn pages_of_notes_run_from_new_to_old_without_a_gap() {
    let (store, _home) = fresh();
    for n in 0..5 {
        remember(&store, of_agent("main"), &format!("n{n}"), "x").await;
        remember(&store, of_agent("other"), &format!("n{n}"), "x").await;
    }
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let (page, next) = store.note_page(of_agent("main"), 2, cursor).await.unwrap();
        seen.extend(page.into_iter().map(|note| note.key));
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, ["n4", "n3", "n2", "n1", "n0"]);
    let foreign = store.note_page(of_agent("main"), 2, Some("r0000000000000001".into())).await;
    assert_eq!(foreign, Err(StoreError::BadCursor));
}

#[tokio::test]
async fn notes_that_are_taken_out_and_put_in_elsewhere_are_the_same_there() {
    let (store, _home) = fresh();
    for (id, session) in [("a", "from"), ("b", "to")] {
        accept(&store, id, session).await;
    }
    for (key, text) in [("b", "서울"), ("a", "boat"), ("b", "boat again")] {
        remember(&store, of_session("from"), key, text).await;
    }
    let read = |scope: NoteScope| {
        let store = store.clone();
        async move { store.read(move |db| notes_of(db, &scope)).await.unwrap() }
    };
    let notes = read(of_session("from")).await;
    assert_eq!(notes, [note("a", "boat"), note("b", "boat again")]);
    let moved = notes.clone();
    store
        .write(move |db| moved.iter().try_for_each(|n| insert_note(db, &of_session("to"), n).map(drop)))
        .await
        .unwrap();
    assert_eq!(read(of_session("to")).await, notes);
    assert_eq!(keys(&store, of_session("to"), "boat").await.len(), 2);
}

#[tokio::test]
async fn a_recall_is_stopped_at_once_while_the_database_answers_nobody() {
    let (store, _home) = fresh();
    remember(&store, of_agent("main"), "k", "boat").await;
    let (mut reads, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..super::super::READERS {
        let (here, begun) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let mut read = Box::pin(store.read(move |_| {
            let _ = here.send(());
            let _ = ended.recv();
            Ok(())
        }));
        assert!(poll!(read.as_mut()).is_pending());
        // From here on a thread is at work that comes back when this test lets it.
        begun.recv().unwrap();
        reads.push(read);
        ends.push(end);
    }
    let scope = Scope::new(Clock::start(), Probe::default());
    let recall = scope.race(Point::Recall, store.search_notes(vec![of_agent("main")], "boat", 5));
    let stop = async {
        // The recall is polled first, so that it waits for the database by now.
        scope.cancel();
    };
    let (recalled, ()) = tokio::join!(recall, stop);
    assert_eq!(recalled, Err(Cancelled));
    drop(ends);
    assert_eq!(keys(&store, of_agent("main"), "boat").await, ["k"]);
}
