//! Telegram network: Bot API (<https://core.telegram.org/bots/api>) with long polling.
//!
//! Telegram keeps a message until the next `getUpdates` call confirms it. That call is made when all earlier messages
//! are stored, so a crash in between loses nothing: the message comes again with the same id. The offset is Telegram's
//! own; no cursor is saved here. While storing takes long, Telegram is asked for the unconfirmed messages again, and
//! new ones among them are delivered: a stop does not wait for a slow database.
//!
//! Ignored are bots, posts on behalf of a channel or group, stickers, locations and the like, and edits of old
//! messages: the original request was answered or is being answered, and a second run for a corrected comma would
//! surprise.

mod addressed_text;
mod api;
mod buttons;
mod files;
mod messages;
mod reactions;
#[cfg(test)]
pub(crate) mod tests;
mod update_parser;

use std::convert::Infallible;
use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use super::config::{ChannelConfig, ChannelConfigError};
use super::format::{LengthUnit, Markup, MessageFormat, MessagePiece};
use super::network::{
    ChatAddress, InboundSink, ListenError, MessageId, Network, NetworkError, NetworkFeatures, NetworkLimits, SendError,
    async_trait,
};
use super::wire::call_error::CallError;
use addressed_text::TelegramBot;
use api::TelegramApi;
use reactions::TelegramReactions;
use update_parser::TelegramUpdate;

/// How long Telegram holds a `getUpdates` call. It is the longest time that its server grants.
const POLL_WAIT: Duration = Duration::from_secs(50);
/// How long storing may take before Telegram is asked again for the unconfirmed messages.
const STORE_WAIT: Duration = Duration::from_millis(500);
/// Largest number of updates in one response (Bot API: getUpdates, limit).
const MAX_UPDATES: usize = 100;
/// Kinds of updates that are asked for (Bot API: `Update`).
const ALLOWED_UPDATES: [&str; 2] = ["message", "callback_query"];
/// Bot API: sendMessage, "1-4096 characters after entities parsing"; characters are UTF-16 code units there.
const MAX_MESSAGE_UTF16_UNITS: usize = 4096;
/// Telegram accepts about one message per second in a chat and 20 per minute in a group, edits included (Bots FAQ: "My
/// bot is hitting limits"). A draft does not know which kind its chat is.
const EDIT_INTERVAL: Duration = Duration::from_secs(3);
/// The indicator disappears after five seconds (Bot API: sendChatAction).
const TYPING_INTERVAL: Duration = Duration::from_secs(4);

#[derive(Debug)]
pub struct TelegramNetwork {
    channel_name: String,
    api: TelegramApi,
    mention_only: bool,
    reactions: TelegramReactions,
}

impl TelegramNetwork {
    /// Creates a bot from `[channels.NAME]`.
    pub fn new(channel_name: &str, config: &ChannelConfig) -> Result<Self, ChannelConfigError> {
        let config_error = |key, problem: &str| ChannelConfigError::new(channel_name, key, problem);
        config.check_network_keys(channel_name, &["api_base", "mention_only", "voice"])?;
        let rule = "is no id of a person in Telegram, which is a number; bots such as @userinfobot tell it";
        config.check_sender_ids(channel_name, |id| id.parse::<u64>().is_ok(), rule)?;
        let missing = "is missing: name the environment variable with the token from @BotFather, or set token_file";
        let token = config.token.clone().ok_or_else(|| config_error("token_env", missing))?;
        let api = TelegramApi::new(config.api_base.as_deref(), token)
            .map_err(|(key, problem)| config_error(key, &problem))?;
        let (channel_name, mention_only) = (channel_name.to_owned(), config.mention_only);
        Ok(Self { channel_name, api, mention_only, reactions: TelegramReactions::default() })
    }

    async fn poll_until_lost(&self, sink: &dyn InboundSink) -> Result<Infallible, ListenError> {
        let account = self.fetch_bot().await.map_err(api::listen_error)?;
        // The first call does not wait: its response shows at once whether this account can listen.
        let mut updates = self.fetch_updates(None, Duration::ZERO).await?;
        sink.on_connected(account.to_own_account());
        // The newest update that was delivered and is not confirmed.
        let mut last_update_id = None;
        loop {
            let is_full_page = updates.len() >= MAX_UPDATES;
            for update in updates {
                if last_update_id.is_some_and(|last| update.id <= last) {
                    continue;
                }
                last_update_id = Some(update.id);
                self.deliver_update(update, &account, sink);
            }
            let is_stored = last_update_id.is_none() || timeout(STORE_WAIT, sink.wait_until_stored()).await.is_ok();
            // Update ids restart after a quiet week. So an offset is used once, and ids are only compared while
            // unconfirmed.
            let mut next_offset = || last_update_id.take().map(|last: i64| last.saturating_add(1));
            updates = match is_stored {
                true => self.fetch_updates(next_offset(), POLL_WAIT).await?,
                // Updates behind a full page are only delivered once the page is confirmed, and one of them may be a
                // stop. Receiving it is more important than the messages that a crash at this moment would lose.
                false if is_full_page => self.fetch_updates(next_offset(), Duration::ZERO).await?,
                false => self.fetch_updates(None, Duration::ZERO).await?,
            };
        }
    }

    async fn fetch_bot(&self) -> Result<TelegramBot, CallError> {
        let me = self.api.call_method("getMe", &json!({})).await?;
        serde_json::from_value(me)
            .map_err(|_| CallError::InvalidResponse("getMe does not say who the bot is".to_owned()))
    }

    /// Fetches the messages after the confirmed ones. An offset confirms everything below it.
    async fn fetch_updates(&self, offset: Option<i64>, wait: Duration) -> Result<Vec<TelegramUpdate>, ListenError> {
        let mut request = json!({"limit": MAX_UPDATES, "timeout": wait.as_secs(), "allowed_updates": ALLOWED_UPDATES});
        if let Some(offset) = offset {
            request["offset"] = json!(offset);
        }
        let updates = self.api.call_method_with_wait("getUpdates", &request, wait).await.map_err(api::listen_error)?;
        serde_json::from_value(updates)
            .map_err(|_| ListenError::Connection("getUpdates does not answer with updates".to_owned()))
    }

    fn deliver_update(&self, update: TelegramUpdate, account: &TelegramBot, sink: &dyn InboundSink) {
        // An update that cannot be parsed must not block the next one.
        let skip = |error: serde_json::Error| {
            tracing::debug!(channel = self.channel_name, %error, "an update cannot be parsed");
        };
        if let Some(message) = update.message
            && let Ok(message) = serde_json::from_value(message).map_err(skip)
            && let Some(inbound) = update_parser::parse_message(message, account, self.mention_only)
        {
            sink.on_message(inbound);
        }
        if let Some(query) = update.callback_query
            && let Ok(Some(press)) = update_parser::parse_press(query).map_err(skip)
        {
            sink.on_button_press(press);
        }
    }
}

#[async_trait]
impl Network for TelegramNetwork {
    fn limits(&self) -> NetworkLimits {
        let message_format = MessageFormat {
            markup: Markup::TelegramHtml,
            max_length: MAX_MESSAGE_UTF16_UNITS,
            length_unit: LengthUnit::Utf16,
        };
        NetworkLimits { message_format, edit_interval: EDIT_INTERVAL, typing_interval: TYPING_INTERVAL }
    }

    async fn listen(&self, sink: &dyn InboundSink) -> ListenError {
        let Err(lost) = self.poll_until_lost(sink).await;
        lost
    }

    async fn send(&self, address: &ChatAddress, piece: &MessagePiece, _key: &str) -> Result<MessageId, SendError> {
        messages::send_message(&self.api, address, piece).await
    }

    async fn probe(&self) -> Result<String, NetworkError> {
        let account = self.fetch_bot().await.map_err(api::network_error)?;
        let webhook = self.api.call_method("getWebhookInfo", &json!({})).await.map_err(api::network_error)?;
        match webhook["url"].as_str() {
            Some(url) if !url.is_empty() => Err(NetworkError(format!("{account}, but {}", api::WEBHOOK_CONFLICT))),
            _ => Ok(account.to_string()),
        }
    }

    fn features(&self) -> NetworkFeatures<'_> {
        NetworkFeatures {
            drafts: Some(self),
            typing: Some(self),
            reactions: Some(self),
            files: Some(self),
            buttons: Some(self),
            ..NetworkFeatures::default()
        }
    }
}
