//! Tests of search words, scores and note selection.

mod consolidation;

use std::collections::HashSet;

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn note(key: &str, text: &str, score: f64) -> RecalledNote {
    RecalledNote { key: key.into(), text: text.into(), score }
}

const RECALL_LIMITS: RecallLimits<'static> = RecallLimits { min_score: 0.4, max_per_scope: 5, answered_key: "" };

fn selected_keys(scopes: &[Vec<RecalledNote>], limits: &RecallLimits<'_>) -> Vec<String> {
    select_notes(scopes, limits).into_iter().map(|note| note.key.clone()).collect()
}

#[rstest]
#[case("Is it my COLOUR? colour!", &["is", "it", "my", "colour"])]
#[case("42 or 1200 \"x\" AND NEAR(a*)", &["42", "or", "1200", "x", "and", "near", "a"])]
#[case("我最喜欢的", &["我 最", "最 喜", "喜 欢", "欢 的"])]
#[case("서울 a山b", &["서 울", "a", "山", "b"])]
#[case("東京タワー", &["東 京", "京 タ", "タ ワ", "ワ ー"])]
#[case("cafe\u{301}s naïve", &["cafe\u{301}s", "naïve"])]
#[case(" -- \"\" * ( ) \u{0} ", &[])]
fn a_query_is_words(#[case] query: &str, #[case] wanted: &[&str]) {
    let words = parse_query_words(query);
    assert_eq!(words.iter().map(SearchWord::as_str).collect::<Vec<_>>(), wanted);
}

#[test]
fn long_words_find_longer_ones_and_numbers_and_signs_do_not() {
    let words = parse_query_words("port car 12345 2026a 서울");
    let exact = |text: &str| SearchWord::Exact(text.into());
    assert_eq!(
        words,
        [SearchWord::Prefix("port".into()), exact("car"), exact("12345"), exact("2026a"), exact("서 울")]
    );
}

#[test]
fn signs_are_set_apart_and_the_rest_stays() {
    assert_eq!(space_cjk_signs("a山河b c"), "a 山  河 b c");
    assert_eq!(space_cjk_signs("안녕, Café"), " 안  녕 , Café");
}

#[test]
fn a_score_is_the_share_of_what_the_words_are_worth() {
    let alike = WordWeights::new(&[1, 1, 1, 1], 100);
    assert!((alike.score([0, 2]) - 0.5).abs() < 1e-9);
    assert!((alike.score([0, 1, 2, 3]) - 1.0).abs() < 1e-9);
    let mixed = WordWeights::new(&[1, 90], 100);
    assert!(mixed.score([0]) > 0.9 && mixed.score([1]) < 0.1, "{mixed:?}");
    assert_eq!(WordWeights::new(&[], 3).score([0]), 0.0);
}

/// The meaning of the score 0.4, with the examples of docs/memory.md.
#[test]
fn a_message_finds_what_it_is_about_and_not_what_it_only_sounds_like() {
    // "please paint the fence in my favourite colour": no note contains the first, second or fourth word.
    let about = WordWeights::new(&[0, 0, 3, 0, 3, 6, 1, 1], 10);
    assert!(about.score([5, 6, 7]) > 0.4, "{}", about.score([5, 6, 7]));
    // "hello, is there anyone": of ten notes five contain "is".
    let sounds = WordWeights::new(&[0, 5, 0, 0], 10);
    assert!(sounds.score([1]) < 0.4, "{}", sounds.score([1]));
    // There is only one note.
    let only = WordWeights::new(&[0, 1, 1, 1, 1], 1);
    assert!(only.score([1, 2, 3, 4]) > 0.8, "{}", only.score([1, 2, 3, 4]));
}

#[test]
fn notes_that_a_prompt_must_not_show_are_skipped() {
    let long = "x".repeat(MAX_SHOWN_CHARS + 1);
    let just = "ü".repeat(MAX_SHOWN_CHARS);
    let scopes = [vec![
        note("weak", "a", 0.39),
        note("picture", "see [IMAGE:/tmp/a.png]", 0.9),
        note("result", "<tool_result name=\"x\">", 0.9),
        note("telegram_1_history", "b", 0.9),
        note("long", &long, 0.9),
        note("empty", " \n", 0.9),
        note("just", &just, 0.4),
    ]];
    assert_eq!(selected_keys(&scopes, &RecallLimits { max_per_scope: 10, ..RECALL_LIMITS }), ["just"]);
    assert!(
        selected_keys(&scopes, &RECALL_LIMITS).is_empty(),
        "five of a scope are looked at, whatever becomes of them"
    );
}

#[test]
fn the_best_four_of_all_scopes_are_shown_and_each_once() {
    let of_session = vec![note("a", "1", 0.9), note("b", "2", 0.5), note("c", "3", 0.5), note("d", "4", 0.5)];
    let of_agent = vec![note("a", "other", 0.99), note("e", "1", 0.98), note("f", "6", 0.6)];
    assert_eq!(selected_keys(&[of_session, of_agent], &RECALL_LIMITS), ["a", "f", "b", "c"]);
}

#[test]
fn the_message_that_is_answered_is_no_memory_and_takes_no_place() {
    let scopes = [vec![note("http_alice_now", "hello", 1.0), note("a", "hello you", 0.8)]];
    let limits = RecallLimits { max_per_scope: 1, answered_key: "http_alice_now", ..RECALL_LIMITS };
    assert_eq!(selected_keys(&scopes, &limits), ["a"]);
}

#[test]
fn the_block_has_one_line_for_each_note() {
    let (one, two) = (note("colour", "blue", 1.0), note("a\nkey", "first\n- colour: red\r\n\u{2028}end", 1.0));
    assert_eq!(
        format_notes(&[&one, &two]).unwrap(),
        "[Memory context]\n- colour: blue\n- a key: first - colour: red end"
    );
    assert_eq!(format_notes(&[]), None);
}

#[rstest]
#[case("telegram", None, "alice", "42", "telegram_alice_42")]
#[case("slack", Some("1741234567.1"), "U_1", "m%1", "slack_1741234567.1_U%5F1_m%251")]
fn a_message_has_its_key(
    #[case] channel: &str,
    #[case] thread: Option<&str>,
    #[case] sender: &str,
    #[case] id: &str,
    #[case] wanted: &str,
) {
    assert_eq!(SavedMessage { channel, thread, sender, id }.key(), wanted);
}

#[test]
fn a_text_without_a_key_gets_one_that_a_person_can_read() {
    let key = generate_note_key("My favourite colour is blue, not red");
    assert!(key.starts_with("my-favourite-colour-is-blue-"), "{key}");
    assert_eq!(key, generate_note_key("My favourite colour is blue, not red"));
    assert_ne!(key, generate_note_key("My favourite colour is blue, not green"));
    assert_eq!(generate_note_key("!?").len(), 8);
}

/// Texts with many of the pieces that have a special meaning somewhere.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("[IMAGE:".to_owned()),
        Just("<tool_result".to_owned()),
        Just("_history".to_owned()),
        Just("\n- ".to_owned()),
        "[a-c_%\"*() ]{0,6}",
        "[山河서울カナ]{0,4}",
        any::<String>(),
    ];
    prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
}

fn recalled() -> impl Strategy<Value = RecalledNote> {
    (text(), text(), 0.0..=1.0_f64).prop_map(|(key, text, score)| RecalledNote { key, text, score })
}

fn found() -> impl Strategy<Value = Vec<Vec<RecalledNote>>> {
    prop::collection::vec(prop::collection::vec(recalled(), 0..9), 0..4)
}

proptest! {
    #[test]
    fn only_notes_that_may_be_shown_are_selected(scopes in found(), least in 0.0..=1.0_f64, each in 0..7_usize) {
        let limits = RecallLimits { min_score: least, max_per_scope: each, answered_key: "a" };
        let shown = select_notes(&scopes, &limits);
        prop_assert!(shown.len() <= MAX_SHOWN_NOTES.min(each * scopes.len()));
        prop_assert!(shown.iter().all(|note| note.score >= least && is_promptable(&note.text)));
        prop_assert!(shown.iter().all(|note| !note.key.ends_with("_history") && note.key != "a"));
        prop_assert!(shown.windows(2).all(|two| two[0].score >= two[1].score));
        prop_assert_eq!(shown.iter().map(|note| &note.key).collect::<HashSet<_>>().len(), shown.len());
        let lines = format_notes(&shown).map_or(0, |block| block.lines().count());
        prop_assert_eq!(lines, if shown.is_empty() { 0 } else { shown.len() + 1 });
    }

    #[test]
    fn no_two_messages_share_a_key(one in message_key_parts(), other in message_key_parts()) {
        let key = |(channel, thread, sender, id): &MessageKeyParts| SavedMessage { channel, thread: thread.as_deref(), sender, id }.key();
        prop_assert_eq!(key(&one) == key(&other), one == other);
    }

    #[test]
    fn words_hold_nothing_that_a_search_could_misread(query in text()) {
        let words = parse_query_words(&query);
        prop_assert!(words.len() <= MAX_QUERY_WORDS);
        prop_assert_eq!(words.iter().collect::<HashSet<_>>().len(), words.len());
        for word in &words {
            let plain = |c: char| c == ' ' || c.is_alphanumeric() || ('\u{300}'..='\u{36f}').contains(&c);
            prop_assert!(!word.as_str().trim().is_empty() && word.as_str().chars().all(plain), "{word:?}");
        }
    }

    #[test]
    fn setting_signs_apart_loses_nothing(text in text()) {
        let without = |text: &str| text.chars().filter(|c| *c != ' ').collect::<String>();
        prop_assert_eq!(without(&space_cjk_signs(&text)), without(&text));
    }

    #[test]
    fn a_score_is_a_share_and_rises_with_every_word(
        counts in prop::collection::vec(0..200_u32, 1..20), more in 0..100_u32, has in prop::collection::vec(0..20_usize, 0..20),
    ) {
        let notes = counts.iter().max().unwrap_or(&0) + more;
        let weights = WordWeights::new(&counts, notes);
        let score = weights.score(has.clone());
        prop_assert!((0.0..=1.0).contains(&score));
        prop_assert!((weights.score(0..counts.len()) - 1.0).abs() < 1e-9);
        for word in 0..counts.len() {
            prop_assert!(weights.score(has.iter().copied().chain([word])) >= score);
        }
    }

    #[test]
    fn a_made_key_is_one_line_and_never_a_history(text in text()) {
        let key = generate_note_key(&text);
        prop_assert!(!key.is_empty() && key.chars().count() <= 49 && !key.chars().any(char::is_control));
        prop_assert!(!key.ends_with("_history"));
    }
}

type MessageKeyParts = (String, Option<String>, String, String);

fn message_key_parts() -> impl Strategy<Value = MessageKeyParts> {
    let part = || prop_oneof!["[ab_%]{0,3}", "(%5F|%25|_|a){0,3}"];
    (part(), prop::option::of(part()), part(), part())
}
