//! `[channels.X]` of the configuration. One set of keys for all networks, so that each mistake has its line and column; which
//! of them a network knows, and which it needs, its own file says when the channel is made.

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use quell_kernel::channel::budget::TimeBudget;
use quell_protocol::AgentId;
use quell_protocol::api::OnBusy;
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use url::Url;

/// The longest name of a channel: it begins the keys of its conversations.
const LONGEST_NAME: usize = 64;

/// The longest wait for more of a message, in milliseconds: people take a longer silence for no answer.
const LONGEST_DEBOUNCE_MS: u64 = 60_000;

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

impl ChannelConfig {
    /// What can be said of its keys without knowing its network.
    ///
    /// # Errors
    /// [`BadChannel`]: the first that is wrong. An empty key is the section itself.
    pub fn check(&self, name: &str) -> Result<(), BadChannel> {
        let bad = |key, problem: String| Err(BadChannel { channel: name.to_owned(), key, problem });
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(legal) {
            let rule = format!("the name may have letters, digits, `-` and `_`, {LONGEST_NAME} of them at the most");
            return bad("", rule);
        }
        if self.token_env.is_some() && self.token_file.is_some() {
            return bad("token_file", "excludes token_env: the token is in one place".to_owned());
        }
        if self.interrupt_on_new_message && self.on_busy.is_some_and(|busy| busy != OnBusy::Interrupt) {
            let problem = "contradicts interrupt_on_new_message = true; leave one of them out".to_owned();
            return bad("on_busy", problem);
        }
        if self.operators.iter().any(|id| id == "*") {
            let problem = "names everybody, who would stop what all others ask for; name the operators one by one";
            return bad("operators", problem.to_owned());
        }
        if self.debounce_ms > LONGEST_DEBOUNCE_MS {
            let problem = format!("{} is too long; the most is {LONGEST_DEBOUNCE_MS}", self.debounce_ms);
            return bad("debounce_ms", problem);
        }
        for (key, place) in [("api_base", &self.api_base), ("reply_url", &self.reply_url)] {
            if place.as_deref().is_some_and(holds_password) {
                let problem =
                    "holds a user or a password, which would be shown; name the token by token_env".to_owned();
                return bad(key, problem);
            }
        }
        Ok(())
    }

    /// What can be said of its tokens when they were looked for.
    ///
    /// # Errors
    /// [`BadChannel`]: a key names a variable or a file in which there is nothing.
    pub fn check_tokens(&self, name: &str) -> Result<(), BadChannel> {
        let bad = |key, problem: String| Err(BadChannel { channel: name.to_owned(), key, problem });
        let variables = [
            ("token_env", &self.token_env, self.token.is_none()),
            ("app_token_env", &self.app_token_env, self.app_token.is_none()),
        ];
        for (key, variable, is_missing) in variables {
            if let Some(variable) = variable.as_ref().filter(|_| is_missing) {
                let problem = format!(
                    "names {variable}, which is not set or empty; export {variable}=... where Quell is started"
                );
                return bad(key, problem);
            }
        }
        match &self.token_file {
            Some(file) if self.token.is_none() => bad("token_file", format!("{} is empty", file.display())),
            _ => Ok(()),
        }
    }

    /// True when a listener of one is as good as a listener of the other: nothing of it was changed, secrets included.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        let secret = |secret: &Option<SecretString>| secret.as_ref().map(|secret| secret.expose_secret().to_owned());
        let said = |config: &Self| serde_json::to_value(config).ok();
        let secrets = |config: &Self| (secret(&config.token), secret(&config.app_token));
        said(self) == said(other) && secrets(self) == secrets(other)
    }
}

/// `[messages]` of the configuration: how messages of all channels are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MessageSettings {
    /// Seconds that one round of model and tools may take.
    pub message_timeout_s: u64,
    /// Rounds that an answer is expected to take: its time is so many times `message_timeout_s`.
    pub max_tool_iterations: u32,
    /// Rounds of the time of an answer at the most.
    pub timeout_scale_cap: u32,
    /// Characters of a conversation that a model is shown: older turns beyond them are left out, whole, and never the newest.
    pub history_budget_chars: usize,
    /// Takes sentences out of answers in which an English model says what it is going to do. It also takes real ones.
    pub sanitize_narration: bool,
}

impl MessageSettings {
    /// The time that an answer may take; after it the run is stopped.
    #[must_use]
    pub fn time(&self) -> Duration {
        let Self { message_timeout_s, max_tool_iterations, timeout_scale_cap, .. } = *self;
        TimeBudget { message_timeout_s, max_tool_iterations, timeout_scale_cap }.time()
    }

    /// The first key whose value can never work, with what is wrong.
    #[must_use]
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let zeros = [
            ("message_timeout_s", self.message_timeout_s == 0),
            ("timeout_scale_cap", self.timeout_scale_cap == 0),
            ("history_budget_chars", self.history_budget_chars == 0),
        ];
        let (key, _) = zeros.into_iter().find(|(_, is_zero)| *is_zero)?;
        Some((key, "0 would let nothing through; leave the key out for the default".to_owned()))
    }
}

impl Default for MessageSettings {
    fn default() -> Self {
        Self {
            message_timeout_s: 300,
            max_tool_iterations: 10,
            timeout_scale_cap: 4,
            history_budget_chars: 400_000,
            sanitize_narration: false,
        }
    }
}

fn yes() -> bool {
    true
}

fn holds_password(place: &str) -> bool {
    Url::parse(place).is_ok_and(|url| !url.username().is_empty() || url.password().is_some())
}
