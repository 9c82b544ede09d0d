//! What a model gets to read, derived from turns: one function per wire dialect.
//!
//! This file says what is said, in which order and under which ids; the dialects below it only spell it. Each dialect also
//! has a `check` that shares no code with its renderer.
//!
//! **Prompt caches.** A provider reuses its work for the longest prefix that is the same as last time. So a sealed turn is
//! rendered from itself and from what stands before it, never from what comes after: its bytes are the same in every later
//! request as long as the turns before it stay. The note about its end is part of it and fixed when it is sealed; it is user
//! text after its last results, and the next user text is appended to the same message, so the message only ever grows at
//! its end. What stands before the text of the run at work (its preamble) is the same in all requests of that run, and in none
//! after it. Pictures are part of what a user said or a tool answered (`pictures`); who has read
//! them hands them in.

pub mod anthropic;
mod circumstances;
mod ids;
pub mod openai;
mod pictures;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use quell_protocol::{CallEnd, RunId};
use serde_json::{Map, Value};

use crate::turn::{
    AnsweredCall, Block, INTERRUPTED_MARK, Item, Message, PartialPolicy, Thinking, Turn, TurnDraft, blank,
    newest_compaction,
};
pub use circumstances::circumstances;
use circumstances::follows_a_superseded;
use ids::CallNames;
use pictures::Part;
pub use pictures::{MOST as MOST_PICTURES, Pictures, Shown, Sight, shown, wanted};

/// Stands where a provider demands text and there is none.
const NO_TEXT: &str = "(empty message)";
const NO_OUTPUT: &str = "(no output)";

/// Stands before a summary.
const SUMMARY: &str = "[The conversation before this point was long. This is a summary of it:]";

/// What a model call is made of.
#[derive(Debug, Clone, Copy)]
pub struct Prompt<'a> {
    /// Full name of the model that reads it. It gets back its own reasoning, which no other model takes.
    pub model: &'a str,
    /// The agent's prompt; may be empty.
    pub system: &'a str,
    /// Sealed turns, oldest first.
    pub turns: &'a [Arc<Turn>],
    /// The turn at work.
    pub draft: Option<&'a TurnDraft>,
    /// What stands before the user's own text in the message that the draft answers, while its run is at work. No turn holds it.
    pub preamble: Option<&'a str>,
    /// Whether it sees the pictures of users.
    pub sight: Sight<'a>,
}

/// How a list of messages breaks a dialect's rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("message {at}: {rule}")]
pub struct Violation {
    /// Which message, from 0.
    pub at: usize,
    /// What is wrong.
    pub rule: &'static str,
}

/// One side's words. Sides alternate, except that results stand between two assistant lines.
enum Line<'a> {
    User(Vec<Part<'a>>),
    Assistant(Message<Called<'a>>),
}

/// A call with its result, in words that every provider takes.
struct Called<'a> {
    id: String,
    tool: String,
    arguments: Map<String, Value>,
    output: String,
    /// The pictures of the result, for a reader who sees them.
    pictures: Vec<Part<'a>>,
    failed: bool,
}

/// What a dialect can spell.
struct Dialect {
    legal_id: fn(&str) -> bool,
    /// Reasoning that goes back to the model it is of.
    takes: fn(&Thinking) -> bool,
}

/// The lines of a prompt, neighbours of one side merged.
fn lines<'a>(prompt: &Prompt<'a>, dialect: &Dialect) -> Vec<Line<'a>> {
    let names = CallNames::new(dialect.legal_id);
    let past = pictures::past(prompt.turns, prompt.draft);
    let (reader, sight) = (prompt.model, prompt.sight);
    let mut script = Script { reader, takes: dialect.takes, sight, past, lines: Vec::new(), names };
    let (turns, summary) = seen(prompt.turns, prompt.draft);
    if let Some(summary) = summary {
        script.hear(&format!("{SUMMARY}\n\n{summary}"));
    }
    for turn in turns {
        if !turn.is_left_out() {
            script.add_turn(turn);
        }
        if let Some(note) = turn.note() {
            script.hear(note);
        }
    }
    if let Some(draft) = prompt.draft {
        if let Some(preamble) = prompt.preamble.filter(|text| !blank(text)) {
            // The words of a request that this message superseded stand together with it, as one message (row D7).
            match follows_a_superseded(turns) {
                true => script.hear_first(preamble),
                false => script.hear(preamble),
            }
        }
        script.add_items(draft.run(), &draft.as_sent());
    }
    script.lines
}

/// The turns that are seen as they are, and the summary in place of those before them.
fn seen<'a>(turns: &'a [Arc<Turn>], draft: Option<&'a TurnDraft>) -> (&'a [Arc<Turn>], Option<&'a str>) {
    let of_draft = draft.and_then(TurnDraft::compaction).map(|compaction| (turns.len(), compaction));
    match of_draft.or_else(|| newest_compaction(turns)) {
        Some((at, compaction)) => {
            let from = at.saturating_sub(compaction.kept);
            (turns.get(from..).unwrap_or_default(), Some(&compaction.summary))
        }
        None => (turns, None),
    }
}

/// How many of the last turns a prompt on these shows as they are.
#[must_use]
pub fn turns_seen(turns: &[Arc<Turn>], draft: Option<&TurnDraft>) -> usize {
    seen(turns, draft).0.len()
}

/// The summary that a prompt on these shows in place of older turns.
#[must_use]
pub fn summary<'a>(turns: &'a [Arc<Turn>], draft: Option<&'a TurnDraft>) -> Option<&'a str> {
    seen(turns, draft).1
}

struct Script<'a> {
    reader: &'a str,
    takes: fn(&Thinking) -> bool,
    sight: Sight<'a>,
    /// How many pictures from here on are not shown.
    past: usize,
    lines: Vec<Line<'a>>,
    names: CallNames,
}

impl<'a> Script<'a> {
    fn add_turn(&mut self, turn: &Turn) {
        self.add_items(turn.run_id(), turn.items());
        if let Some(partial) = turn.partial().filter(|partial| partial.policy == PartialPolicy::Keep)
            && !blank(&partial.text)
        {
            self.say(Message::new(Vec::new(), format!("{}\n\n{INTERRUPTED_MARK}", partial.text), Vec::new()));
        }
    }

    fn add_items(&mut self, run: &RunId, items: &[Item]) {
        let mut ordinal = 0;
        for item in items {
            match item {
                Item::User { text, .. } => self.hear_user(text),
                Item::Assistant(message) => {
                    let (names, sight, past) = (&mut self.names, self.sight, &mut self.past);
                    let said = message.clone().map_calls(|call| {
                        let id = names.name(run, ordinal, call.call.id.as_str());
                        ordinal += 1;
                        called(id, &call, sight, past)
                    });
                    self.say(said);
                }
            }
        }
    }

    fn hear(&mut self, text: &str) {
        let text = if blank(text) { NO_TEXT } else { text };
        self.hear_parts(vec![Part::Text(text.into())]);
    }

    fn hear_user(&mut self, text: &str) {
        match self.sight {
            Sight::Blind => self.hear(&pictures::without_pictures(text)),
            Sight::Of(_) if blank(text) => self.hear(text),
            Sight::Of(pictures) => {
                let parts = pictures::with_pictures(text, pictures, &mut self.past);
                self.hear_parts(parts);
            }
        }
    }

    fn hear_parts(&mut self, parts: Vec<Part<'a>>) {
        let Some(Line::User(before)) = self.lines.last_mut() else {
            self.lines.push(Line::User(parts));
            return;
        };
        for part in parts {
            match (before.last_mut(), part) {
                (Some(Part::Text(before)), Part::Text(text)) => append(before, &text),
                (_, part) => before.push(part),
            }
        }
    }

    /// As [`Script::hear`], before everything else that the user has said since the last answer.
    fn hear_first(&mut self, text: &str) {
        let said = match self.lines.last_mut() {
            Some(Line::User(said)) => std::mem::take(said),
            Some(Line::Assistant(_)) | None => Vec::new(),
        };
        self.hear(text);
        self.hear_parts(said);
    }

    fn say(&mut self, message: Message<Called<'a>>) {
        let own = message.model.as_deref() == Some(self.reader);
        let taken = |block: &Block<Called<'a>>| match block {
            Block::Thinking(thinking) => own && (self.takes)(thinking),
            Block::Text { .. } | Block::Call(_) => true,
        };
        let mut said = spoken(message.blocks.into_iter().filter(taken));
        let before = match self.lines.last_mut() {
            Some(Line::Assistant(before)) if before.calls().next().is_none() => before,
            Some(Line::Assistant(_) | Line::User(_)) | None => {
                self.lines.push(Line::Assistant(Message { model: None, at: None, blocks: said }));
                return;
            }
        };
        if let (Some(Block::Text { text: last }), Some(Block::Text { text: next })) =
            (before.blocks.last_mut(), said.first())
        {
            append(last, next);
            said.remove(0);
        }
        before.blocks.append(&mut said);
    }
}

/// The blocks as every provider takes them: what was said in one piece is one, no text is blank, and reasoning leads to
/// something.
fn spoken<'a>(blocks: impl Iterator<Item = Block<Called<'a>>>) -> Vec<Block<Called<'a>>> {
    let mut said: Vec<Block<Called<'a>>> = Vec::new();
    for block in blocks {
        match (said.last_mut(), block) {
            (Some(Block::Text { text: before }), Block::Text { text }) => before.push_str(&text),
            (_, block) => said.push(block),
        }
    }
    said.retain(|block| !matches!(block, Block::Text { text } if blank(text)));
    let end = said.iter().rposition(|block| !matches!(block, Block::Thinking(_))).map_or(0, |last| last + 1);
    said.truncate(end);
    said
}

fn append(before: &mut String, text: &str) {
    if !before.is_empty() && !blank(text) {
        before.push_str("\n\n");
    }
    if !blank(text) {
        before.push_str(text);
    }
}

fn called<'a>(id: String, call: &AnsweredCall, sight: Sight<'a>, past: &mut usize) -> Called<'a> {
    let result = &call.result;
    let (said, pictures) = match sight {
        Sight::Blind => (pictures::told(result), Vec::new()),
        Sight::Of(pictures) => (result.output.as_str().into(), pictures::of_result(result, pictures, past)),
    };
    Called {
        id,
        tool: tool_name(&call.call.tool),
        arguments: object(&call.call.arguments),
        output: if blank(&said) { NO_OUTPUT.into() } else { said.into_owned() },
        pictures,
        failed: result.end != CallEnd::Ok,
    }
}

/// Models make up names that no provider takes back: letters, digits, `_` and `-` are legal, 64 at the most.
fn tool_name(name: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let name: String = name.chars().take(64).map(legal).collect();
    if name.is_empty() { "unknown".into() } else { name }
}

/// Arguments have to be an object, whatever the model wrote.
fn object(arguments: &Value) -> Map<String, Value> {
    match arguments {
        Value::Object(fields) => fields.clone(),
        Value::Null => Map::new(),
        other => Map::from_iter([("input".to_owned(), other.clone())]),
    }
}
