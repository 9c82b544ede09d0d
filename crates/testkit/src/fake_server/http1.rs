//! A minimal HTTP/1.1 request parser: the servers write responses by hand, because they must be able to break every
//! rule.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

#[derive(Debug)]
pub(crate) struct RawHttpRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Bytes,
}

impl RawHttpRequest {
    /// A post of JSON, for tests without a connection.
    #[cfg(test)]
    pub(crate) fn post(path: &str, headers: &[(&str, String)], body: &serde_json::Value) -> Self {
        let content_type = ("content-type", "application/json".to_owned());
        let headers = headers.iter().cloned().chain([content_type]);
        let headers = headers.map(|(name, value)| (name.to_owned(), value)).collect();
        Self { method: "POST".to_owned(), path: path.to_owned(), headers, body: body.to_string().into() }
    }

    /// The header of this lower-case name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Reads one request; `None` when the client closed the connection between requests. Bytes after the request stay in
/// `buffer`.
pub(crate) async fn read_request(
    reader: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> io::Result<Option<RawHttpRequest>> {
    let head_end = loop {
        if let Some(end) = buffer.windows(4).position(|w| w == b"\r\n\r\n") {
            break end;
        }
        if reader.read_buf(buffer).await? == 0 {
            return if buffer.is_empty() { Ok(None) } else { Err(invalid_data("the client left inside a request")) };
        }
    };
    let head = buffer.split_to(head_end);
    buffer.advance(4);
    let mut incoming = parse_head(&head)?;
    let length = body_length(&incoming.headers)?;
    while buffer.len() < length {
        if reader.read_buf(buffer).await? == 0 {
            return Err(invalid_data("the client left inside a request"));
        }
    }
    incoming.body = buffer.split_to(length).freeze();
    Ok(Some(incoming))
}

fn parse_head(head: &[u8]) -> io::Result<RawHttpRequest> {
    let head = std::str::from_utf8(head).map_err(|_| invalid_data("the head of the request is no UTF-8"))?;
    let mut lines = head.split("\r\n");
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(path), Some("HTTP/1.1")) = (first.next(), first.next(), first.next()) else {
        return Err(invalid_data("no request line of HTTP/1.1"));
    };
    let mut headers = Vec::new();
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { return Err(invalid_data("a header without colon")) };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    Ok(RawHttpRequest { method: method.to_owned(), path: path.to_owned(), headers, body: Bytes::new() })
}

fn body_length(headers: &[(String, String)]) -> io::Result<usize> {
    if headers.iter().any(|(name, _)| name == "transfer-encoding") {
        return Err(invalid_data("a request body in chunks; this server reads Content-Length only"));
    }
    let Some((_, text)) = headers.iter().find(|(name, _)| name == "content-length") else { return Ok(0) };
    text.parse().map_err(|_| invalid_data("a Content-Length that is no number"))
}

fn invalid_data(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
