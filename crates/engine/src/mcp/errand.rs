//! A run's wait for a server, and its call: each a task of the run's scope, so that a stop is seen through also when the
//! caller is gone.

use std::sync::Arc;
use std::time::Duration;

use quell_kernel::turn::CallResult;
use quell_protocol::{ResourceKind, RunId};
use rmcp::model::{CallToolRequest, CallToolRequestParams, ClientRequest, JsonObject, RequestId};
use rmcp::service::{PeerRequestOptions, RequestHandle};
use rmcp::{RoleClient, ServiceError};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use super::late_calls::UnconfirmedCall;
use super::result::{self, ToolAnswer};
use super::settle::{self, Reason};
use super::slot::{Link, Order, Over, Slot, State, Use};
use super::trouble::Trouble;
use super::wire::Line;
use crate::scope::{Held, Scope};

/// How long a process may take to end by itself whose connection broke: its end tells why.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A claim on a server that works.
pub(super) type Arrival = (Use, Arc<Link>);

/// What a caller is told.
pub(super) enum News {
    /// The server reports this.
    Progress(String),
    /// The call is over.
    Done(ToolAnswer),
}

/// Waits until a server works. While it starts, the scope's ledger holds it; with the last one who waited for it gone, it is
/// ended.
pub(super) async fn arrive(claim: Use, scope: &Scope) -> Result<Arrival, String> {
    match claim.slot().state() {
        State::Ready(link) => return Ok((claim, link)),
        State::Starting | State::Over(_) => {}
    }
    let held = scope.hold(ResourceKind::McpCall, format!("{}: start", claim.slot().server.name));
    let (arrived, arrival) = oneshot::channel();
    scope.spawn(await_start(claim, scope.clone(), held, arrived));
    // waits: raced where it is called; the task answers or drops its end at the cancel.
    arrival.await.unwrap_or_else(|_| Err("the wait for it was cancelled".to_owned()))
}

async fn await_start(claim: Use, scope: Scope, held: Held, mut arrived: oneshot::Sender<Result<Arrival, String>>) {
    let slot = Arc::clone(claim.slot());
    // All wait for conditions.
    let settled = tokio::select! {
        biased;
        () = scope.cancelled() => None,
        () = arrived.closed() => None,
        settled = slot.settled() => Some(settled),
    };
    match settled {
        Some(Ok(link)) => {
            held.release("finished");
            // A caller that left gives the claim back with the answer.
            let _ = arrived.send(Ok((claim, link)));
        }
        Some(Err(over)) => {
            give_back(held, &over, "failed");
            let _ = arrived.send(Err(over.cause.clone()));
        }
        None => {
            drop(claim);
            if slot.users() > 0 || matches!(slot.state(), State::Ready(_)) {
                held.release("cancelled");
                return;
            }
            let over = over_within(&slot, &scope).await;
            give_back(held, &over, over.how);
        }
    }
}

/// Waits for the end of a server that has been told to end; a forced stop of the scope kills it.
pub(super) async fn over_within(slot: &Slot, scope: &Scope) -> Arc<Over> {
    tokio::select! {
        biased;
        over = slot.over() => over,
        () = scope.forced() => {
            slot.tell(Order::Kill);
            // waits: for the end of what was just killed, which the ledger of the stopped run waits for.
            slot.over().await
        }
    }
}

/// Gives back what ended with its server, leftovers by name.
pub(super) fn give_back(held: Held, over: &Over, how: &'static str) {
    for leftover in &over.leftovers {
        held.note_leftover(leftover.clone());
    }
    held.release(how);
}

/// One call, from its request to its answer or to the end of its cancel.
pub(super) struct Errand {
    pub(super) scope: Scope,
    pub(super) claim: Use,
    pub(super) link: Arc<Link>,
    pub(super) held: Held,
    pub(super) run: RunId,
    pub(super) news: mpsc::Sender<News>,
    pub(super) limit: usize,
}

type Handle = RequestHandle<RoleClient>;
type Answer = Result<rmcp::model::ServerResult, ServiceError>;

/// What ended the wait for an answer.
enum Turn {
    /// It is to be cancelled.
    Cancelled(Reason),
    Answered(Box<Answer>),
    /// The server is being ended, for this cause.
    Ended(String),
}

impl Errand {
    /// Sees the call through.
    pub(super) async fn run(self, tool: String, given: Option<JsonObject>) {
        let mut params = CallToolRequestParams::new(tool);
        params.arguments = given;
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let options = PeerRequestOptions::no_options();
        // A request that waits for room was not sent; dropping it leaves no trace.
        // waits: until the run is stopped or its caller gone, in `left`.
        let sent = tokio::select! {
            biased;
            () = self.left() => return self.held.release("cancelled"),
            sent = self.link.peer.send_request_with_option(request, options) => sent,
        };
        let mut handle = match sent {
            Ok(handle) => handle,
            Err(error) => return self.finish(Turn::Answered(Box::new(Err(error))), None).await,
        };
        let id = handle.id.clone();
        let line = self.link.wire.line(&id);
        match self.await_answer(&mut handle, &line).await {
            Turn::Cancelled(reason) => match handle.rx.try_recv() {
                // It was there when the end of the wait came: there is nothing to cancel.
                Ok(answer) => self.finish(Turn::Answered(Box::new(answer)), Some(id)).await,
                // waits: no longer than the server's grace and the ladder of its process.
                Err(_none) => settle::settle(self, handle, line, reason).await,
            },
            turn => self.finish(turn, Some(id)).await,
        }
    }

    /// This call, as one that nobody waits for any more.
    pub(super) fn unconfirmed(&self, late_from: Instant) -> UnconfirmedCall {
        let server = &self.claim.slot().server;
        let (name, is_url) = (server.name.clone(), server.client.is_some());
        UnconfirmedCall { run: self.run.clone(), resource: self.held.id(), server: name, is_url, late_from }
    }

    async fn await_answer(&self, handle: &mut Handle, line: &Line) -> Turn {
        let slot = self.claim.slot();
        let (mut heard, began) = (line.listen(), Instant::now());
        loop {
            heard.borrow_and_update();
            self.show(line);
            let late = line.progressed().unwrap_or(began) + slot.server.call_timeout;
            // All wait for conditions, and an answer stays in the handle until it is taken.
            // waits: until the run is stopped or its caller gone, in `left`.
            tokio::select! {
                biased;
                () = self.left() => return Turn::Cancelled(Reason::Stop),
                answer = &mut handle.rx => match answer {
                    Ok(answer) => {
                        self.show(line);
                        return Turn::Answered(Box::new(answer));
                    }
                    Err(_closed) => return Turn::Ended(self.lost("its connection ended".to_owned()).await),
                },
                cause = slot.ending() => return Turn::Ended(format!("it was restarted because {cause}")),
                _ = heard.changed() => {}
                () = sleep_until(late) => return Turn::Cancelled(Reason::Late),
            }
        }
    }

    fn show(&self, line: &Line) {
        for text in line.take_shown() {
            // A caller that does not keep up misses progress.
            let _ = self.news.try_send(News::Progress(text));
        }
    }

    /// Why a connection failed under a call, which came to be known by this problem. The server is not used again: the next
    /// call connects anew.
    async fn lost(&self, problem: String) -> String {
        let slot = self.claim.slot();
        if let Order::End(cause) = slot.order() {
            return format!("it was restarted because {cause}");
        }
        if slot.server.client.is_some() {
            // No process is there whose end could tell more, and other calls may still be answered.
            slot.tell(Order::Close);
            return problem;
        }
        // waits: until the run is stopped or its caller gone, in `left`, and not for long.
        tokio::select! {
            biased;
            over = slot.over() => return over.cause.clone(),
            () = self.left() => {}
            () = sleep(LAST_WORDS) => {}
        }
        slot.tell(Order::End(problem.into()));
        over_within(slot, &self.scope).await.cause.clone()
    }

    async fn finish(self, turn: Turn, id: Option<RequestId>) {
        let server = &self.claim.slot().server.name;
        let (result, how) = match turn {
            Turn::Answered(answer) => match *answer {
                Err(ServiceError::TransportClosed) => {
                    (self.broken(&self.lost("it ended its answer too early".to_owned()).await).into(), "failed")
                }
                Err(ServiceError::TransportSend(error)) => {
                    let trouble = Trouble::of_transport(&*error.error, &self.claim.slot().server.config);
                    let problem = trouble.map_or("it does not read its input".to_owned(), |trouble| trouble.why);
                    (self.broken(&self.lost(problem).await).into(), "failed")
                }
                answer => (result::of_answer(answer, server, self.limit), "finished"),
            },
            Turn::Ended(cause) => (self.broken(&cause).into(), "failed"),
            Turn::Cancelled(_) => return,
        };
        if let Some(id) = id {
            self.link.wire.forget(&id);
        }
        let Self { held, news, claim, .. } = self;
        // The claim goes first: with it the server's time without use begins.
        drop(claim);
        held.release(how);
        // Nobody takes it when the run was stopped meanwhile.
        // waits: for a caller that does nothing but take news; when it is gone, this fails at once.
        let _ = news.send(News::Done(result)).await;
    }

    fn broken(&self, cause: &str) -> CallResult {
        let server = &self.claim.slot().server.name;
        let text = format!("the call was lost with the MCP server {server}: {cause}; it may have had effects already");
        result::error(text, self.limit)
    }

    /// Waits until the run is stopped or the caller is gone.
    async fn left(&self) {
        // Both wait for conditions.
        tokio::select! {
            () = self.scope.cancelled() => {}
            () = self.news.closed() => {}
        }
    }
}
