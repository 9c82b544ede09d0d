//! Property tests with random operations on registry and model.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use quell_protocol::api::OnBusy;
use quell_protocol::{AgentId, InterruptionScope, RunId, SessionKey, StopReason, Surface, Verdict};

use super::model::{ModelRun, RegistryModel};
use super::{AGENTS, LIMITS, agent, at, principal, registry, run_id, session};
use crate::registry::{
    AdmissionGate, AgentRunFilter, BackgroundPolicy, NewRun, QueuedPolicy, RunPhase, RunRegistry, StopOutcome,
    StopRequest, StopRequester, StopScope,
};
use crate::run::{RunEffect, RunState, RunStateInput, StopLevel, WorkOutcome};
use crate::time::Moment;

const RUNS: [&str; 8] = ["r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7"];
/// One session that belongs to no chat, and two of the channel `irc`.
const SESSIONS: [&str; 3] = ["s0", "irc_room_ann", "irc_room_bob"];
const PEOPLE: [&str; 2] = ["ann", "bob"];

#[derive(Debug, Clone)]
enum RegistryOp {
    Accept(NewRun),
    Durable(RunId),
    Withdraw(RunId),
    /// Starts the due run of the session.
    Start(SessionKey),
    /// Takes the active run of the session to its end.
    Finish(SessionKey),
    TakeSteers(RunId),
    Phase(RunId, RunPhase),
    Input(RunId, RunStateInput),
    Stop(StopScope, StopRequester, StopRequest),
    Abort(Vec<RunId>, StopLevel),
    Enroll(AgentId),
    Dismiss(BTreeSet<AgentId>),
    DismissByForce(BTreeSet<AgentId>, StopRequester, StopRequest),
    Forget(RunId),
    Gate(AdmissionGate),
    Later(u64),
}

fn id() -> impl Strategy<Value = RunId> {
    prop::sample::select(RUNS.as_slice()).prop_map(run_id)
}

fn key() -> impl Strategy<Value = SessionKey> {
    prop::sample::select(SESSIONS.as_slice()).prop_map(session)
}

fn stop_level() -> impl Strategy<Value = StopLevel> {
    prop_oneof![Just(StopLevel::Gentle), Just(StopLevel::Forced)]
}

fn new_run() -> impl Strategy<Value = NewRun> {
    let on_busy = prop_oneof![
        4 => Just(OnBusy::Queue),
        3 => Just(OnBusy::Steer),
        1 => Just(OnBusy::Interrupt),
        1 => Just(OnBusy::Reject),
    ];
    let names = (prop::sample::select(AGENTS.as_slice()), prop::sample::select(PEOPLE.as_slice()));
    let parent = prop::option::weighted(0.4, id());
    (id(), key(), names, prop::bool::ANY, parent, on_busy, 0_u64..200).prop_map(
        |(id, session, (agent_id, name), admin, parent, on_busy, ends)| NewRun {
            text: format!("text of {id}"),
            id,
            session,
            agent: agent(agent_id),
            principal: principal(name),
            admin,
            surface: Surface::Http,
            parent,
            on_busy,
            bypasses_queue: false,
            interruption_scope: None,
            expires_at: at(ends),
        },
    )
}

fn scope() -> impl Strategy<Value = StopScope> {
    let queued = prop_oneof![Just(QueuedPolicy::Withdraw), Just(QueuedPolicy::Keep)];
    let phase = prop_oneof![Just(AgentRunFilter::WaitingLlm), Just(AgentRunFilter::Any)];
    let background = prop_oneof![Just(BackgroundPolicy::Stop), Just(BackgroundPolicy::Keep)];
    prop_oneof![
        4 => (id(), prop::option::of(key()), prop::option::weighted(0.3, prop::sample::select(AGENTS.as_slice())))
            .prop_map(|(id, session, named)| StopScope::Run { id, session, agent: named.map(agent) }),
        2 => (key(), queued, background)
            .prop_map(|(key, queued, background)| StopScope::Session { key, queued, background }),
        2 => (prop::sample::select(AGENTS.as_slice()), phase)
            .prop_map(|(id, phase)| StopScope::Agent { id: agent(id), phase }),
        1 => agents().prop_map(|ids| StopScope::Agents { ids }),
        1 => key().prop_map(|session| StopScope::Conversation { scope: conversation(), session }),
        1 => prop::sample::select(["irc", "ir", "irc_room"].as_slice())
            .prop_map(|name| StopScope::Channel { name: name.to_owned() }),
        1 => Just(StopScope::Everything),
    ]
}

/// An interruption scope that no run of these tests has.
fn conversation() -> InterruptionScope {
    let [channel, reply_target, sender] = ["irc", "room", "ann"].map(str::to_owned);
    InterruptionScope { channel, reply_target, sender, scope_id: None }
}

fn agents() -> impl Strategy<Value = BTreeSet<AgentId>> {
    prop::sample::subsequence(AGENTS.map(agent).to_vec(), 1..=AGENTS.len()).prop_map(BTreeSet::from_iter)
}

fn stop_requester() -> impl Strategy<Value = (StopRequester, StopRequest)> {
    let requester = (prop::sample::select(PEOPLE.as_slice()), prop::bool::weighted(0.2))
        .prop_map(|(name, admin)| StopRequester { principal: principal(name), admin });
    let request = stop_level().prop_map(|level| StopRequest { level, reason: StopReason::User, surface: Surface::Ws });
    (requester, request)
}

fn stop_op() -> impl Strategy<Value = RegistryOp> {
    (scope(), stop_requester()).prop_map(|(scope, (requester, request))| RegistryOp::Stop(scope, requester, request))
}

fn enrollment_op() -> impl Strategy<Value = RegistryOp> {
    prop_oneof![
        3 => prop::sample::select(AGENTS.map(agent).to_vec()).prop_map(RegistryOp::Enroll),
        1 => agents().prop_map(RegistryOp::Dismiss),
        1 => (agents(), stop_requester()).prop_map(|(agents, (requester, request))| RegistryOp::DismissByForce(agents, requester, request)),
    ]
}

/// Inputs of the engine. Start and abort are operations of their own.
fn input() -> impl Strategy<Value = RunStateInput> {
    prop_oneof![
        Just(RunStateInput::WorkReturned(WorkOutcome::Completed)),
        Just(RunStateInput::GracePassed),
        Just(RunStateInput::HardLimitPassed),
        Just(RunStateInput::Released),
        Just(RunStateInput::Recorded),
        Just(RunStateInput::RecordFailed),
    ]
}

fn op() -> impl Strategy<Value = RegistryOp> {
    let phase = prop_oneof![2 => Just(RunPhase::Waiting), 1 => Just(RunPhase::Processing)];
    let gate =
        prop_oneof![6 => Just(AdmissionGate::Open), 2 => Just(AdmissionGate::Held), 1 => Just(AdmissionGate::Closing)];
    prop_oneof![
        12 => new_run().prop_map(RegistryOp::Accept),
        10 => id().prop_map(RegistryOp::Durable),
        1 => id().prop_map(RegistryOp::Withdraw),
        10 => key().prop_map(RegistryOp::Start),
        3 => key().prop_map(RegistryOp::Finish),
        4 => id().prop_map(RegistryOp::TakeSteers),
        4 => (id(), phase).prop_map(|(id, phase)| RegistryOp::Phase(id, phase)),
        4 => (id(), input()).prop_map(|(id, input)| RegistryOp::Input(id, input)),
        5 => stop_op(),
        1 => (prop::collection::vec(id(), 0..3), stop_level()).prop_map(|(ids, level)| RegistryOp::Abort(ids, level)),
        3 => id().prop_map(RegistryOp::Forget),
        2 => enrollment_op(),
        2 => gate.prop_map(RegistryOp::Gate),
        2 => (0_u64..45).prop_map(RegistryOp::Later),
    ]
}

fn ops() -> impl Strategy<Value = Vec<RegistryOp>> {
    prop::collection::vec(op(), 1..80)
}

/// Effects of an operation that the property tests check.
#[derive(Debug, Default)]
struct OpEffects {
    started: Option<RunId>,
    steered: Vec<RunId>,
    stopped: Option<StopOutcome>,
}

/// Registry and model, which get the same operations.
struct RegistryAndModel {
    real: RunRegistry,
    model: RegistryModel,
    now: Moment,
}

impl RegistryAndModel {
    fn new() -> Self {
        Self { real: registry(), model: RegistryModel::new(LIMITS, AGENTS.map(agent).into()), now: at(0) }
    }

    /// Applies an operation to both and compares their answers.
    fn apply_to_both(&mut self, op: &RegistryOp) -> OpEffects {
        let mut effects = OpEffects::default();
        match op.clone() {
            RegistryOp::Accept(run) => {
                assert_eq!(self.real.accept(run.clone(), self.now), self.model.accept(run, self.now));
            }
            RegistryOp::Durable(id) => {
                let expected = self.model.commit_acceptance(&id, self.now);
                effects.stopped = Some(assert_same_stop(self.real.commit_acceptance(&id, self.now), expected));
            }
            RegistryOp::Withdraw(id) => {
                self.real.rollback_acceptance(&id);
                self.model.rollback_acceptance(&id);
            }
            RegistryOp::Start(key) => {
                effects.started = self.real.due_run(&key).map(|entry| entry.run.id.clone());
                assert_eq!(effects.started, self.model.due_run(&key).map(|run| run.request.id.clone()));
                effects.started.iter().for_each(|id| self.input(id, &RunStateInput::Start));
            }
            RegistryOp::Finish(key) => {
                let active = self.model.live_of_session(&key).into_iter().find(|run| run.state != RunState::Queued);
                let steps = [
                    RunStateInput::WorkReturned(WorkOutcome::Completed),
                    RunStateInput::Released,
                    RunStateInput::Recorded,
                ];
                if let Some(id) = active.map(|run| run.request.id.clone()) {
                    steps.iter().for_each(|input| self.input(&id, input));
                }
            }
            RegistryOp::TakeSteers(id) => {
                let taken = self.real.take_steering_messages(&id);
                assert_eq!(taken, self.model.take_steering_messages(&id));
                effects.steered = taken.into_iter().map(|(id, _)| id).collect();
            }
            RegistryOp::Phase(id, phase) => {
                self.real.set_phase(&id, phase);
                self.model.set_phase(&id, phase);
            }
            RegistryOp::Input(id, input) => self.input(&id, &input),
            RegistryOp::Stop(scope, requester, request) => {
                let expected = self.model.stop(&scope, &requester, &request, self.now);
                effects.stopped =
                    Some(assert_same_stop(self.real.stop(&scope, &requester, &request, self.now), expected));
            }
            RegistryOp::Abort(ids, level) => effects.stopped = Some(self.abort(ids, level)),
            RegistryOp::Enroll(agent) => {
                self.real.enroll(agent.clone());
                self.model.enrolled.insert(agent);
            }
            RegistryOp::Dismiss(agents) => {
                let dismissed = self.real.unenroll(&agents).is_ok();
                let busy = agents.iter().any(|agent| !self.model.live_of_agent(agent).is_empty());
                assert_eq!(dismissed, !busy);
                if dismissed {
                    self.real.forget_unenrolled(&agents);
                    self.model.enrolled.retain(|agent| !agents.contains(agent));
                }
            }
            RegistryOp::DismissByForce(agents, requester, request) => {
                self.model.enrolled.retain(|agent| !agents.contains(agent));
                let expected =
                    self.model.stop(&StopScope::Agents { ids: agents.clone() }, &requester, &request, self.now);
                let stopped = self.real.unenroll_and_stop(&agents, &requester, &request, self.now);
                effects.stopped = Some(assert_same_stop(stopped, expected));
                self.real.forget_unenrolled(&agents);
            }
            RegistryOp::Forget(id) => assert_eq!(self.real.forget(&id, |_| false), self.model.forget(&id)),
            RegistryOp::Gate(gate) => {
                self.real.set_gate(gate);
                self.model.gate = gate;
            }
            RegistryOp::Later(seconds) => self.now = self.now.plus(at(seconds).0),
        }
        effects
    }

    fn input(&mut self, id: &RunId, input: &RunStateInput) {
        let expected = self.model.apply_input(id, input.clone(), self.now);
        assert_eq!(self.real.apply_input(id, input.clone(), self.now), expected, "{id}: {input:?}");
    }

    fn abort(&mut self, ids: Vec<RunId>, level: StopLevel) -> StopOutcome {
        let roots: Vec<u64> = ids.iter().filter_map(|id| self.model.get(id)).map(|run| run.accept_seq).collect();
        let verdict = Verdict::Aborted { reason: StopReason::Timeout, by: None };
        let expected = self.model.abort(&roots, level, &verdict, self.now);
        assert_same_stop(self.real.abort(ids, level, &StopReason::Timeout, self.now), expected)
    }

    /// Compares the answers to every query of the registry.
    fn assert_same_answers(&self) {
        let known: BTreeSet<&RunId> = self.real.iter().map(|entry| &entry.run.id).collect();
        assert_eq!(known, self.model.runs.iter().map(|run| &run.request.id).collect());
        for run in &self.model.runs {
            let entry = self.real.get(&run.request.id).expect("known, see above");
            assert_eq!(
                (&entry.run, &entry.state, entry.phase, entry.durable),
                (&run.request, &run.state, run.phase, run.durable)
            );
        }
        for key in SESSIONS.map(session) {
            let order: Vec<&RunId> = self.real.runs_of_session(&key).map(|entry| &entry.run.id).collect();
            assert_eq!(order, ids(&self.model.live_of_session(&key)), "order of {key}");
            assert_eq!(
                self.real.due_run(&key).map(|entry| &entry.run.id),
                self.model.due_run(&key).map(|run| &run.request.id)
            );
        }
        for agent in AGENTS.map(agent) {
            assert_eq!(self.real.compute_status(&agent), self.model.compute_status(&agent));
            assert_eq!(self.real.runs_of_agent(&agent).collect::<Vec<_>>(), ids(&self.model.live_of_agent(&agent)));
        }
        let mut expired = self.real.expired_runs(self.now);
        expired.sort();
        assert_eq!(expired, sorted(self.model.expired_runs(self.now)));
        assert_eq!(self.real.gate(), self.model.gate);
        for agent in AGENTS.map(agent) {
            assert_eq!(self.real.enrolled.contains(&agent), self.model.enrolled.contains(&agent));
        }
    }
}

fn ids<'a>(runs: &[&'a ModelRun]) -> Vec<&'a RunId> {
    runs.iter().map(|run| &run.request.id).collect()
}

fn sorted<T: Ord>(mut list: Vec<T>) -> Vec<T> {
    list.sort();
    list
}

/// Compares two stop outcomes regardless of order, and returns the real one.
fn assert_same_stop(real: StopOutcome, expected: StopOutcome) -> StopOutcome {
    let effects =
        |stopped: &StopOutcome| -> BTreeMap<RunId, Vec<RunEffect>> { stopped.transitions.iter().cloned().collect() };
    assert_eq!(effects(&real), effects(&expected));
    assert_eq!(real.transitions.len(), expected.transitions.len(), "one transition for each run");
    assert_eq!(sorted(real.aborted.clone()), sorted(expected.aborted));
    assert_eq!(sorted(real.withdrawn.clone()), sorted(expected.withdrawn));
    assert_eq!(sorted(real.covered.clone()), sorted(expected.covered));
    real
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_registry_answers_as_its_model(ops in ops()) {
        let mut world = RegistryAndModel::new();
        for op in &ops {
            world.apply_to_both(op);
            world.assert_same_answers();
        }
    }

    #[test]
    fn runs_of_a_session_start_durable_one_at_a_time_in_order(ops in ops()) {
        let mut world = RegistryAndModel::new();
        let mut newest = BTreeMap::new();
        for op in &ops {
            if let Some(id) = world.apply_to_both(op).started {
                let entry = world.real.get(&id).expect("just started");
                prop_assert!(entry.durable);
                let before = newest.insert(entry.run.session.clone(), entry.accept_seq);
                prop_assert!(before < Some(entry.accept_seq), "{id} overtook another run");
            }
            for key in SESSIONS.map(session) {
                let begun = world.real.runs_of_session(&key).skip(1).filter(|entry| entry.state != RunState::Queued);
                prop_assert_eq!(begun.count(), 0, "two runs of {} at work", key);
            }
        }
    }

    #[test]
    fn a_message_is_handed_over_or_started_but_never_both(ops in ops()) {
        let mut world = RegistryAndModel::new();
        let mut spent = BTreeSet::new();
        for op in &ops {
            let marks: BTreeMap<RunId, u64> =
                world.real.iter().map(|entry| (entry.run.id.clone(), entry.accept_seq)).collect();
            let effects = world.apply_to_both(op);
            for id in effects.steered.iter().chain(&effects.started) {
                prop_assert!(spent.insert(marks[id]), "{id} was used twice");
            }
        }
    }

    #[test]
    fn a_stop_reaches_children_before_their_parents_and_each_once(ops in ops()) {
        let mut world = RegistryAndModel::new();
        for op in &ops {
            let Some(stopped) = world.apply_to_both(op).stopped else { continue };
            let place = |id: &RunId| stopped.covered.iter().position(|covered| covered == id);
            prop_assert_eq!(stopped.covered.iter().collect::<BTreeSet<_>>().len(), stopped.covered.len());
            for child in world.model.runs.iter().filter(|run| place(&run.request.id).is_some()) {
                for parent in world.model.runs.iter().filter(|run| run.accept_seq != child.accept_seq) {
                    if world.model.is_below(child, &[parent.accept_seq]) && let Some(at) = place(&parent.request.id) {
                        prop_assert!(place(&child.request.id) < Some(at));
                    }
                }
            }
        }
    }

    #[test]
    fn a_run_is_kept_only_while_it_or_a_descendant_lives_or_it_owes(ops in ops()) {
        let mut world = RegistryAndModel::new();
        for op in &ops {
            world.apply_to_both(op);
            let RegistryOp::Forget(id) = op else { continue };
            let Some(kept) = world.model.get(id) else { continue };
            let lives = world.model.runs.iter().any(|run| world.model.lives_below(run, kept));
            prop_assert!(lives || kept.has_late_debts(), "{id} was kept for nothing");
        }
    }
}
