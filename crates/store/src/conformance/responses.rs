//! Responses and conversations: their ends, their expiry, and what a daemon leaves behind.

use super::*;
use crate::{
    BeginResponseOutcome, ConversationItem, DeletedResponses, EndedResponse, ItemOrder, ItemQuery,
    RESPONSE_RETENTION_SECONDS, ResponseOwner, StoredConversation, StoredResponse, StoredResponseState,
};

pub(crate) fn response(id: &str) -> StoredResponse {
    StoredResponse {
        id: id.into(),
        owner: Principal::parse("ann").unwrap(),
        run: run_id("r1"),
        previous: None,
        conversation: None,
        background: true,
        state: StoredResponseState::Open,
        created_at: 100,
        expires_at: 200,
        response: "in progress \0".into(),
        input: "[\"\0\"]".into(),
    }
}

pub(crate) fn items(texts: &[&str]) -> Vec<ConversationItem> {
    texts.iter().map(|text| ConversationItem { id: format!("id of {text}"), item: (*text).to_owned() }).collect()
}

fn ended(id: &str, response: &str) -> EndedResponse {
    let events = Some(format!("events of {response}\0"));
    EndedResponse { id: id.into(), response: response.into(), events, conversation_items: items(&[response]) }
}

pub(crate) fn conversation(id: &str) -> StoredConversation {
    StoredConversation {
        id: id.into(),
        owner: Principal::parse("ann").unwrap(),
        created_at: 7,
        metadata: "{\"a\":\"\0\"}".into(),
    }
}

pub(crate) async fn a_response_is_found_until_it_expires_or_is_deleted<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    let full = StoredResponse {
        previous: Some("p".into()),
        conversation: Some("c".into()),
        background: false,
        state: StoredResponseState::Ended,
        ..response("full")
    };
    for response in [full.clone(), response("a"), StoredResponse { expires_at: 300, ..response("late") }] {
        store.responses().create(response, Vec::new()).await.unwrap();
    }
    assert!(store.responses().create(response("a"), Vec::new()).await.is_err());
    assert_eq!(store.responses().find("a".into(), 199).await, Ok(Some(response("a"))));
    assert_eq!(store.responses().find("a".into(), 200).await, Ok(None));
    assert_eq!(store.responses().delete("a".into()).await, Ok(true));
    assert_eq!(store.responses().delete("a".into()).await, Ok(false));
    assert_eq!(store.responses().find("a".into(), 0).await, Ok(None));
    store.close().await;
    let store = home.open();
    assert_eq!(store.responses().find("full".into(), 0).await, Ok(Some(full)));
    let deleted = DeletedResponses { responses: 1, conversations: 0 };
    assert_eq!(store.responses().delete_expired(200).await, Ok(deleted));
    assert_eq!(store.responses().find("full".into(), 0).await, Ok(None));
    assert!(store.responses().find("late".into(), 299).await.unwrap().is_some());
}

pub(crate) async fn the_end_of_a_response_never_changes<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    create_in_conversation(&store).await;
    let responses = store.responses();
    let (one, other) = tokio::join!(responses.end(ended("a", "cancelled")), responses.end(ended("a", "completed")));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert!(one != other, "of two ends one is stored");
    let stands = if one { "cancelled" } else { "completed" };
    assert_eq!(responses.end(ended("a", "failed")).await, Ok(false));
    let found = responses.find("a".into(), 0).await.unwrap().unwrap();
    assert_eq!((found.state, found.response.as_str()), (StoredResponseState::Ended, stands));
    assert_eq!(responses.events("a".into()).await, Ok(Some(format!("events of {stands}\0"))));
    assert_eq!(
        responses.conversation_items("c".into()).await,
        Ok(items(&[stands])),
        "the items of the end that stands"
    );
    assert_eq!(responses.end(ended("gone", "completed")).await, Ok(false));
    assert_eq!(responses.events("gone".into()).await, Ok(None));
}

/// An open response `a` in a conversation `c`.
async fn create_in_conversation(store: &Store) {
    store.responses().create_conversation(conversation("c"), Vec::new()).await.unwrap();
    let response = StoredResponse { conversation: Some("c".into()), ..response("a") };
    store.responses().create(response, Vec::new()).await.unwrap();
}

pub(crate) async fn a_conversation_is_a_chain_of_items<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    store.responses().create_conversation(conversation("c"), items(&["1", "2\0"])).await.unwrap();
    store.responses().create_conversation(conversation("d"), items(&["other"])).await.unwrap();
    assert!(store.responses().create_conversation(conversation("c"), Vec::new()).await.is_err());
    let over = StoredResponse { conversation: Some("c".into()), state: StoredResponseState::Ended, ..response("over") };
    store.responses().create(over, items(&["4", "3"])).await.unwrap();
    store.close().await;
    let store = home.open();
    assert_eq!(store.responses().conversation_items("c".into()).await, Ok(items(&["1", "2\0", "4", "3"])));
    assert_eq!(store.responses().find_conversation("c".into()).await, Ok(Some(conversation("c"))));
    assert_eq!(store.responses().find_conversation("x".into()).await, Ok(None));
    assert_eq!(store.responses().conversation_items("x".into()).await, Ok(Vec::new()));
}

pub(crate) async fn a_deleted_conversation_takes_no_more_items<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    create_in_conversation(&store).await;
    assert_eq!(store.responses().delete_conversation("c".into()).await, Ok(true));
    assert_eq!(store.responses().delete_conversation("c".into()).await, Ok(false));
    assert_eq!(store.responses().end(ended("a", "completed")).await, Ok(true));
    assert_eq!(store.responses().conversation_items("c".into()).await, Ok(Vec::new()));
    assert_eq!(store.responses().find_conversation("c".into()).await, Ok(None));
}

pub(crate) async fn an_old_conversation_goes_with_its_last_response<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    let responses = store.responses();
    for id in ["used", "left"] {
        responses.create_conversation(conversation(id), items(&["1"])).await.unwrap();
    }
    let old = conversation("left").created_at + RESPONSE_RETENTION_SECONDS;
    let last = StoredResponse { conversation: Some("used".into()), expires_at: old + 10, ..response("a") };
    responses.create(last, Vec::new()).await.unwrap();
    responses.create(StoredResponse { expires_at: old + 20, ..response("alone") }, Vec::new()).await.unwrap();
    let deleted = |responses, conversations| Ok(DeletedResponses { responses, conversations });
    assert_eq!(responses.delete_expired(old - 1).await, deleted(0, 0));
    assert_eq!(responses.delete_expired(old).await, deleted(0, 1));
    assert_eq!(responses.find_conversation("left".into()).await, Ok(None));
    assert_eq!(responses.conversation_items("left".into()).await, Ok(Vec::new()));
    assert_eq!(responses.conversation_items("used".into()).await, Ok(items(&["1"])));
    assert_eq!(responses.delete_expired(old + 10).await, deleted(1, 1));
    assert_eq!(responses.find_conversation("used".into()).await, Ok(None));
}

pub(crate) async fn an_open_response_of_a_daemon_that_is_gone_is_abandoned<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    store.responses().create(response("a"), Vec::new()).await.unwrap();
    store.close().await;
    let store = home.open();
    let state = async || store.responses().find("a".into(), 0).await.unwrap().unwrap().state;
    assert_eq!(state().await, StoredResponseState::Abandoned);
    assert_eq!(store.responses().end(ended("a", "failed")).await, Ok(true));
    assert_eq!(state().await, StoredResponseState::Ended);
}

pub(crate) async fn old_responses_and_conversations_go_and_open_ones_stay<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    let responses = store.responses();
    create_in_conversation(&store).await;
    responses.create_conversation(conversation("unused"), items(&["1"])).await.unwrap();
    responses.create(ended_response("old", 100), Vec::new()).await.unwrap();
    responses.create(ended_response("new", 101), Vec::new()).await.unwrap();
    assert_eq!(responses.delete_older(7).await, Ok(0));
    assert_eq!(responses.delete_older(101).await, Ok(2), "an ended response, and a conversation without one");
    for (id, stays) in [("a", true), ("old", false), ("new", true)] {
        assert_eq!(responses.find(id.into(), 0).await.unwrap().is_some(), stays, "{id}");
    }
    assert_eq!(responses.find_conversation("unused".into()).await, Ok(None));
    assert!(responses.find_conversation("c".into()).await.unwrap().is_some(), "a response is made in it");
}

fn ended_response(id: &str, created_at: i64) -> StoredResponse {
    let state = StoredResponseState::Ended;
    StoredResponse { state, created_at, expires_at: created_at + 100, ..response(id) }
}

pub(crate) async fn the_oldest_go_first_and_the_room_of_an_owner_is_counted<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    let responses = store.responses();
    create_in_conversation(&store).await;
    let (ann, bob) = (Principal::parse("ann").unwrap(), Principal::parse("bob").unwrap());
    let used = async |owner: &Principal| responses.used_bytes(owner.clone()).await.unwrap();
    let before = used(&ann).await;
    for (number, id) in (101..).zip(["x", "y", "z"]) {
        let long = StoredResponse { input: "ü".repeat(50_000), ..ended_response(id, number) };
        responses.create(long, Vec::new()).await.unwrap();
    }
    let of_bob = StoredResponse { owner: bob.clone(), ..ended_response("bob", 100) };
    responses.create(of_bob, Vec::new()).await.unwrap();
    let newer = StoredConversation { created_at: 8, ..conversation("d") };
    responses.create_conversation(newer, items(&[&"i".repeat(50_000)])).await.unwrap();
    let full = used(&ann).await;
    assert!((400_000..405_000).contains(&(full - before)), "{before} {full}");
    assert_eq!(responses.delete_oldest(ResponseOwner::One(ann.clone()), 2).await, Ok(2));
    let left = async |id: &str| responses.find(id.into(), 0).await.unwrap().is_some();
    assert_eq!((left("x").await, left("y").await, left("z").await, left("bob").await), (false, false, true, true));
    assert!(used(&ann).await < full - 200_000);
    assert_eq!(responses.delete_oldest(ResponseOwner::Anybody, 1).await, Ok(1));
    assert_eq!((left("z").await, left("bob").await, used(&bob).await), (true, false, 0));
    assert_eq!(responses.delete_oldest(ResponseOwner::Anybody, 9).await, Ok(1), "the open one stays");
    assert_eq!(responses.delete_oldest_conversations(9).await, Ok(1), "the one with an open response stays");
    assert_eq!(used(&ann).await, before);
}

pub(crate) async fn a_conversation_has_one_open_response<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    store.responses().create_conversation(conversation("c"), items(&["1"])).await.unwrap();
    let inside = |id: &str| StoredResponse { conversation: Some("c".into()), ..response(id) };
    let responses = store.responses();
    let (one, other) = tokio::join!(responses.begin(inside("a")), responses.begin(inside("b")));
    let begun = [one.unwrap(), other.unwrap()].map(|outcome| outcome == BeginResponseOutcome::Begun);
    assert!(begun[0] != begun[1], "{begun:?}");
    assert_eq!(responses.begin(response("alone")).await, Ok(BeginResponseOutcome::Begun));
    assert_eq!(responses.begin(response("alone too")).await, Ok(BeginResponseOutcome::Begun));
    assert!(responses.begin(response("alone")).await.is_err());
    let open = if begun[0] { "a" } else { "b" };
    assert_eq!(responses.begin(inside("c")).await, Ok(BeginResponseOutcome::ConversationLocked));
    assert_eq!(responses.find_abandoned("c".into()).await, Ok(Vec::new()));
    assert_eq!(responses.end(ended(open, "completed")).await, Ok(true));
    assert_eq!(responses.begin(inside("d")).await, Ok(BeginResponseOutcome::Begun));
    store.close().await;
    let store = home.open();
    let abandoned = StoredResponse { state: StoredResponseState::Abandoned, ..inside("d") };
    assert_eq!(store.responses().find_abandoned("c".into()).await, Ok(vec![abandoned]));
    assert_eq!(store.responses().begin(inside("e")).await, Ok(BeginResponseOutcome::Begun), "its daemon is gone");
    let bytes = store.responses().conversation_bytes("c".into()).await.unwrap();
    assert!((400..500).contains(&bytes), "{bytes}");
}

pub(crate) async fn a_conversation_is_read_in_pages_and_changed<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    let responses = store.responses();
    responses.create_conversation(conversation("c"), items(&["1", "2", "3"])).await.unwrap();
    // Clients choose ids: one occurs twice.
    responses.add_items("c".into(), items(&["2", "4"])).await.unwrap();
    responses.add_items("gone".into(), items(&["5"])).await.unwrap();
    let page = async |after: Option<&str>, order: ItemOrder| {
        let query = ItemQuery { after: after.map(|text| format!("id of {text}")), order, limit: 3 };
        let page = responses.item_page("c".into(), query).await.unwrap();
        page.map(|page| page.into_iter().map(|item| item.item).collect::<Vec<_>>().concat())
    };
    let (up, down) = (ItemOrder::OldestFirst, ItemOrder::NewestFirst);
    assert_eq!((page(None, up).await.as_deref(), page(None, down).await.as_deref()), (Some("123"), Some("423")));
    assert_eq!((page(Some("3"), up).await.as_deref(), page(Some("2"), up).await.as_deref()), (Some("24"), Some("4")));
    assert_eq!((page(Some("2"), down).await.as_deref(), page(Some("1"), down).await.as_deref()), (Some("1"), Some("")));
    assert_eq!(page(Some("x"), up).await, None);
    let find = async |id: &str| responses.find_item("c".into(), id.into()).await.unwrap().map(|item| item.item);
    assert_eq!((find("id of 4").await.as_deref(), find("x").await), (Some("4"), None));
    assert_eq!(responses.delete_item("c".into(), "id of 2".into()).await, Ok(true));
    assert_eq!(responses.delete_item("c".into(), "id of 2".into()).await, Ok(false));
    assert_eq!(page(None, up).await.as_deref(), Some("134"));
    assert_eq!(responses.set_metadata("c".into(), "{}\0".into()).await, Ok(true));
    assert_eq!(responses.set_metadata("x".into(), "{}".into()).await, Ok(false));
    assert_eq!(responses.find_conversation("c".into()).await.unwrap().unwrap().metadata, "{}\0");
}
