//! The input: text of several lines with a cursor, and what was typed before. Nothing that was typed is ever lost: what is
//! cleared goes into the history, what comes back goes before what stands there.

use unicode_segmentation::UnicodeSegmentation;

/// Older entries are forgotten beyond this.
const MOST_HISTORY: usize = 500;

/// The input and its history.
#[derive(Debug, Default)]
pub(super) struct Composer {
    text: String,
    /// Byte position, always at the border of a grapheme.
    cursor: usize,
    history: Vec<String>,
    /// The entry that is shown, and what stood in the input before.
    browsing: Option<(usize, String)>,
}

impl Composer {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn cursor(&self) -> usize {
        self.cursor
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Everything that can be found here: what stands in the input, the draft behind it, and what was typed before.
    #[cfg(test)]
    pub(super) fn findable(&self) -> String {
        let draft = self.browsing.iter().map(|(_, draft)| draft.as_str());
        let all: Vec<&str> = self.history.iter().map(String::as_str).chain(draft).chain([self.text.as_str()]).collect();
        all.join("\n")
    }

    /// Puts text in at the cursor, as typed or pasted. Control characters other than line breaks and tabs are left out.
    pub(super) fn insert(&mut self, text: &str) {
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let text: String = text.chars().filter(|c| matches!(c, '\n' | '\t') || !c.is_control()).collect();
        self.text.insert_str(self.cursor, &text);
        self.move_to(self.cursor + text.len());
    }

    /// Replaces everything; the cursor stands at the end.
    pub(super) fn set(&mut self, text: String) {
        if let Some((_, draft)) = self.browsing.take() {
            self.remember(&draft);
        }
        self.show(text);
    }

    fn show(&mut self, text: String) {
        self.cursor = text.len();
        self.text = text;
    }

    /// Takes the text out to be sent, and remembers it. A draft that waited behind an entry of the history comes back.
    pub(super) fn take(&mut self) -> String {
        let draft = self.browsing.take().map(|(_, draft)| draft).unwrap_or_default();
        let text = std::mem::take(&mut self.text);
        self.show(draft);
        self.remember(&text);
        text
    }

    /// Empties the input; what stood there is remembered.
    pub(super) fn clear(&mut self) {
        let text = std::mem::take(&mut self.text);
        self.remember(&text);
        self.set(String::new());
    }

    /// Gives texts back that were sent and not taken: they stand before what was typed since.
    pub(super) fn put_back(&mut self, texts: &[String]) {
        let mut whole: Vec<&str> = texts.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
        if whole.is_empty() {
            return;
        }
        if !self.text.is_empty() {
            whole.push(&self.text);
        }
        self.set(whole.join("\n"));
    }

    /// Adds to the history what was said before this program began; `texts` are older than all of it.
    pub(super) fn remember_older(&mut self, texts: Vec<String>) {
        let newer = std::mem::replace(&mut self.history, texts);
        let grown = self.history.len();
        self.history.extend(newer);
        if let Some((at, _)) = &mut self.browsing {
            *at += grown;
        }
        let over = self.history.len().saturating_sub(MOST_HISTORY);
        self.history.drain(..over);
        if let Some((at, _)) = &mut self.browsing {
            *at = at.saturating_sub(over);
        }
    }

    fn remember(&mut self, text: &str) {
        if text.trim().is_empty() || self.history.last().is_some_and(|last| last == text) {
            return;
        }
        self.history.push(text.to_owned());
        let over = self.history.len().saturating_sub(MOST_HISTORY);
        self.history.drain(..over);
    }

    /// One line up, or the entry before when the cursor stands in the first line.
    pub(super) fn up(&mut self) {
        let (line, column) = self.place();
        match line.checked_sub(1) {
            Some(above) => self.go_to(above, column),
            None => self.earlier(),
        }
    }

    /// One line down, or the entry behind when the cursor stands in the last line.
    pub(super) fn down(&mut self) {
        let (line, column) = self.place();
        if line + 1 < self.text.split('\n').count() { self.go_to(line + 1, column) } else { self.later() }
    }

    fn earlier(&mut self) {
        self.keep_change();
        let (at, draft) = match self.browsing.take() {
            Some((0, draft)) => return self.browsing = Some((0, draft)),
            Some((at, draft)) => (at - 1, draft),
            None if self.history.is_empty() => return,
            None => (self.history.len() - 1, self.text.clone()),
        };
        let text = self.history.get(at).cloned().unwrap_or_default();
        self.show(text);
        self.browsing = Some((at, draft));
    }

    fn later(&mut self) {
        self.keep_change();
        let Some((at, draft)) = self.browsing.take() else { return };
        match self.history.get(at + 1).cloned() {
            Some(text) => {
                self.show(text);
                self.browsing = Some((at + 1, draft));
            }
            None => self.show(draft),
        }
    }

    /// An entry of the history that was changed is an entry of its own before another one is shown.
    fn keep_change(&mut self) {
        let Some((at, _)) = &mut self.browsing else { return };
        if self.history.get(*at).is_some_and(|entry| *entry != self.text) && !self.text.trim().is_empty() {
            self.history.insert(*at + 1, self.text.clone());
            *at += 1;
        }
    }

    /// Line of the cursor, and graphemes before it in that line.
    fn place(&self) -> (usize, usize) {
        let before = &self.text[..self.cursor];
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        (before.matches('\n').count(), before[start..].graphemes(true).count())
    }

    fn go_to(&mut self, line: usize, column: usize) {
        let start: usize = self.text.split('\n').take(line).map(|line| line.len() + 1).sum();
        let text = self.text.split('\n').nth(line).unwrap_or_default();
        let within: usize = text.graphemes(true).take(column).map(str::len).sum();
        self.cursor = start + within;
    }

    fn move_to(&mut self, at: usize) {
        // Text that meets may join into one grapheme; the cursor goes behind it.
        let borders = self.text.grapheme_indices(true).map(|(border, _)| border);
        self.cursor = borders.chain([self.text.len()]).find(|border| *border >= at).unwrap_or(self.text.len());
    }

    fn before(&self) -> usize {
        self.text[..self.cursor].grapheme_indices(true).next_back().map_or(0, |(at, _)| at)
    }

    fn behind(&self) -> usize {
        self.cursor + self.text[self.cursor..].graphemes(true).next().map_or(0, str::len)
    }

    pub(super) fn left(&mut self) {
        self.cursor = self.before();
    }

    pub(super) fn right(&mut self) {
        self.cursor = self.behind();
    }

    pub(super) fn word_left(&mut self) {
        let before = self.text[..self.cursor].trim_end();
        self.cursor = before.unicode_word_indices().next_back().map_or(0, |(at, _)| at);
    }

    pub(super) fn word_right(&mut self) {
        let rest = &self.text[self.cursor..];
        let word = rest.unicode_word_indices().next();
        self.cursor += word.map_or(rest.len(), |(at, word)| at + word.len());
    }

    pub(super) fn line_start(&mut self) {
        self.cursor = self.text[..self.cursor].rfind('\n').map_or(0, |at| at + 1);
    }

    pub(super) fn line_end(&mut self) {
        self.cursor = self.text[self.cursor..].find('\n').map_or(self.text.len(), |at| self.cursor + at);
    }

    pub(super) fn backspace(&mut self) {
        let from = self.before();
        self.remove(from, self.cursor);
    }

    pub(super) fn delete(&mut self) {
        let to = self.behind();
        self.remove(self.cursor, to);
    }

    pub(super) fn delete_word(&mut self) {
        let end = self.cursor;
        self.word_left();
        self.remove(self.cursor, end);
    }

    pub(super) fn delete_to_line_start(&mut self) {
        let end = self.cursor;
        self.line_start();
        self.remove(self.cursor, end);
    }

    pub(super) fn delete_to_line_end(&mut self) {
        let start = self.cursor;
        self.line_end();
        self.remove(start, self.cursor);
    }

    fn remove(&mut self, from: usize, to: usize) {
        self.text.replace_range(from..to, "");
        self.cursor = from;
        self.move_to(from);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with(text: &str) -> Composer {
        let mut composer = Composer::default();
        composer.insert(text);
        composer
    }

    #[test]
    fn history_is_walked_and_the_draft_waits() {
        let mut composer = with("one");
        composer.take();
        composer.insert("two");
        composer.take();
        composer.insert("draft");
        composer.up();
        composer.up();
        composer.up();
        assert_eq!(composer.text(), "one");
        composer.down();
        assert_eq!(composer.text(), "two");
        composer.down();
        assert_eq!(composer.text(), "draft");
        composer.down();
        assert_eq!(composer.text(), "draft");
    }

    #[test]
    fn up_and_down_walk_lines_before_they_walk_the_history() {
        let mut composer = with("old");
        composer.take();
        composer.insert("first\nsecond");
        composer.up();
        assert_eq!((composer.text(), composer.cursor()), ("first\nsecond", 5));
        composer.up();
        assert_eq!(composer.text(), "old");
    }

    #[test]
    fn what_comes_back_stands_before_what_was_typed_since() {
        let mut composer = with("newer");
        composer.put_back(&["refused".into(), "withdrawn".into()]);
        assert_eq!(composer.text(), "refused\nwithdrawn\nnewer");
        composer.put_back(&[]);
        assert_eq!(composer.text(), "refused\nwithdrawn\nnewer");
    }

    #[test]
    fn graphemes_are_deleted_whole() {
        let mut composer = with("a👨‍👩‍👧한");
        composer.backspace();
        composer.backspace();
        assert_eq!(composer.text(), "a");
        composer.delete_word();
        assert!(composer.is_empty());
    }

    #[test]
    fn a_paste_keeps_its_lines_and_no_escape_sequence() {
        assert_eq!(with("a\r\nb\rc\u{1b}[31m\td").text(), "a\nb\nc[31m\td");
    }

    fn press(composer: &mut Composer, key: u8, text: &str) {
        match key % 15 {
            0 => composer.left(),
            1 => composer.right(),
            2 => composer.up(),
            3 => composer.down(),
            4 => composer.word_left(),
            5 => composer.word_right(),
            6 => composer.line_start(),
            7 => composer.line_end(),
            8 => composer.backspace(),
            9 => composer.delete(),
            10 => composer.delete_word(),
            11 => composer.delete_to_line_start(),
            12 => composer.delete_to_line_end(),
            13 => composer.put_back(&[text.to_owned()]),
            _ => composer.insert(text),
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
