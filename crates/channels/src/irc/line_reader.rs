//! Read IRC lines from a byte stream with bounded memory.

use std::io;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::message::IrcMessage;

/// IRCv3 `message-tags`: 8191 bytes of tags before the 512 bytes of RFC 2812. A longer line is skipped.
const MAX_TAGGED_LINE_BYTES: usize = 8191 + super::message::MAX_LINE_BYTES;
const READ_CHUNK_BYTES: usize = 4096;

#[derive(Debug)]
pub(super) struct IrcLineReader<R> {
    reader: R,
    buffer: BytesMut,
    /// Bytes of the buffer that are known to have no line end.
    searched_bytes: usize,
    /// True inside a line that is too long.
    is_skipping_line: bool,
}

impl<R: AsyncRead + Unpin> IrcLineReader<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, buffer: BytesMut::with_capacity(READ_CHUNK_BYTES), searched_bytes: 0, is_skipping_line: false }
    }

    /// The next valid line. None if the server closed the connection; an unfinished last line is dropped.
    ///
    /// # Cancel safety
    /// Safe: bytes that were read stay in the buffer.
    pub(super) async fn next_message(&mut self) -> io::Result<Option<IrcMessage>> {
        loop {
            while let Some(line) = self.take_line() {
                if let Some(message) = IrcMessage::parse(&line) {
                    return Ok(Some(message));
                }
            }
            self.buffer.reserve(READ_CHUNK_BYTES);
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// The next complete line of the buffer that is not too long.
    fn take_line(&mut self) -> Option<String> {
        loop {
            let end = self.buffer[self.searched_bytes..].iter().position(|byte| *byte == b'\n');
            let Some(end) = end.map(|at| self.searched_bytes + at) else {
                self.searched_bytes = self.buffer.len();
                if self.is_skipping_line || self.buffer.len() > MAX_TAGGED_LINE_BYTES {
                    self.is_skipping_line = true;
                    self.buffer.clear();
                    self.searched_bytes = 0;
                }
                return None;
            };
            let line = self.buffer.split_to(end);
            self.buffer.advance(1);
            self.searched_bytes = 0;
            if !std::mem::take(&mut self.is_skipping_line) && line.len() <= MAX_TAGGED_LINE_BYTES {
                let line = String::from_utf8_lossy(&line);
                return Some(line.trim_end_matches('\r').replace('\0', ""));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_texts(bytes: &[u8]) -> Vec<String> {
        let mut line_reader = IrcLineReader::new(bytes);
        let mut texts = Vec::new();
        while let Some(message) = line_reader.next_message().await.unwrap() {
            texts.push(message.text().to_owned());
        }
        texts
    }

    #[tokio::test]
    async fn lines_end_with_or_without_a_carriage_return() {
        assert_eq!(read_texts(b"A :1\r\nA :2\n\r\n\nA :3\r\r\nA :half").await, ["1", "2", "3"]);
    }

    #[tokio::test]
    async fn invalid_utf8_is_replaced() {
        assert_eq!(read_texts(b"A :gr\xfcn\r\nA :gr\xc3\xbcn\r\n").await, ["gr\u{fffd}n", "grün"]);
    }

    #[tokio::test]
    async fn a_line_that_never_ends_is_skipped_in_bounded_memory() {
        let mut bytes = b"A :1\r\nA :".to_vec();
        bytes.resize(3_000_000, b'x');
        bytes.extend_from_slice(b"\r\nA :2\r\n");
        let mut line_reader = IrcLineReader::new(bytes.as_slice());
        assert_eq!(line_reader.next_message().await.unwrap().unwrap().text(), "1");
        assert_eq!(line_reader.next_message().await.unwrap().unwrap().text(), "2");
        assert!(line_reader.buffer.capacity() < 4 * MAX_TAGGED_LINE_BYTES, "{}", line_reader.buffer.capacity());
    }

    #[tokio::test]
    async fn lines_come_in_any_pieces() {
        let (mut server, client) = tokio::io::duplex(3);
        let mut line_reader = IrcLineReader::new(client);
        let sent = async {
            tokio::io::AsyncWriteExt::write_all(&mut server, "A :grün\r\nB :rot\r\n".as_bytes()).await.unwrap();
        };
        let received = async {
            let first = line_reader.next_message().await.unwrap().unwrap();
            (first.text().to_owned(), line_reader.next_message().await.unwrap().unwrap().text().to_owned())
        };
        let ((), received) = tokio::join!(sent, received);
        assert_eq!(received, ("grün".to_owned(), "rot".to_owned()));
    }
}
