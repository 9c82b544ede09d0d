//! Slack network: Socket Mode for receiving, Web API for sending.
//!
//! A thread is an address of its own: a request in a thread is answered there and interrupts nothing outside. `/stop`
//! is a slash command of the app, because Slack's clients do not send a text that begins with a slash as a message.
//! Stop words need no slash.
//!
//! There is no typing indicator: Slack shows one for apps only in its own assistant threads. Sources are the public
//! documentation: Socket Mode, Events API, Web API, rate limits, formatting of messages.

mod api;
mod buttons;
mod event_parser;
mod files;
mod socket_mode;
#[cfg(test)]
pub(crate) mod tests;
mod text;

use std::time::Duration;

use serde_json::{Value, json};

use super::config::{ChannelConfig, ChannelConfigError};
use super::format::{LengthUnit, Markup, MessageFormat, MessagePiece};
use super::network::{
    ChatAddress, Drafts, InboundSink, ListenError, MessageId, Network, NetworkError, NetworkFeatures, NetworkLimits,
    OwnAccount, Reactions, SendError, async_trait,
};
use super::wire::call_error::CallError;
use super::wire::http_client::Repeatable;
use super::wire::text::single_line;
use api::SlackApi;

/// Slack: chat.postMessage, truncating content: "limit to 4,000 characters". Slack splits longer texts into two
/// messages, which could not be edited.
const MAX_MESSAGE_CHARS: usize = 4000;
/// Slack: rate limits, Tier 3 of chat.update: 50 in a minute. Two drafts at a time stay below it.
const EDIT_INTERVAL: Duration = Duration::from_millis(2400);
/// Not used, since there is no typing indicator; the trait asks for a value.
const TYPING_INTERVAL: Duration = Duration::from_secs(4);
/// Scope without which the app cannot write.
const REQUIRED_SCOPE: &str = "chat:write";
/// Other scopes, and the feature that needs each.
const OPTIONAL_SCOPES: &[(&str, &str)] = &[
    ("reactions:write", "reactions on messages"),
    ("files:read", "files from people"),
    ("files:write", "files of the agent"),
];
/// Slack's names of emoji: those that the flow uses, and some common ones.
const EMOJI_NAMES: &[(&str, &str)] = &[
    ("👀", "eyes"),
    ("✅", "white_check_mark"),
    ("⚠", "warning"),
    ("⏹", "black_square_for_stop"),
    ("❌", "x"),
    ("⏳", "hourglass_flowing_sand"),
    ("👍", "+1"),
];

#[derive(Debug)]
pub struct SlackNetwork {
    api: SlackApi,
    mention_only: bool,
}

impl SlackNetwork {
    /// Checks the keys of `[channels.X]`.
    pub fn new(channel_name: &str, config: &ChannelConfig) -> Result<Self, ChannelConfigError> {
        let config_error = |key, problem: &str| ChannelConfigError::new(channel_name, key, problem);
        config.check_network_keys(channel_name, &["api_base", "app_token_env", "mention_only", "voice"])?;
        let rule = "is no id of a person in Slack: take \"Copy member ID\" (U...) from the menu of their profile";
        config.check_sender_ids(channel_name, event_parser::is_user_id, rule)?;
        let missing = "Slack needs the bot's token (xoxb-...): name the environment variable that holds it (token_env), or \
                       the file (token_file). It is shown under OAuth & Permissions, once the app is installed";
        let bot = config.token.as_ref().ok_or_else(|| config_error("token_env", missing))?;
        let missing = "Slack needs an app-level token (xapp-...) with the scope connections:write: name the environment \
                       variable that holds it. It is made under Basic Information, App-Level Tokens";
        let app = config.app_token.as_ref().ok_or_else(|| config_error("app_token_env", missing))?;
        let api = SlackApi::new(config.api_base.as_deref(), bot, app)
            .map_err(|(key, problem)| config_error(key, &problem))?;
        Ok(Self { api, mention_only: config.mention_only })
    }

    /// Fetches the account of the app, with the whole response.
    async fn fetch_account(&self) -> Result<(OwnAccount, Value), CallError> {
        let response = self.api.call_method("auth.test", &json!({})).await?;
        let id = response["user_id"].as_str().filter(|id| event_parser::is_user_id(id));
        let id = id.ok_or_else(|| api::server_error("auth.test does not say who the app is"))?;
        let name = single_line(response["user"].as_str().unwrap_or_default());
        Ok((OwnAccount { id: id.to_owned(), name }, response))
    }

    /// Sends a message with these fields.
    async fn post_message(&self, address: &ChatAddress, mut body: Value) -> Result<MessageId, SendError> {
        body["channel"] = json!(address.target);
        body["unfurl_links"] = json!(false);
        body["unfurl_media"] = json!(false);
        if let Some(thread) = &address.thread {
            body["thread_ts"] = json!(thread);
        }
        let sent = self
            .api
            .call_method("chat.postMessage", &body)
            .await
            .map_err(|failure| failure.into_send_error(Repeatable::No))?;
        let missing_id = || SendError::Unknown {
            why: "Slack accepted the message but did not return its id".to_owned(),
            is_repeatable: false,
        };
        let ts = sent["ts"].as_str().filter(|ts| event_parser::is_message_timestamp(ts)).ok_or_else(missing_id)?;
        Ok(MessageId(ts.to_owned()))
    }

    /// `already_done_errors` are the errors of Slack that mean: nothing to do.
    async fn send_reaction(
        &self,
        method: &str,
        address: &ChatAddress,
        message: &MessageId,
        emoji: &str,
        already_done_errors: &[&str],
    ) -> Result<(), SendError> {
        // A slash command is not a message and cannot have reactions.
        if !event_parser::is_message_timestamp(&message.0) {
            return Ok(());
        }
        let bare = emoji.trim_end_matches('\u{fe0f}');
        let name = EMOJI_NAMES.iter().find(|(emoji, _)| *emoji == bare).map(|(_, name)| *name);
        let name =
            name.ok_or_else(|| SendError::Refused { why: format!("Slack's name of {emoji} is not known here") })?;
        let body = json!({"channel": address.target, "timestamp": message.0, "name": name});
        match self.api.call_method(method, &body).await {
            Err(failure) if already_done_errors.iter().any(|code| failure.has_code(code)) => Ok(()),
            result => result.map(drop).map_err(|failure| failure.into_send_error(Repeatable::Yes)),
        }
    }
}

#[async_trait]
impl Network for SlackNetwork {
    fn limits(&self) -> NetworkLimits {
        let message_format =
            MessageFormat { markup: Markup::Slack, max_length: MAX_MESSAGE_CHARS, length_unit: LengthUnit::Chars };
        NetworkLimits { message_format, edit_interval: EDIT_INTERVAL, typing_interval: TYPING_INTERVAL }
    }

    async fn listen(&self, sink: &dyn InboundSink) -> ListenError {
        let Err(lost) = socket_mode::listen_until_lost(self, sink).await;
        lost
    }

    async fn send(&self, address: &ChatAddress, piece: &MessagePiece, _key: &str) -> Result<MessageId, SendError> {
        self.post_message(address, json!({"text": piece.formatted, "mrkdwn": true})).await
    }

    async fn probe(&self) -> Result<String, NetworkError> {
        let (account, auth_response) = self.fetch_account().await.map_err(CallError::into_network_error)?;
        let mut line = format!(
            "{} ({}) in {}",
            account.name,
            account.id,
            single_line(auth_response["team"].as_str().unwrap_or("?"))
        );
        if let Some(scopes) = auth_response[api::SCOPES_KEY].as_str() {
            let has = |wanted: &str| scopes.split(',').any(|scope| scope.trim() == wanted);
            if !has(REQUIRED_SCOPE) {
                return Err(NetworkError(format!(
                    "{line} may not write: add the scope {REQUIRED_SCOPE}, and install the app again"
                )));
            }
            for (scope, feature) in OPTIONAL_SCOPES.iter().filter(|(scope, _)| !has(scope)) {
                line.push_str(&format!("; without {feature}, because the scope {scope} is missing"));
            }
        }
        // The URL is not used. The call shows that the app-level token is valid and Socket Mode is on.
        self.api.request_socket_url().await.map_err(CallError::into_network_error)?;
        Ok(line)
    }

    fn features(&self) -> NetworkFeatures<'_> {
        NetworkFeatures {
            drafts: Some(self),
            reactions: Some(self),
            files: Some(self),
            buttons: Some(self),
            ..NetworkFeatures::default()
        }
    }
}

#[async_trait]
impl Drafts for SlackNetwork {
    async fn edit(&self, address: &ChatAddress, message: &MessageId, piece: &MessagePiece) -> Result<(), SendError> {
        let body = json!({"channel": address.target, "ts": message.0, "text": piece.formatted});
        let result = self.api.call_method("chat.update", &body).await;
        result.map(drop).map_err(|failure| failure.into_send_error(Repeatable::Yes))
    }
}

#[async_trait]
impl Reactions for SlackNetwork {
    async fn add(&self, address: &ChatAddress, message: &MessageId, emoji: &str) -> Result<(), SendError> {
        self.send_reaction("reactions.add", address, message, emoji, &["already_reacted"]).await
    }

    async fn remove(&self, address: &ChatAddress, message: &MessageId, emoji: &str) -> Result<(), SendError> {
        self.send_reaction("reactions.remove", address, message, emoji, &["no_reaction", "message_not_found"]).await
    }
}
