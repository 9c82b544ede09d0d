//! `multipart/form-data` (RFC 7578), for files with fields.

use uuid::Uuid;

/// What a media type may hold besides letters and digits (RFC 6838, 4.2), its parameters included.
const TYPE_MARKS: &[u8] = b"!#$&-^_.+/;= ";

/// A form that is being written.
#[derive(Debug)]
pub(crate) struct Multipart {
    /// Nobody can guess it, so nothing that is sent holds it.
    boundary: String,
    body: Vec<u8>,
}

impl Multipart {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self { boundary: Uuid::now_v7().simple().to_string(), body: Vec::new() }
    }

    /// Adds a field.
    pub(crate) fn text(&mut self, name: &str, value: &str) {
        self.part(&format!("name=\"{}\"", quoted(name)), None, value.as_bytes());
    }

    /// Adds a file with its name and media type.
    pub(crate) fn file(&mut self, name: &str, (file_name, media_type): (&str, &str), bytes: &[u8]) {
        let sound = media_type.bytes().all(|byte| byte.is_ascii_alphanumeric() || TYPE_MARKS.contains(&byte));
        let media_type = if sound && !media_type.is_empty() { media_type } else { "application/octet-stream" };
        let named = format!("name=\"{}\"; filename=\"{}\"", quoted(name), quoted(file_name));
        self.part(&named, Some(media_type), bytes);
    }

    /// The `Content-Type` and the body.
    pub(crate) fn finish(mut self) -> (String, Vec<u8>) {
        self.body.extend_from_slice(format!("--{}--\r\n", self.boundary).as_bytes());
        (format!("multipart/form-data; boundary={}", self.boundary), self.body)
    }

    fn part(&mut self, named: &str, media_type: Option<&str>, bytes: &[u8]) {
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

/// As browsers write names: whatever would end the name or the line is escaped, and the rest is not.
fn quoted(name: &str) -> String {
    name.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A")
}

#[cfg(test)]
mod tests {
    use super::Multipart;

    #[test]
    fn a_name_cannot_leave_its_line() {
        let mut form = Multipart::new();
        form.text("chat_id", "7");
        form.file("document", ("a\"\r\nX: y", "text/plain\r\nX: y"), b"\r\n--");
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
