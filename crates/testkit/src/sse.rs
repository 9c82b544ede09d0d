//! Reads event streams as the standard says: fields, comments, line ends of any kind, frames cut anywhere.

/// One event as dispatched.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Frame {
    /// The last id seen.
    pub(crate) id: String,
    /// Its type; empty when not named.
    pub(crate) event: String,
    /// Its data lines, joined.
    pub(crate) data: String,
}

/// Makes frames out of bytes.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    line: Vec<u8>,
    after_cr: bool,
    id: String,
    event: String,
    data: Vec<String>,
}

impl Decoder {
    /// Takes bytes and returns the frames they complete.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<Frame> {
        let mut frames = Vec::new();
        for byte in bytes {
            let second_half_of_crlf = std::mem::replace(&mut self.after_cr, *byte == b'\r') && *byte == b'\n';
            match byte {
                b'\n' if second_half_of_crlf => {}
                b'\n' | b'\r' => frames.extend(self.line_ended()),
                byte => self.line.push(*byte),
            }
        }
        frames
    }

    fn line_ended(&mut self) -> Option<Frame> {
        let bytes = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&bytes);
        if line.is_empty() {
            let (event, data) = (std::mem::take(&mut self.event), std::mem::take(&mut self.data));
            return (!data.is_empty()).then(|| Frame { id: self.id.clone(), event, data: data.join("\n") });
        }
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
        match name {
            "id" => self.id = value,
            "event" => self.event = value,
            "data" => self.data.push(value),
            // Comments and unknown fields.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_the_same_however_the_bytes_are_cut_and_lines_end() {
        let lines = [
            "\u{fc}: comment",
            "id: 7",
            "event: a",
            "data: one",
            "data:two",
            "",
            "retry: 5",
            "",
            "data: three",
            "",
            "data: cut",
        ];
        let frame = |event: &str, data: &str| Frame { id: "7".into(), event: event.into(), data: data.into() };
        for end in ["\n", "\r\n", "\r"] {
            let text = lines.join(end);
            for size in 1..=text.len() {
                let mut decoder = Decoder::default();
                let frames: Vec<Frame> = text.as_bytes().chunks(size).flat_map(|piece| decoder.push(piece)).collect();
                assert_eq!(frames, [frame("a", "one\ntwo"), frame("", "three")], "{end:?} {size}");
            }
        }
    }
}
