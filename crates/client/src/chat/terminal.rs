//! The terminal, taken and given back: raw mode, the second screen, bracketed paste. Whatever ends the program, a panic
//! included, gives it back first.

use std::io::{self, BufWriter, Stdout, Write};
use std::sync::Once;

use crossterm::cursor::{Hide, Show};
use crossterm::event::{
    DisableBracketedPaste, EnableBracketedPaste, KeyboardEnhancementFlags, PopKeyboardEnhancementFlags,
    PushKeyboardEnhancementFlags,
};
use crossterm::terminal::{
    BeginSynchronizedUpdate, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode,
};
use crossterm::{execute, queue};
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use super::look::Look;
use super::painter::Painter;
use super::state::Chat;

/// A picture goes out in one write as long as it is smaller than this.
const MOST_PICTURE: usize = 1 << 20;

/// The terminal in our hands; dropping it gives it back.
pub(super) struct Taken {
    backend: CrosstermBackend<BufWriter<Stdout>>,
    shown: Buffer,
    cursor: Option<Position>,
    all: bool,
}

impl Taken {
    /// Takes the terminal.
    ///
    /// # Errors
    /// What the system says; the terminal is as it was, then.
    pub(super) fn take() -> io::Result<Self> {
        give_back_on_panic();
        enable_raw_mode()?;
        let mut out = BufWriter::with_capacity(MOST_PICTURE, io::stdout());
        // Terminals that do not know the flags ignore them; those that do tell Shift-Enter from Enter, and Esc at once.
        let flags = KeyboardEnhancementFlags::DISAMBIGUATE_ESCAPE_CODES;
        if let Err(error) =
            execute!(out, EnterAlternateScreen, EnableBracketedPaste, PushKeyboardEnhancementFlags(flags))
        {
            give_back();
            return Err(error);
        }
        let backend = CrosstermBackend::new(out);
        Ok(Self { backend, shown: Buffer::default(), cursor: None, all: true })
    }

    /// Paints the chat as it is now. What has not changed is not sent: a still screen sends nothing.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn paint(&mut self, chat: &Chat, painter: &mut Painter, look: Look) -> io::Result<()> {
        let size = self.backend.size()?;
        let mut next = Buffer::empty(Rect::new(0, 0, size.width, size.height));
        let cursor = painter.paint(chat, &mut next);
        look.fit(&mut next);
        if next.area != self.shown.area {
            self.all = true;
        }
        if !self.all && next == self.shown && cursor == self.cursor {
            return Ok(());
        }
        queue!(self.backend, BeginSynchronizedUpdate, Hide)?;
        if std::mem::take(&mut self.all) {
            self.backend.clear()?;
            self.shown = Buffer::empty(next.area);
        }
        self.backend.draw(self.shown.diff(&next).into_iter())?;
        if let Some(cursor) = cursor {
            self.backend.set_cursor_position(cursor)?;
            queue!(self.backend, Show)?;
        }
        execute!(self.backend, EndSynchronizedUpdate)?;
        (self.shown, self.cursor) = (next, cursor);
        Ok(())
    }

    /// Forgets what is on the screen, so that the next picture paints all of it.
    pub(super) fn forget(&mut self) {
        self.all = true;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back. Nobody is left to be told when that fails.
fn give_back() {
    let mut out = io::stdout();
    let _ = execute!(
        out,
        EndSynchronizedUpdate,
        PopKeyboardEnhancementFlags,
        DisableBracketedPaste,
        LeaveAlternateScreen,
        Show
    );
    let _ = disable_raw_mode();
    let _ = out.flush();
}

/// A panic says its words on a terminal that shows them.
fn give_back_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
    });
}

#[cfg(test)]
mod tests;
