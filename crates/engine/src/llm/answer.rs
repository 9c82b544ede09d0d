//! An answer while it comes in: the sum of what arrived, told to the sink piece by piece. The same for every dialect.

use quell_kernel::turn::{Block, Message, Thinking};
use quell_kernel::view::Shown;
use quell_protocol::Usage;
use serde::{Deserialize, Deserializer};

use super::calls::{Calls, Fragment};
use super::report::Report;
use super::{Finish, ModelAnswer, ModelSink};

/// The largest answer that is taken. 128,000 tokens, more than any model writes at once today, are about 1 MiB.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;
/// The most arguments of one call. Each is held several times over: in the turn, the journal, the events and the next request.
const MAX_CALL_BYTES: usize = 1024 * 1024;
/// The most arguments of all calls of one answer.
const MAX_CALLS_BYTES: usize = 4 * 1024 * 1024;
/// The most calls of one answer.
const MAX_CALLS: usize = 128;

/// The usual rule of thumb where nobody counts.
const CHARS_PER_TOKEN: u64 = 4;
/// What a large picture costs: "Image tokens" of Anthropic's documentation on vision.
const TOKENS_PER_PICTURE: u64 = 1600;

/// What is wrong with what came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Bad {
    /// It is not what the dialect says.
    Unreadable(String),
    /// It is, and it reports an error.
    Reported(Report),
}

/// Whether more is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    More,
    Done,
}

/// What has come so far.
#[derive(Debug, Default)]
pub(super) struct Partial {
    /// In the order in which they began; the calls themselves are in `calls`, in the same order.
    blocks: Vec<Block<()>>,
    calls: Calls,
    call_bytes: usize,
    bytes: usize,
    /// What the provider counted so far; marked as estimated while it has not counted the output to its end.
    pub(super) usage: Option<Usage>,
    /// Why the model stopped, once it did.
    pub(super) finish: Option<Finish>,
    /// True once any part of an answer came, be it empty.
    pub(super) begun: bool,
}

impl Partial {
    pub(super) fn text(&mut self, delta: &str, sink: &mut dyn ModelSink) -> Result<(), Bad> {
        if !delta.is_empty() {
            self.grow(delta.len())?;
            match self.blocks.last_mut() {
                Some(Block::Text { text }) => text.push_str(delta),
                _ => self.blocks.push(Block::Text { text: delta.to_owned() }),
            }
            sink.text(delta);
        }
        Ok(())
    }

    pub(super) fn thinking(&mut self, delta: &str, sink: &mut dyn ModelSink) -> Result<(), Bad> {
        if !delta.is_empty() {
            self.grow(delta.len())?;
            match self.blocks.last_mut() {
                Some(Block::Thinking(Thinking::Shown { text, signature: None })) => text.push_str(delta),
                _ => self.think(Thinking::Shown { text: delta.to_owned(), signature: None }),
            }
            sink.thinking(delta);
        }
        Ok(())
    }

    /// Reasoning that its model wants back as it came, unsigned.
    pub(super) fn open_thinking(&mut self, delta: &str, sink: &mut dyn ModelSink) -> Result<(), Bad> {
        if !delta.is_empty() {
            self.grow(delta.len())?;
            match self.blocks.last_mut() {
                Some(Block::Thinking(Thinking::Open { text })) => text.push_str(delta),
                _ => self.think(Thinking::Open { text: delta.to_owned() }),
            }
            sink.thinking(delta);
        }
        Ok(())
    }

    /// Reasoning begins that is signed by itself.
    pub(super) fn begin_thinking(&mut self) {
        self.think(Thinking::Shown { text: String::new(), signature: None });
    }

    /// The signature of the reasoning that came last, or a part of it.
    pub(super) fn sign(&mut self, part: &str) -> Result<(), Bad> {
        if !part.is_empty()
            && let Some(Block::Thinking(Thinking::Shown { signature, .. })) = self.blocks.last_mut()
        {
            signature.get_or_insert_default().push_str(part);
            self.grow(part.len())?;
        }
        Ok(())
    }

    /// Reasoning that only its provider can read.
    pub(super) fn redacted(&mut self, data: String) -> Result<(), Bad> {
        self.grow(data.len())?;
        self.think(Thinking::Redacted { data });
        Ok(())
    }

    /// A piece of a call; `place` is its place among the pieces that came together.
    pub(super) fn call(&mut self, place: usize, fragment: Fragment) -> Result<(), Bad> {
        self.grow(fragment.size())?;
        self.call_bytes += fragment.size();
        if self.call_bytes > MAX_CALLS_BYTES {
            let problem =
                format!("tool calls with more than {MAX_CALLS_BYTES} bytes of arguments; none was carried out");
            return Err(Bad::Unreadable(problem));
        }
        if self.calls.add(place, fragment) {
            self.blocks.push(Block::Call(()));
        }
        if self.calls.count() > MAX_CALLS {
            return Err(Bad::Unreadable(format!(
                "an answer with more than {MAX_CALLS} tool calls; none was carried out"
            )));
        }
        if self.calls.last_grown() > MAX_CALL_BYTES {
            let problem =
                format!("a tool call with more than {MAX_CALL_BYTES} bytes of arguments; it was not carried out");
            return Err(Bad::Unreadable(problem));
        }
        Ok(())
    }

    /// True while no text, no reasoning and no call has come.
    pub(super) fn is_untold(&self) -> bool {
        self.bytes == 0
    }

    /// The tokens of the answer so far, where the provider does not count them.
    pub(super) fn estimate(&self) -> u64 {
        let of_block = |block: &Block<()>| match block {
            Block::Thinking(Thinking::Shown { text, .. } | Thinking::Open { text }) | Block::Text { text } => {
                estimate(text)
            }
            Block::Thinking(Thinking::Redacted { data }) => estimate(data),
            Block::Call(()) => 0,
        };
        self.blocks.iter().map(of_block).sum::<u64>() + self.calls.chars().div_ceil(CHARS_PER_TOKEN)
    }

    pub(super) fn complete(self) -> ModelAnswer {
        let mut calls = self.calls.finish().into_iter();
        let whole = |block| match block {
            Block::Thinking(thinking) => (!is_empty(&thinking)).then_some(Block::Thinking(thinking)),
            Block::Text { text } => Some(Block::Text { text }),
            Block::Call(()) => calls.next().map(Block::Call),
        };
        let message = Message { model: None, at: None, blocks: self.blocks.into_iter().filter_map(whole).collect() };
        let asks = message.calls().next().is_some();
        let finish = self.finish.unwrap_or(if asks { Finish::ToolCalls } else { Finish::Stop });
        let usage = self.usage.filter(|usage| !usage.estimated);
        ModelAnswer { message, usage, finish }
    }

    fn think(&mut self, thinking: Thinking) {
        self.blocks.push(Block::Thinking(thinking));
    }

    /// Empty pieces count a little too, so that a stream of nothing ends as well.
    fn grow(&mut self, bytes: usize) -> Result<(), Bad> {
        self.bytes = self.bytes.saturating_add(bytes.max(1));
        if self.bytes > MAX_ANSWER_BYTES {
            return Err(Bad::Unreadable(format!("an answer of more than {MAX_ANSWER_BYTES} bytes")));
        }
        Ok(())
    }
}

/// True for reasoning that began and did not come.
fn is_empty(thinking: &Thinking) -> bool {
    *thinking == Thinking::Shown { text: String::new(), signature: None }
}

/// About how many tokens a text has.
pub(super) fn estimate(text: &str) -> u64 {
    u64::try_from(text.chars().count()).unwrap_or(u64::MAX).div_ceil(CHARS_PER_TOKEN)
}

/// About how many tokens a body has of which so much is pictures: their data is no text.
pub(super) fn estimate_with(body: &str, pictures: Shown) -> u64 {
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let data = number(pictures.bytes) / CHARS_PER_TOKEN;
    let seen = number(pictures.count).saturating_mul(TOKENS_PER_PICTURE);
    estimate(body).saturating_sub(data).saturating_add(seen)
}

/// Servers send `null` where they mean that there is nothing.
pub(super) fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(index: usize, arguments: usize) -> Fragment {
        let arguments = "x".repeat(arguments);
        Fragment { index: Some(index as u64), id: format!("c{index}"), name: "shell".to_owned(), arguments }
    }

    #[test]
    fn an_answer_has_only_so_many_calls() {
        let mut partial = Partial::default();
        (0..MAX_CALLS).for_each(|n| assert_eq!(partial.call(n, piece(n, 2)), Ok(())));
        let Err(Bad::Unreadable(problem)) = partial.call(MAX_CALLS, piece(MAX_CALLS, 2)) else { panic!("it is taken") };
        assert!(problem.contains("128 tool calls"), "{problem}");
    }

    #[test]
    fn a_call_has_only_so_many_arguments() {
        let mut partial = Partial::default();
        let taken = (0..20).take_while(|_| partial.call(0, piece(0, MAX_CALL_BYTES / 10)).is_ok()).count();
        assert_eq!(taken, 9, "with its name and id it is larger than ten tenths");
        let mut partial = Partial::default();
        let taken = (0..20).take_while(|n| partial.call(*n, piece(*n, MAX_CALL_BYTES - 1000)).is_ok()).count();
        assert_eq!(taken, 4, "all calls together are one answer");
    }
}
