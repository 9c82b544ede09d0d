//! Property tests of sealing random drafts.

use std::collections::HashSet;

use proptest::prelude::*;

use super::super::output_buffer::HeadTailBuffer;
use super::super::samples::{abort, ended, policy, run_id, seal, story};
use super::super::*;

proptest! {
    #[test]
    fn every_turn_passes_the_check_of_loading(end in ended()) {
        let turn = end.turn("run-1");
        let read = Turn::from_stored(&turn.to_stored());
        prop_assert!(read.is_ok(), "{read:?}");
    }

    #[test]
    fn user_texts_stay_in_the_turn(end in ended()) {
        let turn = end.turn("run-1");
        let user_texts: Vec<&str> = turn.items().iter().filter_map(|item| match item {
            TurnItem::User { text, .. } => Some(text.as_str()),
            TurnItem::Assistant(_) => None,
        }).collect();
        prop_assert_eq!(user_texts, end.story.user_texts());
    }

    #[test]
    fn every_call_keeps_its_place_and_gets_one_answer(end in ended()) {
        let draft = end.story.draft("run-1");
        let before: Vec<_> = draft.calls().map(|(id, tool, end)| (id.clone(), tool.to_owned(), end)).collect();
        let turn = end.turn("run-1");
        let after: Vec<_> = turn.answered_calls().collect();
        prop_assert_eq!(before.len(), after.len());
        for ((id, tool, end), call) in before.iter().zip(after) {
            prop_assert_eq!((id, tool), (&call.call.id, &call.call.tool));
            // A tool's own result is never replaced; only a missing one is synthesised.
            prop_assert_eq!(end.is_none(), call.synthetic.is_some());
            prop_assert!(end.is_none_or(|end| end == call.result.end));
            prop_assert!(call.synthetic.is_none() || !is_blank(&call.result.output));
        }
    }

    #[test]
    fn two_drafts_never_share_a_synthetic_id(
        story in story(), other in story(), abort in abort(), policy in policy(),
        runs in ("[a-z0-9][a-z0-9:._-]{0,11}", "[a-z0-9][a-z0-9:._-]{0,11}"),
    ) {
        prop_assume!(runs.0 != runs.1);
        let turns = [
            seal(story.draft(&runs.0), &abort, policy),
            seal(story.draft(&runs.1), &abort, policy),
            seal(other.draft(&format!("{}:other", runs.0)), &abort, policy),
        ];
        let all: Vec<&str> = turns.iter().flat_map(Turn::synthetic_ids).collect();
        prop_assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    }

    #[test]
    fn the_same_draft_seals_to_the_same_turn(end in ended()) {
        prop_assert_eq!(end.turn("run-1"), end.turn("run-1"));
    }

    #[test]
    fn derived_ids_are_legal_everywhere(run in "[a-zA-Z0-9][a-zA-Z0-9._:-]{0,127}", ordinal in any::<usize>(), salt in any::<u32>()) {
        let id = derived_call_id(&run_id(&run), ordinal, salt);
        prop_assert!(id.len() <= 40 && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'));
    }

    #[test]
    fn bounded_output_does_not_depend_on_how_it_came(
        pieces in proptest::collection::vec(("[aüあ🛑\n]{0,30}", 0..150_usize), 0..12),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let pieces: Vec<String> = pieces.iter().map(|(text, times)| text.repeat(*times)).collect();
        let whole = pieces.concat();
        let mut places: Vec<usize> = cuts.iter().map(|cut| whole.floor_char_boundary(cut.index(whole.len() + 1))).collect();
        places.extend([0, whole.len()]);
        places.sort_unstable();
        let (mut one, mut other, mut single) = (HeadTailBuffer::default(), HeadTailBuffer::default(), HeadTailBuffer::default());
        pieces.iter().for_each(|piece| one.push(piece));
        places.windows(2).for_each(|pair| other.push(&whole[pair[0]..pair[1]]));
        single.push(&whole);
        prop_assert_eq!(one.text(), single.text());
        prop_assert_eq!(other.text(), single.text());
        prop_assert!(single.text().len() <= 16 * 1024 + 64);
        // The head may end up to three bytes early, before a character that does not fit.
        prop_assert!(whole.len() > 16 * 1024 - 3 || single.text() == whole);
    }
}
