//! Strip formatting codes from received text; split sent text into lines.

/// Formatting codes with parameters: modern.ircdocs.horse/formatting.
const COLOUR: char = '\u{3}';
const HEX_COLOUR: char = '\u{4}';
/// CTCP: a message enclosed in this character is for the client.
const CTCP: char = '\u{1}';

/// The text that a person wrote. None if the message is for the client alone (CTCP); `ACTION` counts as text.
pub(super) fn spoken_text(text: &str) -> Option<String> {
    let content = match text.strip_prefix(CTCP) {
        Some(request) => request.trim_end_matches(CTCP).strip_prefix("ACTION ")?,
        None => text,
    };
    Some(strip_formatting(content).trim().to_owned())
}

/// Removes colours, bold and other formatting: a stop word in red is still a stop word.
fn strip_formatting(text: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            COLOUR => rest = skip_colours(rest, 2, |c| c.is_ascii_digit()),
            HEX_COLOUR => rest = skip_colours(rest, 6, |c| c.is_ascii_hexdigit()),
            '\t' => plain.push(' '),
            c if c.is_control() => {}
            c => plain.push(c),
        }
    }
    plain
}

/// Skips a foreground colour, and a comma with a background colour.
fn skip_colours(text: &str, digits: usize, is_digit: fn(char) -> bool) -> &str {
    let after_one = |text: &str| text.chars().take(digits).take_while(|c| is_digit(*c)).count();
    let rest = &text[after_one(text)..];
    match rest.strip_prefix(',').map(|background| (background, after_one(background))) {
        Some((background, count)) if count > 0 && rest.len() < text.len() => &background[count..],
        _ => rest,
    }
}

/// Splits a text into lines of at most `max_bytes` bytes. Empty lines are dropped.
pub(super) fn split_lines(text: &str, max_bytes: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.split(['\n', '\r']) {
        let line: String = line.chars().map(|c| if c == '\t' { ' ' } else { c }).filter(|c| !c.is_control()).collect();
        let mut rest = line.trim_end();
        while !rest.trim_start().is_empty() {
            let (piece, after) = split_line(rest, max_bytes);
            lines.push(piece.trim_end().to_owned());
            rest = after.trim_start();
        }
    }
    lines
}

/// Splits off the longest beginning that fits, at a space if its second half has one; at least one character.
fn split_line(text: &str, max_bytes: usize) -> (&str, &str) {
    if text.len() <= max_bytes {
        return (text, "");
    }
    let first = text.chars().next().map_or(0, char::len_utf8);
    let end = text.floor_char_boundary(max_bytes).max(first);
    let space = text[..end].rfind(' ').filter(|at| *at > end / 2);
    // A space right after the last character that fits is as good.
    let end = if text[end..].starts_with(' ') { end } else { space.unwrap_or(end) };
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatting_codes_are_removed_from_text() {
        assert_eq!(
            spoken_text("\u{2}\u{3}04,12stop\u{f} \u{4}ff0000,00ff00now\u{1d}\u{16}\u{1f}").unwrap(),
            "stop now"
        );
        assert_eq!(spoken_text("\u{3},5 \u{3}5,x \u{3}12345").unwrap(), ",5 ,x 345");
        assert_eq!(spoken_text("a\tb").unwrap(), "a b");
    }

    #[test]
    fn an_action_is_speech_and_other_requests_are_for_the_client() {
        assert_eq!(spoken_text("\u{1}ACTION waves\u{1}").unwrap(), "waves");
        for request in ["\u{1}VERSION\u{1}", "\u{1}PING 12\u{1}", "\u{1}", "\u{1}\u{1}", "\u{1}ACTION\u{1}"] {
            assert_eq!(spoken_text(request), None, "{request:?}");
        }
    }

    #[test]
    fn text_is_cut_where_there_is_space() {
        assert_eq!(split_lines("one two three", 8), ["one two", "three"]);
        assert_eq!(split_lines("one two three", 7), ["one two", "three"]);
        assert_eq!(split_lines("onetwothree", 4), ["onet", "woth", "ree"]);
        assert_eq!(split_lines("a bcdefghij", 6), ["a bcde", "fghij"], "a space near the beginning is no place to cut");
        assert_eq!(
            split_lines("  indented\n\n\tby a tab\r\n \u{7}bell\u{1}", 40),
            ["  indented", " by a tab", " bell"]
        );
        assert_eq!(split_lines(" \n\r\n", 40), Vec::<String>::new());
    }

    #[test]
    fn characters_stay_whole_and_lines_fit() {
        let text = "안녕하세요 여러분 ".repeat(20);
        let cut = split_lines(&text, 31);
        assert!(cut.iter().all(|line| line.len() <= 31), "{cut:?}");
        assert_eq!(cut.concat().replace(' ', ""), text.replace(' ', ""));
        assert_eq!(split_lines("한글", 1), ["한", "글"], "it comes to an end even where nothing fits");
    }
}
