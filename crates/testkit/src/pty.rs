//! Run a program on a real pseudo-terminal and read its screen through an emulator. Tests wait for conditions on the
//! screen and never sleep. It knows nothing of the program.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use tokio::sync::watch;

use crate::WAIT_TIMEOUT;
use crate::or_fail::OrFail as _;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PtySize {
    pub rows: u16,
    pub columns: u16,
}

#[derive(Clone)]
pub struct PtySnapshot {
    parser: SharedParser,
    bytes: u64,
    ended: bool,
    at: Instant,
}

impl PtySnapshot {
    fn with_screen<T>(&self, look: impl FnOnce(&vt100::Screen) -> T) -> T {
        let parser = self.parser.lock().unwrap_or_else(PoisonError::into_inner);
        look(parser.screen())
    }

    /// The screen as text, one line per row.
    pub fn text(&self) -> String {
        self.with_screen(vt100::Screen::contents)
    }

    /// The rows without trailing spaces.
    pub fn rows(&self) -> Vec<String> {
        self.with_screen(|screen| {
            let (_, columns) = screen.size();
            screen.rows(0, columns).map(|row| row.trim_end().to_owned()).collect()
        })
    }

    /// True while the alternate screen is shown.
    #[must_use]
    pub fn is_alternate(&self) -> bool {
        self.with_screen(vt100::Screen::alternate_screen)
    }

    /// True when any cell has a colour.
    #[must_use]
    pub fn has_color(&self) -> bool {
        self.with_screen(|screen| {
            let (rows, columns) = screen.size();
            let cells = (0..rows).flat_map(|row| (0..columns).filter_map(move |column| screen.cell(row, column)));
            cells
                .into_iter()
                .any(|cell| cell.fgcolor() != vt100::Color::Default || cell.bgcolor() != vt100::Color::Default)
        })
    }

    /// Bytes that the program has written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A program on its own terminal. Dropping it kills the program.
pub struct Pty {
    child: Child,
    master: File,
    snapshots: watch::Receiver<PtySnapshot>,
    parser: SharedParser,
}

type SharedParser = Arc<Mutex<vt100::Parser>>;

impl Pty {
    /// Starts a program as session leader on a new terminal of this size.
    pub fn start(command: &Command, size: PtySize) -> Self {
        Self::try_start(command, size).or_fail("no program on a terminal")
    }

    fn try_start(command: &Command, size: PtySize) -> std::io::Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?;
        let open = || File::options().read(true).write(true).open(Path::new(&*name.to_string_lossy()));
        tcsetwinsize(&master, winsize(size))?;
        let mut leader = as_session_leader(command);
        leader.stdin(open()?).stdout(open()?).stderr(open()?);
        let child = leader.spawn()?;
        let parser = Arc::new(Mutex::new(vt100::Parser::new(size.rows, size.columns, 0)));
        let first = PtySnapshot { parser: parser.clone(), bytes: 0, ended: false, at: Instant::now() };
        let (tell, shown) = watch::channel(first);
        let master = File::from(master);
        let (reader, screen) = (master.try_clone()?, parser.clone());
        std::thread::Builder::new().name("pty".into()).spawn(move || read_loop(reader, &screen, &tell))?;
        Ok(Self { child, master, snapshots: shown, parser })
    }

    /// Types keys: the bytes go to the program unchanged.
    pub fn type_keys(&mut self, keys: &str) {
        if let Err(error) = self.master.write_all(keys.as_bytes()) {
            panic!("nobody reads the keys: {error}\n{}", self.snapshot().text());
        }
    }

    pub fn resize(&mut self, size: PtySize) {
        self.parser.lock().unwrap_or_else(PoisonError::into_inner).screen_mut().set_size(size.rows, size.columns);
        tcsetwinsize(&self.master, winsize(size)).or_fail("the window keeps its size");
    }

    pub fn snapshot(&self) -> PtySnapshot {
        self.snapshots.borrow().clone()
    }

    /// Waits until the screen matches; returns it with the arrival time of its last bytes.
    pub async fn wait_until(&self, what: &str, wanted: impl Fn(&PtySnapshot) -> bool) -> (PtySnapshot, Instant) {
        let mut shown = self.snapshots.clone();
        let waited = tokio::time::timeout(WAIT_TIMEOUT, shown.wait_for(|shown| wanted(shown))).await;
        match waited {
            Ok(Ok(shown)) => (shown.clone(), shown.at),
            Ok(Err(_)) | Err(_) => panic!("never on the screen: {what}\n{}", self.snapshot().text()),
        }
    }

    /// Waits until the screen shows this text, also if it is wrapped into two lines.
    pub async fn wait_text(&self, text: &str) -> PtySnapshot {
        let is_shown = |shown: &PtySnapshot| {
            let shown = shown.text();
            let read = || shown.split_whitespace().collect::<Vec<_>>().join(" ");
            shown.contains(text) || read().contains(text)
        };
        self.wait_until(text, is_shown).await.0
    }

    /// Waits until the screen no longer shows this text.
    pub async fn wait_text_gone(&self, text: &str) -> PtySnapshot {
        self.wait_until(&format!("anything without {text:?}"), |shown| !shown.text().contains(text)).await.0
    }

    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Waits until the program has exited and all its output is on the screen.
    pub async fn wait_exit(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    self.wait_until("the end of what was written", |shown| shown.ended).await;
                    return status;
                }
                Ok(None) if begun.elapsed() < WAIT_TIMEOUT => {}
                outcome => panic!("the program did not end: {outcome:?}\n{}", self.snapshot().text()),
            }
            // The exit sends no event here; poll it as a shell does.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// True when the terminal is in canonical mode with echo, as a shell expects it.
    #[must_use]
    pub fn is_cooked(&self) -> bool {
        use rustix::termios::LocalModes;
        tcgetattr(&self.master)
            .is_ok_and(|modes| modes.local_modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG))
    }

    /// True when the program has left the terminal as a shell expects it.
    #[must_use]
    pub fn is_restored(&self) -> bool {
        let is_changed =
            |screen: &vt100::Screen| screen.alternate_screen() || screen.hide_cursor() || screen.bracketed_paste();
        self.is_cooked() && !self.snapshot().with_screen(is_changed)
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the command as leader of a session whose terminal is its input. So the kernel signals a new size to it, and
/// `/dev/tty` is this terminal and not that of the tests.
fn as_session_leader(command: &Command) -> Command {
    #[expect(clippy::disallowed_methods, reason = "test support starts the real binary")]
    let mut leader = Command::new("setsid");
    leader.arg("--ctty").arg(command.get_program()).args(command.get_args()).env("TERM", "xterm-256color");
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => leader.env(name, value),
            None => leader.env_remove(name),
        };
    }
    if let Some(place) = command.get_current_dir() {
        leader.current_dir(place);
    }
    leader
}

fn winsize(size: PtySize) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Feeds the emulator until the terminal is gone.
fn read_loop(mut reader: File, parser: &Mutex<vt100::Parser>, tell: &watch::Sender<PtySnapshot>) {
    let mut bytes = [0; 1 << 16];
    loop {
        let n = reader.read(&mut bytes).unwrap_or(0);
        let at = Instant::now();
        parser.lock().unwrap_or_else(PoisonError::into_inner).process(&bytes[..n]);
        tell.send_modify(|shown| {
            shown.bytes += n as u64;
            shown.ended = n == 0;
            shown.at = at;
        });
        if n == 0 {
            return;
        }
    }
}
