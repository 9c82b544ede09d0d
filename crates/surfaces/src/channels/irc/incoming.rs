//! Bytes from a server, cut into lines. However long a line gets, memory stays bounded.

use std::io;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::message::Message;

/// IRCv3 `message-tags`: 8191 bytes of tags in front of the 512 of RFC 2812. A line that is longer is not heard.
const LONGEST: usize = 8191 + super::message::LONGEST_LINE;
/// How much is read at once.
const READ: usize = 4096;

/// The lines of a connection.
#[derive(Debug)]
pub(super) struct Incoming<R> {
    reader: R,
    buffer: BytesMut,
    /// How much of the buffer holds no end of a line.
    searched: usize,
    /// In the middle of a line that is too long.
    skipping: bool,
}

impl<R: AsyncRead + Unpin> Incoming<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, buffer: BytesMut::with_capacity(READ), searched: 0, skipping: false }
    }

    /// The next line that is one. None when the server has closed the connection; what it began to say then is not heard.
    ///
    /// # Cancel safety
    /// Safe: what was read stays.
    pub(super) async fn next(&mut self) -> io::Result<Option<Message>> {
        loop {
            while let Some(line) = self.line() {
                if let Some(message) = Message::parse(&line) {
                    return Ok(Some(message));
                }
            }
            self.buffer.reserve(READ);
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// The next whole line of the buffer that is not too long.
    fn line(&mut self) -> Option<String> {
        loop {
            let end = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
            let Some(end) = end.map(|at| self.searched + at) else {
                self.searched = self.buffer.len();
                if self.skipping || self.buffer.len() > LONGEST {
                    self.skipping = true;
                    self.buffer.clear();
                    self.searched = 0;
                }
                return None;
            };
            let line = self.buffer.split_to(end);
            self.buffer.advance(1);
            self.searched = 0;
            if !std::mem::take(&mut self.skipping) && line.len() <= LONGEST {
                let line = String::from_utf8_lossy(&line);
                return Some(line.trim_end_matches('\r').replace('\0', ""));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn texts(bytes: &[u8]) -> Vec<String> {
        let mut incoming = Incoming::new(bytes);
        let mut texts = Vec::new();
        while let Some(message) = incoming.next().await.unwrap() {
            texts.push(message.text().to_owned());
        }
        texts
    }

    #[tokio::test]
    async fn lines_end_with_or_without_a_carriage_return() {
        assert_eq!(texts(b"A :1\r\nA :2\n\r\n\nA :3\r\r\nA :half").await, ["1", "2", "3"]);
    }

    #[tokio::test]
    async fn what_is_no_utf8_is_replaced() {
        assert_eq!(texts(b"A :gr\xfcn\r\nA :gr\xc3\xbcn\r\n").await, ["gr\u{fffd}n", "grün"]);
    }

    #[tokio::test]
    async fn a_line_that_never_ends_is_skipped_in_bounded_memory() {
        let mut bytes = b"A :1\r\nA :".to_vec();
        bytes.resize(3_000_000, b'x');
        bytes.extend_from_slice(b"\r\nA :2\r\n");
        let mut incoming = Incoming::new(bytes.as_slice());
        assert_eq!(incoming.next().await.unwrap().unwrap().text(), "1");
        assert_eq!(incoming.next().await.unwrap().unwrap().text(), "2");
        assert!(incoming.buffer.capacity() < 4 * LONGEST, "{}", incoming.buffer.capacity());
    }

    #[tokio::test]
    async fn lines_come_in_any_pieces() {
        let (mut server, client) = tokio::io::duplex(3);
        let mut incoming = Incoming::new(client);
        let sent = async {
            tokio::io::AsyncWriteExt::write_all(&mut server, "A :grün\r\nB :rot\r\n".as_bytes()).await.unwrap();
        };
        let heard = async {
            let first = incoming.next().await.unwrap().unwrap();
            (first.text().to_owned(), incoming.next().await.unwrap().unwrap().text().to_owned())
        };
        let ((), heard) = tokio::join!(sent, heard);
        assert_eq!(heard, ("grün".to_owned(), "rot".to_owned()));
    }
}
