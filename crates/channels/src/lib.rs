//! Connect agents to chat networks (IRC, Matrix, Discord, Telegram, Slack, signed HTTP), where people can also stop
//! them.
//!
//! [`network`] holds the traits between the message flow and a network. Each network is one module, knows only its
//! protocol, and talks to the flow through these traits.

pub mod config;
pub mod discord;
pub mod flow;
pub mod format;
pub mod irc;
pub mod matrix;
pub mod network;
pub mod settings;
pub mod slack;
pub mod telegram;
pub mod webhook;
pub(crate) mod wire;

use std::sync::Arc;

use config::{ChannelConfig, ChannelConfigError, ChannelKind};
use network::Network;

/// Creates the network of a configured channel. Opens no connection.
///
/// # Errors
/// [`ChannelConfigError`] names the wrong key and says what would be right.
pub fn create_network(channel_name: &str, config: &ChannelConfig) -> Result<Arc<dyn Network>, ChannelConfigError> {
    config.validate_tokens(channel_name)?;
    Ok(match config.kind {
        ChannelKind::Irc => Arc::new(irc::IrcNetwork::new(channel_name, config)?),
        ChannelKind::Matrix => Arc::new(matrix::MatrixNetwork::new(channel_name, config)?),
        ChannelKind::Discord => Arc::new(discord::DiscordNetwork::new(channel_name, config)?),
        ChannelKind::Telegram => Arc::new(telegram::TelegramNetwork::new(channel_name, config)?),
        ChannelKind::Webhook => Arc::new(webhook::WebhookNetwork::new(channel_name, config)?),
        ChannelKind::Slack => Arc::new(slack::SlackNetwork::new(channel_name, config)?),
    })
}
