//! Breadth-first exploration of all reachable states, paired with a summary of effects; checks properties per step.

use std::collections::{BTreeMap, HashMap};

use super::{NOW, RunEffect, RunState, RunStateInput, StepFn, TIMES, grace_timer, hard_limit_timer, inputs};

/// Maximum of each count. Two are enough to see a fault, and the bound keeps the exploration of faulty machines finite.
const COUNT_CAP: u8 = 2;

/// State of a timer of the engine after the effects and inputs so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum TimerState {
    /// Never armed, or fired.
    #[default]
    Idle,
    /// Armed for the right moment.
    Armed,
    /// Armed for a wrong moment.
    Misarmed,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct EffectSummary {
    pub(super) spawned: u8,
    pub(super) cancelled: u8,
    pub(super) killed: u8,
    pub(super) sealed: u8,
    pub(super) ending: u8,
    pub(super) ended: u8,
    /// `run.ended` was announced before `run.ending`.
    pub(super) out_of_order: bool,
    pub(super) grace: TimerState,
    pub(super) hard: TimerState,
}

impl EffectSummary {
    fn after(mut self, input: &RunStateInput, effects: &[RunEffect]) -> Self {
        match input {
            RunStateInput::GracePassed => self.grace = TimerState::Idle,
            RunStateInput::HardLimitPassed => self.hard = TimerState::Idle,
            _ => {}
        }
        for effect in effects {
            self.add(effect);
        }
        self
    }

    fn add(&mut self, effect: &RunEffect) {
        let count = |count: &mut u8| *count = (*count + 1).min(COUNT_CAP);
        let armed = |right: &RunEffect| if effect == right { TimerState::Armed } else { TimerState::Misarmed };
        match effect {
            RunEffect::StartWork => count(&mut self.spawned),
            RunEffect::Cancel => count(&mut self.cancelled),
            RunEffect::Kill => count(&mut self.killed),
            RunEffect::Seal => count(&mut self.sealed),
            RunEffect::AnnounceEnding => count(&mut self.ending),
            RunEffect::AnnounceEnded => {
                count(&mut self.ended);
                self.out_of_order |= self.ending == 0;
            }
            RunEffect::ArmGraceTimer(_) => self.grace = armed(&grace_timer()),
            RunEffect::ArmHardLimitTimer(_) => self.hard = armed(&hard_limit_timer()),
            RunEffect::AmendReceipt => {}
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExploredState {
    pub(super) state: RunState,
    pub(super) effects_so_far: EffectSummary,
}

impl ExploredState {
    pub(super) fn start() -> Self {
        Self { state: RunState::Queued, effects_so_far: EffectSummary::default() }
    }

    pub(super) fn step(&self, step: StepFn, input: &RunStateInput) -> (Self, Vec<RunEffect>) {
        let (state, effects) = step(self.state.clone(), input.clone(), NOW, &TIMES);
        (Self { state, effects_so_far: self.effects_so_far.clone().after(input, &effects) }, effects)
    }

    fn key(&self) -> String {
        format!("{self:?}")
    }
}

/// What holds for every step.
pub(super) struct Property {
    pub(super) name: &'static str,
    pub(super) holds: fn(&ExploredStep<'_>) -> bool,
}

/// A step of the exploration, to be checked by the properties.
pub(super) struct ExploredStep<'a> {
    pub(super) step: StepFn,
    pub(super) before: &'a ExploredState,
    pub(super) input: &'a RunStateInput,
    pub(super) effects: &'a [RunEffect],
    pub(super) after: &'a ExploredState,
}

#[derive(Debug)]
pub(super) struct Exploration {
    /// Every reachable pair of state and effect summary.
    pub(super) pairs: Vec<ExploredState>,
    /// Properties that do not hold, each with a shortest sequence of inputs that violates it.
    pub(super) broken: BTreeMap<&'static str, Vec<RunStateInput>>,
}

/// Explores breadth first from `Queued` with every input, until no new pair is found.
pub(super) fn explore(step: StepFn, properties: &[Property]) -> Exploration {
    let mut pairs = vec![ExploredState::start()];
    let mut predecessors: Vec<Option<(usize, RunStateInput)>> = vec![None];
    let mut known = HashMap::from([(ExploredState::start().key(), 0_usize)]);
    let mut broken = BTreeMap::new();
    let mut at = 0;
    while at < pairs.len() {
        for input in inputs() {
            let before = pairs[at].clone();
            let (after, effects) = before.step(step, &input);
            let explored = ExploredStep { step, before: &before, input: &input, effects: &effects, after: &after };
            for property in properties.iter().filter(|property| !(property.holds)(&explored)) {
                broken.entry(property.name).or_insert_with(|| path_to(&predecessors, at, &input));
            }
            known.entry(after.key()).or_insert_with(|| {
                pairs.push(after.clone());
                predecessors.push(Some((at, input.clone())));
                pairs.len() - 1
            });
        }
        at += 1;
    }
    Exploration { pairs, broken }
}

fn path_to(predecessors: &[Option<(usize, RunStateInput)>], mut at: usize, last: &RunStateInput) -> Vec<RunStateInput> {
    let mut path = vec![last.clone()];
    while let Some((from, input)) = &predecessors[at] {
        path.push(input.clone());
        at = *from;
    }
    path.reverse();
    path
}
