//! Chat networks: agents in rooms and direct chats, which can be stopped from there.
//!
//! [`seam`] is what a network looks like to the flow. Each network is one file or folder of its own, and knows nothing but its
//! protocol; what it is told and asked comes through the seam.

pub mod config;
pub mod discord;
pub mod flow;
pub mod format;
pub mod irc;
pub mod matrix;
pub mod seam;
pub mod settings;
pub mod slack;
pub mod telegram;
pub mod webhook;
pub(crate) mod wire;

use std::sync::Arc;

use config::{BadChannel, ChannelConfig, ChannelKind};
use seam::Network;

/// The network of a configured channel. Nothing is connected yet.
///
/// # Errors
/// [`BadChannel`] says which key is wrong and what would be right.
pub fn network(name: &str, config: &ChannelConfig) -> Result<Arc<dyn Network>, BadChannel> {
    config.check_tokens(name)?;
    Ok(match config.kind {
        ChannelKind::Irc => Arc::new(irc::Irc::new(name, config)?),
        ChannelKind::Matrix => Arc::new(matrix::Matrix::new(name, config)?),
        ChannelKind::Discord => Arc::new(discord::Discord::new(name, config)?),
        ChannelKind::Telegram => Arc::new(telegram::Telegram::new(name, config)?),
        ChannelKind::Webhook => Arc::new(webhook::Webhook::new(name, config)?),
        ChannelKind::Slack => Arc::new(slack::Slack::new(name, config)?),
    })
}
