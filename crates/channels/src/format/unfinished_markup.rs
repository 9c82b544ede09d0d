//! Close markup that is still open in an unfinished reply, so that the rest of it is formatted correctly.

use std::borrow::Cow;

/// Closes the markup that the last paragraph opened. The grammar itself closes code fences.
pub(super) fn close_open_markup(markdown: &str) -> Cow<'_, str> {
    let text = markdown.trim_end();
    let Some(paragraph) = last_paragraph_start(text) else {
        // In a code block. An unfinished closing fence would show as a line of code.
        let line = text.rsplit('\n').next().unwrap_or_default().trim_start();
        let cut = if matches!(line, "`" | "``" | "~" | "~~") { text.len() - line.len() } else { text.len() };
        return Cow::Borrowed(&text[..cut]);
    };
    let run = trailing_marks(&text[paragraph..]);
    let open = open_marks(&text[paragraph..text.len() - run.len()]);
    let kept = match open.last() {
        // The run closes the markup that was opened last.
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

/// Start of the last paragraph; none if the text ends in a code block.
fn last_paragraph_start(text: &str) -> Option<usize> {
    let (mut start, mut at) = (0, 0);
    let mut fence: Option<&str> = None;
    for line in text.split_inclusive('\n') {
        let content = line.trim_matches(|c: char| c.is_whitespace() || c == '>');
        let item = content.trim_start_matches(['-', '*', '+', '#']).len() < content.len();
        let run = leading_fence(content);
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

/// The code fence at the beginning of a line, or an empty text.
fn leading_fence(line: &str) -> &str {
    let sign = if line.starts_with('~') { '~' } else { '`' };
    let length = line.len() - line.trim_start_matches(sign).len();
    if length >= 3 { &line[..length] } else { "" }
}

/// The run of markup characters at the very end.
fn trailing_marks(text: &str) -> &str {
    let Some(sign) = text.chars().next_back().filter(|c| matches!(c, '*' | '_' | '~' | '`')) else { return "" };
    let run = &text[text.trim_end_matches(sign).len()..];
    let before = text[..text.len() - run.len()].chars().next_back();
    // An escaped run has no meaning.
    if before == Some('\\') { "" } else { run }
}

/// The markup that is open at the end of a paragraph, outermost first.
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
        toggle_mark(&mut open, run, AdjacentChars { before, after });
        before = c;
    }
    open
}

/// The characters beside a run of markup characters.
struct AdjacentChars {
    before: char,
    after: char,
}

fn toggle_mark<'t>(open: &mut Vec<&'t str>, run: &'t str, sides: AdjacentChars) {
    let in_code = open.last().is_some_and(|last| last.starts_with('`'));
    if let Some(at) = open.iter().rposition(|mark| *mark == run)
        && (at + 1 == open.len() || !in_code)
        && (in_code || !sides.before.is_whitespace())
    {
        open.truncate(at);
        return;
    }
    let inside_word = run.starts_with('_') && sides.before.is_alphanumeric();
    let can_open = run.starts_with('`') || !sides.after.is_whitespace() && !inside_word;
    let is_markup = run.starts_with('`') || matches!(run, "*" | "**" | "***" | "_" | "__" | "~~");
    if !in_code && can_open && is_markup {
        open.push(run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_markup_is_closed() {
        for (text, expected) in [
            ("so **bold te", "so **bold te**"),
            ("so **bold *and it", "so **bold *and it***"),
            ("run `ls -l", "run `ls -l`"),
            ("run ``a ` b", "run ``a ` b``"),
            ("~~gone", "~~gone~~"),
            ("an __old", "an __old__"),
        ] {
            assert_eq!(close_open_markup(text), expected);
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
            assert_eq!(close_open_markup(text), expected);
        }
    }

    #[test]
    fn text_that_is_no_markup_stays() {
        for text in ["2 * 3", "snake_case", "a \\*b", "- one\n- two", "**a**\n\n- x", "`**`x", "* item\n* other"] {
            assert_eq!(close_open_markup(text), text);
        }
    }
}
