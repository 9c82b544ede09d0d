//! Fetch the list of models that a provider serves, for diagnostics only.
//!
//! It holds nothing in a ledger, and no run waits for it.

use std::time::Duration;

use quell_net::{HttpClients, root_cause};
use reqwest::Response;
use reqwest::header::{ACCEPT, HeaderValue};
use tokio::time::timeout;

use super::config::ProviderConfig;
use super::error::{ModelError, ModelTimeout};
use super::provider::Provider;

/// The maximum size of a list. Those of the large gateways are smaller than 1 MiB.
const MAX_LIST_BYTES: usize = 8 << 20;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelListError {
    /// The provider's section is invalid.
    #[error(transparent)]
    Config(#[from] super::ProviderConfigError),
    /// The server did not return its list.
    #[error(transparent)]
    Call(#[from] ModelError),
}

/// Requests the list with the client of model calls: same key, same headers, same TLS.
///
/// # Errors
/// [`ModelListError`] says whether the section is invalid, or how the request failed within `max_wait`.
///
/// # Cancel safety
/// Dropping it closes its connection.
pub async fn fetch_model_list(
    name: &str,
    config: ProviderConfig,
    max_wait: Duration,
) -> Result<Vec<String>, ModelListError> {
    let provider = Provider::new(name, config, &HttpClients::default())?;
    // waits: for a diagnosis by a person, at most `max_wait`; no run waits here.
    let outcome = timeout(max_wait, request_model_list(&provider)).await;
    let too_slow = ModelError::TimedOut { provider: name.to_owned(), timeout: ModelTimeout::Headers, after: max_wait };
    Ok(outcome.unwrap_or(Err(too_slow))?)
}

async fn request_model_list(provider: &Provider) -> Result<Vec<String>, ModelError> {
    let url = provider.dialect.model_list_url(&provider.base_url);
    let mut headers = provider.headers.clone();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    // waits: within `max_wait` of `fetch_model_list`.
    let response = provider.client.get(url.clone()).headers(headers).send().await;
    let response = response.map_err(|error| provider.send_failure(&url, &error).error)?;
    let status = response.status();
    let body = read_body(response, provider).await?;
    if !status.is_success() {
        let report = provider.dialect.parse_error(&String::from_utf8_lossy(&body));
        return Err(provider.refusal_failure(status.as_u16(), &report, None).error);
    }
    let models = provider.dialect.parse_model_list(&body);
    models.ok_or_else(|| provider.unreadable_failure("no list of models").error)
}

async fn read_body(mut response: Response, provider: &Provider) -> Result<Vec<u8>, ModelError> {
    let mut body = Vec::new();
    loop {
        // waits: within `max_wait` of `fetch_model_list`.
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() <= MAX_LIST_BYTES => body.extend_from_slice(&chunk),
            Ok(Some(_)) => return Err(provider.unreadable_failure("a list without end").error),
            Ok(None) => return Ok(body),
            Err(error) => return Err(provider.truncated_failure(root_cause(&error)).error),
        }
    }
}
