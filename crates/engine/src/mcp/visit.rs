//! A run's use of its agent's servers: the tools that it is offered, and their calls.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use quell_protocol::{ResourceKind, RunId, SessionKey, ToolOutputStream};
use serde_json::Value;
use tokio::sync::mpsc;

use super::errand::{Arrival, Errand, News, arrive};
use super::names::server_of;
use super::result::{self, ToolAnswer};
use super::server::{Offered, Server};
use super::{Endpoint, House};
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
    /// The session's own endpoint, which it may use besides.
    pub endpoint: Option<Endpoint>,
    /// The agent's tool list: `*`, or names.
    pub tools: Vec<String>,
}

/// A run's use of its agent's servers.
#[derive(Debug)]
pub struct Visit {
    house: Arc<House>,
    visitor: Visitor,
    servers: Vec<Arc<Server>>,
    /// Servers whose start this run has awaited in vain: it does not wait for them at its next step.
    given_up: Mutex<BTreeSet<String>>,
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
        let own = visitor.endpoint.as_ref().map(|Endpoint(server)| server);
        // A session's own endpoint stands before a configured server of that name.
        let hidden = |name: &str| own.is_some_and(|own| own.name == name);
        let servers = house.servers.iter().filter(|(name, _)| may(name) && !hidden(name) && (all || named(name)));
        let own = own.filter(|own| all || named(&own.name));
        let servers = servers.map(|(_, server)| server).chain(own).map(Arc::clone).collect();
        Self { house, visitor, servers, given_up: Mutex::default() }
    }

    /// The tools that may be offered now. Servers whose tools nobody knows yet are started first, all at once; one that
    /// cannot be started has none, and is not awaited again.
    ///
    /// # Errors
    /// [`Cancelled`] when the scope was cancelled first.
    ///
    /// # Cancel safety
    /// Safe: a server that nobody waits for any more is ended, and the scope's ledger holds it until then.
    pub async fn offered(&self, scope: &Scope) -> Result<Vec<ToolSpec>, Cancelled> {
        let unknown: Vec<_> = self.servers.iter().filter(|server| self.is_to_be_asked(server)).collect();
        if !unknown.is_empty() {
            let arrivals = unknown.iter().map(|server| self.arrive(server, scope));
            let arrived = scope.race(Point::McpStart, join_all(arrivals)).await?;
            let failed = unknown.iter().zip(arrived).filter(|(_, arrival)| arrival.is_err());
            self.given_up().extend(failed.map(|(server, _)| server.name.clone()));
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
    ) -> Option<Result<ToolAnswer, Cancelled>> {
        let server = self.servers.iter().find(|server| server_of(tool) == Some(&server.name))?;
        Some(self.call_on(server, tool, given, spot).await)
    }

    async fn call_on(
        &self,
        server: &Arc<Server>,
        tool: &str,
        given: &Value,
        spot: &mut CallSpot<'_>,
    ) -> Result<ToolAnswer, Cancelled> {
        let (scope, limit) = (spot.scope, spot.output_limit);
        let refusal = |text: String| Ok(result::error(text, limit).into());
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
        let run = self.visitor.run.clone();
        let errand = Errand { scope: scope.clone(), claim, link, held, run, news, limit };
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

    /// True when nobody knows its tools and it may be worth a wait.
    fn is_to_be_asked(&self, server: &Server) -> bool {
        let is_unknown = self.house.tools_of(server, &self.visitor).is_none();
        is_unknown && server.trouble().is_none() && !self.given_up().contains(&server.name)
    }

    fn given_up(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::TcpListener;
    use std::time::Duration;

    use quell_kernel::StopTimes;
    use tokio::time::{Instant, advance};

    use super::*;
    use crate::clock::Clock;
    use crate::mcp::{Mcp, McpConfig, McpSettings};
    use crate::proc::{WardenExe, Wardens};
    use crate::scope::Probe;

    const START: Duration = Duration::from_secs(10);
    const PAUSE: Duration = Duration::from_secs(10);

    fn house_with(far: &TcpListener) -> Mcp {
        let url = Some(format!("http://{}/mcp", far.local_addr().unwrap()));
        Mcp::new(McpSettings {
            servers: BTreeMap::from([("far".to_owned(), McpConfig { url, ..McpConfig::default() })]),
            wardens: Wardens::new(WardenExe::ThisProcess, StopTimes::default()).unwrap(),
            environment: Vec::new(),
            times: StopTimes::default(),
            clock: Clock::start(),
        })
        .unwrap()
    }

    fn run_of(mcp: &Mcp) -> Visit {
        mcp.visit(Visitor {
            run: RunId::parse("run").unwrap(),
            session: SessionKey::parse("session").unwrap(),
            workdir: PathBuf::from("/"),
            servers: None,
            endpoint: None,
            tools: vec!["*".to_owned()],
        })
    }

    /// How long a step waits for servers that have no tools.
    async fn wait(visit: &Visit) -> Duration {
        let (scope, begun) = (Scope::new(Clock::start(), Probe::default()), Instant::now());
        assert!(visit.offered(&scope).await.unwrap().is_empty());
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_hangs_at_its_start_costs_a_run_one_wait_and_runs_ever_fewer() {
        // It takes connections and never answers.
        let far = TcpListener::bind("127.0.0.1:0").unwrap();
        let mcp = house_with(&far);
        let first = run_of(&mcp);
        assert!(wait(&first).await >= START);
        advance(PAUSE).await;
        assert_eq!(wait(&first).await, Duration::ZERO, "one run has waited twice");
        assert!(wait(&run_of(&mcp)).await >= START);
        advance(PAUSE).await;
        let third = run_of(&mcp);
        assert_eq!(wait(&third).await, Duration::ZERO, "the second pause was no longer than the first");
        advance(PAUSE).await;
        assert!(wait(&third).await >= START, "a step during the pause is no wait");
    }
}
