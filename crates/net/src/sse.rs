//! Decode server-sent events (WHATWG HTML, 9.2.6) from byte chunks, with limits on lines and events.
//!
//! Lines may end in CR, LF or CRLF, and the input may be split anywhere.

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SseEvent {
    /// The event's name; empty when the server gave none.
    pub name: String,
    /// The data; several `data:` lines are joined by a newline.
    pub data: String,
}

/// The input exceeds a limit. The decoder cannot be used afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SseLimitError {
    #[error("a line is longer than {0} bytes")]
    Line(usize),
    #[error("an event holds more than {0} bytes")]
    Event(usize),
}

/// The decoder. It keeps no more than the unfinished line and the unfinished event.
#[derive(Debug)]
pub struct SseDecoder {
    line: Vec<u8>,
    name: String,
    data: Option<String>,
    after_cr: bool,
    at_start: bool,
    max_line: usize,
    max_event: usize,
}

impl SseDecoder {
    /// Limits the length of a line and the size of the data of one event, both in bytes.
    pub fn new(max_line: usize, max_event: usize) -> Self {
        Self { line: Vec::new(), name: String::new(), data: None, after_cr: false, at_start: true, max_line, max_event }
    }

    /// Consumes bytes from the front of `input` until an event is complete. Returns `None` when the input is used up.
    ///
    /// # Errors
    /// The input exceeds a limit.
    pub fn next_event(&mut self, input: &mut &[u8]) -> Result<Option<SseEvent>, SseLimitError> {
        loop {
            self.skip_lf_after_cr(input);
            let Some(end) = input.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                self.buffer_line(input)?;
                *input = &[];
                return Ok(None);
            };
            let (line, rest) = input.split_at(end);
            self.after_cr = rest.first() == Some(&b'\r');
            *input = rest.get(1..).unwrap_or_default();
            if let Some(event) = self.finish_line(line)? {
                return Ok(Some(event));
            }
        }
    }

    /// The event that was incomplete when the stream ended. The standard says to discard it, but some servers omit the
    /// last blank line, so the caller may use an event that parses as complete.
    pub fn into_unfinished_event(mut self) -> Option<SseEvent> {
        let line = std::mem::take(&mut self.line);
        self.process_field(&line).ok()?;
        self.dispatch_event()
    }

    fn skip_lf_after_cr(&mut self, input: &mut &[u8]) {
        if self.after_cr && !input.is_empty() {
            self.after_cr = false;
            *input = input.strip_prefix(b"\n").unwrap_or(input);
        }
    }

    fn buffer_line(&mut self, part: &[u8]) -> Result<(), SseLimitError> {
        if self.line.len() + part.len() > self.max_line {
            return Err(SseLimitError::Line(self.max_line));
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn finish_line(&mut self, tail: &[u8]) -> Result<Option<SseEvent>, SseLimitError> {
        if self.line.is_empty() {
            if tail.len() > self.max_line {
                return Err(SseLimitError::Line(self.max_line));
            }
            return self.process_line(tail);
        }
        self.buffer_line(tail)?;
        let line = std::mem::take(&mut self.line);
        self.process_line(&line)
    }

    fn process_line(&mut self, line: &[u8]) -> Result<Option<SseEvent>, SseLimitError> {
        let line = match line.strip_prefix(BYTE_ORDER_MARK) {
            Some(stripped) if self.at_start => stripped,
            _ => line,
        };
        self.at_start = false;
        if line.is_empty() {
            return Ok(self.dispatch_event());
        }
        self.process_field(line)?;
        Ok(None)
    }

    fn process_field(&mut self, line: &[u8]) -> Result<(), SseLimitError> {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (name, value) = line.split_at(colon);
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => self.append_data(&String::from_utf8_lossy(value)),
            b"event" => {
                self.name = String::from_utf8_lossy(value).into_owned();
                Ok(())
            }
            // Comments have an empty name; `id` and `retry` matter only to clients that reconnect.
            _ => Ok(()),
        }
    }

    fn append_data(&mut self, value: &str) -> Result<(), SseLimitError> {
        let held = self.data.as_ref().map_or(0, |data| data.len() + 1);
        if held + value.len() > self.max_event {
            return Err(SseLimitError::Event(self.max_event));
        }
        match &mut self.data {
            Some(data) => {
                data.push('\n');
                data.push_str(value);
            }
            None => self.data = Some(value.to_owned()),
        }
        Ok(())
    }

    fn dispatch_event(&mut self) -> Option<SseEvent> {
        let name = std::mem::take(&mut self.name);
        self.data.take().map(|data| SseEvent { name, data })
    }
}

#[cfg(test)]
mod tests;
