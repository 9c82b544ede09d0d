//! Strategies and checks for the tests of all parsers.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::ClientConversation;
use crate::prompt::{Prompt, Vision};
use crate::turn::samples::{READER_MODEL, conversation, run_id, story, turns};
use crate::turn::{AnsweredCall, CallResult, ModelMessage, Turn, TurnDraft};

/// A history of turns with a request that is being answered.
#[derive(Debug)]
pub(super) struct RenderedConversation {
    turns: Vec<Arc<Turn>>,
    draft: TurnDraft,
}

impl RenderedConversation {
    pub(super) fn prompt(&self) -> Prompt<'_> {
        prompt("Be brief.", &self.turns, &self.draft)
    }

    pub(super) fn model(&self) -> &'static str {
        READER_MODEL
    }
}

fn prompt<'a>(system: &'a str, turns: &'a [Arc<Turn>], draft: &'a TurnDraft) -> Prompt<'a> {
    Prompt {
        model: READER_MODEL,
        system,
        turns,
        draft: Some(draft),
        run_context: None,
        time_zone: None,
        vision: Vision::TextOnly,
    }
}

pub(super) fn rendered_conversation() -> impl Strategy<Value = RenderedConversation> {
    (conversation(), story())
        .prop_map(|(ended, story)| RenderedConversation { turns: turns(&ended), draft: story.draft("run-now") })
}

/// The draft of a conversation, as an agent continues it.
fn draft_of(conversation: &ClientConversation) -> TurnDraft {
    let mut draft = TurnDraft::new(run_id("run-next"), conversation.text.clone());
    for message in &conversation.continuation {
        let results: Vec<CallResult> = message.calls().map(|call| call.result.clone()).collect();
        let message: ModelMessage<AnsweredCall> = message.clone();
        let calls = draft.finish_message(message.map_calls(|answered| answered.call));
        calls.iter().zip(results).for_each(|(call, result)| draft.finish_call(&call.id, result));
    }
    draft
}

/// A parsed conversation makes the same request as the one that was parsed.
pub(super) fn assert_same_conversation(
    parsed: &ClientConversation,
    expected: &RenderedConversation,
    render: impl Fn(&Prompt<'_>) -> Value,
) {
    let draft = draft_of(parsed);
    let again = prompt(&parsed.instructions, &parsed.turns, &draft);
    assert_eq!(render(&again), render(&expected.prompt()));
}

/// Any JSON, mostly with the words of the formats.
pub(super) fn any_json() -> impl Strategy<Value = Value> {
    let words = proptest::sample::select(vec![
        "role",
        "content",
        "type",
        "text",
        "user",
        "assistant",
        "tool",
        "system",
        "tool_calls",
        "tool_use",
        "tool_result",
        "image_url",
        "image",
        "source",
        "url",
        "id",
        "name",
        "arguments",
        "function",
        "messages",
        "model",
        "tools",
        "thinking",
        "signature",
        "input",
        "max_tokens",
        "tool_use_id",
        "tool_call_id",
        "base64",
        "data",
        "media_type",
        "reasoning",
        "message",
        "function_call",
        "function_call_output",
        "call_id",
        "output",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(|number| json!(number)),
        any::<f64>().prop_map(|number| json!(number)),
        words.clone().prop_map(|word| json!(word)),
        ".{0,8}".prop_map(Value::String),
    ];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        let field = (words.clone(), inner.clone()).prop_map(|(name, value)| (name.to_owned(), value));
        prop_oneof![
            proptest::collection::vec(inner, 0..5).prop_map(Value::Array),
            proptest::collection::vec(field, 0..6).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}
