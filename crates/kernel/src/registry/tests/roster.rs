//! Agents that come and go: nobody slips in behind a dismissal, and a stop of a subtree covers all of it in one step.

use std::collections::BTreeSet;

use quell_protocol::AgentId;
use quell_protocol::api::{ComputeStatus, OnBusy};

use super::{admin, agent, ask, at, begin, finish, let_in, new_run, principal, registry, run_id, session, start, who};
use crate::queue::Refusal;
use crate::registry::{Accepted, NewRun, NotBorn, Phase, Registry, StopScope};
use crate::run::RunState;

fn of(agent_id: &str, id: &str) -> NewRun {
    NewRun { agent: agent(agent_id), ..new_run(id, id, OnBusy::Queue) }
}

fn agents(names: &[&str]) -> BTreeSet<AgentId> {
    names.iter().map(|name| agent(name)).collect()
}

fn refusal(registry: &mut Registry, run: NewRun) -> Refusal {
    registry.accept(run, at(0)).expect_err("refused")
}

#[test]
fn an_agent_that_is_not_enrolled_takes_no_run() {
    let mut registry = registry();
    let stranger = || of("stranger", "r1");
    assert_eq!(refusal(&mut registry, stranger()), Refusal::NoAgent { agent: agent("stranger") });
    registry.enroll(agent("stranger"));
    assert!(registry.accept(stranger(), at(0)).is_ok());
}

#[test]
fn an_agent_with_a_run_that_is_not_over_is_not_dismissed_and_goes_on_taking_runs() {
    let mut registry = registry();
    // Not even durable yet: it will be.
    registry.accept(of("writer", "young"), at(0)).expect("accepted");
    assert_eq!(registry.dismiss(&agents(&["writer", "scout"])), Err(vec![run_id("young")]));
    assert!(registry.accept(of("scout", "next"), at(0)).is_ok(), "nothing has changed");
    begin(&mut registry, of("writer", "running"));
    let busy = registry.dismiss(&agents(&["writer", "scout"]));
    assert_eq!(busy, Err(vec![run_id("next"), run_id("young"), run_id("running")]));
    registry.withdraw(&run_id("young"));
    registry.withdraw(&run_id("next"));
    finish(&mut registry, "running");
    assert_eq!(registry.dismiss(&agents(&["writer", "scout"])), Ok(()));
    assert_eq!(refusal(&mut registry, of("writer", "late")), Refusal::NoAgent { agent: agent("writer") });
    // Who asks for a run that is known is told of it, whatever became of its agent.
    assert_eq!(registry.accept(of("writer", "running"), at(0)), Ok(Accepted::Known));
}

#[test]
fn a_dismissal_by_force_stops_what_is_there_in_the_step_in_which_it_lets_nothing_in() {
    let mut registry = registry();
    begin(&mut registry, of("writer", "running"));
    let_in(&mut registry, NewRun { session: session("running"), ..of("writer", "queued") });
    begin(&mut registry, of("main", "other"));
    let stopped = registry.dismiss_by_force(&agents(&["writer"]), &admin(), &ask(), at(1));
    let aborted: BTreeSet<_> = stopped.aborted.iter().cloned().collect();
    assert_eq!(aborted, BTreeSet::from([run_id("running"), run_id("queued")]));
    assert_eq!(stopped.withdrawn, [(run_id("queued"), "text of queued".to_owned())]);
    assert_eq!(registry.get(&run_id("other")).map(|entry| &entry.state), Some(&RunState::Running));
    assert_eq!(refusal(&mut registry, of("writer", "late")), Refusal::NoAgent { agent: agent("writer") });
    registry.strike(&agents(&["writer"]));
    assert_eq!(registry.compute_status(&agent("writer")), ComputeStatus::Stopping, "one that still stops is counted");
    finish(&mut registry, "running");
    registry.strike(&agents(&["writer"]));
    assert_eq!(registry.changes_of_agent(&agent("writer")), 0, "nothing is kept of it");
    assert!(start(&mut registry, &session("running")).is_none());
}

#[test]
fn a_run_of_a_dismissed_agent_starts_no_sub_run_of_it() {
    let mut registry = registry();
    begin(&mut registry, of("main", "top"));
    registry.dismiss_by_force(&agents(&["scout"]), &admin(), &ask(), at(1));
    let child = NewRun { parent: Some(run_id("top")), ..of("scout", "child") };
    assert_eq!(refusal(&mut registry, child), Refusal::NoAgent { agent: agent("scout") });
    registry.enroll(agent("scout"));
    let child = NewRun { parent: Some(run_id("gone")), ..of("scout", "child") };
    assert_eq!(refusal(&mut registry, child), NotBorn::ParentOver.into());
}

#[test]
fn a_stop_of_several_agents_covers_every_phase_and_only_what_the_caller_may_stop() {
    let mut registry = registry();
    begin(&mut registry, of("writer", "waiting"));
    registry.set_phase(&run_id("waiting"), Phase::Waiting);
    begin(&mut registry, of("scout", "processing"));
    let_in(&mut registry, of("scout", "queued"));
    begin(&mut registry, of("main", "above"));
    begin(&mut registry, NewRun { principal: principal("bob"), ..of("scout", "foreign") });
    begin(&mut registry, NewRun { parent: Some(run_id("waiting")), ..of("main", "below") });
    let scope = StopScope::Agents { ids: agents(&["writer", "scout"]) };
    let stopped = registry.stop(&scope, &who("ann"), &ask(), at(1));
    let aborted: BTreeSet<_> = stopped.aborted.iter().map(|id| id.as_str()).collect();
    assert_eq!(aborted, BTreeSet::from(["waiting", "processing", "queued", "below"]), "sub-runs of other agents too");
    let again = registry.stop(&scope, &who("ann"), &ask(), at(1));
    assert!(again.aborted.is_empty());
    assert!(registry.is_enrolled(&agent("writer")), "a stop is no dismissal");
}
