//! Text of messages: what clients draw with control characters is taken out of what is heard, and what is said is cut into lines.

/// `TAB` and everything below it that clients give a meaning: modern.ircdocs.horse/formatting.
const COLOUR: char = '\u{3}';
const HEX_COLOUR: char = '\u{4}';
/// CTCP: a message in quotes of this is for the client.
const CTCP: char = '\u{1}';

/// What a person said in a message. None when the message was for the client alone (CTCP), but for `ACTION`, which is speech.
pub(super) fn heard(text: &str) -> Option<String> {
    let spoken = match text.strip_prefix(CTCP) {
        Some(request) => request.trim_end_matches(CTCP).strip_prefix("ACTION ")?,
        None => text,
    };
    Some(without_formatting(spoken).trim().to_owned())
}

/// Without colours, bold letters and the like: a stop word in red is a stop word.
fn without_formatting(text: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            COLOUR => rest = after_colours(rest, 2, |c| c.is_ascii_digit()),
            HEX_COLOUR => rest = after_colours(rest, 6, |c| c.is_ascii_hexdigit()),
            '\t' => plain.push(' '),
            c if c.is_control() => {}
            c => plain.push(c),
        }
    }
    plain
}

/// What follows a foreground, and a comma with a background.
fn after_colours(text: &str, digits: usize, is_digit: fn(char) -> bool) -> &str {
    let after_one = |text: &str| text.chars().take(digits).take_while(|c| is_digit(*c)).count();
    let rest = &text[after_one(text)..];
    match rest.strip_prefix(',').map(|background| (background, after_one(background))) {
        Some((background, count)) if count > 0 && rest.len() < text.len() => &background[count..],
        _ => rest,
    }
}

/// The lines that say a text, none longer than so many bytes. Empty lines are left out.
pub(super) fn lines(text: &str, most: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.split(['\n', '\r']) {
        let line: String = line.chars().map(|c| if c == '\t' { ' ' } else { c }).filter(|c| !c.is_control()).collect();
        let mut rest = line.trim_end();
        while !rest.trim_start().is_empty() {
            let (piece, after) = cut(rest, most);
            lines.push(piece.trim_end().to_owned());
            rest = after.trim_start();
        }
    }
    lines
}

/// The longest beginning that fits, up to a space where there is one in its second half; at least one character.
fn cut(text: &str, most: usize) -> (&str, &str) {
    if text.len() <= most {
        return (text, "");
    }
    let first = text.chars().next().map_or(0, char::len_utf8);
    let end = text.floor_char_boundary(most).max(first);
    let space = text[..end].rfind(' ').filter(|at| *at > end / 2);
    // A space right behind the last character that fits is as good a place.
    let end = if text[end..].starts_with(' ') { end } else { space.unwrap_or(end) };
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_is_not_heard() {
        assert_eq!(heard("\u{2}\u{3}04,12stop\u{f} \u{4}ff0000,00ff00now\u{1d}\u{16}\u{1f}").unwrap(), "stop now");
        assert_eq!(heard("\u{3},5 \u{3}5,x \u{3}12345").unwrap(), ",5 ,x 345");
        assert_eq!(heard("a\tb").unwrap(), "a b");
    }

    #[test]
    fn an_action_is_speech_and_other_requests_are_for_the_client() {
        assert_eq!(heard("\u{1}ACTION waves\u{1}").unwrap(), "waves");
        for request in ["\u{1}VERSION\u{1}", "\u{1}PING 12\u{1}", "\u{1}", "\u{1}\u{1}", "\u{1}ACTION\u{1}"] {
            assert_eq!(heard(request), None, "{request:?}");
        }
    }

    #[test]
    fn text_is_cut_where_there_is_space() {
        assert_eq!(lines("one two three", 8), ["one two", "three"]);
        assert_eq!(lines("one two three", 7), ["one two", "three"]);
        assert_eq!(lines("onetwothree", 4), ["onet", "woth", "ree"]);
        assert_eq!(lines("a bcdefghij", 6), ["a bcde", "fghij"], "a space near the beginning is no place to cut");
        assert_eq!(lines("  indented\n\n\tby a tab\r\n \u{7}bell\u{1}", 40), ["  indented", " by a tab", " bell"]);
        assert_eq!(lines(" \n\r\n", 40), Vec::<String>::new());
    }

    #[test]
    fn characters_stay_whole_and_lines_fit() {
        let text = "안녕하세요 여러분 ".repeat(20);
        let cut = lines(&text, 31);
        assert!(cut.iter().all(|line| line.len() <= 31), "{cut:?}");
        assert_eq!(cut.concat().replace(' ', ""), text.replace(' ', ""));
        assert_eq!(lines("한글", 1), ["한", "글"], "it comes to an end even where nothing fits");
    }
}
