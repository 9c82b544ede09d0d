//! Tests with output cut at every place.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

/// The final text of these pieces, and the text of the live view.
fn process_pieces<'a>(pieces: impl IntoIterator<Item = &'a str>) -> (String, String) {
    let (mut plain, mut lines, mut live) =
        (EscapeStripper::default(), LineOverwriter::default(), LiveOutput::default());
    let (mut kept, mut seen) = (String::new(), String::new());
    for piece in pieces {
        let text = plain.strip(piece);
        kept.push_str(&lines.push(&text));
        append_live_piece(&mut seen, &live.push(&text));
    }
    kept.push_str(&lines.finish());
    (kept, seen)
}

/// Appends a piece of [`LiveOutput`] to the text shown so far.
fn append_live_piece(shown: &mut String, piece: &str) {
    let text = piece.strip_prefix('\r').unwrap_or(piece);
    if text.len() < piece.len() {
        shown.truncate(shown.rfind('\n').map_or(0, |at| at + 1));
    }
    shown.push_str(text);
}

#[rstest]
#[case::colour("\u{1b}[32mgreen\u{1b}[0m", "green")]
#[case::colours_of_cargo("\u{1b}[1m\u{1b}[38;5;9merror\u{1b}[0m: no", "error: no")]
#[case::clear_and_move("a\u{1b}[2Kb\u{1b}[1;1Hc\u{1b}[?25l", "abc")]
#[case::title_with_bell("\u{1b}]0;a title\u{7}text", "text")]
#[case::title_with_st("\u{1b}]0;ein Türchen\u{1b}\\text", "text")]
#[case::link("\u{1b}]8;;http://x/\u{1b}\\here\u{1b}]8;;\u{1b}\\", "here")]
#[case::device_control("\u{1b}P1$r0m\u{1b}\\text", "text")]
#[case::private_message("\u{1b}^hidden\u{1b}\\\u{1b}_hidden\u{1b}\\\u{1b}Xhidden\u{1b}\\text", "text")]
#[case::two_bytes("\u{1b}7a\u{1b}8\u{1b}(Bb\u{1b}c", "ab")]
#[case::eight_bits("\u{9b}32mgreen\u{9d}0;title\u{9c}", "green")]
#[case::bell_and_null("a\u{7}\0b\u{7f}", "ab")]
#[case::a_stray_string_ends_with_its_line("\u{1b}]0;text\nnext\n", "\nnext\n")]
#[case::words_of_all_scripts("\u{1b}[1m한국어 ü 🌊\u{1b}[0m\tx\n", "한국어 ü 🌊\tx\n")]
#[case::progress("10%\r50%\r100%\ndone\n", "100%\ndone\n")]
#[case::progress_at_the_end("begun\n10%\r50%", "begun\n50%")]
#[case::progress_that_returns_last("10%\r50%\r", "50%")]
#[case::progress_with_clearing("\r\u{1b}[K10%\r\u{1b}[K100%\r\n", "100%\n")]
#[case::newlines_of_windows("a\r\nb\r\n\r\n", "a\nb\n\n")]
#[case::returns_before_a_newline("a\r\r\nb", "a\nb")]
fn the_text_is_the_one_that_a_terminal_shows(#[case] printed: &str, #[case] text: &str) {
    assert_eq!(process_pieces([printed]), (text.to_owned(), text.to_owned()));
    let characters: Vec<String> = printed.chars().map(String::from).collect();
    assert_eq!(
        process_pieces(characters.iter().map(String::as_str)),
        (text.to_owned(), text.to_owned()),
        "cut everywhere"
    );
}

#[test]
fn a_line_too_long_for_progress_is_not_taken_back() {
    let long = "x".repeat(MAX_OPEN_LINE_BYTES + 1);
    assert_eq!(process_pieces([long.as_str(), "\rnext\rlast\n"]).0, format!("{long}\nlast\n"));
}

#[test]
fn a_settled_line_goes_on_and_progress_does_not_settle() {
    let mut lines = LineOverwriter::default();
    assert_eq!((lines.push("Sure? "), lines.take_open_line()), (String::new(), "Sure? ".to_owned()));
    assert_eq!(lines.push("yes\n10%"), "yes\n");
    assert_eq!(lines.take_open_line(), "10%");
    assert_eq!((lines.push("\r20%"), lines.take_open_line()), ("\n".to_owned(), String::new()));
    assert_eq!(
        (lines.push("\r99%\r"), lines.take_open_line(), lines.finish()),
        (String::new(), String::new(), "99%".to_owned())
    );
}

#[test]
fn each_piece_takes_back_at_most_one_line() {
    let mut live = LiveOutput::default();
    assert_eq!(live.push("\r1%\r2%"), "2%");
    assert_eq!(live.push("\r3%\r4%"), "\r4%");
    assert_eq!(live.push("\r"), "");
    assert_eq!(live.push("\ndone\r1\r2"), "\n2");
}

/// Text with many escape sequences and carriage returns.
fn terminal_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        prop::sample::select(vec!["\u{1b}", "[", "]", "P", "\\", "\u{7}", "3", ";", "m", "\u{9b}", "\u{18}", "ü"]),
        prop::sample::select(vec!["\r", "\n", "\r\n", "a", "b", "\t", "\0", "50%"]),
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn the_result_does_not_depend_on_the_pieces(text in terminal_text(), cuts in prop::collection::vec(1_usize..7, 0..40)) {
        let mut pieces = Vec::new();
        let mut rest = text.as_str();
        for cut in cuts {
            let (now, later) = rest.split_at(rest.floor_char_boundary(cut));
            pieces.push(now);
            rest = later;
        }
        pieces.push(rest);
        let (kept, seen) = process_pieces(pieces);
        let whole = process_pieces([text.as_str()]);
        prop_assert_eq!((&kept, &seen), (&whole.0, &whole.1));
        prop_assert_eq!(&kept, &seen, "the live view shows the same");
        prop_assert!(!kept.contains(|c: char| c.is_control() && !matches!(c, '\n' | '\t')), "{:?}", kept);
        prop_assert_eq!(overwrite_lines(&kept), kept.clone());
    }
}
