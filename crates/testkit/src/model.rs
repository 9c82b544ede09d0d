//! A scripted model server over real HTTP on a loopback port. It speaks the OpenAI chat dialect and the Anthropic messages
//! dialect; a request's path says which.
//!
//! It runs on a thread and runtime of its own, so that it neither shows among the tasks of the runtime under test nor obeys
//! a clock that a test holds still. It checks the history of every request and records when each client left.

mod behaviour;
mod blackhole;
mod connection;
mod frames;
mod perform;
mod record;
mod rules;
pub(crate) mod server;
mod stage;
#[cfg(test)]
mod tests;
mod wire;
pub(crate) mod wire_http;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};

pub use behaviour::{Behaviour, End, LineEnd, Step, Stream, Transfer, UsageFrame};
pub use blackhole::BlackHole;
pub use record::{Finish, ModelRequest, Progress, Recorded, RequestAt};

use record::{Handed as _, Waiting};
use server::Order;

/// The server. Dropping it closes every connection and ends its thread.
#[derive(Debug)]
pub struct ScriptedModel {
    address: SocketAddr,
    waiting: Waiting,
    orders: Option<mpsc::Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl ScriptedModel {
    /// Starts a server on a free port. It also raises this process's limit of open files to what the system permits, so that
    /// a thousand streams fit.
    ///
    /// # Cancel safety
    /// Safe: a server nobody receives ends by itself.
    ///
    /// # Panics
    /// When it cannot be started.
    pub async fn start() -> Self {
        server::raise_open_files();
        let stage = Arc::new(stage::Stage::new());
        let (orders, inbox) = mpsc::channel(4);
        let (ready, started) = oneshot::channel();
        let shared = Arc::clone(&stage);
        let thread = std::thread::Builder::new().name("scripted-model".into());
        let thread = match thread.spawn(move || server::run(shared, inbox, ready)) {
            Ok(thread) => thread,
            Err(error) => panic!("no thread for the scripted model: {error}"),
        };
        match started.await {
            Ok((address, server)) => {
                let waiting = Waiting { stage, server };
                Self { address, waiting, orders: Some(orders), thread: Some(thread) }
            }
            Err(_) => panic!("the scripted model did not start: {:?}", thread.join()),
        }
    }

    /// The base address, with `/v1`.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds a behaviour; each request takes the next one. A request with a broken history takes none: it is answered 400.
    pub fn script(&self, behaviour: impl Into<Behaviour>) -> &Self {
        self.waiting.stage.push(behaviour.into());
        self
    }

    /// Behaviours that no request has taken yet.
    #[must_use]
    pub fn unused(&self) -> usize {
        self.waiting.stage.unused()
    }

    /// Chooses the behaviour by the last user text, where the script is used up. For many runs at once.
    pub fn by_prompt(&self, choose: impl Fn(&str, &Recorded) -> Behaviour + Send + Sync + 'static) -> &Self {
        self.waiting.stage.set_by_prompt(Box::new(choose));
        self
    }

    /// From now on requests with a valid history are counted and not kept: for servers that run for long. Conditions on
    /// single requests do not find them any more.
    pub fn forget_the_sound(&self) -> &Self {
        self.waiting.stage.forget_the_sound();
        self
    }

    /// How many requests have arrived so far, forgotten ones included.
    #[must_use]
    pub fn request_count(&self) -> usize {
        *self.waiting.stage.arrived().borrow()
    }

    /// How many connections are open now.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        *self.waiting.stage.connections().borrow()
    }

    /// Whatever arrived that no provider would have taken, in words: odd requests and broken histories.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let odd = self.waiting.stage.oddities().into_iter().map(|oddity| format!("an odd request: {oddity}"));
        let broken = self.waiting.stage.records().into_iter().filter(|record| !record.violations.is_empty());
        let broken = broken.map(|record| {
            let reasons: Vec<String> = record.violations.iter().map(ToString::to_string).collect();
            format!("request {} has a broken history:\n  {}\n{:#}", record.index, reasons.join("\n  "), record.body)
        });
        odd.chain(broken).collect()
    }

    /// Opens a gate, for good: who waits at it goes on, who comes later does not wait.
    pub fn open_gate(&self, name: &str) -> &Self {
        self.waiting.stage.open_gate(name);
        self
    }

    /// Waits until at least `n` requests have arrived, and returns all that have.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When they do not arrive in time.
    pub async fn requests(&self, n: usize) -> Vec<ModelRequest> {
        let arrived = self.waiting.stage.arrived();
        self.waiting.until(arrived, &format!("{n} requests"), |seen| (*seen >= n).then_some(())).await;
        self.seen()
    }

    /// The requests that have arrived so far.
    #[must_use]
    pub fn seen(&self) -> Vec<ModelRequest> {
        self.waiting.stage.records().into_iter().map(|record| record.with(&self.waiting)).collect()
    }

    /// The request at this place in the order of arrival, from 0.
    #[must_use]
    pub fn request(&self, index: usize) -> RequestAt {
        RequestAt { index, waiting: self.waiting.clone() }
    }

    /// Waits for the first request that carries `marker:NAME` in a user message.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not arrive in time.
    pub async fn marked(&self, name: &str) -> ModelRequest {
        let stage = &self.waiting.stage;
        let find = |_: &usize| stage.records().into_iter().find(|r| r.markers.iter().any(|m| m == name));
        let record = self.waiting.until(stage.arrived(), &format!("a request with marker:{name}"), find).await;
        record.with(&self.waiting)
    }

    /// Waits until exactly `n` connections are open, kept-alive ones included.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not come to that in time.
    pub async fn connections(&self, n: usize) {
        let open = self.waiting.stage.connections();
        self.waiting.until(open, &format!("{n} open connections"), |open| (*open == n).then_some(())).await;
    }

    /// Closes the port: whoever connects from now on is refused. Open connections stay.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have closed the port.
    pub async fn refuse_connections(&self) {
        self.order(Order::Close).await;
    }

    /// Opens the same port again.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have opened the port.
    ///
    /// # Panics
    /// When somebody else has taken the port.
    pub async fn accept_connections(&self) {
        self.order(Order::Open).await;
    }

    async fn order(&self, order: impl FnOnce(oneshot::Sender<()>) -> Order) {
        let (done, carried_out) = oneshot::channel();
        let sent = match &self.orders {
            Some(orders) => orders.send(order(done)).await.is_ok(),
            None => false,
        };
        assert!(sent && carried_out.await.is_ok(), "the scripted model is gone\n{}", self.waiting.stage.describe());
    }

    /// Fails the test unless every request so far had a valid history and nothing odd arrived.
    ///
    /// # Panics
    /// When one had not, with the reasons and the messages.
    pub fn assert_histories_valid(&self) {
        let complaints = self.complaints();
        assert!(
            complaints.is_empty(),
            "{} requests at the scripted model: {}",
            complaints.len(),
            complaints.join("\n")
        );
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        // The server ends when its inbox closes; joined, so that its descriptors are gone when this returns.
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
