//! Making a session, stage by stage (row C4): what it says itself, its MCP endpoint, its agent with the model client, a hook's
//! consent, the stages of the program around the engine, and, for one that is asked for, its place in the database. Whatever
//! fails, what there is by then is taken back in the reverse order.

use std::sync::Arc;

use quell_protocol::hook::{HookEvent, SessionFacts};
use quell_protocol::{AgentId, By, SessionKey};

use super::Sessions;
use super::body::{Begun, Body};
use super::enter::{Claim, Got, NotMade, Purpose};
use super::own::Own;
use crate::agent::Agent;
use crate::hooks::begin_stage;
use crate::mcp::Endpoint;
use crate::scope::{Cancelled, Point};
use crate::store::{SetUp, SetUpAccess, StoredSession};

/// What came of it; nothing, when the session was taken away meanwhile.
type Made = Result<Result<Option<(Arc<Body>, Got)>, NotMade>, Cancelled>;

impl Sessions {
    /// Makes a session, of what the database knows of it and of what is asked for now.
    pub(super) async fn make(&self, mut claim: Claim<'_>, purpose: &Purpose<'_>) -> Made {
        // waits: each stage is raced in there.
        let staged = self.stages(&mut claim, purpose).await?;
        let (body, got) = match staged {
            Ok(staged) => staged,
            Err(why) => {
                tracing::info!(session = %claim.key, %why, "session not made");
                // Before there is anything of it, it is the fault of what this one asks for: others have not asked for that.
                if claim.body.is_some() {
                    claim.failed(&why)
                } else {
                    claim.failed_alone()
                }
                return Ok(Err(why));
            }
        };
        let (key, agent) = (claim.key, body.facts.agent.clone());
        if !claim.made(Arc::clone(&body)) {
            return Ok(Ok(None));
        }
        let revived = body.facts.revived == Some(true);
        tracing::info!(session = %key, %agent, revived, "session created");
        if purpose.run.is_some() {
            self.book().lives.touch(key, self.0.runs.clock().now());
            let activated = purpose.happening(HookEvent::Activate, &body);
            // waits: raced in the hooks, which never refuse this.
            let _ = self.hooks().ask(activated, purpose.scope).await?;
        }
        Ok(Ok(Some((body, got))))
    }

    async fn stages(
        &self,
        claim: &mut Claim<'_>,
        purpose: &Purpose<'_>,
    ) -> Result<Result<(Arc<Body>, Got), NotMade>, Cancelled> {
        let (key, scope, asked) = (claim.key, purpose.scope, purpose.asked);
        let stored = match scope.race(Point::Session, self.0.runs.store().session(key.clone())).await? {
            Ok(stored) => stored,
            Err(error) => return Ok(Err(error.into())),
        };
        let read = |stored| match asked {
            Some(asked) => Own::stored_for(asked, stored, &self.0.vault),
            None => Own::stored(stored, &self.0.vault),
        };
        let before = match stored.as_ref().map(read).transpose() {
            Ok(before) => before.flatten(),
            Err(problem) => return Ok(Err(NotMade::Configuration(problem))),
        };
        let (own, is_changed) = match asked {
            Some(asked) => {
                let own = Some(Own::given(asked, purpose.reach, before.as_ref()));
                let is_changed = own != before;
                (own, is_changed)
            }
            None => (before, false),
        };
        // Before anything of it is begun, and asked again where it is stored.
        if let Some(stored) = &stored
            && purpose.access(is_changed) == SetUpAccess::OwnerOnly
            && !purpose.began(stored)
        {
            return Ok(Err(not_yours()));
        }
        // A session that a first message makes is stored before its run starts; it has no turn yet.
        let is_known = stored.as_ref().is_some_and(|stored| asked.is_some() || stored.turns > 0);
        // A run names its agent itself.
        let before = asked.and(own.as_ref().and_then(Own::agent).or(stored.as_ref().map(|stored| &stored.agent)));
        let agent = self.agent_for(purpose, before);
        let body = match self.set_up(key, own, &agent, is_known) {
            Ok(body) => Arc::new(body),
            Err(problem) => return Ok(Err(NotMade::Configuration(problem))),
        };
        claim.body = Some(Arc::clone(&body));
        // waits: raced in the hooks.
        if let Err(veto) = self.hooks().ask(purpose.happening(HookEvent::Create, &body), scope).await? {
            return Ok(Err(NotMade::Refused(veto.reason)));
        }
        for stage in self.hooks().stages() {
            let begin = begin_stage(stage.as_ref(), &body.facts, self.hooks().limit());
            match scope.race(Point::Session, begin).await? {
                Ok(undo) => body.add_stage(Begun { name: stage.name().to_owned(), undo }),
                Err(error) => return Ok(Err(NotMade::Configuration(error.to_string()))),
            }
        }
        let got = match asked {
            None => Got::Known,
            // waits: for the database, in a task that no stop ends: what is asked for is stored or refused.
            Some(_) => match self.keep(&body, purpose, is_changed).await {
                Ok(Got::Known) if is_changed => Got::Changed,
                Ok(got) => got,
                Err(why) => return Ok(Err(why)),
            },
        };
        Ok(Ok((body, got)))
    }

    /// Changes a live session to what is asked for. A run that is at work there goes on with what it has.
    pub(super) async fn change(&self, claim: Claim<'_>, before: &Arc<Body>, purpose: &Purpose<'_>) -> Made {
        let Some(own) = purpose.asked.map(|asked| Own::given(asked, purpose.reach, before.own.as_ref())) else {
            return Ok(Ok(Some((Arc::clone(before), Got::Known))));
        };
        let agent = self.agent_for(purpose, Some(own.agent().unwrap_or(before.set_up_for())));
        let body = match self.set_up_anew(before, own, &agent) {
            Ok(body) => Arc::new(body),
            Err(problem) => {
                claim.failed_alone();
                return Ok(Err(NotMade::Configuration(problem)));
            }
        };
        // waits: for the database, in a task that no stop ends.
        if let Err(why) = self.keep(&body, purpose, true).await {
            claim.failed_alone();
            return Ok(Err(why));
        }
        let reaches_as_before = matches!((&before.own, &body.own), (Some(old), Some(new)) if old.reaches_as(new));
        let key = claim.key;
        if !claim.changed(Arc::clone(&body)) {
            return Ok(Ok(None));
        }
        if !reaches_as_before {
            // Each goes when its last call is over; the next run starts new ones.
            self.0.runs.workshop().mcp.close_session(key);
        }
        tracing::info!(session = %key, "session configured anew");
        let activated = purpose.happening(HookEvent::Activate, &body);
        // waits: raced in the hooks, which never refuse this. Whoever stops that is told that the session is changed: it is.
        let _ = self.hooks().ask(activated, purpose.scope).await;
        Ok(Ok(Some((body, Got::Changed))))
    }

    /// The agent that is asked for now, else the one that the session had, if it exists any more.
    fn agent_for(&self, purpose: &Purpose<'_>, before: Option<&AgentId>) -> AgentId {
        let asked = purpose.asked.and_then(|asked| asked.agent.as_ref());
        let society = &self.0.runs.workshop().society;
        let before = before.filter(|agent| society.get(agent).is_some());
        asked.or(before).unwrap_or(purpose.agent).clone()
    }

    /// What a session has that says this itself, once all of it is known to be good.
    fn set_up(&self, key: &SessionKey, own: Option<Own>, agent: &AgentId, is_known: bool) -> Result<Body, String> {
        let (endpoint, base) = self.ready(own.as_ref(), agent)?;
        let facts = facts(key, own.as_ref(), agent, is_known);
        let reach = self.0.runs.workshop().toolbox.reach();
        let body = Body::new((facts, reach), own, endpoint, self.idle_of(&base));
        // Its instance of the agent, with its model client.
        body.agent(&base, self.0.runs.workshop().society.materials())?;
        Ok(body)
    }

    /// What a session has that says this itself from now on, once all of it is known to be good.
    fn set_up_anew(&self, before: &Body, own: Own, agent: &AgentId) -> Result<Body, String> {
        let (endpoint, base) = self.ready(Some(&own), agent)?;
        // The same place with the same key: what is connected there goes on.
        let is_as_before = before.own.as_ref().is_some_and(|old| old.has_endpoint_of(&own));
        let endpoint = if is_as_before { before.endpoint.clone() } else { endpoint };
        let body = before.changed(facts(before.key(), Some(&own), agent, true), own, endpoint);
        body.set_idle(self.idle_of(&base));
        body.agent(&base, self.0.runs.workshop().society.materials())?;
        Ok(body)
    }

    /// Checks what a session says itself: its endpoint, its agent, its model.
    pub(super) fn ready(&self, own: Option<&Own>, agent: &AgentId) -> Result<(Option<Endpoint>, Arc<Agent>), String> {
        let workshop = self.0.runs.workshop();
        let base = workshop.society.get(agent);
        let base = base.ok_or_else(|| format!("there is no agent {agent:?}; `quell agents` lists them"))?;
        let Some(own) = own else { return Ok((None, base)) };
        let reach = workshop.toolbox.reach();
        let endpoint = own.endpoint().map(|(url, key)| workshop.mcp.endpoint(url, key, own.mcp_reach(reach)));
        let endpoint = endpoint.transpose().map_err(|bad| format!("mcpUrl: {}", bad.problem))?;
        let config = own.over(&base.config)?;
        let materials = workshop.society.materials();
        if let Some(unknown) = config.mcp.iter().flatten().find(|name| !materials.servers.contains(*name)) {
            return Err(format!("mcpServers names {unknown:?}, which is not configured; add [mcp.{unknown}]"));
        }
        let access = own.access(reach);
        if access.is_empty() {
            materials.models.resolve(&config.model).map_err(|unknown| unknown.to_string())?;
        } else {
            materials.models.resolve_with(&config.model, &access).map_err(|bad| bad.to_string())?;
        }
        Ok((endpoint, base))
    }

    /// Stores what a session says itself.
    async fn keep(&self, body: &Body, purpose: &Purpose<'_>, is_changed: bool) -> Result<Got, NotMade> {
        let Some(own) = &body.own else { return Ok(Got::Known) };
        let clock = self.0.runs.clock();
        let Some(By { principal, .. }) = purpose.by.clone() else { return Ok(Got::Known) };
        let who = (clock.rfc3339(clock.now()), principal, purpose.access(is_changed));
        let setup = own.setup(body.key(), body.facts.agent.clone(), who, &self.0.vault);
        let setup = setup.map_err(NotMade::Configuration)?;
        // waits: for the database, in a task that no stop ends: a write that is handed over is done.
        Ok(match self.0.runs.store().set_up_session(setup).await? {
            SetUp::New => Got::Created,
            SetUp::Known => Got::Known,
            SetUp::NotYours => return Err(not_yours()),
        })
    }
}

/// What hooks are told of a session that is not in memory; none when it says nothing of itself that can be read.
#[must_use]
pub fn facts_of(stored: &StoredSession) -> Option<SessionFacts> {
    let own = Own::stored_without_keys(stored).ok().flatten()?;
    Some(facts(&stored.key, Some(&own), &stored.agent, true))
}

fn facts(key: &SessionKey, own: Option<&Own>, agent: &AgentId, is_known: bool) -> SessionFacts {
    let parts = own.and_then(Own::parts);
    SessionFacts {
        key: key.clone(),
        agent: agent.clone(),
        user_id: parts.map(|(user, _, _)| user.to_owned()),
        chat_id: parts.map(|(_, chat, _)| chat.to_owned()),
        provider: parts.map(|(_, _, provider)| provider.to_owned()),
        revived: Some(is_known),
    }
}

fn not_yours() -> NotMade {
    NotMade::Forbidden("you did not begin this session; an admin token can configure it otherwise".to_owned())
}
