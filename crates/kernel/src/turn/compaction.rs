//! A summary in place of old turns, and the rule that says which ones. Only whole turns are summarised, so no call is ever
//! parted from its result.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Turn;

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
    use rstest::rstest;

    use super::*;

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
