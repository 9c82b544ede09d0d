//! The event loop: keys, signals, daemon inputs and ticks in; effects and frames out. It paints only after a change,
//! and limits the frame rate.

use std::io;
use std::time::Duration;

use crossterm::event::{Event, EventStream};
use futures_util::StreamExt;
use quell_client::daemon_client::DaemonClient;
use rustix::process::{getpid, kill_process};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::effect_runner::EffectRunner;
use crate::effects::{ChatEffect, ChatInput};
use crate::renderer::ChatRenderer;
use crate::state::ChatState;
use crate::terminal::{self, TerminalGuard};
use crate::theme::TerminalCapabilities;
use crate::unix_millis::UnixMillis;

/// How often due polls are checked.
const TICK_INTERVAL: Duration = Duration::from_millis(50);
/// Time between two frames while text streams in.
const STREAM_FRAME_INTERVAL: Duration = Duration::from_millis(33);

/// Time between two frames while the user types: short enough to look immediate, and a flood of keys does not hold up
/// the rest.
const KEY_FRAME_INTERVAL: Duration = Duration::from_millis(8);

/// Longest wait on exit for answers to sent messages and stops.
const EXIT_GRACE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoopExit {
    UserLeft,
    /// A signal, or the terminal is gone.
    Terminated,
}

struct ChatLoop {
    chat: ChatState,
    effect_runner: EffectRunner,
    renderer: ChatRenderer,
    terminal: TerminalGuard,
    capabilities: TerminalCapabilities,
    started_at: (UnixMillis, Instant),
    last_painted: Instant,
    /// When to paint the next frame; none while nothing has changed.
    next_paint: Option<Instant>,
    /// Time unit shown in the last frame, to detect that the clock on the screen must change.
    shown_time_unit: u64,
    exit: Option<LoopExit>,
}

/// Signals that end or suspend the program, and SIGINT, which counts as Ctrl-C.
struct TerminalSignals {
    terminate: Signal,
    quit: Signal,
    hang_up: Signal,
    interrupt: Signal,
    suspend: Signal,
    resume: Signal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TerminalSignalAction {
    Terminate,
    /// The terminal is gone.
    HangUp,
    Interrupt,
    Suspend,
    Resume,
}

impl TerminalSignals {
    fn install() -> io::Result<Self> {
        let raw = |number: rustix::process::Signal| signal(SignalKind::from_raw(number.as_raw()));
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            quit: signal(SignalKind::quit())?,
            hang_up: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            suspend: raw(rustix::process::Signal::TSTP)?,
            resume: raw(rustix::process::Signal::CONT)?,
        })
    }

    /// Returns the next signal. Safe to drop: no signal is lost.
    async fn next_action(&mut self) -> TerminalSignalAction {
        tokio::select! {
            _ = self.terminate.recv() => TerminalSignalAction::Terminate,
            _ = self.quit.recv() => TerminalSignalAction::Terminate,
            _ = self.hang_up.recv() => TerminalSignalAction::HangUp,
            _ = self.interrupt.recv() => TerminalSignalAction::Interrupt,
            _ = self.suspend.recv() => TerminalSignalAction::Suspend,
            _ = self.resume.recv() => TerminalSignalAction::Resume,
        }
    }
}

/// Runs the chat until the user leaves; returns its state, also after an error.
///
/// # Cancel safety
/// Dropping it restores the terminal; runs continue in the daemon.
pub(crate) async fn run_event_loop(
    chat: ChatState,
    client: DaemonClient,
    capabilities: TerminalCapabilities,
) -> (ChatState, io::Result<LoopExit>) {
    let ready = TerminalSignals::install().and_then(|signals| Ok((signals, TerminalGuard::acquire()?)));
    let (mut signals, terminal) = match ready {
        Ok(ready) => ready,
        Err(error) => return (chat, Err(error)),
    };
    let now = Instant::now();
    let mut chat_loop = ChatLoop {
        chat,
        effect_runner: EffectRunner::new(client),
        renderer: ChatRenderer::default(),
        terminal,
        capabilities,
        started_at: (wall_clock(), now),
        last_painted: now,
        next_paint: Some(now),
        shown_time_unit: 0,
        exit: None,
    };
    let exit = chat_loop.process_events(&mut signals).await;
    chat_loop.await_acknowledgements(&mut signals).await;
    (chat_loop.chat, exit)
}

fn ctrl_c_key() -> crossterm::event::KeyEvent {
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)
}

fn wall_clock() -> UnixMillis {
    UnixMillis(u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0))
}

impl ChatLoop {
    async fn process_events(&mut self, signals: &mut TerminalSignals) -> io::Result<LoopExit> {
        let mut keys = EventStream::new();
        let mut ticks = interval(TICK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            terminal::check_no_panic()?;
            if let Some(left) = self.exit {
                return Ok(left);
            }
            // Do not paint while another program has the terminal.
            let due = self.next_paint.filter(|_| self.terminal.is_held());
            tokio::select! {
                // Keys first, so that streaming never delays a stop. Cancel safe: every source keeps its position.
                biased;
                key = keys.next() => self.handle_terminal_event(key),
                action = signals.next_action() => self.handle_signal(action)?,
                () = sleep_until(due.unwrap_or(self.last_painted)), if due.is_some() => self.paint()?,
                input = self.effect_runner.next_input() => self.handle_input(input, STREAM_FRAME_INTERVAL),
                _ = ticks.tick() => self.poll_and_repaint(),
            }
        }
    }

    fn handle_signal(&mut self, action: TerminalSignalAction) -> io::Result<()> {
        match action {
            TerminalSignalAction::Terminate | TerminalSignalAction::HangUp => self.exit = Some(LoopExit::Terminated),
            TerminalSignalAction::Interrupt => self.handle_input(ChatInput::Key(ctrl_c_key()), KEY_FRAME_INTERVAL),
            TerminalSignalAction::Suspend => {
                self.terminal.release();
                // The default action of SIGTSTP; SIGSTOP cannot be caught.
                kill_process(getpid(), rustix::process::Signal::STOP)?;
            }
            TerminalSignalAction::Resume => {
                self.terminal.reacquire()?;
                self.schedule_paint(KEY_FRAME_INTERVAL);
            }
        }
        Ok(())
    }

    /// Restores the terminal and waits shortly for the answers to messages and stops, so that Esc followed by closing
    /// the window still stops. Ctrl-C is a signal again and ends the wait at once.
    async fn await_acknowledgements(&mut self, signals: &mut TerminalSignals) {
        self.terminal.release();
        let end = Instant::now() + EXIT_GRACE;
        while self.effect_runner.has_unacknowledged() {
            tokio::select! {
                biased;
                // A closing window sends SIGHUP too: it caused the exit and must not end the wait.
                action = signals.next_action() => if matches!(action, TerminalSignalAction::Terminate | TerminalSignalAction::Interrupt) { return },
                () = sleep_until(end) => return,
                input = self.effect_runner.next_input() => {
                    // The state takes the answers, but no new effects are started.
                    self.chat.update(input, self.now());
                }
            }
        }
    }

    fn now(&self) -> UnixMillis {
        self.started_at.0.plus(self.started_at.1.elapsed())
    }

    /// Paints once this time has passed since the last frame, unless an earlier frame is due.
    fn schedule_paint(&mut self, pause: Duration) {
        let due = self.last_painted + pause;
        self.next_paint = Some(self.next_paint.map_or(due, |before| before.min(due)));
    }

    fn handle_terminal_event(&mut self, event: Option<io::Result<Event>>) {
        match event {
            Some(Ok(Event::Key(key))) => {
                let (first, key) = self.chat.split_alt_key(key);
                first
                    .into_iter()
                    .chain([key])
                    .for_each(|key| self.handle_input(ChatInput::Key(key), KEY_FRAME_INTERVAL));
            }
            Some(Ok(Event::Paste(text))) => self.handle_input(ChatInput::Paste(text), KEY_FRAME_INTERVAL),
            Some(Ok(Event::Resize(..))) => self.schedule_paint(KEY_FRAME_INTERVAL),
            Some(Ok(Event::FocusGained | Event::FocusLost | Event::Mouse(_))) => {}
            // The terminal is gone.
            Some(Err(_)) | None => self.exit = Some(LoopExit::Terminated),
        }
    }

    fn poll_and_repaint(&mut self) {
        let effects = self.chat.update(ChatInput::Tick, self.now());
        self.start_effects(effects);
        // Repaint elapsed times once a second, and every 100 ms while something is being stopped.
        let time_unit = self.now().0 / if self.chat.repaints_fast() { 100 } else { 1000 };
        if self.chat.shows_time() && time_unit != self.shown_time_unit {
            self.shown_time_unit = time_unit;
            self.schedule_paint(STREAM_FRAME_INTERVAL);
        }
    }

    fn handle_input(&mut self, input: ChatInput, pause: Duration) {
        let effects = self.chat.update(input, self.now());
        self.schedule_paint(pause);
        self.start_effects(effects);
    }

    fn start_effects(&mut self, effects: Vec<ChatEffect>) {
        for effect in effects {
            match effect {
                ChatEffect::Scroll(scroll) => self.renderer.queue_scroll(scroll),
                ChatEffect::Redraw => self.terminal.force_full_repaint(),
                ChatEffect::Exit => self.exit = Some(LoopExit::UserLeft),
                other => self.effect_runner.start_effect(other),
            }
        }
    }

    fn paint(&mut self) -> io::Result<()> {
        // A panic may have happened during the wait for this frame, which would cover its message.
        terminal::check_no_panic()?;
        self.terminal.paint(&self.chat, &mut self.renderer, self.capabilities)?;
        self.last_painted = Instant::now();
        self.next_paint = None;
        if self.renderer.showed_top() {
            let effects = self.chat.update(ChatInput::TopReached, self.now());
            self.start_effects(effects);
        }
        Ok(())
    }
}
