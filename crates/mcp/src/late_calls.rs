//! Report what becomes known of a cancelled call after its run has ended.
//!
//! A server need not answer a cancelled call. If it only showed that it reads its input, the run ends at once and the
//! call counts as `unconfirmed`. A later message about the call goes to the callback, which amends the receipt of the
//! run.

use std::fmt;
use std::sync::OnceLock;

use quell_protocol::{Amendment, AmendmentKind, Leftover, RunId};
use quell_scope::Release;
use tokio::time::Instant;

/// What became known of a cancelled call after its run had ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LateCallUpdate {
    /// The run that made the call.
    pub run: RunId,
    /// The number of the call in the ledger of that run.
    pub resource: u64,
    pub kind: AmendmentKind,
    /// A description for people, in one line.
    pub text: String,
    /// Processes that could not be ended, by name.
    pub leftovers: Vec<Leftover>,
}

impl LateCallUpdate {
    /// The amendment for the receipt.
    #[must_use]
    pub fn into_amendment(self, at: quell_protocol::Instant) -> Amendment {
        let Self { resource, kind, text, leftovers, .. } = self;
        Amendment { at, resource, kind, text, leftovers }
    }
}

type LateCallCallback = dyn Fn(LateCallUpdate) + Send + Sync;

/// Holds the callback for late updates. Updates are dropped until it is set.
#[derive(Default)]
pub(super) struct LateCallListener(OnceLock<Box<LateCallCallback>>);

impl LateCallListener {
    /// Sets the callback. It is called from the tasks of servers and must not block. A second callback is ignored.
    pub(super) fn set_callback(&self, callback: impl Fn(LateCallUpdate) + Send + Sync + 'static) {
        // It is set once, while the engine is built.
        let _ = self.0.set(Box::new(callback));
    }

    pub(super) fn report(&self, update: LateCallUpdate) {
        tracing::info!(run = %update.run, call = update.resource, what = update.text, "late update on a cancelled MCP call");
        if let Some(callback) = self.0.get() {
            callback(update);
        }
    }
}

/// A cancelled call without an answer.
#[derive(Debug, Clone)]
pub(super) struct UnconfirmedCall {
    pub(super) run: RunId,
    pub(super) resource: u64,
    pub(super) server: String,
    /// True for a server by URL: its session can be ended, but it has no process here.
    pub(super) is_url: bool,
    /// Progress from this time on shows that the server goes on; earlier progress may have been sent before the cancel
    /// was read.
    pub(super) late_from: Instant,
}

impl UnconfirmedCall {
    pub(super) fn cancel_confirmed(&self) -> LateCallUpdate {
        self.update(
            AmendmentKind::Confirmed,
            format!("the MCP server {} confirmed the cancel of the call", self.server),
        )
    }

    pub(super) fn finished_anyway(&self) -> LateCallUpdate {
        let (server, ending) = (&self.server, self.ending_text());
        let text =
            format!("the MCP server {server} finished the call all the same, and its result was dropped; {ending}");
        self.update(AmendmentKind::LateResult, text)
    }

    pub(super) fn continued_after_cancel(&self) -> LateCallUpdate {
        let (server, ending) = (&self.server, self.ending_text());
        let text = format!("the MCP server {server} went on with the call after its cancel; {ending}");
        self.update(AmendmentKind::LateProgress, text)
    }

    /// What happens to a server that ignored the cancel.
    fn ending_text(&self) -> &'static str {
        if self.is_url {
            "its session takes no new calls and is closed as soon as no other call is at work there"
        } else {
            "it takes no new calls and is ended as soon as no other call is at work there"
        }
    }

    pub(super) fn server_ended(&self, how: Release, leftovers: Vec<Leftover>) -> LateCallUpdate {
        let text = format!("the MCP server {} that went on with the call was ended ({})", self.server, how.as_str());
        LateCallUpdate { leftovers, ..self.update(AmendmentKind::ServerEnded, text) }
    }

    fn update(&self, kind: AmendmentKind, text: String) -> LateCallUpdate {
        LateCallUpdate { run: self.run.clone(), resource: self.resource, kind, text, leftovers: Vec::new() }
    }
}

impl fmt::Debug for LateCallListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "LateCallListener(set)" } else { "LateCallListener(none)" })
    }
}
