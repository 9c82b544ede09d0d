//! What an edit tolerates, and what it refuses.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn edit(text: &str, old: &str, new: &str) -> Result<EditedText, EditProblem> {
    edit_text(text, TextEdit { old, new, mode: ReplaceMode::Unique }, 1 << 20)
}

#[rstest]
#[case::exact(MatchTolerance::Exact, "let a = 1;\n", "a = 1", "a = 2", "let a = 2;\n")]
#[case::crlf_file(MatchTolerance::LineEndings, "a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\n", "x\r\ny\r\nc\r\n")]
#[case::lf_file(MatchTolerance::LineEndings, "a\nb\nc\n", "a\r\nb\r\n", "x\n", "x\nc\n")]
#[case::exact_in_crlf(MatchTolerance::Exact, "a\r\nb\r\n", "a", "x\ny", "x\r\ny\r\nb\r\n")]
#[case::trailing_in_file(MatchTolerance::TrailingSpace, "if a:  \n\tb\t\nc\n", "if a:\n\tb\n", "d\n", "d\nc\n")]
#[case::trailing_in_old(MatchTolerance::TrailingSpace, "if a:\n  b\n", "if a:  \n  b  ", "c", "c\n")]
#[case::quotes(
    MatchTolerance::LookAlikes,
    "say(\u{201c}it\u{2019}s\u{201d}) \u{2014} ok\n",
    "say(\"it's\") - ok",
    "x",
    "x\n"
)]
#[case::quotes_in_old(MatchTolerance::LookAlikes, "a = \"b\"\n", "a = \u{201c}b\u{201d}", "a = 1", "a = 1\n")]
#[case::nbsp(MatchTolerance::LookAlikes, "a\u{a0}b\n", "a b", "c", "c\n")]
#[case::ellipsis(MatchTolerance::LookAlikes, "wait\u{2026} ok\n", "wait... ok", "x", "x\n")]
#[case::numbers(
    MatchTolerance::LineNumbers,
    "fn a() {\n    b();\n}\n",
    "7:fn a() {\n8:    b();",
    "7:fn c() {\n8:    b();",
    "fn c() {\n    b();\n}\n"
)]
#[case::numbers_of_cat(MatchTolerance::LineNumbers, "x\n\ny\n", "    1\tx\n    2\t\n    3\ty\n", "z\n", "z\n")]
#[case::indented_more(
    MatchTolerance::Indentation,
    "mod a {\n    fn b() {\n        c();\n    }\n}\n",
    "fn b() {\n    c();\n}\n",
    "fn b() {\n    if d {\n        e();\n    }\n}\n",
    "mod a {\n    fn b() {\n        if d {\n            e();\n        }\n    }\n}\n"
)]
#[case::indented_less(MatchTolerance::Indentation, "a:\n  b\n", "    a:\n      b", "    a:\n      c", "a:\n  c\n")]
#[case::tabs(
    MatchTolerance::Indentation,
    "\tif a {\n\t\tb\n\t}\n",
    "    if a {\n        b\n    }",
    "    if c {\n        b\n    }",
    "\tif c {\n\t\tb\n\t}\n"
)]
fn an_edit_tolerates(
    #[case] tolerance: MatchTolerance,
    #[case] text: &str,
    #[case] old: &str,
    #[case] new: &str,
    #[case] wanted: &str,
) {
    let edited = edit(text, old, new).unwrap();
    assert_eq!((edited.text.as_str(), edited.tolerance, edited.places), (wanted, tolerance, 1));
}

#[test]
fn the_least_tolerant_step_with_a_match_decides() {
    let text = "  a\na\n";
    assert_eq!(edit(text, "\na\n", "\nb\n").unwrap().text, "  a\nb\n");
    assert_eq!(edit("q \u{201c}a\u{201d}\nq \"a\"\n", "q \"a\"", "z").unwrap().first_line, 2);
}

#[rstest]
#[case::exact("a\nb\na\n", "a", &[1, 3], 2, MatchTolerance::Exact)]
#[case::overlapping("aaa", "aa", &[1, 1], 2, MatchTolerance::Exact)]
#[case::trailing("a \nb\na  \nb\n", "a\nb", &[1, 3], 2, MatchTolerance::TrailingSpace)]
#[case::indentation("  a\n  b\n    a\n    b\n", "\ta\n\tb", &[1, 3], 2, MatchTolerance::Indentation)]
fn several_places_are_refused(
    #[case] text: &str,
    #[case] old: &str,
    #[case] lines: &[usize],
    #[case] places: usize,
    #[case] tolerance: MatchTolerance,
) {
    assert_eq!(edit(text, old, "z").unwrap_err(), EditProblem::Ambiguous { lines: lines.to_vec(), places, tolerance });
}

#[rstest]
#[case::other_text("let a = 1;\n", "let b = 1;")]
#[case::blank("a\n\n", "   \t")]
#[case::relative_indentation_differs("if a:\n    b\nc\n", "if a:\n    b\n    c\n")]
#[case::no_line_numbers("a\nb\n", "1:a\n3:b\n")]
#[case::part_of_a_line_with_other_indentation("foo(a);\n", "  foo(")]
fn what_differs_in_more_is_not_found(#[case] text: &str, #[case] old: &str) {
    assert_eq!(edit(text, old, "z").unwrap_err(), EditProblem::NotFound);
}

#[test]
fn every_place_is_replaced_on_request() {
    let everywhere =
        |text, old, new, limit| edit_text(text, TextEdit { old, new, mode: ReplaceMode::Everywhere }, limit);
    let edited = everywhere("a \nb\na  \nb\n", "a\nb", "c", 100).unwrap();
    assert_eq!((edited.text.as_str(), edited.places, edited.first_line), ("c\nc\n", 2, 1));
    assert_eq!(everywhere("aaaa", "aa", "b", 100).unwrap().text, "bb");
    assert!(matches!(everywhere("aaaa", "a", "bbbbbbbb", 20), Err(EditProblem::TooLarge { .. })));
}

#[test]
fn a_large_text_is_matched_exactly_only() {
    let text = format!("{}a \nb\n", "x\n".repeat(MAX_TOLERANT_BYTES / 2));
    let edit = |old| edit_text(&text, TextEdit { old, new: "c", mode: ReplaceMode::Unique }, usize::MAX);
    assert_eq!(edit("a\nb"), Err(EditProblem::NotFound));
    assert_eq!(edit("a \nb").unwrap().places, 1);
}

#[test]
fn the_nearest_lines_are_numbered() {
    let text = "one\nfn main() {\n    let a = 1;\n    print(a);\n}\n";
    let near = nearest_lines(text, "fn main() {\n    let a = 2;\n    print(a);").unwrap();
    assert_eq!(near.numbered, "2: fn main() {\n3:     let a = 1;\n4:     print(a);\n");
    assert_eq!(near.first_difference.as_deref(), Some("let a = 2;"));
    assert_eq!(nearest_lines("abc\n", "completely other"), None);
    assert_eq!(nearest_lines("", "a"), None);
}

proptest! {
    #[test]
    fn an_exact_match_always_works(head in "[a-c \n]{0,20}", old in "[d-f \t\n]{0,10}g", tail in "[a-c \r\n]{0,20}") {
        let text = format!("{head}{old}{tail}");
        let edited = edit(&text, &old, "z").unwrap();
        prop_assert_eq!(edited.text, format!("{head}z{tail}"));
        prop_assert_eq!(edited.tolerance, MatchTolerance::Exact);
    }

    #[test]
    fn no_text_makes_an_edit_panic(text in "\\PC{0,60}(\r?\n\\PC{0,20}){0,4}", old in "\\PC{0,30}(\r?\n\\PC{0,9}){0,3}", new in "\\PC{0,20}") {
        let _ = edit(&text, &old, &new);
        let _ = nearest_lines(&text, &old);
    }
}
