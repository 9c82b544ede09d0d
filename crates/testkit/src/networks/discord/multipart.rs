//! Parse `multipart/form-data` as Discord accepts it: a part `payload_json` and parts `files[n]`.

use serde_json::Value;

/// A request body with files.
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

pub(super) fn parse_form(content_type: &str, body: &[u8]) -> Result<DiscordForm, String> {
    let boundary = header_parameter(content_type, "boundary").ok_or("no boundary")?;
    let delimiter = format!("--{boundary}");
    let rest = body.strip_prefix(delimiter.as_bytes()).ok_or("the body does not begin with the boundary")?;
    let (mut payload, mut files) = (Value::Null, Vec::new());
    let mut rest = rest;
    loop {
        if rest == b"--\r\n" || rest == b"--" {
            return Ok(DiscordForm { payload, files });
        }
        rest = rest.strip_prefix(b"\r\n").ok_or("no line break after a boundary")?;
        let end = find_bytes(rest, format!("\r\n{delimiter}").as_bytes()).ok_or("the last boundary is missing")?;
        let (head, bytes) = split_head(&rest[..end])?;
        let name =
            header_parameter(header_value(head, "content-disposition").ok_or("a part without disposition")?, "name");
        match name.as_deref() {
            Some("payload_json") => {
                payload = serde_json::from_slice(bytes).map_err(|error| format!("payload_json: {error}"))?;
            }
            Some(name) => files.push(parse_file(name, head, bytes)?),
            None => return Err("a part without name".to_owned()),
        }
        rest = &rest[end + 2 + delimiter.len()..];
    }
}

fn parse_file(name: &str, head: &str, bytes: &[u8]) -> Result<DiscordFormFile, String> {
    let index = name.strip_prefix("files[").and_then(|rest| rest.strip_suffix(']'));
    let index = index.and_then(|index| index.parse().ok()).ok_or(format!("a part named {name}"))?;
    let disposition = header_value(head, "content-disposition").unwrap_or_default();
    let name =
        header_parameter(disposition, "filename").filter(|name| !name.is_empty()).ok_or("a file without name")?;
    let media_type = header_value(head, "content-type").unwrap_or("application/octet-stream").to_owned();
    Ok(DiscordFormFile { index, name, media_type, bytes: bytes.to_vec() })
}

fn split_head(part: &[u8]) -> Result<(&str, &[u8]), String> {
    let end = find_bytes(part, b"\r\n\r\n").ok_or("a part without head")?;
    let head = std::str::from_utf8(&part[..end]).map_err(|_| "a head that is no UTF-8")?;
    Ok((head, &part[end + 4..]))
}

fn header_value<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.split("\r\n").filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// Parses `name=value` or `name="value"`, where `%22` stands for a quote (HTML: multipart/form-data encoding
/// algorithm).
fn header_parameter(value: &str, name: &str) -> Option<String> {
    let mut parts = value.split(';').filter_map(|part| part.trim().split_once('='));
    let (_, found) = parts.find(|(key, _)| key.eq_ignore_ascii_case(name))?;
    let bare = found.strip_prefix('"').and_then(|found| found.strip_suffix('"')).unwrap_or(found);
    Some(bare.replace("%22", "\""))
}

fn find_bytes(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = "--b\r\nContent-Disposition: form-data; name=\"payload_json\"\r\n\r\n{\"content\":\"hi\"}\r\n\
        --b\r\nContent-Disposition: form-data; name=\"files[0]\"; filename=\"a.txt\"\r\nContent-Type: text/plain\r\n\r\n\
        one\r\ntwo\r\n--b--\r\n";

    #[test]
    fn a_form_is_taken_apart() {
        let form = parse_form("multipart/form-data; boundary=b", BODY.as_bytes()).unwrap();
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
            assert!(parse_form("multipart/form-data; boundary=b", body.as_bytes()).is_err(), "{body}");
        }
        assert!(parse_form("multipart/form-data", BODY.as_bytes()).is_err());
    }
}
