//! Decoder for server-sent events (WHATWG HTML, 9.2.6), with bounded memory. It knows no dialect: a caller gets the name
//! and the data of each event. Lines may end in CR, LF or CRLF, and the input may be cut anywhere.

/// The longest line that is taken. A whole answer of 128,000 tokens, sent in one event, is about 1 MiB of JSON.
pub(super) const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;

/// The most data that one event may hold over all its lines.
pub(super) const MAX_EVENT_BYTES: usize = 8 * 1024 * 1024;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    /// The event's name; empty when the server gave none.
    pub(super) name: String,
    /// Its data; several `data:` lines are joined by a newline.
    pub(super) data: String,
}

/// A server sent more than a bound allows. The decoder is of no use afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Oversize {
    /// A line.
    #[error("a line is longer than {0} bytes")]
    Line(usize),
    /// An event.
    #[error("an event holds more than {0} bytes")]
    Event(usize),
}

/// The decoder. It keeps no more than the unfinished line and the unfinished event.
#[derive(Debug)]
pub(super) struct Decoder {
    line: Vec<u8>,
    name: String,
    data: Option<String>,
    after_cr: bool,
    at_start: bool,
    max_line: usize,
    max_event: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::with_bounds(MAX_LINE_BYTES, MAX_EVENT_BYTES)
    }
}

impl Decoder {
    pub(super) fn with_bounds(max_line: usize, max_event: usize) -> Self {
        Self { line: Vec::new(), name: String::new(), data: None, after_cr: false, at_start: true, max_line, max_event }
    }

    /// Takes bytes from the front of `input` until an event is complete or nothing is left. `None`: give me more.
    pub(super) fn next(&mut self, input: &mut &[u8]) -> Result<Option<Event>, Oversize> {
        loop {
            self.skip_lf_after_cr(input);
            let Some(end) = input.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                self.keep(input)?;
                *input = &[];
                return Ok(None);
            };
            let (line, rest) = input.split_at(end);
            self.after_cr = rest.first() == Some(&b'\r');
            *input = rest.get(1..).unwrap_or_default();
            if let Some(event) = self.end_line(line)? {
                return Ok(Some(event));
            }
        }
    }

    /// What was under way when the stream ended. By the standard it is to be thrown away; a caller may still take it when it
    /// proves to be whole by itself, for some servers forget the last blank line.
    pub(super) fn rest(mut self) -> Option<Event> {
        let line = std::mem::take(&mut self.line);
        self.field(&line).ok()?;
        self.dispatch()
    }

    fn skip_lf_after_cr(&mut self, input: &mut &[u8]) {
        if self.after_cr && !input.is_empty() {
            self.after_cr = false;
            *input = input.strip_prefix(b"\n").unwrap_or(input);
        }
    }

    fn keep(&mut self, part: &[u8]) -> Result<(), Oversize> {
        if self.line.len() + part.len() > self.max_line {
            return Err(Oversize::Line(self.max_line));
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn end_line(&mut self, tail: &[u8]) -> Result<Option<Event>, Oversize> {
        if self.line.is_empty() {
            if tail.len() > self.max_line {
                return Err(Oversize::Line(self.max_line));
            }
            return self.take_line(tail);
        }
        self.keep(tail)?;
        let line = std::mem::take(&mut self.line);
        self.take_line(&line)
    }

    fn take_line(&mut self, line: &[u8]) -> Result<Option<Event>, Oversize> {
        let line = match line.strip_prefix(BYTE_ORDER_MARK) {
            Some(stripped) if self.at_start => stripped,
            _ => line,
        };
        self.at_start = false;
        if line.is_empty() {
            return Ok(self.dispatch());
        }
        self.field(line)?;
        Ok(None)
    }

    fn field(&mut self, line: &[u8]) -> Result<(), Oversize> {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (name, value) = line.split_at(colon);
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => self.add_data(&String::from_utf8_lossy(value)),
            b"event" => {
                self.name = String::from_utf8_lossy(value).into_owned();
                Ok(())
            }
            // Comments have an empty name; `id` and `retry` mean something only to clients that reconnect.
            _ => Ok(()),
        }
    }

    fn add_data(&mut self, value: &str) -> Result<(), Oversize> {
        let held = self.data.as_ref().map_or(0, |data| data.len() + 1);
        if held + value.len() > self.max_event {
            return Err(Oversize::Event(self.max_event));
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

    fn dispatch(&mut self) -> Option<Event> {
        let name = std::mem::take(&mut self.name);
        self.data.take().map(|data| Event { name, data })
    }
}

#[cfg(test)]
mod tests;
