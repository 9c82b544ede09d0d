//! A program on a real pseudo-terminal, and its screen as an emulator shows it. Tests wait for conditions on the screen; they
//! never sleep. It knows nothing of the program.

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

/// Longest wait for the screen. It decides only how late a failing test fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// Rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Rows.
    pub rows: u16,
    /// Columns.
    pub columns: u16,
}

/// What a terminal shows at one moment.
#[derive(Clone)]
pub struct Shown {
    parser: Screen,
    bytes: u64,
    over: bool,
    at: Instant,
}

impl Shown {
    fn with<T>(&self, look: impl FnOnce(&vt100::Screen) -> T) -> T {
        let parser = self.parser.lock().unwrap_or_else(PoisonError::into_inner);
        look(parser.screen())
    }

    /// The screen as text, a line per row.
    #[must_use]
    pub fn text(&self) -> String {
        self.with(vt100::Screen::contents)
    }

    /// The rows, without the spaces at their ends.
    #[must_use]
    pub fn rows(&self) -> Vec<String> {
        self.with(|screen| {
            let (_, columns) = screen.size();
            screen.rows(0, columns).map(|row| row.trim_end().to_owned()).collect()
        })
    }

    /// True while the second screen is shown, as programs over the whole terminal do.
    #[must_use]
    pub fn is_alternate(&self) -> bool {
        self.with(vt100::Screen::alternate_screen)
    }

    /// True while the cursor is hidden.
    #[must_use]
    pub fn hides_cursor(&self) -> bool {
        self.with(vt100::Screen::hide_cursor)
    }

    /// True while pastes are bracketed.
    #[must_use]
    pub fn brackets_pastes(&self) -> bool {
        self.with(vt100::Screen::bracketed_paste)
    }

    /// True when any cell has a colour of its own.
    #[must_use]
    pub fn has_color(&self) -> bool {
        self.with(|screen| {
            let (rows, columns) = screen.size();
            let cells = (0..rows).flat_map(|row| (0..columns).filter_map(move |column| screen.cell(row, column)));
            cells
                .into_iter()
                .any(|cell| cell.fgcolor() != vt100::Color::Default || cell.bgcolor() != vt100::Color::Default)
        })
    }

    /// Bytes that the program has written so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A program on a terminal of its own. Dropping it kills the program.
pub struct Pty {
    child: Child,
    master: File,
    shown: watch::Receiver<Shown>,
    parser: Screen,
}

type Screen = Arc<Mutex<vt100::Parser>>;

impl Pty {
    /// Starts a program as the leader of a session on a new terminal of this size.
    ///
    /// # Panics
    /// When the system has no terminal to give, or the program does not start.
    #[must_use]
    pub fn start(command: &Command, size: Size) -> Self {
        match Self::open(command, size) {
            Ok(pty) => pty,
            Err(error) => panic!("no program on a terminal: {error}"),
        }
    }

    fn open(command: &Command, size: Size) -> std::io::Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?;
        let open = || File::options().read(true).write(true).open(Path::new(&*name.to_string_lossy()));
        tcsetwinsize(&master, winsize(size))?;
        let mut leader = as_leader(command);
        leader.stdin(open()?).stdout(open()?).stderr(open()?);
        let child = leader.spawn()?;
        let parser = Arc::new(Mutex::new(vt100::Parser::new(size.rows, size.columns, 0)));
        let first = Shown { parser: parser.clone(), bytes: 0, over: false, at: Instant::now() };
        let (tell, shown) = watch::channel(first);
        let master = File::from(master);
        let (reader, screen) = (master.try_clone()?, parser.clone());
        std::thread::Builder::new().name("pty".into()).spawn(move || read_all(reader, &screen, &tell))?;
        Ok(Self { child, master, shown, parser })
    }

    /// Types, as a keyboard does: bytes go to the program as they are.
    ///
    /// # Panics
    /// When the terminal is gone.
    pub fn keys(&mut self, keys: &str) {
        if let Err(error) = self.master.write_all(keys.as_bytes()) {
            panic!("nobody reads the keys: {error}\n{}", self.now().text());
        }
    }

    /// Changes the size of the window.
    ///
    /// # Panics
    /// When the terminal is gone.
    pub fn resize(&mut self, size: Size) {
        self.parser.lock().unwrap_or_else(PoisonError::into_inner).screen_mut().set_size(size.rows, size.columns);
        if let Err(error) = tcsetwinsize(&self.master, winsize(size)) {
            panic!("the window keeps its size: {error}");
        }
    }

    /// What is on the screen now.
    #[must_use]
    pub fn now(&self) -> Shown {
        self.shown.borrow().clone()
    }

    /// Waits until the screen is as wanted, and gives it with the moment at which its last bytes came.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not become so in time, with what it shows instead.
    pub async fn until(&self, what: &str, wanted: impl Fn(&Shown) -> bool) -> (Shown, Instant) {
        let mut shown = self.shown.clone();
        let waited = tokio::time::timeout(PATIENCE, shown.wait_for(|shown| wanted(shown))).await;
        match waited {
            Ok(Ok(shown)) => (shown.clone(), shown.at),
            Ok(Err(_)) | Err(_) => panic!("never on the screen: {what}\n{}", self.now().text()),
        }
    }

    /// Waits until the screen shows this text, also where it is broken into two lines.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not come in time.
    pub async fn shows(&self, text: &str) -> Shown {
        let is_shown = |shown: &Shown| {
            let shown = shown.text();
            let read = || shown.split_whitespace().collect::<Vec<_>>().join(" ");
            shown.contains(text) || read().contains(text)
        };
        self.until(text, is_shown).await.0
    }

    /// Waits until the screen does not show this text any more.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it stays too long.
    pub async fn hides(&self, text: &str) -> Shown {
        self.until(&format!("anything without {text:?}"), |shown| !shown.text().contains(text)).await.0
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Waits until the program has ended and everything that it wrote is on the screen.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not end in time.
    pub async fn ended(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    self.until("the end of what was written", |shown| shown.over).await;
                    return status;
                }
                Ok(None) if begun.elapsed() < PATIENCE => {}
                outcome => panic!("the program did not end: {outcome:?}\n{}", self.now().text()),
            }
            // An end is a status without an event here; asked again as a shell would.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// True when the terminal takes lines and shows what is typed, as a shell wants it.
    #[must_use]
    pub fn is_cooked(&self) -> bool {
        use rustix::termios::LocalModes;
        tcgetattr(&self.master)
            .is_ok_and(|modes| modes.local_modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG))
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command as the leader of a session whose terminal is its input: so the system tells it of a new size, and `/dev/tty`
/// is this terminal and not the one that the tests run on.
fn as_leader(command: &Command) -> Command {
    #[expect(clippy::disallowed_methods, reason = "the scaffold starts the real binary from outside")]
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

fn winsize(size: Size) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Feeds the emulator until the terminal is gone.
fn read_all(mut reader: File, parser: &Mutex<vt100::Parser>, tell: &watch::Sender<Shown>) {
    let mut bytes = [0; 1 << 16];
    loop {
        let n = reader.read(&mut bytes).unwrap_or(0);
        let at = Instant::now();
        parser.lock().unwrap_or_else(PoisonError::into_inner).process(&bytes[..n]);
        tell.send_modify(|shown| {
            shown.bytes += n as u64;
            shown.over = n == 0;
            shown.at = at;
        });
        if n == 0 {
            return;
        }
    }
}
