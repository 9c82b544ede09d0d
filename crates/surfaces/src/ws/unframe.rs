//! Hands the bytes of a client on frame by frame: the header of a frame alone, then its payload, never two frames at once.
//!
//! The decoder keeps one buffer, makes it as large as the largest frame, and goes on in what is left of it. Behind a payload
//! that it was handed alone nothing is left, so that it begins anew and the memory of a large frame is free with its message.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};

/// Bytes that are read ahead.
const AHEAD: usize = 8 * 1024;
/// Bytes of the longest header (RFC 6455, 5.2).
const LONGEST_HEADER: usize = 14;

/// Where in the client's bytes the reader is.
#[derive(Debug)]
pub(super) struct Frames {
    ahead: BytesMut,
    /// Bytes of the header that have not been handed on.
    header: usize,
    /// Bytes of its payload that have not been handed on.
    payload: u64,
    /// Bytes that were read and not told yet.
    untold: usize,
}

impl Frames {
    pub(super) fn new() -> Self {
        Self { ahead: BytesMut::with_capacity(AHEAD), header: 0, payload: 0, untold: 0 }
    }

    /// Reads what is next, and answers how many bytes were read from the client.
    pub(super) fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        loop {
            if self.header == 0 && self.payload == 0 {
                (self.header, self.payload) = header(&self.ahead).unwrap_or_default();
            }
            let next = if self.header > 0 { self.header as u64 } else { self.payload };
            if next > 0 && !self.ahead.is_empty() {
                let bytes = usize::try_from(next).unwrap_or(usize::MAX).min(self.ahead.len()).min(buf.remaining());
                buf.put_slice(&self.ahead[..bytes]);
                self.ahead.advance(bytes);
                self.handed_on(bytes);
                return Poll::Ready(Ok(std::mem::take(&mut self.untold)));
            }
            if self.header == 0 && self.payload > AHEAD as u64 {
                let most = usize::try_from(self.payload).unwrap_or(usize::MAX).min(buf.remaining());
                let mut straight = ReadBuf::new(buf.initialize_unfilled_to(most));
                ready!(Pin::new(stream).poll_read(cx, &mut straight))?;
                let bytes = straight.filled().len();
                buf.advance(bytes);
                self.handed_on(bytes);
                return Poll::Ready(Ok(bytes + std::mem::take(&mut self.untold)));
            }
            let bytes = ready!(self.poll_ahead(stream, cx))?;
            if bytes == 0 {
                // The client is gone; what it left unfinished is handed on as it is.
                let bytes = self.ahead.len().min(buf.remaining());
                buf.put_slice(&self.ahead[..bytes]);
                self.ahead.advance(bytes);
                return Poll::Ready(Ok(std::mem::take(&mut self.untold)));
            }
            self.untold += bytes;
        }
    }

    fn handed_on(&mut self, bytes: usize) {
        if self.header > 0 {
            self.header -= bytes;
        } else {
            self.payload = self.payload.saturating_sub(bytes as u64);
        }
    }

    fn poll_ahead<S: AsyncRead + Unpin>(&mut self, stream: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let before = self.ahead.len();
        self.ahead.resize(before + AHEAD - before.min(LONGEST_HEADER), 0);
        let mut room = ReadBuf::new(&mut self.ahead[before..]);
        let outcome = Pin::new(stream).poll_read(cx, &mut room).map_ok(|()| room.filled().len());
        let bytes = if let Poll::Ready(Ok(bytes)) = outcome { bytes } else { 0 };
        self.ahead.truncate(before + bytes);
        outcome
    }
}

/// The length of the header that begins here and of its payload; none when it is not all there.
fn header(bytes: &[u8]) -> Option<(usize, u64)> {
    let second = *bytes.get(1)?;
    let mask = if second & 0x80 == 0 { 0 } else { 4 };
    let (length, payload) = match second & 0x7F {
        126 => (4, u64::from(u16::from_be_bytes(*bytes.get(2..4)?.first_chunk()?))),
        127 => (10, u64::from_be_bytes(*bytes.get(2..10)?.first_chunk()?)),
        short => (2, u64::from(short)),
    };
    (bytes.len() >= length + mask).then_some((length + mask, payload))
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    fn frame(payload: usize) -> Vec<u8> {
        let mut frame = vec![0x81];
        match payload {
            0..126 => frame.push(0x80 | u8::try_from(payload).unwrap()),
            126..0x10000 => {
                frame.push(0x80 | 126);
                frame.extend(u16::try_from(payload).unwrap().to_be_bytes());
            }
            _ => {
                frame.push(0x80 | 127);
                frame.extend((payload as u64).to_be_bytes());
            }
        }
        frame.extend([1, 2, 3, 4]);
        frame.extend((0..payload).map(|at| u8::try_from(at % 251).unwrap()));
        frame
    }

    #[tokio::test]
    async fn frames_are_handed_on_one_by_one_and_whole() {
        for piece in [1, 3, 1000, 100_000] {
            let lengths = [0, 1, 125, 126, 9000, 70_000, 5, 8192, 8193];
            let sent: Vec<u8> = lengths.iter().flat_map(|length| frame(*length)).collect();
            let (mut client, mut server) = duplex(1 << 20);
            let writing = sent.clone();
            let write = async move {
                for piece in writing.chunks(piece) {
                    client.write_all(piece).await.unwrap();
                    tokio::task::yield_now().await;
                }
            };
            let read = async {
                let (mut frames, mut all, mut ends, mut counted) = (Frames::new(), Vec::new(), Vec::new(), 0);
                loop {
                    let mut space = vec![0; 8192];
                    let mut buf = ReadBuf::new(&mut space);
                    counted += poll_fn(|cx| frames.poll_read(&mut server, cx, &mut buf)).await.unwrap();
                    if buf.filled().is_empty() {
                        return (all, ends, counted);
                    }
                    all.extend_from_slice(buf.filled());
                    ends.push(all.len());
                }
            };
            let ((), (all, ends, counted)) = tokio::join!(write, read);
            assert!(all == sent && counted == sent.len(), "pieces of {piece}");
            let mut at = 0;
            for length in lengths {
                let whole = frame(length).len();
                assert!(ends.contains(&(at + whole - length)) && ends.contains(&(at + whole)), "{length} at {at}");
                at += whole;
            }
        }
    }

    #[tokio::test]
    async fn half_a_header_is_handed_on_at_the_end() {
        let (mut client, mut server) = duplex(64);
        client.write_all(&frame(300)[..3]).await.unwrap();
        drop(client);
        let (mut frames, mut space) = (Frames::new(), [0; 64]);
        let mut buf = ReadBuf::new(&mut space);
        poll_fn(|cx| frames.poll_read(&mut server, cx, &mut buf)).await.unwrap();
        assert_eq!(buf.filled(), &frame(300)[..3]);
    }
}
