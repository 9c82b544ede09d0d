//! Numbers and foreign text as people read them, the same at every door. Pure functions.

/// A length of time in milliseconds: `<0.1 ms`, `0.4 ms`, `12 ms`, `1.4 s`, `2 min 5 s`, `3 h 4 min`.
#[must_use]
pub fn millis(ms: f64) -> String {
    let ms = ms.max(0.0);
    match ms {
        0.0 => "0 ms".into(),
        _ if ms < 0.05 => "<0.1 ms".into(),
        _ if ms < 9.95 => format!("{} ms", trimmed(ms)),
        _ if ms < 999.5 => format!("{ms:.0} ms"),
        _ if ms < 9_950.0 => format!("{} s", trimmed(ms / 1000.0)),
        _ if ms < 59_500.0 => format!("{:.0} s", ms / 1000.0),
        _ => minutes(ms / 1000.0),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").unwrap_or(&text).into()
}

fn minutes(seconds: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast saturates, and this is for reading"
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
pub fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// True for signs that show nothing and change what is shown around them: marks of direction, marks of width zero, separators
/// of lines and paragraphs that only some programs see.
#[must_use]
pub const fn is_hidden(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    )
}

/// Text without what is hidden in it. A joiner stays between two pictures, which it makes one of.
#[must_use]
pub fn without_hidden(text: &str) -> String {
    let is_picture = |c: &char| matches!(c, '\u{2190}'..='\u{2bff}' | '\u{fe0f}' | '\u{1f000}'..='\u{1faff}');
    let mut shown = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let joins = c == '\u{200d}'
            && shown.chars().next_back().is_some_and(|before| is_picture(&before))
            && rest.peek().is_some_and(is_picture);
        if joins || !is_hidden(c) {
            shown.push(c);
        }
    }
    shown
}

/// Foreign text made fit for one line of a terminal: control characters (and with them escape sequences) become spaces, hidden
/// ones are left out, runs of white space become one, and what is longer than `most` characters ends in `…`.
#[must_use]
pub fn one_line(text: &str, most: usize) -> String {
    let begins: String = text.chars().take(most.saturating_mul(4)).collect();
    let cut = begins.len() < text.len();
    let clean: String = without_hidden(&begins).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut line = String::new();
    for word in clean.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if line.chars().count() <= most && !cut {
        return line;
    }
    let mut short: String = line.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}
