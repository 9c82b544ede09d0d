//! Mutated run machines. Each breaks exactly the properties that it names.

use std::collections::BTreeSet;

use quell_protocol::StopReason;

use super::explore::explore;
use super::properties::PROPERTIES;
use super::{
    Debts, Moment, RunEffect, RunState, RunStateInput, StepFn, StopLevel, StopTimeouts, TIMES, aborted, grace_timer,
    hard_limit_timer,
};

struct Mutant {
    fault: &'static str,
    caught_by: &'static [&'static str],
    step: StepFn,
}

/// The real result of `input` in the state `before`, to be changed by a mutant.
struct MutableStep<'a> {
    before: &'a RunState,
    input: &'a RunStateInput,
    next: &'a mut RunState,
    effects: &'a mut Vec<RunEffect>,
}

fn bend(
    state: RunState,
    input: RunStateInput,
    now: Moment,
    times: &StopTimeouts,
    fault: fn(&mut MutableStep<'_>),
) -> (RunState, Vec<RunEffect>) {
    let (before, original_input) = (state.clone(), input.clone());
    let (mut next, mut effects) = state.step(input, now, times);
    fault(&mut MutableStep { before: &before, input: &original_input, next: &mut next, effects: &mut effects });
    (next, effects)
}

impl MutableStep<'_> {
    fn was_ending_with(&self, wanted: StopLevel) -> Option<Debts> {
        match self.before {
            RunState::Ending { level, debts, .. } if *level == wanted => Some(*debts),
            _ => None,
        }
    }

    fn is_input(&self, wanted: &RunStateInput) -> bool {
        self.input == wanted
    }

    fn aborts(&self, wanted: StopLevel) -> bool {
        matches!(self.input, RunStateInput::Abort { level, .. } if *level == wanted)
    }

    fn returns(&self) -> bool {
        matches!(self.input, RunStateInput::WorkReturned(_))
    }

    fn forget(&mut self, effect: &RunEffect) {
        self.effects.retain(|kept| kept != effect);
    }

    /// Keeps the state, with `effects` as the only effects.
    fn ignore(&mut self, effects: &[RunEffect]) {
        *self.next = self.before.clone();
        *self.effects = effects.to_vec();
    }

    fn set_debts(&mut self, change: fn(&mut Debts)) {
        if let RunState::Ending { debts, .. } | RunState::Ended { debts, .. } = self.next {
            change(debts);
        }
    }
}

/// A mutant whose fault is a block that changes the real result, bound to `$bent`.
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
        if bent.was_ending_with(StopLevel::Gentle).is_some() && bent.aborts(StopLevel::Gentle) {
            bent.effects.push(RunEffect::AnnounceEnding);
        }
    }),
    mutant!(
        "an answer is not announced",
        ["one ending is announced, with the verdict", "ended never comes before ending"],
        |bent| {
            if *bent.before == RunState::Running && bent.returns() {
                bent.forget(&RunEffect::AnnounceEnding);
            }
        }
    ),
    mutant!("the hard limit ends in silence", ["one end is announced, at Ended"], |bent| {
        if bent.is_input(&RunStateInput::HardLimitPassed) {
            bent.forget(&RunEffect::AnnounceEnded);
        }
    }),
    mutant!("the last record announces the end twice", ["one end is announced, at Ended"], |bent| {
        if bent.is_input(&RunStateInput::Recorded) && bent.effects.contains(&RunEffect::AnnounceEnded) {
            bent.effects.push(RunEffect::AnnounceEnded);
        }
    }),
    mutant!("a withdrawn run ends before it is ending", ["ended never comes before ending"], |bent| {
        if *bent.before == RunState::Queued {
            bent.effects.reverse();
        }
    }),
];

const WORKING: &[Mutant] = &[
    mutant!("a second start spawns again", ["one spawn, at the start"], |bent| {
        if *bent.before == RunState::Running && bent.is_input(&RunStateInput::Start) {
            bent.effects.push(RunEffect::StartWork);
        }
    }),
    mutant!("a late return cancels again", ["one cancel, with the verdict"], |bent| {
        if bent.was_ending_with(StopLevel::Gentle).is_some() && bent.returns() {
            bent.effects.push(RunEffect::Cancel);
        }
    }),
    mutant!("what a finished run left behind is not cancelled", ["one cancel, with the verdict"], |bent| {
        if *bent.before == RunState::Running && bent.returns() {
            bent.forget(&RunEffect::Cancel);
        }
    }),
    mutant!("a second force kills again", ["at most one kill"], |bent| {
        if bent.was_ending_with(StopLevel::Forced).is_some() && bent.aborts(StopLevel::Forced) {
            bent.effects.push(RunEffect::Kill);
        }
    }),
    mutant!("the grace passes without a kill", ["force kills what is held"], |bent| {
        if bent.is_input(&RunStateInput::GracePassed) {
            bent.forget(&RunEffect::Kill);
        }
    }),
];

const SEALING: &[Mutant] = &[
    mutant!("a release seals what is sealed", ["at most one seal"], |bent| {
        if bent.was_ending_with(StopLevel::Forced).is_some_and(|debts| debts.release)
            && bent.is_input(&RunStateInput::Released)
        {
            bent.effects.push(RunEffect::Seal);
        }
    }),
    // Records nothing unsealed, not even late: otherwise it would break the next property too.
    mutant!("the grace passes and the draft stays open", ["a started run is sealed at its end"], |bent| {
        let open = bent.was_ending_with(StopLevel::Gentle).is_some_and(|debts| debts.seal);
        if bent.is_input(&RunStateInput::GracePassed) && open {
            bent.forget(&RunEffect::Seal);
            bent.set_debts(|debts| debts.seal = true);
        }
        let late = matches!(bent.before, RunState::Ended { debts, .. } if debts.seal);
        if late && bent.is_input(&RunStateInput::Recorded) {
            bent.ignore(&[]);
        }
    }),
    mutant!("an open draft counts as recorded", ["sealed before recorded can pay"], |bent| {
        let open = bent.was_ending_with(StopLevel::Gentle).is_some_and(|debts| debts.seal);
        if open && bent.is_input(&RunStateInput::Recorded) {
            bent.set_debts(|debts| debts.record = false);
        }
    }),
    mutant!("an open draft counts as lost", ["sealed before recorded can pay"], |bent| {
        let open = bent.was_ending_with(StopLevel::Gentle).is_some_and(|debts| debts.seal);
        if open && bent.is_input(&RunStateInput::RecordFailed) {
            bent.set_debts(|debts| (debts.record, debts.record_lost) = (false, true));
        }
    }),
];

const STANDING: &[Mutant] = &[
    mutant!("the last abort wins", ["the first verdict wins"], |bent| {
        if let (RunState::Ending { verdict, .. }, RunStateInput::Abort { verdict: newer, .. }) =
            (&mut *bent.next, bent.input)
        {
            *verdict = newer.clone();
        }
    }),
    mutant!("an answer beats the stop that came first", ["the first verdict wins"], |bent| {
        if let (RunState::Ending { verdict, .. }, RunStateInput::WorkReturned(outcome)) = (&mut *bent.next, bent.input)
        {
            *verdict = outcome.clone().into();
        }
    }),
    mutant!("a stop gets the wrong reason", ["the first verdict wins"], |bent| {
        if let (RunState::Running, RunState::Ending { verdict, .. }) = (bent.before, &mut *bent.next) {
            *verdict = aborted(StopReason::Shutdown);
        }
    }),
    // A second force must not kill again, and the grace timer is armed again: otherwise it would break other
    // properties.
    mutant!("a gentle abort calms a forced one", ["stop level only rises"], |bent| {
        let only_record = |debts: Debts| !debts.seal && !debts.release;
        if bent.was_ending_with(StopLevel::Forced).is_some_and(only_record) && bent.aborts(StopLevel::Gentle) {
            if let RunState::Ending { level, .. } = bent.next {
                *level = StopLevel::Gentle;
            }
            bent.effects.push(grace_timer());
        }
        if bent.was_ending_with(StopLevel::Gentle).is_some_and(only_record) {
            bent.forget(&RunEffect::Kill);
        }
    }),
    mutant!("an abort orders the record again", ["debts only shrink"], |bent| {
        if bent.was_ending_with(StopLevel::Gentle).is_some() && bent.aborts(StopLevel::Gentle) {
            bent.set_debts(|debts| debts.record = true);
        }
    }),
    mutant!("a lost record is forgotten at the hard limit", ["debts only shrink"], |bent| {
        if bent.is_input(&RunStateInput::HardLimitPassed) && bent.was_ending_with(StopLevel::Forced).is_some() {
            bent.set_debts(|debts| debts.record_lost = false);
        }
    }),
];

const ENDING: &[Mutant] = &[
    mutant!("the grace is as long as the hard limit", ["the right timer is armed while ending"], |bent| {
        let (right, wrong) = (grace_timer(), RunEffect::ArmGraceTimer(super::NOW.plus(TIMES.hard)));
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
            if *bent.before == RunState::Running {
                bent.forget(&hard_limit_timer());
            }
        }
    ),
    mutant!("the hard limit cuts the grace short", ["a timer that is not armed does nothing"], |bent| {
        if let RunState::Ending { verdict, level: StopLevel::Gentle, debts } = bent.before
            && bent.is_input(&RunStateInput::HardLimitPassed)
        {
            // Seals the draft: otherwise it would break the property about sealing too.
            let seal = if debts.seal { vec![RunEffect::Seal] } else { Vec::new() };
            let debts = Debts { seal: false, ..*debts };
            *bent.next = RunState::Ended { verdict: verdict.clone(), debts };
            *bent.effects = [seal, vec![RunEffect::AnnounceEnded]].concat();
        }
    }),
    mutant!("the hard limit is put off for ever", ["timers alone lead to the end"], |bent| {
        if bent.was_ending_with(StopLevel::Forced).is_some() && bent.is_input(&RunStateInput::HardLimitPassed) {
            bent.ignore(&[hard_limit_timer()]);
        }
    }),
    mutant!("the last record ends nothing", ["nothing owed means ended"], |bent| {
        let RunState::Ending { level, debts, .. } = bent.before else { return };
        // Stays so until its timer fires: otherwise it would break the property about idle timers too.
        let timer =
            if *level == StopLevel::Gentle { RunStateInput::GracePassed } else { RunStateInput::HardLimitPassed };
        if debts.is_paid() && !bent.is_input(&timer) {
            bent.ignore(&[]);
        } else if bent.is_input(&RunStateInput::Recorded)
            && let RunState::Ended { verdict, debts } = &*bent.next
        {
            *bent.next = RunState::Ending { verdict: verdict.clone(), level: *level, debts: *debts };
            bent.forget(&RunEffect::AnnounceEnded);
        }
    }),
    mutant!("the grace ends what only waits for its record", ["an end with debts takes the hard limit"], |bent| {
        if let RunState::Ending { verdict, level: StopLevel::Gentle, debts } = bent.before
            && bent.is_input(&RunStateInput::GracePassed)
            && !debts.release
        {
            *bent.next = RunState::Ended { verdict: verdict.clone(), debts: *debts };
            *bent.effects = vec![RunEffect::AnnounceEnded];
        }
    }),
    mutant!("a late release leaves the receipt as it was", ["after the end only debts change"], |bent| {
        if bent.before.is_ended() && bent.is_input(&RunStateInput::Released) {
            bent.effects.clear();
        }
    }),
    mutant!("an ended run takes another abort", ["after the end only debts change"], |bent| {
        if bent.before.is_ended() && bent.aborts(StopLevel::Gentle) {
            bent.effects.push(grace_timer());
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
        let found = explore(mutant.step, PROPERTIES).broken;
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
