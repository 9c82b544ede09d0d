//! Tests that replayed lines rebuild the draft, however they were merged and wherever a crash cut them off.

use proptest::prelude::*;
use quell_protocol::{CallEnd, Principal, Requester, StopReason, Surface};
use serde_json::json;

use super::*;
use crate::turn::samples::{run_id, story};
use crate::turn::{PartialPolicy, ToolCall};

fn round_trip(lines: &[JournalLine]) -> Vec<JournalLine> {
    lines.iter().map(|line| serde_json::from_str(&serde_json::to_string(line).unwrap()).unwrap()).collect()
}

fn through_buffer(lines: impl IntoIterator<Item = JournalLine>) -> Vec<JournalLine> {
    let mut buffer = JournalBuffer::default();
    for line in lines {
        buffer.push(line);
    }
    buffer.take_rows().into_iter().map(|(_, line)| line).collect()
}

proptest! {
    #[test]
    fn lines_rebuild_the_draft_wherever_they_are_cut_off(
        story in story(), cut in any::<prop::sample::Index>(), writes in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let (draft, lines) = story.journaled("run-1", cut);
        let mut cuts: Vec<usize> = writes.iter().map(|at| at.index(lines.len() + 1)).collect();
        cuts.extend([0, lines.len()]);
        cuts.sort_unstable();
        let (mut buffer, mut rows) = (JournalBuffer::default(), BTreeMap::new());
        for pair in cuts.windows(2) {
            for line in &lines[pair[0]..pair[1]] {
                buffer.push(line.clone());
            }
            rows.extend(buffer.take_rows());
        }
        prop_assert!(rows.len() <= lines.len() && buffer.is_empty());
        let rows: Vec<JournalLine> = rows.into_values().collect();
        let replayed = ReplayedRun::replay(TurnDraft::new(run_id("run-1"), story.user.clone()), round_trip(&rows));
        prop_assert_eq!(&replayed.draft, &draft);
    }

    #[test]
    fn numbers_are_reserved_before_they_are_used(events in 1..100_000_u64) {
        let (mut reservation, mut lines) = (SeqReservation::default(), Vec::new());
        for seq in 1..=events {
            lines.extend(reservation.reserve_through(seq));
            prop_assert!(seq < reservation.0);
        }
        let replayed = ReplayedRun::replay(TurnDraft::new(run_id("run-1"), "go".to_owned()), lines.clone());
        prop_assert_eq!(replayed.seq_reservation, reservation);
        prop_assert!(lines.len() as u64 <= events / SEQ_BLOCK_SIZE + 1, "too many lines: {lines:?}");
    }
}

#[test]
fn a_call_that_prints_for_ever_has_one_row() {
    let call = CallId::parse("c1").unwrap();
    let (mut buffer, mut rows) = (JournalBuffer::default(), BTreeMap::new());
    buffer.push(JournalLine::Began { call: call.clone(), at: None });
    for round in 0..1000 {
        for n in 0..20 {
            let text = format!("{round}.{n} {}\n", "0123456789".repeat(10));
            assert!(
                !buffer.push(JournalLine::Printed { call: call.clone(), text }).is_zero(),
                "output hurries the journal"
            );
        }
        buffer.push(JournalLine::Numbers { until: 7 });
        rows.extend(buffer.take_rows().into_iter().filter(|(_, line)| !matches!(line, JournalLine::Numbers { .. })));
        assert!(buffer.is_empty());
    }
    assert_eq!(rows.len(), 2);
    let Some(JournalLine::Printed { text, .. }) = rows.values().last() else { panic!("{rows:?}") };
    assert!(text.starts_with("0.0 ") && text.contains("bytes left out") && text.contains("999.19 "), "{text}");
    assert!(text.len() < 17 * 1024, "{}", text.len());
    buffer.push(JournalLine::Printed { call: call.clone(), text: "and nothing more".to_owned() });
    let result = CallResult::new(CallEnd::Ok, "all of it");
    buffer.push(JournalLine::Finished { call, result: result.clone() });
    rows.extend(buffer.take_rows());
    assert_eq!(rows.len(), 2, "the result stands beside what was printed: {rows:?}");
    assert!(
        matches!(rows.values().last(), Some(JournalLine::Finished { result: kept, .. }) if *kept == result),
        "{rows:?}"
    );
}

#[test]
fn text_of_the_model_hurries_the_journal_when_there_is_much_of_it() {
    let mut buffer = JournalBuffer::default();
    assert_eq!(buffer.push(JournalLine::Text { text: "x".repeat(TEXT_FLUSH_BYTES - 1) }), TEXT_MAX_DELAY);
    assert_eq!(buffer.push(JournalLine::Thinking { text: "y".to_owned() }), Duration::ZERO);
    buffer.take_rows();
    assert_eq!(buffer.push(JournalLine::Text { text: "z".to_owned() }), TEXT_MAX_DELAY);
}

#[test]
fn the_journal_restores_the_verdict_and_the_usage() {
    let by = Requester { principal: Principal::parse("alice").unwrap(), surface: Surface::Http };
    let verdict = Verdict::Aborted { reason: StopReason::User, by: Some(by) };
    let usage = |output_tokens| Usage { input_tokens: 7, output_tokens, cached_tokens: 0, estimated: true };
    let asked = Some("2026-11-20T10:00:00.000000Z".to_owned());
    let lines = through_buffer([
        JournalLine::Step { step: 1 },
        JournalLine::Spent { usage: usage(0) },
        JournalLine::Spent { usage: usage(9) },
        JournalLine::Step { step: 2 },
        JournalLine::Ending { verdict: verdict.clone(), requested_at: asked.clone() },
    ]);
    assert_eq!(lines.len(), 4);
    let replayed = ReplayedRun::replay(TurnDraft::new(run_id("run-1"), "go".to_owned()), lines);
    assert_eq!((replayed.steps, replayed.usage, replayed.ending), (2, usage(9), Some((verdict, asked))));
    assert_eq!(replayed.seq_reservation.0, SEQ_BLOCK_SIZE);
}

/// A daemon of a later version replays the lines of an older one.
#[test]
fn lines_that_version_1_wrote_stay_readable() {
    let old = include_str!("fixtures/journal-v1.jsonl");
    let lines: Vec<JournalLine> = old.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(round_trip(&lines), lines);
    // Messages are written in blocks now. Everything else is as before.
    let again = lines.iter().map(|line| serde_json::to_string(line).unwrap());
    let differ = again.zip(old.lines()).filter(|(again, old)| again != old).map(|(_, old)| old);
    assert!(differ.eq(old.lines().filter(|line| line.contains(r#""kind":"message""#))));
    let replayed = ReplayedRun::replay(TurnDraft::new(run_id("run-1"), "go".to_owned()), lines);
    let (verdict, _) = replayed.ending.unwrap();
    let turn = crate::turn::samples::seal(replayed.draft, &verdict, PartialPolicy::Discard);
    let call = CallId::parse("c1").unwrap();
    assert_eq!(turn.result_of(&call), Some(&CallResult::new(CallEnd::Ok, "412 files")));
    assert!(turn.result_of(&CallId::parse("c2").unwrap()).unwrap().output.ends_with("syncing disk 1\n"));
    assert_eq!(turn.partial().map(|partial| partial.text.as_str()), None);
    assert_eq!(turn.compaction().map(|compaction| compaction.kept), Some(2));
}

#[test]
fn a_call_waits_for_its_line_and_text_does_not() {
    let call = ToolCall::from_wire("c1", "shell", json!({}));
    assert_eq!(JournalLine::Began { call: call.id, at: None }.max_delay(), Duration::ZERO);
    assert_eq!(JournalLine::Text { text: String::new() }.max_delay(), TEXT_MAX_DELAY);
    assert!(
        JournalLine::Step { step: 1 }.max_delay() > JournalLine::User { text: String::new(), at: None }.max_delay()
    );
}
