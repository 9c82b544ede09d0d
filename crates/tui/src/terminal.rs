//! Take over the terminal (raw mode, alternate screen, bracketed paste) and restore it on exit, suspension and panic.
//! It is restored exactly once: a second time would undo the settings of the shell.

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
use ratatui_core::backend::Backend;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use ratatui_crossterm::CrosstermBackend;

use crate::renderer::ChatRenderer;
use crate::state::ChatState;
use crate::theme::TerminalCapabilities;

/// A frame smaller than this is written at once, in bytes.
const MAX_FRAME_BYTES: usize = 1 << 20;

/// True while this program has the terminal. It is global because the panic hook needs it, and there is one terminal.
static TERMINAL_HELD: AtomicBool = AtomicBool::new(false);
/// True once a thread or task panicked while the chat had the terminal.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Has the terminal; restores it when dropped.
pub(crate) struct TerminalGuard {
    backend: CrosstermBackend<BufWriter<Stdout>>,
    last_frame: Buffer,
    cursor: Option<Position>,
    full_repaint: bool,
}

impl TerminalGuard {
    /// Takes over the terminal; leaves it unchanged on error.
    pub(crate) fn acquire() -> io::Result<Self> {
        install_panic_hook();
        let mut out = BufWriter::with_capacity(MAX_FRAME_BYTES, io::stdout());
        enter_alternate_screen(&mut out)?;
        let backend = CrosstermBackend::new(out);
        Ok(Self { backend, last_frame: Buffer::default(), cursor: None, full_repaint: true })
    }

    /// Paints the chat. Sends only changed cells, and nothing if there is no change.
    pub(crate) fn paint(
        &mut self,
        chat: &ChatState,
        renderer: &mut ChatRenderer,
        capabilities: TerminalCapabilities,
    ) -> io::Result<()> {
        let size = self.backend.size()?;
        let mut next = Buffer::empty(Rect::new(0, 0, size.width, size.height));
        let cursor = renderer.render_frame(chat, &mut next);
        capabilities.degrade_buffer(&mut next);
        if next.area != self.last_frame.area {
            self.full_repaint = true;
        }
        if !self.full_repaint && next == self.last_frame && cursor == self.cursor {
            return Ok(());
        }
        queue!(self.backend, BeginSynchronizedUpdate, Hide)?;
        if std::mem::take(&mut self.full_repaint) {
            self.backend.clear()?;
            self.last_frame = Buffer::empty(next.area);
        }
        self.backend.draw(self.last_frame.diff(&next).into_iter())?;
        if let Some(cursor) = cursor {
            self.backend.set_cursor_position(cursor)?;
            queue!(self.backend, Show)?;
        }
        execute!(self.backend, EndSynchronizedUpdate)?;
        (self.last_frame, self.cursor) = (next, cursor);
        Ok(())
    }

    /// Restores the terminal; it can be taken again.
    pub(crate) fn release(&self) {
        release_terminal();
    }

    /// Takes the terminal again after another program had it. Restores it on error.
    pub(crate) fn reacquire(&mut self) -> io::Result<()> {
        // After a SIGSTOP the flag is still set, but the shell has changed the terminal modes.
        release_terminal();
        self.force_full_repaint();
        enter_alternate_screen(&mut self.backend)
    }

    pub(crate) fn is_held(&self) -> bool {
        TERMINAL_HELD.load(Ordering::SeqCst)
    }

    pub(crate) fn force_full_repaint(&mut self) {
        self.full_repaint = true;
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        release_terminal();
    }
}

fn enter_alternate_screen(out: &mut impl Write) -> io::Result<()> {
    enable_raw_mode()?;
    TERMINAL_HELD.store(true, Ordering::SeqCst);
    // Terminals without these flags ignore them. With them, Shift-Enter differs from Enter, and Esc is reported at
    // once.
    let flags = KeyboardEnhancementFlags::DISAMBIGUATE_ESCAPE_CODES;
    let entered = execute!(out, EnterAlternateScreen, EnableBracketedPaste, PushKeyboardEnhancementFlags(flags));
    if entered.is_err() {
        release_terminal();
    }
    entered
}

fn release_terminal() {
    restore_terminal(&TERMINAL_HELD, &mut io::stdout());
}

/// Restores the terminal if this program has it. Errors are ignored: there is no place to report them.
fn restore_terminal(held: &AtomicBool, out: &mut impl Write) {
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

/// Restores the terminal before the panic message is printed.
fn install_panic_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICKED.store(true, Ordering::SeqCst);
            release_terminal();
            before(panic);
        }));
    });
}

/// Fails once something panicked: a task whose panic the runtime caught has lost its work, and the terminal is
/// restored.
pub(crate) fn check_no_panic() -> io::Result<()> {
    if PANICKED.load(Ordering::SeqCst) { Err(io::Error::other("a part of the chat panicked")) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
