//! A summary in place of old turns, and the rule that says which ones. Only whole turns are summarised, so no call is ever
//! parted from its result.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Item, Turn, blank};

/// What stands in for the turns that the model does not see any more. It belongs to the turn of the run that made it, and
/// changes what is seen before that turn: first the summary, then the last turns that were kept, then the turn itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compaction {
    /// What the model is told of the earlier conversation.
    pub summary: String,
    /// How many turns right before this one are still seen as they are.
    pub kept: usize,
}

/// Stands behind a summary of turns that were not finished: what a model sums up may not lose it.
const UNFINISHED: &str = "[Some of these requests were stopped or failed before they were finished. Do not resume them and do \
                          not repeat their actions unless the user asks for that.]";

/// Messages that stay where no summary can be had, and characters of each (row D13).
const LAST_MESSAGES: usize = 12;
const LAST_CHARS: usize = 600;

impl Compaction {
    /// A summary of these turns and of what an `earlier` one had said, with `kept` turns behind it. That requests were stopped
    /// is said in fixed words, whatever the model made of it.
    #[must_use]
    pub fn of(turns: &[Arc<Turn>], earlier: Option<&str>, summary: String, kept: usize) -> Self {
        let unfinished = turns.iter().any(|turn| turn.note().is_some())
            || earlier.is_some_and(|earlier| earlier.contains(UNFINISHED));
        let summary =
            if unfinished && !summary.contains(UNFINISHED) { format!("{summary}\n\n{UNFINISHED}") } else { summary };
        Self { summary, kept }
    }

    /// Where no summary can be had (row D13): the last messages that people and the model wrote, each by its beginning, behind
    /// the beginning of the `earlier` summary.
    #[must_use]
    pub fn of_last_words(turns: &[Arc<Turn>], earlier: Option<&str>) -> Self {
        let beginning = |text: &str| text.chars().take(LAST_CHARS).collect::<String>();
        let newest = said(turns).take(LAST_MESSAGES).map(|(who, text)| format!("{who}: {}", beginning(&text)));
        let mut newest: Vec<String> = newest.collect();
        newest.reverse();
        let lines = earlier.map(beginning).into_iter().chain(newest);
        Self::of(turns, earlier, lines.collect::<Vec<_>>().join("\n\n"), 0)
    }
}

/// What models see of what was said, without calls and their results, the newest first.
fn said(turns: &[Arc<Turn>]) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
    let items = turns.iter().rev().filter(|turn| !turn.is_left_out()).flat_map(|turn| turn.items().iter().rev());
    let words = items.map(|item| match item {
        Item::User { text, .. } => ("User", Cow::Borrowed(text.as_str())),
        Item::Assistant(message) => ("Assistant", Cow::Owned(message.text())),
    });
    words.filter(|(_, text)| !blank(text))
}

/// The summary that was made last, and the place of the turn that has it.
pub(crate) fn newest_compaction(turns: &[Arc<Turn>]) -> Option<(usize, &Compaction)> {
    turns.iter().enumerate().rev().find_map(|(at, turn)| Some((at, turn.compaction()?)))
}

/// What of these turns can be read within `room`, the newest first of all. Of a turn that is too long by itself only the ends of
/// its results stay; what is older than the last that fits is left out.
#[must_use]
pub fn readable(turns: &[Arc<Turn>], mut room: usize) -> Vec<Arc<Turn>> {
    let mut taken = Vec::new();
    for turn in turns.iter().rev() {
        let turn = if turn.size() <= room { Arc::clone(turn) } else { Arc::new(turn.shortened()) };
        if turn.size() > room && !taken.is_empty() {
            break;
        }
        room = room.saturating_sub(turn.size());
        taken.push(turn);
    }
    taken.reverse();
    taken
}

/// How many of the oldest turns are to be summarised so that the rest fits well: none while everything fits into `limit`,
/// else all but the newest that take at most half of it together with what is `fixed`. Sizes are in any one unit.
#[must_use]
pub fn turns_to_summarise(sizes: &[usize], fixed: usize, limit: usize) -> usize {
    let total = sizes.iter().fold(fixed, |sum, size| sum.saturating_add(*size));
    if total <= limit {
        return 0;
    }
    let mut room = (limit / 2).saturating_sub(fixed);
    let kept = sizes.iter().rev().take_while(|size| {
        let fits = **size <= room;
        room = room.saturating_sub(**size);
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
    use crate::turn::{Message, PartialPolicy, REFUSED, Sealing, TurnDraft};

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
    fn where_no_summary_can_be_had_the_last_messages_stay_by_their_beginnings() {
        let turn = |number: usize, verdict: Verdict| {
            let mut draft = TurnDraft::new(RunId::parse(format!("r{number}")).unwrap(), format!("question {number}"));
            draft.finish_message(Message::new(
                Vec::new(),
                format!("answer {number} {}", "안".repeat(1000)),
                Vec::new(),
            ));
            let sealing = Sealing {
                verdict: &verdict,
                policy: PartialPolicy::Discard,
                sealed_at: String::new(),
                usage: Usage::default(),
            };
            Arc::new(draft.seal(sealing))
        };
        let mut turns: Vec<_> = (0..9).map(|number| turn(number, Verdict::Completed)).collect();
        let refused = Verdict::Failed { code: REFUSED.to_owned(), message: String::new() };
        turns.push(turn(9, refused));
        let Compaction { summary, kept } = Compaction::of_last_words(&turns, Some("They spoke of boats."));
        let lines: Vec<&str> = summary.split("\n\n").collect();
        assert_eq!((kept, lines.len()), (0, 1 + LAST_MESSAGES + 1), "{summary}");
        assert_eq!(lines[..2], ["They spoke of boats.", "User: question 3"]);
        assert_eq!(lines[13], UNFINISHED, "the one that failed");
        assert!(lines[12].starts_with("Assistant: answer 8 안"), "what no model sees does not come back: {summary}");
        assert_eq!(lines[12].chars().count(), "Assistant: ".len() + LAST_CHARS);
        let stopped = turn(10, Verdict::Aborted { reason: StopReason::User, by: None });
        assert!(Compaction::of_last_words(&[stopped], None).summary.ends_with(UNFINISHED));
    }

    proptest! {
        #[test]
        fn what_stays_takes_at_most_half(sizes in prop::collection::vec(0_usize..100, 0..20), fixed in 0_usize..100, limit in 0_usize..500) {
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
