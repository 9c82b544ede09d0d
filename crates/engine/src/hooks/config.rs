//! The `[hooks]` section of the configuration and its validation.

use std::fmt;
use std::path::PathBuf;

use quell_protocol::hook::HookEvent;
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use url::Url;

/// The maximum timeout of a hook: 10 minutes.
const MAX_TIMEOUT_MS: u64 = 600_000;

/// Commands and webhooks for events of the daemon, of sessions, of runs and of chat messages.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HookSettings {
    /// Before a session is created; the hook may refuse it.
    #[serde(skip_serializing_if = "HookTargets::is_empty")]
    pub on_create: HookTargets,
    /// When a session is used.
    #[serde(skip_serializing_if = "HookTargets::is_empty")]
    pub on_activate: HookTargets,
    /// When a session has been idle for too long, before its clean-up.
    #[serde(skip_serializing_if = "HookTargets::is_empty")]
    pub on_expire: HookTargets,
    /// During the clean-up of a session.
    #[serde(skip_serializing_if = "HookTargets::is_empty")]
    pub on_terminate: HookTargets,
    /// Before the first step of a run.
    #[serde(skip_serializing_if = "HookTargets::is_empty")]
    pub on_run_start: HookTargets,
    /// After the end of a run.
    #[serde(skip_serializing_if = "HookTargets::is_empty")]
    pub on_run_end: HookTargets,
    /// When the daemon is ready.
    #[serde(skip_serializing_if = "HookTargets::is_empty")]
    pub on_start: HookTargets,
    /// When the daemon begins to shut down.
    #[serde(skip_serializing_if = "HookTargets::is_empty")]
    pub on_shutdown: HookTargets,
    /// When a chat message has been received; the hook may change its text or drop the message.
    #[serde(skip_serializing_if = "HookTargets::is_empty")]
    pub on_message_received: HookTargets,
    /// Before an answer is sent to a chat network; the hook may change its text or hold it back.
    #[serde(skip_serializing_if = "HookTargets::is_empty")]
    pub on_message_sending: HookTargets,
    /// Milliseconds after which a hook is ended, or counts as not answered.
    pub timeout_ms: u64,
    /// The environment variable that holds the secret for signing webhooks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_env: Option<String>,
    /// The file that holds that secret in its only line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    /// The secret. The binary reads it from `secret_env` or `secret_file`; it is never in the configuration file.
    #[serde(skip)]
    pub secret: Option<SecretString>,
}

/// Commands and URLs of one event, in their order: one string, or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HookTargets(pub Vec<String>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("[hooks] {key}: {problem}")]
pub struct HookConfigError {
    pub key: &'static str,
    /// What is wrong and how to correct it.
    pub problem: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HookTarget {
    /// A command for `sh -c`.
    Command(String),
    /// A URL for a POST request.
    Url(Url),
}

impl HookSettings {
    pub fn targets_of(&self, event: HookEvent) -> &HookTargets {
        match event {
            HookEvent::Create => &self.on_create,
            HookEvent::Activate => &self.on_activate,
            HookEvent::Expire => &self.on_expire,
            HookEvent::Terminate => &self.on_terminate,
            HookEvent::RunStart => &self.on_run_start,
            HookEvent::RunEnd => &self.on_run_end,
            HookEvent::Start => &self.on_start,
            HookEvent::Shutdown => &self.on_shutdown,
            HookEvent::MessageReceived => &self.on_message_received,
            HookEvent::MessageSending => &self.on_message_sending,
        }
    }

    /// Checks the section as it is in the file. Whether the secret can be read is checked at the start.
    pub fn check(&self) -> Result<(), HookConfigError> {
        let error = |key, problem: String| Err(HookConfigError { key, problem });
        let mut first_webhook_key = None;
        for event in HookEvent::ALL {
            let targets =
                self.targets_of(event).parse().map_err(|problem| HookConfigError { key: event.as_str(), problem })?;
            if targets.iter().any(|target| matches!(target, HookTarget::Url(_))) {
                first_webhook_key = first_webhook_key.or(Some(event.as_str()));
            }
        }
        if !(1..=MAX_TIMEOUT_MS).contains(&self.timeout_ms) {
            return error("timeout_ms", format!("must be from 1 to {MAX_TIMEOUT_MS}"));
        }
        if self.secret_env.is_some() && self.secret_file.is_some() {
            return error("secret_file", "excludes `secret_env`: there is one secret".to_owned());
        }
        let has_secret = self.secret_env.is_some() || self.secret_file.is_some() || self.secret.is_some();
        match first_webhook_key {
            Some(key) if !has_secret => error(
                key,
                "a URL needs a secret to sign with; name the variable that holds it with `secret_env`, or a file with \
                 `secret_file`"
                    .to_owned(),
            ),
            _ => Ok(()),
        }
    }

    /// The error for a secret that is needed but missing.
    pub(super) fn missing_secret_error(&self) -> HookConfigError {
        let purpose = "it holds the secret that webhooks are signed with";
        match (&self.secret_env, &self.secret_file) {
            (Some(name), _) => HookConfigError {
                key: "secret_env",
                problem: format!("the variable {name} is not set or empty; {purpose}"),
            },
            (None, Some(file)) => HookConfigError {
                key: "secret_file",
                problem: format!("the file {} is empty; {purpose}", file.display()),
            },
            (None, None) => {
                HookConfigError { key: "secret_env", problem: "names no variable; a URL needs a secret".to_owned() }
            }
        }
    }
}

impl HookTargets {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn parse(&self) -> Result<Vec<HookTarget>, String> {
        self.0.iter().map(|text| HookTarget::parse(text)).collect()
    }
}

impl HookTarget {
    fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let head = text.get(..8).unwrap_or(text).to_ascii_lowercase();
        if !head.starts_with("http://") && !head.starts_with("https://") {
            return match text {
                "" => Err("is empty; write a command or a URL, or leave the key out".to_owned()),
                _ if text.contains('\0') => Err("a command must not contain a NUL character".to_owned()),
                _ => Ok(Self::Command(text.to_owned())),
            };
        }
        let shape = "it should look like https://host/path";
        let url = Url::parse(text).map_err(|error| format!("is no URL ({error}); {shape}"))?;
        if !url.has_host() {
            return Err(format!("names no host; {shape}"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("a URL must not hold a user or a password; webhooks are signed instead".to_owned());
        }
        Ok(Self::Url(url))
    }
}

/// Scheme, host and port, for logs. The rest of a URL may contain a token.
pub(super) fn redacted_url(url: &Url) -> String {
    url.origin().ascii_serialization()
}

impl Default for HookSettings {
    fn default() -> Self {
        let none = HookTargets::default;
        Self {
            on_create: none(),
            on_activate: none(),
            on_expire: none(),
            on_terminate: none(),
            on_run_start: none(),
            on_run_end: none(),
            on_start: none(),
            on_shutdown: none(),
            on_message_received: none(),
            on_message_sending: none(),
            timeout_ms: 5000,
            secret_env: None,
            secret_file: None,
            secret: None,
        }
    }
}

impl From<&str> for HookTargets {
    fn from(target: &str) -> Self {
        Self(vec![target.to_owned()])
    }
}

impl Serialize for HookTargets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [only] => serializer.serialize_str(only),
            several => several.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for HookTargets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(HookTargetsVisitor)
    }
}

struct HookTargetsVisitor;

impl<'de> Visitor<'de> for HookTargetsVisitor {
    type Value = HookTargets;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a command or URL, or a list of them")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<HookTargets, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<HookTargets, A::Error> {
        let mut targets = Vec::new();
        while let Some(target) = list.next_element()? {
            targets.push(target);
        }
        Ok(HookTargets(targets))
    }
}

impl JsonSchema for HookTargets {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "HookTargets".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A command for `sh -c` or a URL, or a list of them.",
            "oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        })
    }
}

/// Does not print the secret.
impl fmt::Debug for HookSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("HookSettings");
        for event in HookEvent::ALL.into_iter().filter(|event| !self.targets_of(*event).is_empty()) {
            debug.field(event.as_str(), &self.targets_of(event).0.len());
        }
        debug.field("timeout_ms", &self.timeout_ms).field("secret", &self.secret.as_ref().map(|_| "...")).finish()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn settings(target: &str) -> HookSettings {
        HookSettings { on_run_end: target.into(), ..HookSettings::default() }
    }

    #[rstest]
    #[case::empty(settings(" "), "on_run_end", "is empty")]
    #[case::nul(settings("a\0b"), "on_run_end", "NUL")]
    #[case::no_url(settings("http://"), "on_run_end", "is no URL")]
    #[case::password(settings("https://me:hush@host/x"), "on_run_end", "must not hold a user or a password")]
    #[case::unsigned(settings("HTTPS://host/x"), "on_run_end", "needs a secret")]
    #[case::no_time(HookSettings { timeout_ms: 0, ..settings("true") }, "timeout_ms", "from 1 to 600000")]
    #[case::for_ever(HookSettings { timeout_ms: 600_001, ..settings("true") }, "timeout_ms", "from 1 to 600000")]
    #[case::two_secrets(
        HookSettings { secret_env: Some("A".into()), secret_file: Some("b".into()), ..settings("true") },
        "secret_file",
        "excludes"
    )]
    fn invalid_hook_settings_are_named_by_their_key(
        #[case] settings: HookSettings,
        #[case] key: &str,
        #[case] says: &str,
    ) {
        let error = settings.check().unwrap_err();
        assert_eq!(error.key, key, "{error}");
        assert!(error.problem.contains(says) && !error.problem.contains("hush"), "{error}");
    }

    #[test]
    fn a_command_or_a_url_or_several_of_them() {
        let text = r#"{"on_create": "true", "on_run_end": ["date >> log", "http://127.0.0.1:1/x"], "secret_env": "S"}"#;
        let settings: HookSettings = serde_json::from_str(text).unwrap();
        settings.check().unwrap();
        assert_eq!(settings.on_create.parse().unwrap(), [HookTarget::Command("true".to_owned())]);
        let url = HookTarget::Url(Url::parse("http://127.0.0.1:1/x").unwrap());
        assert_eq!(settings.on_run_end.parse().unwrap(), [HookTarget::Command("date >> log".to_owned()), url]);
        assert_eq!(HookSettings::default().check(), Ok(()));
        let shown = serde_json::to_value(&settings).unwrap();
        let expected: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!((&shown["on_create"], &shown["on_run_end"]), (&expected["on_create"], &expected["on_run_end"]));
        assert!(shown.get("on_start").is_none());
    }

    #[test]
    fn the_secret_is_in_no_print() {
        let secret = Some("hush".to_owned().into());
        let settings = HookSettings { secret, ..settings("https://host/token") };
        let printed = format!("{settings:?} {}", serde_json::to_string(&settings).unwrap());
        assert!(!printed.contains("hush"), "{printed}");
        assert_eq!(redacted_url(&Url::parse("https://host:8443/token?x=y").unwrap()), "https://host:8443");
    }
}
