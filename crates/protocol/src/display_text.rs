//! Formats durations, counts and errors, and cleans foreign text for display. Every surface uses the same functions.

/// Formats a duration in milliseconds: `<0.1 ms`, `0.4 ms`, `12 ms`, `1.4 s`, `2 min 5 s`, `3 h 4 min`.
#[must_use]
pub fn format_millis(ms: f64) -> String {
    let ms = ms.max(0.0);
    match ms {
        0.0 => "0 ms".into(),
        _ if ms < 0.05 => "<0.1 ms".into(),
        _ if ms < 9.95 => format!("{} ms", format_one_decimal(ms)),
        _ if ms < 999.5 => format!("{ms:.0} ms"),
        _ if ms < 9_950.0 => format!("{} s", format_one_decimal(ms / 1000.0)),
        _ if ms < 59_500.0 => format!("{:.0} s", ms / 1000.0),
        _ => format_minutes(ms / 1000.0),
    }
}

/// `1.4`; without the decimal when it is zero: `2`.
#[must_use]
pub fn format_one_decimal(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").unwrap_or(&text).into()
}

fn format_minutes(seconds: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and the text is only for people"
    )]
    let seconds = seconds.round() as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, seconds) {
        (0, 0) => format!("{minutes} min"),
        (0, _) => format!("{minutes} min {seconds} s"),
        _ if minutes == 0 => format!("{hours} h"),
        _ => format!("{hours} h {minutes} min"),
    }
}

/// `1 process`, `3 processes`.
#[must_use]
pub fn format_count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Formats an error with its causes: `it failed: because of this: and that`.
#[must_use]
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// True for characters that are invisible and change the display of the text around them: direction marks, zero-width
/// marks, and line and paragraph separators that only some programs honour.
#[must_use]
pub const fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    )
}

/// Removes invisible characters. A zero-width joiner stays between two emoji, because it joins them to one.
#[must_use]
pub fn strip_invisible(text: &str) -> String {
    let is_emoji = |c: &char| matches!(c, '\u{2190}'..='\u{2bff}' | '\u{fe0f}' | '\u{1f000}'..='\u{1faff}');
    let mut shown = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let joins = c == '\u{200d}'
            && shown.chars().next_back().is_some_and(|before| is_emoji(&before))
            && rest.peek().is_some_and(is_emoji);
        if joins || !is_invisible(c) {
            shown.push(c);
        }
    }
    shown
}

/// The first `max_chars` characters of a text, with `mark` behind them if there are more.
#[must_use]
pub fn shorten(text: &str, max_chars: usize, mark: &str) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}{mark}", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// The first `max_chars` characters of a foreign text on one line: each control character becomes a space.
#[must_use]
pub fn replace_controls(text: &str, max_chars: usize) -> String {
    text.chars().take(max_chars).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Makes foreign text fit for one line of a terminal. Control characters (and with them escape sequences) become
/// spaces, invisible characters are removed, and runs of white space become one space. Text longer than `max_chars`
/// characters is cut and ends in `…`.
#[must_use]
pub fn one_line(text: &str, max_chars: usize) -> String {
    let begins: String = text.chars().take(max_chars.saturating_mul(4)).collect();
    let cut = begins.len() < text.len();
    let clean: String = strip_invisible(&begins).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut line = String::new();
    for word in clean.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if line.chars().count() <= max_chars && !cut {
        return line;
    }
    let mut short: String = line.chars().take(max_chars.saturating_sub(1)).collect();
    short.push('…');
    short
}
