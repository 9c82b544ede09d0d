//! Selects the newest turns of a chat conversation that fit a character budget. Only whole turns are dropped.

use std::sync::Arc;

use super::compaction::{Compaction, newest_compaction};
use super::{ModelMessage, Turn, TurnItem};

/// The newest turns that fit into `budget` characters, but at least one of them. Turns that a summary replaces do not
/// count. The summary is always kept.
///
/// Turns are dropped by whole quarters of the budget. So the first turn stays the same over many messages, and with it
/// the part of the prompt that a provider has cached.
pub fn newest_within_chars(turns: &[Arc<Turn>], budget: usize) -> Vec<Arc<Turn>> {
    let compaction = newest_compaction(turns);
    let begin = compaction.map_or(0, |(at, compaction)| at.saturating_sub(compaction.kept));
    let visible = turns.get(begin..).unwrap_or_default();
    let summary_chars = compaction.map_or(0, |(_, compaction)| compaction.summary.chars().count());
    let total = visible.iter().map(|turn| turn.char_count()).sum::<usize>() + summary_chars;
    if total <= budget {
        return turns.to_vec();
    }
    let excess = (total - budget).next_multiple_of((budget / 4).max(1));
    let mut dropped_chars = 0;
    let dropped = visible.iter().take_while(|turn| {
        let is_dropped = dropped_chars < excess;
        dropped_chars += turn.char_count();
        is_dropped
    });
    let first = dropped.count().min(visible.len().saturating_sub(1));
    let mut shown = visible.get(first..).unwrap_or_default().to_vec();
    if let Some((at, compaction)) = compaction
        && begin + first > at
        && let Some(oldest) = shown.first_mut()
    {
        let summary = Compaction { summary: compaction.summary.clone(), kept: 0 };
        *oldest = Arc::new(Turn { compaction: Some(summary), ..Turn::clone(oldest) });
    }
    shown
}

impl Turn {
    /// Characters of it in a model request, arguments and results of calls included.
    fn char_count(&self) -> usize {
        let of_call = |call: &super::AnsweredCall| {
            call.call.arguments.to_string().chars().count() + call.result.output.chars().count()
        };
        let of_message = |message: &ModelMessage<super::AnsweredCall>| {
            message.text().chars().count() + message.calls().map(of_call).sum::<usize>()
        };
        let items = self.items().iter().map(|item| match item {
            TurnItem::User { text, .. } => text.chars().count(),
            TurnItem::Assistant(message) => of_message(message),
        });
        items.sum::<usize>() + self.note().map_or(0, |note| note.chars().count())
    }
}

#[cfg(test)]
mod tests {
    use quell_protocol::{RunId, Usage, Verdict};

    use super::*;
    use crate::prompt;
    use crate::turn::{PartialPolicy, SealOptions, TurnDraft};

    fn turn(number: usize, chars: usize) -> Arc<Turn> {
        let draft = TurnDraft::new(RunId::parse(format!("r{number}")).unwrap(), "안".repeat(chars));
        let (verdict, policy) = (&Verdict::Completed, PartialPolicy::Discard);
        Arc::new(draft.seal(SealOptions { verdict, policy, sealed_at: String::new(), usage: Usage::default() }))
    }

    fn first(turns: &[Arc<Turn>], budget: usize) -> (&str, usize) {
        let length = newest_within_chars(turns, budget).len();
        (turns[turns.len() - length].run_id().as_str(), length)
    }

    #[test]
    fn the_window_counts_characters_not_bytes() {
        let turns: Vec<_> = (0..4).map(|number| turn(number, 100)).collect();
        assert_eq!(first(&turns, 400), ("r0", 4));
        assert_eq!(newest_within_chars(&[], 10), Vec::<Arc<Turn>>::new());
    }

    #[test]
    fn whole_turns_go_oldest_first_and_never_the_newest() {
        let turns: Vec<_> = (0..4).map(|number| turn(number, 100)).collect();
        assert_eq!(first(&turns, 399), ("r1", 3));
        assert_eq!(first(&turns, 1), ("r3", 1));
        assert_eq!(first(&turns, 0), ("r3", 1));
    }

    /// A turn with a summary of earlier turns.
    fn turn_with_summary(number: usize, kept: usize) -> Arc<Turn> {
        let summary = Compaction { summary: "They spoke of boats.".to_owned(), kept };
        Arc::new(Turn { compaction: Some(summary), ..Turn::clone(&turn(number, 100)) })
    }

    /// A chat used to lose the summary as soon as the turn with the summary was dropped.
    #[test]
    fn a_summary_stays_whatever_goes() {
        let mut turns: Vec<_> = (0..3).map(|number| turn(number, 1000)).collect();
        turns.push(turn_with_summary(3, 1));
        turns.extend((4..8).map(|number| turn(number, 100)));
        assert_eq!(newest_within_chars(&turns, 1620), turns, "turns that it replaces do not count");
        for (budget, first) in [(1500, 3), (600, 4), (500, 5), (1, 7)] {
            let shown = newest_within_chars(&turns, budget);
            assert_eq!(shown[0].run_id(), turns[first].run_id(), "{budget}");
            assert_eq!(prompt::visible_summary(&shown, None), Some("They spoke of boats."), "{budget}");
            assert_eq!(prompt::visible_turn_count(&shown, None), turns.len() - first, "{budget}");
        }
    }

    #[test]
    fn the_first_turn_that_is_shown_moves_seldom() {
        let turns: Vec<_> = (0..200).map(|number| turn(number, 10)).collect();
        let mut shown: Vec<&str> = (100..200).map(|upto| first(&turns[..upto], 800).0).collect();
        assert!((100..200).all(|upto| newest_within_chars(&turns[..upto], 800).len() <= 80));
        shown.dedup();
        assert!(shown.len() <= 6, "{shown:?}");
    }
}
