//! The terminal, taken and given back: raw mode, the second screen, bracketed paste. Whatever ends or halts the program, a
//! panic included, gives it back first, and once: a second time would undo what the shell has set up.

use std::io::{self, BufWriter, Stdout, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// True while the terminal is in our hands. The program has one terminal, and a panic anywhere has to know.
static HELD: AtomicBool = AtomicBool::new(false);
/// True once something panicked while a chat was on the terminal.
static PANICKED: AtomicBool = AtomicBool::new(false);

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
        let mut out = BufWriter::with_capacity(MOST_PICTURE, io::stdout());
        enter(&mut out)?;
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

    /// Gives it back before the end; it can be taken again.
    pub(super) fn give_back(&self) {
        give_back();
    }

    /// Takes it again after somebody else had it, whether it was given to them or they took it.
    ///
    /// # Errors
    /// What the system says; the terminal is given back, then.
    pub(super) fn take_again(&mut self) -> io::Result<()> {
        // Who was halted without a word (SIGSTOP) still counts as holding it, but the shell has changed its modes.
        give_back();
        self.forget();
        enter(&mut self.backend)
    }

    /// True while it is in our hands.
    pub(super) fn is_held(&self) -> bool {
        HELD.load(Ordering::SeqCst)
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

fn enter(out: &mut impl Write) -> io::Result<()> {
    enable_raw_mode()?;
    HELD.store(true, Ordering::SeqCst);
    // Terminals that do not know the flags ignore them; those that do tell Shift-Enter from Enter, and Esc at once.
    let flags = KeyboardEnhancementFlags::DISAMBIGUATE_ESCAPE_CODES;
    let entered = execute!(out, EnterAlternateScreen, EnableBracketedPaste, PushKeyboardEnhancementFlags(flags));
    if entered.is_err() {
        give_back();
    }
    entered
}

fn give_back() {
    undo(&HELD, &mut io::stdout());
}

/// Gives the terminal back, if it is in our hands. Nobody is left to be told when that fails.
fn undo(held: &AtomicBool, out: &mut impl Write) {
    if !held.swap(false, Ordering::SeqCst) {
        return;
    }
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
            PANICKED.store(true, Ordering::SeqCst);
            give_back();
            before(panic);
        }));
    });
}

/// An error once something panicked: a task that the runtime caught has lost its work, and the terminal is given back.
///
/// # Errors
/// Then.
pub(super) fn nothing_panicked() -> io::Result<()> {
    if PANICKED.load(Ordering::SeqCst) { Err(io::Error::other("a part of the chat panicked")) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
