//! Multi-line input with cursor and history. Typed text is never lost: cleared text goes to the history, returned text
//! goes before the current input.

use unicode_segmentation::UnicodeSegmentation;

/// Older entries beyond this number are dropped.
const MAX_HISTORY: usize = 500;

#[derive(Debug, Default)]
pub(crate) struct Composer {
    text: String,
    /// Byte position, always at a grapheme boundary.
    cursor: usize,
    history: Vec<String>,
    /// Index of the history entry that is shown, and the draft that it replaced.
    browsed_entry: Option<(usize, String)>,
}

impl Composer {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn cursor(&self) -> usize {
        self.cursor
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// All text that can be recovered: history, draft and current input.
    #[cfg(test)]
    pub(crate) fn all_recoverable_text(&self) -> String {
        let draft = self.browsed_entry.iter().map(|(_, draft)| draft.as_str());
        let all: Vec<&str> = self.history.iter().map(String::as_str).chain(draft).chain([self.text.as_str()]).collect();
        all.join("\n")
    }

    /// Inserts typed or pasted text at the cursor, without control characters other than line breaks and tabs.
    pub(crate) fn insert_text(&mut self, text: &str) {
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let text: String = text.chars().filter(|c| matches!(c, '\n' | '\t') || !c.is_control()).collect();
        self.text.insert_str(self.cursor, &text);
        self.move_to_boundary(self.cursor + text.len());
    }

    /// Replaces the whole input; the cursor goes to the end.
    pub(crate) fn set_text(&mut self, text: String) {
        if let Some((_, draft)) = self.browsed_entry.take() {
            self.push_history(&draft);
        }
        self.show_text(text);
    }

    fn show_text(&mut self, text: String) {
        self.cursor = text.len();
        self.text = text;
    }

    /// Takes the text to be sent and adds it to the history. A draft behind a history entry comes back.
    pub(crate) fn take_text(&mut self) -> String {
        let draft = self.browsed_entry.take().map(|(_, draft)| draft).unwrap_or_default();
        let text = std::mem::take(&mut self.text);
        self.show_text(draft);
        self.push_history(&text);
        text
    }

    /// Clears the input and adds its text to the history.
    pub(crate) fn clear_text(&mut self) {
        let text = std::mem::take(&mut self.text);
        self.push_history(&text);
        self.set_text(String::new());
    }

    /// Puts texts back that were sent but not accepted, before the current input.
    pub(crate) fn prepend_texts(&mut self, texts: &[String]) {
        let mut whole: Vec<&str> = texts.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
        if whole.is_empty() {
            return;
        }
        if !self.text.is_empty() {
            whole.push(&self.text);
        }
        self.set_text(whole.join("\n"));
    }

    /// Adds texts from before this program started; they are older than the whole history.
    pub(crate) fn prepend_history(&mut self, texts: Vec<String>) {
        let newer = std::mem::replace(&mut self.history, texts);
        let grown = self.history.len();
        self.history.extend(newer);
        if let Some((at, _)) = &mut self.browsed_entry {
            *at += grown;
        }
        let over = self.history.len().saturating_sub(MAX_HISTORY);
        self.history.drain(..over);
        if let Some((at, _)) = &mut self.browsed_entry {
            *at = at.saturating_sub(over);
        }
    }

    fn push_history(&mut self, text: &str) {
        if text.trim().is_empty() || self.history.last().is_some_and(|last| last == text) {
            return;
        }
        self.history.push(text.to_owned());
        let over = self.history.len().saturating_sub(MAX_HISTORY);
        self.history.drain(..over);
    }

    /// Moves one line up; from the first line to the previous history entry.
    pub(crate) fn move_up(&mut self) {
        let (line, column) = self.cursor_line_column();
        match line.checked_sub(1) {
            Some(above) => self.move_to_line_column(above, column),
            None => self.show_previous_entry(),
        }
    }

    /// Moves one line down; from the last line to the next history entry.
    pub(crate) fn move_down(&mut self) {
        let (line, column) = self.cursor_line_column();
        if line + 1 < self.text.split('\n').count() {
            self.move_to_line_column(line + 1, column)
        } else {
            self.show_next_entry()
        }
    }

    fn show_previous_entry(&mut self) {
        self.save_edited_entry();
        let (at, draft) = match self.browsed_entry.take() {
            Some((0, draft)) => return self.browsed_entry = Some((0, draft)),
            Some((at, draft)) => (at - 1, draft),
            None if self.history.is_empty() => return,
            None => (self.history.len() - 1, self.text.clone()),
        };
        let text = self.history.get(at).cloned().unwrap_or_default();
        self.show_text(text);
        self.browsed_entry = Some((at, draft));
    }

    fn show_next_entry(&mut self) {
        self.save_edited_entry();
        let Some((at, draft)) = self.browsed_entry.take() else { return };
        match self.history.get(at + 1).cloned() {
            Some(text) => {
                self.show_text(text);
                self.browsed_entry = Some((at + 1, draft));
            }
            None => self.show_text(draft),
        }
    }

    /// Keeps an edited history entry as an entry of its own before another one is shown.
    fn save_edited_entry(&mut self) {
        let Some((at, _)) = &mut self.browsed_entry else { return };
        if self.history.get(*at).is_some_and(|entry| *entry != self.text) && !self.text.trim().is_empty() {
            self.history.insert(*at + 1, self.text.clone());
            *at += 1;
        }
    }

    /// Line of the cursor, and number of graphemes before it in that line.
    fn cursor_line_column(&self) -> (usize, usize) {
        let before = &self.text[..self.cursor];
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        (before.matches('\n').count(), before[start..].graphemes(true).count())
    }

    fn move_to_line_column(&mut self, line: usize, column: usize) {
        let start: usize = self.text.split('\n').take(line).map(|line| line.len() + 1).sum();
        let text = self.text.split('\n').nth(line).unwrap_or_default();
        let within: usize = text.graphemes(true).take(column).map(str::len).sum();
        self.cursor = start + within;
    }

    fn move_to_boundary(&mut self, at: usize) {
        // Inserted text may merge with its neighbours into one grapheme; the cursor goes after it.
        let borders = self.text.grapheme_indices(true).map(|(border, _)| border);
        self.cursor = borders.chain([self.text.len()]).find(|border| *border >= at).unwrap_or(self.text.len());
    }

    fn previous_boundary(&self) -> usize {
        self.text[..self.cursor].grapheme_indices(true).next_back().map_or(0, |(at, _)| at)
    }

    fn next_boundary(&self) -> usize {
        self.cursor + self.text[self.cursor..].graphemes(true).next().map_or(0, str::len)
    }

    pub(crate) fn move_left(&mut self) {
        self.cursor = self.previous_boundary();
    }

    pub(crate) fn move_right(&mut self) {
        self.cursor = self.next_boundary();
    }

    pub(crate) fn move_word_left(&mut self) {
        let before = self.text[..self.cursor].trim_end();
        self.cursor = before.unicode_word_indices().next_back().map_or(0, |(at, _)| at);
    }

    pub(crate) fn move_word_right(&mut self) {
        let rest = &self.text[self.cursor..];
        let word = rest.unicode_word_indices().next();
        self.cursor += word.map_or(rest.len(), |(at, word)| at + word.len());
    }

    pub(crate) fn move_to_line_start(&mut self) {
        self.cursor = self.text[..self.cursor].rfind('\n').map_or(0, |at| at + 1);
    }

    pub(crate) fn move_to_line_end(&mut self) {
        self.cursor = self.text[self.cursor..].find('\n').map_or(self.text.len(), |at| self.cursor + at);
    }

    pub(crate) fn delete_backward(&mut self) {
        let from = self.previous_boundary();
        self.remove_range(from, self.cursor);
    }

    pub(crate) fn delete_forward(&mut self) {
        let to = self.next_boundary();
        self.remove_range(self.cursor, to);
    }

    pub(crate) fn delete_word_backward(&mut self) {
        let end = self.cursor;
        self.move_word_left();
        self.remove_range(self.cursor, end);
    }

    pub(crate) fn delete_to_line_start(&mut self) {
        let end = self.cursor;
        self.move_to_line_start();
        self.remove_range(self.cursor, end);
    }

    pub(crate) fn delete_to_line_end(&mut self) {
        let start = self.cursor;
        self.move_to_line_end();
        self.remove_range(start, self.cursor);
    }

    fn remove_range(&mut self, from: usize, to: usize) {
        self.text.replace_range(from..to, "");
        self.cursor = from;
        self.move_to_boundary(from);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with(text: &str) -> Composer {
        let mut composer = Composer::default();
        composer.insert_text(text);
        composer
    }

    #[test]
    fn history_is_walked_and_the_draft_waits() {
        let mut composer = with("one");
        composer.take_text();
        composer.insert_text("two");
        composer.take_text();
        composer.insert_text("draft");
        composer.move_up();
        composer.move_up();
        composer.move_up();
        assert_eq!(composer.text(), "one");
        composer.move_down();
        assert_eq!(composer.text(), "two");
        composer.move_down();
        assert_eq!(composer.text(), "draft");
        composer.move_down();
        assert_eq!(composer.text(), "draft");
    }

    #[test]
    fn up_and_down_walk_lines_before_they_walk_the_history() {
        let mut composer = with("old");
        composer.take_text();
        composer.insert_text("first\nsecond");
        composer.move_up();
        assert_eq!((composer.text(), composer.cursor()), ("first\nsecond", 5));
        composer.move_up();
        assert_eq!(composer.text(), "old");
    }

    #[test]
    fn returned_texts_are_put_before_newer_input() {
        let mut composer = with("newer");
        composer.prepend_texts(&["refused".into(), "withdrawn".into()]);
        assert_eq!(composer.text(), "refused\nwithdrawn\nnewer");
        composer.prepend_texts(&[]);
        assert_eq!(composer.text(), "refused\nwithdrawn\nnewer");
    }

    #[test]
    fn graphemes_are_deleted_whole() {
        let mut composer = with("a👨‍👩‍👧한");
        composer.delete_backward();
        composer.delete_backward();
        assert_eq!(composer.text(), "a");
        composer.delete_word_backward();
        assert!(composer.is_empty());
    }

    #[test]
    fn a_paste_keeps_its_lines_and_no_escape_sequence() {
        assert_eq!(with("a\r\nb\rc\u{1b}[31m\td").text(), "a\nb\nc[31m\td");
    }

    fn press(composer: &mut Composer, key: u8, text: &str) {
        match key % 15 {
            0 => composer.move_left(),
            1 => composer.move_right(),
            2 => composer.move_up(),
            3 => composer.move_down(),
            4 => composer.move_word_left(),
            5 => composer.move_word_right(),
            6 => composer.move_to_line_start(),
            7 => composer.move_to_line_end(),
            8 => composer.delete_backward(),
            9 => composer.delete_forward(),
            10 => composer.delete_word_backward(),
            11 => composer.delete_to_line_start(),
            12 => composer.delete_to_line_end(),
            13 => composer.prepend_texts(&[text.to_owned()]),
            _ => composer.insert_text(text),
        }
    }

    proptest! {
        #[test]
        fn the_cursor_stands_between_graphemes_whatever_is_pressed(
            presses in proptest::collection::vec((any::<u8>(), "[a 한\u{301}👩\u{200d}🚀\n]{0,4}"), 0..40),
        ) {
            let mut composer = Composer::default();
            for (key, text) in presses {
                press(&mut composer, key, &text);
                let borders: Vec<usize> = composer.text().grapheme_indices(true).map(|(at, _)| at).collect();
                let fits = composer.cursor() == composer.text().len() || borders.contains(&composer.cursor());
                prop_assert!(fits, "{:?} at {}", composer.text(), composer.cursor());
            }
        }
    }
}
