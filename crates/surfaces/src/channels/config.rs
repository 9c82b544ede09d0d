//! `[channels.X]` of the configuration. One set of keys for all networks, so that each mistake has its line and column; which
//! of them a network knows, and which it needs, its own file says when the channel is made.

use std::path::PathBuf;

use quell_protocol::AgentId;
use quell_protocol::api::OnBusy;
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

/// One account in a chat network.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChannelConfig {
    /// The network.
    pub kind: ChannelKind,
    /// The agent that answers; the default one without this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub agent: Option<AgentId>,
    /// Who may write to the agent: the network's ids of senders (Telegram and Discord: numbers; Slack: `U...`; Matrix: `@name:server`;
    /// IRC: nicks). `*` is everybody. Nobody without this.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Who may also stop what others started, with `/stop all`.
    #[serde(default)]
    pub operators: Vec<String>,
    /// Where the network's API is; its public one without this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_base: Option<String>,
    /// The environment variable that holds the token, or the password of IRC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_env: Option<String>,
    /// The file that holds it on its one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Slack: the environment variable that holds the app-level token (`xapp-...`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_token_env: Option<String>,
    /// A new message stops the sender's earlier request and is answered instead.
    #[serde(default)]
    pub interrupt_on_new_message: bool,
    /// What a new message does while an earlier one of the conversation is being answered. `interrupt` is the same as
    /// `interrupt_on_new_message`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub on_busy: Option<OnBusy>,
    /// Messages of a conversation that follow each other within so many milliseconds are one. 0: each stands for itself.
    #[serde(default)]
    pub debounce_ms: u64,
    /// Signs on the message that is being answered.
    #[serde(default = "yes")]
    pub ack_reactions: bool,
    /// A message for each tool that is started.
    #[serde(default)]
    pub show_tool_calls: bool,
    /// The answer is shown while it is written, where the network can change messages.
    #[serde(default = "yes")]
    pub drafts: bool,
    /// In groups only messages that name the account are answered. IRC: always so.
    #[serde(default)]
    pub mention_only: bool,
    /// What the model is told of this channel besides what Quell says of its network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// IRC: host and port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// IRC: whether the connection is encrypted. It is without this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<bool>,
    /// IRC: the nick.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nick: Option<String>,
    /// IRC: the account by which the nick is proven with SASL PLAIN; the password is the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sasl_account: Option<String>,
    /// IRC and Matrix: rooms to be in.
    #[serde(default)]
    pub join: Vec<String>,
    /// Webhook: where answers are sent to. Without it they can only be read from Quell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_url: Option<String>,
    /// The token, read by the roof; never in the file.
    #[serde(skip)]
    pub token: Option<SecretString>,
    /// The app-level token, read by the roof; never in the file.
    #[serde(skip)]
    pub app_token: Option<SecretString>,
}

/// The networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChannelKind {
    /// IRC.
    Irc,
    /// Matrix, in rooms that are not encrypted.
    Matrix,
    /// Telegram, by long polling.
    Telegram,
    /// Any program that speaks signed HTTP.
    Webhook,
    /// Discord.
    Discord,
    /// Slack, by Socket Mode.
    Slack,
}

/// A channel that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("[channels.{channel}] {key}: {problem}")]
pub struct BadChannel {
    /// Its name.
    pub channel: String,
    /// The key that is wrong.
    pub key: &'static str,
    /// What is wrong and what would be right.
    pub problem: String,
}

fn yes() -> bool {
    true
}
