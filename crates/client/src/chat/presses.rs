//! Esc and the key after it, told from a key with Alt.
//!
//! Most terminals write Alt-x as ESC x. On a slow line a press of Esc and the next key arrive together, so they look the same;
//! and a stop must not get lost in that. While something runs, a key with Alt that means nothing is taken as the two presses.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::state::Chat;

impl Chat {
    /// The presses that a key stands for: itself, or Esc and the key without Alt.
    pub(super) fn presses(&self, key: KeyEvent) -> (Option<KeyEvent>, KeyEvent) {
        let joined = match key.code {
            _ if !self.is_active() || !key.modifiers.contains(KeyModifiers::ALT) => false,
            // By words over the input: these are wanted.
            KeyCode::Char('b' | 'f') => key.modifiers.contains(KeyModifiers::CONTROL),
            KeyCode::Char(_) | KeyCode::Tab => true,
            // A new line, but for an input in which it would be the first thing.
            KeyCode::Enter => self.composer.is_empty(),
            // Others are not written with an ESC in front.
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
