//! A call that is cancelled, for a stop or because it takes too long: the cancel goes out at once, and behind it a ping.
//!
//! Servers need not answer a cancelled call, and most do not. So the wait ends at the answer of the call or of the ping,
//! whichever comes first. The ping says that the server has read the cancel and nothing more: the call is then `unconfirmed`,
//! and its line is watched on in the scope of the server ([`super::late_calls`]). A server that answers neither within its
//! grace is ended.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{ClientRequest, PingRequest, RequestId};
use rmcp::service::RequestHandle;
use rmcp::{RoleClient, ServiceError};
use tokio::time::{Instant, sleep_until};

use super::errand::{Errand, News, give_back, over_within};
use super::result;
use super::slot::{Order, Over};
use super::wire::{Answered, Line};

/// What is left of the grace when a stop is forced, unless others use the server too.
const FORCED_GRACE: Duration = Duration::from_millis(50);

/// Why a call is cancelled.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reason {
    /// Its run was stopped, or its caller is gone.
    Stop,
    /// It was not answered and reported nothing for too long.
    Late,
}

/// How a cancelled call came to an end.
enum Calm {
    /// The server answered it after all.
    Answered(Answered),
    /// The server is over.
    Over(Arc<Over>),
    /// It reads; what it does with the call is not known.
    Unconfirmed,
    /// It cannot be relied on to have stopped, for this reason.
    Working(&'static str),
}

impl Reason {
    /// For servers, and for those whose calls are lost with one.
    fn words(self) -> &'static str {
        match self {
            Self::Stop => "the run was stopped",
            Self::Late => "it took too long",
        }
    }
}

/// Cancels a call, sees it to its end, and tells its caller what is known of it.
pub(super) async fn settle(errand: Errand, handle: RequestHandle<RoleClient>, line: Arc<Line>, reason: Reason) {
    let (id, news) = (handle.id.clone(), errand.news.clone());
    let late_from = Instant::now() + errand.claim.slot().server.grace / 2;
    line.cancelled();
    let mut calm = calm_down(&errand, handle, &line, reason).await;
    let wire = Arc::clone(&errand.link.wire);
    if matches!(calm, Calm::Unconfirmed) {
        // The answer may have come behind that of the ping.
        if let Err(answer) = wire.watch_late(&id, errand.unconfirmed(late_from)) {
            calm = Calm::Answered(answer);
        }
    } else {
        wire.forget(&id)
    }
    let (server, limit) = (Arc::clone(&errand.claim.slot().server), errand.limit);
    let told = |what: &str| {
        let what = format!("the MCP server {} {what}", server.name);
        match reason {
            Reason::Stop => result::stopped(&what, limit),
            Reason::Late => {
                let limit_s = server.call_timeout.as_secs();
                let text = format!("no answer and no progress for {limit_s} s: {what}; the call may have had effects");
                result::error(text, limit)
            }
        }
    };
    let result = match calm {
        Calm::Answered(Answered::Result(answer)) => {
            errand.held.release("finished");
            result::of_answer(Ok(*answer), &server.name, limit)
        }
        Calm::Answered(Answered::Error) => {
            errand.held.release("cancelled");
            told("has cancelled it").into()
        }
        Calm::Unconfirmed => {
            errand.held.release("unconfirmed");
            told("was told to cancel it").into()
        }
        Calm::Over(over) => {
            give_back(errand.held, &over, over.how);
            told("ended with it").into()
        }
        Calm::Working(why) => {
            restart(errand, &id, why, reason).await;
            told("went on with it and was ended").into()
        }
    };
    // Nobody takes it after a forced stop.
    // waits: for a caller that does nothing but take news; when it is gone, this fails at once.
    let _ = news.send(News::Done(result)).await;
}

async fn calm_down(errand: &Errand, handle: RequestHandle<RoleClient>, line: &Line, reason: Reason) -> Calm {
    let slot = errand.claim.slot();
    let began = Instant::now();
    let (is_url, is_shared) = (slot.server.client.is_some(), slot.server.config.shared);
    let peer = errand.link.peer.clone();
    // The cancel first, then the question whether it was read.
    let mut asking = std::pin::pin!(async {
        // waits: as `asking`, one arm below, beside the deadline.
        handle.cancel(Some(reason.words().to_owned())).await?;
        if is_url {
            return Ok(());
        }
        // waits: the same; it is one future.
        peer.send_request(ClientRequest::PingRequest(PingRequest::default())).await.map(drop)
    });
    let (mut heard, mut read, mut forced) = (line.listen(), None::<Result<(), ServiceError>>, false);
    let mut deadline = began + slot.server.grace;
    loop {
        heard.borrow_and_update();
        if let Some(answer) = line.take_answer() {
            return Calm::Answered(answer);
        }
        // A ping that is refused was read, too. A URL has no process that could go on, and its stream is closed with the cancel.
        if let Some(Ok(()) | Err(ServiceError::McpError(_))) = read {
            // A forced stop leaves nothing to trust.
            return if forced && !is_url { Calm::Working("did not say that it stopped") } else { Calm::Unconfirmed };
        }
        // Each arm waits for a condition or is kept for the next turn.
        tokio::select! {
            biased;
            over = slot.over() => return Calm::Over(over),
            _ = heard.changed() => {}
            // Others' calls are not sacrificed to a short silence.
            () = errand.scope.forced(), if !forced && !is_shared => {
                forced = true;
                deadline = deadline.min(Instant::now() + FORCED_GRACE);
            }
            answer = &mut asking, if read.is_none() => read = Some(answer),
            () = sleep_until(deadline) => return Calm::Working("does not read its input"),
        }
    }
}

/// Ends a server that goes on. It starts again at its next use; calls of other runs end with an error that says why.
async fn restart(errand: Errand, id: &RequestId, why: &str, reason: Reason) {
    let Errand { claim, held, scope, .. } = errand;
    let slot = Arc::clone(claim.slot());
    let others = slot.users().saturating_sub(1);
    let server = &slot.server.name;
    let cost = match others {
        0 => String::new(),
        1 => ", which cost 1 call of another run".to_owned(),
        count => format!(", which cost {count} calls of other runs"),
    };
    tracing::warn!(server, request = %id, why, others, "MCP server goes on with a cancelled call; it is restarted");
    held.add_to_label(&format!(" (the server {why} after the cancel and was restarted{cost})"));
    slot.tell(Order::End(format!("it {why} after the cancel of a call: {}", reason.words()).into()));
    drop(claim);
    let over = over_within(&slot, &scope).await;
    give_back(held, &over, over.how);
}
