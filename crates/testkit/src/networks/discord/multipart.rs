//! Forms as Discord accepts them: a part `payload_json` and parts `files[n]`.

use bytes::Bytes;
use serde_json::Value;

use super::super::multipart::{FormPart, parse_parts};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct DiscordForm {
    pub(super) payload: Value,
    pub(super) files: Vec<DiscordFormFile>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct DiscordFormFile {
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) media_type: String,
    pub(super) bytes: Vec<u8>,
}

pub(super) fn parse_form(content_type: &str, body: &Bytes) -> Result<DiscordForm, String> {
    let (mut payload, mut files) = (Value::Null, Vec::new());
    for part in parse_parts(content_type, body)? {
        if part.name == "payload_json" {
            payload = serde_json::from_slice(&part.bytes).map_err(|error| format!("payload_json: {error}"))?;
        } else {
            files.push(file_of(part)?);
        }
    }
    Ok(DiscordForm { payload, files })
}

fn file_of(part: FormPart) -> Result<DiscordFormFile, String> {
    let index = part.name.strip_prefix("files[").and_then(|rest| rest.strip_suffix(']'));
    let index = index.and_then(|index| index.parse().ok()).ok_or(format!("a part named {}", part.name))?;
    let name = part.file_name.filter(|name| !name.is_empty()).ok_or("a file without name")?;
    let media_type = if part.media_type.is_empty() { "application/octet-stream".to_owned() } else { part.media_type };
    // HTML, multipart/form-data encoding algorithm: `%22` stands for a quote.
    Ok(DiscordFormFile { index, name: name.replace("%22", "\""), media_type, bytes: part.bytes.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = "--b\r\nContent-Disposition: form-data; name=\"payload_json\"\r\n\r\n{\"content\":\"hi\"}\r\n\
        --b\r\nContent-Disposition: form-data; name=\"files[0]\"; filename=\"a.txt\"\r\nContent-Type: text/plain\r\n\r\n\
        one\r\ntwo\r\n--b--\r\n";

    #[test]
    fn a_form_is_taken_apart() {
        let form = parse_form("multipart/form-data; boundary=b", &BODY.into()).unwrap();
        assert_eq!(form.payload["content"], "hi");
        let file = DiscordFormFile {
            index: 0,
            name: "a.txt".into(),
            media_type: "text/plain".into(),
            bytes: b"one\r\ntwo".into(),
        };
        assert_eq!(form.files, [file]);
    }

    #[test]
    fn a_broken_form_is_refused() {
        let broken = [
            BODY.replace("--b--", ""),
            BODY.replace("files[0]", "file"),
            BODY.replace("; filename=\"a.txt\"", ""),
            BODY.replace("{\"content\"", "{content"),
        ];
        for body in broken {
            assert!(parse_form("multipart/form-data; boundary=b", &body.clone().into()).is_err(), "{body}");
        }
        assert!(parse_form("multipart/form-data", &BODY.into()).is_err());
    }
}
