//! Faulty run machines. Each bends one rule of the real one, and exactly the property it names notices.

use std::collections::BTreeSet;

use quell_protocol::StopReason;

use super::explore::explore;
use super::properties::PROPERTIES;
use super::{Debts, Effect, Input, Moment, Push, RunState, Step, StopTimes, TIMES, aborted, grace, hard};

/// A machine with a fault.
struct Mutant {
    fault: &'static str,
    caught_by: &'static [&'static str],
    step: Step,
}

/// What a mutant bends: the real answer to `input` in the state `was`.
struct Bent<'a> {
    was: &'a RunState,
    input: &'a Input,
    next: &'a mut RunState,
    effects: &'a mut Vec<Effect>,
}

fn bend(
    state: RunState,
    input: Input,
    now: Moment,
    times: &StopTimes,
    fault: fn(&mut Bent<'_>),
) -> (RunState, Vec<Effect>) {
    let (was, given) = (state.clone(), input.clone());
    let (mut next, mut effects) = state.step(input, now, times);
    fault(&mut Bent { was: &was, input: &given, next: &mut next, effects: &mut effects });
    (next, effects)
}

impl Bent<'_> {
    fn was_ending(&self, wanted: Push) -> Option<Debts> {
        match self.was {
            RunState::Ending { push, debts, .. } if *push == wanted => Some(*debts),
            _ => None,
        }
    }

    fn is(&self, wanted: &Input) -> bool {
        self.input == wanted
    }

    fn aborts(&self, wanted: Push) -> bool {
        matches!(self.input, Input::Abort { push, .. } if *push == wanted)
    }

    fn returns(&self) -> bool {
        matches!(self.input, Input::Returned(_))
    }

    fn forget(&mut self, effect: &Effect) {
        self.effects.retain(|kept| kept != effect);
    }

    /// Nothing happens but `effects`.
    fn ignore(&mut self, effects: &[Effect]) {
        *self.next = self.was.clone();
        *self.effects = effects.to_vec();
    }

    fn set_debts(&mut self, change: fn(&mut Debts)) {
        if let RunState::Ending { debts, .. } | RunState::Ended { debts, .. } = self.next {
            change(debts);
        }
    }
}

/// A mutant whose fault is a block that sees the real answer as `$bent`.
macro_rules! mutant {
    ($fault:literal, [$($caught:literal),+], |$bent:ident| $change:block) => {
        Mutant {
            fault: $fault,
            caught_by: &[$($caught),+],
            step: |state, input, now, times| {
                bend(state, input, now, times, |$bent| $change)
            },
        }
    };
}

const ANNOUNCING: &[Mutant] = &[
    mutant!("a second abort announces again", ["one ending is announced, with the verdict"], |bent| {
        if bent.was_ending(Push::Gentle).is_some() && bent.aborts(Push::Gentle) {
            bent.effects.push(Effect::AnnounceEnding);
        }
    }),
    mutant!(
        "an answer is not announced",
        ["one ending is announced, with the verdict", "ended never comes before ending"],
        |bent| {
            if *bent.was == RunState::Running && bent.returns() {
                bent.forget(&Effect::AnnounceEnding);
            }
        }
    ),
    mutant!("the hard limit ends in silence", ["one end is announced, at Ended"], |bent| {
        if bent.is(&Input::HardPassed) {
            bent.forget(&Effect::AnnounceEnded);
        }
    }),
    mutant!("the last record announces the end twice", ["one end is announced, at Ended"], |bent| {
        if bent.is(&Input::Recorded) && bent.effects.contains(&Effect::AnnounceEnded) {
            bent.effects.push(Effect::AnnounceEnded);
        }
    }),
    mutant!("a withdrawn run ends before it is ending", ["ended never comes before ending"], |bent| {
        if *bent.was == RunState::Queued {
            bent.effects.reverse();
        }
    }),
];

const WORKING: &[Mutant] = &[
    mutant!("a second start spawns again", ["one spawn, at the start"], |bent| {
        if *bent.was == RunState::Running && bent.is(&Input::Start) {
            bent.effects.push(Effect::Spawn);
        }
    }),
    mutant!("a late return cancels again", ["one cancel, with the verdict"], |bent| {
        if bent.was_ending(Push::Gentle).is_some() && bent.returns() {
            bent.effects.push(Effect::Cancel);
        }
    }),
    mutant!("what a finished run left behind is not cancelled", ["one cancel, with the verdict"], |bent| {
        if *bent.was == RunState::Running && bent.returns() {
            bent.forget(&Effect::Cancel);
        }
    }),
    mutant!("a second force kills again", ["at most one kill"], |bent| {
        if bent.was_ending(Push::Forced).is_some() && bent.aborts(Push::Forced) {
            bent.effects.push(Effect::Kill);
        }
    }),
    mutant!("the grace passes without a kill", ["force kills what is held"], |bent| {
        if bent.is(&Input::GracePassed) {
            bent.forget(&Effect::Kill);
        }
    }),
];

const SEALING: &[Mutant] = &[
    mutant!("a release seals what is sealed", ["at most one seal"], |bent| {
        if bent.was_ending(Push::Forced).is_some_and(|debts| debts.release) && bent.is(&Input::Released) {
            bent.effects.push(Effect::Seal);
        }
    }),
    // Nothing is recorded unsealed here either, not even late: else the next property would notice, too.
    mutant!("the grace passes and the draft stays open", ["a started run is sealed at its end"], |bent| {
        let open = bent.was_ending(Push::Gentle).is_some_and(|debts| debts.seal);
        if bent.is(&Input::GracePassed) && open {
            bent.forget(&Effect::Seal);
            bent.set_debts(|debts| debts.seal = true);
        }
        let late = matches!(bent.was, RunState::Ended { debts, .. } if debts.seal);
        if late && bent.is(&Input::Recorded) {
            bent.ignore(&[]);
        }
    }),
    mutant!("an open draft counts as recorded", ["sealed before recorded can pay"], |bent| {
        let open = bent.was_ending(Push::Gentle).is_some_and(|debts| debts.seal);
        if open && bent.is(&Input::Recorded) {
            bent.set_debts(|debts| debts.record = false);
        }
    }),
    mutant!("an open draft counts as lost", ["sealed before recorded can pay"], |bent| {
        let open = bent.was_ending(Push::Gentle).is_some_and(|debts| debts.seal);
        if open && bent.is(&Input::RecordFailed) {
            bent.set_debts(|debts| (debts.record, debts.record_lost) = (false, true));
        }
    }),
];

const STANDING: &[Mutant] = &[
    mutant!("the last abort wins", ["the first verdict wins"], |bent| {
        if let (RunState::Ending { verdict, .. }, Input::Abort { verdict: newer, .. }) = (&mut *bent.next, bent.input) {
            *verdict = newer.clone();
        }
    }),
    mutant!("an answer beats the stop that came first", ["the first verdict wins"], |bent| {
        if let (RunState::Ending { verdict, .. }, Input::Returned(outcome)) = (&mut *bent.next, bent.input) {
            *verdict = outcome.clone().into();
        }
    }),
    mutant!("a stop gets the wrong reason", ["the first verdict wins"], |bent| {
        if let (RunState::Running, RunState::Ending { verdict, .. }) = (bent.was, &mut *bent.next) {
            *verdict = aborted(StopReason::Shutdown);
        }
    }),
    // Forcing it again must not kill again, and the grace is armed again: else other properties would notice, too.
    mutant!("a gentle abort calms a forced one", ["push only rises"], |bent| {
        let only_record = |debts: Debts| !debts.seal && !debts.release;
        if bent.was_ending(Push::Forced).is_some_and(only_record) && bent.aborts(Push::Gentle) {
            if let RunState::Ending { push, .. } = bent.next {
                *push = Push::Gentle;
            }
            bent.effects.push(grace());
        }
        if bent.was_ending(Push::Gentle).is_some_and(only_record) {
            bent.forget(&Effect::Kill);
        }
    }),
    mutant!("an abort orders the record again", ["debts only shrink"], |bent| {
        if bent.was_ending(Push::Gentle).is_some() && bent.aborts(Push::Gentle) {
            bent.set_debts(|debts| debts.record = true);
        }
    }),
    mutant!("a lost record is forgotten at the hard limit", ["debts only shrink"], |bent| {
        if bent.is(&Input::HardPassed) && bent.was_ending(Push::Forced).is_some() {
            bent.set_debts(|debts| debts.record_lost = false);
        }
    }),
];

const ENDING: &[Mutant] = &[
    mutant!("the grace is as long as the hard limit", ["the right timer is armed while ending"], |bent| {
        let (right, wrong) = (grace(), Effect::ArmGrace(super::NOW.plus(TIMES.hard)));
        bent.effects.iter_mut().filter(|effect| **effect == right).for_each(|effect| *effect = wrong.clone());
    }),
    mutant!(
        "a forced abort arms no timer",
        [
            "the right timer is armed while ending",
            "timers alone lead to the end",
            "a timer that is not armed does nothing"
        ],
        |bent| {
            if *bent.was == RunState::Running {
                bent.forget(&hard());
            }
        }
    ),
    mutant!("the hard limit cuts the grace short", ["a timer that is not armed does nothing"], |bent| {
        if let RunState::Ending { verdict, push: Push::Gentle, debts } = bent.was
            && bent.is(&Input::HardPassed)
        {
            // The draft is closed on the way: else the property about sealing would notice, too.
            let seal = if debts.seal { vec![Effect::Seal] } else { Vec::new() };
            let debts = Debts { seal: false, ..*debts };
            *bent.next = RunState::Ended { verdict: verdict.clone(), debts };
            *bent.effects = [seal, vec![Effect::AnnounceEnded]].concat();
        }
    }),
    mutant!("the hard limit is put off for ever", ["timers alone lead to the end"], |bent| {
        if bent.was_ending(Push::Forced).is_some() && bent.is(&Input::HardPassed) {
            bent.ignore(&[hard()]);
        }
    }),
    mutant!("the last record ends nothing", ["nothing owed means ended"], |bent| {
        let RunState::Ending { push, debts, .. } = bent.was else { return };
        // It stays like that until its timer fires: else the property about idle timers would notice, too.
        let timer = if *push == Push::Gentle { Input::GracePassed } else { Input::HardPassed };
        if debts.paid() && !bent.is(&timer) {
            bent.ignore(&[]);
        } else if bent.is(&Input::Recorded)
            && let RunState::Ended { verdict, debts } = &*bent.next
        {
            *bent.next = RunState::Ending { verdict: verdict.clone(), push: *push, debts: *debts };
            bent.forget(&Effect::AnnounceEnded);
        }
    }),
    mutant!("the grace ends what only waits for its record", ["an end with debts takes the hard limit"], |bent| {
        if let RunState::Ending { verdict, push: Push::Gentle, debts } = bent.was
            && bent.is(&Input::GracePassed)
            && !debts.release
        {
            *bent.next = RunState::Ended { verdict: verdict.clone(), debts: *debts };
            *bent.effects = vec![Effect::AnnounceEnded];
        }
    }),
    mutant!("a late release leaves the receipt as it was", ["after the end only debts change"], |bent| {
        if bent.was.is_ended() && bent.is(&Input::Released) {
            bent.effects.clear();
        }
    }),
    mutant!("an ended run takes another abort", ["after the end only debts change"], |bent| {
        if bent.was.is_ended() && bent.aborts(Push::Gentle) {
            bent.effects.push(grace());
        }
    }),
];

fn mutants() -> impl Iterator<Item = &'static Mutant> {
    [ANNOUNCING, WORKING, SEALING, STANDING, ENDING].into_iter().flatten()
}

#[test]
fn each_mutant_breaks_what_it_names_and_nothing_else() {
    let mut missed = Vec::new();
    for mutant in mutants() {
        let found = explore(mutant.step).broken;
        let broken: BTreeSet<_> = found.keys().copied().collect();
        if broken != mutant.caught_by.iter().copied().collect() {
            missed.push(format!("{}: {found:#?}", mutant.fault));
        }
    }
    assert!(missed.is_empty(), "these are not caught as they say:\n{}", missed.join("\n"));
}

#[test]
fn each_property_has_a_mutant_that_breaks_it_alone() {
    for property in PROPERTIES {
        let alone = mutants().any(|mutant| mutant.caught_by == [property.name]);
        assert!(alone, "no mutant breaks only {:?}", property.name);
    }
}
