//! Decode server-sent events from chunks of any size: CR, LF and CRLF, split anywhere. The size of a frame is limited,
//! so that a broken daemon cannot fill the memory.

/// The fields of a frame that run events use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ClientSseFrame {
    pub(crate) event: String,
    /// The `data` lines, joined by line feeds.
    pub(crate) data: String,
}

/// A frame exceeded the size limit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SseFrameTooLarge;

#[derive(Debug)]
pub(crate) struct ClientSseDecoder {
    max_frame_bytes: usize,
    line: Vec<u8>,
    frame: ClientSseFrame,
    has_data: bool,
    after_cr: bool,
    at_start: bool,
}

impl ClientSseDecoder {
    /// `max_frame_bytes` limits the size of one frame.
    pub(crate) fn new(max_frame_bytes: usize) -> Self {
        Self {
            max_frame_bytes,
            line: Vec::new(),
            frame: ClientSseFrame::default(),
            has_data: false,
            after_cr: false,
            at_start: true,
        }
    }

    /// Decodes the next chunk and returns the frames that it completes. A frame cut off by the end of the stream is
    /// dropped.
    pub(crate) fn feed(&mut self, piece: &[u8]) -> Result<Vec<ClientSseFrame>, SseFrameTooLarge> {
        let mut frames = Vec::new();
        for &byte in piece {
            let follows_cr = std::mem::replace(&mut self.after_cr, byte == b'\r');
            match byte {
                b'\n' if follows_cr => {}
                b'\r' | b'\n' => frames.extend(self.end_line()),
                _ if self.line.len() + self.frame.data.len() >= self.max_frame_bytes => return Err(SseFrameTooLarge),
                _ => self.line.push(byte),
            }
        }
        Ok(frames)
    }

    fn end_line(&mut self) -> Option<ClientSseFrame> {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        let bom = if std::mem::take(&mut self.at_start) { "\u{feff}" } else { "" };
        let line = line.strip_prefix(bom).unwrap_or(&line);
        if line.is_empty() {
            let frame = std::mem::take(&mut self.frame);
            return std::mem::take(&mut self.has_data).then_some(frame);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.frame.event = value.into(),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.frame.data.push('\n');
                }
                self.frame.data.push_str(value);
            }
            // Comments keep a connection alive; `id` repeats the event's `seq`; the client decides itself when to
            // retry.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "\u{feff}: hello\r\nid: 1\revent: text.delta\ndata: {\"a\":\r\ndata:  \"ü\"}\r\n\r\n\
        event: lonely\n\nid: 2\ndata\n\r\ndata: cut";

    fn expected() -> Vec<ClientSseFrame> {
        let first = ClientSseFrame { event: "text.delta".into(), data: "{\"a\":\n \"ü\"}".into() };
        vec![first, ClientSseFrame::default()]
    }

    #[test]
    fn a_stream_split_anywhere_gives_the_same_frames() {
        let bytes = STREAM.as_bytes();
        for cut in 0..=bytes.len() {
            for second in cut..=bytes.len() {
                let mut decoder = ClientSseDecoder::new(1000);
                let mut frames = decoder.feed(&bytes[..cut]).unwrap();
                frames.extend(decoder.feed(&bytes[cut..second]).unwrap());
                frames.extend(decoder.feed(&bytes[second..]).unwrap());
                assert_eq!(frames, expected(), "cut at {cut} and {second}");
            }
        }
    }

    #[test]
    fn a_frame_beyond_the_bound_is_refused_in_one_line_or_many() {
        assert_eq!(ClientSseDecoder::new(16).feed(b"data: 0123456789abcdef"), Err(SseFrameTooLarge));
        assert_eq!(ClientSseDecoder::new(16).feed("data: 0123\n".repeat(5).as_bytes()), Err(SseFrameTooLarge));
        assert_eq!(ClientSseDecoder::new(16).feed("data: 0123\n\n".repeat(50).as_bytes()).map(|f| f.len()), Ok(50));
    }
}
