//! One `[providers.X]` section of the configuration, with its defaults.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use quell_net::AddressPolicy;
use quell_protocol::agents::Price;
use secrecy::SecretString;

use super::provider_kind::ProviderKind;

/// A provider of models: its endpoint, its key and its time limits.
#[derive(Clone, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProviderConfig {
    /// The wire format.
    pub kind: ProviderKind,
    /// The base URL of the API, with its `/v1`. When absent, that of OpenAI, Anthropic or Google; the demo model's
    /// is set at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The key. The binary reads it from `api_key_env` or `api_key_file`; it is never in the configuration file.
    #[serde(skip)]
    pub api_key: Option<SecretString>,
    /// The addresses that the base URL may lead to; any, for a configured provider.
    #[serde(skip)]
    pub address_policy: AddressPolicy,
    /// The environment variable that holds the key. Servers without keys need none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// The file that holds the key in its only line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_file: Option<PathBuf>,
    /// Additional headers of each request. Their values are never shown, since they may be keys.
    #[serde(default, serialize_with = "serialize_header_names")]
    pub headers: BTreeMap<String, String>,
    /// The maximum number of retries after a transient failure.
    #[serde(default = "default_max_retries")]
    pub max_retries: u32,
    /// Seconds until a connection must be established.
    #[serde(default = "default_connect_timeout_s")]
    pub connect_timeout_s: f64,
    /// Seconds from sending a request, connecting included, until its answer must begin.
    #[serde(default = "default_header_timeout_s")]
    pub header_timeout_s: f64,
    /// Seconds that an answer may stall.
    #[serde(default = "default_idle_timeout_s")]
    pub idle_timeout_s: f64,
    /// The price of a million tokens of each model, for plain model calls:
    /// `{ "MODEL" = { input = 3.0, output = 15.0 }, "*" = { ... } }`. `*` stands for all other models.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, BTreeMap<String, f64>>")]
    pub prices: BTreeMap<String, Price>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("provider `{provider}`: {problem}")]
pub struct ProviderConfigError {
    pub provider: String,
    /// What is wrong and how to correct it.
    pub problem: String,
}

impl ProviderConfig {
    #[must_use]
    pub fn new(kind: ProviderKind) -> Self {
        Self {
            kind,
            base_url: None,
            api_key: None,
            address_policy: AddressPolicy::Any,
            api_key_env: None,
            api_key_file: None,
            headers: BTreeMap::new(),
            max_retries: default_max_retries(),
            connect_timeout_s: default_connect_timeout_s(),
            header_timeout_s: default_header_timeout_s(),
            idle_timeout_s: default_idle_timeout_s(),
            prices: BTreeMap::new(),
        }
    }
}

/// Prints header names without their values, which may be keys.
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
            .field("prices", &self.prices)
            .finish()
    }
}

fn serialize_header_names<S: serde::Serializer>(
    headers: &BTreeMap<String, String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
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
