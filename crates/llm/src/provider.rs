//! A validated provider: base URL, headers, timeouts, retry policy, shared HTTP client.

use std::collections::BTreeMap;
use std::time::Duration;

use quell_kernel::retry::RetryPolicy;
use quell_net::{AddressPolicy, HttpClients, PRIVATE_ADDRESS_HINT, check_url, is_public};
use quell_protocol::agents::Price;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Url};
use secrecy::{ExposeSecret, SecretString};

use super::config::{ProviderConfig, ProviderConfigError};
use super::dialect::Dialect;
use super::provider_kind::ProviderKind;

/// The maximum configurable timeout; it keeps timers in range.
const MAX_TIMEOUT_S: f64 = 24.0 * 3600.0;

/// Stands for all models that `prices` does not name.
const ANY_MODEL: &str = "*";

/// Shorter header values are words such as `true`; redacting these would only garble messages.
const MIN_SECRET_CHARS: usize = 8;

#[derive(Debug)]
pub(super) struct Provider {
    pub(super) name: String,
    pub(super) dialect: &'static dyn Dialect,
    pub(super) base_url: Url,
    pub(super) headers: HeaderMap,
    pub(super) client: Client,
    pub(super) retry_policy: RetryPolicy,
    pub(super) connect_timeout: Duration,
    pub(super) header_timeout: Duration,
    pub(super) idle_timeout: Duration,
    prices: BTreeMap<String, Price>,
    secrets: Vec<SecretString>,
}

impl Provider {
    pub(super) fn new(name: &str, config: ProviderConfig, clients: &HttpClients) -> Result<Self, ProviderConfigError> {
        let config_error = |problem: String| ProviderConfigError { provider: name.to_owned(), problem };
        let base_url = parse_base_url(&config).map_err(config_error)?;
        if config.address_policy == AddressPolicy::PublicOnly {
            check_url(&base_url, is_public)
                .map_err(|why| config_error(format!("baseUrl: {why}; {PRIVATE_ADDRESS_HINT}")))?;
        }
        let (headers, secrets) = request_headers(&config).map_err(config_error)?;
        check_prices(&config.prices).map_err(config_error)?;
        let seconds = |name, value| parse_timeout(name, value).map_err(config_error);
        let connect_timeout = seconds("connect_timeout_s", config.connect_timeout_s)?;
        Ok(Self {
            name: name.to_owned(),
            dialect: config.kind.0,
            client: clients.get_or_build(&base_url, config.address_policy, connect_timeout).map_err(config_error)?,
            base_url,
            headers,
            retry_policy: RetryPolicy { max_retries: config.max_retries, ..RetryPolicy::default() },
            connect_timeout,
            header_timeout: seconds("header_timeout_s", config.header_timeout_s)?,
            idle_timeout: seconds("idle_timeout_s", config.idle_timeout_s)?,
            prices: config.prices,
            secrets,
        })
    }

    /// The price of a model, named without its provider.
    pub(super) fn price_of(&self, model: &str) -> Option<Price> {
        self.prices.get(model).or_else(|| self.prices.get(ANY_MODEL)).copied()
    }

    /// Replaces the secrets that were sent to the provider in one of its messages; some servers echo a refused key.
    pub(super) fn redact_secrets(&self, text: String) -> String {
        self.secrets.iter().fold(text, |text, secret| text.replace(secret.expose_secret(), "***"))
    }
}

impl ProviderConfig {
    /// Checks what a start would refuse, without connecting. Returns the wrong key, and what is wrong with it.
    ///
    /// # Errors
    /// The first problem, in the order of the keys.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        // The demo model gets its address when it is started.
        if self.kind == ProviderKind::DEMO {
            return Ok(());
        }
        parse_base_url(self).map_err(|problem| ("base_url", problem))?;
        request_headers(self).map_err(|problem| ("headers", problem))?;
        check_prices(&self.prices).map_err(|problem| ("prices", problem))?;
        for (key, seconds) in [
            ("connect_timeout_s", self.connect_timeout_s),
            ("header_timeout_s", self.header_timeout_s),
            ("idle_timeout_s", self.idle_timeout_s),
        ] {
            parse_timeout(key, seconds).map_err(|problem| (key, problem))?;
        }
        Ok(())
    }
}

fn check_prices(prices: &BTreeMap<String, Price>) -> Result<(), String> {
    let is_valid = |number: f64| number.is_finite() && number >= 0.0;
    match prices.iter().find(|(_, price)| !is_valid(price.input) || !is_valid(price.output)) {
        Some((model, price)) => {
            Err(format!("prices.\"{model}\" is {} and {}; both must be numbers from 0 on", price.input, price.output))
        }
        None => Ok(()),
    }
}

fn parse_base_url(config: &ProviderConfig) -> Result<Url, String> {
    let base = match &config.base_url {
        Some(base) => base.as_str(),
        None => config.kind.0.default_base_url()?,
    };
    // The query may contain a key.
    let shown = base.split('?').next().unwrap_or_default();
    let wrong = |problem: &str| format!("base_url `{shown}` {problem}; it should look like https://host/v1");
    let mut url = Url::parse(base).map_err(|error| wrong(&format!("is no URL ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("is neither http nor https"));
    }
    url.set_fragment(None);
    Ok(url)
}

fn request_headers(config: &ProviderConfig) -> Result<(HeaderMap, Vec<SecretString>), String> {
    let mut headers = HeaderMap::new();
    let mut secrets = Vec::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
    let dialect = config.kind.0;
    for (name, value) in dialect.fixed_headers() {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    if let Some(key) = &config.api_key {
        let (name, value) = dialect.key_header(key.expose_secret());
        let mut value =
            HeaderValue::from_str(&value).map_err(|_| "the API key holds a character that no header can carry")?;
        value.set_sensitive(true);
        headers.insert(name, value);
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
