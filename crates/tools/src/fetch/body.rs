//! Convert a fetched response to text for the model: media type, charset, one header line.

use std::sync::atomic::AtomicBool;

use crate::fetch::{FetchedResponse, html};
use crate::text::{decode_lossy, quoted, truncate_with_note, without_partial_char};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MediaType {
    /// Lower case, without parameters; empty when absent.
    kind: String,
    /// Lower case; empty when absent.
    charset: String,
}

impl MediaType {
    pub(super) fn parse(header: &str) -> Self {
        let mut parts = header.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let charset = parts.find_map(|part| {
            let (name, value) = part.split_once('=')?;
            name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"').to_ascii_lowercase())
        });
        Self { kind, charset: charset.unwrap_or_default() }
    }

    /// True for a type that is text. A missing type counts as text until the body shows that it is binary.
    pub(super) fn is_text(&self) -> bool {
        const OTHERS: [&str; 13] = [
            "application/json",
            "application/xml",
            "application/xhtml+xml",
            "application/javascript",
            "application/ecmascript",
            "application/yaml",
            "application/x-yaml",
            "application/toml",
            "application/x-ndjson",
            "application/x-www-form-urlencoded",
            "application/graphql",
            "application/sql",
            "application/x-sh",
        ];
        let kind = self.kind.as_str();
        kind.is_empty()
            || kind.starts_with("text/")
            || kind.ends_with("+json")
            || kind.ends_with("+xml")
            || kind.ends_with("+yaml")
            || OTHERS.contains(&kind)
    }

    fn is_html(&self) -> bool {
        matches!(self.kind.as_str(), "text/html" | "application/xhtml+xml")
    }

    fn display_name(&self) -> String {
        if self.kind.is_empty() { "no content type".into() } else { quoted(&self.kind) }
    }
}

/// The text of a response for the model.
pub(crate) fn response_text(answer: &FetchedResponse, limit: usize, stop: &AtomicBool) -> String {
    let FetchedResponse { url, status, media, body, .. } = answer;
    let mut head = format!("{} from {}, {}", status, quoted(url.as_str()), media.display_name());
    let size = answer.length.map_or_else(|| "unknown size".into(), |n| format!("{n} bytes"));
    if !media.is_text() {
        return format!("{head}\n[not text, {size}; not shown]");
    }
    if let Some(encoding) = &answer.encoding {
        return format!("{head}\n[encoded as {}, {size}; not shown]", quoted(encoding));
    }
    if media.kind.is_empty() && body.contains(&0) {
        return format!("{head}\n[binary, {size}; not shown]");
    }
    let body = if answer.is_cut { without_partial_char(body) } else { body };
    let (text, damaged) = decode_body(body, &media.charset);
    let text = if media.is_html() { html::html_to_text(&text, stop) } else { text };
    if damaged {
        head += ", some bytes unreadable";
    }
    if answer.is_cut {
        head += &format!(", only its first {} bytes", body.len());
    }
    let body = if text.trim().is_empty() { "[empty]" } else { text.as_str() };
    truncate_with_note(format!("{head}\n\n{body}"), limit)
}

fn decode_body(body: &[u8], charset: &str) -> (String, bool) {
    match charset {
        // In both, each byte is one character. The few characters that differ between the two are ignored.
        "iso-8859-1" | "latin1" | "windows-1252" if std::str::from_utf8(body).is_err() => {
            (body.iter().map(|b| char::from(*b)).collect(), false)
        }
        _ => decode_lossy(body),
    }
}
