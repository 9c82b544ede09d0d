//! Accumulate a streamed answer within size limits, pass each piece to the sink, and estimate tokens where the provider
//! does not count them.

use quell_kernel::prompt::ImageUsage;
use quell_kernel::turn::{Citations, MessageBlock, ModelMessage, Thinking, is_blank};
use quell_protocol::Usage;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::error_report::ProviderErrorReport;
use super::tool_calls::{ToolCallAssembler, ToolCallFragment};
use super::{FinishReason, ModelAnswer, ModelSink};

/// The maximum size of an answer. The longest answers of today's models, 128,000 tokens, are about 1 MiB.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;
/// The maximum size of the arguments of one call. Several copies are held: in the turn, the journal, the events and the
/// next request.
const MAX_CALL_BYTES: usize = 1024 * 1024;
/// The maximum size of the arguments of all calls of one answer.
const MAX_CALLS_BYTES: usize = 4 * 1024 * 1024;
/// The maximum number of calls of one answer.
const MAX_CALLS: usize = 128;

/// The maximum number of searches of one answer that are reported, and the maximum length of one.
const MAX_SEARCHES: usize = 20;
const MAX_QUERY_CHARS: usize = 200;

/// The usual rule of thumb, where the provider does not count.
const CHARS_PER_TOKEN: u64 = 4;
/// The cost of a large picture: "Image tokens" of Anthropic's documentation on vision.
const TOKENS_PER_PICTURE: u64 = 1600;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResponseError {
    /// It does not match the dialect.
    Unreadable(String),
    Reported(ProviderErrorReport),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamStatus {
    More,
    Done,
}

/// A piece of an answer that people can read.
#[derive(Debug)]
enum AnswerDelta {
    Text(String),
    Thinking(String),
    /// What the provider has searched for.
    Search(String),
}

/// The parts of an answer received so far.
#[derive(Debug, Default)]
pub(super) struct PartialAnswer {
    /// In the order in which they began; the calls themselves are in `calls`, in the same order.
    blocks: Vec<MessageBlock<()>>,
    calls: ToolCallAssembler,
    call_bytes: usize,
    bytes: usize,
    /// The pages that the provider names for the text.
    pub(super) citations: Citations,
    /// What the provider has searched for, each query once.
    searches: Vec<String>,
    /// Pieces that are not passed on yet.
    deltas: Vec<AnswerDelta>,
    /// The provider's count so far; marked as estimated until the output is counted to its end.
    pub(super) usage: Option<Usage>,
    /// Why the model stopped, once it has.
    pub(super) finish_reason: Option<FinishReason>,
    /// True once any part of an answer came, even an empty one.
    pub(super) has_begun: bool,
}

impl PartialAnswer {
    pub(super) fn append_text(&mut self, delta: &str) -> Result<(), ResponseError> {
        if !delta.is_empty() {
            self.add_bytes(delta.len())?;
            match self.blocks.last_mut() {
                Some(MessageBlock::Text { text }) => text.push_str(delta),
                _ => self.blocks.push(MessageBlock::Text { text: delta.to_owned() }),
            }
            self.deltas.push(AnswerDelta::Text(delta.to_owned()));
        }
        Ok(())
    }

    pub(super) fn append_thinking(&mut self, delta: &str) -> Result<(), ResponseError> {
        if !delta.is_empty() {
            self.add_bytes(delta.len())?;
            match self.blocks.last_mut() {
                Some(MessageBlock::Thinking(Thinking::Shown { text, signature: None })) => text.push_str(delta),
                _ => self.push_thinking(Thinking::Shown { text: delta.to_owned(), signature: None }),
            }
            self.deltas.push(AnswerDelta::Thinking(delta.to_owned()));
        }
        Ok(())
    }

    /// Unsigned reasoning that the model needs back unchanged.
    pub(super) fn append_open_thinking(&mut self, delta: &str) -> Result<(), ResponseError> {
        if !delta.is_empty() {
            self.add_bytes(delta.len())?;
            match self.blocks.last_mut() {
                Some(MessageBlock::Thinking(Thinking::Open { text })) => text.push_str(delta),
                _ => self.push_thinking(Thinking::Open { text: delta.to_owned() }),
            }
            self.deltas.push(AnswerDelta::Thinking(delta.to_owned()));
        }
        Ok(())
    }

    /// Passes on the pieces that were appended since the last call, in order.
    pub(super) fn send_deltas(&mut self, sink: &mut dyn ModelSink) {
        for delta in self.deltas.drain(..) {
            match delta {
                AnswerDelta::Text(text) => sink.on_text_delta(&text),
                AnswerDelta::Thinking(text) => sink.on_thinking_delta(&text),
                AnswerDelta::Search(query) => sink.on_web_search(&query),
            }
        }
    }

    /// Begins a block of reasoning that gets its own signature.
    pub(super) fn begin_signed_thinking(&mut self) {
        self.push_thinking(Thinking::Shown { text: String::new(), signature: None });
    }

    /// The signature of the last block of reasoning, or a part of it.
    pub(super) fn append_signature(&mut self, part: &str) -> Result<(), ResponseError> {
        if !part.is_empty()
            && let Some(MessageBlock::Thinking(Thinking::Shown { signature, .. })) = self.blocks.last_mut()
        {
            signature.get_or_insert_default().push_str(part);
            self.add_bytes(part.len())?;
        }
        Ok(())
    }

    /// Encrypted reasoning that only its provider can read.
    pub(super) fn push_redacted_thinking(&mut self, data: String) -> Result<(), ResponseError> {
        self.add_bytes(data.len())?;
        self.push_thinking(Thinking::Redacted { data });
        Ok(())
    }

    /// A complete reasoning item, in place of its summary that streamed last.
    pub(super) fn push_reasoning_item(
        &mut self,
        id: String,
        summary: Vec<String>,
        encrypted: String,
    ) -> Result<(), ResponseError> {
        if let Some(MessageBlock::Thinking(Thinking::Shown { signature: None, .. })) = self.blocks.last() {
            self.blocks.pop();
        } else if !summary.is_empty() {
            self.add_bytes(summary.iter().map(String::len).sum())?;
            self.deltas.push(AnswerDelta::Thinking(summary.join("\n\n")));
        }
        self.add_bytes(id.len().saturating_add(encrypted.len()))?;
        self.push_thinking(Thinking::Item { id, summary, encrypted });
        Ok(())
    }

    /// A part of a search that the provider carried out. It takes it back only together with the reasoning before it.
    pub(super) fn push_web_search(&mut self, part: Value) -> Result<(), ResponseError> {
        self.add_bytes(part.to_string().len())?;
        let follows_lost_reasoning = matches!(self.blocks.last(),
            Some(MessageBlock::Thinking(thinking @ Thinking::Item { .. })) if !thinking.is_returnable());
        if !follows_lost_reasoning {
            self.push_thinking(Thinking::WebSearch { part });
        }
        Ok(())
    }

    /// Reports what the provider has searched for.
    pub(super) fn report_search(&mut self, query: &str) -> Result<(), ResponseError> {
        self.add_bytes(query.len())?;
        let query: String = query.trim().chars().take(MAX_QUERY_CHARS).collect();
        if !query.is_empty() && self.searches.len() < MAX_SEARCHES && !self.searches.contains(&query) {
            self.searches.push(query.clone());
            self.deltas.push(AnswerDelta::Search(query));
        }
        Ok(())
    }

    /// Appends the links to the cited pages, once the text is complete. They are no part of the text that models see.
    pub(super) fn append_citation_links(&mut self) {
        let has_text = self.blocks.iter().any(|block| matches!(block, MessageBlock::Text { text } if !is_blank(text)));
        if has_text && !self.citations.is_empty() {
            self.deltas.push(AnswerDelta::Text(self.citations.as_markdown()));
        }
    }

    /// The signature of the text or call that is appended next.
    pub(super) fn push_block_signature(&mut self, signature: String) -> Result<(), ResponseError> {
        self.add_bytes(signature.len())?;
        self.push_thinking(Thinking::BlockSignature { signature });
        Ok(())
    }

    /// Ends a text that has its own signature: what follows is another text.
    pub(super) fn end_signed_text(&mut self) {
        self.blocks.push(MessageBlock::Text { text: String::new() });
    }

    pub(super) fn call_count(&self) -> usize {
        self.calls.call_count()
    }

    /// True when the call with this number has arguments already.
    pub(super) fn has_arguments(&self, index: u64) -> bool {
        self.calls.has_arguments(index)
    }

    /// A fragment of a call. `position` is its position among the fragments that came together.
    pub(super) fn append_call_fragment(
        &mut self,
        position: usize,
        fragment: ToolCallFragment,
    ) -> Result<(), ResponseError> {
        self.add_bytes(fragment.size())?;
        self.call_bytes += fragment.size();
        if self.call_bytes > MAX_CALLS_BYTES {
            let problem =
                format!("tool calls with more than {MAX_CALLS_BYTES} bytes of arguments; none was carried out");
            return Err(ResponseError::Unreadable(problem));
        }
        if self.calls.add_fragment(position, fragment) {
            self.blocks.push(MessageBlock::Call(()));
        }
        if self.calls.call_count() > MAX_CALLS {
            return Err(ResponseError::Unreadable(format!(
                "an answer with more than {MAX_CALLS} tool calls; none was carried out"
            )));
        }
        if self.calls.last_call_bytes() > MAX_CALL_BYTES {
            let problem =
                format!("a tool call with more than {MAX_CALL_BYTES} bytes of arguments; it was not carried out");
            return Err(ResponseError::Unreadable(problem));
        }
        Ok(())
    }

    /// True while no text, no reasoning and no call has come.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// An estimate of the tokens so far, where the provider does not count them.
    pub(super) fn estimate_tokens(&self) -> u64 {
        let of_block = |block: &MessageBlock<()>| match block {
            MessageBlock::Text { text } => estimate_tokens(text),
            MessageBlock::Thinking(Thinking::Redacted { data }) => estimate_tokens(data),
            MessageBlock::Thinking(thinking) => estimate_tokens(&thinking.readable_text()),
            MessageBlock::Call(()) => 0,
        };
        self.blocks.iter().map(of_block).sum::<u64>() + self.calls.char_count().div_ceil(CHARS_PER_TOKEN)
    }

    pub(super) fn into_answer(self) -> ModelAnswer {
        let mut calls = self.calls.into_calls().into_iter();
        let whole = |block| match block {
            MessageBlock::Thinking(thinking) => {
                (!is_empty_thinking(&thinking)).then_some(MessageBlock::Thinking(thinking))
            }
            MessageBlock::Text { text } => (!text.is_empty()).then_some(MessageBlock::Text { text }),
            MessageBlock::Call(()) => calls.next().map(MessageBlock::Call),
        };
        let blocks = self.blocks.into_iter().filter_map(whole).collect();
        let message = ModelMessage { model: None, at: None, blocks, citations: self.citations };
        let has_calls = message.calls().next().is_some();
        let finish = self.finish_reason.unwrap_or(if has_calls { FinishReason::ToolCalls } else { FinishReason::Stop });
        let usage = self.usage.filter(|usage| !usage.estimated);
        ModelAnswer { message, usage, finish_reason: finish }
    }

    fn push_thinking(&mut self, thinking: Thinking) {
        self.blocks.push(MessageBlock::Thinking(thinking));
    }

    /// An empty piece counts as one byte, so that an endless stream of empty pieces reaches the limit, too.
    fn add_bytes(&mut self, bytes: usize) -> Result<(), ResponseError> {
        self.bytes = self.bytes.saturating_add(bytes.max(1));
        if self.bytes > MAX_ANSWER_BYTES {
            return Err(ResponseError::Unreadable(format!("an answer of more than {MAX_ANSWER_BYTES} bytes")));
        }
        Ok(())
    }
}

/// True for reasoning that began and stayed empty.
fn is_empty_thinking(thinking: &Thinking) -> bool {
    *thinking == Thinking::Shown { text: String::new(), signature: None }
}

pub(super) fn estimate_tokens(text: &str) -> u64 {
    u64::try_from(text.chars().count()).unwrap_or(u64::MAX).div_ceil(CHARS_PER_TOKEN)
}

/// An estimate of the tokens of a body with pictures, whose data does not count as text.
pub(super) fn estimate_body_tokens(body: &str, pictures: ImageUsage) -> u64 {
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let data = number(pictures.bytes) / CHARS_PER_TOKEN;
    let seen = number(pictures.count).saturating_mul(TOKENS_PER_PICTURE);
    estimate_tokens(body).saturating_sub(data).saturating_add(seen)
}

/// Servers send `null` for an absent value.
pub(super) fn null_as_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call_fragment(index: usize, arguments: usize) -> ToolCallFragment {
        let arguments = "x".repeat(arguments);
        ToolCallFragment { index: Some(index as u64), id: format!("c{index}"), name: "shell".to_owned(), arguments }
    }

    #[test]
    fn an_answer_has_only_so_many_calls() {
        let mut partial = PartialAnswer::default();
        (0..MAX_CALLS).for_each(|n| assert_eq!(partial.append_call_fragment(n, call_fragment(n, 2)), Ok(())));
        let Err(ResponseError::Unreadable(problem)) =
            partial.append_call_fragment(MAX_CALLS, call_fragment(MAX_CALLS, 2))
        else {
            panic!("it was accepted")
        };
        assert!(problem.contains("128 tool calls"), "{problem}");
    }

    #[test]
    fn a_call_has_only_so_many_arguments() {
        let mut partial = PartialAnswer::default();
        let taken = (0..20)
            .take_while(|_| partial.append_call_fragment(0, call_fragment(0, MAX_CALL_BYTES / 10)).is_ok())
            .count();
        assert_eq!(taken, 9, "with its name and id it is larger than ten tenths");
        let mut partial = PartialAnswer::default();
        let taken = (0..20)
            .take_while(|n| partial.append_call_fragment(*n, call_fragment(*n, MAX_CALL_BYTES - 1000)).is_ok())
            .count();
        assert_eq!(taken, 4, "all calls together are one answer");
    }
}
