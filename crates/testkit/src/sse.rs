//! Decode server-sent events as the standard defines them: fields, comments, any line end, frames split anywhere.

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TestSseFrame {
    pub(crate) id: String,
    /// Empty if not named.
    pub(crate) event: String,
    pub(crate) data: String,
}

#[derive(Debug, Default)]
pub(crate) struct TestSseDecoder {
    line: Vec<u8>,
    after_cr: bool,
    id: String,
    event: String,
    data: Vec<String>,
}

impl TestSseDecoder {
    /// Decodes bytes and returns the frames that they complete.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<TestSseFrame> {
        let mut frames = Vec::new();
        for byte in bytes {
            let second_half_of_crlf = std::mem::replace(&mut self.after_cr, *byte == b'\r') && *byte == b'\n';
            match byte {
                b'\n' if second_half_of_crlf => {}
                b'\n' | b'\r' => frames.extend(self.finish_line()),
                byte => self.line.push(*byte),
            }
        }
        frames
    }

    fn finish_line(&mut self) -> Option<TestSseFrame> {
        let bytes = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&bytes);
        if line.is_empty() {
            let (event, data) = (std::mem::take(&mut self.event), std::mem::take(&mut self.data));
            return (!data.is_empty()).then(|| TestSseFrame { id: self.id.clone(), event, data: data.join("\n") });
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
