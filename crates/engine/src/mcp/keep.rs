//! The life of one server, straight on: start, attend, hang up, end. One task per server; it alone ends the process.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, OptionFuture, Shared};
use tokio::time::{Instant, sleep_until, timeout};

use super::House;
use super::slot::{Link, Order, Over, Slot, State};
use super::start::{self, Dialogue, FarEnd};
use super::trouble::{Trouble, UNREADY};
use super::wire::Wire;
use crate::scope::{Probe, Scope};

/// How long a server may take to end by itself once its input is closed.
const HANG_UP: Duration = Duration::from_millis(500);

/// How long a server may take to end that went away by itself: what it says at its end tells why.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Why the attending ended.
enum Parting {
    /// Nobody needs it any more.
    Unused,
    /// It was told, with this cause.
    Told(Arc<str>),
    /// It went away: its process ended, or its connection.
    Gone,
}

/// Sees one server through.
///
/// # Cancel safety
/// Not to be dropped: it is the finaliser of the server, spawned on the house's scope.
pub(super) async fn keep(house: Arc<House>, slot: Arc<Slot>) {
    let scope = Scope::new(house.clock, Probe::default());
    let over = live(&house, &slot, &scope).await;
    // Everything it held is back now; this only says so.
    // waits: for nothing: `live` returns when all of it is over.
    let _released = scope.close().await;
    let session = slot.birth.session.as_ref().map(ToString::to_string);
    tracing::info!(server = %slot.server.name, session, how = over.how, why = over.cause, "MCP server closed");
    let leftovers = over.leftovers.clone();
    slot.set_state(State::Over(Arc::new(over)));
    house.forget(&slot, &leftovers);
}

async fn live(house: &Arc<House>, slot: &Arc<Slot>, scope: &Scope) -> Over {
    let server = &slot.server;
    if !slot.is_wanted() {
        return unneeded(Over { how: "cancelled", ..Over::default() });
    }
    let (mut far_end, dial) = match start::open(house, slot, scope) {
        Ok(opened) => opened,
        Err(problem) => return failed(slot, problem.into(), Over::default()),
    };
    let wire = Arc::new(Wire::new(Arc::clone(&house.late)));
    let began = Instant::now();
    // waits: in the task of the server, until nobody wants its start any more; runs race their waiting for it.
    let greeted = tokio::select! {
        biased;
        () = slot.unwanted() => Err(None),
        () = gone(&mut far_end) => Err(Some(UNREADY.to_owned().into())),
        greeted = timeout(server.start_timeout, start::greet(server, dial, &wire)) => match greeted {
            Ok(greeted) => greeted.map_err(Some),
            Err(_) => Err(Some(format!("it was not ready within {} s", server.start_timeout.as_secs()).into())),
        },
    };
    let (dialogue, tools) = match greeted {
        Ok(greeted) => greeted,
        Err(problem) => {
            let patience = if problem.is_some() { LAST_WORDS } else { Duration::ZERO };
            let over = end(slot, far_end, patience).await;
            return match problem {
                Some(problem) => failed(slot, problem, over),
                None => match slot.order() {
                    Order::End(cause) => failed(slot, cause.to_string().into(), over),
                    Order::Stay | Order::Close | Order::Kill => unneeded(over),
                },
            };
        }
    };
    let tools = server.offer(tools);
    server.works(&tools);
    let took_ms = began.elapsed().as_millis();
    let session = slot.birth.session.as_ref().map(ToString::to_string);
    tracing::info!(server = %server.name, session, run = %slot.birth.run, took_ms, tools = tools.len(), "MCP server started");
    let link = Arc::new(Link::new(dialogue.peer().clone(), wire, tools));
    slot.set_state(State::Ready(Arc::clone(&link)));
    let connection = Connection::new(dialogue);
    let parting = attend(house, slot, &link, &connection, &mut far_end).await;
    let over = part(slot, parting, connection, far_end).await;
    link.wire.over(over.how, &over.leftovers);
    over
}

/// A connection's own task, and by what it ends.
struct Connection {
    hang_up: Option<rmcp::service::RunningServiceCancellationToken>,
    quit: Shared<BoxFuture<'static, ()>>,
}

impl Connection {
    fn new(dialogue: Dialogue) -> Self {
        let hang_up = Some(dialogue.cancellation_token());
        // However its task ended, the connection is closed.
        Self { hang_up, quit: dialogue.waiting().map(drop).boxed().shared() }
    }

    /// Closes it from this side: a process sees the end of its input.
    fn hang_up(&mut self) {
        if let Some(token) = self.hang_up.take() {
            token.cancel();
        }
    }
}

/// Attends a server that works until there is a reason to end it.
async fn attend(
    house: &House,
    slot: &Arc<Slot>,
    link: &Arc<Link>,
    connection: &Connection,
    far_end: &mut FarEnd,
) -> Parting {
    let (mut users, mut orders) = (slot.watch_users(), slot.orders());
    let mut disobeyed = link.wire.disobeyed.subscribe();
    let mut refresh: Option<BoxFuture<'static, ()>> = None;
    let mut used = Instant::now();
    loop {
        let unused = *users.borrow_and_update() == 0;
        let order = orders.borrow_and_update().clone();
        // The calls of others go on; whoever comes now gets another server.
        let is_free = *disobeyed.borrow_and_update() && !house.turn_away(slot);
        match order {
            Order::End(cause) => return Parting::Told(cause),
            Order::Kill => return Parting::Told("it was ended by force".into()),
            Order::Close | Order::Stay if is_free => {
                return Parting::Told("it went on with a call after its cancel".into());
            }
            Order::Close if unused => return Parting::Unused,
            Order::Close | Order::Stay => {}
        }
        if !unused {
            used = Instant::now();
        }
        // Each arm waits for a condition; the refresh is kept while another arm is taken.
        // waits: in the task of the server, until it is told to end; no run waits here.
        tokio::select! {
            biased;
            _ = orders.changed() => {}
            () = connection.quit.clone() => return Parting::Gone,
            () = gone(far_end) => return Parting::Gone,
            _ = users.changed() => used = Instant::now(),
            _ = disobeyed.changed() => {}
            Some(()) = OptionFuture::from(refresh.as_mut()) => refresh = None,
            () = link.wire.tools_changed.notified(), if refresh.is_none() => {
                refresh = Some(refreshed(Arc::clone(slot), Arc::clone(link)).boxed());
            }
            () = sleep_until(used + slot.server.idle), if unused => {
                if house.retire(slot) {
                    return Parting::Unused;
                }
            }
        }
    }
}

/// Asks again for the tools, because the server said that they changed.
async fn refreshed(slot: Arc<Slot>, link: Arc<Link>) {
    let server = &slot.server;
    // waits: in the task of the server, beside its orders; no run waits here.
    match timeout(server.start_timeout, start::list(&link.peer)).await {
        Ok(Ok(tools)) => {
            let tools = server.offer(tools);
            tracing::debug!(server = %server.name, tools = tools.len(), "MCP server changed its tools");
            server.works(&tools);
            link.set_tools(tools);
        }
        Ok(Err(error)) => {
            let why = Trouble::of_list(&error, &server.config).why;
            tracing::warn!(server = %server.name, why, "MCP server did not list its changed tools");
        }
        Err(_) => tracing::warn!(server = %server.name, "MCP server did not list its changed tools in time"),
    }
}

async fn part(slot: &Slot, parting: Parting, mut connection: Connection, far_end: FarEnd) -> Over {
    // Whoever comes now gets another one.
    slot.tell(Order::Close);
    connection.hang_up();
    let patience = match parting {
        Parting::Unused => HANG_UP,
        Parting::Gone => LAST_WORDS,
        Parting::Told(_) => Duration::ZERO,
    };
    let mut over = end(slot, far_end, patience).await;
    // It took the pipes or the requests with it.
    // waits: no longer than `HANG_UP`, in the task of the server.
    let _ = timeout(HANG_UP, connection.quit.clone()).await;
    match parting {
        Parting::Unused => over.cause = "nobody used it any more".to_owned(),
        Parting::Told(cause) => over.cause = cause.to_string(),
        Parting::Gone => {
            over.cause = format!("it went away: {}", over.cause);
            tracing::warn!(server = %slot.server.name, why = over.cause, "MCP server ended by itself");
        }
    }
    over
}

/// Ends what there is to end.
async fn end(slot: &Slot, far_end: FarEnd, patience: Duration) -> Over {
    match far_end {
        // waits: for the ladder of its warden, which every order hurries on.
        FarEnd::Process(process) => process.end(slot, patience).await,
        // waits: for requests that are cut, and not for long for the end of its session.
        FarEnd::Site(site) => site.end(slot).await,
    }
}

/// A start that nobody waited for to the end.
fn unneeded(over: Over) -> Over {
    Over { cause: "nobody needed it any more before it had started".to_owned(), ..over }
}

/// A start that failed: the tools of the server are not available.
fn failed(slot: &Slot, Trouble { why, remedy }: Trouble, over: Over) -> Over {
    // Where the server ended by itself, its end is the reason.
    let by_itself = why == UNREADY && matches!(over.how, "exited" | "failed");
    let cause = if by_itself { format!("{why} ({})", over.cause) } else { why };
    tracing::warn!(server = %slot.server.name, why = cause, remedy, "MCP server could not be started; its tools are unavailable");
    slot.server.failed(&cause);
    Over { cause, how: if over.how.is_empty() { "failed" } else { over.how }, remedy, ..over }
}

/// Waits until the process is gone; for ever where there is none.
async fn gone(far_end: &mut FarEnd) {
    match far_end {
        // waits: as one arm of several, the first of which is the order to end.
        FarEnd::Process(process) => drop(process.gone().await),
        // waits: the same, for nothing.
        FarEnd::Site(_) => std::future::pending().await,
    }
}
