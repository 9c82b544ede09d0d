//! Parse `multipart/form-data` (RFC 7578) with at most one file.

use bytes::Bytes;
use serde_json::{Map, Value};

use super::state::FakeTelegramFile;

/// The fields of a form and its file.
#[derive(Debug)]
pub(super) struct TelegramForm {
    pub(super) fields: Value,
    pub(super) file: Option<FakeTelegramFile>,
}

pub(super) fn parse_form(content_type: &str, body: &Bytes) -> Result<TelegramForm, &'static str> {
    let boundary = content_type.split_once("boundary=").ok_or("no boundary")?.1.trim_matches('"');
    let (open, between) = (format!("--{boundary}\r\n"), format!("\r\n--{boundary}"));
    let mut at = if body.starts_with(open.as_bytes()) { open.len() } else { return Err("no first boundary") };
    let (mut fields, mut file) = (Map::new(), None);
    loop {
        let head = find_bytes(&body[at..], b"\r\n\r\n").ok_or("a part without an end of its head")? + at;
        let content = head + 4;
        let end = find_bytes(&body[content..], between.as_bytes()).ok_or("a part without an end")? + content;
        let part = FormPartHead::parse(&body[at..head])?;
        let bytes = body.slice(content..end);
        match part.file_name {
            Some(_) if file.is_some() => return Err("two files"),
            Some(name) => file = Some(FakeTelegramFile { kind: part.name, name, media_type: part.media_type, bytes }),
            None => {
                let text = std::str::from_utf8(&bytes).map_err(|_| "a field that is no UTF-8")?;
                // In a form, numbers and objects are sent as text.
                let value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
                fields.insert(part.name, value);
            }
        }
        at = end + between.len();
        match &body[at..] {
            b"--\r\n" | b"--" => return Ok(TelegramForm { fields: Value::Object(fields), file }),
            rest if rest.starts_with(b"\r\n") => at += 2,
            _ => return Err("a boundary with something behind it"),
        }
    }
}

struct FormPartHead {
    name: String,
    file_name: Option<String>,
    media_type: String,
}

impl FormPartHead {
    fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let text = std::str::from_utf8(bytes).map_err(|_| "a head that is no UTF-8")?;
        let (mut name, mut file_name, mut media_type) = (None, None, String::new());
        for line in text.split("\r\n") {
            let (header, value) = line.split_once(": ").ok_or("a header without colon")?;
            match header.to_ascii_lowercase().as_str() {
                "content-disposition" if value.starts_with("form-data; ") => {
                    name = header_parameter(value, "name");
                    file_name = header_parameter(value, "filename");
                }
                "content-type" => value.clone_into(&mut media_type),
                _ => return Err("a header that does not belong there"),
            }
        }
        Ok(Self { name: name.ok_or("a part without a name")?, file_name, media_type })
    }
}

fn header_parameter(header: &str, wanted: &str) -> Option<String> {
    let (_, after) = header.split_once(&format!("; {wanted}=\""))?;
    let (value, _) = after.split_once('"')?;
    Some(value.to_owned())
}

fn find_bytes(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}
