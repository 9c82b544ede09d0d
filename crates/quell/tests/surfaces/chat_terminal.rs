//! `quell chat` on a pseudo-terminal, with the real binary: tests send keys and wait for the screen.

mod daemon_lost;
mod exit;
mod other_runs;
mod reopen;
mod screen;
mod stop;

use quell_testkit::pty::{Pty, PtySize, PtySnapshot};

use crate::prelude::*;

const ESC: &str = "\x1b";
const CTRL_C: &str = "\x03";
const ENTER: &str = "\r";

const DEFAULT_SIZE: PtySize = PtySize { rows: 24, columns: 80 };

struct ChatFixture {
    model: ScriptedModel,
    daemon: TestDaemon,
    chat: Pty,
}

impl ChatFixture {
    async fn start() -> Self {
        Self::start_with("", &["--session", "s"]).await
    }

    /// With more configuration, and other arguments of `quell chat`.
    async fn start_with(more: &str, args: &[&str]) -> Self {
        Self::start_configured(args, |model| config_toml(model, more)).await
    }

    /// With this configuration for the model, and other arguments of `quell chat`.
    async fn start_configured(args: &[&str], config: impl FnOnce(&ScriptedModel) -> String) -> Self {
        let model = ScriptedModel::start().await;
        let daemon = TestDaemon::start(quell_exe(), &config(&model)).await;
        let chat = open_chat(daemon.home(), args, DEFAULT_SIZE);
        chat.wait_text("● live").await;
        Self { model, daemon, chat }
    }

    fn send_line(&mut self, text: &str) {
        self.chat.type_keys(text);
        self.chat.type_keys(ENTER);
    }

    async fn type_until(&mut self, keys: &str, shown: &str) -> PtySnapshot {
        self.chat.type_keys(keys);
        self.chat.wait_text(shown).await
    }

    async fn send_until(&mut self, line: &str, shown: &str) -> PtySnapshot {
        self.send_line(line);
        self.chat.wait_text(shown).await
    }

    async fn type_until_gone(&mut self, keys: &str, text: &str) {
        self.chat.type_keys(keys);
        self.chat.wait_text_gone(text).await;
    }

    /// Starts a run whose answer begins with this text and never ends.
    async fn start_endless_run(&mut self, begin: &str) {
        self.model.script(ScriptedStream::new().text(begin).wait_for_gate("never"));
        self.send_until("first", begin.trim_end()).await;
    }

    async fn count_active_runs(&self) -> usize {
        let list = self.daemon.api().get("/api/runs?state=active").await.expect_status(200);
        list["items"].as_array().unwrap().len()
    }
}

/// Opens a chat on a terminal with UTF-8.
fn open_chat(home: &DaemonHome, args: &[&str], size: PtySize) -> Pty {
    open_chat_with_env(home, args, size, &[("LANG", "C.UTF-8")])
}

fn open_chat_with_env(home: &DaemonHome, args: &[&str], size: PtySize, environment: &[(&str, &str)]) -> Pty {
    let mut command = home.command(quell_exe() as &Path);
    command.arg("chat").args(args);
    for name in ["LC_ALL", "LC_CTYPE", "LC_MESSAGES", "LANG", "NO_COLOR"] {
        command.env_remove(name);
    }
    command.envs(environment.iter().copied());
    Pty::start(&command, size)
}
