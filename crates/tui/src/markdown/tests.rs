//! Rendered rows of Markdown constructs, width limits, and stable prefixes.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn shown(text: &str, most: usize) -> Vec<String> {
    render(text, most).iter().map(|line| line.to_string().trim_end().to_owned()).collect()
}

#[rstest]
#[case::paragraphs("one\ntwo\n\nthree", &["one two", "", "three"])]
#[case::list("- a\n- b\n  - c\n", &["• a", "• b", "  • c"])]
#[case::numbers("3. a\n4. b", &["3. a", "4. b"])]
#[case::wrapped_item("- one two three four five", &["• one two three four", "  five"])]
#[case::code("```rust\nfn a() {}\n\n  b\n```", &["  rust", "  fn a() {}", "", "    b"])]
#[case::open_fence("text\n\n```\nlet a", &["text", "", "  let a"])]
#[case::heading("# Head\ntext", &["Head", "", "text"])]
#[case::quote("> said\n> so", &["▏ said so"])]
#[case::link("see [docs](https://a.b/c)", &["see docs", "(https://a.b/c)"])]
#[case::bare_link("<https://a.b>", &["https://a.b"])]
#[case::html("a <b>c</b>\n\n<script>x</script>", &["a <b>c</b>", "", "<script>x</script>"])]
#[case::table("|a|bb|\n|-|-|\n|ccc|d|", &["a   │ bb", "────┼───", "ccc │ d"])]
#[case::task("- [x] done\n- [ ] open", &["• [x] done", "• [ ] open"])]
fn markdown_is_shown_so(#[case] text: &str, #[case] rows: &[&str]) {
    assert_eq!(shown(text, 20), rows);
}

#[test]
fn a_table_that_does_not_fit_is_still_there() {
    let rows = shown("|first column|second column|\n|-|-|\n|a|b|", 14).join(" ");
    for word in ["first", "column", "second", "a │ b"] {
        assert!(rows.contains(word), "{rows}");
    }
}

#[rstest]
#[case("one\n\ntwo\n", 5)]
#[case("one\n\ntwo", 0)]
#[case("one\n\n", 0)]
#[case("- a\n\n- b\n\nc\n", 10)]
#[case("```\na\n\nb\n```\n\nc\n", 14)]
#[case("a\n****", 0)]
#[case("```\na\n\nb", 0)]
fn a_text_is_closed_up_to_its_last_whole_block(#[case] text: &str, #[case] until: usize) {
    assert_eq!(stable_prefix_len(text), until);
}

proptest! {
    #[test]
    fn any_text_is_shown_within_its_width(text in "[a-c`*_#>|\\-0-9.\\[\\]()한 \\n]{0,80}", most in 2_usize..30) {
        for row in render(&text, most) {
            // Margins of deep nesting may take the whole width; the text keeps at least one column.
            let margins = text.chars().filter(|c| matches!(c, '>' | '-' | '.' | '*' | '`')).count() * 4;
            prop_assert!(row.width() <= most + margins, "{:?}", row.to_string());
        }
    }

    #[test]
    fn no_control_character_comes_through(text in any::<String>()) {
        let clean = render(&text, 40).iter().all(|row| !row.to_string().chars().any(char::is_control));
        prop_assert!(clean);
    }
}
