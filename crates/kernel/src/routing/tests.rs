//! Tests of keyword matching in several scripts, and of invalid routing rules.

use proptest::prelude::*;
use rstest::rstest;

use super::{KeywordRule, ModelRoute, ModelRouter, contains_whole_word};

fn keywords(words: &[&str], hint: &str) -> KeywordRule {
    KeywordRule { words: words.iter().map(ToString::to_string).collect(), hint: hint.to_owned() }
}

fn route(hint: &str, provider: &str, model: &str) -> ModelRoute {
    ModelRoute { hint: hint.to_owned(), provider: provider.to_owned(), model: model.to_owned() }
}

fn rules() -> ModelRouter {
    ModelRouter::new(
        vec![
            keywords(&["refactor", "C++", "코드", "代码"], "code"),
            keywords(&["summarise", "résumé", "fix bug"], "fast"),
        ],
        vec![route("fast", "local", "llama3.2"), route("code", "openrouter", "anthropic/claude-sonnet-4-5")],
    )
}

#[rstest]
#[case::plain("please refactor this", Some("code"))]
#[case::upper_case("REFACTOR this!", Some("code"))]
#[case::punctuation_is_no_letter("(refactor)", Some("code"))]
#[case::markdown("_refactor_ it", Some("code"))]
#[case::part_of_a_longer_word("refactoring is fun", None)]
#[case::behind_a_longer_one("prerefactor", None)]
#[case::second_place_counts("refactoring, then refactor", Some("code"))]
#[case::with_signs_of_its_own("write it in c++, please", Some("code"))]
#[case::with_more_signs("c+++", Some("code"))]
#[case::two_words("can you fix bug 7", Some("fast"))]
#[case::accents("mon résumé", Some("fast"))]
#[case::korean_with_a_particle("이 코드를 봐 줘", Some("code"))]
#[case::chinese_without_spaces("请看代码好吗", Some("code"))]
#[case::latin_between_chinese("请refactor一下", Some("code"))]
#[case::first_entry_wins("summarise, then refactor", Some("code"))]
#[case::nothing("hello", None)]
#[case::empty("", None)]
fn a_message_is_known_by_its_words(#[case] text: &str, #[case] hint: Option<&str>) {
    assert_eq!(rules().hint_for(text), hint);
}

#[test]
fn a_hint_leads_to_its_route_and_no_hint_to_the_default() {
    let rules = rules();
    assert_eq!(rules.model_for("summarise it").as_deref(), Some("local/llama3.2"));
    assert_eq!(rules.model_for("refactor it").as_deref(), Some("openrouter/anthropic/claude-sonnet-4-5"));
    assert_eq!(rules.model_for("hello"), None);
    assert_eq!(ModelRouter::default().model_for("refactor it"), None);
    assert_eq!(rules.problems(), []);
}

#[test]
fn greek_words_are_found_in_capitals() {
    let rules = ModelRouter::new(vec![keywords(&["λόγος"], "h")], vec![route("h", "p", "m")]);
    assert_eq!(rules.hint_for("ΛΌΓΟΣ"), Some("h"));
}

#[test]
fn a_sign_that_joins_consonants_does_not_end_a_word() {
    let rules = ModelRouter::new(vec![keywords(&["नमस"], "h"), keywords(&["नमस्ते"], "greeting")], vec![]);
    assert_eq!(rules.hint_for("नमस्ते।"), Some("greeting"));
}

#[test]
fn an_accent_that_comes_taken_apart_does_not_end_a_word() {
    let rules = ModelRouter::new(vec![keywords(&["caf", "resume"], "h")], vec![]);
    assert_eq!(rules.hint_for("cafe\u{301}, resume\u{301}"), None);
}

#[test]
fn places_that_overlap_are_all_looked_at() {
    assert!(contains_whole_word("xa a a", "a a"));
    assert!(!contains_whole_word("xa a ab", "a a"));
}

#[rstest]
#[case::no_word(vec![keywords(&[], "h")], vec![route("h", "p", "m")], "keywords.0.words", "at least one")]
#[case::blank_word(vec![keywords(&["  "], "h")], vec![route("h", "p", "m")], "keywords.0.words", "at least one")]
#[case::hint_without_route(vec![keywords(&["x"], "h")], vec![], "keywords.0.hint", "[[routing.model_routes]] with hint = \"h\"")]
#[case::blank_model(vec![], vec![route("h", "p", " ")], "model_routes.0.model", "is blank")]
#[case::twice(vec![], vec![route("h", "p", "m"), route("h", "p", "n")], "model_routes.1.hint", "never taken")]
fn rules_that_cannot_work_are_named(
    #[case] words: Vec<KeywordRule>,
    #[case] routes: Vec<ModelRoute>,
    #[case] place: &str,
    #[case] says: &str,
) {
    let problems = ModelRouter::new(words, routes).problems();
    let [problem] = problems.as_slice() else { panic!("{problems:?}") };
    assert_eq!(problem.place, place);
    assert!(problem.problem.contains(says), "{problem}");
}

proptest! {
    #[test]
    fn a_word_between_spaces_is_found_in_any_text(before in any::<String>(), word in "\\PC{1,12}", after in any::<String>()) {
        prop_assume!(!word.trim().is_empty());
        let rules = ModelRouter::new(vec![keywords(&[&word], "h")], vec![]);
        let text = format!("{before} {} {after}", word.trim());
        prop_assert_eq!(rules.hint_for(&text), Some("h"));
    }
}
