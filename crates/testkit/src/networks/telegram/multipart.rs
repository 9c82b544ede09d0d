//! Forms as Telegram accepts them: with at most one file.

use bytes::Bytes;
use serde_json::{Map, Value};

use super::super::multipart::parse_parts;
use super::state::FakeTelegramFile;

/// The fields of a form and its file.
#[derive(Debug)]
pub(super) struct TelegramForm {
    pub(super) fields: Value,
    pub(super) file: Option<FakeTelegramFile>,
}

pub(super) fn parse_form(content_type: &str, body: &Bytes) -> Result<TelegramForm, &'static str> {
    let (mut fields, mut file) = (Map::new(), None);
    for part in parse_parts(content_type, body)? {
        match part.file_name {
            Some(_) if file.is_some() => return Err("two files"),
            Some(name) => {
                file = Some(FakeTelegramFile { kind: part.name, name, media_type: part.media_type, bytes: part.bytes });
            }
            None => {
                let text = std::str::from_utf8(&part.bytes).map_err(|_| "a field that is no UTF-8")?;
                // In a form, numbers and objects are sent as text.
                let value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
                fields.insert(part.name, value);
            }
        }
    }
    Ok(TelegramForm { fields: Value::Object(fields), file })
}
