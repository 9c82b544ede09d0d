//! Text styles by meaning, and their reduction to terminals without colour or Unicode.
//!
//! The views always use colour and Unicode; [`TerminalCapabilities::degrade_buffer`] reduces the finished frame. It
//! also removes every control character from the cells.

use quell_client::term::{ColorMode, Glyphs};
use ratatui_core::buffer::Buffer;
use ratatui_core::style::{Color, Modifier, Style};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TerminalCapabilities {
    pub(crate) color: ColorMode,
    pub(crate) glyphs: Glyphs,
}

pub(crate) const PLAIN_STYLE: Style = Style::new();
pub(crate) const STRONG_STYLE: Style = Style::new().add_modifier(Modifier::BOLD);
/// Less important than the answer: thinking, tool lines, hints.
pub(crate) const QUIET_STYLE: Style = Style::new().add_modifier(Modifier::DIM);
/// Only for a stop in progress.
pub(crate) const STOPPING_STYLE: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
/// Something failed or is left over.
pub(crate) const FAILURE_STYLE: Style = Style::new().fg(Color::Yellow);
pub(crate) const WAITING_STYLE: Style = Style::new().fg(Color::Blue);
pub(crate) const DONE_STYLE: Style = Style::new().fg(Color::Green);
pub(crate) const STOPPED_STYLE: Style = Style::new().fg(Color::DarkGray);
pub(crate) const CODE_STYLE: Style = Style::new().fg(Color::Cyan);
pub(crate) const CHOSEN_STYLE: Style = Style::new().add_modifier(Modifier::REVERSED);

/// ASCII replacements of our own glyphs. Foreign letters stay as they are.
const ASCII_FALLBACKS: [(&str, &str); 23] = [
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

impl TerminalCapabilities {
    /// Removes everything that this terminal cannot show.
    pub(crate) fn degrade_buffer(self, buffer: &mut Buffer) {
        for cell in &mut buffer.content {
            if cell.symbol().chars().any(char::is_control) {
                cell.set_symbol(" ");
            }
            if self.color == ColorMode::Never {
                cell.set_fg(Color::Reset).set_bg(Color::Reset);
            }
            if self.glyphs == Glyphs::Ascii
                && let Some((_, poorer)) = ASCII_FALLBACKS.iter().find(|(rich, _)| *rich == cell.symbol())
            {
                cell.set_symbol(poorer);
            }
        }
    }
}
