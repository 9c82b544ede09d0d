//! Responses and conversations: their ends, their expiry, and what a daemon leaves behind.

use super::*;
use crate::{
    ConversationItem, DeletedResponses, EndedResponse, RESPONSE_RETENTION_SECONDS, StoredConversation, StoredResponse,
    StoredResponseState,
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
