//! Tests of enrolling and unenrolling: no run is accepted after it, and a stop of several agents is one step.

use std::collections::BTreeSet;

use quell_protocol::AgentId;
use quell_protocol::api::{ComputeStatus, OnBusy};

use super::{
    accept_and_start, accept_durable, admin, agent, ask, at, finish_run, new_run, principal, registry, run_id, session,
    start_due, who,
};
use crate::admission::{AdmissionError, SubRunError};
use crate::registry::{AcceptOutcome, NewRun, RunPhase, RunRegistry, StopScope};
use crate::run::RunState;

fn run_of_agent(agent_id: &str, id: &str) -> NewRun {
    NewRun { agent: agent(agent_id), ..new_run(id, id, OnBusy::Queue) }
}

fn agents(names: &[&str]) -> BTreeSet<AgentId> {
    names.iter().map(|name| agent(name)).collect()
}

fn refusal(registry: &mut RunRegistry, run: NewRun) -> AdmissionError {
    registry.accept(run, at(0)).expect_err("refused")
}

#[test]
fn an_agent_that_is_not_enrolled_takes_no_run() {
    let mut registry = registry();
    let stranger = || run_of_agent("stranger", "r1");
    assert_eq!(refusal(&mut registry, stranger()), AdmissionError::NoAgent { agent: agent("stranger") });
    registry.enroll(agent("stranger"));
    assert!(registry.accept(stranger(), at(0)).is_ok());
}

#[test]
fn an_agent_with_a_run_that_is_not_over_is_not_dismissed_and_goes_on_taking_runs() {
    let mut registry = registry();
    // Not durable yet, but accepted.
    registry.accept(run_of_agent("writer", "young"), at(0)).expect("accepted");
    assert_eq!(registry.unenroll(&agents(&["writer", "scout"])), Err(vec![run_id("young")]));
    assert!(registry.accept(run_of_agent("scout", "next"), at(0)).is_ok(), "nothing has changed");
    accept_and_start(&mut registry, run_of_agent("writer", "running"));
    let busy = registry.unenroll(&agents(&["writer", "scout"]));
    assert_eq!(busy, Err(vec![run_id("next"), run_id("young"), run_id("running")]));
    registry.rollback_acceptance(&run_id("young"));
    registry.rollback_acceptance(&run_id("next"));
    finish_run(&mut registry, "running");
    assert_eq!(registry.unenroll(&agents(&["writer", "scout"])), Ok(()));
    assert_eq!(
        refusal(&mut registry, run_of_agent("writer", "late")),
        AdmissionError::NoAgent { agent: agent("writer") }
    );
    // A repeated request of a known run is answered as known, even if its agent is gone.
    assert_eq!(registry.accept(run_of_agent("writer", "running"), at(0)), Ok(AcceptOutcome::Known));
}

#[test]
fn a_dismissal_by_force_stops_what_is_there_in_the_step_in_which_it_lets_nothing_in() {
    let mut registry = registry();
    accept_and_start(&mut registry, run_of_agent("writer", "running"));
    accept_durable(&mut registry, NewRun { session: session("running"), ..run_of_agent("writer", "queued") });
    accept_and_start(&mut registry, run_of_agent("main", "other"));
    let stopped = registry.unenroll_and_stop(&agents(&["writer"]), &admin(), &ask(), at(1));
    let aborted: BTreeSet<_> = stopped.aborted.iter().cloned().collect();
    assert_eq!(aborted, BTreeSet::from([run_id("running"), run_id("queued")]));
    assert_eq!(stopped.withdrawn, [(run_id("queued"), "text of queued".to_owned())]);
    assert_eq!(registry.get(&run_id("other")).map(|entry| &entry.state), Some(&RunState::Running));
    assert_eq!(
        refusal(&mut registry, run_of_agent("writer", "late")),
        AdmissionError::NoAgent { agent: agent("writer") }
    );
    registry.forget_unenrolled(&agents(&["writer"]));
    assert_eq!(
        registry.compute_status(&agent("writer")),
        ComputeStatus::Stopping,
        "a run that is still ending is counted"
    );
    finish_run(&mut registry, "running");
    registry.forget_unenrolled(&agents(&["writer"]));
    assert_eq!(registry.agent_change_count(&agent("writer")), 0, "its counters are removed");
    assert!(start_due(&mut registry, &session("running")).is_none());
}

#[test]
fn a_run_of_a_dismissed_agent_starts_no_sub_run_of_it() {
    let mut registry = registry();
    accept_and_start(&mut registry, run_of_agent("main", "top"));
    registry.unenroll_and_stop(&agents(&["scout"]), &admin(), &ask(), at(1));
    let child = NewRun { parent: Some(run_id("top")), ..run_of_agent("scout", "child") };
    assert_eq!(refusal(&mut registry, child), AdmissionError::NoAgent { agent: agent("scout") });
    registry.enroll(agent("scout"));
    let child = NewRun { parent: Some(run_id("gone")), ..run_of_agent("scout", "child") };
    assert_eq!(refusal(&mut registry, child), SubRunError::ParentOver.into());
}

#[test]
fn a_stop_of_several_agents_covers_every_phase_and_only_what_the_caller_may_stop() {
    let mut registry = registry();
    accept_and_start(&mut registry, run_of_agent("writer", "waiting"));
    registry.set_phase(&run_id("waiting"), RunPhase::Waiting);
    accept_and_start(&mut registry, run_of_agent("scout", "processing"));
    accept_durable(&mut registry, run_of_agent("scout", "queued"));
    accept_and_start(&mut registry, run_of_agent("main", "above"));
    accept_and_start(&mut registry, NewRun { principal: principal("bob"), ..run_of_agent("scout", "foreign") });
    accept_and_start(&mut registry, NewRun { parent: Some(run_id("waiting")), ..run_of_agent("main", "below") });
    let scope = StopScope::Agents { ids: agents(&["writer", "scout"]) };
    let stopped = registry.stop(&scope, &who("ann"), &ask(), at(1));
    let aborted: BTreeSet<_> = stopped.aborted.iter().map(|id| id.as_str()).collect();
    assert_eq!(aborted, BTreeSet::from(["waiting", "processing", "queued", "below"]), "sub-runs of other agents too");
    let again = registry.stop(&scope, &who("ann"), &ask(), at(1));
    assert!(again.aborted.is_empty());
    assert!(registry.enrolled.contains(&agent("writer")), "a stop does not unenroll");
}
