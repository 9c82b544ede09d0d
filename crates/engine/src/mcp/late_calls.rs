//! Cancelled calls whose run did not wait for an answer, and what becomes known of them later.
//!
//! A server need not answer a call that was cancelled. Where it only showed that it reads, the run ends at once and the call
//! counts as `unconfirmed`. Whatever the server says of it later goes to the listener, which amends the receipt of the run.

use std::fmt;
use std::sync::OnceLock;

use quell_protocol::{Amendment, AmendmentKind, Leftover, RunId};
use tokio::time::Instant;

/// What became known of a call after its run had stopped to wait for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LateFact {
    /// The run that made the call.
    pub run: RunId,
    /// The call's number in the ledger of that run.
    pub resource: u64,
    /// What became known.
    pub kind: AmendmentKind,
    /// The same for people, in one line.
    pub text: String,
    /// What could not be ended, by name.
    pub leftovers: Vec<Leftover>,
}

impl LateFact {
    /// The same in a receipt.
    #[must_use]
    pub fn amendment(self, at: quell_protocol::Instant) -> Amendment {
        let Self { resource, kind, text, leftovers, .. } = self;
        Amendment { at, resource, kind, text, leftovers }
    }
}

type Listener = dyn Fn(LateFact) + Send + Sync;

/// The one that is told; facts that come before it are dropped.
#[derive(Default)]
pub(super) struct LateListener(OnceLock<Box<Listener>>);

impl LateListener {
    /// Sets the listener. It is called from tasks of servers and must not block. A second one is ignored.
    pub(super) fn set(&self, listener: impl Fn(LateFact) + Send + Sync + 'static) {
        // Only an engine that is being built sets it.
        let _ = self.0.set(Box::new(listener));
    }

    pub(super) fn tell(&self, fact: LateFact) {
        tracing::info!(run = %fact.run, call = fact.resource, what = fact.text, "more is known of a cancelled MCP call");
        if let Some(listener) = self.0.get() {
            listener(fact);
        }
    }
}

/// A cancelled call without an answer.
#[derive(Debug, Clone)]
pub(super) struct UnconfirmedCall {
    pub(super) run: RunId,
    pub(super) resource: u64,
    /// The server's name.
    pub(super) server: String,
    /// It is reached by URL: its session can be ended, not its process.
    pub(super) is_url: bool,
    /// From then on progress says that the server goes on; what comes before may have crossed the cancel.
    pub(super) late_from: Instant,
}

impl UnconfirmedCall {
    pub(super) fn confirmed(&self) -> LateFact {
        self.fact(AmendmentKind::Confirmed, format!("the MCP server {} confirmed the cancel of the call", self.server))
    }

    pub(super) fn finished(&self) -> LateFact {
        let (server, ending) = (&self.server, self.ending());
        let text =
            format!("the MCP server {server} finished the call all the same, and its result was dropped; {ending}");
        self.fact(AmendmentKind::LateResult, text)
    }

    pub(super) fn went_on(&self) -> LateFact {
        let (server, ending) = (&self.server, self.ending());
        let text = format!("the MCP server {server} went on with the call after its cancel; {ending}");
        self.fact(AmendmentKind::LateProgress, text)
    }

    /// What becomes of a server that did not obey.
    fn ending(&self) -> &'static str {
        if self.is_url {
            "its session takes no new calls and is closed as soon as no other call is at work there"
        } else {
            "it takes no new calls and is ended as soon as no other call is at work there"
        }
    }

    pub(super) fn ended(&self, how: &str, leftovers: Vec<Leftover>) -> LateFact {
        let text = format!("the MCP server {} that went on with the call was ended ({how})", self.server);
        LateFact { leftovers, ..self.fact(AmendmentKind::ServerEnded, text) }
    }

    fn fact(&self, kind: AmendmentKind, text: String) -> LateFact {
        LateFact { run: self.run.clone(), resource: self.resource, kind, text, leftovers: Vec::new() }
    }
}

impl fmt::Debug for LateListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "LateListener(set)" } else { "LateListener(none)" })
    }
}
