//! The `[hooks]` section of the configuration, and its check. It starts nothing and sends nothing.

use std::fmt;
use std::path::PathBuf;

use quell_protocol::hook::HookEvent;
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use url::Url;

/// The most time that a hook can be given: nobody waits longer for a session.
const MAX_TIMEOUT_MS: u64 = 600_000;

/// What is run or called when something happens to the daemon, a session, a run or a message of a chat network.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HookSettings {
    /// Before a session is made; it may refuse that.
    #[serde(skip_serializing_if = "Targets::is_empty")]
    pub on_create: Targets,
    /// When a session is used.
    #[serde(skip_serializing_if = "Targets::is_empty")]
    pub on_activate: Targets,
    /// When a session has been idle for too long, before it is cleaned up.
    #[serde(skip_serializing_if = "Targets::is_empty")]
    pub on_expire: Targets,
    /// While a session is cleaned up.
    #[serde(skip_serializing_if = "Targets::is_empty")]
    pub on_terminate: Targets,
    /// Before the first step of a run.
    #[serde(skip_serializing_if = "Targets::is_empty")]
    pub on_run_start: Targets,
    /// After the end of a run.
    #[serde(skip_serializing_if = "Targets::is_empty")]
    pub on_run_end: Targets,
    /// When the daemon is ready.
    #[serde(skip_serializing_if = "Targets::is_empty")]
    pub on_start: Targets,
    /// When the daemon begins to shut down.
    #[serde(skip_serializing_if = "Targets::is_empty")]
    pub on_shutdown: Targets,
    /// When a message has come from a chat network; it may change the text or drop the message.
    #[serde(skip_serializing_if = "Targets::is_empty")]
    pub on_message_received: Targets,
    /// Before an answer goes to a chat network; it may change the text or keep the answer back.
    #[serde(skip_serializing_if = "Targets::is_empty")]
    pub on_message_sending: Targets,
    /// Milliseconds after which a hook is ended, or counts as not answered.
    pub timeout_ms: u64,
    /// The environment variable that holds the secret by which webhooks are signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_env: Option<String>,
    /// The file that holds that secret on its one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    /// The secret, read by the roof from where `secret_env` or `secret_file` points; never in the file.
    #[serde(skip)]
    pub secret: Option<SecretString>,
}

/// Commands and URLs of one event, in their order: one string, or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Targets(pub Vec<String>);

/// The section cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("[hooks] {key}: {problem}")]
pub struct BadHook {
    /// The key that is wrong.
    pub key: &'static str,
    /// What is wrong and what would be right.
    pub problem: String,
}

/// What is done at an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// `sh -c` this.
    Command(String),
    /// POST there.
    Url(Url),
}

impl HookSettings {
    /// The targets of an event as configured.
    #[must_use]
    pub fn of(&self, event: HookEvent) -> &Targets {
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

    /// Checks the section as it stands in a file; whether the secret can be read is known at the start.
    ///
    /// # Errors
    /// [`BadHook`] says which key is wrong and what would be right.
    pub fn check(&self) -> Result<(), BadHook> {
        let bad = |key, problem: String| Err(BadHook { key, problem });
        let mut called = None;
        for event in HookEvent::ALL {
            let targets = self.of(event).parse().map_err(|problem| BadHook { key: event.word(), problem })?;
            if targets.iter().any(|target| matches!(target, Target::Url(_))) {
                called = called.or(Some(event.word()));
            }
        }
        if !(1..=MAX_TIMEOUT_MS).contains(&self.timeout_ms) {
            return bad("timeout_ms", format!("must be from 1 to {MAX_TIMEOUT_MS}"));
        }
        if self.secret_env.is_some() && self.secret_file.is_some() {
            return bad("secret_file", "excludes `secret_env`: there is one secret".to_owned());
        }
        let has_secret = self.secret_env.is_some() || self.secret_file.is_some() || self.secret.is_some();
        match called {
            Some(key) if !has_secret => bad(
                key,
                "a URL needs a secret to sign with; name the variable that holds it with `secret_env`, or a file with \
                 `secret_file`"
                    .to_owned(),
            ),
            _ => Ok(()),
        }
    }

    /// What is wrong when the secret is needed and not there.
    pub(super) fn without_secret(&self) -> BadHook {
        let what = "it holds the secret that webhooks are signed with";
        match (&self.secret_env, &self.secret_file) {
            (Some(name), _) => {
                BadHook { key: "secret_env", problem: format!("the variable {name} is not set or empty; {what}") }
            }
            (None, Some(file)) => {
                BadHook { key: "secret_file", problem: format!("the file {} is empty; {what}", file.display()) }
            }
            (None, None) => {
                BadHook { key: "secret_env", problem: "names no variable; a URL needs a secret".to_owned() }
            }
        }
    }
}

impl Targets {
    /// True when there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn parse(&self) -> Result<Vec<Target>, String> {
        self.0.iter().map(|text| Target::parse(text)).collect()
    }
}

impl Target {
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

/// Scheme, host and port, for logs: the rest of a URL may be a token of its receiver's.
pub(super) fn shown_url(url: &Url) -> String {
    url.origin().ascii_serialization()
}

impl Default for HookSettings {
    fn default() -> Self {
        let none = Targets::default;
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

impl From<&str> for Targets {
    fn from(target: &str) -> Self {
        Self(vec![target.to_owned()])
    }
}

impl Serialize for Targets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [only] => serializer.serialize_str(only),
            several => several.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Targets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrSeveral)
    }
}

struct OneOrSeveral;

impl<'de> Visitor<'de> for OneOrSeveral {
    type Value = Targets;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a command or URL, or a list of them")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Targets, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Targets, A::Error> {
        let mut targets = Vec::new();
        while let Some(target) = list.next_element()? {
            targets.push(target);
        }
        Ok(Targets(targets))
    }
}

impl JsonSchema for Targets {
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

/// Prints no secret.
impl fmt::Debug for HookSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("HookSettings");
        for event in HookEvent::ALL.into_iter().filter(|event| !self.of(*event).is_empty()) {
            shown.field(event.word(), &self.of(event).0.len());
        }
        shown.field("timeout_ms", &self.timeout_ms).field("secret", &self.secret.as_ref().map(|_| "...")).finish()
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
    fn what_cannot_work_is_named(#[case] settings: HookSettings, #[case] key: &str, #[case] says: &str) {
        let bad = settings.check().unwrap_err();
        assert_eq!(bad.key, key, "{bad}");
        assert!(bad.problem.contains(says) && !bad.problem.contains("hush"), "{bad}");
    }

    #[test]
    fn a_command_or_a_url_or_several_of_them() {
        let text = r#"{"on_create": "true", "on_run_end": ["date >> log", "http://127.0.0.1:1/x"], "secret_env": "S"}"#;
        let settings: HookSettings = serde_json::from_str(text).unwrap();
        settings.check().unwrap();
        assert_eq!(settings.on_create.parse().unwrap(), [Target::Command("true".to_owned())]);
        let url = Target::Url(Url::parse("http://127.0.0.1:1/x").unwrap());
        assert_eq!(settings.on_run_end.parse().unwrap(), [Target::Command("date >> log".to_owned()), url]);
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
        assert_eq!(shown_url(&Url::parse("https://host:8443/token?x=y").unwrap()), "https://host:8443");
    }
}
