//! Test support: the binary under test, its configuration, and its commands run to their end.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::{DaemonHome, TestDaemon};
use quell_testkit::history_check::corpus::ModelDialect;

/// The program `quell`. Cargo builds it for the tests of its package, and puts it beside their folder.
///
/// # Panics
/// If it is not there, as for a test of another package.
pub fn quell_exe() -> &'static Path {
    static QUELL: LazyLock<PathBuf> = LazyLock::new(|| {
        let program = profile_dir().join("quell");
        assert!(program.is_file(), "there is no {}: `cargo build --package quell` makes it", program.display());
        program
    });
    &QUELL
}

/// The folder `target` of this build.
pub(crate) fn target_dir() -> PathBuf {
    profile_dir().parent().expect("a profile lies in the target folder").to_owned()
}

/// The folder of the profile: a test is executed in its folder `deps`.
fn profile_dir() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).expect("a test lies in deps/ of its profile").to_owned()
}

#[derive(Debug)]
pub struct QuellCliOutput {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// Runs a command to its end; a signal that ended it counts as code -1.
pub fn run_to_exit(command: &mut Command) -> QuellCliOutput {
    let ended = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    QuellCliOutput { code: ended.status.code().unwrap_or(-1), out: text(ended.stdout), err: text(ended.stderr) }
}

/// Runs a command with the daemon's home, as from another terminal.
pub fn run_cli(home: &DaemonHome, args: &[&str]) -> QuellCliOutput {
    run_to_exit(home.command(quell_exe()).args(args))
}

/// The configuration of the scripted model, without any agent.
pub fn provider_toml(model: &ScriptedModel) -> String {
    format!("[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\nmax_retries = 0\n", model.base_url())
}

/// The configuration of the scripted model and the agent `main`. `more` continues the section of the agent.
pub fn config_toml(model: &ScriptedModel, more: &str) -> String {
    format!("{}[agents.main]\nmodel = \"scripted/m\"\n{more}", provider_toml(model))
}

/// A scripted model, and a daemon with the agent `main` on it. `more` continues the section of the agent.
pub async fn start_daemon(more: &str) -> (ScriptedModel, TestDaemon) {
    let model = ScriptedModel::start().await;
    let daemon = TestDaemon::start(quell_exe(), &config_toml(&model, more)).await;
    (model, daemon)
}

/// A scripted model, and a daemon with the agent `main` and a provider of each dialect on it.
pub async fn start_daemon_with_dialects() -> (ScriptedModel, TestDaemon) {
    let model = ScriptedModel::start().await;
    let mut config = config_toml(&model, "");
    for kind in ModelDialect::ALL.map(ModelDialect::kind) {
        let base_url = model.base_url();
        config.push_str(&format!(
            "[providers.{kind}]\nkind = \"{kind}\"\nbase_url = \"{base_url}\"\nmax_retries = 0\napi_key_env = \"MODEL_KEY\"\n"
        ));
    }
    let home = DaemonHome::new(&config).with_env("MODEL_KEY", "sk-test");
    let daemon = home.start(quell_exe()).await;
    (model, daemon)
}

/// Writes a program for the shell; returns its path.
pub fn write_shell_program(path: PathBuf, text: &str) -> PathBuf {
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}
