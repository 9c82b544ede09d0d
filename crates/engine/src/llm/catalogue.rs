//! Which models a provider says it serves. For a check by a person: it holds nothing and no run waits for it.

use std::time::Duration;

use reqwest::Response;
use reqwest::header::{ACCEPT, HeaderValue};
use serde_json::Value;
use tokio::time::timeout;

use super::config::ProviderConfig;
use super::error::{ModelError, Wait};
use super::failure::root_cause;
use super::provider::{Clients, Provider, without_secrets};
use super::report::Report;

/// The lists of the large gateways stay under 1 MiB.
const MOST_BYTES: usize = 8 << 20;

/// Why there is no list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueError {
    /// The section cannot be used at all.
    #[error(transparent)]
    Bad(#[from] super::BadProvider),
    /// The server did not give its list.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// Asks `GET {base_url}/models` over the very connection that model calls use: same key, same headers, same TLS.
///
/// # Errors
/// [`CatalogueError`] says whether the section is of no use, or how the server answered within `patience`.
///
/// # Cancel safety
/// Dropping it closes its connection.
pub async fn served_models(
    name: &str,
    config: ProviderConfig,
    patience: Duration,
) -> Result<Vec<String>, CatalogueError> {
    let provider = Provider::new(name, config, &Clients::default())?;
    // waits: for a person, so long as that one is patient; no run waits here.
    let asked = timeout(patience, ask(&provider)).await;
    let too_slow = ModelError::TimedOut { provider: name.to_owned(), what: Wait::Headers, after: patience };
    Ok(asked.unwrap_or(Err(too_slow))?)
}

async fn ask(provider: &Provider) -> Result<Vec<String>, ModelError> {
    let url = provider.dialect.models(&provider.endpoint);
    let mut headers = provider.headers.clone();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    // waits: within the patience of `served_models`.
    let response = provider.client.get(url.clone()).headers(headers).send().await;
    let response = response.map_err(|error| match provider.no_answer(&error).error {
        ModelError::Unreachable { provider, cause, .. } => {
            ModelError::Unreachable { provider, place: without_secrets(&url), cause }
        }
        other => other,
    })?;
    let status = response.status();
    let body = read(response, provider).await?;
    if !status.is_success() {
        let report = Report::from_body(&String::from_utf8_lossy(&body));
        return Err(provider.refused(status.as_u16(), &report, None).error);
    }
    ids(&body).ok_or_else(|| provider.unreadable("no list of models").error)
}

async fn read(mut response: Response, provider: &Provider) -> Result<Vec<u8>, ModelError> {
    let mut body = Vec::new();
    loop {
        // waits: within the patience of `served_models`.
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() <= MOST_BYTES => body.extend_from_slice(&chunk),
            Ok(Some(_)) => return Err(provider.unreadable("a list without end").error),
            Ok(None) => return Ok(body),
            Err(error) => return Err(provider.truncated(root_cause(&error)).error),
        }
    }
}

/// The ids of `{"data": [{"id": ...}]}`.
fn ids(body: &[u8]) -> Option<Vec<String>> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    let id = |model: &Value| model.get("id").and_then(Value::as_str).map(str::to_owned);
    Some(answer.get("data")?.as_array()?.iter().filter_map(id).collect())
}
