//! The scripted model in a process of its own: its server side, and the driver's hold on it.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, Write};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use quell_testkit::history::corpus::Dialect;
use quell_testkit::{Behaviour, ScriptedModel};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};

use crate::options::MODEL_SERVER;
use crate::script::{Order, Say, Standing};

/// What the model answers, by the last marker of the request.
type Scripts = Mutex<HashMap<String, VecDeque<Say>>>;

/// The server process, until its input ends.
pub(crate) fn serve() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let model = runtime.block_on(ScriptedModel::start());
    let (scripts, anthropic) = (Arc::new(Scripts::default()), Arc::new(AtomicUsize::new(0)));
    let (answers, seen) = (Arc::clone(&scripts), Arc::clone(&anthropic));
    model.forget_the_sound().by_prompt(move |_, request| {
        if request.dialect == Dialect::Anthropic {
            seen.fetch_add(1, Ordering::Relaxed);
        }
        let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
        let marker = request.markers.last().and_then(|marker| answers.get_mut(marker));
        marker.and_then(VecDeque::pop_front).map_or_else(|| Behaviour::text("That is done."), Behaviour::from)
    });
    say(&model.base_url());
    for line in std::io::stdin().lock().lines() {
        let order = line.ok().and_then(|line| serde_json::from_str(&line).ok()).expect("an order, in a line");
        let mut scripts = scripts.lock().unwrap_or_else(PoisonError::into_inner);
        match order {
            Order::Script(more) => scripts.extend(more.into_iter().map(|(marker, says)| (marker, says.into()))),
            Order::Forget(markers) => markers.iter().for_each(|marker| drop(scripts.remove(marker))),
            Order::Count => {}
        }
        drop(scripts);
        let standing = Standing {
            requests: model.request_count(),
            anthropic: anthropic.load(Ordering::Relaxed),
            connections: model.connection_count(),
            complaints: model.complaints(),
        };
        say(&serde_json::to_string(&standing).expect("a standing as JSON"));
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // A driver that is gone reads no more, and closes the input next.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The driver's hold on the server process, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct ModelProcess {
    pub(crate) base_url: String,
    orders: mpsc::Sender<(Order, oneshot::Sender<Standing>)>,
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
        let (orders, inbox) = mpsc::channel(64);
        tokio::spawn(relay(child, input, output, inbox));
        Self { base_url, orders }
    }

    /// Carries out an order, and answers how the server stands then.
    pub(crate) async fn order(&self, order: Order) -> Standing {
        let (answer, answered) = oneshot::channel();
        self.orders.send((order, answer)).await.expect("the model server is there");
        answered.await.expect("the model server answers")
    }
}

/// One order after the other goes in, one answer comes out for each.
async fn relay(
    _child: Child,
    mut input: ChildStdin,
    mut output: Lines<BufReader<ChildStdout>>,
    mut inbox: mpsc::Receiver<(Order, oneshot::Sender<Standing>)>,
) {
    while let Some((order, answer)) = inbox.recv().await {
        let mut line = serde_json::to_string(&order).expect("an order as JSON");
        line.push('\n');
        input.write_all(line.as_bytes()).await.expect("the model server reads");
        let line = output.next_line().await.ok().flatten().expect("the model server answers");
        // Whoever asked may be gone.
        let _ = answer.send(serde_json::from_str(&line).expect("a standing"));
    }
}
