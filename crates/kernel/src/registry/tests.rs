//! Tests of the registry: examples of its guarantees, and random operations compared with a naive model.

mod conversation;
mod driver;
mod enrolled;
mod examples;
mod model;
mod status;

use std::time::Duration;

use quell_protocol::api::OnBusy;
use quell_protocol::{AgentId, Principal, RunId, SessionKey, StopReason, Surface};

use super::{AcceptOutcome, NewRun, RunLimits, RunRegistry, StopRequest, StopRequester};
use crate::run::{RunStateInput, StopLevel, WorkOutcome};
use crate::time::{Moment, StopTimeouts};

/// Small limits, so that tests reach them.
const LIMITS: RunLimits = RunLimits { max_queued: 3, max_depth: 2, max_children: 2, max_client_runs: 2 };

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

fn who(name: &str) -> StopRequester {
    StopRequester { principal: principal(name), admin: false }
}

fn admin() -> StopRequester {
    StopRequester { principal: principal("root"), admin: true }
}

fn ask() -> StopRequest {
    StopRequest { level: StopLevel::Gentle, reason: StopReason::User, surface: Surface::Http }
}

/// A run with the principal `ann` and the agent `main`.
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
        bypasses_queue: false,
        interruption_scope: None,
        expires_at: at(1_000_000),
    }
}

fn registry() -> RunRegistry {
    let mut registry = RunRegistry::new(StopTimeouts::default(), LIMITS);
    AGENTS.map(agent).into_iter().for_each(|agent| registry.enroll(agent));
    registry
}

/// Accepts a run durably. Returns the runs that it supersedes.
fn accept_durable(registry: &mut RunRegistry, run: NewRun) -> Vec<RunId> {
    let id = run.id.clone();
    assert!(matches!(registry.accept(run, at(0)), Ok(AcceptOutcome::New(_))), "{id}");
    registry.commit_acceptance(&id, at(0)).aborted
}

/// Accepts a run durably and starts the due run of its session.
fn accept_and_start(registry: &mut RunRegistry, run: NewRun) {
    let key = run.session.clone();
    accept_durable(registry, run);
    start_due(registry, &key);
}

fn start_due(registry: &mut RunRegistry, key: &SessionKey) -> Option<RunId> {
    let id = registry.due_run(key)?.run.id.clone();
    registry.apply_input(&id, RunStateInput::Start, at(0));
    Some(id)
}

/// Takes a running or ending run to its end, with all debts paid.
fn finish_run(registry: &mut RunRegistry, id: &str) {
    for input in [RunStateInput::WorkReturned(WorkOutcome::Completed), RunStateInput::Released, RunStateInput::Recorded]
    {
        registry.apply_input(&run_id(id), input, at(0));
    }
    assert!(registry.get(&run_id(id)).is_some_and(|entry| entry.state.is_ended()), "{id}");
}
