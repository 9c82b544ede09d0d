//! One `[mcp.X]` section of the configuration, and its check. It starts nothing.

use std::collections::BTreeMap;
use std::fmt;

use reqwest::header::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::{Deserialize, Serialize, Serializer};
use url::Url;

/// The longest time that may be configured, in seconds; it keeps timers in range.
const MAX_TIME_S: u64 = 24 * 3600;
/// The longest name of a server: names of tools begin with it, and providers take 64 characters.
const MAX_NAME: usize = 32;

/// A tool server: a command that speaks on its standard input and output, or the URL of one that speaks streamable HTTP.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct McpConfig {
    /// The program; it is looked up in `PATH` and started under a warden.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables besides the few that every process gets. Their values are never shown: they may be keys.
    #[serde(serialize_with = "names_only")]
    pub env: BTreeMap<String, String>,
    /// Where a server listens that somebody else runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Further headers of each request. Their values are never shown: they may be keys.
    #[serde(serialize_with = "names_only")]
    pub headers: BTreeMap<String, String>,
    /// The environment variable that holds the key. With `url` it is sent as a bearer token; a command gets the variable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// The key, read by the roof from where `api_key_env` points; never in the file.
    #[serde(skip)]
    pub api_key: Option<SecretString>,
    /// Which addresses its URL may lead to; any, where it is configured.
    #[serde(skip)]
    pub addresses: crate::address::AddressPolicy,
    /// True: one server for all sessions. Otherwise each session has its own.
    pub shared: bool,
    /// Seconds after which a server that nobody uses is closed; it starts again when it is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<u64>,
    /// From the cancel of a call until a server that still works on it is restarted; 1000 or half of `[stop] grace_ms`,
    /// whichever is less, without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// Seconds after which a call is cancelled that has neither been answered nor reported progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_timeout_s: Option<u64>,
    /// Seconds within which it must have started and told its tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timeout_s: Option<u64>,
}

/// A server's section cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("MCP server `{server}`: {problem}")]
pub struct BadServer {
    /// The server's name.
    pub server: String,
    /// The key that is wrong; empty for the name itself.
    pub key: &'static str,
    /// What is wrong and what would be right.
    pub problem: String,
}

/// How a server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reach<'a> {
    Command(&'a str),
    Url(Url),
}

impl McpConfig {
    /// Checks the section of the server `name`.
    ///
    /// # Errors
    /// [`BadServer`] says which key is wrong and what would be right.
    pub fn check(&self, name: &str) -> Result<(), BadServer> {
        let bad = |key, problem: String| BadServer { server: name.to_owned(), key, problem };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let is_ambiguous = name.contains("__") || name.ends_with('_');
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(plain) || is_ambiguous {
            let rule =
                "letters, digits, - and single _ but not at its end, because the names of its tools begin with it";
            return Err(bad("", format!("a name has 1 to {MAX_NAME} characters: {rule}")));
        }
        let reach = self.reach().map_err(|(key, problem)| bad(key, problem))?;
        match reach {
            Reach::Command(_) if !self.headers.is_empty() => {
                return Err(bad("headers", "belong to a server with `url`; a command gets `env`".to_owned()));
            }
            Reach::Url(_) if !self.args.is_empty() || !self.env.is_empty() => {
                let key = if self.args.is_empty() { "env" } else { "args" };
                return Err(bad(key, "belongs to a server with `command`".to_owned()));
            }
            Reach::Command(_) | Reach::Url(_) => {}
        }
        self.headers_map().map_err(|problem| bad("headers", problem))?;
        if let Some(name) = self.env.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
            return Err(bad("env", format!("{name:?} is no name of a variable")));
        }
        for (key, value, least) in [
            ("idle_s", self.idle_s, 0),
            ("call_timeout_s", self.call_timeout_s, 1),
            ("start_timeout_s", self.start_timeout_s, 1),
            ("grace_ms", self.grace_ms, 1),
        ] {
            let most = if key == "grace_ms" { MAX_TIME_S * 1000 } else { MAX_TIME_S };
            if value.is_some_and(|value| value < least || value > most) {
                return Err(bad(key, format!("must be from {least} to {most}")));
            }
        }
        Ok(())
    }

    pub(super) fn reach(&self) -> Result<Reach<'_>, (&'static str, String)> {
        match (&self.command, &self.url) {
            (Some(command), None) if !command.is_empty() => Ok(Reach::Command(command)),
            (Some(_), None) => Err(("command", "is empty; write the program that is to be started".to_owned())),
            (None, Some(url)) => match Url::parse(url) {
                Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Ok(Reach::Url(url)),
                _ => {
                    // What stands behind a question mark may be a key.
                    let shown = url.split('?').next().unwrap_or_default();
                    Err(("url", format!("`{shown}` is no URL; it should look like https://host/mcp")))
                }
            },
            (Some(_), Some(_)) => {
                Err(("url", "excludes `command`: a server is started or reached, not both".to_owned()))
            }
            (None, None) => Err(("", "needs `command` (a program to start) or `url` (where one listens)".to_owned())),
        }
    }

    pub(super) fn headers_map(&self) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
        let header = |(name, value): (&String, &String)| {
            let name = HeaderName::try_from(name).map_err(|_| format!("`{name}` is no header name"))?;
            let text = format!("the value of `{name}` holds a character that no header can carry");
            let mut value = HeaderValue::from_str(value).map_err(|_| text)?;
            value.set_sensitive(true);
            Ok((name, value))
        };
        self.headers.iter().map(header).collect()
    }
}

/// Prints names only where values may be keys.
impl fmt::Debug for McpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpConfig")
            .field("command", &self.command)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("url", &self.url)
            .field("headers", &self.headers.keys().collect::<Vec<_>>())
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}

fn names_only<S: Serializer>(values: &BTreeMap<String, String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(values.keys().map(|name| (name, "***")))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn command() -> McpConfig {
        McpConfig { command: Some("server".to_owned()), ..McpConfig::default() }
    }

    #[rstest]
    #[case::both(McpConfig { url: Some("http://127.0.0.1/mcp".into()), ..command() }, "url", "excludes")]
    #[case::neither(McpConfig::default(), "", "needs `command`")]
    #[case::no_program(McpConfig { command: Some(String::new()), ..McpConfig::default() }, "command", "empty")]
    #[case::no_url(McpConfig { url: Some("localhost:3000".into()), ..McpConfig::default() }, "url", "no URL")]
    #[case::headers(McpConfig { headers: BTreeMap::from([("a".into(), "b".into())]), ..command() }, "headers", "`url`")]
    #[case::variable(McpConfig { env: BTreeMap::from([("A=B".into(), "c".into())]), ..command() }, "env", "variable")]
    #[case::no_time(McpConfig { start_timeout_s: Some(0), ..command() }, "start_timeout_s", "from 1")]
    fn a_wrong_section_is_refused(#[case] config: McpConfig, #[case] key: &str, #[case] says: &str) {
        let bad = config.check("tools").unwrap_err();
        assert_eq!(bad.key, key);
        assert!(bad.problem.contains(says), "{bad}");
    }

    #[rstest]
    #[case("")]
    #[case("a b")]
    #[case("a__b")]
    #[case("a.b")]
    // `a___x` would be read as the tool `_x` of `a`.
    #[case("a_")]
    fn a_name_that_no_tool_name_can_begin_with_is_refused(#[case] name: &str) {
        assert_eq!(command().check(name).unwrap_err().key, "");
        assert_eq!(command().check("git_hub-2"), Ok(()));
    }

    #[test]
    fn values_that_may_be_keys_are_not_printed() {
        let config = McpConfig { env: BTreeMap::from([("TOKEN".into(), "hush".into())]), ..command() };
        let printed = format!("{config:?} {}", serde_json::to_string(&config).unwrap());
        assert!(printed.contains("TOKEN") && !printed.contains("hush"), "{printed}");
    }
}
