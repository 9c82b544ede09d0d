//! Add and remove reactions; cache their event ids.
//!
//! A reaction is an event of its own, and removing it means to redact that event. If its id is not in the cache, the
//! homeserver is asked for it.

use std::collections::VecDeque;

use serde_json::json;

use super::events::{EventRelation, MatrixEvent};
use super::sending::new_transaction_id;
use super::{MatrixNetwork, lock};
use crate::network::{ChatAddress, MessageId, Reactions, SendError, async_trait};
use crate::wire::call_error::CallError;
use crate::wire::http_client::Repeatable;

/// Largest number of cached reactions. It is more than the number of runs at a time, and each run leaves one reaction.
const MAX_CACHED_REACTIONS: usize = 1_000;
/// Largest number of pages of reactions to one message that are read.
const MAX_RELATION_PAGES: usize = 10;

/// Event ids of the reactions of this account, oldest first.
#[derive(Debug, Default)]
pub(super) struct ReactionCache(VecDeque<CachedReaction>);

#[derive(Debug)]
struct CachedReaction {
    message_id: String,
    emoji: String,
    event_id: String,
}

impl ReactionCache {
    fn insert(&mut self, message: &MessageId, emoji: &str, event: String) {
        if self.0.len() >= MAX_CACHED_REACTIONS {
            self.0.pop_front();
        }
        self.0.push_back(CachedReaction { message_id: message.0.clone(), emoji: emoji.to_owned(), event_id: event });
    }

    fn find(&self, message: &MessageId, emoji: &str) -> Option<String> {
        let known = self.0.iter().rev().find(|known| known.message_id == message.0 && known.emoji == emoji);
        known.map(|known| known.event_id.clone())
    }

    fn remove_event(&mut self, event: &str) {
        self.0.retain(|known| known.event_id != event);
    }
}

#[async_trait]
impl Reactions for MatrixNetwork {
    async fn add(&self, address: &ChatAddress, message: &MessageId, emoji: &str) -> Result<(), SendError> {
        let content = json!({"m.relates_to": {"rel_type": "m.annotation", "event_id": message.0, "key": emoji}});
        match self.api.send_event(&address.target, "m.reaction", &new_transaction_id(), &content).await {
            Ok(event) => {
                lock(&self.reaction_cache).insert(message, emoji, event);
                Ok(())
            }
            // It was added before, by a call whose response was lost.
            Err(fault) if fault.has_code("M_DUPLICATE_ANNOTATION") => Ok(()),
            Err(fault) => Err(fault.into_send_error(Repeatable::Yes)),
        }
    }

    async fn remove(&self, address: &ChatAddress, message: &MessageId, emoji: &str) -> Result<(), SendError> {
        let removed = self.remove_reaction(address, message, emoji).await;
        removed.map_err(|fault| fault.into_send_error(Repeatable::Yes))
    }
}

impl MatrixNetwork {
    async fn remove_reaction(&self, address: &ChatAddress, message: &MessageId, emoji: &str) -> Result<(), CallError> {
        let known = lock(&self.reaction_cache).find(message, emoji);
        let event = match known {
            Some(event) => event,
            None => match self.find_reaction_event(address, message, emoji).await? {
                Some(event) => event,
                None => return Ok(()),
            },
        };
        match self.api.redact_event(&address.target, &event, &new_transaction_id()).await {
            Err(fault) if !fault.has_code("M_NOT_FOUND") => Err(fault),
            _ => {
                lock(&self.reaction_cache).remove_event(&event);
                Ok(())
            }
        }
    }

    /// The event id of this account's reaction on a message.
    async fn find_reaction_event(
        &self,
        address: &ChatAddress,
        message: &MessageId,
        emoji: &str,
    ) -> Result<Option<String>, CallError> {
        let own_id = self.account_id().await?;
        let mut from = None;
        for _ in 0..MAX_RELATION_PAGES {
            let page = match self.api.reactions_page(&address.target, &message.0, from.as_deref()).await {
                Err(fault) if fault.has_code("M_NOT_FOUND") => return Ok(None),
                response => response?,
            };
            if let Some(event) =
                page.chunk.parse().into_iter().find(|event| event.sender == own_id && is_reaction_with(event, emoji))
            {
                return Ok(Some(event.event_id));
            }
            if page.next_batch.is_none() {
                return Ok(None);
            }
            from = page.next_batch;
        }
        Ok(None)
    }
}

fn is_reaction_with(event: &MatrixEvent, emoji: &str) -> bool {
    let relation: Option<EventRelation> = serde::Deserialize::deserialize(&event.content["m.relates_to"]).ok();
    relation.is_some_and(|relation| relation.key.as_deref() == Some(emoji))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_signs_are_remembered_and_no_more_than_fit() {
        let mut cache = ReactionCache::default();
        let message = |n: usize| MessageId(format!("$message{n}"));
        for n in 0..=MAX_CACHED_REACTIONS {
            cache.insert(&message(n), "👀", format!("$sign{n}"));
        }
        assert_eq!(cache.0.len(), MAX_CACHED_REACTIONS);
        assert_eq!(cache.find(&message(0), "👀"), None);
        assert_eq!(cache.find(&message(1), "👀"), Some("$sign1".to_owned()));
        assert_eq!(cache.find(&message(1), "✅"), None);
        cache.remove_event("$sign1");
        assert_eq!(cache.find(&message(1), "👀"), None);
    }
}
