//! Random use of the registry and its model side by side.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use quell_protocol::api::OnBusy;
use quell_protocol::{AgentId, InterruptionScope, RunId, SessionKey, StopReason, Surface, Verdict};

use super::model::{Model, Run};
use super::{AGENTS, BOUNDS, agent, at, principal, registry, run_id, session};
use crate::registry::{
    AgentPhase, Background, Gate, NewRun, Phase, Queued, Registry, StopAsk, StopScope, Stopped, Who,
};
use crate::run::{Effect, Input, Outcome, Push, RunState};
use crate::time::Moment;

const RUNS: [&str; 8] = ["r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7"];
/// One of nobody's chat, two of a channel's.
const SESSIONS: [&str; 3] = ["s0", "irc_room_ann", "irc_room_bob"];
const PEOPLE: [&str; 2] = ["ann", "bob"];

/// One use of the registry.
#[derive(Debug, Clone)]
enum Op {
    Accept(NewRun),
    Durable(RunId),
    Withdraw(RunId),
    /// Starts what is due in the session.
    Start(SessionKey),
    /// The active run of the session gets through its end.
    Finish(SessionKey),
    TakeSteers(RunId),
    Phase(RunId, Phase),
    Input(RunId, Input),
    Stop(StopScope, Who, StopAsk),
    Abort(Vec<RunId>, Push),
    Enroll(AgentId),
    Dismiss(BTreeSet<AgentId>),
    DismissByForce(BTreeSet<AgentId>, Who, StopAsk),
    Forget(RunId),
    Gate(Gate),
    Later(u64),
}

fn id() -> impl Strategy<Value = RunId> {
    prop::sample::select(RUNS.as_slice()).prop_map(run_id)
}

fn key() -> impl Strategy<Value = SessionKey> {
    prop::sample::select(SESSIONS.as_slice()).prop_map(session)
}

fn push() -> impl Strategy<Value = Push> {
    prop_oneof![Just(Push::Gentle), Just(Push::Forced)]
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
            scope: None,
            expires_at: at(ends),
        },
    )
}

fn scope() -> impl Strategy<Value = StopScope> {
    let queued = prop_oneof![Just(Queued::Withdraw), Just(Queued::Keep)];
    let phase = prop_oneof![Just(AgentPhase::WaitingLlm), Just(AgentPhase::Any)];
    let background = prop_oneof![Just(Background::Stop), Just(Background::Keep)];
    prop_oneof![
        4 => (id(), prop::option::of(key())).prop_map(|(id, session)| StopScope::Run { id, session }),
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

/// One in which no run of these tests is.
fn conversation() -> InterruptionScope {
    let [channel, reply_target, sender] = ["irc", "room", "ann"].map(str::to_owned);
    InterruptionScope { channel, reply_target, sender, scope_id: None }
}

fn agents() -> impl Strategy<Value = BTreeSet<AgentId>> {
    prop::sample::subsequence(AGENTS.map(agent).to_vec(), 1..=AGENTS.len()).prop_map(BTreeSet::from_iter)
}

fn asker() -> impl Strategy<Value = (Who, StopAsk)> {
    let who = (prop::sample::select(PEOPLE.as_slice()), prop::bool::weighted(0.2))
        .prop_map(|(name, admin)| Who { principal: principal(name), admin });
    let ask = push().prop_map(|push| StopAsk { push, reason: StopReason::User, surface: Surface::Ws });
    (who, ask)
}

fn stop() -> impl Strategy<Value = Op> {
    (scope(), asker()).prop_map(|(scope, (who, ask))| Op::Stop(scope, who, ask))
}

/// Agents come and go.
fn roster() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => prop::sample::select(AGENTS.map(agent).to_vec()).prop_map(Op::Enroll),
        1 => agents().prop_map(Op::Dismiss),
        1 => (agents(), asker()).prop_map(|(agents, (who, ask))| Op::DismissByForce(agents, who, ask)),
    ]
}

/// What the engine reports to a run. Start and abort have uses of their own.
fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        Just(Input::Returned(Outcome::Completed)),
        Just(Input::GracePassed),
        Just(Input::HardPassed),
        Just(Input::Released),
        Just(Input::Recorded),
        Just(Input::RecordFailed),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let phase = prop_oneof![2 => Just(Phase::Waiting), 1 => Just(Phase::Processing)];
    let gate = prop_oneof![6 => Just(Gate::Open), 2 => Just(Gate::Held), 1 => Just(Gate::Closing)];
    prop_oneof![
        12 => new_run().prop_map(Op::Accept),
        10 => id().prop_map(Op::Durable),
        1 => id().prop_map(Op::Withdraw),
        10 => key().prop_map(Op::Start),
        3 => key().prop_map(Op::Finish),
        4 => id().prop_map(Op::TakeSteers),
        4 => (id(), phase).prop_map(|(id, phase)| Op::Phase(id, phase)),
        4 => (id(), input()).prop_map(|(id, input)| Op::Input(id, input)),
        5 => stop(),
        1 => (prop::collection::vec(id(), 0..3), push()).prop_map(|(ids, push)| Op::Abort(ids, push)),
        3 => id().prop_map(Op::Forget),
        2 => roster(),
        2 => gate.prop_map(Op::Gate),
        2 => (0_u64..45).prop_map(Op::Later),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 1..80)
}

/// What one use did, as far as the promises ask.
#[derive(Debug, Default)]
struct Did {
    started: Option<RunId>,
    steered: Vec<RunId>,
    stopped: Option<Stopped>,
}

/// Registry and model, used alike.
struct World {
    real: Registry,
    model: Model,
    now: Moment,
}

impl World {
    fn new() -> Self {
        Self { real: registry(), model: Model::new(BOUNDS, AGENTS.map(agent).into()), now: at(0) }
    }

    /// Uses both and holds their answers against each other.
    fn use_both(&mut self, op: &Op) -> Did {
        let mut did = Did::default();
        match op.clone() {
            Op::Accept(run) => {
                assert_eq!(self.real.accept(run.clone(), self.now), self.model.accept(run, self.now));
            }
            Op::Durable(id) => {
                let wanted = self.model.durable(&id, self.now);
                did.stopped = Some(same_stop(self.real.durable(&id, self.now), wanted));
            }
            Op::Withdraw(id) => {
                self.real.withdraw(&id);
                self.model.withdraw(&id);
            }
            Op::Start(key) => {
                did.started = self.real.due(&key).map(|entry| entry.run.id.clone());
                assert_eq!(did.started, self.model.due(&key).map(|run| run.new.id.clone()));
                did.started.iter().for_each(|id| self.input(id, &Input::Start));
            }
            Op::Finish(key) => {
                let active = self.model.live(&key).into_iter().find(|run| run.state != RunState::Queued);
                let steps = [Input::Returned(Outcome::Completed), Input::Released, Input::Recorded];
                if let Some(id) = active.map(|run| run.new.id.clone()) {
                    steps.iter().for_each(|input| self.input(&id, input));
                }
            }
            Op::TakeSteers(id) => {
                let taken = self.real.take_steers(&id);
                assert_eq!(taken, self.model.take_steers(&id));
                did.steered = taken.into_iter().map(|(id, _)| id).collect();
            }
            Op::Phase(id, phase) => {
                self.real.set_phase(&id, phase);
                self.model.set_phase(&id, phase);
            }
            Op::Input(id, input) => self.input(&id, &input),
            Op::Stop(scope, who, ask) => {
                let wanted = self.model.stop(&scope, &who, &ask, self.now);
                did.stopped = Some(same_stop(self.real.stop(&scope, &who, &ask, self.now), wanted));
            }
            Op::Abort(ids, push) => did.stopped = Some(self.abort(ids, push)),
            Op::Enroll(agent) => {
                self.real.enroll(agent.clone());
                self.model.roster.insert(agent);
            }
            Op::Dismiss(agents) => {
                let dismissed = self.real.dismiss(&agents).is_ok();
                let busy = agents.iter().any(|agent| !self.model.live_of_agent(agent).is_empty());
                assert_eq!(dismissed, !busy);
                if dismissed {
                    self.real.strike(&agents);
                    self.model.roster.retain(|agent| !agents.contains(agent));
                }
            }
            Op::DismissByForce(agents, who, ask) => {
                self.model.roster.retain(|agent| !agents.contains(agent));
                let wanted = self.model.stop(&StopScope::Agents { ids: agents.clone() }, &who, &ask, self.now);
                let stopped = self.real.dismiss_by_force(&agents, &who, &ask, self.now);
                did.stopped = Some(same_stop(stopped, wanted));
                self.real.strike(&agents);
            }
            Op::Forget(id) => assert_eq!(self.real.forget(&id, |_| false), self.model.forget(&id)),
            Op::Gate(gate) => {
                self.real.set_gate(gate);
                self.model.gate = gate;
            }
            Op::Later(seconds) => self.now = self.now.plus(at(seconds).0),
        }
        did
    }

    fn input(&mut self, id: &RunId, input: &Input) {
        let wanted = self.model.input(id, input.clone(), self.now);
        assert_eq!(self.real.input(id, input.clone(), self.now), wanted, "{id}: {input:?}");
    }

    fn abort(&mut self, ids: Vec<RunId>, push: Push) -> Stopped {
        let roots: Vec<u64> = ids.iter().filter_map(|id| self.model.get(id)).map(|run| run.mark).collect();
        let verdict = Verdict::Aborted { reason: StopReason::Timeout, by: None };
        let wanted = self.model.abort(&roots, push, &verdict, self.now);
        same_stop(self.real.abort(ids, push, &StopReason::Timeout, self.now), wanted)
    }

    /// Every question that the registry answers.
    fn compare(&self) {
        let known: BTreeSet<&RunId> = self.real.iter().map(|entry| &entry.run.id).collect();
        assert_eq!(known, self.model.runs.iter().map(|run| &run.new.id).collect());
        for run in &self.model.runs {
            let entry = self.real.get(&run.new.id).expect("known, see above");
            assert_eq!(
                (&entry.run, &entry.state, entry.phase, entry.durable),
                (&run.new, &run.state, run.phase, run.durable)
            );
        }
        for key in SESSIONS.map(session) {
            let order: Vec<&RunId> = self.real.of_session(&key).map(|entry| &entry.run.id).collect();
            assert_eq!(order, ids(&self.model.live(&key)), "order of {key}");
            assert_eq!(self.real.due(&key).map(|entry| &entry.run.id), self.model.due(&key).map(|run| &run.new.id));
        }
        for agent in AGENTS.map(agent) {
            assert_eq!(self.real.compute_status(&agent), self.model.compute_status(&agent));
            assert_eq!(self.real.of_agent(&agent).collect::<Vec<_>>(), ids(&self.model.live_of_agent(&agent)));
        }
        let mut expired = self.real.expired(self.now);
        expired.sort();
        assert_eq!(expired, sorted(self.model.expired(self.now)));
        assert_eq!(self.real.gate(), self.model.gate);
        assert!(
            AGENTS.map(agent).iter().all(|agent| self.real.is_enrolled(agent) == self.model.roster.contains(agent))
        );
    }
}

fn ids<'a>(runs: &[&'a Run]) -> Vec<&'a RunId> {
    runs.iter().map(|run| &run.new.id).collect()
}

fn sorted<T: Ord>(mut list: Vec<T>) -> Vec<T> {
    list.sort();
    list
}

/// Holds two stops against each other whatever their order, and hands on the real one.
fn same_stop(real: Stopped, wanted: Stopped) -> Stopped {
    let effects = |stopped: &Stopped| -> BTreeMap<RunId, Vec<Effect>> { stopped.transitions.iter().cloned().collect() };
    assert_eq!(effects(&real), effects(&wanted));
    assert_eq!(real.transitions.len(), wanted.transitions.len(), "one transition for each run");
    assert_eq!(sorted(real.aborted.clone()), sorted(wanted.aborted));
    assert_eq!(sorted(real.withdrawn.clone()), sorted(wanted.withdrawn));
    assert_eq!(sorted(real.covered.clone()), sorted(wanted.covered));
    real
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_registry_answers_as_its_model(ops in ops()) {
        let mut world = World::new();
        for op in &ops {
            world.use_both(op);
            world.compare();
        }
    }

    #[test]
    fn runs_of_a_session_start_durable_one_at_a_time_in_order(ops in ops()) {
        let mut world = World::new();
        let mut newest = BTreeMap::new();
        for op in &ops {
            if let Some(id) = world.use_both(op).started {
                let entry = world.real.get(&id).expect("just started");
                prop_assert!(entry.durable);
                let before = newest.insert(entry.run.session.clone(), entry.mark);
                prop_assert!(before < Some(entry.mark), "{id} overtook another run");
            }
            for key in SESSIONS.map(session) {
                let begun = world.real.of_session(&key).skip(1).filter(|entry| entry.state != RunState::Queued);
                prop_assert_eq!(begun.count(), 0, "two runs of {} at work", key);
            }
        }
    }

    #[test]
    fn a_message_is_handed_over_or_started_but_never_both(ops in ops()) {
        let mut world = World::new();
        let mut spent = BTreeSet::new();
        for op in &ops {
            let marks: BTreeMap<RunId, u64> =
                world.real.iter().map(|entry| (entry.run.id.clone(), entry.mark)).collect();
            let did = world.use_both(op);
            for id in did.steered.iter().chain(&did.started) {
                prop_assert!(spent.insert(marks[id]), "{id} was used twice");
            }
        }
    }

    #[test]
    fn a_stop_reaches_children_before_their_parents_and_each_once(ops in ops()) {
        let mut world = World::new();
        for op in &ops {
            let Some(stopped) = world.use_both(op).stopped else { continue };
            let place = |id: &RunId| stopped.covered.iter().position(|covered| covered == id);
            prop_assert_eq!(stopped.covered.iter().collect::<BTreeSet<_>>().len(), stopped.covered.len());
            for child in world.model.runs.iter().filter(|run| place(&run.new.id).is_some()) {
                for parent in world.model.runs.iter().filter(|run| run.mark != child.mark) {
                    if world.model.is_below(child, &[parent.mark]) && let Some(at) = place(&parent.new.id) {
                        prop_assert!(place(&child.new.id) < Some(at));
                    }
                }
            }
        }
    }

    #[test]
    fn a_run_is_kept_only_while_it_or_a_descendant_lives_or_it_owes(ops in ops()) {
        let mut world = World::new();
        for op in &ops {
            world.use_both(op);
            let Op::Forget(id) = op else { continue };
            let Some(kept) = world.model.get(id) else { continue };
            let lives = world.model.runs.iter().any(|run| world.model.lives_below(run, kept));
            prop_assert!(lives || kept.owes_late(), "{id} was kept for nothing");
        }
    }
}
