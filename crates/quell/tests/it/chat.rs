//! `quell chat` on a real terminal, with the real binary: keys go in, and the tests wait for what the screen shows.

mod elsewhere;
mod leaving;
mod lost;
mod reload;
mod screen;
mod stop;

use std::path::Path;
use std::process::ExitStatus;

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::{Daemon, Home};
use quell_testkit::pty::{Pty, Size};

use crate::cli::exe;

/// The key.
const ESC: &str = "\x1b";
/// Ctrl and C.
const CTRL_C: &str = "\x03";
const ENTER: &str = "\r";

/// The classic window.
const CLASSIC: Size = Size { rows: 24, columns: 80 };

/// A model, a daemon and a chat that is connected.
struct Table {
    model: ScriptedModel,
    daemon: Daemon,
    chat: Pty,
}

impl Table {
    async fn set() -> Self {
        Self::with("", &["--session", "s"]).await
    }

    /// With more of a configuration, and other arguments of `quell chat`.
    async fn with(more: &str, words: &[&str]) -> Self {
        let model = ScriptedModel::start().await;
        let daemon = Daemon::start(exe(), &config(&model, more)).await;
        let chat = chat(daemon.home(), words, CLASSIC);
        chat.shows("● live").await;
        Self { model, daemon, chat }
    }

    fn say(&mut self, text: &str) {
        self.chat.keys(text);
        self.chat.keys(ENTER);
    }

    /// Leaves an idle chat.
    async fn leave(mut self) -> (ExitStatus, String) {
        self.chat.keys(CTRL_C);
        self.chat.shows("Leave?").await;
        self.chat.keys(ENTER);
        let status = self.chat.ended().await;
        (status, self.chat.now().text())
    }
}

fn config(model: &ScriptedModel, more: &str) -> String {
    format!(
        "[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\nmax_retries = 0\n\
         [agents.main]\nmodel = \"scripted/m\"\n{more}",
        model.base_url()
    )
}

/// A chat on a terminal that can show everything.
fn chat(home: &Home, words: &[&str], size: Size) -> Pty {
    chat_in(home, words, size, &[("LANG", "C.UTF-8")])
}

/// A chat in surroundings of its own.
fn chat_in(home: &Home, words: &[&str], size: Size, environment: &[(&str, &str)]) -> Pty {
    let mut command = home.command(exe() as &Path);
    command.arg("chat").args(words);
    for name in ["LC_ALL", "LC_CTYPE", "LC_MESSAGES", "LANG", "NO_COLOR"] {
        command.env_remove(name);
    }
    command.envs(environment.iter().copied());
    Pty::start(&command, size)
}

/// True when the terminal is as a shell wants it back.
fn is_given_back(chat: &Pty) -> bool {
    let shown = chat.now();
    chat.is_cooked() && !shown.is_alternate() && !shown.hides_cursor() && !shown.brackets_pastes()
}
