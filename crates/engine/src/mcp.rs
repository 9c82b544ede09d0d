//! The client of MCP servers: each session has servers of its own, started when they are first needed and closed when nobody
//! has used them for a while; a shared one serves all sessions.
//!
//! A stop cancels the call and keeps the connection; a server that goes on is restarted, and the receipt of the run says so, in
//! an amendment where the run is over already. What a run waits for is in its
//! ledger; a server's process is in the ledger of the server, which has a scope and a task of its own. This module knows no
//! agents and no registry.

mod config;
mod errand;
mod keep;
mod late_calls;
mod measure;
mod names;
mod probe;
mod process;
mod result;
mod server;
mod settle;
mod site;
mod slot;
mod start;
mod trouble;
mod turns;
mod visit;
mod wire;

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_kernel::StopTimes;
use quell_protocol::{Leftover, ResourceKind, RunId, SessionKey};
use secrecy::SecretString;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::address::AddressPolicy;
use crate::clock::Clock;
use crate::proc::Wardens;
use crate::scope::{Probe, Scope};
pub use config::{BadServer, McpConfig};
pub use late_calls::LateFact;
use late_calls::LateListener;
pub use names::server_of;
pub use probe::{Health, probe};
pub use result::ToolAnswer;
use server::Server;
use slot::{Birth, Order, Slot, State, Use};
pub use visit::{CallSpot, Visit, Visitor};

/// All MCP servers of an engine. Clones are the same.
#[derive(Debug, Clone)]
pub struct Mcp(Arc<House>);

/// What servers are started with.
#[derive(Debug, Clone)]
pub struct McpSettings {
    /// The sections.
    pub servers: BTreeMap<String, McpConfig>,
    /// Starts processes.
    pub wardens: Wardens,
    /// The environment of processes.
    pub environment: Vec<(OsString, OsString)>,
    /// Times of the stop ladder.
    pub times: StopTimes,
    /// The engine's clock.
    pub clock: Clock,
}

#[derive(Debug)]
struct House {
    servers: BTreeMap<String, Arc<Server>>,
    wardens: Wardens,
    environment: Vec<(OsString, OsString)>,
    times: StopTimes,
    clock: Clock,
    /// Tasks that see servers through.
    tasks: Scope,
    book: Mutex<Book>,
    /// Is told what becomes known of calls whose runs do not wait any more.
    late: Arc<LateListener>,
    /// Servers that are not over.
    alive: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Book {
    slots: HashMap<Place, Vec<Arc<Slot>>>,
    closed: bool,
    /// What servers that are over left, by name, with the run that had started each.
    left: Vec<(RunId, String)>,
}

/// The name of a session's own endpoint.
pub const ENDPOINT: &str = "mcp";

/// A server by URL that one session brings along. Clones are the same.
#[derive(Debug, Clone)]
pub struct Endpoint(Arc<Server>);

/// Servers that were told to close.
#[derive(Debug)]
pub struct Farewell(Vec<Arc<Slot>>);

impl Farewell {
    /// Waits until all of them are over. Answers what they left, by name.
    ///
    /// # Cancel safety
    /// Safe: it waits for conditions; call it again.
    pub async fn over(&self) -> Vec<String> {
        let mut left = Vec::new();
        for slot in &self.0 {
            // waits: for a session's clean-up, which limits it; no run waits here.
            left.extend(slot.over().await.leftovers.iter().cloned());
        }
        left
    }

    /// Ends them with SIGKILL. Not async.
    pub fn kill(&self) {
        for slot in &self.0 {
            slot.tell(Order::Kill);
        }
    }
}

/// A server's name, and the session it is for unless it is shared.
type Place = (String, Option<SessionKey>);

impl Mcp {
    /// Makes the configured servers ready. Nothing is started and nothing is sent.
    ///
    /// # Errors
    /// [`BadServer`] says which section is wrong and what would be right.
    pub fn new(settings: McpSettings) -> Result<Self, BadServer> {
        let mut servers = BTreeMap::new();
        for (name, config) in settings.servers {
            let server = Server::new(&name, config, settings.times)?;
            servers.insert(name, Arc::new(server));
        }
        Ok(Self(Arc::new(House {
            servers,
            wardens: settings.wardens,
            environment: settings.environment,
            times: settings.times,
            clock: settings.clock,
            tasks: Scope::new(settings.clock, Probe::default()),
            book: Mutex::default(),
            late: Arc::default(),
            alive: watch::Sender::new(0),
        })))
    }

    /// Tells `listener` what becomes known of cancelled calls whose runs do not wait for it. It must not block.
    pub fn on_late(&self, listener: impl Fn(LateFact) + Send + Sync + 'static) {
        self.0.late.set(listener);
    }

    /// A run comes to use the servers that its agent may use.
    #[must_use]
    pub fn visit(&self, visitor: Visitor) -> Visit {
        Visit::new(Arc::clone(&self.0), visitor)
    }

    /// Makes an endpoint ready that one session brings along. Nothing is sent.
    ///
    /// # Errors
    /// [`BadServer`] says what is wrong with it.
    pub fn endpoint(&self, url: &str, key: Option<SecretString>, reach: AddressPolicy) -> Result<Endpoint, BadServer> {
        let config = McpConfig { url: Some(url.to_owned()), api_key: key, addresses: reach, ..McpConfig::default() };
        Ok(Endpoint(Arc::new(Server::new(ENDPOINT, config, self.0.times)?)))
    }

    /// The names of the configured servers.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.0.servers.keys()
    }

    /// Closes a session's own servers, each when its last call is over; the answer tells when that is. Not async.
    pub fn close_session(&self, session: &SessionKey) -> Farewell {
        let is_its_own = |slot: &Slot| slot.birth.session.as_ref() == Some(session);
        let slots: Vec<_> = self.0.book().slots.values().flatten().filter(|slot| is_its_own(slot)).cloned().collect();
        for slot in &slots {
            slot.tell(Order::Close);
        }
        Farewell(slots)
    }

    /// How many of a session's own servers are at work, starting or ending.
    #[must_use]
    pub fn alive_for(&self, session: &SessionKey) -> usize {
        self.0.book().slots.values().flatten().filter(|slot| slot.birth.session.as_ref() == Some(session)).count()
    }

    /// Starts no server any more, and closes each when its last call is over. Not async.
    pub fn close(&self) {
        self.0.book().closed = true;
        self.0.tell(&Order::Close, |_| true);
    }

    /// Ends every server with SIGKILL. Not async.
    pub fn kill(&self) {
        self.0.tell(&Order::Kill, |_| true);
    }

    /// How many servers are at work, starting or ending.
    #[must_use]
    pub fn alive(&self) -> usize {
        *self.0.alive.borrow()
    }

    /// Waits until no server is alive: gently until `force`, then by force until `give_up`. Answers what is left, by name.
    /// Call [`Mcp::close`] first.
    ///
    /// # Cancel safety
    /// Safe: it waits for conditions; call it again.
    pub async fn closed(&self, force: Instant, give_up: Instant) -> Vec<(RunId, Leftover)> {
        let mut alive = self.0.alive.subscribe();
        // waits: for the daemon at its end, until its deadline; no run waits here.
        if timeout_at(force, alive.wait_for(|count| *count == 0)).await.is_err() {
            self.kill();
            // waits: as above; what is left after this is named below.
            let _ = timeout_at(give_up, alive.wait_for(|count| *count == 0)).await;
        }
        let book = self.0.book();
        let alive = book.slots.values().flatten();
        let alive = alive.map(|slot| (slot.birth.run.clone(), format!("MCP server {}", slot.server.name)));
        let left = alive.chain(book.left.iter().cloned());
        left.map(|(run, name)| (run, Leftover { kind: ResourceKind::Process, name })).collect()
    }
}

impl House {
    /// A claim on a server, which is started if it is not there.
    fn acquire(self: &Arc<Self>, server: &Arc<Server>, visitor: &Visitor) -> Result<Use, String> {
        let session = (!server.config.shared).then(|| visitor.session.clone());
        let place = (server.name.clone(), session.clone());
        let mut book = self.book();
        if book.closed {
            return Err("Quell is shutting down".to_owned());
        }
        let slots = book.slots.entry(place).or_default();
        // A session may have changed its own endpoint while a run of before goes on with the old one.
        if let Some(slot) = slots.iter().find(|slot| slot.takes_users() && Arc::ptr_eq(&slot.server, server)) {
            return Ok(Use::of(slot));
        }
        if let Some(trouble) = server.trouble() {
            return Err(trouble);
        }
        let birth = Birth { session, run: visitor.run.clone(), workdir: visitor.workdir.clone() };
        let slot = Arc::new(Slot::new(Arc::clone(server), birth));
        let claim = Use::of(&slot);
        slots.push(Arc::clone(&slot));
        self.alive.send_modify(|count| *count += 1);
        drop(book);
        self.tasks.spawn(keep::keep(Arc::clone(self), slot));
        Ok(claim)
    }

    /// Takes a server out of use if nobody uses it.
    fn retire(&self, slot: &Slot) -> bool {
        let _no_claims = self.book();
        let unused = slot.users() == 0;
        if unused {
            slot.tell(Order::Close);
        }
        unused
    }

    /// Gives a server to no new user; answers whether somebody still uses it.
    fn turn_away(&self, slot: &Slot) -> bool {
        let _no_claims = self.book();
        slot.tell(Order::Close);
        slot.users() > 0
    }

    /// A server is over, but for what it left.
    fn forget(&self, slot: &Arc<Slot>, leftovers: &[String]) {
        let place = (slot.server.name.clone(), slot.birth.session.clone());
        let mut book = self.book();
        if let Some(slots) = book.slots.get_mut(&place) {
            slots.retain(|other| !Arc::ptr_eq(other, slot));
            if slots.is_empty() {
                book.slots.remove(&place);
            }
        }
        book.left.extend(leftovers.iter().map(|name| (slot.birth.run.clone(), name.clone())));
        drop(book);
        self.alive.send_modify(|count| *count -= 1);
    }

    /// The list of a server's tools: of the visitor's own one where it is at work, else as it was told last.
    fn tools_of(&self, server: &Server, visitor: &Visitor) -> Option<server::Tools> {
        let session = (!server.config.shared).then(|| visitor.session.clone());
        let book = self.book();
        let slots = book.slots.get(&(server.name.clone(), session));
        let own = slots.into_iter().flatten().find_map(|slot| match slot.state() {
            State::Ready(link) if slot.takes_users() && std::ptr::eq(&*slot.server, server) => Some(link.tools()),
            _ => None,
        });
        own.or_else(|| server.listed())
    }

    fn tell(&self, order: &Order, which: impl Fn(&Slot) -> bool) {
        let book = self.book();
        for slot in book.slots.values().flatten().filter(|slot| which(slot)) {
            slot.tell(order.clone());
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
