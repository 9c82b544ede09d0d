//! Build `multipart/form-data` bodies (RFC 7578).

use uuid::Uuid;

/// Symbols that a media type may have besides letters and digits (RFC 6838, 4.2), its parameters included.
const MEDIA_TYPE_SYMBOLS: &[u8] = b"!#$&-^_.+/;= ";

/// A body of `multipart/form-data` that is being built.
#[derive(Debug)]
pub struct Multipart {
    /// Not guessable, so that no part can contain it.
    boundary: String,
    body: Vec<u8>,
}

impl Default for Multipart {
    fn default() -> Self {
        Self { boundary: Uuid::now_v7().simple().to_string(), body: Vec::new() }
    }
}

impl Multipart {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub fn add_field(&mut self, name: &str, value: &str) {
        self.add_part(&format!("name=\"{}\"", escape_name(name)), None, value.as_bytes());
    }

    /// Adds a file. A media type with other characters than such types have becomes that of unknown bytes.
    pub fn add_file(&mut self, name: &str, file_name: &str, media_type: &str, bytes: &[u8]) {
        let is_valid =
            media_type.bytes().all(|byte| byte.is_ascii_alphanumeric() || MEDIA_TYPE_SYMBOLS.contains(&byte));
        let media_type = if is_valid && !media_type.is_empty() { media_type } else { "application/octet-stream" };
        let named = format!("name=\"{}\"; filename=\"{}\"", escape_name(name), escape_name(file_name));
        self.add_part(&named, Some(media_type), bytes);
    }

    /// Returns the `Content-Type` and the body.
    #[must_use]
    pub fn finish(mut self) -> (String, Vec<u8>) {
        self.body.extend_from_slice(format!("--{}--\r\n", self.boundary).as_bytes());
        (format!("multipart/form-data; boundary={}", self.boundary), self.body)
    }

    fn add_part(&mut self, named: &str, media_type: Option<&str>, bytes: &[u8]) {
        let mut head = format!("--{}\r\nContent-Disposition: form-data; {named}\r\n", self.boundary);
        if let Some(media_type) = media_type {
            head.push_str(&format!("Content-Type: {media_type}\r\n"));
        }
        head.push_str("\r\n");
        self.body.extend_from_slice(head.as_bytes());
        self.body.extend_from_slice(bytes);
        self.body.extend_from_slice(b"\r\n");
    }
}

/// Escapes only what would end the name or the line, as browsers do.
fn escape_name(name: &str) -> String {
    name.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A")
}

#[cfg(test)]
mod tests {
    use super::Multipart;

    #[test]
    fn a_name_cannot_leave_its_line() {
        let mut form = Multipart::new();
        form.add_field("chat_id", "7");
        form.add_file("document", "a\"\r\nX: y", "text/plain\r\nX: y", b"\r\n--");
        let (content_type, body) = form.finish();
        let boundary = content_type.strip_prefix("multipart/form-data; boundary=").unwrap();
        let expected = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"chat_id\"\r\n\r\n7\r\n\
             --{boundary}\r\nContent-Disposition: form-data; name=\"document\"; filename=\"a%22%0D%0AX: y\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n\r\n--\r\n--{boundary}--\r\n"
        );
        assert_eq!(String::from_utf8(body).unwrap(), expected);
    }
}
