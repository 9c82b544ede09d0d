//! Map keys to actions: menu, completion, approval, then input.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use quell_protocol::approval::{ApprovalAnswer, ApprovalRow, Decision};
use quell_protocol::display_text::is_invisible;

use crate::effects::{ChatEffect, Scroll};
use crate::slash_commands::{self, SlashCommandSpec};
use crate::state::{ChatState, ExitPlan, Menu, ShownApproval};

/// Time that an approval must be on the screen before a letter answers it, so that typing does not allow a call by
/// accident.
const MIN_READ_TIME: Duration = Duration::from_millis(400);

impl ChatState {
    pub(crate) fn handle_key(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return self.handle_ctrl_c();
        }
        if self.menu.is_some() {
            return self.handle_menu_key(key);
        }
        if self.handle_completion_key(key) {
            return;
        }
        match self.approval_key(key) {
            Some(ApprovalKey::Answer(answer)) => return self.answer_next_approval(answer),
            Some(ApprovalKey::Command(command)) => return self.composer.insert_text(&command),
            None => {}
        }
        if key.code == KeyCode::Esc {
            return self.stop_or_force();
        }
        match self.scroll_for_key(key, control) {
            Some(scroll) => self.effects.push(ChatEffect::Scroll(scroll)),
            None => self.handle_edit_key(key),
        }
    }

    fn handle_menu_key(&mut self, key: KeyEvent) {
        match &self.menu {
            Some(Menu::Picker(_)) => self.handle_picker_key(key),
            Some(Menu::ConfirmLeave) => self.handle_leave_key(key),
            Some(Menu::Help) | None => {
                let scroll = match key.code {
                    KeyCode::PageDown | KeyCode::Down => Scroll::PageDown,
                    KeyCode::PageUp | KeyCode::Up => Scroll::PageUp,
                    _ => return self.menu = None,
                };
                self.effects.push(ChatEffect::Scroll(scroll));
            }
        }
    }

    fn handle_leave_key(&mut self, key: KeyEvent) {
        match (key.code, self.is_active()) {
            (KeyCode::Esc, _) => self.menu = None,
            (KeyCode::Char('s' | 'S'), true) => self.stop_and_leave(),
            (KeyCode::Char('l' | 'L'), true) | (KeyCode::Enter, false) => self.effects.push(ChatEffect::Exit),
            // The user goes on typing: close the question and insert the character.
            (KeyCode::Char(_), _) => {
                self.menu = None;
                self.handle_key(key);
            }
            _ => {}
        }
    }

    pub(crate) fn offered_commands(&self) -> Vec<&'static SlashCommandSpec> {
        if self.completion.closed_for.as_deref() == Some(self.composer.text()) {
            return Vec::new();
        }
        slash_commands::matching_commands(self.composer.text())
    }

    /// Returns whether the key was one for the offered commands.
    fn handle_completion_key(&mut self, key: KeyEvent) -> bool {
        let offered = self.offered_commands();
        let Some(last) = offered.len().checked_sub(1) else { return false };
        let chosen = self.completion.chosen.min(last);
        let known = offered[chosen];
        let whole = self.composer.text().len() > 1;
        match key.code {
            KeyCode::Up => self.completion.chosen = chosen.checked_sub(1).unwrap_or(last),
            KeyCode::Down => self.completion.chosen = if chosen == last { 0 } else { chosen + 1 },
            KeyCode::Esc => self.completion.closed_for = Some(self.composer.text().to_owned()),
            // With a single slash, the first Enter completes the command and the second one runs it.
            KeyCode::Enter if key.modifiers.is_empty() && whole => {
                self.composer.set_text(known.name.to_owned());
                self.completion.chosen = 0;
                self.submit_input();
            }
            KeyCode::Tab | KeyCode::Enter if key.modifiers.is_empty() => {
                let space = if known.argument.is_empty() { "" } else { " " };
                self.composer.set_text(format!("{}{space}", known.name));
                self.completion.chosen = 0;
            }
            _ => return false,
        }
        true
    }

    /// True while letters answer an approval: the input is empty and the call was on the screen long enough.
    pub(crate) fn accepts_letter_answer(&self) -> bool {
        let read = |shown: &ShownApproval| u128::from(self.now.millis_since(shown.since)) >= MIN_READ_TIME.as_millis();
        self.composer.is_empty() && self.shown_approval.as_ref().is_some_and(read)
    }

    /// Updates which approval is on the screen, after each input. A menu or the command completion covers it.
    pub(crate) fn update_shown_approval(&mut self) {
        let covered = self.menu.is_some() || !self.offered_commands().is_empty();
        let id = self.next_approval().filter(|_| !covered).map(|asked| asked.row.id.clone());
        if id.as_ref() != self.shown_approval.as_ref().map(|shown| &shown.id) {
            let since = self.now;
            self.shown_approval = id.clone().map(|id| ShownApproval { id, since });
        }
        if !self.composer.text().trim_start().starts_with('/') {
            self.command_approval = id;
        }
    }

    /// One key answers for the call that is shown. What allows later calls, too, is written into the input, where it can be
    /// read and changed before it is sent.
    fn approval_key(&self, key: KeyEvent) -> Option<ApprovalKey> {
        let plain = key.modifiers.difference(KeyModifiers::SHIFT).is_empty();
        let asked = self.next_approval()?;
        match key.code {
            // Ignore key repeats: they would answer the next call, which the user has not read.
            _ if !plain || key.kind != KeyEventKind::Press || !self.accepts_letter_answer() => None,
            KeyCode::Char('y' | 'Y') => Some(ApprovalKey::Answer(Decision::Allow.into())),
            KeyCode::Char('n' | 'N') => Some(ApprovalKey::Answer(Decision::Deny.into())),
            KeyCode::Char('p' | 'P') => {
                pattern_to_offer(&asked.row).map(|pattern| ApprovalKey::Command(format!("/approve pattern {pattern}")))
            }
            KeyCode::Char('s' | 'S') if asked.row.may_be_allowed_for_session() => {
                Some(ApprovalKey::Command("/approve session".to_owned()))
            }
            _ => None,
        }
    }

    fn scroll_for_key(&self, key: KeyEvent, control: bool) -> Option<Scroll> {
        let shift = key.modifiers.contains(KeyModifiers::SHIFT);
        match key.code {
            KeyCode::PageUp => Some(Scroll::PageUp),
            KeyCode::PageDown => Some(Scroll::PageDown),
            KeyCode::Up if shift || control => Some(Scroll::LineUp),
            KeyCode::Down if shift || control => Some(Scroll::LineDown),
            KeyCode::End if control || self.composer.is_empty() => Some(Scroll::Bottom),
            _ => None,
        }
    }

    fn handle_edit_key(&mut self, key: KeyEvent) {
        let modifiers = key.modifiers;
        if modifiers.contains(KeyModifiers::CONTROL) {
            return self.handle_control_key(key.code);
        }
        let alt = modifiers.contains(KeyModifiers::ALT);
        match key.code {
            KeyCode::Enter if alt || modifiers.contains(KeyModifiers::SHIFT) => self.composer.insert_text("\n"),
            KeyCode::Enter => self.submit_input(),
            KeyCode::Tab => self.cycle_busy_policy(),
            KeyCode::Left | KeyCode::Char('b') if alt => self.composer.move_word_left(),
            KeyCode::Right | KeyCode::Char('f') if alt => self.composer.move_word_right(),
            KeyCode::Backspace if alt => self.composer.delete_word_backward(),
            KeyCode::Char(c) if !alt => {
                self.completion.chosen = 0;
                self.composer.insert_text(c.encode_utf8(&mut [0; 4]));
            }
            KeyCode::Left => self.composer.move_left(),
            KeyCode::Right => self.composer.move_right(),
            KeyCode::Up => self.composer.move_up(),
            KeyCode::Down => self.composer.move_down(),
            KeyCode::Home => self.composer.move_to_line_start(),
            KeyCode::End => self.composer.move_to_line_end(),
            KeyCode::Backspace => self.composer.delete_backward(),
            KeyCode::Delete => self.composer.delete_forward(),
            _ => {}
        }
    }

    fn handle_control_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char('j') | KeyCode::Enter => self.composer.insert_text("\n"),
            KeyCode::Char('o') => self.toggle_details(),
            KeyCode::Char('d') if self.composer.is_empty() => self.quit_or_confirm(),
            KeyCode::Char('d') => self.composer.delete_forward(),
            KeyCode::Char('l') => self.effects.push(ChatEffect::Redraw),
            KeyCode::Char('a') => self.composer.move_to_line_start(),
            KeyCode::Char('e') => self.composer.move_to_line_end(),
            KeyCode::Char('b') => self.composer.move_left(),
            KeyCode::Char('f') => self.composer.move_right(),
            KeyCode::Char('p') => self.composer.move_up(),
            KeyCode::Char('n') => self.composer.move_down(),
            KeyCode::Char('u') => self.composer.delete_to_line_start(),
            KeyCode::Char('k') => self.composer.delete_to_line_end(),
            KeyCode::Char('w' | 'h') | KeyCode::Backspace => self.composer.delete_word_backward(),
            KeyCode::Left => self.composer.move_word_left(),
            KeyCode::Right => self.composer.move_word_right(),
            _ => {}
        }
    }

    /// True while the program waits for a stop to finish before it exits.
    pub(crate) fn is_leaving(&self) -> bool {
        self.exit_plan == ExitPlan::WhenStopped
    }
}

enum ApprovalKey {
    Answer(ApprovalAnswer),
    /// Text for the input.
    Command(String),
}

/// The pattern that covers exactly this call; `None` if the call can have none, or one that cannot be shown as it is.
pub(crate) fn pattern_to_offer(row: &ApprovalRow) -> Option<&str> {
    let is_file_outside = row.escalation.is_some() && row.tool != "shell";
    let is_plain = |subject: &&str| {
        !subject.is_empty() && !subject.contains(|c: char| c == '*' || c.is_control() || is_invisible(c))
    };
    row.pattern_subject().filter(|_| row.quorum <= 1 && row.question.is_none() && !is_file_outside).filter(is_plain)
}
