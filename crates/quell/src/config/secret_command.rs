//! Run the program that prints the secret of the cluster, with a time limit.

use std::ffi::OsString;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use quell_kernel::StopTimeouts;
use quell_process::{CommandSpec, Isolate, OutputSink, WardenExe, Wardens, base_environment};
use quell_protocol::ToolOutputStream;
use quell_scope::clock::Clock;
use quell_scope::{PointProbe, Scope};
use secrecy::SecretString;

use crate::runtime::block_on;

const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Of the output; a secret is much shorter.
const MAX_OUTPUT_BYTES: usize = 64 * 1024;

/// Runs a program with its arguments, and returns what it prints to standard output. Blocks for at most 10 s, plus the
/// time of its stop.
///
/// # Errors
/// The program cannot be started, fails, prints nothing, or does not end in time.
pub(super) fn read_secret(argv: &[String]) -> anyhow::Result<SecretString> {
    let program = argv.first().map(String::as_str).unwrap_or_default().to_owned();
    let argv = argv.iter().map(OsString::from).collect();
    // A thread of its own: the caller may be inside of a runtime.
    let reader = thread::Builder::new().name("quell-secret".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        block_on(&runtime, run_program(argv))
    });
    let outcome = reader
        .map_err(anyhow::Error::from)
        .and_then(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("reading its output panicked"))));
    outcome.with_context(|| format!("secret_command of [cluster], {program}, gave no secret"))
}

async fn run_program(argv: Vec<OsString>) -> anyhow::Result<SecretString> {
    let wardens = Wardens::new(WardenExe::ThisProcess, StopTimeouts::default())?;
    let scope = Scope::new(Clock::start(), PointProbe::default());
    let spec = CommandSpec {
        argv,
        label: "secret_command of [cluster]".to_owned(),
        // The daemon may have been started where an agent writes.
        cwd: PathBuf::from("/"),
        env: base_environment(std::env::vars_os()),
        timeout: Some(TIME_LIMIT),
        output_limit: 4096,
        // It is the operator's own program and may have to see the machine.
        isolate: Isolate::None,
        sandbox: None,
        network: None,
        session_network: None,
    };
    let mut output = SecretOutput::default();
    let ended = wardens.run(&spec, &scope, &mut output).await;
    scope.close().await;
    let end = ended?;
    if end.code != Some(0) {
        let how = end.code.map_or_else(
            || format!("did not end within {} s", TIME_LIMIT.as_secs()),
            |code| format!("ended with exit code {code}"),
        );
        let errors =
            output.errors.trim().lines().last().map(|line| format!("; it printed: {line}")).unwrap_or_default();
        bail!("it {how}{errors}");
    }
    match output.secret.trim() {
        "" => bail!("it printed nothing to standard output"),
        secret => Ok(secret.into()),
    }
}

/// Keeps the streams apart: what goes to standard error may be shown.
#[derive(Default)]
struct SecretOutput {
    secret: String,
    errors: String,
}

impl OutputSink for SecretOutput {
    fn output(&mut self, stream: ToolOutputStream, text: &str) {
        let kept = match stream {
            ToolOutputStream::Stdout => &mut self.secret,
            ToolOutputStream::Stderr => &mut self.errors,
        };
        if kept.len() + text.len() <= MAX_OUTPUT_BYTES {
            kept.push_str(text);
        }
    }
}
