//! Responses of the Responses API, and conversations.

use std::collections::BTreeSet;

use super::{Data, MemoryStore};
use crate::{
    ConversationItem, DeletedResponses, EndedResponse, RESPONSE_RETENTION_SECONDS, ResponseStore, StoreError,
    StoreFuture, StoredConversation, StoredResponse, StoredResponseState,
};

#[derive(Debug)]
pub(super) struct ResponseEntry {
    boot: u64,
    response: StoredResponse,
    events: Option<String>,
}

#[derive(Debug)]
pub(super) struct ConversationEntry {
    conversation: StoredConversation,
    items: Vec<ConversationItem>,
}

impl Data {
    fn append_items(&mut self, conversation: Option<&str>, items: Vec<ConversationItem>) {
        if let Some(entry) = conversation.and_then(|id| self.conversations.get_mut(id)) {
            entry.items.extend(items);
        }
    }
}

impl ResponseStore for MemoryStore {
    fn create(&self, response: StoredResponse, conversation_items: Vec<ConversationItem>) -> StoreFuture<'_, ()> {
        let boot = self.boot;
        self.write(move |data| {
            if data.responses.contains_key(&response.id) {
                return Err(StoreError::Bug(format!("the response {} exists", response.id)));
            }
            data.append_items(response.conversation.as_deref(), conversation_items);
            data.responses.insert(response.id.clone(), ResponseEntry { boot, response, events: None });
            Ok(())
        })
    }

    fn find(&self, id: String, now: i64) -> StoreFuture<'_, Option<StoredResponse>> {
        let boot = self.boot;
        self.read(move |data| {
            let entry = data.responses.get(&id).filter(|entry| entry.response.expires_at > now);
            Ok(entry.map(|entry| {
                let has_ended = entry.response.state == StoredResponseState::Ended;
                let state = StoredResponseState::from_columns(has_ended, entry.boot != boot);
                StoredResponse { state, ..entry.response.clone() }
            }))
        })
    }

    fn events(&self, id: String) -> StoreFuture<'_, Option<String>> {
        self.read(move |data| Ok(data.responses.get(&id).and_then(|entry| entry.events.clone())))
    }

    fn end(&self, ended: EndedResponse) -> StoreFuture<'_, bool> {
        self.write(move |data| {
            let entry = data.responses.get_mut(&ended.id);
            let Some(entry) = entry.filter(|entry| entry.response.state != StoredResponseState::Ended) else {
                return Ok(false);
            };
            entry.response.state = StoredResponseState::Ended;
            entry.response.response = ended.response;
            entry.events = ended.events;
            let conversation = entry.response.conversation.clone();
            data.append_items(conversation.as_deref(), ended.conversation_items);
            Ok(true)
        })
    }

    fn delete(&self, id: String) -> StoreFuture<'_, bool> {
        self.write(move |data| Ok(data.responses.remove(&id).is_some()))
    }

    fn delete_expired(&self, now: i64) -> StoreFuture<'_, DeletedResponses> {
        self.write(move |data| {
            let before = (data.responses.len(), data.conversations.len());
            data.responses.retain(|_, entry| entry.response.expires_at > now);
            let used: BTreeSet<String> =
                data.responses.values().filter_map(|entry| entry.response.conversation.clone()).collect();
            let oldest = now.saturating_sub(RESPONSE_RETENTION_SECONDS);
            data.conversations.retain(|id, entry| entry.conversation.created_at > oldest || used.contains(id));
            Ok(DeletedResponses {
                responses: (before.0 - data.responses.len()) as u64,
                conversations: (before.1 - data.conversations.len()) as u64,
            })
        })
    }

    fn create_conversation(
        &self,
        conversation: StoredConversation,
        items: Vec<ConversationItem>,
    ) -> StoreFuture<'_, ()> {
        self.write(move |data| {
            if data.conversations.contains_key(&conversation.id) {
                return Err(StoreError::Bug(format!("the conversation {} exists", conversation.id)));
            }
            data.conversations.insert(conversation.id.clone(), ConversationEntry { conversation, items });
            Ok(())
        })
    }

    fn find_conversation(&self, id: String) -> StoreFuture<'_, Option<StoredConversation>> {
        self.read(move |data| Ok(data.conversations.get(&id).map(|entry| entry.conversation.clone())))
    }

    fn conversation_items(&self, id: String) -> StoreFuture<'_, Vec<ConversationItem>> {
        self.read(move |data| Ok(data.conversations.get(&id).map(|entry| entry.items.clone()).unwrap_or_default()))
    }

    fn delete_conversation(&self, id: String) -> StoreFuture<'_, bool> {
        self.write(move |data| Ok(data.conversations.remove(&id).is_some()))
    }
}
