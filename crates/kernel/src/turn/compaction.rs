//! Summaries that replace old turns, and which turns to summarise. Only whole turns are summarised, so that no call is
//! separated from its result.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Turn, TurnItem, is_blank};

/// A summary that replaces turns for the model. It belongs to the turn of the run that made it. The model sees the
/// summary first, then the kept turns, then that turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compaction {
    /// Text for the model about the earlier conversation.
    pub summary: String,
    /// Number of turns right before this one that the model still sees in full.
    pub kept: usize,
}

/// Appended to a summary of unfinished turns, because the model may omit it.
const UNFINISHED_NOTICE: &str = "[Some of these requests were stopped or failed before they were finished. Do not resume them and do \
                          not repeat their actions unless the user asks for that.]";

/// Maximum messages of a fallback summary, and characters of each.
const FALLBACK_MESSAGES: usize = 12;
const FALLBACK_CHARS: usize = 600;

impl Compaction {
    /// A summary of these turns and of the `earlier` summary, followed by `kept` turns. Stopped requests are mentioned
    /// in fixed words, whether the model's summary mentions them or not.
    pub fn new(turns: &[Arc<Turn>], earlier: Option<&str>, summary: String, kept: usize) -> Self {
        let unfinished = turns.iter().any(|turn| turn.note_for_models().is_some())
            || earlier.is_some_and(|earlier| earlier.contains(UNFINISHED_NOTICE));
        let summary = if unfinished && !summary.contains(UNFINISHED_NOTICE) {
            format!("{summary}\n\n{UNFINISHED_NOTICE}")
        } else {
            summary
        };
        Self { summary, kept }
    }

    /// A fallback if the model gives no summary: the beginning of the `earlier` summary, and the beginnings of the last
    /// messages of users and model.
    pub fn from_last_messages(turns: &[Arc<Turn>], earlier: Option<&str>) -> Self {
        let beginning = |text: &str| text.chars().take(FALLBACK_CHARS).collect::<String>();
        let newest =
            visible_messages(turns).take(FALLBACK_MESSAGES).map(|(role, text)| format!("{role}: {}", beginning(&text)));
        let mut newest: Vec<String> = newest.collect();
        newest.reverse();
        let lines = earlier.map(beginning).into_iter().chain(newest);
        Self::new(turns, earlier, lines.collect::<Vec<_>>().join("\n\n"), 0)
    }
}

/// Texts that models see, without calls and their results, newest first.
fn visible_messages(turns: &[Arc<Turn>]) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
    let items =
        turns.iter().rev().filter(|turn| !turn.is_hidden_from_models()).flat_map(|turn| turn.items().iter().rev());
    let texts = items.map(|item| match item {
        TurnItem::User { text, .. } => ("User", Cow::Borrowed(text.as_str())),
        TurnItem::Assistant(message) => ("Assistant", Cow::Owned(message.text())),
    });
    texts.filter(|(_, text)| !is_blank(text))
}

/// The newest summary, and the index of its turn.
pub(crate) fn newest_compaction(turns: &[Arc<Turn>]) -> Option<(usize, &Compaction)> {
    turns.iter().enumerate().rev().find_map(|(at, turn)| Some((at, turn.compaction()?)))
}

/// The newest of these turns that fit into `max_bytes`, at least one. The results of a turn that does not fit are
/// shortened to their ends. Turns older than the first that still does not fit are left out.
pub fn newest_that_fit(turns: &[Arc<Turn>], mut max_bytes: usize) -> Vec<Arc<Turn>> {
    let mut taken = Vec::new();
    for turn in turns.iter().rev() {
        let turn = if turn.size() <= max_bytes { Arc::clone(turn) } else { Arc::new(turn.with_shortened_results()) };
        if turn.size() > max_bytes && !taken.is_empty() {
            break;
        }
        max_bytes = max_bytes.saturating_sub(turn.size());
        taken.push(turn);
    }
    taken.reverse();
    taken
}

/// Number of the oldest turns to summarise. It is zero while everything fits into `limit`. Otherwise the newest turns
/// that stay, together with the `fixed` part, take at most half of `limit`. All sizes have the same unit.
pub fn turns_to_summarise(sizes: &[usize], fixed: usize, limit: usize) -> usize {
    let total = sizes.iter().fold(fixed, |sum, size| sum.saturating_add(*size));
    if total <= limit {
        return 0;
    }
    let mut remaining = (limit / 2).saturating_sub(fixed);
    let kept = sizes.iter().rev().take_while(|size| {
        let fits = **size <= remaining;
        remaining = remaining.saturating_sub(**size);
        fits
    });
    sizes.len() - kept.count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quell_protocol::{RunId, StopReason, Usage, Verdict};
    use rstest::rstest;

    use super::*;
    use crate::turn::{CODE_REFUSED, ModelMessage, PartialPolicy, SealOptions, TurnDraft};

    #[rstest]
    #[case::fits(&[10, 10], 10, 30, 0)]
    #[case::all_but_the_newest(&[10, 10, 10], 5, 30, 2)]
    #[case::the_newest_is_too_large(&[10, 10, 90], 5, 30, 3)]
    #[case::what_is_fixed_fills_it(&[10, 10], 90, 30, 2)]
    #[case::nothing_to_summarise(&[], 90, 30, 0)]
    fn the_oldest_go_and_the_newest_stay(
        #[case] sizes: &[usize],
        #[case] fixed: usize,
        #[case] limit: usize,
        #[case] summarised: usize,
    ) {
        assert_eq!(turns_to_summarise(sizes, fixed, limit), summarised);
    }

    #[test]
    fn without_a_summary_the_last_messages_are_cut_to_their_starts() {
        let turn = |number: usize, verdict: Verdict| {
            let mut draft = TurnDraft::new(RunId::parse(format!("r{number}")).unwrap(), format!("question {number}"));
            draft.finish_message(ModelMessage::new(
                Vec::new(),
                format!("answer {number} {}", "안".repeat(1000)),
                Vec::new(),
            ));
            let sealing = SealOptions {
                verdict: &verdict,
                policy: PartialPolicy::Discard,
                sealed_at: String::new(),
                usage: Usage::default(),
            };
            Arc::new(draft.seal(sealing))
        };
        let mut turns: Vec<_> = (0..9).map(|number| turn(number, Verdict::Completed)).collect();
        let refused = Verdict::Failed { code: CODE_REFUSED.to_owned(), message: String::new() };
        turns.push(turn(9, refused));
        let Compaction { summary, kept } = Compaction::from_last_messages(&turns, Some("They spoke of boats."));
        let lines: Vec<&str> = summary.split("\n\n").collect();
        assert_eq!((kept, lines.len()), (0, 1 + FALLBACK_MESSAGES + 1), "{summary}");
        assert_eq!(lines[..2], ["They spoke of boats.", "User: question 3"]);
        assert_eq!(lines[13], UNFINISHED_NOTICE, "because of the failed turn");
        assert!(lines[12].starts_with("Assistant: answer 8 안"), "a turn hidden from models stays hidden: {summary}");
        assert_eq!(lines[12].chars().count(), "Assistant: ".len() + FALLBACK_CHARS);
        let stopped = turn(10, Verdict::Aborted { reason: StopReason::User, by: None });
        assert!(Compaction::from_last_messages(&[stopped], None).summary.ends_with(UNFINISHED_NOTICE));
    }

    proptest! {
        #[test]
        fn kept_turns_take_at_most_half_of_the_limit(sizes in prop::collection::vec(0_usize..100, 0..20), fixed in 0_usize..100, limit in 0_usize..500) {
            let count = turns_to_summarise(&sizes, fixed, limit);
            let kept: usize = sizes[count..].iter().sum();
            if sizes.iter().sum::<usize>() + fixed <= limit {
                prop_assert_eq!(count, 0);
            } else {
                prop_assert!(kept == 0 || kept + fixed <= limit / 2);
            }
        }
    }
}
