//! An answer while it comes in: the sum of what arrived, told to the sink piece by piece. The same for every dialect.

use quell_kernel::turn::Thinking;
use quell_protocol::Usage;

use super::calls::{Calls, Fragment};
use super::report::Report;
use super::{Finish, ModelAnswer, ModelSink};

/// The largest answer that is taken. 128,000 tokens, more than any model writes at once today, are about 1 MiB.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// The usual rule of thumb where nobody counts.
const CHARS_PER_TOKEN: u64 = 4;

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
    text: String,
    thinking: Vec<Thinking>,
    calls: Calls,
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
            self.text.push_str(delta);
            sink.text(delta);
        }
        Ok(())
    }

    pub(super) fn thinking(&mut self, delta: &str, sink: &mut dyn ModelSink) -> Result<(), Bad> {
        if !delta.is_empty() {
            self.grow(delta.len())?;
            match self.thinking.last_mut() {
                Some(Thinking::Shown { text, signature: None }) => text.push_str(delta),
                Some(Thinking::Shown { .. } | Thinking::Redacted { .. }) | None => {
                    self.thinking.push(Thinking::Shown { text: delta.to_owned(), signature: None });
                }
            }
            sink.thinking(delta);
        }
        Ok(())
    }

    /// Reasoning begins that is signed by itself.
    pub(super) fn begin_thinking(&mut self) {
        self.thinking.push(Thinking::Shown { text: String::new(), signature: None });
    }

    /// The signature of the reasoning that came last, or a part of it.
    pub(super) fn sign(&mut self, part: &str) -> Result<(), Bad> {
        if !part.is_empty()
            && let Some(Thinking::Shown { signature, .. }) = self.thinking.last_mut()
        {
            signature.get_or_insert_default().push_str(part);
            self.grow(part.len())?;
        }
        Ok(())
    }

    /// Reasoning that only its provider can read.
    pub(super) fn redacted(&mut self, data: String) -> Result<(), Bad> {
        self.grow(data.len())?;
        self.thinking.push(Thinking::Redacted { data });
        Ok(())
    }

    /// A piece of a call; `place` is its place among the pieces that came together.
    pub(super) fn call(&mut self, place: usize, fragment: Fragment) -> Result<(), Bad> {
        self.grow(fragment.size())?;
        self.calls.add(place, fragment);
        Ok(())
    }

    /// The tokens of the answer so far, where the provider does not count them.
    pub(super) fn estimate(&self) -> u64 {
        let thinking = self.thinking.iter().map(|piece| match piece {
            Thinking::Shown { text, .. } => estimate(text),
            Thinking::Redacted { data } => estimate(data),
        });
        estimate(&self.text) + thinking.sum::<u64>() + self.calls.chars().div_ceil(CHARS_PER_TOKEN)
    }

    pub(super) fn complete(self) -> ModelAnswer {
        let calls = self.calls.finish();
        let finish = self.finish.unwrap_or(if calls.is_empty() { Finish::Stop } else { Finish::ToolCalls });
        let empty = |piece: &Thinking| *piece == Thinking::Shown { text: String::new(), signature: None };
        let thinking = self.thinking.into_iter().filter(|piece| !empty(piece)).collect();
        let usage = self.usage.filter(|usage| !usage.estimated);
        ModelAnswer { text: self.text, thinking, calls, usage, finish }
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

/// About how many tokens a text has.
pub(super) fn estimate(text: &str) -> u64 {
    u64::try_from(text.chars().count()).unwrap_or(u64::MAX).div_ceil(CHARS_PER_TOKEN)
}
