//! Serve /openapi.json. The document is a file of the repository, which a test builds from the routes and types: the
//! program needs no code for it.

#[cfg(test)]
mod anthropic_schemas;
#[cfg(test)]
mod document;
#[cfg(test)]
mod model_apis;
#[cfg(test)]
mod openai_requests;
#[cfg(test)]
mod routes;
#[cfg(test)]
mod schema_parts;

use axum::http::{HeaderValue, header};
use axum::response::IntoResponse;

use super::ApiCall;
use crate::web_files::decompress;

const DOCUMENT_GZ: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/openapi.json.gz"));

/// In the document, the name of the page's cookie, which each daemon has for itself.
const COOKIE_NAME: &str = "quell_session_{id}";

pub(super) async fn document(call: ApiCall) -> impl IntoResponse {
    let document = String::from_utf8(decompress(DOCUMENT_GZ)).unwrap_or_default();
    let document = document.replacen(COOKIE_NAME, call.engine().access().cookie_name(), 1);
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], document)
}
