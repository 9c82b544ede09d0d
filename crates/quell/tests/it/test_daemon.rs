//! Test support: the binary under test, its configuration, and its commands run to their end.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::{DaemonHome, TestDaemon};

pub(crate) fn quell_exe() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_quell"))
}

#[derive(Debug)]
pub(crate) struct QuellCliOutput {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs a command to its end; a signal that ended it counts as code -1.
pub(crate) fn run_to_exit(command: &mut Command) -> QuellCliOutput {
    let ended = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    QuellCliOutput { code: ended.status.code().unwrap_or(-1), out: text(ended.stdout), err: text(ended.stderr) }
}

/// Runs a command with the daemon's home, as from another terminal.
pub(crate) fn run_cli(home: &DaemonHome, args: &[&str]) -> QuellCliOutput {
    run_to_exit(home.command(quell_exe()).args(args))
}

/// The configuration of the scripted model, without any agent.
pub(crate) fn provider_toml(model: &ScriptedModel) -> String {
    format!("[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\nmax_retries = 0\n", model.base_url())
}

/// The configuration of the scripted model and the agent `main`. `more` continues the section of the agent.
pub(crate) fn config_toml(model: &ScriptedModel, more: &str) -> String {
    format!("{}[agents.main]\nmodel = \"scripted/m\"\n{more}", provider_toml(model))
}

/// A scripted model, and a daemon with the agent `main` on it. `more` continues the section of the agent.
pub(crate) async fn start_daemon(more: &str) -> (ScriptedModel, TestDaemon) {
    let model = ScriptedModel::start().await;
    let daemon = TestDaemon::start(quell_exe(), &config_toml(&model, more)).await;
    (model, daemon)
}

/// Writes a program for the shell; returns its path.
pub(crate) fn write_shell_program(path: PathBuf, text: &str) -> PathBuf {
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}
