//! An answer that is not finished: what is open at its end is closed, so that the rest of it is not marks.

use std::borrow::Cow;

/// Closes what the last paragraph opened. Fences of code are closed by the grammar itself.
pub(super) fn closed(markdown: &str) -> Cow<'_, str> {
    let text = markdown.trim_end();
    let Some(paragraph) = last_paragraph(text) else {
        // In code. A fence that is not written to its end would show as a line of code.
        let line = text.rsplit('\n').next().unwrap_or_default().trim_start();
        let cut = if matches!(line, "`" | "``" | "~" | "~~") { text.len() - line.len() } else { text.len() };
        return Cow::Borrowed(&text[..cut]);
    };
    let run = trailing_run(&text[paragraph..]);
    let open = open_marks(&text[paragraph..text.len() - run.len()]);
    let kept = match open.last() {
        // It is the end of what was opened last.
        Some(last) if *last == run => text.len(),
        _ => text.len() - run.len(),
    };
    let open = if kept == text.len() { &open[..open.len() - usize::from(!run.is_empty())] } else { &open };
    if kept == text.len() && open.is_empty() {
        return Cow::Borrowed(text);
    }
    let body = text[..kept].trim_end();
    Cow::Owned(open.iter().rev().fold(body.to_owned(), |text, mark| text + *mark))
}

/// Where the last paragraph begins, unless the text ends in a block of code.
fn last_paragraph(text: &str) -> Option<usize> {
    let (mut start, mut at) = (0, 0);
    let mut fence: Option<&str> = None;
    for line in text.split_inclusive('\n') {
        let content = line.trim_matches(|c: char| c.is_whitespace() || c == '>');
        let item = content.trim_start_matches(['-', '*', '+', '#']).len() < content.len();
        let run = fence_of(content);
        match fence {
            Some(open) if run.len() >= open.len() && run.starts_with(open) && run.len() == content.len() => {
                (fence, start) = (None, at + line.len());
            }
            Some(_) => {}
            None if !run.is_empty() && !content[run.len()..].contains('`') => fence = Some(run),
            None if content.is_empty() => start = at + line.len(),
            None if item || content.starts_with(|c: char| c == '|' || c.is_ascii_digit()) => start = at,
            None => {}
        }
        at += line.len();
    }
    fence.is_none().then_some(start)
}

/// The fence at the beginning of a line.
fn fence_of(line: &str) -> &str {
    let sign = if line.starts_with('~') { '~' } else { '`' };
    let length = line.len() - line.trim_start_matches(sign).len();
    if length >= 3 { &line[..length] } else { "" }
}

/// The marks at the very end.
fn trailing_run(text: &str) -> &str {
    let Some(sign) = text.chars().next_back().filter(|c| matches!(c, '*' | '_' | '~' | '`')) else { return "" };
    let run = &text[text.trim_end_matches(sign).len()..];
    let before = text[..text.len() - run.len()].chars().next_back();
    // A backslash takes their meaning from them; so do words on both sides, but here is no other side yet.
    if before == Some('\\') { "" } else { run }
}

/// What is open at the end of a paragraph, in its order.
fn open_marks(text: &str) -> Vec<&str> {
    let mut open: Vec<&str> = Vec::new();
    let (mut at, mut before) = (0, ' ');
    while let Some(c) = text[at..].chars().next() {
        if c == '\\' {
            at += 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8);
            before = 'a';
            continue;
        }
        if !matches!(c, '*' | '_' | '~' | '`') {
            (at, before) = (at + c.len_utf8(), c);
            continue;
        }
        let run = &text[at..][..text.len() - at - text[at..].trim_start_matches(c).len()];
        at += run.len();
        let after = text[at..].chars().next().unwrap_or(' ');
        turn(&mut open, run, Sides { before, after });
        before = c;
    }
    open
}

/// What stands beside a row of signs.
struct Sides {
    before: char,
    after: char,
}

fn turn<'t>(open: &mut Vec<&'t str>, run: &'t str, sides: Sides) {
    let code = open.last().is_some_and(|last| last.starts_with('`'));
    if let Some(at) = open.iter().rposition(|mark| *mark == run)
        && (at + 1 == open.len() || !code)
        && (code || !sides.before.is_whitespace())
    {
        open.truncate(at);
        return;
    }
    let inside_word = run.starts_with('_') && sides.before.is_alphanumeric();
    let begins = run.starts_with('`') || !sides.after.is_whitespace() && !inside_word;
    let known = run.starts_with('`') || matches!(run, "*" | "**" | "***" | "_" | "__" | "~~");
    if !code && begins && known {
        open.push(run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_closed() {
        for (text, expected) in [
            ("so **bold te", "so **bold te**"),
            ("so **bold *and it", "so **bold *and it***"),
            ("run `ls -l", "run `ls -l`"),
            ("run ``a ` b", "run ``a ` b``"),
            ("~~gone", "~~gone~~"),
            ("an __old", "an __old__"),
        ] {
            assert_eq!(closed(text), expected);
        }
    }

    #[test]
    fn a_mark_that_is_not_written_to_its_end_is_not_shown() {
        for (text, expected) in [
            ("so **", "so"),
            ("so **bold*", "so **bold**"),
            ("so **bold**", "so **bold**"),
            ("a `", "a"),
            ("```sh\nls\n``", "```sh\nls\n"),
            ("```sh\nls **x", "```sh\nls **x"),
        ] {
            assert_eq!(closed(text), expected);
        }
    }

    #[test]
    fn what_is_no_mark_stays_alone() {
        for text in ["2 * 3", "snake_case", "a \\*b", "- one\n- two", "**a**\n\n- x", "`**`x", "* item\n* other"] {
            assert_eq!(closed(text), text);
        }
    }
}
