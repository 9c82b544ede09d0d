//! Fragments of calls, as servers really send them.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn fragment(index: Option<u64>, id: &str, name: &str, arguments: &str) -> ToolCallFragment {
    ToolCallFragment { index, id: id.to_owned(), name: name.to_owned(), arguments: arguments.to_owned() }
}

/// Assembles messages, each with its fragments, to calls as (id, name, arguments).
fn assemble(messages: &[Vec<ToolCallFragment>]) -> Vec<(Option<String>, String, String)> {
    let mut calls = ToolCallAssembler::default();
    for message in messages {
        for (place, fragment) in message.iter().enumerate() {
            calls.add_fragment(place, fragment.clone());
        }
    }
    calls.into_calls().into_iter().map(|call| (call.id, call.name, call.arguments)).collect()
}

fn call(id: &str, name: &str, arguments: &str) -> (Option<String>, String, String) {
    (Some(id.to_owned()).filter(|id| !id.is_empty()), name.to_owned(), arguments.to_owned())
}

const NONE: Option<u64> = None;

#[rstest]
#[case::numbered_and_interleaved(
    vec![
        vec![fragment(Some(0), "a", "x", "")],
        vec![fragment(Some(1), "b", "y", "")],
        vec![fragment(Some(0), "", "", "{1")],
        vec![fragment(Some(1), "", "", "{2"), fragment(Some(0), "", "", "}")],
        vec![fragment(Some(1), "", "", "}")],
    ],
    vec![call("a", "x", "{1}"), call("b", "y", "{2}")]
)]
#[case::id_and_name_in_every_piece(
    vec![vec![fragment(Some(0), "a", "x", "")], vec![fragment(Some(0), "a", "x", "{")], vec![fragment(Some(0), "a", "x", "}")]],
    vec![call("a", "x", "{}")]
)]
#[case::every_call_is_number_zero(
    vec![vec![fragment(Some(0), "a", "x", "{}")], vec![fragment(Some(0), "b", "x", "{}")]],
    vec![call("a", "x", "{}"), call("b", "x", "{}")]
)]
#[case::double_ids_under_two_numbers(
    vec![vec![fragment(Some(0), "a", "x", "{}"), fragment(Some(1), "a", "x", "{}")]],
    vec![call("a", "x", "{}"), call("a", "x", "{}")]
)]
#[case::double_ids_without_numbers_in_one_message(
    vec![vec![fragment(NONE, "a", "x", "{}"), fragment(NONE, "a", "x", "{}")]],
    vec![call("a", "x", "{}"), call("a", "x", "{}")]
)]
#[case::no_numbers_in_pieces(
    vec![vec![fragment(NONE, "a", "x", "")], vec![fragment(NONE, "", "", "{")], vec![fragment(NONE, "", "", "}")]],
    vec![call("a", "x", "{}")]
)]
#[case::no_numbers_one_call_after_the_other(
    vec![vec![fragment(NONE, "a", "x", "{")], vec![fragment(NONE, "", "", "}")], vec![fragment(NONE, "b", "x", "{}")]],
    vec![call("a", "x", "{}"), call("b", "x", "{}")]
)]
#[case::neither_numbers_nor_ids(
    vec![vec![fragment(NONE, "", "x", "{}")], vec![fragment(NONE, "", "x", "{}")]],
    vec![call("", "x", "{}"), call("", "x", "{}")]
)]
#[case::numbers_that_begin_anywhere(
    vec![vec![fragment(Some(7), "a", "x", "{}")], vec![fragment(Some(3), "b", "y", "{}")]],
    vec![call("a", "x", "{}"), call("b", "y", "{}")]
)]
#[case::no_arguments(vec![vec![fragment(Some(0), "a", "x", "")]], vec![call("a", "x", "")])]
#[case::nothing(vec![vec![]], vec![])]
fn calls_come_together(
    #[case] messages: Vec<Vec<ToolCallFragment>>,
    #[case] expected: Vec<(Option<String>, String, String)>,
) {
    assert_eq!(assemble(&messages), expected);
}

/// A text in pieces, split between any characters.
fn split_at(text: &str, at: &[prop::sample::Index]) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let mut places: Vec<usize> = at.iter().map(|index| index.index(chars.len() + 1)).collect();
    places.extend([0, chars.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| chars[pair[0]..pair[1]].iter().collect()).collect()
}

proptest! {
    #[test]
    fn numbered_calls_survive_any_cut(
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        parallel in 1_u64..4,
    ) {
        let (id, name, arguments) = ("call_abc", "read_file", r#"{"path":"a/안"}"#);
        let mut messages = Vec::new();
        for part in split_at(id, &cuts) {
            messages.push((0..parallel).map(|n| fragment(Some(n), &part, "", "")).collect());
        }
        for part in split_at(name, &cuts) {
            messages.push((0..parallel).map(|n| fragment(Some(n), "", &part, "")).collect());
        }
        for part in split_at(arguments, &cuts) {
            messages.push((0..parallel).map(|n| fragment(Some(n), "", "", &part)).collect::<Vec<_>>());
        }
        let expected = vec![call(id, name, arguments); usize::try_from(parallel).unwrap()];
        prop_assert_eq!(assemble(&messages), expected);
    }
}
