//! A scripted model server over real HTTP on a loopback port. It speaks OpenAI chat completions and responses,
//! Anthropic messages and Gemini contents; the path of a request decides.
//!
//! It runs in its own thread and runtime. So it does not count among the tasks of the runtime under test, and a paused
//! clock does not stop it. It checks the history of every request and records when each client disconnected.

mod blackhole;
mod connection;
mod frames;
mod recorded_request;
mod request_checks;
mod request_handle;
mod respond;
mod scripted_response;
mod shared_state;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

pub use blackhole::BlackHole;
pub use recorded_request::{RecordedRequest, ResponseOutcome, ResponseProgress};
pub use request_handle::{ExpectedRequest, ModelRequestHandle};
pub use scripted_response::{ScriptedResponse, ScriptedStream, StreamStep, UsageReporting};

use crate::fake_server::FakePort;
use crate::or_fail::OrFail as _;
use connection::serve_connection;
use request_handle::ConditionWaiter;
use shared_state::{ModelServerState, lock};

/// The server. Dropping it closes every connection and ends its thread.
#[derive(Debug)]
pub struct ScriptedModel {
    port: FakePort,
    waiter: ConditionWaiter,
    /// The server ends when this is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ScriptedModel {
    /// Starts a server on a free port. It also raises the soft limit of open files of this process, so that a thousand
    /// streams fit.
    pub async fn start() -> Self {
        raise_open_file_limit();
        let stage = Arc::<ModelServerState>::default();
        let ((stop, stopped), (ready, started)) = (oneshot::channel(), oneshot::channel());
        let shared = Arc::clone(&stage);
        let thread = std::thread::Builder::new().name("scripted-model".into());
        let thread =
            thread.spawn(move || run_server(shared, stopped, ready)).or_fail("no thread for the scripted model");
        let (port, server_runtime) = started.await.or_fail("the scripted model did not start");
        let waiter = ConditionWaiter { shared: stage, server_runtime };
        Self { port, waiter, stop: Some(stop), thread: Some(thread) }
    }

    /// The base URL, with `/v1`.
    pub fn base_url(&self) -> String {
        self.port.url() + "/v1"
    }

    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Adds a response; each request takes the next one. A request with a broken history takes none and is answered
    /// 400.
    pub fn script(&self, behaviour: impl Into<ScriptedResponse>) -> &Self {
        lock(&self.waiter.shared.queue).push_back(behaviour.into());
        self
    }

    /// Number of responses that no request has taken yet.
    pub fn unused_count(&self) -> usize {
        lock(&self.waiter.shared.queue).len()
    }

    /// Chooses the response by the last user text when the script is used up; useful for many runs at once.
    pub fn respond_by_prompt(
        &self,
        choose: impl Fn(&str, &RecordedRequest) -> ScriptedResponse + Send + Sync + 'static,
    ) -> &Self {
        *lock(&self.waiter.shared.response_chooser) = Some(Arc::new(choose));
        self
    }

    /// From now on counts requests with a valid history without keeping them, for servers that run long. Conditions on
    /// single requests no longer find them.
    pub fn discard_valid_requests(&self) -> &Self {
        self.waiter.shared.discards_valid.store(true, Ordering::Relaxed);
        self
    }

    /// Number of requests so far, including discarded ones.
    pub fn request_count(&self) -> usize {
        *self.waiter.shared.watch_arrivals().borrow()
    }

    pub fn connection_count(&self) -> usize {
        *self.waiter.shared.watch_connections().borrow()
    }

    /// Descriptions of requests that no provider would accept: unexpected requests and broken histories.
    pub fn protocol_errors(&self) -> Vec<String> {
        let odd = self.waiter.shared.unexpected_events().into_iter().map(|oddity| format!("an odd request: {oddity}"));
        let broken = self.waiter.shared.records().into_iter().filter(|record| !record.violations.is_empty());
        let broken = broken.map(|record| {
            let reasons: Vec<String> = record.violations.iter().map(ToString::to_string).collect();
            format!("request {} has a broken history:\n  {}\n{:#}", record.index, reasons.join("\n  "), record.body)
        });
        odd.chain(broken).collect()
    }

    /// Opens a gate for good: waiting responses continue, later ones do not wait.
    pub fn open_gate(&self, name: &str) -> &Self {
        self.waiter.shared.open_gate(name);
        self
    }

    /// Waits until at least `n` requests have arrived; returns all of them.
    pub async fn wait_for_requests(&self, n: usize) -> Vec<ModelRequestHandle> {
        let arrived = self.waiter.shared.watch_arrivals();
        self.waiter.wait_for(arrived, &format!("{n} requests"), |seen| (*seen >= n).then_some(())).await;
        self.recorded_requests()
    }

    pub fn recorded_requests(&self) -> Vec<ModelRequestHandle> {
        self.waiter.shared.records().into_iter().map(|record| self.waiter.handle(record)).collect()
    }

    /// The request with this index in the order of arrival, from 0.
    pub fn request_at(&self, index: usize) -> ExpectedRequest {
        ExpectedRequest { index, waiter: self.waiter.clone() }
    }

    /// Waits for the first request that has `marker:NAME` in a user message.
    pub async fn wait_for_marked_request(&self, name: &str) -> ModelRequestHandle {
        let stage = &self.waiter.shared;
        let find = |_: &usize| stage.records().into_iter().find(|r| r.markers.iter().any(|m| m == name));
        let record = self.waiter.wait_for(stage.watch_arrivals(), &format!("a request with marker:{name}"), find).await;
        self.waiter.handle(record)
    }

    /// Waits until exactly `n` connections are open, including kept-alive ones.
    pub async fn wait_for_connections(&self, n: usize) {
        let open = self.waiter.shared.watch_connections();
        self.waiter.wait_for(open, &format!("{n} open connections"), |open| (*open == n).then_some(())).await;
    }

    /// Fails the test if any request had a broken history or was unexpected.
    pub fn assert_histories_valid(&self) {
        let complaints = self.protocol_errors();
        let (count, all) = (complaints.len(), complaints.join("\n"));
        assert!(count == 0, "{count} requests at the scripted model: {all}");
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        // Joined, so that the server's descriptors are closed when this returns.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Main function of the server's thread; returns when the sender of `stopped` is dropped.
fn run_server(
    stage: Arc<ModelServerState>,
    stopped: oneshot::Receiver<()>,
    ready: oneshot::Sender<(FakePort, Handle)>,
) {
    let runtime = Builder::new_current_thread().enable_all().build().or_fail("no runtime for the scripted model");
    runtime.block_on(async move {
        let port = FakePort::start(&stage, serve_connection);
        if ready.send((port, Handle::current())).is_ok() {
            let _ = stopped.await;
        }
    });
}

/// Raises the soft limit of open files to the hard one: a thousand streams need two thousand descriptors in one
/// process.
fn raise_open_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Some sandboxes refuse this; then only tests with very many streams fail.
    let _ = setrlimit(Resource::Nofile, limit);
}
