//! The one loop: keys, followed runs, answers and time go into the core; what it wants done is set going; the screen is
//! painted when something changed, and not more often than an eye can see.

use std::io;
use std::time::Duration;

use crossterm::event::{Event, EventStream};
use futures_util::StreamExt;
use rustix::process::{getpid, kill_process};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::clock::Moment;
use super::effects::{Effect, Input};
use super::errands::Errands;
use super::look::Look;
use super::painter::Painter;
use super::state::Chat;
use super::terminal::{self, Taken};
use crate::link::Link;

/// The daemon is asked what is due this often.
const TICK: Duration = Duration::from_millis(50);
/// Time between two pictures of a stream.
const FRAME: Duration = Duration::from_millis(33);

/// Time between two pictures of what somebody types: it shows at once, and a flood of keys does not hold up the rest.
const KEY: Duration = Duration::from_millis(8);

/// Whoever leaves waits no longer than this for what is being sent.
const LAST: Duration = Duration::from_secs(1);

/// How the chat ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// The person left.
    Asked,
    /// A signal, or the terminal is gone.
    Ended,
}

/// The loop's own things.
struct Desk {
    chat: Chat,
    errands: Errands,
    painter: Painter,
    terminal: Taken,
    look: Look,
    start: (Moment, Instant),
    painted: Instant,
    /// When the next picture is to be painted; nothing while nothing has changed.
    due: Option<Instant>,
    /// What the last picture said about time.
    shown_second: u64,
    left: Option<Left>,
}

/// Signals that end or halt the program, or that are a key by another way.
struct Signals {
    terminate: Signal,
    quit: Signal,
    hang_up: Signal,
    interrupt: Signal,
    suspend: Signal,
    resume: Signal,
}

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    End,
    /// The terminal is gone.
    HangUp,
    Interrupt,
    Suspend,
    Resume,
}

impl Signals {
    fn catch() -> io::Result<Self> {
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

    /// The next signal. Dropping the wait loses none.
    async fn next(&mut self) -> Wish {
        tokio::select! {
            _ = self.terminate.recv() => Wish::End,
            _ = self.quit.recv() => Wish::End,
            _ = self.hang_up.recv() => Wish::HangUp,
            _ = self.interrupt.recv() => Wish::Interrupt,
            _ = self.suspend.recv() => Wish::Suspend,
            _ = self.resume.recv() => Wish::Resume,
        }
    }
}

/// Runs the chat until it is left; gives it back, also after an error.
///
/// # Cancel safety
/// Dropping it gives the terminal back; runs go on in the daemon.
pub(super) async fn run(chat: Chat, link: Link, look: Look) -> (Chat, io::Result<Left>) {
    let ready = Signals::catch().and_then(|signals| Ok((signals, Taken::take()?)));
    let (mut signals, terminal) = match ready {
        Ok(ready) => ready,
        Err(error) => return (chat, Err(error)),
    };
    let now = Instant::now();
    let mut desk = Desk {
        chat,
        errands: Errands::new(link),
        painter: Painter::default(),
        terminal,
        look,
        start: (wall(), now),
        painted: now,
        due: Some(now),
        shown_second: 0,
        left: None,
    };
    let left = desk.talk(&mut signals).await;
    desk.finish(&mut signals).await;
    (desk.chat, left)
}

fn ctrl_c() -> crossterm::event::KeyEvent {
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)
}

fn wall() -> Moment {
    Moment(u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0))
}

impl Desk {
    async fn talk(&mut self, signals: &mut Signals) -> io::Result<Left> {
        let mut keys = EventStream::new();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            terminal::nothing_panicked()?;
            if let Some(left) = self.left {
                return Ok(left);
            }
            // Whoever was given the terminal is not painted over.
            let due = self.due.filter(|_| self.terminal.is_held());
            tokio::select! {
                // Keys come first: a stream never keeps a stop waiting. Every source keeps its place when its wait is dropped.
                biased;
                key = keys.next() => self.event(key),
                wish = signals.next() => self.signalled(wish)?,
                () = sleep_until(due.unwrap_or(self.painted)), if due.is_some() => self.paint()?,
                input = self.errands.next() => self.take(input, FRAME),
                _ = ticks.tick() => self.tick(),
            }
        }
    }

    fn signalled(&mut self, wish: Wish) -> io::Result<()> {
        match wish {
            Wish::End | Wish::HangUp => self.left = Some(Left::Ended),
            Wish::Interrupt => self.take(Input::Key(ctrl_c()), KEY),
            Wish::Suspend => {
                self.terminal.give_back();
                // What SIGTSTP does when nobody catches it; this one cannot be caught.
                kill_process(getpid(), rustix::process::Signal::STOP)?;
            }
            Wish::Resume => {
                self.terminal.take_again()?;
                self.paint_within(KEY);
            }
        }
        Ok(())
    }

    /// Gives the terminal back and waits a moment for the answers to messages and stops: whoever presses Esc and closes the
    /// window has stopped. Ctrl-C is a signal again, and ends the wait at once.
    async fn finish(&mut self, signals: &mut Signals) {
        self.terminal.give_back();
        let end = Instant::now() + LAST;
        while self.errands.owes() {
            tokio::select! {
                biased;
                // A window that closes hangs up, too: that is why it ends, not a second wish.
                wish = signals.next() => if matches!(wish, Wish::End | Wish::Interrupt) { return },
                () = sleep_until(end) => return,
                input = self.errands.next() => {
                    // What the answers say counts; what would have been done about them does not begin any more.
                    self.chat.update(input, self.now());
                }
            }
        }
    }

    fn now(&self) -> Moment {
        self.start.0.plus(self.start.1.elapsed())
    }

    /// Paints when this time has passed since the last picture, or before.
    fn paint_within(&mut self, pause: Duration) {
        let due = self.painted + pause;
        self.due = Some(self.due.map_or(due, |before| before.min(due)));
    }

    fn event(&mut self, event: Option<io::Result<Event>>) {
        match event {
            Some(Ok(Event::Key(key))) => {
                let (first, key) = self.chat.presses(key);
                first.into_iter().chain([key]).for_each(|key| self.take(Input::Key(key), KEY));
            }
            Some(Ok(Event::Paste(text))) => self.take(Input::Paste(text), KEY),
            Some(Ok(Event::Resize(..))) => self.paint_within(KEY),
            Some(Ok(Event::FocusGained | Event::FocusLost | Event::Mouse(_))) => {}
            // The terminal is gone: there is nobody to talk to.
            Some(Err(_)) | None => self.left = Some(Left::Ended),
        }
    }

    fn tick(&mut self) {
        let effects = self.chat.update(Input::Tick, self.now());
        self.set_going(effects);
        // Time that stands on the screen goes on: in seconds, and faster while something is being stopped.
        let second = self.now().0 / if self.chat.counts_down() { 100 } else { 1000 };
        if self.chat.shows_time() && second != self.shown_second {
            self.shown_second = second;
            self.paint_within(FRAME);
        }
    }

    fn take(&mut self, input: Input, pause: Duration) {
        let effects = self.chat.update(input, self.now());
        self.paint_within(pause);
        self.set_going(effects);
    }

    fn set_going(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Scroll(scroll) => self.painter.scroll(scroll),
                Effect::Redraw => self.terminal.forget(),
                Effect::Leave => self.left = Some(Left::Asked),
                other => self.errands.start(other),
            }
        }
    }

    fn paint(&mut self) -> io::Result<()> {
        // It may have come during the wait for this picture, which would cover its words.
        terminal::nothing_panicked()?;
        self.terminal.paint(&self.chat, &mut self.painter, self.look)?;
        self.painted = Instant::now();
        self.due = None;
        if self.painter.saw_top() {
            let effects = self.chat.update(Input::TopSeen, self.now());
            self.set_going(effects);
        }
        Ok(())
    }
}
