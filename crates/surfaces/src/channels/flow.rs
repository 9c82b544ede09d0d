//! The message flow: from what the networks hear to runs, and from runs back to the networks.
//!
//! A network tells its [`ear`]; a stop acts there, before any queue. What is no stop waits in the inbox until its turn has come
//! ([`dispatch`]), becomes a run, and is presented in its chat ([`present`]) until the run is over. The answer itself is carried
//! by the run ([`answer`]), so that a stop reaches it there as it reaches everything else that a run does. What a daemon that was killed
//! left in chats is put right by the next one ([`leaves`]).

mod answer;
mod channel;
mod commands;
mod dispatch;
mod ear;
mod ended;
mod leaves;
mod listen;
mod operate;
mod outlet;
mod present;
mod send;
mod signs;
mod stop;
#[cfg(test)]
mod tests;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use quell_engine::access::Origin;
use quell_engine::dispatch::Caller;
use quell_engine::scope::{Probe, Scope};
use quell_engine::{Engine, clock::Clock};
use quell_kernel::Moment;
use quell_kernel::channel::inbox::{Inbox, InboxBounds};
use quell_protocol::api::{Grants, Scope as Rights};
use quell_protocol::channel::ChannelRow;
use quell_protocol::{Principal, RunId, Surface};
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use self::channel::Channel;
pub use self::operate::{NotAddressed, NotReceived};
use super::config::{BadChannel, ChannelConfig};
use super::network;
use super::seam::{MessageId, Network, Place};
use super::settings::{LiveSettings, Numbered};

/// The chat networks of one daemon. Clones are the same.
#[derive(Clone)]
pub struct Channels(Arc<Inner>);

struct Inner {
    engine: Engine,
    live: LiveSettings,
    /// Looks whether the configuration has changed, before a message is routed.
    look: Arc<dyn Fn() + Send + Sync>,
    make: Make,
    /// Tasks of the channels' own: listeners, presenters, notices.
    scope: Scope,
    /// Cancelled when commands that are being done are to end.
    ending: CancellationToken,
    inbox: Mutex<Inbox<Extra>>,
    /// Something was heard or done.
    news: Notify,
    /// Rises whenever something left the inbox.
    left: watch::Sender<u64>,
    at_work: Mutex<BTreeMap<String, Arc<Channel>>>,
    /// Channels whose configuration cannot be used.
    unusable: Mutex<BTreeMap<String, ChannelRow>>,
    /// Runs of earlier daemons of which chats still showed something when this one started, with their channels.
    leaves: OnceLock<BTreeMap<RunId, String>>,
    tools: BTreeSet<String>,
}

/// Makes the network of a configured channel.
pub type Make = Arc<dyn Fn(&str, &ChannelConfig) -> Result<Arc<dyn Network>, BadChannel> + Send + Sync>;

/// What a letter needs besides its message.
#[derive(Debug, Clone)]
struct Extra {
    channel: Arc<Channel>,
    place: Place,
    message: MessageId,
    /// Cancelled by a stop of the command that this is, if it is being done by then.
    stopped: CancellationToken,
}

impl Channels {
    /// Starts to listen in every configured channel, and follows changes of the configuration.
    #[must_use]
    pub fn start(engine: Engine, live: LiveSettings, look: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self::start_with(engine, live, look, Arc::new(network))
    }

    /// The same for programs that embed the engine and bring networks of their own, which `make` makes.
    #[must_use]
    pub fn start_with(engine: Engine, live: LiveSettings, look: Arc<dyn Fn() + Send + Sync>, make: Make) -> Self {
        let tools = engine.tool_names();
        let channels = Self(Arc::new(Inner {
            scope: Scope::new(engine.clock(), Probe::default()),
            ending: CancellationToken::new(),
            engine,
            live,
            look,
            make,
            inbox: Mutex::new(Inbox::new(InboxBounds::default())),
            news: Notify::new(),
            left: watch::Sender::new(0),
            at_work: Mutex::default(),
            unusable: Mutex::default(),
            leaves: OnceLock::new(),
            tools,
        }));
        channels.0.scope.spawn(listen::follow_settings(channels.clone()));
        channels.0.scope.spawn(dispatch::dispatch(channels.clone()));
        channels
    }

    /// Hears nothing more, stops commands that are being done, and waits until what they and runs have to say in their chats is
    /// said, or `enough` is over.
    ///
    /// # Cancel safety
    /// Safe: what is under way goes on until the daemon ends.
    pub async fn shut_down(&self, enough: impl Future<Output = ()>) {
        for channel in std::mem::take(&mut *self.at_work()).into_values() {
            channel.stop();
        }
        self.0.scope.cancel();
        self.0.ending.cancel();
        tokio::select! {
            _released = self.0.scope.close() => {}
            () = enough => {
                self.0.scope.kill();
            }
        }
    }

    /// The channels, for people.
    #[must_use]
    pub fn list(&self) -> Vec<ChannelRow> {
        let mut rows = self.unusable().clone();
        rows.extend(self.at_work().iter().map(|(name, channel)| (name.clone(), channel.row())));
        rows.into_values().collect()
    }

    fn engine(&self) -> &Engine {
        &self.0.engine
    }

    fn scope(&self) -> &Scope {
        &self.0.scope
    }

    fn clock(&self) -> Clock {
        self.0.engine.clock()
    }

    fn now(&self) -> Moment {
        self.clock().now()
    }

    fn settings(&self) -> Arc<Numbered> {
        self.0.live.now()
    }

    fn channel(&self, name: &str) -> Option<Arc<Channel>> {
        self.at_work().get(name).cloned()
    }

    fn at_work(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Channel>>> {
        self.0.at_work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unusable(&self) -> MutexGuard<'_, BTreeMap<String, ChannelRow>> {
        self.0.unusable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox<Extra>> {
        self.0.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something left the inbox.
    fn tell_left(&self) {
        self.0.left.send_modify(|count| *count += 1);
        self.0.news.notify_one();
    }
}

/// Somebody who writes in a channel, as the engine knows them.
fn caller(channel: &str, sender: &str, rights: Rights) -> Caller {
    Caller {
        principal: principal(channel, sender),
        scope: rights,
        grants: Grants::of(rights),
        surface: Surface::Channel,
        origin: Origin::inside(),
    }
}

/// Channel and sender; what is no principal's name is hashed.
fn principal(channel: &str, sender: &str) -> Principal {
    let named = Principal::parse(format!("{channel}:{sender}"));
    named.unwrap_or_else(|_| {
        let hash: String = Sha256::digest(sender.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        match Principal::parse(format!("{channel}:{hash}")) {
            Ok(principal) => principal,
            Err(_) => unreachable!("a channel's name is checked, and a hash is printable"),
        }
    })
}

impl std::fmt::Debug for Channels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Channels({:?})", self.at_work().keys().collect::<Vec<_>>())
    }
}
