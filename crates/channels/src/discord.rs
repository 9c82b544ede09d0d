//! Discord network: gateway for receiving, REST API for sending (both version 10).
//!
//! A thread of Discord is a channel with an id of its own: it is the target, and there is no thread within it. Sources
//! are the public documentation of Discord: API reference, gateway, rate limits, opcodes and status codes.

mod buttons;
mod files;
mod gateway;
mod gateway_session;
mod message_parser;
mod payload;
mod rest_client;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Mutex;
use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use super::config::{ChannelConfig, ChannelConfigError};
use super::format::{LengthUnit, Markup, MessageFormat, MessagePiece};
use super::network::{
    ChatAddress, Drafts, InboundSink, ListenError, MessageId, Network, NetworkError, NetworkFeatures, NetworkLimits,
    Reactions, SendError, TypingIndicator, async_trait,
};
use super::wire::call_error::CallError;
use super::wire::http_client::{Repeatable, parse_api_base};
use super::wire::text::single_line;
use gateway_session::ResumeState;
use rest_client::DiscordRestClient;

const PUBLIC_API_URL: &str = "https://discord.com/api/v10";
/// Discord: create message, `content`. The API counts code points (discord-api-docs issue 1315), older clients UTF-16
/// code units. A text that fits in UTF-16 fits in both.
const MAX_MESSAGE_UTF16_UNITS: usize = 2000;
/// Time between edits of one draft. Discord allows five requests within five seconds in a channel, and other messages
/// need some of them.
const EDIT_INTERVAL: Duration = Duration::from_millis(1200);
/// The indicator disappears after ten seconds.
const TYPING_INTERVAL: Duration = Duration::from_secs(4);
/// Discord: JSON error codes of an unknown message and an unknown emoji. When a reaction is removed, both mean that
/// there is none.
const NO_REACTION_CODES: [&str; 2] = ["10008", "10014"];
/// Discord: application flags `GATEWAY_MESSAGE_CONTENT` and `GATEWAY_MESSAGE_CONTENT_LIMITED` (bots in few guilds).
const MESSAGE_CONTENT_FLAGS: u64 = (1 << 18) | (1 << 19);

/// A bot account on Discord.
#[derive(Debug)]
pub struct DiscordNetwork {
    rest_client: DiscordRestClient,
    mention_only: bool,
    /// The gateway session, so that the next connection resumes it.
    resume_state: Mutex<ResumeState>,
}

impl DiscordNetwork {
    /// Checks the keys of `[channels.X]`.
    pub fn new(channel_name: &str, config: &ChannelConfig) -> Result<Self, ChannelConfigError> {
        let config_error = |key, problem: &str| ChannelConfigError::new(channel_name, key, problem);
        config.check_network_keys(channel_name, &["api_base", "mention_only", "voice"])?;
        let rule = "is no id of a person on Discord, which is a number: switch on Developer Mode in the settings of your \
                    client, and take \"Copy User ID\" from their menu";
        config.check_sender_ids(channel_name, |id| message_parser::parse_snowflake(id).is_some(), rule)?;
        let base = config.api_base.as_deref().unwrap_or(PUBLIC_API_URL);
        let base = parse_api_base(base).map_err(|problem| config_error("api_base", problem))?;
        let missing = "Discord needs the bot's token: name the environment variable that holds it (token_env), or the \
                       file (token_file). It is shown in the Developer Portal under Bot";
        let token = config.token.clone().ok_or_else(|| config_error("token_env", missing))?;
        let rest =
            DiscordRestClient::new(base, token).map_err(|NetworkError(problem)| config_error("token_env", &problem))?;
        Ok(Self { rest_client: rest, mention_only: config.mention_only, resume_state: Mutex::default() })
    }

    fn reaction_request(
        &self,
        method: Method,
        address: &ChatAddress,
        message: &MessageId,
        emoji: &str,
    ) -> Result<RequestBuilder, SendError> {
        let message = require_snowflake(&message.0)?;
        let path = ["channels", target_channel_id(address)?, "messages", message, "reactions", emoji, "@me"];
        Ok(self.rest_client.request(method, &path))
    }

    /// Sends a message with these fields. It notifies nobody, and is shown once for each key.
    async fn create_message(&self, address: &ChatAddress, key: &str, mut body: Value) -> Result<MessageId, SendError> {
        let channel = target_channel_id(address)?;
        body["nonce"] = json!(rest_client::message_nonce(channel, key));
        body["enforce_nonce"] = json!(true);
        body["allowed_mentions"] = no_allowed_mentions();
        let request = self.rest_client.request(Method::POST, &["channels", channel, "messages"]).json(&body);
        let sent = rest_client::call_api(request).await.map_err(|failure| failure.into_send_error(Repeatable::Yes))?;
        rest_client::sent_message_id(&sent, Repeatable::Yes)
    }

    /// Replaces these fields of a message.
    async fn edit_message(&self, address: &ChatAddress, message: &MessageId, mut body: Value) -> Result<(), SendError> {
        body["allowed_mentions"] = no_allowed_mentions();
        let path = ["channels", target_channel_id(address)?, "messages", require_snowflake(&message.0)?];
        call_api_repeatable(self.rest_client.request(Method::PATCH, &path).json(&body)).await
    }

    async fn get_json(&self, path: &[&str]) -> Result<Value, NetworkError> {
        let response = rest_client::call_api(self.rest_client.request(Method::GET, path)).await;
        response.map_err(CallError::into_network_error)
    }
}

#[async_trait]
impl Network for DiscordNetwork {
    fn limits(&self) -> NetworkLimits {
        let message_format = MessageFormat {
            markup: Markup::Discord,
            max_length: MAX_MESSAGE_UTF16_UNITS,
            length_unit: LengthUnit::Utf16,
        };
        NetworkLimits { message_format, edit_interval: EDIT_INTERVAL, typing_interval: TYPING_INTERVAL }
    }

    async fn listen(&self, sink: &dyn InboundSink) -> ListenError {
        let Err(lost) = gateway::connect_and_read(self, sink).await;
        lost
    }

    /// Discord remembers a nonce only for some minutes ("in the past few minutes", without a number). A message that is
    /// sent again later may be shown twice.
    async fn send(&self, address: &ChatAddress, piece: &MessagePiece, key: &str) -> Result<MessageId, SendError> {
        self.create_message(address, key, json!({"content": piece.formatted})).await
    }

    async fn probe(&self) -> Result<String, NetworkError> {
        let me = self.get_json(&["users", "@me"]).await?;
        let application = self.get_json(&["applications", "@me"]).await?;
        let name = single_line(me["username"].as_str().unwrap_or_default());
        if application["flags"].as_u64().unwrap_or_default() & MESSAGE_CONTENT_FLAGS == 0 {
            return Err(NetworkError(format!(
                "{name} may not read messages: {}",
                gateway::MESSAGE_CONTENT_INTENT_HINT
            )));
        }
        let id = me["id"].as_str().and_then(message_parser::parse_snowflake).unwrap_or("?");
        Ok(format!("{name} ({id}) on Discord"))
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

#[async_trait]
impl Drafts for DiscordNetwork {
    async fn edit(&self, address: &ChatAddress, message: &MessageId, piece: &MessagePiece) -> Result<(), SendError> {
        self.edit_message(address, message, json!({"content": piece.formatted})).await
    }
}

#[async_trait]
impl TypingIndicator for DiscordNetwork {
    async fn show(&self, address: &ChatAddress) -> Result<(), SendError> {
        let path = ["channels", target_channel_id(address)?, "typing"];
        call_api_repeatable(self.rest_client.request(Method::POST, &path)).await
    }
}

#[async_trait]
impl Reactions for DiscordNetwork {
    async fn add(&self, address: &ChatAddress, message: &MessageId, emoji: &str) -> Result<(), SendError> {
        let request = self.reaction_request(Method::PUT, address, message, emoji)?;
        call_api_repeatable(request).await
    }

    async fn remove(&self, address: &ChatAddress, message: &MessageId, emoji: &str) -> Result<(), SendError> {
        let request = self.reaction_request(Method::DELETE, address, message, emoji)?;
        match rest_client::call_api(request).await {
            Err(failure) if NO_REACTION_CODES.iter().any(|code| failure.has_code(code)) => Ok(()),
            result => result.map(drop).map_err(|failure| failure.into_send_error(Repeatable::Yes)),
        }
    }
}

async fn call_api_repeatable(request: RequestBuilder) -> Result<(), SendError> {
    let result = rest_client::call_api(request).await;
    result.map(drop).map_err(|failure| failure.into_send_error(Repeatable::Yes))
}

/// The id of the channel to send to. A thread is a channel.
fn target_channel_id(address: &ChatAddress) -> Result<&str, SendError> {
    require_snowflake(address.thread.as_deref().unwrap_or(&address.target))
}

fn require_snowflake(id: &str) -> Result<&str, SendError> {
    let why = || format!("{} is no id of Discord, which is a number", single_line(id));
    message_parser::parse_snowflake(id).ok_or_else(|| SendError::Refused { why: why() })
}

/// Discord: allowed mentions. The text of a model never notifies anybody, not even with `@everyone`.
fn no_allowed_mentions() -> Value {
    json!({"parse": []})
}
