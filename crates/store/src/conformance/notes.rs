//! Notes: unique per key, found in every script, safe against any query, deleted with their scope.

use super::*;
use crate::{FoundNote, Note, NoteScope, SaveNoteOutcome, StoreError};

pub(crate) fn session_scope(session: &str) -> NoteScope {
    NoteScope::Session(session_key(session))
}

pub(crate) fn agent_scope(agent: &str) -> NoteScope {
    NoteScope::Agent(AgentId::parse(agent).unwrap())
}

pub(crate) fn sender_scope(sender: &str) -> NoteScope {
    NoteScope::Sender(sender.to_owned())
}

pub(crate) fn note(key: &str, text: &str) -> Note {
    Note { key: key.into(), category: "core".into(), text: text.into(), at: "noon".into() }
}

pub(crate) async fn save(store: &Store, scope: NoteScope, key: &str, text: &str) -> SaveNoteOutcome {
    store.notes().save(scope, note(key, text)).await.unwrap()
}

async fn search(store: &Store, scope: NoteScope, query: &str) -> Vec<FoundNote> {
    store.notes().search(vec![scope], query, 10).await.unwrap().remove(0)
}

pub(crate) async fn matching_keys(store: &Store, scope: NoteScope, query: &str) -> Vec<String> {
    search(store, scope, query).await.into_iter().map(|found| found.note.key).collect()
}

pub(crate) async fn a_key_stands_once_in_its_scope_and_the_last_word_counts<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    accept_run(&store, "a", "s").await;
    assert_eq!(save(&store, session_scope("s"), "colour", "blue").await, SaveNoteOutcome::New);
    assert_eq!(save(&store, session_scope("s"), "size", "small").await, SaveNoteOutcome::New);
    assert_eq!(save(&store, session_scope("s"), "colour", "green").await, SaveNoteOutcome::Replaced);
    assert_eq!(save(&store, agent_scope("main"), "colour", "black").await, SaveNoteOutcome::New);
    let (page, more) = store.notes().list(session_scope("s"), 10, None).await.unwrap();
    assert_eq!(page, [note("colour", "green"), note("size", "small")], "the last remembered first");
    assert_eq!(more, None);
    assert!(matching_keys(&store, session_scope("s"), "blue").await.is_empty(), "the old words are gone");
    assert_eq!(matching_keys(&store, session_scope("s"), "green colour").await, ["colour"]);
    assert_eq!(search(&store, agent_scope("main"), "colour").await[0].note.text, "black");
    assert_eq!(home.count_indexed_notes(), 3);
}

pub(crate) async fn a_session_that_is_not_there_has_no_notes<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    assert_eq!(save(&store, session_scope("nobody"), "a", "b").await, SaveNoteOutcome::NoSession);
    assert_eq!(home.count_indexed_notes(), 0);
    assert!(matching_keys(&store, session_scope("nobody"), "b").await.is_empty());
    assert_eq!(store.notes().list(session_scope("nobody"), 5, None).await, Ok((vec![], None)));
}

pub(crate) async fn notes_are_found_in_every_script<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    let samples = [
        ("안녕하세요, 서울에서 만나요", "서울은 어때?", "서울"),
        ("我最喜欢的颜色是蓝色", "我喜欢什么颜色？", "喜欢"),
        ("東京タワーの近くに住んでいます", "東京に住む", "タワー"),
        ("Mein Café heißt Zürich", "cafe zurich?", "CAFÉ"),
        ("He likes colours", "which colour does he like", "COLOUR"),
        ("Ответ: Ёлка", "ёлка", "ЁЛКА"),
    ];
    for (number, (text, asked, word)) in samples.into_iter().enumerate() {
        let scope = || agent_scope(&format!("a{number}"));
        save(&store, scope(), "it", text).await;
        save(&store, scope(), "other", "nothing to do with that; 不同; 다른").await;
        assert_eq!(matching_keys(&store, scope(), asked).await.first().map(String::as_str), Some("it"), "{asked}");
        assert_eq!(matching_keys(&store, scope(), word).await, ["it"], "{word}");
        let whole = search(&store, scope(), text).await;
        assert!(whole[0].score > 0.99, "{whole:?}");
    }
}

pub(crate) async fn signs_are_found_together_and_not_one_by_one<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    save(&store, agent_scope("main"), "apart", "京 is far from 東").await;
    save(&store, agent_scope("main"), "reversed", "京東").await;
    assert!(matching_keys(&store, agent_scope("main"), "東京").await.is_empty());
    assert_eq!(matching_keys(&store, agent_scope("main"), "東").await.len(), 2, "a single sign is a word of its own");
}

pub(crate) async fn no_query_is_a_wrong_one<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    save(&store, agent_scope("main"), "colour", "blue").await;
    save(&store, agent_scope("other"), "colour", "blue scope 1 and not near").await;
    for query in [
        "\"",
        "*",
        "blue\" OR \"1\"=\"1",
        "NEAR(blue green, 2)",
        "blue AND",
        "NOT blue",
        "scope : 1",
        "^blue - {words} : + \\ ' ; -- \u{0} %",
        "",
    ] {
        let found = search(&store, agent_scope("main"), query).await;
        assert_eq!(found.len(), usize::from(query.contains("blue")), "{query}: {found:?}");
    }
}

pub(crate) async fn scores_are_shares_and_order_the_answer<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
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

pub(crate) async fn equal_scores_are_ordered_by_how_much_of_a_note_is_about_it<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    save(&store, agent_scope("main"), "passing", &format!("{} and a boat", "much else ".repeat(40))).await;
    save(&store, agent_scope("main"), "about", "the boat: a boat").await;
    assert_eq!(matching_keys(&store, agent_scope("main"), "boat").await, ["about", "passing"]);
}

pub(crate) async fn who_wrote_a_saved_message_is_no_word_of_it<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    let saved = Note { category: "conversation".into(), ..note("http_alice_1", "paint it blue") };
    store.notes().save(agent_scope("main"), saved).await.unwrap();
    assert!(matching_keys(&store, agent_scope("main"), "alice").await.is_empty());
    assert_eq!(matching_keys(&store, agent_scope("main"), "paint").await, ["http_alice_1"]);
}

pub(crate) async fn a_scope_does_not_see_the_notes_of_another<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    for (id, session) in [("a", "1"), ("b", "2")] {
        accept_run(&store, id, session).await;
        save(&store, session_scope(session), "k", &format!("boat of {session}")).await;
    }
    save(&store, NoteScope::Sender("1".into()), "k", "boat of a sender").await;
    let scopes = vec![session_scope("1"), session_scope("2"), NoteScope::Sender("1".into()), agent_scope("1")];
    let found = store.notes().search(scopes, "boat 1 2", 10).await.unwrap();
    let texts = |at: usize| found[at].iter().map(|found| found.note.text.as_str()).collect::<Vec<_>>();
    assert_eq!(
        [texts(0), texts(1), texts(2), texts(3)],
        [vec!["boat of 1"], vec!["boat of 2"], vec!["boat of a sender"], vec![]]
    );
}

pub(crate) async fn a_reset_forgets_the_notes_of_the_session_and_no_others<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    run_to_end(&store, "a", "s").await;
    accept_run(&store, "b", "t").await;
    save(&store, session_scope("s"), "k", "boat").await;
    save(&store, session_scope("t"), "k", "boat").await;
    save(&store, agent_scope("main"), "k", "boat").await;
    assert_eq!(store.history().reset(session_key("s"), "noon".into()).await, Ok(true));
    assert!(matching_keys(&store, session_scope("s"), "boat").await.is_empty());
    assert_eq!(matching_keys(&store, session_scope("t"), "boat").await.len(), 1);
    assert_eq!(matching_keys(&store, agent_scope("main"), "boat").await.len(), 1);
    assert_eq!(home.count_indexed_notes(), 2);
    // A session without turns since the last reset can have notes, too.
    save(&store, session_scope("s"), "k", "boat").await;
    assert_eq!(store.history().reset(session_key("s"), "dusk".into()).await, Ok(true));
    assert_eq!(home.count_indexed_notes(), 2);
}

pub(crate) async fn a_deleted_session_leaves_no_note_and_no_word<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    run_to_end(&store, "a", "s").await;
    save(&store, session_scope("s"), "k", "boat").await;
    save(&store, agent_scope("main"), "k", "boat").await;
    assert_eq!(delete_session(&store, "s", &[]).await, DeleteSessionOutcome::Deleted);
    assert_eq!(home.count_indexed_notes(), 1);
    run_to_end(&store, "b", "s").await;
    assert!(
        matching_keys(&store, session_scope("s"), "boat").await.is_empty(),
        "a new session of that name remembers nothing"
    );
}

pub(crate) async fn a_deleted_agent_leaves_no_note_to_another_one_of_its_name<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    for agent in ["made", "main"] {
        save(&store, agent_scope(agent), "k", "boat").await;
    }
    store.agents().delete(vec![AgentId::parse("made").unwrap()]).await.unwrap();
    assert!(matching_keys(&store, agent_scope("made"), "boat").await.is_empty());
    assert_eq!((matching_keys(&store, agent_scope("main"), "boat").await.len(), home.count_indexed_notes()), (1, 1));
}

pub(crate) async fn a_note_is_forgotten_by_its_key<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    save(&store, agent_scope("main"), "a/b ü", "boat").await;
    assert_eq!(store.notes().forget(agent_scope("main"), "other".into()).await, Ok(false));
    assert_eq!(store.notes().forget(agent_scope("nobody"), "a/b ü".into()).await, Ok(false));
    assert_eq!(store.notes().forget(agent_scope("main"), "a/b ü".into()).await, Ok(true));
    assert!(matching_keys(&store, agent_scope("main"), "boat").await.is_empty());
    assert_eq!(home.count_indexed_notes(), 0);
}

/// The names and note counts of all senders, read in pages of `limit`.
async fn list_senders(store: &Store, limit: usize) -> Vec<(String, u64)> {
    let rows = read_all(async |cursor| {
        let (page, next) = store.notes().list_senders(limit, cursor).await.unwrap();
        assert!(page.len() <= limit);
        (page, next)
    });
    rows.await.into_iter().map(|row| (row.sender, row.notes)).collect()
}

pub(crate) async fn senders_are_listed_by_their_newest_note<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    accept_run(&store, "a", "s").await;
    assert_eq!(store.notes().list_senders(10, None).await, Ok((vec![], None)));
    save(&store, session_scope("s"), "k", "boat").await;
    save(&store, agent_scope("main"), "k", "boat").await;
    for (sender, key) in [("tg:1", "a"), ("tg:2", "a"), ("irc:a/b ü", "a"), ("tg:1", "b"), ("tg:1", "a")] {
        save(&store, sender_scope(sender), key, "boat").await;
    }
    let all = [("tg:1", 2), ("irc:a/b ü", 1), ("tg:2", 1)].map(|(sender, notes)| (sender.to_owned(), notes));
    for limit in [1, 2, 3, 10] {
        assert_eq!(list_senders(&store, limit).await, all, "{limit}");
    }
    assert_eq!(store.notes().list_senders(1, None).await.unwrap().0[0].newest_at, "noon");
    let foreign = store.notes().list_senders(1, Some("n0000000000000001".into())).await;
    assert_eq!(foreign, Err(StoreError::BadCursor));
}

pub(crate) async fn a_forgotten_sender_leaves_no_note_no_word_and_no_name<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    accept_run(&store, "a", "s").await;
    for scope in [sender_scope("tg:1"), sender_scope("tg:2"), session_scope("s"), agent_scope("main")] {
        save(&store, scope.clone(), "k", "boat").await;
        save(&store, scope, "l", "another boat").await;
    }
    assert_eq!(store.notes().forget_sender("tg:3".into()).await, Ok(0));
    // Scopes of other kinds are no senders.
    assert_eq!(store.notes().forget_sender("main".into()).await, Ok(0));
    assert_eq!(store.notes().forget_sender("tg:1".into()).await, Ok(2));
    assert_eq!(store.notes().forget_sender("tg:1".into()).await, Ok(0), "they are gone");
    assert!(matching_keys(&store, sender_scope("tg:1"), "boat").await.is_empty());
    assert_eq!(list_senders(&store, 10).await, [("tg:2".to_owned(), 2)]);
    assert_eq!((home.count_indexed_notes(), home.stores_scope_name("tg:1")), (6, false));
    assert_eq!(save(&store, sender_scope("tg:1"), "k", "boat").await, SaveNoteOutcome::New);
    assert_eq!(
        matching_keys(&store, sender_scope("tg:1"), "boat").await,
        ["k"],
        "whoever writes again is remembered again"
    );
}

pub(crate) async fn the_name_of_a_sender_goes_with_the_last_note<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    for key in ["k", "l"] {
        save(&store, sender_scope("tg:1"), key, "boat").await;
    }
    save(&store, agent_scope("main"), "k", "boat").await;
    for (key, named_still) in [("k", true), ("other", true), ("l", false)] {
        store.notes().forget(sender_scope("tg:1"), key.into()).await.unwrap();
        assert_eq!(home.stores_scope_name("tg:1"), named_still, "{key}");
    }
    store.notes().forget(agent_scope("main"), "k".into()).await.unwrap();
    assert!(home.stores_scope_name("main"), "agents are no secret");
}

pub(crate) async fn pages_of_notes_run_from_new_to_old_without_a_gap<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    for n in 0..5 {
        save(&store, agent_scope("main"), &format!("n{n}"), "x").await;
        save(&store, agent_scope("other"), &format!("n{n}"), "x").await;
    }
    let page = async |cursor| store.notes().list(agent_scope("main"), 2, cursor).await.unwrap();
    let seen: Vec<String> = read_all(page).await.into_iter().map(|note| note.key).collect();
    assert_eq!(seen, ["n4", "n3", "n2", "n1", "n0"]);
    let foreign = store.notes().list(agent_scope("main"), 2, Some("r0000000000000001".into())).await;
    assert_eq!(foreign, Err(StoreError::BadCursor));
}
