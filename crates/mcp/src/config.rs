//! One `[mcp.X]` section of the configuration and its validation.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_process::SandboxSpec;
use quell_protocol::sandbox::SandboxMode;
use reqwest::header::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::{Deserialize, Serialize, Serializer};
use url::Url;

use super::server_directory::{WORKDIR_PLACEHOLDER, with_workdir};

/// The maximum configurable time, in seconds; it keeps timers in range.
const MAX_TIME_S: u64 = 24 * 3600;
/// The maximum length of a server's name: tool names begin with it, and providers accept 64 characters.
const MAX_NAME_CHARS: usize = 32;

/// An MCP server: a command that uses its standard input and output, or the URL of a server for streamable HTTP.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct McpConfig {
    /// The program. It is searched in `PATH` and started under a warden.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The arguments of the program.
    pub args: Vec<String>,
    /// Environment variables in addition to the few that every process gets. Their values are never shown, since they
    /// may be keys.
    #[serde(serialize_with = "serialize_names_only")]
    pub env: BTreeMap<String, String>,
    /// The URL of a server that is already running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Additional headers of each request. Their values are never shown, since they may be keys.
    #[serde(serialize_with = "serialize_names_only")]
    pub headers: BTreeMap<String, String>,
    /// The environment variable that holds the key. With `url` it is sent as a bearer token; a command gets the
    /// variable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// The key. The binary reads it from `api_key_env`; it is never in the configuration file.
    #[serde(skip)]
    pub api_key: Option<SecretString>,
    /// True for a server with `url` that asks for a sign-in by OAuth: `quell mcp login NAME` stores the tokens.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub oauth: bool,
    /// The client that is registered by hand at an authorization server that registers no programs by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oauth_client_id: Option<String>,
    /// The environment variable that holds the secret of that client, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oauth_client_secret_env: Option<String>,
    /// The file that holds the secret of that client, in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oauth_client_secret_file: Option<PathBuf>,
    /// The secret. The binary reads it; it is never in the configuration file.
    #[serde(skip)]
    pub oauth_client_secret: Option<SecretString>,
    /// The port on 127.0.0.1 to which the browser comes back, for a client that is registered with one; any free port
    /// when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oauth_redirect_port: Option<u16>,
    /// True if the authorization server may have a private address. Without it that is only so if the URL itself names a
    /// private one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub oauth_private_addresses: bool,
    /// The addresses that the URL may lead to; any, for a configured server.
    #[serde(skip)]
    pub addresses: quell_net::AddressPolicy,
    /// What the program may reach; as the commands of the agent that starts it if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub sandbox: Option<SandboxMode>,
    /// True for a program that has to start in the workdir of the agent, which can put files there that the program
    /// loads. Otherwise it starts in a directory of its own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub start_in_workdir: bool,
    /// True for one server that all sessions share. Otherwise each session has its own.
    pub shared: bool,
    /// Seconds after which an unused server is closed. It starts again when it is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<u64>,
    /// Milliseconds from the cancel of a call until a server that still works on it is restarted. When absent, 1000 or
    /// half of `[stop] grace_ms`, whichever is less.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// Seconds after which a call without an answer or progress is cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_timeout_s: Option<u64>,
    /// Seconds within which the server must start and list its tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timeout_s: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("MCP server `{server}`: {problem}")]
pub struct McpConfigError {
    pub server: String,
    /// The wrong key; empty if the name itself is wrong.
    pub key: &'static str,
    /// What is wrong and how to correct it.
    pub problem: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ServerLocation<'a> {
    Command(&'a str),
    Url(Url),
}

impl McpConfig {
    /// The sandbox of the server in place of that of the agent. The person who configures a server trusts it with what
    /// they say here, even if the agent has less.
    pub(super) fn sandbox_for(&self, agent: &Arc<SandboxSpec>) -> Arc<SandboxSpec> {
        match self.sandbox {
            Some(mode) if mode != agent.mode => Arc::new(agent.with_mode(mode)),
            _ => Arc::clone(agent),
        }
    }

    /// What of the program's start lies in one of these places, where an agent can change it: for people, a clause.
    /// Directories among `args` are what a server works on; files may be its code. A variable that lists search paths,
    /// such as `PYTHONPATH`, is one that ends with `PATH`.
    #[must_use]
    pub fn agent_writable_start(&self, workdirs: &[PathBuf]) -> Option<String> {
        let command = self.command.as_ref()?;
        if self.start_in_workdir {
            return Some("it starts in the workdir of the agent (`start_in_workdir`)".to_owned());
        }
        let files = workdirs.iter().flat_map(|workdir| {
            let words = [command].into_iter().chain(&self.args);
            words.map(move |word| (workdir, PathBuf::from(with_workdir(word, workdir))))
        });
        let is_inside = |place: &Path, path: &Path| {
            let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
            real(path).starts_with(real(place))
        };
        let file = files
            .into_iter()
            .find(|(workdir, file)| file.is_file() && is_inside(workdir, file))
            .map(|(_, file)| format!("it is started with {}, which an agent can change", file.display()));
        let mut search_paths = self.env.iter().filter(|(name, _)| name.ends_with("PATH"));
        let leads_inside = |value: &str| {
            let is_writable = |workdir: &PathBuf| {
                with_workdir(value, workdir).split(':').any(|path| is_inside(workdir, Path::new(path)))
            };
            workdirs.iter().any(is_writable)
        };
        let variable = search_paths.find(|(_, value)| leads_inside(value));
        file.or_else(|| variable.map(|(name, _)| format!("its variable `{name}` leads where an agent writes")))
    }

    fn names_workdir(&self) -> bool {
        self.start_in_workdir
            || self.args.iter().chain(self.env.values()).any(|text| text.contains(WORKDIR_PLACEHOLDER))
    }

    /// Checks the section of the server `name`.
    ///
    /// # Errors
    /// [`McpConfigError`] says which key is wrong and how to correct it.
    pub fn check(&self, name: &str) -> Result<(), McpConfigError> {
        let error = |key, problem: String| McpConfigError { server: name.to_owned(), key, problem };
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let is_ambiguous = name.contains("__") || name.ends_with('_');
        if name.is_empty() || name.len() > MAX_NAME_CHARS || !name.chars().all(is_allowed) || is_ambiguous {
            let rule =
                "letters, digits, - and single _ but not at its end, because the names of its tools begin with it";
            return Err(error("", format!("a name has 1 to {MAX_NAME_CHARS} characters: {rule}")));
        }
        let location = self.location().map_err(|(key, problem)| error(key, problem))?;
        match location {
            ServerLocation::Command(_) if !self.headers.is_empty() => {
                return Err(error("headers", "belong to a server with `url`; a command gets `env`".to_owned()));
            }
            ServerLocation::Url(_) => {
                let keys = [
                    ("args", !self.args.is_empty()),
                    ("env", !self.env.is_empty()),
                    ("start_in_workdir", self.start_in_workdir),
                ];
                if let Some((key, _)) = keys.into_iter().find(|(_, is_set)| *is_set) {
                    return Err(error(key, "belongs to a server with `command`".to_owned()));
                }
            }
            ServerLocation::Command(_) if self.shared && self.names_workdir() => {
                return Err(error("shared", "excludes `{workdir}`: agents have different ones".to_owned()));
            }
            ServerLocation::Command(_) => {}
        }
        self.oauth_problem().map_or(Ok(()), |(key, problem)| Err(error(key, problem)))?;
        self.header_list().map_err(|problem| error("headers", problem))?;
        if let Some(name) = self.env.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
            return Err(error("env", format!("{name:?} is no name of a variable")));
        }
        for (key, value, min) in [
            ("idle_s", self.idle_s, 0),
            ("call_timeout_s", self.call_timeout_s, 1),
            ("start_timeout_s", self.start_timeout_s, 1),
            ("grace_ms", self.grace_ms, 1),
        ] {
            let max = if key == "grace_ms" { MAX_TIME_S * 1000 } else { MAX_TIME_S };
            if value.is_some_and(|value| value < min || value > max) {
                return Err(error(key, format!("must be from {min} to {max}")));
            }
        }
        Ok(())
    }

    /// The wrong key of a sign-in, and its problem.
    fn oauth_problem(&self) -> Option<(&'static str, String)> {
        if self.oauth && self.url.is_none() {
            return Some(("oauth", "belongs to a server with `url`".to_owned()));
        }
        if self.oauth && self.api_key_env.is_some() {
            return Some(("oauth", "excludes `api_key_env`: a sign-in or a key, not both".to_owned()));
        }
        let has_secret = self.oauth_client_secret_env.is_some() || self.oauth_client_secret_file.is_some();
        let keys = [
            ("oauth_client_id", self.oauth_client_id.is_some()),
            ("oauth_client_secret_env", self.oauth_client_secret_env.is_some()),
            ("oauth_client_secret_file", self.oauth_client_secret_file.is_some()),
            ("oauth_redirect_port", self.oauth_redirect_port.is_some()),
            ("oauth_private_addresses", self.oauth_private_addresses),
        ];
        if let Some((key, _)) = keys.into_iter().find(|(_, is_set)| *is_set && !self.oauth) {
            return Some((key, "belongs to a server with `oauth = true`".to_owned()));
        }
        if has_secret && self.oauth_client_id.is_none() {
            return Some(("oauth_client_id", "is missing: the secret belongs to a client".to_owned()));
        }
        if self.oauth_client_secret_env.is_some() && self.oauth_client_secret_file.is_some() {
            let problem = "excludes `oauth_client_secret_env`: one place for the secret, not both";
            return Some(("oauth_client_secret_file", problem.to_owned()));
        }
        (self.oauth_redirect_port == Some(0)).then(|| ("oauth_redirect_port", "must be from 1 to 65535".to_owned()))
    }

    pub(super) fn location(&self) -> Result<ServerLocation<'_>, (&'static str, String)> {
        match (&self.command, &self.url) {
            (Some(command), None) if !command.is_empty() => Ok(ServerLocation::Command(command)),
            (Some(_), None) => Err(("command", "is empty; write the program that is to be started".to_owned())),
            (None, Some(url)) => match Url::parse(url) {
                Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Ok(ServerLocation::Url(url)),
                _ => {
                    // The query may contain a key.
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

    pub(super) fn header_list(&self) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
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

/// Prints only the names of variables and headers, because their values may be keys.
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

fn serialize_names_only<S: Serializer>(values: &BTreeMap<String, String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(values.keys().map(|name| (name, "***")))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn command_config() -> McpConfig {
        McpConfig { command: Some("server".to_owned()), ..McpConfig::default() }
    }

    #[rstest]
    #[case::both(McpConfig { url: Some("http://127.0.0.1/mcp".into()), ..command_config() }, "url", "excludes")]
    #[case::neither(McpConfig::default(), "", "needs `command`")]
    #[case::no_program(McpConfig { command: Some(String::new()), ..McpConfig::default() }, "command", "empty")]
    #[case::no_url(McpConfig { url: Some("localhost:3000".into()), ..McpConfig::default() }, "url", "no URL")]
    #[case::headers(McpConfig { headers: BTreeMap::from([("a".into(), "b".into())]), ..command_config() }, "headers", "`url`")]
    #[case::variable(McpConfig { env: BTreeMap::from([("A=B".into(), "c".into())]), ..command_config() }, "env", "variable")]
    #[case::signs_in_at_a_program(McpConfig { oauth: true, ..command_config() }, "oauth", "`url`")]
    #[case::key_and_sign_in(McpConfig { url: Some("http://127.0.0.1/mcp".into()), oauth: true, api_key_env: Some("KEY".into()), ..McpConfig::default() }, "oauth", "excludes")]
    #[case::client_without_sign_in(McpConfig { url: Some("http://127.0.0.1/mcp".into()), oauth_client_id: Some("c".into()), ..McpConfig::default() }, "oauth_client_id", "`oauth = true`")]
    #[case::secret_of_no_client(McpConfig { url: Some("http://127.0.0.1/mcp".into()), oauth: true, oauth_client_secret_env: Some("S".into()), ..McpConfig::default() }, "oauth_client_id", "missing")]
    #[case::no_time(McpConfig { start_timeout_s: Some(0), ..command_config() }, "start_timeout_s", "from 1")]
    fn a_wrong_section_is_refused(#[case] config: McpConfig, #[case] key: &str, #[case] says: &str) {
        let error = config.check("tools").unwrap_err();
        assert_eq!(error.key, key);
        assert!(error.problem.contains(says), "{error}");
    }

    #[rstest]
    #[case("")]
    #[case("a b")]
    #[case("a__b")]
    #[case("a.b")]
    // `a___x` would be read as the tool `_x` of `a`.
    #[case("a_")]
    fn a_name_that_no_tool_name_can_begin_with_is_refused(#[case] name: &str) {
        assert_eq!(command_config().check(name).unwrap_err().key, "");
        assert_eq!(command_config().check("git_hub-2"), Ok(()));
    }

    #[test]
    fn values_that_may_be_keys_are_not_printed() {
        let config = McpConfig { env: BTreeMap::from([("TOKEN".into(), "hush".into())]), ..command_config() };
        let printed = format!("{config:?} {}", serde_json::to_string(&config).unwrap());
        assert!(printed.contains("TOKEN") && !printed.contains("hush"), "{printed}");
    }
}
