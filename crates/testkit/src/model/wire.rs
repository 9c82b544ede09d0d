//! The writing side of one answer: cuts bytes as scripted and records what has gone out.

use std::io;
use std::time::Instant;

use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::behaviour::Transfer;
use super::record::Recorded;

/// Writes one answer.
pub(super) struct Wire<'a, W> {
    pub(super) writer: W,
    pub(super) request: &'a Recorded,
    pub(super) transfer: Transfer,
    /// Size of one write of the body; everything at once when absent.
    pub(super) piece: Option<usize>,
}

impl<W: AsyncWrite + Unpin> Wire<'_, W> {
    /// Status 200 and the headers of an event stream.
    pub(super) async fn stream_head(&mut self) -> io::Result<()> {
        let framing = match self.transfer {
            Transfer::Chunked => "transfer-encoding: chunked",
            Transfer::UntilClose => "connection: close",
        };
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{framing}\r\n\r\n");
        self.writer.write_all(head.as_bytes()).await?;
        self.request.note(|p| p.headers_sent = Some(Instant::now()));
        Ok(())
    }

    /// A part of the body, cut into pieces.
    pub(super) async fn body(&mut self, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.chunks(self.piece.unwrap_or(bytes.len()).max(1)) {
            match self.transfer {
                Transfer::UntilClose => self.writer.write_all(piece).await?,
                Transfer::Chunked => {
                    let mut framed = format!("{:x}\r\n", piece.len()).into_bytes();
                    framed.extend_from_slice(piece);
                    framed.extend_from_slice(b"\r\n");
                    self.writer.write_all(&framed).await?;
                }
            }
            self.request.note(|p| {
                p.first_byte.get_or_insert_with(Instant::now);
                p.bytes_sent += piece.len() as u64;
            });
        }
        Ok(())
    }

    /// Whole frames, one after the other.
    pub(super) async fn frames(&mut self, frames: &[Vec<u8>]) -> io::Result<()> {
        for frame in frames {
            self.body(frame).await?;
        }
        Ok(())
    }

    /// The proper end of the body, where its framing has one.
    pub(super) async fn end_of_body(&mut self) -> io::Result<()> {
        match self.transfer {
            Transfer::Chunked => self.writer.write_all(b"0\r\n\r\n").await,
            Transfer::UntilClose => Ok(()),
        }
    }

    /// A whole plain answer.
    pub(super) async fn whole(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes).await?;
        self.request.note(|p| {
            let now = Instant::now();
            p.headers_sent = Some(now);
            p.first_byte = Some(now);
            p.bytes_sent += bytes.len() as u64;
        });
        Ok(())
    }
}
