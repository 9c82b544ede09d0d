//! The files of the web page, as they stand in `web/`: compiled into the binary, and read from the disk at each request by
//! debug builds, so that an edit shows at once. It knows nothing of what they say.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use quell_protocol::ErrorCode;
use rust_embed::{EmbeddedFile, RustEmbed};

use crate::door::Door;
use crate::http::{Refused, refuse};

/// The document.
const INDEX: &str = "index.html";

/// All texts in all languages.
const TEXTS: &str = "texts.json";

/// What the page may do: run its own scripts and talk to its own daemon. Markup made from text is refused by the browser.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
     manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
);
/// A browser asks again each time, and gets an empty answer while nothing has changed: no daemon serves another one's page.
const ASK_AGAIN: HeaderValue = HeaderValue::from_static("no-cache");

#[derive(RustEmbed)]
#[folder = "../../web"]
#[exclude = "test/*"]
#[exclude = "package.json"]
struct Files;

/// The compressed files of a daemon, each made when somebody first asks for it.
#[derive(Default)]
pub(crate) struct Pressed(Mutex<HashMap<(String, [u8; 32]), Bytes>>);

/// `GET /` without an upgrade.
pub(crate) fn index(door: &Door, headers: &HeaderMap) -> Response {
    match Files::get(INDEX) {
        Some(file) => answer(door, headers, INDEX, file),
        None => refuse(ErrorCode::NotFound, "this build has no page").into_response(),
    }
}

pub(crate) async fn asset(State(door): State<Door>, Path(path): Path<String>, headers: HeaderMap) -> Response {
    let texts = path.strip_prefix("texts/").and_then(|name| name.strip_suffix(".json"));
    match texts.map_or_else(|| Files::get(&path), texts_in) {
        Some(file) => answer(&door, &headers, &path, file),
        None => no_file(&path).into_response(),
    }
}

/// The table of texts in one language, without those that only the terminal shows: a third of a third of it.
fn texts_in(language: &str) -> Option<EmbeddedFile> {
    let file = Files::get(TEXTS)?;
    let table: BTreeMap<String, BTreeMap<String, String>> = serde_json::from_slice(&file.data).ok()?;
    let of_page = table.into_iter().filter(|(key, _)| !key.starts_with("term."));
    let texts = of_page.map(|(key, mut row)| Some((key, BTreeMap::from([row.remove_entry(language)?]))));
    let texts: BTreeMap<String, BTreeMap<String, String>> = texts.collect::<Option<_>>()?;
    Some(EmbeddedFile { data: serde_json::to_vec(&texts).ok()?.into(), ..file })
}

fn no_file(path: &str) -> Refused {
    refuse(
        ErrorCode::NotFound,
        format!("the page has no file {path:?}; load the page again, its daemon may be another one"),
    )
}

fn answer(door: &Door, headers: &HeaderMap, path: &str, file: EmbeddedFile) -> Response {
    let hash = file.metadata.sha256_hash();
    let tag: String = hash.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    let tag = format!("\"{tag}\"");
    let accepts_gzip = has_token(headers, header::ACCEPT_ENCODING, "gzip");
    let known = has_token(headers, header::IF_NONE_MATCH, &tag);
    let mut response = match (known, accepts_gzip) {
        (true, _) => StatusCode::NOT_MODIFIED.into_response(),
        (false, true) => {
            let mut response = door.pressed().of(path, hash, &file.data).into_response();
            response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            response
        }
        (false, false) => Bytes::from(file.data.into_owned()).into_response(),
    };
    let set = response.headers_mut();
    set.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind(path)));
    if path == INDEX {
        // The document's policy governs all that it loads; sixty times it would be a tenth of the page's weight.
        set.insert(header::CONTENT_SECURITY_POLICY, POLICY);
    }
    set.insert(header::CACHE_CONTROL, ASK_AGAIN);
    set.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if let Ok(tag) = HeaderValue::try_from(tag) {
        set.insert(header::ETAG, tag);
    }
    response
}

/// True when a list in a header has this member. Weak tags and qualities other than zero count.
fn has_token(headers: &HeaderMap, name: header::HeaderName, wanted: &str) -> bool {
    let all = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    let mut members = all.flat_map(|value| value.split(',')).map(str::trim);
    members.any(|member| {
        let (token, quality) = member.split_once(';').map_or((member, ""), |(token, rest)| (token.trim(), rest.trim()));
        let refused = matches!(quality, "q=0" | "q=0.0" | "q=0.00" | "q=0.000");
        token.trim_start_matches("W/") == wanted && !refused
    })
}

fn kind(path: &str) -> &'static str {
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

impl Pressed {
    fn of(&self, path: &str, hash: [u8; 32], data: &[u8]) -> Bytes {
        let mut pressed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pressed.entry((path.to_owned(), hash)).or_insert_with(|| press(data)).clone()
    }
}

fn press(data: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // A vector takes everything.
    let _ = encoder.write_all(data);
    encoder.finish().unwrap_or_default().into()
}

impl std::fmt::Debug for Pressed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pressed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: header::HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn lists_in_headers_are_read_by_member() {
        let gzip = |value| has_token(&headers(header::ACCEPT_ENCODING, value), header::ACCEPT_ENCODING, "gzip");
        assert!(gzip("gzip") && gzip("br, gzip;q=0.5") && gzip("deflate,gzip"));
        assert!(!gzip("br") && !gzip("gzip;q=0") && !gzip("xgzip"));
        let tag = |value| has_token(&headers(header::IF_NONE_MATCH, value), header::IF_NONE_MATCH, "\"ab\"");
        assert!(tag("\"ab\"") && tag("W/\"ab\"") && tag("\"x\", \"ab\"") && !tag("\"abc\""));
    }

    #[test]
    fn every_file_of_the_page_has_a_kind_that_browsers_run() {
        let unknown: Vec<_> = Files::iter().filter(|path| kind(path) == "application/octet-stream").collect();
        assert_eq!(unknown, Vec::<std::borrow::Cow<'_, str>>::new());
        assert!(Files::get("index.html").is_some());
        assert!(Files::iter().all(|path| !path.starts_with("test/")));
    }

    #[test]
    fn texts_travel_in_one_language_without_the_terminals() {
        let table = |language| {
            let file = texts_in(language)?;
            serde_json::from_slice::<BTreeMap<String, BTreeMap<String, String>>>(&file.data).ok()
        };
        let korean = table("ko").unwrap();
        assert!(korean.len() > 100 && korean.keys().all(|key| !key.starts_with("term.")));
        assert!(korean.values().all(|row| row.keys().eq(["ko"])));
        assert!(table("xx").is_none());
    }
}
