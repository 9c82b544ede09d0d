//! What each key does, in the order in which somebody wants it: a menu, a completion, an approval, the input.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use quell_protocol::approval::Decision;

use super::commands::{self, Known};
use super::effects::{Effect, Scroll};
use super::state::{Chat, Leaving, Menu, Shown};

/// So long an approval has to be on the screen before a letter answers it: whoever types does not allow by accident.
const SETTLED: Duration = Duration::from_millis(400);

impl Chat {
    pub(super) fn key(&mut self, key: KeyEvent) -> Vec<Effect> {
        if key.kind == KeyEventKind::Release {
            return Vec::new();
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return self.interrupt();
        }
        if self.menu.is_some() {
            return self.menu_key(key);
        }
        if let Some(effects) = self.completion_key(key) {
            return effects;
        }
        if let Some(decision) = self.decision_of(key) {
            return self.decide(decision);
        }
        if key.code == KeyCode::Esc {
            return self.press_stop();
        }
        match self.moved(key, control) {
            Some(effect) => vec![effect],
            None => self.edit(key),
        }
    }

    fn menu_key(&mut self, key: KeyEvent) -> Vec<Effect> {
        match &self.menu {
            Some(Menu::Picker(_)) => self.picker_key(key),
            Some(Menu::Leave) => self.leave_key(key),
            Some(Menu::Help) | None => {
                let scroll = match key.code {
                    KeyCode::PageDown | KeyCode::Down => Scroll::PageDown,
                    KeyCode::PageUp | KeyCode::Up => Scroll::PageUp,
                    _ => {
                        self.menu = None;
                        return Vec::new();
                    }
                };
                vec![Effect::Scroll(scroll)]
            }
        }
    }

    fn leave_key(&mut self, key: KeyEvent) -> Vec<Effect> {
        match (key.code, self.is_active()) {
            (KeyCode::Esc, _) => self.menu = None,
            (KeyCode::Char('s' | 'S'), true) => return self.stop_and_leave(),
            (KeyCode::Char('l' | 'L'), true) | (KeyCode::Enter, false) => return vec![Effect::Leave],
            // Who goes on typing has not come to leave.
            (KeyCode::Char(_), _) => {
                self.menu = None;
                return self.key(key);
            }
            _ => {}
        }
        Vec::new()
    }

    /// The commands that are offered now.
    pub(super) fn offered(&self) -> Vec<&'static Known> {
        if self.completion.closed_for.as_deref() == Some(self.composer.text()) {
            return Vec::new();
        }
        commands::completions(self.composer.text())
    }

    fn completion_key(&mut self, key: KeyEvent) -> Option<Vec<Effect>> {
        let offered = self.offered();
        let last = offered.len().checked_sub(1)?;
        let chosen = self.completion.chosen.min(last);
        let known = offered.get(chosen)?;
        let whole = self.composer.text().len() > 1;
        match key.code {
            KeyCode::Up => self.completion.chosen = chosen.checked_sub(1).unwrap_or(last),
            KeyCode::Down => self.completion.chosen = if chosen == last { 0 } else { chosen + 1 },
            KeyCode::Esc => self.completion.closed_for = Some(self.composer.text().to_owned()),
            // A slash alone is no word for anything: the first Enter writes the command out, the second does it.
            KeyCode::Enter if key.modifiers.is_empty() && whole => {
                self.composer.set(known.name.to_owned());
                self.completion.chosen = 0;
                return Some(self.submit());
            }
            KeyCode::Tab | KeyCode::Enter if key.modifiers.is_empty() => {
                let space = if known.argument.is_empty() { "" } else { " " };
                self.composer.set(format!("{}{space}", known.name));
                self.completion.chosen = 0;
            }
            _ => return None,
        }
        Some(Vec::new())
    }

    /// True while `y` and `n` answer an approval: nothing is being typed, and the call could be read.
    pub(super) fn answers_by_letter(&self) -> bool {
        let read = |shown: &Shown| u128::from(self.now.since(shown.since)) >= SETTLED.as_millis();
        self.composer.is_empty() && self.shown.as_ref().is_some_and(read)
    }

    /// Notes which approval is on the screen, after each input. A menu or the commands that complete the input cover it.
    pub(super) fn note_shown(&mut self) {
        let covered = self.menu.is_some() || !self.offered().is_empty();
        let id = self.approval().filter(|_| !covered).map(|asked| asked.row.id.clone());
        if id.as_ref() != self.shown.as_ref().map(|shown| &shown.id) {
            let since = self.now;
            self.shown = id.clone().map(|id| Shown { id, since });
        }
        if !self.composer.text().trim_start().starts_with('/') {
            self.meant = id;
        }
    }

    fn decision_of(&self, key: KeyEvent) -> Option<Decision> {
        let plain = key.modifiers.difference(KeyModifiers::SHIFT).is_empty();
        match key.code {
            // A key that is held down goes on to the next call, which nobody has read.
            _ if !plain || key.kind != KeyEventKind::Press || !self.answers_by_letter() => None,
            KeyCode::Char('y' | 'Y') => Some(Decision::Allow),
            KeyCode::Char('n' | 'N') => Some(Decision::Deny),
            _ => None,
        }
    }

    /// Keys that move over the page.
    fn moved(&mut self, key: KeyEvent, control: bool) -> Option<Effect> {
        let shift = key.modifiers.contains(KeyModifiers::SHIFT);
        let scroll = match key.code {
            KeyCode::PageUp => Scroll::PageUp,
            KeyCode::PageDown => Scroll::PageDown,
            KeyCode::Up if shift || control => Scroll::LineUp,
            KeyCode::Down if shift || control => Scroll::LineDown,
            KeyCode::End if control || self.composer.is_empty() => Scroll::Bottom,
            _ => return None,
        };
        Some(Effect::Scroll(scroll))
    }

    fn edit(&mut self, key: KeyEvent) -> Vec<Effect> {
        let modifiers = key.modifiers;
        if modifiers.contains(KeyModifiers::CONTROL) {
            return self.control_key(key.code);
        }
        let alt = modifiers.contains(KeyModifiers::ALT);
        match key.code {
            KeyCode::Enter if alt || modifiers.contains(KeyModifiers::SHIFT) => self.composer.insert("\n"),
            KeyCode::Enter => return self.submit(),
            KeyCode::Tab => return self.next_policy(),
            KeyCode::Left | KeyCode::Char('b') if alt => self.composer.word_left(),
            KeyCode::Right | KeyCode::Char('f') if alt => self.composer.word_right(),
            KeyCode::Backspace if alt => self.composer.delete_word(),
            KeyCode::Char(c) if !alt => {
                self.completion.chosen = 0;
                self.composer.insert(c.encode_utf8(&mut [0; 4]));
            }
            KeyCode::Left => self.composer.left(),
            KeyCode::Right => self.composer.right(),
            KeyCode::Up => self.composer.up(),
            KeyCode::Down => self.composer.down(),
            KeyCode::Home => self.composer.line_start(),
            KeyCode::End => self.composer.line_end(),
            KeyCode::Backspace => self.composer.backspace(),
            KeyCode::Delete => self.composer.delete(),
            _ => {}
        }
        Vec::new()
    }

    fn control_key(&mut self, code: KeyCode) -> Vec<Effect> {
        match code {
            KeyCode::Char('j') | KeyCode::Enter => self.composer.insert("\n"),
            KeyCode::Char('o') => self.toggle_details(),
            KeyCode::Char('d') if self.composer.is_empty() => return self.quit(),
            KeyCode::Char('d') => self.composer.delete(),
            KeyCode::Char('l') => return vec![Effect::Redraw],
            KeyCode::Char('a') => self.composer.line_start(),
            KeyCode::Char('e') => self.composer.line_end(),
            KeyCode::Char('b') => self.composer.left(),
            KeyCode::Char('f') => self.composer.right(),
            KeyCode::Char('p') => self.composer.up(),
            KeyCode::Char('n') => self.composer.down(),
            KeyCode::Char('u') => self.composer.delete_to_line_start(),
            KeyCode::Char('k') => self.composer.delete_to_line_end(),
            KeyCode::Char('w' | 'h') | KeyCode::Backspace => self.composer.delete_word(),
            KeyCode::Left => self.composer.word_left(),
            KeyCode::Right => self.composer.word_right(),
            _ => {}
        }
        Vec::new()
    }

    /// True while the program waits for a stop in order to leave.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving == Leaving::WhenStopped
    }
}
