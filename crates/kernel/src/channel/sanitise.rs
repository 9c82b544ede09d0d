//! Removes tool-call protocol, tool results and reasoning that a model wrote as reply text.
//!
//! Text that only mentions such things stays. A span counts as protocol because of its form, never because of a word
//! near it:
//!
//! - a tag that contains a call (`<tool_call>{...}</tool_call>`, `<function_calls><invoke name="...">...`), also if it
//!   is truncated or unclosed;
//! - a JSON value on lines of its own that is a call of a tool *that exists*, a message with such calls, or a tool
//!   result;
//! - a code fence whose language is a protocol language (`tool_call`) and whose body is a call;
//! - `<tool_result>` and `<think>` elements that are set off from the text, and a leading `[Used tools: ...]`;
//! - spans of such a form that could be an example (a call in a `json` fence, a call in tags without JSON, a message
//!   that calls tools which do not exist): only if the reply contains nothing else.
//!
//! Code is never changed: fences, code spans between backticks, indented code.
//!
//! These rules come from another gateway. The differences, and the reason for each:
//!
//! - The gateway kept a call if the word "example" (or one of a few Chinese words) was near it. It deleted answers in
//!   other languages, and showed leaked calls next to such a word. Here an example is a call in code, or beside other
//!   text.
//! - The gateway deleted everything after a literal `<think>`, in code too. Here reasoning begins the reply or is on
//!   lines of its own. If it is not closed, the rest is removed only at the beginning of the reply.
//! - The gateway deleted any text between `<tool_call>` and its closing tag, sentences about the two tags too, but kept
//!   tags with attributes (`<invoke name="shell">`). Here the content decides.
//! - The gateway took a tool definition (`name` and a schema under `parameters`) for a call. Here it is not one.
//! - The gateway shortened runs of empty lines everywhere. Here only where something was removed.
//! - The gateway always removed narration ("Let me check ..."): in English only, and with it sentences of the answer.
//!   Here narration stays unless the policy asks for its removal.
//!
//! Time and space are linear in the length of the text, for any input, but for binary searches. This module knows no
//! networks, markup or length limits.

mod fences;
mod headers;
mod json;
mod markdown_code;
mod narration;
mod reply_scanner;
mod tag_content;
mod tags;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use reply_scanner::{RemovalRule, ScannedReply, scan_reply};

#[derive(Debug, Clone, Copy)]
pub struct SanitiserRules<'a> {
    /// Names of the tools that exist, in lower case.
    pub tools: &'a BTreeSet<String>,
    pub narration_policy: NarrationPolicy,
}

/// What to do with lines at the beginning in which a model announces what it is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NarrationPolicy {
    #[default]
    Keep,
    /// Remove English narration, unless nothing else would remain.
    Drop,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SanitisedReply {
    /// Empty if and only if `empty_reason` is set.
    pub text: String,
    /// If set, the caller has to show a text of its own instead.
    pub empty_reason: Option<EmptyReplyReason>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmptyReplyReason {
    /// The reply contained nothing but protocol.
    OnlyProtocol,
    Blank,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplyCompleteness {
    Complete,
    /// More text may follow.
    Partial,
}

/// Sanitises a complete reply, in time linear in its length.
#[must_use]
pub fn sanitise_reply(text: &str, rules: &SanitiserRules<'_>) -> SanitisedReply {
    if text.trim().is_empty() {
        return SanitisedReply { text: String::new(), empty_reason: Some(EmptyReplyReason::Blank) };
    }
    let rest = remove_protocol(text, &scan_reply(text, rules, ReplyCompleteness::Complete));
    let rest = match rules.narration_policy {
        NarrationPolicy::Keep => &rest,
        NarrationPolicy::Drop => narration::strip_narration(&rest).unwrap_or(&rest),
    };
    let text = trim_reply(rest).to_owned();
    let empty_reason = text.is_empty().then_some(EmptyReplyReason::OnlyProtocol);
    SanitisedReply { text, empty_reason }
}

/// Sanitises a reply that is still streaming: returns the text that no further text can turn into protocol. Keeps
/// narration. Later results begin with earlier ones, unless a code span turns out to end at an unpredictable place.
/// Takes time linear in the length.
#[must_use]
pub fn sanitise_partial_reply(text: &str, tools: &BTreeSet<String>) -> String {
    let rules = SanitiserRules { tools, narration_policy: NarrationPolicy::Keep };
    let rest = remove_protocol(text, &scan_reply(text, &rules, ReplyCompleteness::Partial));
    trim_reply(&rest).to_owned()
}

impl SanitiserRules<'_> {
    fn is_known_tool(&self, tool: &str) -> bool {
        self.tools.contains(&tool.to_lowercase())
    }
}

fn remove_protocol(text: &str, scanned: &ScannedReply) -> String {
    let mut rest = ReplyJoiner { text: String::with_capacity(scanned.decided_until), after_cut: false };
    let mut from = 0;
    for cut in scanned.cuts.iter().filter(|cut| cut.removal == RemovalRule::Always || !scanned.has_text) {
        rest.push(&text[from..cut.range.start]);
        rest.after_cut = true;
        if let Some(replacement) = &cut.replacement {
            rest.push(replacement);
            rest.after_cut = true;
        }
        from = cut.range.end;
    }
    rest.push(&text[from..scanned.decided_until]);
    rest.text
}

/// Joins the remaining pieces of a text, and adjusts the whitespace around the cuts.
struct ReplyJoiner {
    text: String,
    after_cut: bool,
}

impl ReplyJoiner {
    fn push(&mut self, piece: &str) {
        let inner = piece.trim_start();
        if !self.after_cut || inner.is_empty() {
            self.text.push_str(piece);
            return;
        }
        let kept = self.text.trim_end().len();
        let (before, after) = (&self.text[kept..], &piece[..piece.len() - inner.len()]);
        let lines = count_line_breaks(before).max(count_line_breaks(after));
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
        self.after_cut = false;
    }
}

fn count_line_breaks(blanks: &str) -> usize {
    blanks.bytes().filter(|byte| *byte == b'\n').count()
}

/// Removes leading empty lines and trailing whitespace. The first line keeps its indentation, which can mean code.
fn trim_reply(text: &str) -> &str {
    let start = text.len() - text.trim_start().len();
    let line = text[..start].rfind('\n').map_or(0, |at| at + 1);
    text[line..].trim_end()
}
