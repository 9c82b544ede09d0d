//! Consolidation: which exchanges are worth it, what the model reads of them, and what its answers mean.

use proptest::prelude::*;
use quell_protocol::SessionKey;
use rstest::rstest;

use crate::memory::LONGEST_SHOWN;
use crate::memory::consolidation::{Exchange, Gist};

fn exchange(message: &str, answer: &str) -> Option<Exchange> {
    Exchange::of(SessionKey::parse("s").unwrap(), None, message, answer)
}

fn gist(history_entry: Option<&str>, memory_update: Option<&str>) -> Gist {
    Gist { history_entry: history_entry.map(str::to_owned), memory_update: memory_update.map(str::to_owned) }
}

#[rstest]
#[case("thanks, that is all", false)]
#[case("thanks, that is all.", true)]
#[case("  thanks, that is all   ", false)]
#[case("我最喜欢的颜色是蓝", false)]
#[case("我最喜欢的颜色是蓝色", true)]
#[case("안녕하세요", false)]
#[case("네, 정말 고맙습니다", false)]
#[case("제가 가장 좋아하는 색", true)]
#[case("", false)]
fn greetings_are_not_worth_a_call(#[case] message: &str, #[case] worth: bool) {
    assert_eq!(exchange(message, "Done.").is_some(), worth, "{message}");
    assert_eq!(exchange(message, " \n"), None, "without an answer nothing is");
}

#[test]
fn the_model_reads_both_sides_and_of_each_the_beginning() {
    let said = exchange("please paint my boat red", "It is red now.").unwrap().said().to_owned();
    assert_eq!(said, "[The user wrote:]\nplease paint my boat red\n\n[The assistant answered:]\nIt is red now.");
    let said = exchange(&"ü".repeat(4001), &"a".repeat(4000)).unwrap().said().to_owned();
    assert!(said.contains(&format!("{} [...]\n", "ü".repeat(4000))) && said.ends_with(&"a".repeat(4000)));
}

#[rstest]
#[case(r#"{"history_entry": "They painted.", "memory_update": null}"#, gist(Some("They painted."), None))]
#[case("```json\n{\"history_entry\": null, \"memory_update\": \" Likes red. \"}\n```", gist(None, Some("Likes red.")))]
#[case("Here {as asked} it is: {\"history_entry\": \"x\"} And {more}.", gist(Some("x"), None))]
#[case(r#"{"history_entry": "", "memory_update": " ", "more": [1]}"#, gist(None, None))]
#[case("{}", gist(None, None))]
#[case(r#"{"history_entry": "see [IMAGE:/a.png]"}"#, gist(None, None))]
fn an_answer_is_the_object_in_it(#[case] answer: &str, #[case] wanted: Gist) {
    assert_eq!(Gist::read(answer), Ok(wanted));
}

#[rstest]
#[case("", "there is none")]
#[case("I have nothing to add.", "there is none")]
#[case("{\"history_entry\": \"cut o", "EOF")]
#[case("{\"history_entry\": [\"a list\"]}", "invalid type")]
fn an_answer_without_one_says_what_is_wrong(#[case] answer: &str, #[case] problem: &str) {
    let said = Gist::read(answer).unwrap_err();
    assert!(said.contains(problem), "{said}");
}

#[test]
fn what_is_too_long_to_be_shown_again_is_left_out() {
    let fits = "a".repeat(LONGEST_SHOWN);
    let answer = serde_json::json!({"history_entry": fits, "memory_update": format!("{fits}a")}).to_string();
    assert_eq!(Gist::read(&answer), Ok(gist(Some(&fits), None)));
}

proptest! {
    #[test]
    fn no_answer_is_a_panic_and_what_was_meant_is_found(before in "[^{]*", text in "[a-z ]{1,40}[a-z]", after in any::<String>()) {
        let object = serde_json::json!({"history_entry": null, "memory_update": text});
        prop_assert_eq!(Gist::read(&format!("{before}{object}{after}")), Ok(gist(None, Some(text.trim()))));
        let _ = Gist::read(&after);
    }
}
