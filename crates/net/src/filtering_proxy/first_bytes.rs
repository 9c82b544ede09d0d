//! Recognise TLS and HTTP in the first bytes that a client sends through a tunnel.

use std::io::Cursor;

use rustls::server::Acceptor;

/// Most bytes that are held until the kind is known. A ClientHello with post-quantum keys has about 2 KiB.
const MAX_FIRST_BYTES: usize = 32 * 1024;

/// The first byte of a TLS handshake, and the major version of all TLS records behind it.
const TLS_HANDSHAKE: u8 = 0x16;
const TLS_MAJOR_VERSION: u8 = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FirstBytes {
    /// More bytes are needed.
    Incomplete,
    /// A ClientHello, with the server name that it gives (SNI), in lower case. With Encrypted Client Hello it is the
    /// outer name.
    Tls {
        server_name: Option<String>,
    },
    /// TLS whose first message cannot be read.
    InvalidTls,
    /// A request line of HTTP/1 or HTTP/2, well-formed or not.
    Http,
    /// A text that is too long for a request line and may be one.
    TooLong,
    Other,
}

/// Collects the first bytes until their kind is known.
pub(super) struct FirstBytesReader {
    bytes: Vec<u8>,
    hello: Acceptor,
    /// Bytes that `hello` has read.
    read_as_tls: usize,
}

impl FirstBytesReader {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::new(), hello: Acceptor::default(), read_as_tls: 0 }
    }

    /// Adds bytes. Not to be called again after a result other than `Incomplete`.
    pub(super) fn add(&mut self, bytes: &[u8]) -> FirstBytes {
        self.bytes.extend_from_slice(bytes);
        match self.bytes.as_slice() {
            [] | [TLS_HANDSHAKE] => FirstBytes::Incomplete,
            [TLS_HANDSHAKE, TLS_MAJOR_VERSION, ..] => self.read_client_hello(),
            [TLS_HANDSHAKE, ..] => FirstBytes::Other,
            text => recognise_text(text),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes so far, to be sent on.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn read_client_hello(&mut self) -> FirstBytes {
        let mut unread = Cursor::new(self.bytes.get(self.read_as_tls..).unwrap_or_default());
        self.read_as_tls = self.bytes.len();
        loop {
            match self.hello.read_tls(&mut unread) {
                Ok(0) if self.bytes.len() > MAX_FIRST_BYTES => return FirstBytes::InvalidTls,
                Ok(0) => return FirstBytes::Incomplete,
                Ok(_) => {}
                Err(_) => return FirstBytes::InvalidTls,
            }
            match self.hello.accept() {
                Ok(Some(accepted)) => {
                    let server_name = accepted.client_hello().server_name().map(str::to_ascii_lowercase);
                    return FirstBytes::Tls { server_name };
                }
                Ok(None) => {}
                Err(_) => return FirstBytes::InvalidTls,
            }
        }
    }
}

/// What some servers accept between the parts of a request line, or before it.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c | 0x1c..=0x1f | 0x85 | 0xa0)
}

/// The characters of a method (`tchar`, RFC 9110, section 5.6.2). Some servers accept every token as one.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Lenient where servers are: blanks may come first, and a line with `HTTP/` anywhere counts as a request. What it
/// is exactly, the parser of the HTTP side decides, which is strict.
fn recognise_text(text: &[u8]) -> FirstBytes {
    let begin = text.iter().position(|byte| !is_blank(*byte)).unwrap_or(text.len());
    let text = text.get(begin..).unwrap_or_default();
    let method = text.iter().take_while(|byte| is_token(**byte)).count();
    let follows = text.get(method);
    let can_be_request = (method > 0 || text.is_empty())
        && follows.is_none_or(|byte| is_blank(*byte))
        // No server takes this for text. Git's own protocol has it.
        && !text.contains(&0);
    if begin > MAX_FIRST_BYTES || (can_be_request && text.len() > MAX_FIRST_BYTES) {
        return FirstBytes::TooLong;
    }
    if !can_be_request {
        return FirstBytes::Other;
    }
    let line_end = text.iter().position(|byte| *byte == b'\n');
    let line = text.get(..line_end.unwrap_or(text.len())).unwrap_or_default();
    if line.windows(5).any(|window| window.eq_ignore_ascii_case(b"http/")) {
        return FirstBytes::Http;
    }
    if line_end.is_some() { FirstBytes::Other } else { FirstBytes::Incomplete }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn recognise(bytes: &[u8]) -> FirstBytes {
        FirstBytesReader::new().add(bytes)
    }

    #[rstest]
    #[case("GET / HTTP/1.1\r\n", FirstBytes::Http)]
    #[case("\r\n\nget /x http/1.0\n", FirstBytes::Http)]
    #[case("CONNECT\thost:1\tHTTP/1.1", FirstBytes::Http)]
    #[case(" GET\u{b}/\u{1c}HTTP/1.1", FirstBytes::Http)]
    #[case("PRI * HTTP/2.0\r\n", FirstBytes::Http)]
    #[case("GET /", FirstBytes::Incomplete)]
    #[case("\r\n", FirstBytes::Incomplete)]
    #[case("1GET / HTTP/1.1\r\n", FirstBytes::Http)]
    #[case("!.* / HTTP/1.1\r\n", FirstBytes::Http)]
    #[case("A-METHOD-WITH-MORE-THAN-THIRTY-TWO-CHARACTERS / HTTP/1.1\r\n", FirstBytes::Http)]
    #[case("0032git-upload-pack /x\0host=y\0", FirstBytes::Other)]
    #[case("SSH-2.0-OpenSSH\r\n", FirstBytes::Other)]
    #[case("EHLO me\r\n", FirstBytes::Other)]
    #[case("*1\r\n$4\r\nPING\r\n", FirstBytes::Other)]
    #[case("\0\0\0\u{8}", FirstBytes::Other)]
    #[case("\u{16}\u{1}", FirstBytes::Other)]
    #[case("\u{16}\u{3}", FirstBytes::Incomplete)]
    #[case("\u{16}\u{3}\u{1}\0\u{4}\u{1}\0\0\0", FirstBytes::InvalidTls)]
    fn kinds_are_told_apart(#[case] text: &str, #[case] kind: FirstBytes) {
        assert_eq!(recognise(text.as_bytes()), kind);
    }

    proptest! {
        /// In whatever pieces the bytes come, HTTP that is seen at once is not missed.
        #[test]
        fn pieces_hide_no_request(text in "[\r\n]{0,2}[A-Za-z]{1,5}[ \t]{1,2}[a-z/ ]{0,9}(HTTP|http)/1\\.1\r\n", size in 1_usize..9) {
            prop_assert_eq!(recognise(text.as_bytes()), FirstBytes::Http);
            let mut reader = FirstBytesReader::new();
            let kinds = text.as_bytes().chunks(size).map(|piece| reader.add(piece));
            prop_assert_eq!(kinds.into_iter().find(|kind| *kind != FirstBytes::Incomplete), Some(FirstBytes::Http));
        }

        #[test]
        fn arbitrary_bytes_are_recognised_and_kept(bytes in prop::collection::vec(any::<u8>(), 0..300), tls: bool) {
            let bytes = if tls { [&[0x16, 3, 1], &bytes[..]].concat() } else { bytes };
            let mut reader = FirstBytesReader::new();
            reader.add(&bytes);
            prop_assert_eq!(reader.into_bytes(), bytes);
        }
    }
}
