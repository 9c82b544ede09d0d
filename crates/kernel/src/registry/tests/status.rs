//! Row B10 as far as the registry decides it: an agent's status and the stop of its model calls, in any population of runs.

use proptest::prelude::*;
use quell_protocol::RunId;
use quell_protocol::api::{ComputeStatus, OnBusy};

use super::{agent, ask, at, begin, finish, let_in, new_run, principal, registry, run_id, session, start, who};
use crate::registry::{AgentPhase, NewRun, Phase, Registry, StopScope, Stopped};
use crate::run::{Input, Outcome, RunState};

/// Where a run stands when the stop comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Queued,
    WaitingLlm,
    Processing,
    Ending,
    Ended,
}

/// A run of the population, in a session of its own.
#[derive(Debug, Clone, Copy)]
struct Member {
    stage: Stage,
    agent: &'static str,
    owner: &'static str,
}

impl Member {
    /// True when ann stops it by stopping the model calls of `main`.
    fn is_meant(self) -> bool {
        self.stage == Stage::WaitingLlm && self.agent == "main" && self.owner == "ann"
    }
}

fn member() -> impl Strategy<Value = Member> {
    let stages = [Stage::Queued, Stage::WaitingLlm, Stage::Processing, Stage::Ending, Stage::Ended];
    let (agents, owners) = (["main", "writer"], ["ann", "bob"]);
    (
        prop::sample::select(stages.to_vec()),
        prop::sample::select(agents.to_vec()),
        prop::sample::select(owners.to_vec()),
    )
        .prop_map(|(stage, agent, owner)| Member { stage, agent, owner })
}

fn population() -> impl Strategy<Value = Vec<Member>> {
    prop::collection::vec(member(), 0..12)
}

fn name(number: usize) -> String {
    format!("r{number}")
}

fn populate(members: &[Member]) -> Registry {
    let mut registry = registry();
    for (number, member) in members.iter().enumerate() {
        let name = name(number);
        let plain = new_run(&name, &name, OnBusy::Queue);
        let run = NewRun { agent: agent(member.agent), principal: principal(member.owner), ..plain };
        if member.stage == Stage::Queued {
            let_in(&mut registry, run);
            continue;
        }
        begin(&mut registry, run);
        match member.stage {
            Stage::WaitingLlm => registry.set_phase(&run_id(&name), Phase::Waiting),
            Stage::Ending => {
                registry.input(&run_id(&name), Input::Returned(Outcome::Completed), at(0));
            }
            Stage::Ended => finish(&mut registry, &name),
            Stage::Queued | Stage::Processing => {}
        }
    }
    registry
}

fn stop_calls(registry: &mut Registry) -> Stopped {
    let scope = StopScope::Agent { id: agent("main"), phase: AgentPhase::WaitingLlm };
    registry.stop(&scope, &who("ann"), &ask(), at(0))
}

fn states(registry: &Registry, count: usize) -> Vec<RunState> {
    (0..count).filter_map(|number| registry.get(&run_id(&name(number)))).map(|entry| entry.state.clone()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn b10_button_is_visible_iff_a_run_waits_for_the_model(members in population()) {
        let registry = populate(&members);
        for agent_id in ["main", "writer"] {
            let of = |stage: Stage| members.iter().any(|member| member.agent == agent_id && member.stage == stage);
            let wanted = match (of(Stage::WaitingLlm), of(Stage::Processing), of(Stage::Ending)) {
                (true, _, _) => ComputeStatus::WaitingLlm,
                (false, true, _) => ComputeStatus::Processing,
                (false, false, true) => ComputeStatus::Stopping,
                (false, false, false) => ComputeStatus::Idle,
            };
            prop_assert_eq!(registry.compute_status(&agent(agent_id)), wanted);
        }
    }

    #[test]
    fn b10_only_the_waiting_runs_of_the_agent_are_stopped(members in population()) {
        let mut registry = populate(&members);
        let before = states(&registry, members.len());
        let stopped = stop_calls(&mut registry);
        let after = states(&registry, members.len());
        for (number, member) in members.iter().enumerate() {
            let meant = member.is_meant();
            prop_assert_eq!(stopped.aborted.contains(&run_id(&name(number))), meant);
            prop_assert_eq!(before[number] != after[number], meant);
        }
    }

    #[test]
    fn b10_status_after_abort_is_idle(waiting in 1_usize..8) {
        let calls = vec![Member { stage: Stage::WaitingLlm, agent: "main", owner: "ann" }; waiting];
        let mut registry = populate(&calls);
        stop_calls(&mut registry);
        prop_assert_eq!(registry.compute_status(&agent("main")), ComputeStatus::Stopping);
        (0..waiting).for_each(|number| finish(&mut registry, &name(number)));
        prop_assert_eq!(registry.compute_status(&agent("main")), ComputeStatus::Idle);
    }

    #[test]
    fn b10_next_message_starts_after_abort(forgotten in any::<bool>()) {
        let mut registry = populate(&[Member { stage: Stage::WaitingLlm, agent: "main", owner: "ann" }]);
        let key = session(&name(0));
        let_in(&mut registry, new_run("queued", &name(0), OnBusy::Queue));
        stop_calls(&mut registry);
        prop_assert!(registry.due(&key).is_none(), "the stopped run is not over yet");
        finish(&mut registry, &name(0));
        if forgotten {
            prop_assert!(!registry.forget(&run_id(&name(0)), |_| false).is_empty());
        }
        prop_assert_eq!(start(&mut registry, &key), Some(run_id("queued")));
        finish(&mut registry, "queued");
        let_in(&mut registry, new_run("next", &name(0), OnBusy::Reject));
        prop_assert_eq!(start(&mut registry, &key), Some(run_id("next")));
    }

    #[test]
    fn b10_repeat_is_idempotent(members in population(), repeats in 1_usize..4) {
        let mut registry = populate(&members);
        stop_calls(&mut registry);
        let after = states(&registry, members.len());
        for _ in 0..repeats {
            prop_assert_eq!(stop_calls(&mut registry), Stopped::default());
            prop_assert_eq!(&states(&registry, members.len()), &after);
        }
    }

    #[test]
    fn b10_unknown_agent_or_run_changes_nothing(members in population()) {
        let mut registry = populate(&members);
        let before = states(&registry, members.len());
        let agent_scope = |phase| StopScope::Agent { id: agent("nobody"), phase };
        let run_scope = StopScope::Run { id: run_id("nothing"), session: None };
        for scope in [agent_scope(AgentPhase::WaitingLlm), agent_scope(AgentPhase::Any), run_scope] {
            prop_assert_eq!(registry.stop(&scope, &who("ann"), &ask(), at(0)), Stopped::default());
        }
        prop_assert_eq!(registry.compute_status(&agent("nobody")), ComputeStatus::Idle);
        prop_assert_eq!(states(&registry, members.len()), before);
    }

    #[test]
    fn b10_a_call_that_ended_a_moment_earlier_keeps_its_verdict(members in population()) {
        let mut registry = populate(&members);
        let calls: Vec<RunId> = registry.iter().filter(|entry| entry.phase == Phase::Waiting)
            .map(|entry| entry.run.id.clone()).collect();
        for id in &calls {
            registry.input(id, Input::Returned(Outcome::Completed), at(0));
        }
        prop_assert_eq!(stop_calls(&mut registry), Stopped::default());
    }
}
