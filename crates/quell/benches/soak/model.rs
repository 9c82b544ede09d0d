//! The scripted model server process and the client that controls it.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, Write};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use quell_testkit::history_check::corpus::ModelDialect;
use quell_testkit::{ScriptedModel, ScriptedResponse};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};

use crate::model_protocol::{ModelCommand, ModelServerStatus, ScriptedAnswer};
use crate::options::MODEL_SERVER;

/// Answers of the model, by the last marker of a request.
type AnswerScripts = Mutex<HashMap<String, VecDeque<ScriptedAnswer>>>;

/// Runs as the server process, until end of file on standard input.
pub(crate) fn run_model_server() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let model = runtime.block_on(ScriptedModel::start());
    let (scripts, anthropic) = (Arc::new(AnswerScripts::default()), Arc::new(AtomicUsize::new(0)));
    let (answers, anthropic_count) = (Arc::clone(&scripts), Arc::clone(&anthropic));
    model.discard_valid_requests().respond_by_prompt(move |_, request| {
        if request.dialect == ModelDialect::Anthropic {
            anthropic_count.fetch_add(1, Ordering::Relaxed);
        }
        let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
        let marker = request.markers.last().and_then(|marker| answers.get_mut(marker));
        marker
            .and_then(VecDeque::pop_front)
            .map_or_else(|| ScriptedResponse::text("That is done."), ScriptedResponse::from)
    });
    write_line(&model.base_url());
    for line in std::io::stdin().lock().lines() {
        let command = line.ok().and_then(|line| serde_json::from_str(&line).ok()).expect("a command in a line");
        let mut scripts = scripts.lock().unwrap_or_else(PoisonError::into_inner);
        match command {
            ModelCommand::Script(more) => scripts.extend(more.into_iter().map(|(marker, says)| (marker, says.into()))),
            ModelCommand::Forget(markers) => markers.iter().for_each(|marker| drop(scripts.remove(marker))),
            ModelCommand::Count => {}
        }
        drop(scripts);
        let status = ModelServerStatus {
            requests: model.request_count(),
            anthropic: anthropic.load(Ordering::Relaxed),
            connections: model.connection_count(),
            complaints: model.protocol_errors(),
        };
        write_line(&serde_json::to_string(&status).expect("a status as JSON"));
    }
}

fn write_line(line: &str) {
    let mut out = std::io::stdout().lock();
    // A driver that is gone closes standard input next, which ends the loop.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The client of the server process, which is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct ModelProcess {
    pub(crate) base_url: String,
    commands: mpsc::Sender<(ModelCommand, oneshot::Sender<ModelServerStatus>)>,
}

impl ModelProcess {
    pub(crate) async fn start() -> Self {
        let program = std::env::current_exe().expect("the path of this program");
        let mut command = Command::new(program);
        command.arg(MODEL_SERVER).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("a process for the model");
        let input = child.stdin.take().expect("its input");
        let mut output = BufReader::new(child.stdout.take().expect("its output")).lines();
        let base_url = output.next_line().await.ok().flatten().expect("its address");
        let (commands, inbox) = mpsc::channel(64);
        tokio::spawn(relay_commands(child, input, output, inbox));
        Self { base_url, commands }
    }

    /// Sends a command and returns the server's status after it.
    pub(crate) async fn send_command(&self, command: ModelCommand) -> ModelServerStatus {
        let (answer, answered) = oneshot::channel();
        self.commands.send((command, answer)).await.expect("the model server runs");
        answered.await.expect("the model server answers")
    }
}

/// Sends one command after the other, and reads one answer for each.
async fn relay_commands(
    _child: Child,
    mut input: ChildStdin,
    mut output: Lines<BufReader<ChildStdout>>,
    mut inbox: mpsc::Receiver<(ModelCommand, oneshot::Sender<ModelServerStatus>)>,
) {
    while let Some((command, answer)) = inbox.recv().await {
        let mut line = serde_json::to_string(&command).expect("a command as JSON");
        line.push('\n');
        input.write_all(line.as_bytes()).await.expect("the model server reads");
        let line = output.next_line().await.ok().flatten().expect("the model server answers");
        // The caller may be gone.
        let _ = answer.send(serde_json::from_str(&line).expect("a status"));
    }
}
