//! Tests of partial replies.

use super::super::{sanitise_partial_reply, sanitise_reply};
use super::{NARRATION, ORDINARY, PROTOCOL, parse_golden_cases, rules_keeping_narration, tools};

/// So no protocol is shown half: what is shown begins what the golden tables expect in the end.
#[test]
fn a_partial_reply_only_grows() {
    let tools = tools();
    for row in [PROTOCOL, ORDINARY, NARRATION].into_iter().flat_map(parse_golden_cases) {
        let mut shown = String::new();
        for (end, _) in row.input.char_indices().chain([(row.input.len(), ' ')]) {
            let now = sanitise_partial_reply(&row.input[..end], &tools);
            assert!(now.starts_with(&shown), "{}: at byte {end} {shown:?} became {now:?}", row.name);
            shown = now;
        }
        let last = sanitise_reply(row.input, &rules_keeping_narration(&tools));
        assert!(last.text.starts_with(&shown), "{}: {shown:?} became {last:?}", row.name);
    }
}

#[rstest::rstest]
#[case::tag("Yes. <tool_c", "Yes.")]
#[case::bracket("Yes. <", "Yes.")]
#[case::attributes("Yes.\n<invoke name=\"sh", "Yes.")]
#[case::no_tag("Yes, <b", "Yes, <b")]
#[case::comparison("Yes, a < b", "Yes, a < b")]
#[case::fence("Yes.\n```to", "Yes.")]
#[case::fence_marks("Yes.\n``", "Yes.")]
#[case::fence_of_protocol("Yes.\n```tool_call\n{\"name\"", "Yes.")]
#[case::ordinary_fence("Yes.\n```json\n{\"name\": \"shell\", \"arg", "Yes.\n```json\n{\"name\": \"shell\", \"arg")]
#[case::json("Yes.\n{\"name\": \"sh", "Yes.")]
#[case::foreign_json("Yes.\n{\"city\": \"Seoul\", \"pop", "Yes.\n{\"city\": \"Seoul\", \"pop")]
#[case::thought("<think>\nHm", "")]
#[case::prefix("[Used to", "")]
#[case::other_prefix("[Used by", "[Used by")]
#[case::mention("The <think> tag", "The <think> tag")]
#[case::code("The `<think>` tag", "The `<think>` tag")]
#[case::in_code("Write `<tool_call>{\"name\": \"shell\", \"arguments\": {}}</tool_call>", "Write `")]
fn half_a_reply(#[case] text: &str, #[case] shown: &str) {
    assert_eq!(sanitise_partial_reply(text, &tools()), shown);
}

/// A draft must not lag far behind: most of an ordinary answer is shown while it streams.
#[test]
fn ordinary_answers_are_shown_while_they_are_written() {
    let tools = tools();
    for row in parse_golden_cases(ORDINARY).iter().filter(|row| row.input.len() > 200) {
        let shown = sanitise_partial_reply(row.input, &tools);
        assert!(shown.len() * 2 > row.input.len(), "{}: {shown:?}", row.name);
    }
}
