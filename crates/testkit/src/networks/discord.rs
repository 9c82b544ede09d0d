//! Discord on two loopback ports: REST API v10 and gateway v10, as strict as their documentation, with people who write.
//!
//! Sources: the public documentation of Discord (API reference, gateway, rate limits, opcodes and status codes).

mod gateway;
mod limits;
mod multipart;
mod port;
mod rest;
mod sessions;
mod stage;
#[cfg(test)]
mod tests;
mod world;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::model::server::listen;
use crate::networks::port::free;
use gateway::Order;
use rest::Addresses;

pub use rest::Route;
pub use stage::{Call, Fault, Scope, State};
pub use world::{Channel, File, Message, User, World};

/// The token that the server takes.
pub const TOKEN: &str = "MTEwMDAwMDAwMDAwMDAwMDAwMQ.fake.token-of-the-tests";
/// How long a test waits. It decides only how late a failing one fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// The server. Dropping it closes every connection.
#[derive(Debug)]
pub struct FakeDiscord {
    shared: Arc<Shared>,
    rest: SocketAddr,
    gateway: SocketAddr,
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Shared {
    state: watch::Sender<State>,
    orders: Mutex<Vec<mpsc::UnboundedSender<Order>>>,
    addresses: Addresses,
}

impl FakeDiscord {
    /// Starts it on free ports.
    ///
    /// # Cancel safety
    /// Safe: nothing is left behind.
    ///
    /// # Panics
    /// When the system refuses.
    pub async fn start() -> Self {
        let (rest, gateway) = (free(), free());
        let addresses = |listener: &tokio::net::TcpListener| match listener.local_addr() {
            Ok(address) => address,
            Err(error) => panic!("no address: {error}"),
        };
        let (rest_address, gateway_address) = (addresses(&rest), addresses(&gateway));
        let addresses = Addresses {
            gateway: format!("ws://{gateway_address}"),
            files: format!("http://{rest_address}/attachments"),
        };
        let state = watch::Sender::new(State::new(addresses.files.clone()));
        let shared = Arc::new(Shared { state, orders: Mutex::default(), addresses });
        let tasks = Mutex::new(port::serve(rest, gateway, &shared));
        Self { shared, rest: rest_address, gateway: gateway_address, tasks }
    }

    /// Where the REST API is.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}/api/v10", self.rest)
    }

    /// The id of the account under test.
    #[must_use]
    pub fn bot(&self) -> String {
        world::BOT.to_owned()
    }

    /// Makes a person, and answers the id.
    #[must_use]
    pub fn person(&self, name: &str) -> String {
        self.change(|state| state.world.add_user(name, false))
    }

    /// Makes another program's account.
    #[must_use]
    pub fn other_bot(&self, name: &str) -> String {
        self.change(|state| state.world.add_user(name, true))
    }

    /// Makes a channel of the guild.
    #[must_use]
    pub fn channel(&self) -> String {
        self.change(|state| state.world.add_channel(Channel::default()))
    }

    /// Makes a thread in a channel.
    #[must_use]
    pub fn thread(&self, channel: &str) -> String {
        let thread = Channel { parent: Some(channel.to_owned()), ..Channel::default() };
        self.change(|state| state.world.add_channel(thread))
    }

    /// Opens a direct chat with somebody.
    #[must_use]
    pub fn direct(&self, user: &str) -> String {
        let direct = Channel { recipient: Some(user.to_owned()), ..Channel::default() };
        self.change(|state| state.world.add_channel(direct))
    }

    /// Somebody writes. `<@id>` in the text names another one. Answers the id of the message.
    pub fn say(&self, channel: &str, user: &str, text: &str) -> String {
        self.show(channel, Message { author: user.to_owned(), text: text.to_owned(), ..Message::default() })
    }

    /// Somebody replies to a message.
    pub fn reply(&self, channel: &str, user: &str, to: &str, text: &str) -> String {
        let reply_to = Some(to.to_owned());
        self.show(channel, Message { author: user.to_owned(), text: text.to_owned(), reply_to, ..Message::default() })
    }

    /// Somebody writes and adds a file: its name, its media type and what it holds.
    pub fn say_with_file(&self, channel: &str, user: &str, text: &str, file: (&str, &str, &[u8])) -> String {
        let (name, media_type, bytes) = file;
        let id = self.change(|state| state.world.new_id());
        let file = File { id, name: name.to_owned(), media_type: media_type.to_owned(), bytes: bytes.to_vec() };
        let (author, text) = (user.to_owned(), text.to_owned());
        self.show(channel, Message { author, text, files: vec![file], ..Message::default() })
    }

    /// Takes a message away.
    pub fn delete(&self, channel: &str, id: &str) {
        self.change(|state| {
            if let Some(channel) = state.world.channel_mut(channel) {
                channel.messages.retain(|message| message.id != id);
            }
        });
    }

    /// Tells every session of an event that nobody caused.
    pub fn dispatch(&self, event: &str, data: &Value) {
        self.change(|state| state.dispatch(event, data));
    }

    /// What a channel shows now.
    #[must_use]
    pub fn messages(&self, channel: &str) -> Vec<Message> {
        let state = self.shared.state.borrow();
        state.world.channel(channel).map(|channel| channel.messages.clone()).unwrap_or_default()
    }

    /// How often somebody was shown to be typing in a channel.
    #[must_use]
    pub fn typing(&self, channel: &str) -> usize {
        self.shared.state.borrow().world.channel(channel).map_or(0, |channel| channel.typing)
    }

    /// All that the server knows and was asked.
    #[must_use]
    pub fn state(&self) -> State {
        self.shared.state.borrow().clone()
    }

    /// A part of it, without a copy of all the rest.
    pub fn look<T>(&self, part: impl FnOnce(&State) -> T) -> T {
        part(&self.shared.state.borrow())
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

    /// The next call of a route goes wrong.
    pub fn fault(&self, route: Route, fault: Fault) {
        self.change(|state| match state.faults.iter_mut().find(|(of, _)| *of == route) {
            Some((_, faults)) => faults.push_back(fault),
            None => state.faults.push((route, VecDeque::from([fault]))),
        });
    }

    /// Calls are not counted any more: for tests that are about something else.
    pub fn without_limits(&self) {
        self.change(|state| state.limits = None);
    }

    /// The bot may no longer write in a channel.
    pub fn mute(&self, channel: &str) {
        self.change(|state| {
            if let Some(channel) = state.world.channel_mut(channel) {
                channel.mute = true;
            }
        });
    }

    /// How often new connections have to send heartbeats.
    pub fn heartbeat_every(&self, interval: Duration) {
        self.change(|state| state.heartbeat = interval);
    }

    /// Heartbeats are not acknowledged any more: the connection is a zombie.
    pub fn acknowledge_nothing(&self) {
        self.change(|state| state.acknowledges = false);
    }

    /// Heartbeats are acknowledged again.
    pub fn acknowledge(&self) {
        self.change(|state| state.acknowledges = true);
    }

    /// The intent for what messages say is switched off for this account.
    pub fn without_message_content(&self) {
        self.change(|state| state.message_content = false);
    }

    /// So many sessions may still begin, until the count begins anew.
    pub fn identifies_left(&self, left: u64, reset_after: Duration) {
        self.change(|state| (state.identifies_left, state.identifies_reset) = (left, reset_after));
    }

    /// All connections of the gateway break, without a word.
    pub fn drop_connections(&self) {
        self.order(&Order::Drop);
    }

    /// All connections of the gateway are closed with a code.
    pub fn close(&self, code: u16) {
        self.order(&Order::Close(code));
    }

    /// All clients are asked to come back: opcode 7.
    pub fn ask_to_reconnect(&self) {
        self.order(&Order::Say(json!({"op": 7, "d": null}).to_string()));
    }

    /// All clients are asked for a heartbeat: opcode 1.
    pub fn ask_for_heartbeat(&self) {
        self.order(&Order::Say(json!({"op": 1, "d": null}).to_string()));
    }

    /// All sessions end, and their clients are told: opcode 9.
    pub fn end_sessions(&self) {
        self.forget_sessions();
        self.order(&Order::Say(json!({"op": 9, "d": false}).to_string()));
    }

    /// All sessions end, and nobody is told.
    pub fn forget_sessions(&self) {
        self.change(|state| state.sessions.clear());
    }

    /// Says anything on all connections of the gateway.
    pub fn say_raw(&self, text: &str) {
        self.order(&Order::Say(text.to_owned()));
    }

    /// Goes away and comes back on the same ports, without its sessions.
    ///
    /// # Cancel safety
    /// Not safe: it may be away.
    ///
    /// # Panics
    /// When the ports are taken.
    pub async fn restart(&self) {
        self.go_away().await;
        self.forget_sessions();
        self.come_back();
    }

    /// Closes its ports and all connections; sessions go on.
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
        let listeners = (listen(self.rest), listen(self.gateway));
        match listeners {
            (Ok(rest), Ok(gateway)) => *self.tasks() = port::serve(rest, gateway, &self.shared),
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
