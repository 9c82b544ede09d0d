//! Serve the files of the web page with ETag, gzip and Content-Security-Policy.

use std::collections::BTreeMap;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use quell_protocol::ErrorCode;

use crate::http::{ProblemResponse, problem_response};
use crate::state::ServerState;
use crate::web_files::WebFile;

const INDEX_FILE: &str = "index.html";

/// All texts of the page and the terminal, in all languages.
const TEXTS_FILE: &str = "texts.json";

/// The page may run its own scripts and talk to its own daemon. Browsers refuse markup that is made from text.
const PAGE_CSP: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
     manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
);
/// A browser asks again each time, and gets an empty response while nothing has changed: a daemon never shows another
/// version's page.
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");

/// Serves the page for `GET /` without an upgrade.
pub(crate) fn index(server: &ServerState, headers: &HeaderMap) -> Response {
    match WebFile::read(INDEX_FILE) {
        Some(file) => file_response(server, headers, INDEX_FILE, file),
        None => problem_response(ErrorCode::NotFound, "this build has no page").into_response(),
    }
}

pub(crate) async fn asset(State(server): State<ServerState>, Path(path): Path<String>, headers: HeaderMap) -> Response {
    let texts = path.strip_prefix("texts/").and_then(|name| name.strip_suffix(".json"));
    match texts.map_or_else(|| WebFile::read(&path), texts_for_language) {
        Some(file) => file_response(&server, &headers, &path, file),
        None => file_not_found(&path).into_response(),
    }
}

/// The texts of one language without those of the terminal, about a ninth of the file.
fn texts_for_language(language: &str) -> Option<WebFile> {
    let file = WebFile::read(TEXTS_FILE)?;
    let table: BTreeMap<String, BTreeMap<String, String>> = serde_json::from_slice(&file.data()).ok()?;
    let page_texts = table.into_iter().filter(|(key, _)| !key.starts_with("term."));
    let texts = page_texts.map(|(key, mut row)| Some((key, BTreeMap::from([row.remove_entry(language)?]))));
    let texts: BTreeMap<String, BTreeMap<String, String>> = texts.collect::<Option<_>>()?;
    Some(WebFile::plain(serde_json::to_vec(&texts).ok()?))
}

fn file_not_found(path: &str) -> ProblemResponse {
    problem_response(
        ErrorCode::NotFound,
        format!("the page has no file {path:?}; load the page again, its daemon may be another one"),
    )
}

fn file_response(server: &ServerState, headers: &HeaderMap, path: &str, file: WebFile) -> Response {
    let tag: String = file.hash.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    let tag = format!("\"{tag}\"");
    let accepts_gzip = header_list_contains(headers, header::ACCEPT_ENCODING, "gzip");
    let is_unchanged = header_list_contains(headers, header::IF_NONE_MATCH, &tag);
    let mut response = match (is_unchanged, accepts_gzip) {
        (true, _) => StatusCode::NOT_MODIFIED.into_response(),
        (false, true) => {
            let compressed = file.compressed().map(Bytes::from_static);
            let compress = || server.gzip_cache().get_or_compress(path, file.hash, &file.data());
            let mut response = compressed.unwrap_or_else(compress).into_response();
            response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            response
        }
        (false, false) => Bytes::from(file.data().into_owned()).into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type_of(path)));
    if path == INDEX_FILE {
        // The document's policy applies to all that it loads; on all sixty files it would be a tenth of the page's
        // bytes.
        headers.insert(header::CONTENT_SECURITY_POLICY, PAGE_CSP);
    }
    headers.insert(header::CACHE_CONTROL, NO_CACHE);
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if let Ok(tag) = HeaderValue::try_from(tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}

/// True if a list in a header has this member. Weak ETags count as equal; a member with quality 0 does not count.
fn header_list_contains(headers: &HeaderMap, name: header::HeaderName, wanted: &str) -> bool {
    let all = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    let mut members = all.flat_map(|value| value.split(',')).map(str::trim);
    members.any(|member| {
        let (token, quality) = member.split_once(';').map_or((member, ""), |(token, rest)| (token.trim(), rest.trim()));
        let refused = matches!(quality, "q=0" | "q=0.0" | "q=0.00" | "q=0.000");
        token.trim_start_matches("W/") == wanted && !refused
    })
}

fn content_type_of(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" => "application/json",
        "webmanifest" => "application/manifest+json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_files;

    fn headers(name: header::HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn lists_in_headers_are_read_by_member() {
        let gzip =
            |value| header_list_contains(&headers(header::ACCEPT_ENCODING, value), header::ACCEPT_ENCODING, "gzip");
        assert!(gzip("gzip") && gzip("br, gzip;q=0.5") && gzip("deflate,gzip"));
        assert!(!gzip("br") && !gzip("gzip;q=0") && !gzip("xgzip"));
        let tag = |value| header_list_contains(&headers(header::IF_NONE_MATCH, value), header::IF_NONE_MATCH, "\"ab\"");
        assert!(tag("\"ab\"") && tag("W/\"ab\"") && tag("\"x\", \"ab\"") && !tag("\"abc\""));
    }

    #[test]
    fn every_file_of_the_page_has_a_kind_that_browsers_run() {
        let mut paths = page_files::list(concat!(env!("CARGO_MANIFEST_DIR"), "/../../web").as_ref()).unwrap();
        paths.retain(|path| content_type_of(path) == "application/octet-stream");
        assert_eq!(paths, Vec::<String>::new());
    }

    #[test]
    fn texts_travel_in_one_language_without_the_terminals() {
        let table = |language| {
            let file = texts_for_language(language)?;
            serde_json::from_slice::<BTreeMap<String, BTreeMap<String, String>>>(&file.data()).ok()
        };
        let korean = table("ko").unwrap();
        assert!(korean.len() > 100 && korean.keys().all(|key| !key.starts_with("term.")));
        assert!(korean.values().all(|row| row.keys().eq(["ko"])));
        assert!(table("xx").is_none());
    }
}
