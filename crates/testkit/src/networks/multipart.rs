//! Parse `multipart/form-data` (RFC 7578).

use bytes::Bytes;

#[derive(Debug)]
pub(crate) struct FormPart {
    pub(crate) name: String,
    /// Only files have one.
    pub(crate) file_name: Option<String>,
    /// Empty when the part names none.
    pub(crate) media_type: String,
    pub(crate) bytes: Bytes,
}

pub(crate) fn parse_parts(content_type: &str, body: &Bytes) -> Result<Vec<FormPart>, &'static str> {
    let boundary = content_type.split_once("boundary=").ok_or("no boundary")?.1.trim_matches('"');
    let (open, between) = (format!("--{boundary}\r\n"), format!("\r\n--{boundary}"));
    let mut at = if body.starts_with(open.as_bytes()) { open.len() } else { return Err("no first boundary") };
    let mut parts = Vec::new();
    loop {
        let head = find_bytes(&body[at..], b"\r\n\r\n").ok_or("a part without an end of its head")? + at;
        let content = head + 4;
        let end = find_bytes(&body[content..], between.as_bytes()).ok_or("a part without an end")? + content;
        parts.push(parse_part(&body[at..head], body.slice(content..end))?);
        at = end + between.len();
        match &body[at..] {
            b"--\r\n" | b"--" => return Ok(parts),
            rest if rest.starts_with(b"\r\n") => at += 2,
            _ => return Err("a boundary with something behind it"),
        }
    }
}

fn parse_part(head: &[u8], bytes: Bytes) -> Result<FormPart, &'static str> {
    let text = std::str::from_utf8(head).map_err(|_| "a head that is no UTF-8")?;
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
    Ok(FormPart { name: name.ok_or("a part without a name")?, file_name, media_type, bytes })
}

fn header_parameter(header: &str, wanted: &str) -> Option<String> {
    let (_, after) = header.split_once(&format!("; {wanted}=\""))?;
    let (value, _) = after.split_once('"')?;
    Some(value.to_owned())
}

fn find_bytes(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}
