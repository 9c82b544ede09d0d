//! The writing side of one response: splits bytes as scripted and records what was sent.

use std::io;
use std::time::Instant;

use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::recorded_request::RecordedRequest;
use super::scripted_response::Transfer;

pub(super) struct ScriptedResponseWriter<'a, W> {
    pub(super) writer: W,
    pub(super) request: &'a RecordedRequest,
    pub(super) transfer: Transfer,
    /// Bytes of one write of the body; everything at once if absent.
    pub(super) write_size: Option<usize>,
}

impl<W: AsyncWrite + Unpin> ScriptedResponseWriter<'_, W> {
    /// Writes status 200 and the headers of an event stream.
    pub(super) async fn write_stream_head(&mut self) -> io::Result<()> {
        let framing = match self.transfer {
            Transfer::Chunked => "transfer-encoding: chunked",
            Transfer::UntilClose => "connection: close",
        };
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{framing}\r\n\r\n");
        self.writer.write_all(head.as_bytes()).await?;
        self.request.update_progress(|p| p.headers_sent = Some(Instant::now()));
        Ok(())
    }

    /// Writes a part of the body, in pieces.
    pub(super) async fn write_body(&mut self, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.chunks(self.write_size.unwrap_or(bytes.len()).max(1)) {
            match self.transfer {
                Transfer::UntilClose => self.writer.write_all(piece).await?,
                Transfer::Chunked => {
                    let mut framed = format!("{:x}\r\n", piece.len()).into_bytes();
                    framed.extend_from_slice(piece);
                    framed.extend_from_slice(b"\r\n");
                    self.writer.write_all(&framed).await?;
                }
            }
            self.request.update_progress(|p| {
                p.first_byte.get_or_insert_with(Instant::now);
                p.bytes_sent += piece.len() as u64;
            });
        }
        Ok(())
    }

    pub(super) async fn write_frames(&mut self, frames: &[Vec<u8>]) -> io::Result<()> {
        for frame in frames {
            self.write_body(frame).await?;
        }
        Ok(())
    }

    /// Writes the regular end of the body, if its framing has one.
    pub(super) async fn write_body_end(&mut self) -> io::Result<()> {
        match self.transfer {
            Transfer::Chunked => self.writer.write_all(b"0\r\n\r\n").await,
            Transfer::UntilClose => Ok(()),
        }
    }

    /// Writes a whole plain response.
    pub(super) async fn write_whole_response(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes).await?;
        self.request.update_progress(|p| {
            let now = Instant::now();
            p.headers_sent = Some(now);
            p.first_byte = Some(now);
            p.bytes_sent += bytes.len() as u64;
        });
        Ok(())
    }
}
