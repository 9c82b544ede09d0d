//! Builds the messages of a model request from turns, independent of the provider.
//!
//! This file decides content, order and ids; a dialect only renders the lines that [`build_lines`] returns. The
//! dialects below it are tested here with random histories. Each also has a `check` that shares no code with its
//! renderer. A renderer of another dialect may stand elsewhere.
//!
//! **Prompt caches.** A provider reuses its work for the longest prefix that is the same as last time. So a sealed turn
//! is rendered from itself and from earlier turns, never from later ones: its bytes are the same in every later request
//! as long as the turns before it stay. The note about its end is part of it and fixed when it is sealed. The note is
//! user text after the last results, and the next user text is appended to the same message, so that the message only
//! grows at its end.
//!
//! The run context, the text before the user's message, is the same in all requests of its run, and in none after it.
//! Images are part of a user's text or of a tool result. The caller loads them and passes them as an [`ImageSet`].

pub mod anthropic;
mod call_ids;
mod channel_context;
pub mod gemini;
mod images;
pub mod openai;
pub mod responses;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use quell_protocol::{CallEnd, RunId};
use serde_json::{Map, Value};

use crate::turn::{
    AnsweredCall, INTERRUPTED_MARK, MessageBlock, ModelMessage, PartialPolicy, Thinking, Turn, TurnDraft, TurnItem,
    is_blank, newest_compaction,
};
use call_ids::CallIdAllocator;
pub use channel_context::channel_context;
use channel_context::follows_superseded_turn;
pub use images::{ImageSet, ImageUsage, MAX_REQUEST_IMAGES, PromptPart, Vision, image_usage, wanted_image_sources};

/// Placeholder where a provider requires text and there is none.
const EMPTY_TEXT: &str = "(empty message)";
const EMPTY_OUTPUT: &str = "(no output)";

const SUMMARY_HEADING: &str = "[The conversation before this point was long. This is a summary of it:]";

#[derive(Debug, Clone, Copy)]
pub struct Prompt<'a> {
    /// Full name of the model. It gets its own reasoning back; no other model accepts it.
    pub model: &'a str,
    /// System prompt of the agent; may be empty.
    pub system: &'a str,
    /// Sealed turns, oldest first.
    pub turns: &'a [Arc<Turn>],
    /// The turn of the run that is active.
    pub draft: Option<&'a TurnDraft>,
    /// Text before the user's own text in the message that the draft answers. It is stored in no turn.
    pub run_context: Option<&'a str>,
    /// The name of the machine's time zone. With it, each message of a user begins with the time at which it was sent.
    /// Stored times never change, so neither do the bytes of earlier messages.
    pub time_zone: Option<&'a str>,
    pub vision: Vision<'a>,
}

/// A violation of the rules of a dialect by a list of messages.
#[cfg(test)]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("message {at}: {rule}")]
pub(crate) struct DialectViolation {
    /// Index of the message, from 0.
    pub at: usize,
    pub rule: &'static str,
}

/// One message of a prompt. Sides alternate, except that results come between two assistant lines.
#[derive(Debug)]
pub enum PromptLine<'a> {
    User(Vec<PromptPart<'a>>),
    Assistant(ModelMessage<PromptCall<'a>>),
}

/// A call with its result, in a form that every provider accepts.
#[derive(Debug)]
pub struct PromptCall<'a> {
    /// Unique in the prompt, and legal in the dialect.
    pub id: String,
    /// At most 64 letters, digits, `_` and `-`.
    pub tool: String,
    pub arguments: Map<String, Value>,
    /// Never blank.
    pub output: String,
    /// Images of the result, for a model that sees them.
    pub pictures: Vec<PromptPart<'a>>,
    pub failed: bool,
}

/// What a dialect accepts in a prompt.
#[derive(Debug)]
pub struct DialectRules {
    pub is_legal_call_id: fn(&str) -> bool,
    /// Whether reasoning is sent back to the model that wrote it.
    pub accepts_thinking: fn(&Thinking) -> bool,
}

/// Builds the lines of a prompt. Merges adjacent lines of one side.
pub fn build_lines<'a>(prompt: &Prompt<'a>, dialect: &DialectRules) -> Vec<PromptLine<'a>> {
    let mut builder = PromptBuilder {
        model: prompt.model,
        accepts_thinking: dialect.accepts_thinking,
        vision: prompt.vision,
        time_zone: prompt.time_zone,
        hidden_images: images::hidden_image_count(prompt.turns, prompt.draft),
        lines: Vec::new(),
        call_ids: CallIdAllocator::new(dialect.is_legal_call_id),
    };
    let (turns, summary) = visible_turns(prompt.turns, prompt.draft);
    if let Some(summary) = summary {
        builder.push_user_text(&format!("{SUMMARY_HEADING}\n\n{summary}"));
    }
    for turn in turns {
        if !turn.is_hidden_from_models() {
            builder.add_turn(turn);
        }
        if let Some(note) = turn.note_for_models() {
            builder.push_user_text(note);
        }
    }
    if let Some(draft) = prompt.draft {
        if let Some(run_context) = prompt.run_context.filter(|text| !is_blank(text)) {
            // The text of a superseded request and the new text form one message, so the context goes before both.
            match follows_superseded_turn(turns) {
                true => builder.prepend_user_text(run_context),
                false => builder.push_user_text(run_context),
            }
        }
        builder.add_items(draft.run_id(), &draft.items_for_model());
    }
    builder.lines
}

/// The turns that a prompt shows in full, and the summary that replaces those before them.
fn visible_turns<'a>(turns: &'a [Arc<Turn>], draft: Option<&'a TurnDraft>) -> (&'a [Arc<Turn>], Option<&'a str>) {
    let of_draft = draft.and_then(TurnDraft::compaction).map(|compaction| (turns.len(), compaction));
    match of_draft.or_else(|| newest_compaction(turns)) {
        Some((at, compaction)) => {
            let from = at.saturating_sub(compaction.kept);
            (turns.get(from..).unwrap_or_default(), Some(&compaction.summary))
        }
        None => (turns, None),
    }
}

/// How many of the last turns a prompt shows in full.
pub fn visible_turn_count(turns: &[Arc<Turn>], draft: Option<&TurnDraft>) -> usize {
    visible_turns(turns, draft).0.len()
}

/// The summary that a prompt shows in place of older turns.
pub fn visible_summary<'a>(turns: &'a [Arc<Turn>], draft: Option<&'a TurnDraft>) -> Option<&'a str> {
    visible_turns(turns, draft).1
}

struct PromptBuilder<'a> {
    model: &'a str,
    accepts_thinking: fn(&Thinking) -> bool,
    vision: Vision<'a>,
    time_zone: Option<&'a str>,
    /// How many of the next images are not shown.
    hidden_images: usize,
    lines: Vec<PromptLine<'a>>,
    call_ids: CallIdAllocator,
}

impl<'a> PromptBuilder<'a> {
    fn add_turn(&mut self, turn: &Turn) {
        self.add_items(turn.run_id(), turn.items());
        if let Some(partial) = turn.partial().filter(|partial| partial.policy == PartialPolicy::Keep)
            && !is_blank(&partial.text)
        {
            self.push_assistant(ModelMessage::new(
                Vec::new(),
                format!("{}\n\n{INTERRUPTED_MARK}", partial.text),
                Vec::new(),
            ));
        }
    }

    fn add_items(&mut self, run: &RunId, items: &[TurnItem]) {
        let mut ordinal = 0;
        for item in items {
            match item {
                TurnItem::User { text, at } => {
                    if let Some(line) = self.time_zone.and_then(|zone| sent_time_line(at.as_deref()?, zone)) {
                        self.push_user_text(&line);
                    }
                    self.push_user_message(text);
                }
                TurnItem::Assistant(message) => {
                    let (call_ids, vision, hidden_images) = (&mut self.call_ids, self.vision, &mut self.hidden_images);
                    let message = message.clone().map_calls(|call| {
                        let id = call_ids.allocate(run, ordinal, call.call.id.as_str());
                        ordinal += 1;
                        build_call(id, &call, vision, hidden_images)
                    });
                    self.push_assistant(message);
                }
            }
        }
    }

    fn push_user_text(&mut self, text: &str) {
        let text = if is_blank(text) { EMPTY_TEXT } else { text };
        self.push_user_parts(vec![PromptPart::Text(text.into())]);
    }

    fn push_user_message(&mut self, text: &str) {
        match self.vision {
            Vision::TextOnly => self.push_user_text(&images::text_without_images(text)),
            Vision::Images(_) if is_blank(text) => self.push_user_text(text),
            Vision::Images(images) => {
                let parts = images::text_with_images(text, images, &mut self.hidden_images);
                self.push_user_parts(parts);
            }
        }
    }

    fn push_user_parts(&mut self, parts: Vec<PromptPart<'a>>) {
        let Some(PromptLine::User(before)) = self.lines.last_mut() else {
            self.lines.push(PromptLine::User(parts));
            return;
        };
        for part in parts {
            match (before.last_mut(), part) {
                (Some(PromptPart::Text(before)), PromptPart::Text(text)) => append_paragraph(before, &text),
                (_, part) => before.push(part),
            }
        }
    }

    /// Like `push_user_text`, but before all other user text since the last answer.
    fn prepend_user_text(&mut self, text: &str) {
        let parts = match self.lines.last_mut() {
            Some(PromptLine::User(parts)) => std::mem::take(parts),
            Some(PromptLine::Assistant(_)) | None => Vec::new(),
        };
        self.push_user_text(text);
        self.push_user_parts(parts);
    }

    fn push_assistant(&mut self, message: ModelMessage<PromptCall<'a>>) {
        let is_own = message.model.as_deref() == Some(self.model);
        let is_accepted = |block: &MessageBlock<PromptCall<'a>>| match block {
            MessageBlock::Thinking(thinking) => is_own && (self.accepts_thinking)(thinking),
            MessageBlock::Text { .. } | MessageBlock::Call(_) => true,
        };
        let mut blocks = normalise_blocks(message.blocks.into_iter().filter(is_accepted));
        let before = match self.lines.last_mut() {
            Some(PromptLine::Assistant(before)) if before.calls().next().is_none() => before,
            Some(PromptLine::Assistant(_) | PromptLine::User(_)) | None => {
                self.lines.push(PromptLine::Assistant(ModelMessage { blocks, ..ModelMessage::default() }));
                return;
            }
        };
        if !ends_with_signed_text(&before.blocks)
            && let (Some(MessageBlock::Text { text: last }), Some(MessageBlock::Text { text: next })) =
                (before.blocks.last_mut(), blocks.first())
        {
            append_paragraph(last, next);
            blocks.remove(0);
        }
        before.blocks.append(&mut blocks);
    }
}

/// Normalises blocks for every provider: merges adjacent texts, and removes blank texts, trailing reasoning, and
/// signatures whose block is gone. A text with a signature of its own keeps its bytes.
fn normalise_blocks<'a>(
    blocks: impl Iterator<Item = MessageBlock<PromptCall<'a>>>,
) -> Vec<MessageBlock<PromptCall<'a>>> {
    let mut merged: Vec<MessageBlock<PromptCall<'a>>> = Vec::new();
    let mut signature = None;
    for block in blocks {
        match block {
            MessageBlock::Thinking(block @ Thinking::BlockSignature { .. }) => signature = Some(block),
            // The signature belongs to this text, so it goes with it.
            MessageBlock::Text { text } if signature.is_some() && is_blank(&text) => signature = None,
            MessageBlock::Thinking(thinking) => {
                signature = None;
                merged.push(MessageBlock::Thinking(thinking));
            }
            MessageBlock::Text { text } if signature.is_none() && !ends_with_signed_text(&merged) => {
                match merged.last_mut() {
                    Some(MessageBlock::Text { text: before }) => before.push_str(&text),
                    _ => merged.push(MessageBlock::Text { text }),
                }
            }
            block => {
                merged.extend(signature.take().map(MessageBlock::Thinking));
                merged.push(block);
            }
        }
    }
    merged.retain(|block| !matches!(block, MessageBlock::Text { text } if is_blank(text)));
    let end = merged.iter().rposition(|block| !matches!(block, MessageBlock::Thinking(_))).map_or(0, |last| last + 1);
    merged.truncate(end);
    merged
}

fn ends_with_signed_text(blocks: &[MessageBlock<PromptCall<'_>>]) -> bool {
    matches!(blocks, [.., MessageBlock::Thinking(Thinking::BlockSignature { .. }), MessageBlock::Text { .. }])
}

/// The time of a message, for the model. `at` is UTC in RFC 3339 format.
fn sent_time_line(at: &str, time_zone: &str) -> Option<String> {
    let (date, time) = at.split_once('T')?;
    let (date, time) = (date.get(..10)?, time.get(..8)?);
    Some(format!("[Sent {date} {time} UTC; the time zone here is {time_zone}]"))
}

fn append_paragraph(before: &mut String, text: &str) {
    if !before.is_empty() && !is_blank(text) {
        before.push_str("\n\n");
    }
    if !is_blank(text) {
        before.push_str(text);
    }
}

fn build_call<'a>(id: String, call: &AnsweredCall, vision: Vision<'a>, hidden: &mut usize) -> PromptCall<'a> {
    let result = &call.result;
    let (output, pictures) = match vision {
        Vision::TextOnly => (images::result_text(result), Vec::new()),
        Vision::Images(images) => (result.output.as_str().into(), images::result_images(result, images, hidden)),
    };
    PromptCall {
        id,
        tool: legal_tool_name(&call.call.tool),
        arguments: arguments_object(&call.call.arguments),
        output: if is_blank(&output) { EMPTY_OUTPUT.into() } else { output.into_owned() },
        pictures,
        failed: result.end != CallEnd::Ok,
    }
}

/// Replaces illegal characters: models invent names that providers refuse. Legal are at most 64 letters, digits, `_`
/// and `-`.
fn legal_tool_name(name: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let name: String = name.chars().take(64).map(legal).collect();
    if name.is_empty() { "unknown".into() } else { name }
}

/// Converts arguments of any JSON type to an object, which providers require.
fn arguments_object(arguments: &Value) -> Map<String, Value> {
    match arguments {
        Value::Object(fields) => fields.clone(),
        Value::Null => Map::new(),
        other => Map::from_iter([("input".to_owned(), other.clone())]),
    }
}
