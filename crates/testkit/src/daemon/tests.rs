//! The rules for the events of a run find every fault.

use rstest::rstest;
use serde_json::json;

use super::*;

fn event_log(kinds: &[(u64, &str)]) -> TestRunEventLog {
    let event = |(seq, kind): &(u64, &str)| {
        let data = json!({"type": kind, "seq": seq, "callId": "c1", "verdict": {"kind": "aborted"}});
        ReceivedEvent { seq: *seq, kind: (*kind).to_owned(), data, at: Instant::now() }
    };
    TestRunEventLog { after: 0, events: kinds.iter().map(event).collect() }
}

const VALID_SEQUENCE: &[(u64, &str)] = &[
    (1, "run.queued"),
    (2, "run.started"),
    (3, "text.delta"),
    (4, "tool.started"),
    (5, "run.ending"),
    (6, "tool.output"),
    (7, "tool.ended"),
    (8, "approval.resolved"),
    (9, "run.ended"),
];

#[test]
fn a_sound_log_has_no_faults_also_with_a_snapshot_or_from_the_middle() {
    assert_eq!(event_log(VALID_SEQUENCE).violations(), Vec::<String>::new());
    let behind = event_log(&[(1, "run.queued"), (40, "run.snapshot"), (41, "run.ended")]);
    assert_eq!(behind.violations(), Vec::<String>::new());
    let resumed = TestRunEventLog { after: 7, ..event_log(&VALID_SEQUENCE[7..]) };
    assert_eq!(resumed.violations(), Vec::<String>::new());
}

#[rstest]
#[case::number_falls(3, (2, "text.delta"), "does not rise")]
#[case::number_repeats(2, (3, "text.delta"), "does not rise")]
#[case::delta_after_ending(5, (6, "text.delta"), "text.delta after the ending")]
#[case::thinking_after_ending(5, (6, "thinking.delta"), "thinking.delta after the ending")]
#[case::tool_after_ending(7, (8, "tool.started"), "tool.started after the ending")]
#[case::second_ending(5, (6, "run.ending"), "2 endings")]
#[case::second_end(8, (9, "run.ended"), "2 ends")]
#[case::after_the_end(9, (10, "usage"), "1 ends; exactly one is due, as the last event")]
#[case::second_tool_end(7, (8, "tool.ended"), "call c1: started 1, ended 2")]
fn an_event_too_many_is_a_fault(#[case] at: usize, #[case] event: (u64, &str), #[case] fault: &str) {
    let mut kinds = VALID_SEQUENCE.to_vec();
    kinds.insert(at, event);
    let faults = event_log(&kinds).violations();
    assert!(faults.iter().any(|found| found.contains(fault)), "{faults:#?}");
}

#[rstest]
#[case::delta(3, "a hole behind 2 without a snapshot")]
#[case::ending(5, "0 endings")]
#[case::tool_end(7, "call c1: started 1, ended 0")]
#[case::end(9, "0 ends")]
fn an_event_too_few_is_a_fault(#[case] seq: u64, #[case] fault: &str) {
    let kinds: Vec<(u64, &str)> = VALID_SEQUENCE.iter().copied().filter(|(at, _)| *at != seq).collect();
    let faults = event_log(&kinds).violations();
    assert!(faults.iter().any(|found| found.contains(fault)), "{faults:#?}");
}

#[test]
fn a_frame_that_contradicts_its_data_and_two_verdicts_are_faults() {
    let mut wrong = event_log(VALID_SEQUENCE);
    wrong.events[2].kind = "thinking.delta".into();
    wrong.events[1].data["seq"] = json!(7);
    wrong.events[8].data["verdict"]["kind"] = json!("completed");
    let faults = wrong.violations();
    for fault in ["is not of type thinking.delta", "has another number", "different verdicts"] {
        assert!(faults.iter().any(|found| found.contains(fault)), "{faults:#?}");
    }
}
