//! What a stream says, spelled in the dialect of its request.

mod anthropic;
mod openai;

use super::behaviour::{End, LineEnd, UsageFrame};
use super::record::Recorded;
use crate::history::corpus::Dialect;

pub(super) use anthropic::signature;

/// Makes the frames of one stream. It remembers what it opened, so its order is that of the stream.
pub(super) trait Frames: Send {
    /// A piece of visible text.
    fn text(&mut self, text: &str) -> Vec<Vec<u8>>;
    /// A piece of reasoning.
    fn thinking(&mut self, text: &str) -> Vec<Vec<u8>>;
    /// Reasoning that only the provider can read; nothing where the dialect has none.
    fn redacted(&mut self, data: &str) -> Vec<Vec<u8>>;
    /// A call, its arguments in these pieces.
    fn call(&mut self, id: &str, name: &str, arguments: &[String]) -> Vec<Vec<u8>>;
    /// An error where something else should be.
    fn error(&mut self, message: &str) -> Vec<Vec<u8>>;
    /// A comment.
    fn comment(&self, text: &str) -> Vec<u8>;
    /// The end, as far as it is one.
    fn ending(&mut self, ending: &Ending<'_>) -> Vec<Vec<u8>>;
}

/// How a stream ends.
pub(super) struct Ending<'a> {
    /// What of the end is left out.
    pub(super) end: End,
    /// The reason, where the script names one.
    pub(super) reason: Option<&'a str>,
}

/// The frames of an answer to this request, with these counts of tokens.
pub(super) fn frames(request: &Recorded, line_end: LineEnd, usage: (UsageFrame, (u64, u64))) -> Box<dyn Frames> {
    match request.dialect {
        Dialect::OpenAi => Box::new(openai::Chunks::new(request, line_end, usage)),
        Dialect::Anthropic => Box::new(anthropic::Blocks::new(request, line_end, usage)),
    }
}

/// The lines of one event.
fn event(line_end: LineEnd, name: Option<&str>, data: &str) -> Vec<u8> {
    let end = line_end.as_str();
    let name = name.map(|name| format!("event: {name}{end}")).unwrap_or_default();
    format!("{name}data: {data}{end}{end}").into_bytes()
}

fn comment(line_end: LineEnd, text: &str) -> Vec<u8> {
    let end = line_end.as_str();
    format!(": {text}{end}{end}").into_bytes()
}
