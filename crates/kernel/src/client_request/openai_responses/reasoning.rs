//! The reasoning of any model as the `encrypted_content` of a reasoning item.
//!
//! Clients send it back unread. It names the model, because no other one accepts it, and its place in the message.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::turn::{MessageBlock, ModelMessage, Thinking};

/// Stands before reasoning that Quell wrote, so that it differs from that of a provider.
const PREFIX: &str = "quell1.";

/// The reasoning of a message at one place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SealedReasoning {
    pub(super) model: String,
    /// True for the reasoning with which the message begins.
    #[serde(rename = "leading")]
    pub(super) is_leading: bool,
    pub(super) blocks: Vec<Thinking>,
}

/// A part of a message with the reasoning that stands before it.
#[derive(Debug, Clone, PartialEq)]
pub struct SealedBlocks<C> {
    /// What the message began with, to send back; empty if nothing can be sent back.
    pub leading: Vec<Thinking>,
    /// The calls, each with the reasoning before it.
    pub calls: Vec<(Vec<Thinking>, C)>,
}

/// Splits the message of a model into the reasoning at its beginning and its calls with theirs.
pub fn seal_blocks<C>(message: ModelMessage<C>) -> SealedBlocks<C> {
    let mut sealed = SealedBlocks { leading: Vec::new(), calls: Vec::new() };
    let mut pending = Vec::new();
    let mut has_content = false;
    for block in message.blocks {
        match block {
            MessageBlock::Thinking(thinking) if thinking.is_returnable() => pending.push(thinking),
            MessageBlock::Thinking(_) => {}
            MessageBlock::Text { .. } if !has_content => {
                sealed.leading.append(&mut pending);
                has_content = true;
            }
            // Reasoning between a text and another one has no item to stand in.
            MessageBlock::Text { .. } => pending.clear(),
            MessageBlock::Call(call) => {
                // A signature belongs to the block that follows it.
                let is_signature = |thinking: &Thinking| matches!(thinking, Thinking::BlockSignature { .. });
                if !has_content && !pending.iter().any(is_signature) {
                    sealed.leading.append(&mut pending);
                }
                has_content = true;
                sealed.calls.push((std::mem::take(&mut pending), call));
            }
        }
    }
    sealed
}

/// The reasoning as clients send it back; `None` if there is none.
pub fn encode_reasoning(model: &str, blocks: &[Thinking], place: ReasoningPlace) -> Option<String> {
    if blocks.is_empty() {
        return None;
    }
    let is_leading = place == ReasoningPlace::Leading;
    let sealed = SealedReasoning { model: model.to_owned(), is_leading, blocks: blocks.to_vec() };
    let json = serde_json::to_vec(&sealed).ok()?;
    Some(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(json)))
}

/// Where reasoning stands in its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningPlace {
    /// At the beginning, also if its item comes later.
    Leading,
    /// Before the item that follows.
    Here,
}

/// `None` for the reasoning of a provider.
pub(super) fn decode_reasoning(encrypted: &str) -> Option<SealedReasoning> {
    let json = URL_SAFE_NO_PAD.decode(encrypted.strip_prefix(PREFIX)?).ok()?;
    serde_json::from_slice(&json).ok()
}
