//! Responses of the Responses API, and conversations.

use std::collections::BTreeSet;

use quell_protocol::Principal;

use super::{Data, MemoryStore};
use crate::{
    BeginResponseOutcome, ConversationItem, DeletedResponses, EndedResponse, ItemOrder, ItemQuery,
    RESPONSE_RETENTION_SECONDS, ResponseOwner, ResponseStore, StoreError, StoreFuture, StoredConversation,
    StoredResponse, StoredResponseState,
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

impl ResponseEntry {
    fn has_ended(&self) -> bool {
        self.response.state == StoredResponseState::Ended
    }

    fn bytes(&self) -> usize {
        500 + self.response.response.len() + self.response.input.len() + self.events.as_ref().map_or(0, String::len)
    }
}

impl ConversationEntry {
    fn bytes(&self) -> usize {
        let items = self.items.iter().map(|item| 200 + item.id.len() + item.item.len());
        500 + self.conversation.metadata.len() + items.sum::<usize>()
    }
}

fn age_and_id(entry: &ResponseEntry) -> (i64, String) {
    (entry.response.expires_at, entry.response.id.clone())
}

impl Data {
    /// The conversations of the responses that are meant.
    fn conversations_with(&self, is_meant: impl Fn(&ResponseEntry) -> bool) -> BTreeSet<String> {
        let entries = self.responses.values().filter(|entry| is_meant(entry));
        entries.filter_map(|entry| entry.response.conversation.clone()).collect()
    }

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

    fn begin(&self, response: StoredResponse) -> StoreFuture<'_, BeginResponseOutcome> {
        let boot = self.boot;
        self.write(move |data| {
            if data.responses.contains_key(&response.id) {
                return Err(StoreError::Bug(format!("the response {} exists", response.id)));
            }
            let is_open = |entry: &ResponseEntry| {
                let same = response.conversation.is_some() && entry.response.conversation == response.conversation;
                same && !entry.has_ended() && entry.boot == boot
            };
            if data.responses.values().any(is_open) {
                return Ok(BeginResponseOutcome::ConversationLocked);
            }
            data.responses.insert(response.id.clone(), ResponseEntry { boot, response, events: None });
            Ok(BeginResponseOutcome::Begun)
        })
    }

    fn find_abandoned(&self, conversation: String) -> StoreFuture<'_, Vec<StoredResponse>> {
        let boot = self.boot;
        self.read(move |data| {
            let is_meant = |entry: &&ResponseEntry| {
                entry.response.conversation.as_ref() == Some(&conversation) && !entry.has_ended() && entry.boot != boot
            };
            let state = StoredResponseState::Abandoned;
            let found = data.responses.values().filter(is_meant);
            Ok(found.map(|entry| StoredResponse { state, ..entry.response.clone() }).collect())
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

    fn delete_older(&self, time: i64) -> StoreFuture<'_, u64> {
        self.write(move |data| {
            let before = data.responses.len() + data.conversations.len();
            data.responses.retain(|_, entry| !entry.has_ended() || entry.response.created_at >= time);
            let used = data.conversations_with(|_| true);
            data.conversations.retain(|id, entry| entry.conversation.created_at >= time || used.contains(id));
            Ok((before - data.responses.len() - data.conversations.len()) as u64)
        })
    }

    fn delete_oldest(&self, of: ResponseOwner, count: u32) -> StoreFuture<'_, u64> {
        self.write(move |data| {
            let is_meant = |entry: &&ResponseEntry| {
                entry.has_ended() && of.name().is_none_or(|owner| entry.response.owner.as_str() == owner)
            };
            let mut oldest: Vec<(i64, String)> = data.responses.values().filter(is_meant).map(age_and_id).collect();
            oldest.sort();
            oldest.truncate(count as usize);
            oldest.iter().for_each(|(_, id)| drop(data.responses.remove(id)));
            Ok(oldest.len() as u64)
        })
    }

    fn delete_oldest_conversations(&self, count: u32) -> StoreFuture<'_, u64> {
        self.write(move |data| {
            let in_use = data.conversations_with(|entry| !entry.has_ended());
            let unused = data.conversations.values().map(|entry| &entry.conversation);
            let unused = unused.filter(|conversation| !in_use.contains(&conversation.id));
            let mut oldest: Vec<(i64, String)> =
                unused.map(|conversation| (conversation.created_at, conversation.id.clone())).collect();
            oldest.sort();
            oldest.truncate(count as usize);
            oldest.iter().for_each(|(_, id)| drop(data.conversations.remove(id)));
            Ok(oldest.len() as u64)
        })
    }

    fn used_bytes(&self, owner: Principal) -> StoreFuture<'_, u64> {
        self.read(move |data| {
            let responses = data.responses.values().filter(|entry| entry.response.owner == owner);
            let conversations = data.conversations.values().filter(|entry| entry.conversation.owner == owner);
            let bytes = responses.map(ResponseEntry::bytes).sum::<usize>();
            Ok((bytes + conversations.map(ConversationEntry::bytes).sum::<usize>()) as u64)
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

    fn conversation_bytes(&self, id: String) -> StoreFuture<'_, u64> {
        self.read(move |data| {
            let items = data.conversations.get(&id).into_iter().flat_map(|entry| &entry.items);
            Ok(items.map(|item| 200 + item.id.len() + item.item.len()).sum::<usize>() as u64)
        })
    }

    fn conversation_items(&self, id: String) -> StoreFuture<'_, Vec<ConversationItem>> {
        self.read(move |data| Ok(data.conversations.get(&id).map(|entry| entry.items.clone()).unwrap_or_default()))
    }

    fn item_page(&self, id: String, query: ItemQuery) -> StoreFuture<'_, Option<Vec<ConversationItem>>> {
        self.read(move |data| {
            let mut items = data.conversations.get(&id).map(|entry| entry.items.clone()).unwrap_or_default();
            if query.order == ItemOrder::NewestFirst {
                items.reverse();
            }
            if let Some(after) = &query.after {
                let Some(at) = items.iter().rposition(|item| item.id == *after) else { return Ok(None) };
                items.drain(..=at);
            }
            items.truncate(query.limit as usize);
            Ok(Some(items))
        })
    }

    fn find_item(&self, conversation: String, id: String) -> StoreFuture<'_, Option<ConversationItem>> {
        self.read(move |data| {
            let items = data.conversations.get(&conversation).map(|entry| &entry.items);
            Ok(items.and_then(|items| items.iter().find(|item| item.id == id)).cloned())
        })
    }

    fn add_items(&self, conversation: String, items: Vec<ConversationItem>) -> StoreFuture<'_, ()> {
        self.write(move |data| {
            data.append_items(Some(&conversation), items);
            Ok(())
        })
    }

    fn delete_item(&self, conversation: String, id: String) -> StoreFuture<'_, bool> {
        self.write(move |data| {
            let Some(entry) = data.conversations.get_mut(&conversation) else { return Ok(false) };
            let before = entry.items.len();
            entry.items.retain(|item| item.id != id);
            Ok(entry.items.len() < before)
        })
    }

    fn set_metadata(&self, conversation: String, metadata: String) -> StoreFuture<'_, bool> {
        self.write(move |data| {
            let entry = data.conversations.get_mut(&conversation);
            Ok(entry.map(|entry| entry.conversation.metadata = metadata).is_some())
        })
    }

    fn delete_conversation(&self, id: String) -> StoreFuture<'_, bool> {
        self.write(move |data| Ok(data.conversations.remove(&id).is_some()))
    }
}
