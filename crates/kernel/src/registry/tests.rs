//! The registry, held against a naive model under random use, and its promises one by one.

mod conversation;
mod driver;
mod model;
mod promises;
mod roster;
mod status;

use std::time::Duration;

use quell_protocol::api::OnBusy;
use quell_protocol::{AgentId, Principal, RunId, SessionKey, StopReason, Surface};

use super::{Bounds, NewRun, Registry, StopAsk, Who};
use crate::run::{Input, Outcome, Push};
use crate::time::{Moment, StopTimes};

/// How many runs may wait, stand below each other, and be started by one here.
const BOUNDS: Bounds = Bounds { queued: 3, depth: 2, children: 2 };

/// The agents that take runs here.
const AGENTS: [&str; 3] = ["main", "writer", "scout"];

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

fn run_id(text: &str) -> RunId {
    RunId::parse(text).expect("a run id")
}

fn session(text: &str) -> SessionKey {
    SessionKey::parse(text).expect("a session key")
}

fn agent(text: &str) -> AgentId {
    AgentId::parse(text).expect("an agent id")
}

fn principal(text: &str) -> Principal {
    Principal::parse(text).expect("a principal")
}

fn who(name: &str) -> Who {
    Who { principal: principal(name), admin: false }
}

fn admin() -> Who {
    Who { principal: principal("root"), admin: true }
}

fn ask() -> StopAsk {
    StopAsk { push: Push::Gentle, reason: StopReason::User, surface: Surface::Http }
}

/// A run of ann's with the agent `main`.
fn new_run(id: &str, key: &str, on_busy: OnBusy) -> NewRun {
    NewRun {
        id: run_id(id),
        session: session(key),
        agent: agent("main"),
        principal: principal("ann"),
        admin: false,
        surface: Surface::Http,
        parent: None,
        text: format!("text of {id}"),
        on_busy,
        scope: None,
        expires_at: at(1_000_000),
    }
}

fn registry() -> Registry {
    let mut registry = Registry::new(StopTimes::default(), BOUNDS);
    AGENTS.map(agent).into_iter().for_each(|agent| registry.enroll(agent));
    registry
}

/// Accepts a run durably.
fn let_in(registry: &mut Registry, run: NewRun) {
    let id = run.id.clone();
    registry.accept(run, at(0)).expect("accepted");
    registry.durable(&id, at(0));
}

/// Accepts a run durably and starts what is due in its session.
fn begin(registry: &mut Registry, run: NewRun) {
    let key = run.session.clone();
    let_in(registry, run);
    start(registry, &key);
}

fn start(registry: &mut Registry, key: &SessionKey) -> Option<RunId> {
    let id = registry.due(key)?.run.id.clone();
    registry.input(&id, Input::Start, at(0));
    Some(id)
}

/// A running or ending run comes to its end, everything paid.
fn finish(registry: &mut Registry, id: &str) {
    for input in [Input::Returned(Outcome::Completed), Input::Released, Input::Recorded] {
        registry.input(&run_id(id), input, at(0));
    }
}
