//! Split Alt-key combinations into Esc and a key while a run is active.
//!
//! Most terminals send Alt-x as ESC x. On a slow connection a press of Esc and the next key arrive together and look
//! the same, and the stop must not be lost. So while a run is active, an Alt combination without a meaning counts as
//! the two presses.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::state::ChatState;

impl ChatState {
    /// The presses of a key event: the key itself, or Esc and the key without Alt.
    pub(crate) fn split_alt_key(&self, key: KeyEvent) -> (Option<KeyEvent>, KeyEvent) {
        let joined = match key.code {
            _ if !self.is_active() || !key.modifiers.contains(KeyModifiers::ALT) => false,
            // Alt-B and Alt-F move by words in the input.
            KeyCode::Char('b' | 'f') => key.modifiers.contains(KeyModifiers::CONTROL),
            KeyCode::Char(_) | KeyCode::Tab => true,
            // Alt-Enter inserts a line break, except into an empty input.
            KeyCode::Enter => self.composer.is_empty(),
            // Terminals do not send the other keys as ESC and the key.
            _ => false,
        };
        if !joined {
            return (None, key);
        }
        let second = KeyEvent { modifiers: key.modifiers.difference(KeyModifiers::ALT), ..key };
        (Some(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE)), second)
    }
}

#[cfg(test)]
mod tests;
