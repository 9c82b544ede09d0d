//! Telegram's Bot API on a loopback port: as strict as its documentation (<https://core.telegram.org/bots/api>), and where that
//! is silent as the server that Telegram publishes. People write in chats, and everything that the bot does there can be seen.
//!
//! One thing is stricter than the real API: a parameter that a method does not know is refused, so that a slip of the pen shows.

mod form;
mod html;
mod methods;
mod people;
mod send;
mod server;
mod state;
#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::model::server::listen;

pub use people::Person;
pub use state::{Call, Chat, ChatFile, ChatKind, Shown, State};

use server::Order;

/// The bot's token.
pub const TOKEN: &str = "1234567:AAFakeTokenOfTheTestkit_0123456789ab";
/// The bot's id.
pub const BOT_ID: i64 = 1_234_567;
/// The bot's name, without the `@`.
pub const BOT_NAME: &str = "quell_test_bot";

/// How long a test waits. It decides only how late a failing one fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// What goes wrong with one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It has no effect, and this is answered.
    Refuse(u16, &'static str),
    /// It has no effect; 429 with `retry_after` in seconds is answered.
    TooMany(u64),
    /// It has no effect, and a page of a proxy is answered that names the path of the request, as proxies like to do.
    Page(u16),
    /// It has no effect, and the connection is closed.
    Drop,
    /// It has no effect, and nothing is answered until the client leaves.
    Silent,
    /// It has its effect, and the connection is closed without an answer.
    LoseAnswer,
    /// It has its effect, and a page of a proxy is answered.
    ActThenPage(u16),
}

/// The server. Dropping it closes every connection.
#[derive(Debug)]
pub struct FakeTelegram {
    address: SocketAddr,
    state: watch::Sender<State>,
    orders: mpsc::Sender<(Order, oneshot::Sender<()>)>,
    _task: JoinSet<()>,
}

impl FakeTelegram {
    /// Starts it on a free port.
    ///
    /// # Cancel safety
    /// Safe: nothing is left behind.
    ///
    /// # Panics
    /// When the system refuses.
    pub async fn start() -> Self {
        let listener = match listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))) {
            Ok(listener) => listener,
            Err(error) => panic!("no port for Telegram: {error}"),
        };
        let address = listener.local_addr().unwrap_or_else(|error| panic!("no address: {error}"));
        let (state, mut task) = (watch::Sender::new(State::default()), JoinSet::new());
        let (orders, inbox) = mpsc::channel(4);
        task.spawn(server::run(listener, state.clone(), inbox));
        Self { address, state, orders, _task: task }
    }

    /// What stands in place of `https://api.telegram.org`.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Closes the port and every connection: whoever connects is refused.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have closed the port.
    pub async fn stop(&self) {
        self.order(Order::Stop).await;
    }

    /// Opens the same port again.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have opened the port.
    ///
    /// # Panics
    /// When somebody else has taken the port.
    pub async fn start_again(&self) {
        self.order(Order::Start).await;
    }

    /// Closes every connection and keeps listening.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have closed them.
    pub async fn drop_connections(&self) {
        self.order(Order::HangUp).await;
    }

    async fn order(&self, order: Order) {
        let (done, carried_out) = oneshot::channel();
        let sent = self.orders.send((order, done)).await.is_ok();
        assert!(sent && carried_out.await.is_ok(), "the Telegram of this test is gone");
    }

    /// The next call of this method goes wrong; several wait their turn.
    pub fn fault(&self, method: &str, fault: Fault) -> &Self {
        self.state.send_modify(|state| state.faults.entry(method.to_owned()).or_default().push_back(fault));
        self
    }

    /// From now on edits in one chat that follow each other faster are answered 429. Telegram does not say where its limit is.
    pub fn limit_edits(&self, every: Duration) -> &Self {
        self.state.send_modify(|state| state.edit_every = Some(every));
        self
    }

    /// Sets or removes a webhook, as another program would: while there is one, `getUpdates` is refused.
    pub fn set_webhook(&self, url: &str) -> &Self {
        self.state.send_modify(|state| url.clone_into(&mut state.webhook));
        self
    }

    /// Everything, as it is now.
    #[must_use]
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// What a chat shows now: texts after their edits, without what was deleted.
    #[must_use]
    pub fn messages(&self, chat: i64) -> Vec<Shown> {
        self.state.borrow().messages(chat).to_vec()
    }

    /// Whether a chat shows that the bot is typing.
    #[must_use]
    pub fn typing(&self, chat: i64) -> bool {
        self.state.borrow().chats.get(&chat).is_some_and(Chat::is_typing)
    }

    /// The calls of a method so far.
    #[must_use]
    pub fn calls(&self, method: &str) -> Vec<Call> {
        self.state.borrow().calls_of(method).cloned().collect()
    }

    /// Waits until a condition holds.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not come to that in time.
    pub async fn wait_for(&self, what: &str, condition: impl Fn(&State) -> bool) -> State {
        let mut state = self.state.subscribe();
        match timeout(PATIENCE, state.wait_for(condition)).await {
            Ok(Ok(state)) => state.clone(),
            _ => panic!("waited {PATIENCE:?} for {what}: {:#?}", self.state()),
        }
    }
}
