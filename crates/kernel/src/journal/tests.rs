//! The lines rebuild the draft, however they were joined and wherever a crash cut them off.

use proptest::prelude::*;
use quell_protocol::{By, CallEnd, Principal, StopReason, Surface};
use serde_json::json;

use super::*;
use crate::turn::sample::{run_id, story};
use crate::turn::{PartialPolicy, ToolCall};

fn written(lines: &[Line]) -> Vec<Line> {
    lines.iter().map(|line| serde_json::from_str(&serde_json::to_string(line).unwrap()).unwrap()).collect()
}

fn joined(lines: impl IntoIterator<Item = Line>) -> Vec<Line> {
    let mut waiting = Waiting::default();
    for line in lines {
        waiting.push(line);
    }
    waiting.take().into_iter().map(|(_, line)| line).collect()
}

proptest! {
    #[test]
    fn lines_rebuild_the_draft_wherever_they_are_cut_off(
        story in story(), cut in any::<prop::sample::Index>(), writes in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let (draft, lines) = story.journaled("run-1", cut);
        let mut places: Vec<usize> = writes.iter().map(|at| at.index(lines.len() + 1)).collect();
        places.extend([0, lines.len()]);
        places.sort_unstable();
        let (mut waiting, mut rows) = (Waiting::default(), BTreeMap::new());
        for pair in places.windows(2) {
            for line in &lines[pair[0]..pair[1]] {
                waiting.push(line.clone());
            }
            rows.extend(waiting.take());
        }
        prop_assert!(rows.len() <= lines.len() && waiting.is_empty());
        let rows: Vec<Line> = rows.into_values().collect();
        let folded = Folded::of(run_id("run-1"), story.user.clone(), written(&rows));
        prop_assert_eq!(&folded.draft, &draft);
    }

    #[test]
    fn numbers_are_reserved_before_they_are_used(events in 1..100_000_u64) {
        let (mut numbers, mut told) = (Numbers::default(), Vec::new());
        for seq in 1..=events {
            told.extend(numbers.used(seq));
            prop_assert!(seq < numbers.until());
        }
        let folded = Folded::of(run_id("run-1"), "go".to_owned(), told.clone());
        prop_assert_eq!(folded.numbers, numbers);
        prop_assert!(told.len() as u64 <= events / NUMBERS + 1, "too many lines: {told:?}");
    }
}

#[test]
fn a_call_that_prints_for_ever_has_one_row() {
    let call = CallId::parse("c1").unwrap();
    let (mut waiting, mut rows) = (Waiting::default(), BTreeMap::new());
    waiting.push(Line::Began { call: call.clone(), at: None });
    for round in 0..1000 {
        for n in 0..20 {
            let text = format!("{round}.{n} {}\n", "0123456789".repeat(10));
            assert!(!waiting.push(Line::Printed { call: call.clone(), text }).is_zero(), "output hurries the journal");
        }
        waiting.push(Line::Numbers { until: 7 });
        rows.extend(waiting.take().into_iter().filter(|(_, line)| !matches!(line, Line::Numbers { .. })));
        assert!(waiting.is_empty());
    }
    assert_eq!(rows.len(), 2);
    let Some(Line::Printed { text, .. }) = rows.values().last() else { panic!("{rows:?}") };
    assert!(text.starts_with("0.0 ") && text.contains("bytes left out") && text.contains("999.19 "), "{text}");
    assert!(text.len() < 17 * 1024, "{}", text.len());
    waiting.push(Line::Printed { call: call.clone(), text: "and nothing more".to_owned() });
    let result = CallResult::new(CallEnd::Ok, "all of it");
    waiting.push(Line::Finished { call, result: result.clone() });
    rows.extend(waiting.take());
    assert_eq!(rows.len(), 2, "the result stands beside what was printed: {rows:?}");
    assert!(matches!(rows.values().last(), Some(Line::Finished { result: kept, .. }) if *kept == result), "{rows:?}");
}

#[test]
fn text_of_the_model_hurries_the_journal_when_there_is_much_of_it() {
    let mut waiting = Waiting::default();
    assert_eq!(waiting.push(Line::Text { text: "x".repeat(TEXT_BYTES - 1) }), TEXT_WAITS);
    assert_eq!(waiting.push(Line::Thinking { text: "y".to_owned() }), Duration::ZERO);
    waiting.take();
    assert_eq!(waiting.push(Line::Text { text: "z".to_owned() }), TEXT_WAITS);
}

#[test]
fn what_was_told_before_the_crash_is_told_of_the_run() {
    let by = By { principal: Principal::parse("alice").unwrap(), surface: Surface::Http };
    let verdict = Verdict::Aborted { reason: StopReason::User, by: Some(by) };
    let usage = |output_tokens| Usage { input_tokens: 7, output_tokens, estimated: true };
    let asked = Some("2026-11-20T10:00:00.000000Z".to_owned());
    let lines = joined([
        Line::Step { step: 1 },
        Line::Spent { usage: usage(0) },
        Line::Spent { usage: usage(9) },
        Line::Step { step: 2 },
        Line::Ending { verdict: verdict.clone(), requested_at: asked.clone() },
    ]);
    assert_eq!(lines.len(), 4);
    let folded = Folded::of(run_id("run-1"), "go".to_owned(), lines);
    assert_eq!((folded.steps, folded.usage, folded.ending), (2, usage(9), Some((verdict, asked))));
    assert_eq!(folded.numbers.until(), NUMBERS);
}

/// A daemon of a later version folds what an older one has left.
#[test]
fn lines_that_version_1_wrote_stay_readable() {
    let old = include_str!("fixtures/journal-v1.jsonl");
    let lines: Vec<Line> = old.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(written(&lines), lines);
    // Messages are written in blocks now; everything else as it was.
    let again = lines.iter().map(|line| serde_json::to_string(line).unwrap());
    let differ = again.zip(old.lines()).filter(|(again, old)| again != old).map(|(_, old)| old);
    assert!(differ.eq(old.lines().filter(|line| line.contains(r#""kind":"message""#))));
    let folded = Folded::of(run_id("run-1"), "go".to_owned(), lines);
    let (verdict, _) = folded.ending.unwrap();
    let turn = crate::turn::sample::seal(folded.draft, &verdict, PartialPolicy::Discard);
    let call = CallId::parse("c1").unwrap();
    assert_eq!(turn.result_of(&call), Some(&CallResult::new(CallEnd::Ok, "412 files")));
    assert!(turn.result_of(&CallId::parse("c2").unwrap()).unwrap().output.ends_with("syncing disk 1\n"));
    assert_eq!(turn.partial().map(|partial| partial.text.as_str()), None);
    assert_eq!(turn.compaction().map(|compaction| compaction.kept), Some(2));
}

#[test]
fn a_call_waits_for_its_line_and_text_does_not() {
    let call = ToolCall::from_wire("c1", "shell", json!({}));
    assert_eq!(Line::Began { call: call.id, at: None }.patience(), Duration::ZERO);
    assert_eq!(Line::Text { text: String::new() }.patience(), TEXT_WAITS);
    assert!(Line::Step { step: 1 }.patience() > Line::User { text: String::new(), at: None }.patience());
}
