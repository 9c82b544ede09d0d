//! Slack on two loopback ports: Web API and Socket Mode, as strict as their documentation, with people who write.
//!
//! Sources: the public documentation of Slack (Socket Mode, Events API, Web API and its methods, rate limits, uploading files).

mod api;
mod methods;
mod port;
mod socket;
mod state;
#[cfg(test)]
mod tests;
mod world;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::model::server::listen;
use crate::networks::port::free;
use socket::Order;
use state::Addresses;

pub use state::{Call, Fault, State};
pub use world::{File, Message, World};

/// The bot's token that the server takes.
pub const BOT_TOKEN: &str = "xoxb-1111-2222-fakeTokenOfTheTests";
/// The app-level token that the server takes.
pub const APP_TOKEN: &str = "xapp-1-A1111-3333-fakeTokenOfTheTests";
/// The account under test.
pub const BOT: &str = "U0QUELL";
/// How long a test waits. It decides only how late a failing one fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// The server. Dropping it closes every connection.
#[derive(Debug)]
pub struct FakeSlack {
    shared: Arc<Shared>,
    api: SocketAddr,
    sockets: SocketAddr,
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Shared {
    state: watch::Sender<State>,
    orders: Mutex<Vec<mpsc::UnboundedSender<Order>>>,
}

impl FakeSlack {
    /// Starts it on free ports.
    ///
    /// # Cancel safety
    /// Safe: nothing is left behind.
    ///
    /// # Panics
    /// When the system refuses.
    pub async fn start() -> Self {
        let (api, sockets) = (free(), free());
        let address = |listener: &tokio::net::TcpListener| match listener.local_addr() {
            Ok(address) => address,
            Err(error) => panic!("no address: {error}"),
        };
        let (api_address, sockets_address) = (address(&api), address(&sockets));
        let addresses = Addresses { sockets: format!("ws://{sockets_address}"), api: format!("http://{api_address}") };
        let state = watch::Sender::new(State::new(addresses));
        let shared = Arc::new(Shared { state, orders: Mutex::default() });
        let tasks = Mutex::new(port::serve(api, sockets, &shared));
        Self { shared, api: api_address, sockets: sockets_address, tasks }
    }

    /// Where the Web API is.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}/api", self.api)
    }

    /// Makes a person, and answers the id.
    #[must_use]
    pub fn person(&self, name: &str) -> String {
        self.change(|state| state.world.add_person(name))
    }

    /// Makes a channel that the app is in, and answers the id.
    #[must_use]
    pub fn channel(&self) -> String {
        self.change(|state| state.world.add_channel('C'))
    }

    /// Opens a direct chat between somebody and the app.
    #[must_use]
    pub fn direct(&self) -> String {
        self.change(|state| state.world.add_channel('D'))
    }

    /// Somebody writes. `<@ID>` in the text mentions somebody; the rest is taken as it is typed. Answers the timestamp.
    pub fn say(&self, channel: &str, user: &str, text: &str) -> String {
        self.show(channel, Message { author: user.to_owned(), text: world::escaped(text), ..Message::default() })
    }

    /// Somebody writes in a thread.
    pub fn say_in(&self, (channel, thread): (&str, &str), user: &str, text: &str) -> String {
        let (author, text, thread) = (user.to_owned(), world::escaped(text), Some(thread.to_owned()));
        self.show(channel, Message { author, text, thread, ..Message::default() })
    }

    /// Somebody writes and adds a file: its name, its media type and what it holds.
    pub fn say_with_file(&self, channel: &str, user: &str, text: &str, file: (&str, &str, &[u8])) -> String {
        let (name, media_type, bytes) = file;
        let id = self.change(|state| state.world.new_id('F'));
        let file = File { id, name: name.to_owned(), media_type: media_type.to_owned(), bytes: bytes.to_vec() };
        let (author, text) = (user.to_owned(), world::escaped(text));
        self.show(channel, Message { author, text, files: vec![file], ..Message::default() })
    }

    /// Somebody uses a slash command of the app.
    pub fn command(&self, channel: &str, user: &str, command: &str, text: &str) {
        self.change(|state| state.tell_command(channel, user, (command, &world::escaped(text))));
    }

    /// Tells of an event that nobody caused.
    pub fn event(&self, event: Value) {
        self.change(|state| state.tell_event(event));
    }

    /// Tells of the last event again, as if nobody had acknowledged it.
    pub fn tell_again(&self) {
        self.change(State::tell_again);
    }

    /// Takes a message away.
    pub fn delete(&self, channel: &str, ts: &str) {
        self.change(|state| state.world.messages_mut(channel).retain(|message| message.ts != ts));
    }

    /// What a channel shows now.
    #[must_use]
    pub fn messages(&self, channel: &str) -> Vec<Message> {
        self.shared.state.borrow().world.messages(channel).to_vec()
    }

    /// All that the server knows and was asked.
    #[must_use]
    pub fn state(&self) -> State {
        self.shared.state.borrow().clone()
    }

    /// Waits until what the server knows fulfils a condition.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub async fn wait_for(&self, what: &str, condition: impl Fn(&State) -> bool) -> State {
        let mut state = self.shared.state.subscribe();
        match timeout(PATIENCE, state.wait_for(|state| condition(state))).await {
            Ok(Ok(state)) => state.clone(),
            _ => panic!("{what} did not come: {:#?}", self.state()),
        }
    }

    /// The next call of a method goes wrong. `files` and `upload` are methods here too.
    pub fn fault(&self, method: &str, fault: Fault) {
        self.change(|state| state.faults.entry(method.to_owned()).or_insert_with(VecDeque::new).push_back(fault));
    }

    /// A method may be called so often within a time; by default as Slack has it.
    pub fn limit(&self, method: &str, calls: usize, within: Duration) {
        self.change(|state| state.limits.insert(method.to_owned(), (calls, within)));
    }

    /// Calls are not counted any more: for tests that are about something else.
    pub fn without_limits(&self) {
        self.change(|state| state.limits.clear());
    }

    /// What the bot may do, instead of everything.
    pub fn grant(&self, scopes: &str) {
        self.change(|state| state.scopes = scopes.to_owned());
    }

    /// Socket Mode is switched off: all connections are told, and no new one is given.
    pub fn switch_off(&self) {
        self.change(|state| state.is_on = false);
        self.order(&Order::Disconnect("link_disabled"));
    }

    /// All connections are asked to leave for another one. They are closed when there is one.
    pub fn ask_to_leave(&self) {
        self.order(&Order::Disconnect("refresh_requested"));
    }

    /// All connections break, without a word.
    pub fn drop_connections(&self) {
        self.order(&Order::Drop);
    }

    /// All connections stay, and nothing is read or written there any more.
    pub fn freeze_connections(&self) {
        self.order(&Order::Freeze);
    }

    /// All connections are closed.
    pub fn close_connections(&self) {
        self.order(&Order::Close);
    }

    /// Says anything on all connections.
    pub fn say_raw(&self, text: &str) {
        self.order(&Order::Say(text.to_owned()));
    }

    /// Goes away and comes back on the same ports. What was not acknowledged is told again.
    ///
    /// # Cancel safety
    /// Not safe: it may be away.
    ///
    /// # Panics
    /// When the ports are taken.
    pub async fn restart(&self) {
        self.go_away().await;
        self.come_back();
    }

    /// Closes its ports and all connections.
    ///
    /// # Cancel safety
    /// Safe: the connections are closed in any case.
    pub async fn go_away(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks());
        tasks.shutdown().await;
    }

    /// Opens the ports again.
    ///
    /// # Panics
    /// When they are taken.
    pub fn come_back(&self) {
        match (listen(self.api), listen(self.sockets)) {
            (Ok(api), Ok(sockets)) => *self.tasks() = port::serve(api, sockets, &self.shared),
            (Err(error), _) | (_, Err(error)) => panic!("the ports are taken: {error}"),
        }
    }

    fn show(&self, channel: &str, message: Message) -> String {
        self.change(|state| state.show(channel, message))
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        self.shared.change(change)
    }

    fn order(&self, order: &Order) {
        // Who is gone takes no orders.
        self.shared.orders().retain(|orders| orders.send(order.clone()).is_ok());
    }

    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// A poisoned lock means that another thread of the same test has panicked; the list is still one.
    fn orders(&self) -> MutexGuard<'_, Vec<mpsc::UnboundedSender<Order>>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (mut change, mut done) = (Some(change), None);
        self.state.send_modify(|state| done = change.take().map(|change| change(state)));
        match done {
            Some(done) => done,
            None => unreachable!("a change is made at once"),
        }
    }
}
