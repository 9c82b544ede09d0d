//! Walks every reachable pair of a state and a summary of the effects so far, and asks every property about every move.

use std::collections::{BTreeMap, HashMap};

use super::properties::PROPERTIES;
use super::{Effect, Input, NOW, RunState, Step, TIMES, grace, hard, inputs};

/// Counts stop here: a second announcement is a fault, a third tells nothing more, and a bound keeps faulty machines finite.
const ENOUGH: u8 = 2;

/// A timer of the engine, as the effects and inputs so far make it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Timer {
    /// Never armed, or fired.
    #[default]
    Idle,
    /// Armed for the right moment.
    Armed,
    /// Armed for a wrong moment.
    Misarmed,
}

/// What the effects so far add up to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct SoFar {
    pub(super) spawned: u8,
    pub(super) cancelled: u8,
    pub(super) killed: u8,
    pub(super) sealed: u8,
    pub(super) ending: u8,
    pub(super) ended: u8,
    /// `run.ended` was announced before `run.ending`.
    pub(super) out_of_order: bool,
    pub(super) grace: Timer,
    pub(super) hard: Timer,
}

impl SoFar {
    fn after(mut self, input: &Input, effects: &[Effect]) -> Self {
        match input {
            Input::GracePassed => self.grace = Timer::Idle,
            Input::HardPassed => self.hard = Timer::Idle,
            _ => {}
        }
        for effect in effects {
            self.add(effect);
        }
        self
    }

    fn add(&mut self, effect: &Effect) {
        let count = |count: &mut u8| *count = (*count + 1).min(ENOUGH);
        let armed = |right: &Effect| if effect == right { Timer::Armed } else { Timer::Misarmed };
        match effect {
            Effect::Spawn => count(&mut self.spawned),
            Effect::Cancel => count(&mut self.cancelled),
            Effect::Kill => count(&mut self.killed),
            Effect::Seal => count(&mut self.sealed),
            Effect::AnnounceEnding => count(&mut self.ending),
            Effect::AnnounceEnded => {
                count(&mut self.ended);
                self.out_of_order |= self.ending == 0;
            }
            Effect::ArmGrace(_) => self.grace = armed(&grace()),
            Effect::ArmHard(_) => self.hard = armed(&hard()),
            Effect::AmendReceipt => {}
        }
    }
}

/// A point of the walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) state: RunState,
    pub(super) so_far: SoFar,
}

impl Pair {
    pub(super) fn start() -> Self {
        Self { state: RunState::Queued, so_far: SoFar::default() }
    }

    pub(super) fn step(&self, step: Step, input: &Input) -> (Self, Vec<Effect>) {
        let (state, effects) = step(self.state.clone(), input.clone(), NOW, &TIMES);
        (Self { state, so_far: self.so_far.clone().after(input, &effects) }, effects)
    }

    fn key(&self) -> String {
        format!("{self:?}")
    }
}

/// One step of the walk, as the properties see it.
pub(super) struct Move<'a> {
    pub(super) step: Step,
    pub(super) before: &'a Pair,
    pub(super) input: &'a Input,
    pub(super) effects: &'a [Effect],
    pub(super) after: &'a Pair,
}

/// What the walk found.
#[derive(Debug)]
pub(super) struct Found {
    /// Every reachable pair.
    pub(super) pairs: Vec<Pair>,
    /// Properties that do not hold, each with a shortest way to its violation.
    pub(super) broken: BTreeMap<&'static str, Vec<Input>>,
}

/// Breadth first from Queued under every input, until nothing new is found.
pub(super) fn explore(step: Step) -> Found {
    let mut pairs = vec![Pair::start()];
    let mut came_by: Vec<Option<(usize, Input)>> = vec![None];
    let mut known = HashMap::from([(Pair::start().key(), 0_usize)]);
    let mut broken = BTreeMap::new();
    let mut at = 0;
    while at < pairs.len() {
        for input in inputs() {
            let before = pairs[at].clone();
            let (after, effects) = before.step(step, &input);
            let walked = Move { step, before: &before, input: &input, effects: &effects, after: &after };
            for property in PROPERTIES.iter().filter(|property| !(property.holds)(&walked)) {
                broken.entry(property.name).or_insert_with(|| way(&came_by, at, &input));
            }
            known.entry(after.key()).or_insert_with(|| {
                pairs.push(after.clone());
                came_by.push(Some((at, input.clone())));
                pairs.len() - 1
            });
        }
        at += 1;
    }
    Found { pairs, broken }
}

fn way(came_by: &[Option<(usize, Input)>], mut at: usize, last: &Input) -> Vec<Input> {
    let mut way = vec![last.clone()];
    while let Some((from, input)) = &came_by[at] {
        way.push(input.clone());
        at = *from;
    }
    way.reverse();
    way
}

#[test]
fn every_property_holds_in_every_reachable_pair() {
    let found = explore(RunState::step);
    println!("run machine: {} reachable pairs of state and effects so far", found.pairs.len());
    assert!(found.broken.is_empty(), "{:#?}", found.broken);
    let words = ["queued", "running", "ending", "ended"];
    for word in words {
        assert!(found.pairs.iter().any(|pair| pair.state.word() == word), "{word} is never reached");
    }
}
