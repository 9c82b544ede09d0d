//! The process of a stdio server: start under a warden, end by the stop ladder.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use quell_process::{
    CommandSpec, Isolate, OutputSink, ProcessEnd, ProcessEndMethod, RUN_ID_VARIABLE, SandboxSpec, SpawnError,
    StopHandle,
};
use quell_protocol::ToolOutputStream;
use quell_protocol::display_text::error_chain;
use quell_scope::{Scope, StopLevel};
use secrecy::ExposeSecret;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::watch;
use tokio::time::timeout;

use super::instance::{InstanceEnd, InstanceProgram, InstanceShutdown, ServerInstance};
use super::server_directory::{ServerDirectory, ServerHome, with_workdir};
use super::{ServerPool, user_of};

/// The environment variable that names the session of a session's own server.
const SESSION_VARIABLE: &str = "QUELL_SESSION";
/// How much of the standard error output is kept, in bytes.
const STDERR_LIMIT_BYTES: usize = 4 * 1024;

/// The process of a server.
pub(super) struct ServerProcess {
    stop_handle: StopHandle,
    ended: watch::Receiver<Option<InstanceEnd>>,
}

/// The pipes from its standard output and to its standard input.
pub(super) type ServerPipes = (Receiver, Sender);

impl ServerProcess {
    /// Starts the process. It runs until it is told to end.
    pub(super) fn start(
        pool: &ServerPool,
        instance: &ServerInstance,
        scope: &Scope,
        command: &str,
    ) -> Result<(Self, ServerPipes), String> {
        let spec = command_spec(pool, instance, command)?;
        let mut running = pool.wardens.start(&spec, scope).map_err(|error| error_chain(&error))?;
        let pipes = running.take_stdout().zip(running.take_input());
        let stop_handle = running.stop_handle();
        let program = InstanceProgram { processes: running.processes(), ledger: scope.ledger().clone() };
        // An instance starts one process.
        let _ = instance.program.set(program);
        let mut sink = StderrLogSink { server: instance.server.name.clone() };
        let (end_sender, end) = watch::channel(None);
        scope.spawn(async move {
            // waits: for the life of the process, in a task of the server's own scope.
            let end = running.collect(&mut sink).await;
            end_sender.send_replace(Some(instance_end(end)));
        });
        let pipes = pipes.ok_or("its pipes cannot be taken")?;
        Ok((Self { stop_handle, ended: end }, pipes))
    }

    /// Waits until no process of the server is alive.
    pub(super) async fn wait_gone(&mut self) -> InstanceEnd {
        let lost = || InstanceEnd { cause: "its supervision was lost".to_owned(), ..InstanceEnd::default() };
        // waits: as one arm of several, where the others carry the shutdown requests.
        let end = self.ended.wait_for(Option::is_some).await.map(|end| end.clone());
        end.ok().flatten().unwrap_or_else(lost)
    }

    /// Ends the process: after `grace` for an end of its own, by the stop ladder of its warden.
    pub(super) async fn end_process(mut self, instance: &ServerInstance, grace: Duration) -> InstanceEnd {
        let (stop_handle, mut shutdown_changes) = (self.stop_handle.clone(), instance.watch_shutdown());
        let escalate = async {
            // waits: until the grace is over or an immediate end is requested.
            let _ = timeout(grace, shutdown_changes.wait_for(InstanceShutdown::is_immediate)).await;
            stop_handle.send_stop(StopLevel::Gentle);
            // waits: for the request to kill, while the arm below waits for the end.
            if shutdown_changes.wait_for(|order| *order == InstanceShutdown::Kill).await.is_ok() {
                stop_handle.send_stop(StopLevel::Forced);
            }
            // waits: forever; the arm below ends the `select!`.
            std::future::pending::<()>().await;
        };
        // waits: for the stop ladder of its warden, which every shutdown request speeds up.
        tokio::select! {
            biased;
            end = self.wait_gone() => end,
            () = escalate => InstanceEnd::default(),
        }
    }
}

fn command_spec(pool: &ServerPool, instance: &ServerInstance, command: &str) -> Result<CommandSpec, String> {
    let (server, owner) = (&instance.server, &instance.owner);
    let home = match (&owner.session, user_of(owner.sandbox.as_ref())) {
        // What one agent has a server write there, the server of another would load.
        (Some(_), user) => ServerHome::OfAgent(&owner.agent, user),
        (None, user) => ServerHome::Shared(user),
    };
    let directory = ServerDirectory::create(&pool.directories, &server.name, home)?;
    let expand = |text: &String| OsString::from(with_workdir(text, &owner.workdir));
    let mut env = pool.environment.clone();
    env.extend(server.config.env.iter().map(|(name, value)| (OsString::from(name), expand(value))));
    if let (Some(name), Some(key)) = (&server.config.api_key_env, &server.config.api_key) {
        env.push((name.into(), key.expose_secret().into()));
    }
    // The process belongs to the session and not to the run that needed it first. Processes with the id of that run end
    // with the run.
    env.push((RUN_ID_VARIABLE.into(), format!("mcp-{}-{}", server.name, uuid::Uuid::now_v7()).into()));
    if let Some(session) = &owner.session {
        env.push((SESSION_VARIABLE.into(), session.as_str().into()));
    }
    let sandbox = owner.sandbox.as_ref().map(|sandbox| {
        let mut sandbox = SandboxSpec::clone(&server.config.sandbox_for(sandbox));
        sandbox.readable.push(directory.current.clone());
        sandbox.home = Some(directory.home);
        Arc::new(sandbox)
    });
    Ok(CommandSpec {
        argv: std::iter::once(command.into()).chain(server.config.args.iter().map(expand)).collect(),
        label: format!("MCP server {}", server.name),
        cwd: if server.config.start_in_workdir { owner.workdir.clone() } else { directory.current },
        env,
        timeout: None,
        output_limit: STDERR_LIMIT_BYTES,
        isolate: Isolate::Auto,
        network: owner.network.clone(),
        session_network: None,
        sandbox,
    })
}

fn instance_end(end: Result<ProcessEnd, SpawnError>) -> InstanceEnd {
    let end = match end {
        Ok(end) => end,
        Err(error) => return InstanceEnd { cause: error_chain(&error), ..InstanceEnd::default() },
    };
    let cause = match (end.code, end.signal, end.how) {
        (Some(code), _, ProcessEndMethod::Exited) => format!("exit code {code}"),
        (_, Some(signal), ProcessEndMethod::Exited) => format!("ended by signal {signal}"),
        (_, _, ProcessEndMethod::Kill) => "ended by SIGKILL".to_owned(),
        (_, _, ProcessEndMethod::Term | ProcessEndMethod::Exited) => "ended by SIGTERM".to_owned(),
    };
    let stderr_tail = end.output.text().trim().to_owned();
    InstanceEnd { cause, how: end.how.into(), leftovers: end.leftovers, stderr_tail, ..InstanceEnd::default() }
}

/// Writes the standard error output of a server to the debug log.
struct StderrLogSink {
    server: String,
}

impl OutputSink for StderrLogSink {
    fn output(&mut self, _: ToolOutputStream, text: &str) {
        tracing::debug!(server = %self.server, text = text.trim_end(), "MCP server printed");
    }
}
