//! What things look like: colours by meaning, and what is left of a picture where there is no colour or no Unicode.
//!
//! The views always draw with colour and with Unicode; [`Look::fit`] is the one place where a poorer terminal is served. It is
//! also the last gate: no cell leaves it with something that could move the cursor.

use ratatui::buffer::Buffer;
use ratatui::style::{Color as Ink, Modifier, Style};

use crate::term::{Color, Glyphs};

/// What the terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) color: Color,
    pub(crate) glyphs: Glyphs,
}

pub(super) const PLAIN: Style = Style::new();
pub(super) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
/// Second to the answer: thinking, tool lines, hints.
pub(super) const QUIET: Style = Style::new().add_modifier(Modifier::DIM);
/// A stop in progress, and nothing else.
pub(super) const STOPPING: Style = Style::new().fg(Ink::Red).add_modifier(Modifier::BOLD);
/// Something went wrong or is left over.
pub(super) const FAILURE: Style = Style::new().fg(Ink::Yellow);
/// Somebody waits.
pub(super) const WAITING: Style = Style::new().fg(Ink::Blue);
pub(super) const DONE: Style = Style::new().fg(Ink::Green);
pub(super) const STOPPED: Style = Style::new().fg(Ink::DarkGray);
pub(super) const CODE: Style = Style::new().fg(Ink::Cyan);
/// The row that a key would choose.
pub(super) const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);

/// What stands for our own signs where there is only ASCII. Foreign letters stay as they are.
const POORER: [(&str, &str); 23] = [
    ("·", "-"),
    ("…", "~"),
    ("●", "*"),
    ("○", "o"),
    ("◔", "?"),
    ("◆", "!"),
    ("■", "#"),
    ("▲", "!"),
    ("✓", "+"),
    ("✗", "x"),
    ("▸", ">"),
    ("▾", "v"),
    ("›", ">"),
    ("─", "-"),
    ("│", "|"),
    ("┼", "+"),
    ("•", "*"),
    ("↑", "^"),
    ("↓", "v"),
    ("└", "`"),
    ("▏", "|"),
    ("⚑", "!"),
    ("\u{a0}", " "),
];

impl Look {
    /// Takes from a finished picture what this terminal cannot show.
    pub(crate) fn fit(self, buffer: &mut Buffer) {
        for cell in &mut buffer.content {
            if cell.symbol().chars().any(char::is_control) {
                cell.set_symbol(" ");
            }
            if self.color == Color::Never {
                cell.set_fg(Ink::Reset).set_bg(Ink::Reset);
            }
            if self.glyphs == Glyphs::Ascii
                && let Some((_, poorer)) = POORER.iter().find(|(rich, _)| *rich == cell.symbol())
            {
                cell.set_symbol(poorer);
            }
        }
    }
}
