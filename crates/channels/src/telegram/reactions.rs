//! Reactions with substitutes for emoji that bots may not use.
//!
//! Telegram shows only one reaction of a bot on a message: a new one replaces the old one. The last reaction on each
//! message is remembered, so that removing the old one does not remove the new one.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::TelegramNetwork;
use super::api::TelegramApi;
use super::messages::{chat_fields, message_number, remove_topic};
use crate::network::{ChatAddress, MessageId, Reactions, SendError, async_trait};
use crate::wire::http_client::Repeatable;

/// Number of messages whose reaction is remembered. On a forgotten message any reaction is removed.
const MAX_REMEMBERED: usize = 1024;

/// Emoji of the flow that Telegram does not allow (Bot API: `ReactionTypeEmoji`), and their substitutes: done, failed,
/// stopped on request.
const EMOJI_SUBSTITUTES: [(&str, &str); 3] = [("✅", "👍"), ("⚠", "💔"), ("⏹", "🫡")];

/// The last reaction on each of the latest messages.
#[derive(Debug, Default)]
pub(super) struct TelegramReactions {
    /// Chat, message, emoji.
    latest: Mutex<VecDeque<(String, String, String)>>,
}

#[async_trait]
impl Reactions for TelegramNetwork {
    async fn add(&self, address: &ChatAddress, message: &MessageId, emoji: &str) -> Result<(), SendError> {
        let emoji = substitute_emoji(emoji);
        // Record it before the call, so that a concurrent removal of the old reaction does not remove this one.
        self.reactions.record_reaction(address, message, &emoji);
        set_reaction(&self.api, address, message, json!([{"type": "emoji", "emoji": emoji}])).await
    }

    async fn remove(&self, address: &ChatAddress, message: &MessageId, emoji: &str) -> Result<(), SendError> {
        match self.reactions.take_reaction(address, message, &substitute_emoji(emoji)) {
            CurrentReaction::Another => Ok(()),
            CurrentReaction::ThisOrUnknown => set_reaction(&self.api, address, message, json!([])).await,
        }
    }
}

impl TelegramReactions {
    fn record_reaction(&self, address: &ChatAddress, message: &MessageId, emoji: &str) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.retain(|(chat, number, _)| *chat != address.target || *number != message.0);
        if latest.len() >= MAX_REMEMBERED {
            latest.pop_front();
        }
        latest.push_back((address.target.clone(), message.0.clone(), emoji.to_owned()));
    }

    fn take_reaction(&self, address: &ChatAddress, message: &MessageId, emoji: &str) -> CurrentReaction {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let found = latest.iter().position(|(chat, number, _)| *chat == address.target && *number == message.0);
        let Some(index) = found else { return CurrentReaction::ThisOrUnknown };
        if latest[index].2 != emoji {
            return CurrentReaction::Another;
        }
        latest.remove(index);
        CurrentReaction::ThisOrUnknown
    }
}

/// The reaction that is now on a message.
enum CurrentReaction {
    ThisOrUnknown,
    Another,
}

/// The emoji to use for a reaction, without the variation selector: Telegram writes all emoji without it.
fn substitute_emoji(emoji: &str) -> String {
    let emoji = emoji.replace('\u{fe0f}', "");
    EMOJI_SUBSTITUTES.iter().find(|(wanted, _)| *wanted == emoji).map_or(emoji, |(_, known)| (*known).to_owned())
}

async fn set_reaction(
    api: &TelegramApi,
    address: &ChatAddress,
    message: &MessageId,
    reactions: Value,
) -> Result<(), SendError> {
    let mut body = chat_fields(address)?;
    remove_topic(&mut body);
    body["message_id"] = message_number(message)?;
    body["reaction"] = reactions;
    // Idempotent.
    let result = api.call_method("setMessageReaction", &body).await;
    result.map(drop).map_err(|failure| failure.into_send_error(Repeatable::Yes))
}
