//! One `[providers.X]` section of the configuration, and its check. It sends nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use secrecy::SecretString;

use crate::address::AddressPolicy;

/// Where models are served, and how patient we are with it.
#[derive(Clone, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProviderConfig {
    /// The wire dialect.
    pub kind: ProviderKind,
    /// Where the API begins, with its `/v1`. OpenAI or Anthropic itself when absent; the demo model's is filled in at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The key, read by the roof from where `api_key_env` or `api_key_file` points; never in the file.
    #[serde(skip)]
    pub api_key: Option<SecretString>,
    /// Where it may be; a configured one may be anywhere.
    #[serde(skip)]
    pub reach: AddressPolicy,
    /// The environment variable that holds the key. Servers without keys need none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// The file that holds the key on its one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_file: Option<PathBuf>,
    /// Further headers of each request. Their values are never shown: they may be keys.
    #[serde(default, serialize_with = "names_only")]
    pub headers: BTreeMap<String, String>,
    /// How often a request is sent again after a failure that may pass.
    #[serde(default = "default_max_retries")]
    pub max_retries: u32,
    /// Seconds until a connection must stand.
    #[serde(default = "default_connect_timeout_s")]
    pub connect_timeout_s: f64,
    /// Seconds from sending a request, connecting included, until its answer must begin.
    #[serde(default = "default_header_timeout_s")]
    pub header_timeout_s: f64,
    /// Seconds that an answer may be silent.
    #[serde(default = "default_idle_timeout_s")]
    pub idle_timeout_s: f64,
}

/// The wire dialects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProviderKind {
    /// OpenAI chat completions; most servers speak it.
    Openai,
    /// Anthropic messages.
    Anthropic,
    /// The built-in demo model, which speaks the dialect of OpenAI from a loopback port of this process.
    Demo,
}

/// A provider's section cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("provider `{provider}`: {problem}")]
pub struct BadProvider {
    /// The provider's name.
    pub provider: String,
    /// What is wrong and what would be right.
    pub problem: String,
}

impl ProviderConfig {
    /// A provider with the defaults.
    #[must_use]
    pub fn new(kind: ProviderKind) -> Self {
        Self {
            kind,
            base_url: None,
            api_key: None,
            reach: AddressPolicy::Any,
            api_key_env: None,
            api_key_file: None,
            headers: BTreeMap::new(),
            max_retries: default_max_retries(),
            connect_timeout_s: default_connect_timeout_s(),
            header_timeout_s: default_header_timeout_s(),
            idle_timeout_s: default_idle_timeout_s(),
        }
    }
}

/// Prints the names of the headers only: their values may be keys.
impl fmt::Debug for ProviderConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProviderConfig")
            .field("kind", &self.kind)
            .field("base_url", &self.base_url)
            .field("api_key", &self.api_key.as_ref().map(|_| "..."))
            .field("api_key_env", &self.api_key_env)
            .field("api_key_file", &self.api_key_file)
            .field("headers", &self.headers.keys().collect::<Vec<_>>())
            .field("max_retries", &self.max_retries)
            .field("connect_timeout_s", &self.connect_timeout_s)
            .field("header_timeout_s", &self.header_timeout_s)
            .field("idle_timeout_s", &self.idle_timeout_s)
            .finish()
    }
}

fn names_only<S: serde::Serializer>(headers: &BTreeMap<String, String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(headers.keys().map(|name| (name, "***")))
}

fn default_max_retries() -> u32 {
    5
}

fn default_connect_timeout_s() -> f64 {
    10.0
}

fn default_header_timeout_s() -> f64 {
    120.0
}

fn default_idle_timeout_s() -> f64 {
    120.0
}
