//! The reply sanitiser (row D12): takes out of a reply what models write for their host and not for the reader - calls, results
//! and thoughts as text - and leaves alone what they write about such things.
//!
//! A place is protocol because of its form, never because of a word near it:
//!
//! - a tag with a call in it (`<tool_call>{...}</tool_call>`, `<function_calls><invoke name="...">...`), also torn or unclosed;
//! - a JSON value on lines of its own that is a call of a tool *that exists*, a message with such calls, or a tool's answer;
//! - a fence whose language is one of protocol (`tool_call`) and whose body is a call;
//! - `<tool_result>` and `<think>` elements that stand for themselves, and a leading `[Used tools: ...]`;
//! - what has that form but could be an example (a call in a `json` fence, a call in tags without JSON, a message that calls
//!   tools which do not exist): only if the reply is nothing else.
//!
//! Code is never touched: fences, spans between backticks, indented code.
//!
//! What is different from the gateway that these rules come from, and why:
//!
//! - There the word "example" (or one of a few Chinese words) near a call saves it. An answer in another language was eaten,
//!   and a leaked call next to such a word was shown. Here an example is what stands in code, or beside text that is read.
//! - There a literal `<think>` anywhere, in code too, deleted all that followed. Here a thought begins the reply or stands on
//!   lines of its own, and one that is not closed takes the rest with it only at the beginning of the reply.
//! - There any text between `<tool_call>` and its end was deleted, sentences about the two tags too, while tags with attributes
//!   (`<invoke name="shell">`) stayed. Here the content decides.
//! - There a tool's definition (`name` and a schema under `parameters`) counted as a call. Here it does not.
//! - There runs of empty lines shrank everywhere. Here only where something was taken out.
//! - There narration ("Let me check ...") always went: in English only, and with it sentences that were part of the answer.
//!   Here it stays unless it is asked for.
//!
//! Time and space are linear in the length of the text, whatever it holds. It knows nothing of networks, markup or limits of
//! length.

mod call;
mod code;
mod elements;
mod fence;
mod headers;
mod json;
mod narration;
mod scan;
mod tags;
#[cfg(test)]
mod tests;
mod work;

use std::collections::BTreeSet;

use scan::{More, Seen, When, look};

/// What to go by.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// The tools that exist, in lower case.
    pub tools: &'a BTreeSet<String>,
    /// What becomes of narration.
    pub narration: Narration,
}

/// What becomes of lines at the beginning by which a model says what it is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Narration {
    /// They stay.
    #[default]
    Keep,
    /// Those in English go, if something else remains.
    Drop,
}

/// A reply that can be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cleaned {
    /// What is left. Empty only if there is a reason.
    pub text: String,
    /// Why nothing is left: something readable has to be said instead.
    pub instead: Option<Why>,
}

/// Why nothing of a reply is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It was nothing but protocol.
    OnlyProtocol,
    /// There was nothing in it.
    Nothing,
}

/// What is shown of a reply that is complete. Time is linear in its length.
#[must_use]
pub fn finished(text: &str, rules: &Rules<'_>) -> Cleaned {
    if text.trim().is_empty() {
        return Cleaned { text: String::new(), instead: Some(Why::Nothing) };
    }
    let left = without_protocol(text, &look(text, rules, More::No));
    let left = match rules.narration {
        Narration::Keep => &left,
        Narration::Drop => narration::dropped(&left).unwrap_or(&left),
    };
    let text = trimmed(left).to_owned();
    let instead = text.is_empty().then_some(Why::OnlyProtocol);
    Cleaned { text, instead }
}

/// What may be shown of a reply while it is being written: of everything so far, that which no further text makes protocol.
/// What is shown once stays, unless code turns out to end where nobody could know. Time is linear in the length.
#[must_use]
pub fn so_far(text: &str, rules: &Rules<'_>) -> String {
    let seen = look(text, rules, More::MayCome);
    let left = without_protocol(text, &seen);
    let left = match rules.narration {
        Narration::Keep => &left,
        Narration::Drop => narration::dropped_so_far(&left),
    };
    trimmed(left).to_owned()
}

impl Rules<'_> {
    fn knows(&self, tool: &str) -> bool {
        self.tools.contains(&tool.to_lowercase())
    }
}

fn without_protocol(text: &str, seen: &Seen) -> String {
    let mut left = Left { text: String::with_capacity(seen.until), is_joint: false };
    let mut from = 0;
    for cut in seen.cuts.iter().filter(|cut| cut.when == When::Always || !seen.has_text) {
        left.push(&text[from..cut.range.start]);
        left.is_joint = true;
        if let Some(said) = &cut.instead {
            left.push(said);
            left.is_joint = true;
        }
        from = cut.range.end;
    }
    left.push(&text[from..seen.until]);
    left.text
}

/// What is left of a text, put together so that no hole shows.
struct Left {
    text: String,
    is_joint: bool,
}

impl Left {
    fn push(&mut self, piece: &str) {
        work::count(piece.len());
        let inner = piece.trim_start();
        if !self.is_joint || inner.is_empty() {
            self.text.push_str(piece);
            return;
        }
        let kept = self.text.trim_end().len();
        let (before, after) = (&self.text[kept..], &piece[..piece.len() - inner.len()]);
        let lines = line_breaks(before).max(line_breaks(after));
        let is_spaced = !before.is_empty() || !after.is_empty();
        let indentation = after.rfind('\n').map_or("", |at| &after[at + 1..]);
        self.text.truncate(kept);
        if kept > 0 {
            self.text.push_str(match lines {
                0 if is_spaced => " ",
                0 => "",
                1 => "\n",
                _ => "\n\n",
            });
        }
        self.text.push_str(indentation);
        self.text.push_str(inner);
        self.is_joint = false;
    }
}

fn line_breaks(blanks: &str) -> usize {
    blanks.bytes().filter(|byte| *byte == b'\n').count()
}

/// Without empty lines at the beginning and blanks at the end; the first line keeps its indentation, which can mean code.
fn trimmed(text: &str) -> &str {
    let start = text.len() - text.trim_start().len();
    let line = text[..start].rfind('\n').map_or(0, |at| at + 1);
    text[line..].trim_end()
}
