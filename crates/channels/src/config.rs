//! Parse and validate the `[channels.X]` and `[messages]` sections of the configuration.
//!
//! All networks share one set of keys, so that each mistake is reported with its line and column. The module of a
//! network names the keys that it has besides those of all networks, and checks them when the channel is created.

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use quell_protocol::AgentId;
use quell_protocol::api::{AccessLevel, OnBusy};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use url::Url;

/// Longest name of a channel. The keys of its conversations begin with it.
const MAX_NAME_BYTES: usize = 64;

/// Longest debounce time in milliseconds. After a longer silence people assume that there is no answer.
const MAX_DEBOUNCE_MS: u64 = 60_000;

/// One account in a chat network.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChannelConfig {
    /// The network.
    pub kind: ChannelKind,
    /// The agent that answers. Default: the default agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub agent: Option<AgentId>,
    /// The network's ids of the senders that may write to the agent (Telegram and Discord: numbers; Slack: `U...`;
    /// Matrix: `@name:server`; IRC: nicks). `*` allows everybody. Without this nobody is allowed.
    #[serde(default)]
    pub allow: Vec<String>,
    /// The network's ids of the senders that may also stop the runs of others, with `/stop all`.
    #[serde(default)]
    pub operators: Vec<String>,
    /// The network's ids of the senders that may allow the calls of runs in this channel, with `/approve`. They need to
    /// be in `allow`, too. Without this nobody may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<String>,
    /// Address of the network's API. Default: its public one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_base: Option<String>,
    /// The environment variable that holds the token, or the password of IRC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_env: Option<String>,
    /// The file that holds the token on its one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Slack: the environment variable that holds the app-level token (`xapp-...`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_token_env: Option<String>,
    /// A new message stops the sender's earlier request and is answered instead.
    #[serde(default)]
    pub interrupt_on_new_message: bool,
    /// What happens with a new message while an earlier one of the conversation is being answered. `interrupt` is the
    /// same as `interrupt_on_new_message`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub on_busy: Option<OnBusy>,
    /// Messages of a conversation that follow each other within this many milliseconds are joined into one. 0: never
    /// join.
    #[serde(default)]
    pub debounce_ms: u64,
    /// Show the state of a request by reactions on its message.
    #[serde(default = "default_true")]
    pub ack_reactions: bool,
    /// Send a message for each tool that is started, with the plan of `todo`, and one for each change of files.
    #[serde(default)]
    pub show_tool_calls: bool,
    /// Show the answer while it is written, where the network can edit messages.
    #[serde(default = "default_true")]
    pub drafts: bool,
    /// In groups, answer only messages that name the account. IRC: always so.
    #[serde(default)]
    pub mention_only: bool,
    /// Instructions for the model about this channel, besides those that Quell gives for its network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// IRC: host and port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// IRC: whether the connection is encrypted. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<bool>,
    /// IRC: the nick.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nick: Option<String>,
    /// IRC: the account for SASL PLAIN, which proves the nick. The password is the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sasl_account: Option<String>,
    /// IRC and Matrix: rooms to join.
    #[serde(default)]
    pub join: Vec<String>,
    /// Webhook: the URL that answers are sent to. Without it they can only be read from Quell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_url: Option<String>,
    /// Telegram, Matrix, Discord and Slack: how voice messages become text, and answers voice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voice: Option<VoiceConfig>,
    /// The token, read by the binary; never in the file.
    #[serde(skip)]
    pub token: Option<SecretString>,
    /// The app-level token, read by the binary; never in the file.
    #[serde(skip)]
    pub app_token: Option<SecretString>,
}

/// `[channels.X.voice]`. Both models belong to a provider with the audio endpoints of OpenAI.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VoiceConfig {
    /// The model that transcribes voice messages, `provider/model`. Without it they stay files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcription_model: Option<String>,
    /// The model that speaks answers, `provider/model`. Without it answers are text only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speech_model: Option<String>,
    /// The provider's name of the voice.
    #[serde(default = "default_speaker")]
    pub speaker: String,
    /// Which answers are spoken, besides being written.
    #[serde(default)]
    pub spoken_answers: SpokenAnswers,
    /// Time until the sound of an answer is sent, in seconds; after that it is only written. Its run lasts until then.
    #[serde(default = "default_speech_timeout")]
    pub speech_timeout_s: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SpokenAnswers {
    /// Those to voice messages.
    #[default]
    ToVoice,
    /// All.
    Always,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChannelKind {
    /// IRC.
    Irc,
    /// Matrix, in rooms that are not encrypted.
    Matrix,
    /// Telegram, by long polling.
    Telegram,
    /// Any program that uses signed HTTP.
    Webhook,
    /// Discord.
    Discord,
    /// Slack, by Socket Mode.
    Slack,
}

impl ChannelKind {
    /// The value of `kind` in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Irc => "irc",
            Self::Matrix => "matrix",
            Self::Telegram => "telegram",
            Self::Webhook => "webhook",
            Self::Discord => "discord",
            Self::Slack => "slack",
        }
    }
}

impl VoiceConfig {
    /// The configured models with their keys below `[channels.X]`.
    pub fn models(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let models =
            [("voice.transcription_model", &self.transcription_model), ("voice.speech_model", &self.speech_model)];
        models.into_iter().filter_map(|(key, model)| Some((key, model.as_deref()?)))
    }
}

/// A channel whose configuration is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("[channels.{channel}] {key}: {problem}")]
pub struct ChannelConfigError {
    pub channel: String,
    /// The wrong key; empty for the section itself.
    pub key: &'static str,
    /// What is wrong and what would be right.
    pub problem: String,
}

impl ChannelConfigError {
    pub(crate) fn new(channel: &str, key: &'static str, problem: impl Into<String>) -> Self {
        Self { channel: channel.to_owned(), key, problem: problem.into() }
    }
}

impl ChannelConfig {
    /// The access level of the sender for whom `is_sender` holds; `None` if they are not allowed.
    pub(crate) fn access_level(&self, is_sender: impl Fn(&str) -> bool) -> Option<AccessLevel> {
        if self.operators.iter().any(|listed| is_sender(listed)) {
            return Some(AccessLevel::Admin);
        }
        let is_allowed = self.allow.iter().any(|listed| listed == "*" || is_sender(listed));
        is_allowed.then_some(AccessLevel::Write)
    }

    /// Checks the keys that mean the same in every network.
    ///
    /// # Errors
    /// The first wrong key. An empty key means the section itself.
    pub fn validate(&self, channel_name: &str) -> Result<(), ChannelConfigError> {
        let config_error = |key, problem: String| Err(ChannelConfigError::new(channel_name, key, problem));
        let is_allowed_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if channel_name.is_empty() || channel_name.len() > MAX_NAME_BYTES || !channel_name.chars().all(is_allowed_char)
        {
            let rule = format!("the name may have letters, digits, `-` and `_`, {MAX_NAME_BYTES} of them at the most");
            return config_error("", rule);
        }
        if self.token_env.is_some() && self.token_file.is_some() {
            return config_error("token_file", "excludes token_env: set only one of them".to_owned());
        }
        if self.interrupt_on_new_message && self.on_busy.is_some_and(|busy| busy != OnBusy::Interrupt) {
            let problem = "contradicts interrupt_on_new_message = true; leave one of them out".to_owned();
            return config_error("on_busy", problem);
        }
        if self.operators.iter().any(|id| id == "*") {
            let problem = "allows everybody to stop the requests of all others; name the operators one by one";
            return config_error("operators", problem.to_owned());
        }
        if self.approvers.iter().any(|id| id == "*") {
            let problem = "lets everybody allow the calls of agents; name the approvers one by one";
            return config_error("approvers", problem.to_owned());
        }
        if self.debounce_ms > MAX_DEBOUNCE_MS {
            let problem = format!("{} is too long; the most is {MAX_DEBOUNCE_MS}", self.debounce_ms);
            return config_error("debounce_ms", problem);
        }
        if self.voice.as_ref().is_some_and(|voice| voice.models().next().is_none()) {
            let problem = "does nothing without a model; set transcription_model, speech_model or both".to_owned();
            return config_error("voice", problem);
        }
        if self.voice.as_ref().is_some_and(|voice| voice.speech_timeout_s == 0) {
            let problem = "speech_timeout_s = 0 leaves no time to speak; leave speech_model out instead".to_owned();
            return config_error("voice", problem);
        }
        for (key, url_text) in [("api_base", &self.api_base), ("reply_url", &self.reply_url)] {
            if url_text.as_deref().is_some_and(has_credentials) {
                let problem =
                    "holds a user or a password, which would be shown; name the token by token_env".to_owned();
                return config_error(key, problem);
            }
        }
        Ok(())
    }

    /// Refuses keys that only other networks have. `own_keys` are those of [`ChannelConfig::network_keys`] that this
    /// network has.
    pub(crate) fn check_network_keys(&self, channel_name: &str, own_keys: &[&str]) -> Result<(), ChannelConfigError> {
        let is_foreign = |(key, is_set): &(&'static str, bool)| *is_set && !own_keys.contains(key);
        let Some((key, _)) = self.network_keys().into_iter().find(is_foreign) else { return Ok(()) };
        let problem = format!("a channel of the kind {:?} has no such key; remove it", self.kind.as_str());
        Err(ChannelConfigError::new(channel_name, key, problem))
    }

    /// Checks the ids in `allow`, `operators` and `approvers`. `rule` says what is wrong with an id and what would be right.
    pub(crate) fn check_sender_ids(
        &self,
        channel_name: &str,
        is_valid: impl Fn(&str) -> bool,
        rule: &str,
    ) -> Result<(), ChannelConfigError> {
        for (key, ids) in [("allow", &self.allow), ("operators", &self.operators), ("approvers", &self.approvers)] {
            if let Some(id) = ids.iter().find(|id| *id != "*" && !is_valid(id)) {
                return Err(ChannelConfigError::new(channel_name, key, format!("{id:?} {rule}")));
            }
        }
        Ok(())
    }

    /// The keys that only some networks have, and whether each is set. A new key is not known to any network until its
    /// module names it.
    fn network_keys(&self) -> [(&'static str, bool); 10] {
        [
            ("api_base", self.api_base.is_some()),
            ("app_token_env", self.app_token_env.is_some()),
            ("mention_only", self.mention_only),
            ("server", self.server.is_some()),
            ("tls", self.tls.is_some()),
            ("nick", self.nick.is_some()),
            ("sasl_account", self.sasl_account.is_some()),
            ("join", !self.join.is_empty()),
            ("reply_url", self.reply_url.is_some()),
            ("voice", self.voice.is_some()),
        ]
    }

    /// Checks that each configured variable or file provided a token.
    ///
    /// # Errors
    /// A key that names a missing variable or an empty variable or file.
    pub fn validate_tokens(&self, channel_name: &str) -> Result<(), ChannelConfigError> {
        let config_error = |key, problem: String| Err(ChannelConfigError::new(channel_name, key, problem));
        let variables = [
            ("token_env", &self.token_env, self.token.is_none()),
            ("app_token_env", &self.app_token_env, self.app_token.is_none()),
        ];
        for (key, variable, is_missing) in variables {
            if let Some(variable) = variable.as_ref().filter(|_| is_missing) {
                let problem = format!(
                    "names {variable}, which is not set or empty; export {variable}=... where Quell is started"
                );
                return config_error(key, problem);
            }
        }
        match &self.token_file {
            Some(file) if self.token.is_none() => config_error("token_file", format!("{} is empty", file.display())),
            _ => Ok(()),
        }
    }

    /// True if a running listener can stay: no setting differs, secrets included.
    #[must_use]
    pub fn has_same_settings(&self, other: &Self) -> bool {
        let secret = |secret: &Option<SecretString>| secret.as_ref().map(|secret| secret.expose_secret().to_owned());
        let serialised = |config: &Self| serde_json::to_value(config).ok();
        let secrets = |config: &Self| (secret(&config.token), secret(&config.app_token));
        serialised(self) == serialised(other) && secrets(self) == secrets(other)
    }
}

/// `[messages]` of the configuration: how messages of all channels are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MessageSettings {
    /// Seconds that one round of model and tools may take.
    pub message_timeout_s: u64,
    /// Most rounds of an answer; 0 counts as 1. Its time limit is this number times `message_timeout_s`.
    pub max_tool_iterations: u32,
    /// Largest number of rounds that the time limit of an answer counts.
    pub timeout_scale_cap: u32,
    /// Characters of a conversation that are sent to the model. Older turns beyond them are left out as a whole; the
    /// newest is always sent.
    pub history_budget_chars: usize,
    /// Remove sentences from answers in which an English model announces its next action. It also removes some real
    /// sentences.
    pub sanitize_narration: bool,
}

impl MessageSettings {
    /// Most rounds of an answer: model calls, each with the tools that it asks for.
    #[must_use]
    pub fn max_rounds(&self) -> u32 {
        self.max_tool_iterations.max(1)
    }

    /// The time limit of an answer. After it the run is stopped.
    #[must_use]
    pub fn reply_timeout(&self) -> Duration {
        let rounds = self.max_rounds().min(self.timeout_scale_cap);
        Duration::from_secs(self.message_timeout_s.saturating_mul(u64::from(rounds)))
    }

    /// The first key with a value that can never work, and the problem.
    #[must_use]
    pub fn first_problem(&self) -> Option<(&'static str, String)> {
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

fn default_speech_timeout() -> u64 {
    30
}

fn default_speaker() -> String {
    "alloy".to_owned()
}

fn default_true() -> bool {
    true
}

fn has_credentials(url_text: &str) -> bool {
    Url::parse(url_text).is_ok_and(|url| !url.username().is_empty() || url.password().is_some())
}
