//! A validated provider: endpoint, headers, timeouts, retry policy, shared HTTP client; also the HTTP client builder
//! for other modules.

use std::time::Duration;

use quell_kernel::retry::RetryPolicy;
use quell_net::{AddressPolicy, HttpClients, PRIVATE_ADDRESS_HINT, check_url, is_public, without_secrets};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Url};
use secrecy::{ExposeSecret, SecretString};

use super::config::{ProviderConfig, ProviderConfigError, ProviderKind};
use super::dialect::ProviderDialect;

/// The maximum configurable timeout; it keeps timers in range.
const MAX_TIMEOUT_S: f64 = 24.0 * 3600.0;

/// Shorter header values are words such as `true`; redacting these would only garble messages.
const MIN_SECRET_CHARS: usize = 8;

#[derive(Debug)]
pub(super) struct Provider {
    pub(super) name: String,
    pub(super) dialect: ProviderDialect,
    pub(super) endpoint: Url,
    pub(super) headers: HeaderMap,
    pub(super) client: Client,
    pub(super) retry_policy: RetryPolicy,
    pub(super) connect_timeout: Duration,
    pub(super) header_timeout: Duration,
    pub(super) idle_timeout: Duration,
    secrets: Vec<SecretString>,
}

impl Provider {
    pub(super) fn new(name: &str, config: ProviderConfig, clients: &HttpClients) -> Result<Self, ProviderConfigError> {
        let config_error = |problem: String| ProviderConfigError { provider: name.to_owned(), problem };
        let endpoint = endpoint_url(&config).map_err(config_error)?;
        if config.address_policy == AddressPolicy::PublicOnly {
            check_url(&endpoint, is_public)
                .map_err(|why| config_error(format!("baseUrl: {why}; {PRIVATE_ADDRESS_HINT}")))?;
        }
        let (headers, secrets) = request_headers(&config).map_err(config_error)?;
        let seconds = |name, value| parse_timeout(name, value).map_err(config_error);
        let connect_timeout = seconds("connect_timeout_s", config.connect_timeout_s)?;
        Ok(Self {
            name: name.to_owned(),
            dialect: ProviderDialect::from_kind(config.kind),
            client: clients.get_or_build(&endpoint, config.address_policy, connect_timeout).map_err(config_error)?,
            endpoint,
            headers,
            retry_policy: RetryPolicy { max_retries: config.max_retries, ..RetryPolicy::default() },
            connect_timeout,
            header_timeout: seconds("header_timeout_s", config.header_timeout_s)?,
            idle_timeout: seconds("idle_timeout_s", config.idle_timeout_s)?,
            secrets,
        })
    }

    /// The endpoint as it is shown to people: without user, password and query.
    pub(super) fn display_url(&self) -> String {
        without_secrets(&self.endpoint)
    }

    /// Replaces the secrets that were sent to the provider in one of its messages; some servers echo a refused key.
    pub(super) fn redact_secrets(&self, text: String) -> String {
        self.secrets.iter().fold(text, |text, secret| text.replace(secret.expose_secret(), "***"))
    }
}

fn endpoint_url(config: &ProviderConfig) -> Result<Url, String> {
    let base = match (&config.base_url, config.kind) {
        (Some(base), _) => base.as_str(),
        (None, ProviderKind::Openai) => "https://api.openai.com/v1",
        (None, ProviderKind::Anthropic) => "https://api.anthropic.com/v1",
        (None, ProviderKind::Demo) => return Err("the demo model is not started, so it has no base_url".to_owned()),
    };
    // The query may contain a key.
    let shown = base.split('?').next().unwrap_or_default();
    let wrong = |problem: &str| format!("base_url `{shown}` {problem}; it should look like https://host/v1");
    let mut url = Url::parse(base).map_err(|error| wrong(&format!("is no URL ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("is neither http nor https"));
    }
    url.set_fragment(None);
    let endpoint_path = ProviderDialect::from_kind(config.kind).endpoint_path();
    url.path_segments_mut().map_err(|()| wrong("cannot have a path"))?.pop_if_empty().extend(endpoint_path);
    Ok(url)
}

fn request_headers(config: &ProviderConfig) -> Result<(HeaderMap, Vec<SecretString>), String> {
    let mut headers = HeaderMap::new();
    let mut secrets = Vec::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
    let dialect = ProviderDialect::from_kind(config.kind);
    for (name, value) in dialect.fixed_headers() {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    if let Some(key) = &config.api_key {
        let header = dialect.key_header(key).ok_or("the API key holds a character that no header can carry")?;
        headers.insert(header.0, header.1);
        secrets.push(key.clone());
    }
    for (name, value) in &config.headers {
        let header = HeaderName::try_from(name).map_err(|_| format!("`{name}` is no header name"))?;
        let mut content = HeaderValue::from_str(value)
            .map_err(|_| format!("the value of header `{name}` holds a character that no header can carry"))?;
        content.set_sensitive(true);
        headers.insert(header, content);
        if value.chars().count() >= MIN_SECRET_CHARS {
            secrets.push(value.clone().into());
        }
    }
    secrets.retain(|secret| !secret.expose_secret().is_empty());
    Ok((headers, secrets))
}

fn parse_timeout(name: &str, seconds: f64) -> Result<Duration, String> {
    if seconds > 0.0 && seconds <= MAX_TIMEOUT_S {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("{name} is {seconds}; it must be more than 0 and at most {MAX_TIMEOUT_S} seconds"))
    }
}

#[cfg(test)]
mod tests;
