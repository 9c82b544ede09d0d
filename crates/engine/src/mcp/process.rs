//! The process of a server: started under a warden with little environment, ended by the warden's ladder.

use std::ffi::OsString;
use std::time::Duration;

use quell_protocol::ToolOutputStream;
use secrecy::ExposeSecret;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::watch;
use tokio::time::timeout;

use super::House;
use super::slot::{Order, Over, Slot};
use crate::proc::{CommandSpec, Isolate, Leash, OutputSink, ProcessEnd, ProcessHow, RUN_ID_VARIABLE, SpawnError};
use crate::scope::{Scope, StopLevel};

/// The variable that names the session of a server of its own.
const SESSION_VARIABLE: &str = "QUELL_SESSION";
/// Kept of what a server prints on standard error.
const STDERR_KEPT: usize = 4 * 1024;

/// The process of a server.
pub(super) struct Process {
    leash: Leash,
    end: watch::Receiver<Option<Over>>,
}

/// Where a process writes, and where it reads.
pub(super) type Pipes = (Receiver, Sender);

impl Process {
    /// Starts it. It goes on from here until it is told.
    pub(super) fn start(house: &House, slot: &Slot, scope: &Scope, command: &str) -> Result<(Self, Pipes), String> {
        let spec = command_spec(house, slot, command);
        let mut running = house.wardens.start(&spec, scope).map_err(|error| causes(&error))?;
        let pipes = running.take_stdout().zip(running.take_input());
        let leash = running.leash();
        let mut sink = Whispers { server: slot.server.name.clone() };
        let (told, end) = watch::channel(None);
        scope.spawn(async move {
            // waits: for the life of the process, in a task of the server's own scope.
            let end = running.collect(&mut sink).await;
            told.send_replace(Some(over_of(end)));
        });
        let pipes = pipes.ok_or("its pipes cannot be taken")?;
        Ok((Self { leash, end }, pipes))
    }

    /// Waits until nothing of it is alive.
    pub(super) async fn gone(&mut self) -> Over {
        let lost = || Over { cause: "its watch was lost".to_owned(), how: "failed", ..Over::default() };
        // waits: as one arm of several, where the others carry the orders.
        let end = self.end.wait_for(Option::is_some).await.map(|end| end.clone());
        end.ok().flatten().unwrap_or_else(lost)
    }

    /// Ends it: after `patience` for an end of its own, by its warden's ladder.
    pub(super) async fn end(mut self, slot: &Slot, patience: Duration) -> Over {
        let (leash, mut orders) = (self.leash.clone(), slot.orders());
        let hurried = async {
            // waits: until time is up or an order has come; either ends the wait.
            let _ = timeout(patience, orders.wait_for(Order::is_now)).await;
            leash.end(StopLevel::Gentle);
            // waits: for the order to kill, while the arm below waits for the end.
            if orders.wait_for(|order| *order == Order::Kill).await.is_ok() {
                leash.end(StopLevel::Forced);
            }
            // waits: for the arm below, as nothing is left to be told.
            std::future::pending::<()>().await;
        };
        // waits: for the ladder of its warden, which every order hurries on.
        tokio::select! {
            biased;
            over = self.gone() => over,
            () = hurried => Over::default(),
        }
    }
}

fn command_spec(house: &House, slot: &Slot, command: &str) -> CommandSpec {
    let (server, birth) = (&slot.server, &slot.birth);
    let mut env = house.environment.clone();
    env.extend(server.config.env.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))));
    if let (Some(name), Some(key)) = (&server.config.api_key_env, &server.config.api_key) {
        env.push((name.into(), key.expose_secret().into()));
    }
    // It belongs to its session and not to the run that needed it first, whose own processes end with it.
    env.push((RUN_ID_VARIABLE.into(), format!("mcp-{}-{}", server.name, uuid::Uuid::now_v7()).into()));
    if let Some(session) = &birth.session {
        env.push((SESSION_VARIABLE.into(), session.as_str().into()));
    }
    let argv = std::iter::once(command).chain(server.config.args.iter().map(String::as_str));
    CommandSpec {
        argv: argv.map(OsString::from).collect(),
        label: format!("MCP server {}", server.name),
        cwd: birth.workdir.clone(),
        env,
        timeout: None,
        output_limit: STDERR_KEPT,
        isolate: Isolate::Auto,
    }
}

fn over_of(end: Result<ProcessEnd, SpawnError>) -> Over {
    let end = match end {
        Ok(end) => end,
        Err(error) => return Over { cause: causes(&error), how: "failed", ..Over::default() },
    };
    let cause = match (end.code, end.signal, end.how) {
        (Some(code), _, ProcessHow::Exited) => format!("exit code {code}"),
        (_, Some(signal), ProcessHow::Exited) => format!("ended by signal {signal}"),
        (_, _, ProcessHow::Kill) => "ended by SIGKILL".to_owned(),
        (_, _, ProcessHow::Term | ProcessHow::Exited) => "ended by SIGTERM".to_owned(),
    };
    let said = end.output.text().trim().to_owned();
    Over { cause, how: end.how.word(), leftovers: end.leftovers, said, remedy: None }
}

/// An error with its causes, in one line.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// What a server prints on standard error, for the debug log.
struct Whispers {
    server: String,
}

impl OutputSink for Whispers {
    fn output(&mut self, _: ToolOutputStream, text: &str) {
        tracing::debug!(server = %self.server, text = text.trim_end(), "MCP server printed");
    }
}
