//! A run's use of its agent's servers: the tools that it is offered, and their calls.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::join_all;
use quell_kernel::turn::CallResult;
use quell_protocol::{ResourceKind, RunId, SessionKey, ToolOutputStream};
use serde_json::Value;
use tokio::sync::mpsc;

use super::errand::{Arrival, Errand, News, arrive};
use super::names::server_of;
use super::server::{Offered, Server};
use super::{House, result};
use crate::llm::ToolSpec;
use crate::proc::OutputSink;
use crate::scope::{Cancelled, Point, Scope};

/// News of a call that its run has not taken yet; more progress is dropped.
const NEWS: usize = 64;

/// Who comes.
#[derive(Debug, Clone)]
pub struct Visitor {
    /// The run.
    pub run: RunId,
    /// Its session.
    pub session: SessionKey,
    /// Where servers of its own are started.
    pub workdir: PathBuf,
    /// Which servers its agent may use; all of them when absent.
    pub servers: Option<Vec<String>>,
    /// The agent's tool list: `*`, or names.
    pub tools: Vec<String>,
}

/// A run's use of its agent's servers.
#[derive(Debug)]
pub struct Visit {
    house: Arc<House>,
    visitor: Visitor,
    servers: Vec<Arc<Server>>,
}

/// Where a call is made.
pub struct CallSpot<'a> {
    /// The run's scope.
    pub scope: &'a Scope,
    /// The most bytes that the model will read of this call.
    pub output_limit: usize,
    /// Takes what the server reports on the way.
    pub sink: &'a mut dyn OutputSink,
}

impl Visit {
    pub(super) fn new(house: Arc<House>, visitor: Visitor) -> Self {
        let all = visitor.tools.iter().any(|name| name == "*");
        let named = |server: &str| visitor.tools.iter().any(|tool| server_of(tool) == Some(server));
        let may = |server: &str| visitor.servers.as_ref().is_none_or(|names| names.iter().any(|name| name == server));
        let servers = house.servers.iter().filter(|(name, _)| may(name) && (all || named(name)));
        let servers = servers.map(|(_, server)| Arc::clone(server)).collect();
        Self { house, visitor, servers }
    }

    /// The tools that may be offered now. Servers whose tools nobody knows yet are started first, all at once; one that
    /// cannot be started has none.
    ///
    /// # Errors
    /// [`Cancelled`] when the scope was cancelled first.
    ///
    /// # Cancel safety
    /// Safe: a server that nobody waits for any more is ended, and the scope's ledger holds it until then.
    pub async fn offered(&self, scope: &Scope) -> Result<Vec<ToolSpec>, Cancelled> {
        let unknown = self.servers.iter().filter(|server| self.house.tools_of(server, &self.visitor).is_none());
        let arrivals: Vec<_> = unknown.map(|server| self.arrive(server, scope)).collect();
        if !arrivals.is_empty() {
            scope.race(Point::McpStart, join_all(arrivals)).await?;
        }
        let tools = self.servers.iter().filter_map(|server| self.house.tools_of(server, &self.visitor));
        let mut offered = Vec::new();
        for tools in tools {
            offered.extend(tools.iter().filter(|tool| self.may(&tool.spec.name)).map(|tool| tool.spec.clone()));
        }
        Ok(offered)
    }

    /// Calls a tool if its name begins with that of a server which the agent may use; else none.
    ///
    /// # Errors
    /// [`Cancelled`] when the scope was cancelled before the call went out, or was forced. Otherwise a stop is seen through, and
    /// the result says what became of the call.
    ///
    /// # Cancel safety
    /// Safe: a task of the scope sees the call through; with its caller gone it cancels the call, and the ledger holds it
    /// until its server is done with it.
    pub async fn call(
        &self,
        tool: &str,
        given: &Value,
        spot: &mut CallSpot<'_>,
    ) -> Option<Result<CallResult, Cancelled>> {
        let server = self.servers.iter().find(|server| server_of(tool) == Some(&server.name))?;
        Some(self.call_on(server, tool, given, spot).await)
    }

    async fn call_on(
        &self,
        server: &Arc<Server>,
        tool: &str,
        given: &Value,
        spot: &mut CallSpot<'_>,
    ) -> Result<CallResult, Cancelled> {
        let (scope, limit) = (spot.scope, spot.output_limit);
        let refusal = |text: String| Ok(result::error(text, limit));
        let arrival = scope.race(Point::McpStart, self.arrive(server, scope)).await?;
        let (claim, link) = match arrival {
            Ok(arrived) => arrived,
            Err(why) => return refusal(format!("the MCP server {} is not available: {why}", server.name)),
        };
        let tools = link.tools();
        let found = tools.iter().find(|offered| offered.spec.name == tool && self.may(tool));
        let Some(Offered { own_name, .. }) = found else {
            let names: Vec<&str> = tools.iter().map(|offered| offered.spec.name.as_str()).collect();
            return refusal(format!(
                "the MCP server {} has no tool {tool:?}; it has: {}",
                server.name,
                names.join(", ")
            ));
        };
        let (news, mut told) = mpsc::channel(NEWS);
        let held = scope.hold(ResourceKind::McpCall, format!("{}: {own_name}", server.name));
        let errand = Errand { scope: scope.clone(), claim, link, held, news, limit };
        scope.spawn(errand.run(own_name.clone(), given.as_object().cloned()));
        scope.check(Point::McpCall)?;
        loop {
            // A stop does not end the wait: the errand sees it through within its bounds, and knows what came of the call.
            let news = tokio::select! {
                biased;
                () = scope.forced() => return Err(Cancelled),
                news = told.recv() => news,
            };
            match news {
                Some(News::Progress(text)) => spot.sink.output(ToolOutputStream::Stdout, &text),
                Some(News::Done(result)) => return Ok(result),
                // The request was never sent, because the scope was cancelled first.
                None => return Err(Cancelled),
            }
        }
    }

    /// Nothing happens before its first poll, which comes after the check of the scope that it is raced with.
    async fn arrive(&self, server: &Arc<Server>, scope: &Scope) -> Result<Arrival, String> {
        arrive(self.house.acquire(server, &self.visitor)?, scope).await
    }

    fn may(&self, tool: &str) -> bool {
        self.visitor.tools.iter().any(|name| name == "*" || name == tool)
    }
}

impl std::fmt::Debug for CallSpot<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CallSpot")
    }
}
