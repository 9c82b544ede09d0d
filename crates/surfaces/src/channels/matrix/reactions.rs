//! Signs on messages. Each is an event of its own, and to take it off is to take that event back, so its id is kept; where it was
//! forgotten, the homeserver is asked for it.

use std::collections::VecDeque;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::json;

use super::events::{Event, Relation};
use super::fault::Fault;
use super::speaking::new_transaction;
use super::{Matrix, locked};
use crate::channels::seam::{MessageId, NotSent, Place, Reactions};
use crate::channels::wire::http::Repeatable;

/// So many signs are remembered: more than there are runs at a time, since each run leaves one behind.
const MOST: usize = 1_000;
/// So many pages of reactions to one message are read.
const MOST_PAGES: usize = 10;

/// The events of signs that were put on messages, oldest first.
#[derive(Debug, Default)]
pub(super) struct Remembered(VecDeque<Sign>);

#[derive(Debug)]
struct Sign {
    message: String,
    sign: String,
    event: String,
}

impl Remembered {
    fn remember(&mut self, message: &MessageId, sign: &str, event: String) {
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        self.0.push_back(Sign { message: message.0.clone(), sign: sign.to_owned(), event });
    }

    fn recall(&self, message: &MessageId, sign: &str) -> Option<String> {
        let known = self.0.iter().rev().find(|known| known.message == message.0 && known.sign == sign);
        known.map(|known| known.event.clone())
    }

    fn forget(&mut self, event: &str) {
        self.0.retain(|known| known.event != event);
    }
}

impl Reactions for Matrix {
    fn add<'a>(
        &'a self,
        place: &'a Place,
        message: &'a MessageId,
        sign: &'a str,
    ) -> BoxFuture<'a, Result<(), NotSent>> {
        self.put(place, message, sign).map(|put| put.map_err(|fault| fault.into_not_sent(Repeatable::Yes))).boxed()
    }

    fn remove<'a>(
        &'a self,
        place: &'a Place,
        message: &'a MessageId,
        sign: &'a str,
    ) -> BoxFuture<'a, Result<(), NotSent>> {
        self.take_off(place, message, sign)
            .map(|taken| taken.map_err(|fault| fault.into_not_sent(Repeatable::Yes)))
            .boxed()
    }
}

impl Matrix {
    async fn put(&self, place: &Place, message: &MessageId, sign: &str) -> Result<(), Fault> {
        let content = json!({"m.relates_to": {"rel_type": "m.annotation", "event_id": message.0, "key": sign}});
        match self.api.send(&place.target, "m.reaction", &new_transaction(), &content).await {
            Ok(event) => {
                locked(&self.reactions).remember(message, sign, event);
                Ok(())
            }
            // It is there already, by a call whose answer was lost.
            Err(fault) if fault.is_code("M_DUPLICATE_ANNOTATION") => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    async fn take_off(&self, place: &Place, message: &MessageId, sign: &str) -> Result<(), Fault> {
        let known = locked(&self.reactions).recall(message, sign);
        let event = match known {
            Some(event) => event,
            None => match self.find(place, message, sign).await? {
                Some(event) => event,
                None => return Ok(()),
            },
        };
        match self.api.redact(&place.target, &event, &new_transaction()).await {
            Err(fault) if !fault.is_code("M_NOT_FOUND") => Err(fault),
            _ => {
                locked(&self.reactions).forget(&event);
                Ok(())
            }
        }
    }

    /// The event of this account's sign on a message.
    async fn find(&self, place: &Place, message: &MessageId, sign: &str) -> Result<Option<String>, Fault> {
        let own = self.own_id().await?;
        let mut from = None;
        for _ in 0..MOST_PAGES {
            let page = match self.api.reactions(&place.target, &message.0, from.as_deref()).await {
                Err(fault) if fault.is_code("M_NOT_FOUND") => return Ok(None),
                answer => answer?,
            };
            if let Some(event) = page.read().into_iter().find(|event| event.sender == own && is_sign(event, sign)) {
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

fn is_sign(event: &Event, sign: &str) -> bool {
    let relation: Option<Relation> = serde::Deserialize::deserialize(&event.content["m.relates_to"]).ok();
    relation.is_some_and(|relation| relation.key.as_deref() == Some(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_signs_are_remembered_and_no_more_than_fit() {
        let mut remembered = Remembered::default();
        let message = |n: usize| MessageId(format!("$message{n}"));
        for n in 0..=MOST {
            remembered.remember(&message(n), "👀", format!("$sign{n}"));
        }
        assert_eq!(remembered.0.len(), MOST);
        assert_eq!(remembered.recall(&message(0), "👀"), None);
        assert_eq!(remembered.recall(&message(1), "👀"), Some("$sign1".to_owned()));
        assert_eq!(remembered.recall(&message(1), "✅"), None);
        remembered.forget("$sign1");
        assert_eq!(remembered.recall(&message(1), "👀"), None);
    }
}
