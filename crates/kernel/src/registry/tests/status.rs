//! Tests of an agent's compute status and of the stop of its model calls, in any population of runs (B10 in
//! `docs/design/requirements.md`).

use proptest::prelude::*;
use quell_protocol::RunId;
use quell_protocol::api::{ComputeStatus, OnBusy};

use super::{
    accept_and_start, accept_durable, agent, ask, at, finish_run, new_run, principal, registry, run_id, session,
    start_due, who,
};
use crate::registry::{AgentRunFilter, NewRun, RunPhase, RunRegistry, StopOutcome, StopScope};
use crate::run::{RunState, RunStateInput, WorkOutcome};

/// Stage of a run when the stop comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PopulationStage {
    Queued,
    WaitingLlm,
    Processing,
    Ending,
    Ended,
}

/// A run of the population, each in a session of its own.
#[derive(Debug, Clone, Copy)]
struct PopulationRun {
    stage: PopulationStage,
    agent: &'static str,
    owner: &'static str,
}

impl PopulationRun {
    /// True when a stop of the model calls of `main` by `ann` covers it.
    fn is_stop_target(self) -> bool {
        self.stage == PopulationStage::WaitingLlm && self.agent == "main" && self.owner == "ann"
    }
}

fn member() -> impl Strategy<Value = PopulationRun> {
    let stages = [
        PopulationStage::Queued,
        PopulationStage::WaitingLlm,
        PopulationStage::Processing,
        PopulationStage::Ending,
        PopulationStage::Ended,
    ];
    let (agents, owners) = (["main", "writer"], ["ann", "bob"]);
    (
        prop::sample::select(stages.to_vec()),
        prop::sample::select(agents.to_vec()),
        prop::sample::select(owners.to_vec()),
    )
        .prop_map(|(stage, agent, owner)| PopulationRun { stage, agent, owner })
}

fn population() -> impl Strategy<Value = Vec<PopulationRun>> {
    prop::collection::vec(member(), 0..12)
}

fn run_name(number: usize) -> String {
    format!("r{number}")
}

fn populate(members: &[PopulationRun]) -> RunRegistry {
    let mut registry = registry();
    for (number, member) in members.iter().enumerate() {
        let name = run_name(number);
        let plain = new_run(&name, &name, OnBusy::Queue);
        let run = NewRun { agent: agent(member.agent), principal: principal(member.owner), ..plain };
        if member.stage == PopulationStage::Queued {
            accept_durable(&mut registry, run);
            continue;
        }
        accept_and_start(&mut registry, run);
        match member.stage {
            PopulationStage::WaitingLlm => registry.set_phase(&run_id(&name), RunPhase::Waiting),
            PopulationStage::Ending => {
                registry.apply_input(&run_id(&name), RunStateInput::WorkReturned(WorkOutcome::Completed), at(0));
            }
            PopulationStage::Ended => finish_run(&mut registry, &name),
            PopulationStage::Queued | PopulationStage::Processing => {}
        }
    }
    registry
}

fn stop_waiting_runs(registry: &mut RunRegistry) -> StopOutcome {
    let scope = StopScope::Agent { id: agent("main"), phase: AgentRunFilter::WaitingLlm };
    registry.stop(&scope, &who("ann"), &ask(), at(0))
}

fn states(registry: &RunRegistry, count: usize) -> Vec<RunState> {
    (0..count).filter_map(|number| registry.get(&run_id(&run_name(number)))).map(|entry| entry.state.clone()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn b10_button_is_visible_iff_a_run_waits_for_the_model(members in population()) {
        let registry = populate(&members);
        for agent_id in ["main", "writer"] {
            let of = |stage: PopulationStage| members.iter().any(|member| member.agent == agent_id && member.stage == stage);
            let expected = match (of(PopulationStage::WaitingLlm), of(PopulationStage::Processing), of(PopulationStage::Ending)) {
                (true, _, _) => ComputeStatus::WaitingLlm,
                (false, true, _) => ComputeStatus::Processing,
                (false, false, true) => ComputeStatus::Stopping,
                (false, false, false) => ComputeStatus::Idle,
            };
            prop_assert_eq!(registry.compute_status(&agent(agent_id)), expected);
        }
    }

    #[test]
    fn b10_only_the_waiting_runs_of_the_agent_are_stopped(members in population()) {
        let mut registry = populate(&members);
        let before = states(&registry, members.len());
        let stopped = stop_waiting_runs(&mut registry);
        let after = states(&registry, members.len());
        for (number, member) in members.iter().enumerate() {
            let is_target = member.is_stop_target();
            prop_assert_eq!(stopped.aborted.contains(&run_id(&run_name(number))), is_target);
            prop_assert_eq!(before[number] != after[number], is_target);
        }
    }

    #[test]
    fn b10_status_after_abort_is_idle(waiting in 1_usize..8) {
        let calls = vec![PopulationRun { stage: PopulationStage::WaitingLlm, agent: "main", owner: "ann" }; waiting];
        let mut registry = populate(&calls);
        stop_waiting_runs(&mut registry);
        prop_assert_eq!(registry.compute_status(&agent("main")), ComputeStatus::Stopping);
        (0..waiting).for_each(|number| finish_run(&mut registry, &run_name(number)));
        prop_assert_eq!(registry.compute_status(&agent("main")), ComputeStatus::Idle);
    }

    #[test]
    fn b10_next_message_starts_after_abort(forgotten in any::<bool>()) {
        let mut registry = populate(&[PopulationRun { stage: PopulationStage::WaitingLlm, agent: "main", owner: "ann" }]);
        let key = session(&run_name(0));
        accept_durable(&mut registry, new_run("queued", &run_name(0), OnBusy::Queue));
        stop_waiting_runs(&mut registry);
        prop_assert!(registry.due_run(&key).is_none(), "the stopped run is not over yet");
        finish_run(&mut registry, &run_name(0));
        if forgotten {
            prop_assert!(!registry.forget(&run_id(&run_name(0)), |_| false).is_empty());
        }
        prop_assert_eq!(start_due(&mut registry, &key), Some(run_id("queued")));
        finish_run(&mut registry, "queued");
        accept_durable(&mut registry, new_run("next", &run_name(0), OnBusy::Reject));
        prop_assert_eq!(start_due(&mut registry, &key), Some(run_id("next")));
    }

    #[test]
    fn b10_repeat_is_idempotent(members in population(), repeats in 1_usize..4) {
        let mut registry = populate(&members);
        stop_waiting_runs(&mut registry);
        let after = states(&registry, members.len());
        for _ in 0..repeats {
            prop_assert_eq!(stop_waiting_runs(&mut registry), StopOutcome::default());
            prop_assert_eq!(&states(&registry, members.len()), &after);
        }
    }

    #[test]
    fn b10_unknown_agent_or_run_changes_nothing(members in population()) {
        let mut registry = populate(&members);
        let before = states(&registry, members.len());
        let agent_scope = |phase| StopScope::Agent { id: agent("nobody"), phase };
        let run_scope = StopScope::run(run_id("nothing"));
        for scope in [agent_scope(AgentRunFilter::WaitingLlm), agent_scope(AgentRunFilter::Any), run_scope] {
            prop_assert_eq!(registry.stop(&scope, &who("ann"), &ask(), at(0)), StopOutcome::default());
        }
        prop_assert_eq!(registry.compute_status(&agent("nobody")), ComputeStatus::Idle);
        prop_assert_eq!(states(&registry, members.len()), before);
    }

    #[test]
    fn b10_a_call_that_ended_a_moment_earlier_keeps_its_verdict(members in population()) {
        let mut registry = populate(&members);
        let calls: Vec<RunId> = registry.iter().filter(|entry| entry.phase == RunPhase::Waiting)
            .map(|entry| entry.run.id.clone()).collect();
        for id in &calls {
            registry.apply_input(id, RunStateInput::WorkReturned(WorkOutcome::Completed), at(0));
        }
        prop_assert_eq!(stop_waiting_runs(&mut registry), StopOutcome::default());
    }
}
