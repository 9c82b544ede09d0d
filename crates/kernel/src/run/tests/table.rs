//! The transition table of the run machine, row by row. In every reachable state, an input matches one row or does
//! nothing.

use super::explore::explore;
use super::{Debts, NOW, RunEffect, RunState, RunStateInput, StopLevel, TIMES, grace_timer, hard_limit_timer, inputs};

type StepResult = (RunState, Vec<RunEffect>);

struct TransitionRow {
    name: &'static str,
    /// The expected result, if the row applies.
    answer: fn(&RunState, &RunStateInput) -> Option<StepResult>,
}

/// Debts of a sealed run: record and release.
const SEALED: Debts = Debts { seal: false, record: true, release: true, record_lost: false };

const BEGINNING: &[TransitionRow] = &[
    TransitionRow {
        name: "queued | start",
        answer: |state, input| match (state, input) {
            (RunState::Queued, RunStateInput::Start) => Some((RunState::Running, vec![RunEffect::StartWork])),
            _ => None,
        },
    },
    TransitionRow {
        name: "queued | abort",
        answer: |state, input| match (state, input) {
            (RunState::Queued, RunStateInput::Abort { verdict, .. }) => {
                let ended = RunState::Ended { verdict: verdict.clone(), debts: Debts::default() };
                Some((ended, vec![RunEffect::AnnounceEnding, RunEffect::AnnounceEnded]))
            }
            _ => None,
        },
    },
    TransitionRow {
        name: "running | abort gentle",
        answer: |state, input| match (state, input) {
            (RunState::Running, RunStateInput::Abort { level: StopLevel::Gentle, verdict }) => {
                let debts = Debts { seal: true, ..SEALED };
                let ending = RunState::Ending { verdict: verdict.clone(), level: StopLevel::Gentle, debts };
                Some((ending, vec![RunEffect::Cancel, grace_timer(), RunEffect::AnnounceEnding]))
            }
            _ => None,
        },
    },
    TransitionRow {
        name: "running | abort forced",
        answer: |state, input| match (state, input) {
            (RunState::Running, RunStateInput::Abort { level: StopLevel::Forced, verdict }) => {
                let ending = RunState::Ending { verdict: verdict.clone(), level: StopLevel::Forced, debts: SEALED };
                let effects = vec![
                    RunEffect::Cancel,
                    RunEffect::Kill,
                    RunEffect::AnnounceEnding,
                    RunEffect::Seal,
                    hard_limit_timer(),
                ];
                Some((ending, effects))
            }
            _ => None,
        },
    },
    TransitionRow {
        name: "running | work returned",
        answer: |state, input| match (state, input) {
            (RunState::Running, RunStateInput::WorkReturned(outcome)) => {
                let verdict = outcome.clone().into();
                let ending = RunState::Ending { verdict, level: StopLevel::Gentle, debts: SEALED };
                Some((ending, vec![RunEffect::AnnounceEnding, RunEffect::Seal, RunEffect::Cancel, grace_timer()]))
            }
            _ => None,
        },
    },
];

const ENDING: &[TransitionRow] = &[
    TransitionRow {
        name: "ending | work returned, seal owed",
        answer: |state, input| match (state, input) {
            (RunState::Ending { verdict, level, debts }, RunStateInput::WorkReturned(_)) if debts.seal => {
                let debts = Debts { seal: false, ..*debts };
                Some((RunState::Ending { verdict: verdict.clone(), level: *level, debts }, vec![RunEffect::Seal]))
            }
            _ => None,
        },
    },
    TransitionRow {
        name: "ending, gentle | abort forced",
        answer: |state, input| match (state, input) {
            (
                RunState::Ending { level: StopLevel::Gentle, debts, .. },
                RunStateInput::Abort { level: StopLevel::Forced, .. },
            ) => Some((
                after_force(state),
                [vec![RunEffect::Kill], seal_if_owed(*debts), vec![hard_limit_timer()]].concat(),
            )),
            _ => None,
        },
    },
    TransitionRow {
        name: "ending, gentle | grace passed",
        answer: |state, input| match (state, input) {
            (RunState::Ending { level: StopLevel::Gentle, debts, .. }, RunStateInput::GracePassed) if debts.release => {
                Some((
                    after_force(state),
                    [vec![RunEffect::Kill], seal_if_owed(*debts), vec![hard_limit_timer()]].concat(),
                ))
            }
            _ => None,
        },
    },
    TransitionRow {
        name: "ending, gentle | grace passed, only record is owed",
        answer: |state, input| match (state, input) {
            (RunState::Ending { level: StopLevel::Gentle, debts, .. }, RunStateInput::GracePassed)
                if !debts.release =>
            {
                Some((after_force(state), vec![hard_limit_timer()]))
            }
            _ => None,
        },
    },
    TransitionRow {
        name: "ending | released",
        answer: |state, input| match (state, input) {
            (RunState::Ending { debts, .. }, RunStateInput::Released) if debts.release => {
                let remaining = Debts { seal: false, release: false, ..*debts };
                Some(after_payment(state, remaining, seal_if_owed(*debts)))
            }
            _ => None,
        },
    },
    TransitionRow {
        name: "ending, sealed | recorded",
        answer: |state, input| match (state, input) {
            (RunState::Ending { debts, .. }, RunStateInput::Recorded) if debts.record && !debts.seal => {
                Some(after_payment(state, Debts { record: false, ..*debts }, Vec::new()))
            }
            _ => None,
        },
    },
    TransitionRow {
        name: "ending, sealed | record failed",
        answer: |state, input| match (state, input) {
            (RunState::Ending { debts, .. }, RunStateInput::RecordFailed) if debts.record && !debts.seal => {
                Some(after_payment(state, Debts { record: false, record_lost: true, ..*debts }, Vec::new()))
            }
            _ => None,
        },
    },
    TransitionRow {
        name: "ending, forced | hard limit passed",
        answer: |state, input| match (state, input) {
            (RunState::Ending { verdict, level: StopLevel::Forced, debts }, RunStateInput::HardLimitPassed) => {
                let ended = RunState::Ended { verdict: verdict.clone(), debts: *debts };
                Some((ended, vec![RunEffect::AnnounceEnded]))
            }
            _ => None,
        },
    },
];

const ENDED: &[TransitionRow] = &[
    TransitionRow {
        name: "ended | released, late",
        answer: |state, input| match (state, input) {
            (RunState::Ended { verdict, debts }, RunStateInput::Released) if debts.release => {
                let debts = Debts { release: false, ..*debts };
                Some((RunState::Ended { verdict: verdict.clone(), debts }, vec![RunEffect::AmendReceipt]))
            }
            _ => None,
        },
    },
    TransitionRow {
        name: "ended | recorded, late",
        answer: |state, input| match (state, input) {
            (RunState::Ended { verdict, debts }, RunStateInput::Recorded) if debts.record => {
                let debts = Debts { record: false, ..*debts };
                Some((RunState::Ended { verdict: verdict.clone(), debts }, vec![RunEffect::AmendReceipt]))
            }
            _ => None,
        },
    },
];

fn seal_if_owed(debts: Debts) -> Vec<RunEffect> {
    if debts.seal { vec![RunEffect::Seal] } else { Vec::new() }
}

/// An ending run after force: sealed, with its other debts.
fn after_force(state: &RunState) -> RunState {
    let RunState::Ending { verdict, debts, .. } = state else { panic!("not an ending run: {state:?}") };
    let debts = Debts { seal: false, ..*debts };
    RunState::Ending { verdict: verdict.clone(), level: StopLevel::Forced, debts }
}

/// An ending run with these debts, or the ended run if nothing is owed.
fn after_payment(state: &RunState, remaining: Debts, mut effects: Vec<RunEffect>) -> StepResult {
    let RunState::Ending { verdict, level, .. } = state else { panic!("not an ending run: {state:?}") };
    if remaining.record || remaining.release {
        return (RunState::Ending { verdict: verdict.clone(), level: *level, debts: remaining }, effects);
    }
    effects.push(RunEffect::AnnounceEnded);
    (RunState::Ended { verdict: verdict.clone(), debts: remaining }, effects)
}

#[test]
fn every_row_of_the_table_holds_and_nothing_else_happens() {
    let rows = || [BEGINNING, ENDING, ENDED].into_iter().flatten();
    let mut used = vec![false; rows().count()];
    for pair in explore(RunState::step, &[]).pairs {
        for input in inputs() {
            let case = format!("{:?} | {input:?}", pair.state);
            let mut fits =
                rows().enumerate().filter_map(|(at, row)| Some((at, row, (row.answer)(&pair.state, &input)?)));
            let (first, second) = (fits.next(), fits.next());
            assert!(second.is_none(), "two rows fit {case}");
            let expected = first.map_or_else(
                || (pair.state.clone(), Vec::new()),
                |(at, _, answer)| {
                    used[at] = true;
                    answer
                },
            );
            assert_eq!(pair.state.clone().step(input, NOW, &TIMES), expected, "{case}");
        }
    }
    let idle: Vec<_> = rows().zip(used).filter(|(_, used)| !used).map(|(row, _)| row.name).collect();
    assert!(idle.is_empty(), "rows that no reachable state meets: {idle:?}");
}
