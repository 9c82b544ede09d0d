//! The transition table of the run machine, row by row. In every reachable state, an input matches one row or does
//! nothing.

use std::collections::BTreeSet;

use super::explore::explore;
use super::{Debts, NOW, RunEffect, RunState, RunStateInput, StopLevel, TIMES, grace_timer, hard_limit_timer, inputs};

type StepResult = (RunState, Vec<RunEffect>);

/// The row that an input matches, with its result.
type MatchingRow = Option<(&'static str, StepResult)>;

/// Debts of a sealed run: record and release.
const SEALED: Debts = Debts { seal: false, record: true, release: true, record_lost: false };

const ROWS: &[&str] = &[
    "queued | start",
    "queued | abort",
    "running | abort gentle",
    "running | abort forced",
    "running | work returned",
    "ending | work returned, seal owed",
    "ending, gentle | abort forced",
    "ending, gentle | grace passed",
    "ending, gentle | grace passed, only record is owed",
    "ending | released",
    "ending, sealed | recorded",
    "ending, sealed | record failed",
    "ending, forced | hard limit passed",
    "ended | released, late",
    "ended | recorded, late",
];

fn matching_row(state: &RunState, input: &RunStateInput) -> MatchingRow {
    match state {
        RunState::Queued => queued_row(input),
        RunState::Running => running_row(input),
        RunState::Ending { level, debts, .. } => ending_row(state, *level, *debts, input),
        RunState::Ended { debts, .. } => ended_row(state, *debts, input),
    }
}

fn queued_row(input: &RunStateInput) -> MatchingRow {
    match input {
        RunStateInput::Start => Some(("queued | start", (RunState::Running, vec![RunEffect::StartWork]))),
        RunStateInput::Abort { verdict, .. } => {
            let ended = RunState::Ended { verdict: verdict.clone(), debts: Debts::default() };
            Some(("queued | abort", (ended, vec![RunEffect::AnnounceEnding, RunEffect::AnnounceEnded])))
        }
        _ => None,
    }
}

fn running_row(input: &RunStateInput) -> MatchingRow {
    match input {
        RunStateInput::Abort { level: StopLevel::Gentle, verdict } => {
            let debts = Debts { seal: true, ..SEALED };
            let ending = RunState::Ending { verdict: verdict.clone(), level: StopLevel::Gentle, debts };
            let effects = vec![RunEffect::Cancel, grace_timer(), RunEffect::AnnounceEnding];
            Some(("running | abort gentle", (ending, effects)))
        }
        RunStateInput::Abort { level: StopLevel::Forced, verdict } => {
            let ending = RunState::Ending { verdict: verdict.clone(), level: StopLevel::Forced, debts: SEALED };
            let mut effects = vec![RunEffect::Cancel, RunEffect::Kill, RunEffect::AnnounceEnding, RunEffect::Seal];
            effects.push(hard_limit_timer());
            Some(("running | abort forced", (ending, effects)))
        }
        RunStateInput::WorkReturned(outcome) => {
            let verdict = outcome.clone().into();
            let ending = RunState::Ending { verdict, level: StopLevel::Gentle, debts: SEALED };
            let effects = vec![RunEffect::AnnounceEnding, RunEffect::Seal, RunEffect::Cancel, grace_timer()];
            Some(("running | work returned", (ending, effects)))
        }
        _ => None,
    }
}

/// No two rows match the same state and input: the conditions of an input exclude each other.
fn ending_row(state: &RunState, level: StopLevel, debts: Debts, input: &RunStateInput) -> MatchingRow {
    let gentle = level == StopLevel::Gentle;
    Some(match input {
        RunStateInput::WorkReturned(_) if debts.seal => {
            let unsealed = Debts { seal: false, ..debts };
            ("ending | work returned, seal owed", (ending_with(state, level, unsealed), vec![RunEffect::Seal]))
        }
        RunStateInput::Abort { level: StopLevel::Forced, .. } if gentle => {
            ("ending, gentle | abort forced", after_force(state, debts, vec![RunEffect::Kill]))
        }
        RunStateInput::GracePassed if gentle && debts.release => {
            ("ending, gentle | grace passed", after_force(state, debts, vec![RunEffect::Kill]))
        }
        RunStateInput::GracePassed if gentle && !debts.release => {
            ("ending, gentle | grace passed, only record is owed", after_force(state, debts, Vec::new()))
        }
        RunStateInput::Released if debts.release => {
            let remaining = Debts { seal: false, release: false, ..debts };
            ("ending | released", after_payment(state, level, remaining, seal_if_owed(debts)))
        }
        RunStateInput::Recorded if debts.record && !debts.seal => {
            let remaining = Debts { record: false, ..debts };
            ("ending, sealed | recorded", after_payment(state, level, remaining, Vec::new()))
        }
        RunStateInput::RecordFailed if debts.record && !debts.seal => {
            let remaining = Debts { record: false, record_lost: true, ..debts };
            ("ending, sealed | record failed", after_payment(state, level, remaining, Vec::new()))
        }
        RunStateInput::HardLimitPassed if !gentle => {
            ("ending, forced | hard limit passed", (ended_with(state, debts), vec![RunEffect::AnnounceEnded]))
        }
        _ => return None,
    })
}

fn ended_row(state: &RunState, debts: Debts, input: &RunStateInput) -> MatchingRow {
    let (row, debts) = match input {
        RunStateInput::Released if debts.release => ("ended | released, late", Debts { release: false, ..debts }),
        RunStateInput::Recorded if debts.record => ("ended | recorded, late", Debts { record: false, ..debts }),
        _ => return None,
    };
    Some((row, (ended_with(state, debts), vec![RunEffect::AmendReceipt])))
}

fn seal_if_owed(debts: Debts) -> Vec<RunEffect> {
    if debts.seal { vec![RunEffect::Seal] } else { Vec::new() }
}

/// The ending run of `state`, with this level and these debts.
fn ending_with(state: &RunState, level: StopLevel, debts: Debts) -> RunState {
    RunState::Ending { verdict: state.verdict().unwrap().clone(), level, debts }
}

/// The run of `state` after its end, with these debts.
fn ended_with(state: &RunState, debts: Debts) -> RunState {
    RunState::Ended { verdict: state.verdict().unwrap().clone(), debts }
}

/// An ending run after force: sealed, with its other debts.
fn after_force(state: &RunState, debts: Debts, kill: Vec<RunEffect>) -> StepResult {
    let forced = ending_with(state, StopLevel::Forced, Debts { seal: false, ..debts });
    (forced, [kill, seal_if_owed(debts), vec![hard_limit_timer()]].concat())
}

/// An ending run with these debts, or the ended run if nothing is owed.
fn after_payment(state: &RunState, level: StopLevel, remaining: Debts, mut effects: Vec<RunEffect>) -> StepResult {
    if remaining.record || remaining.release {
        return (ending_with(state, level, remaining), effects);
    }
    effects.push(RunEffect::AnnounceEnded);
    (ended_with(state, remaining), effects)
}

#[test]
fn every_row_of_the_table_holds_and_nothing_else_happens() {
    let mut idle: BTreeSet<&str> = ROWS.iter().copied().collect();
    for pair in explore(RunState::step, &[]).pairs {
        for input in inputs() {
            let expected = match matching_row(&pair.state, &input) {
                Some((row, result)) => {
                    assert!(ROWS.contains(&row), "{row} is not in the list");
                    idle.remove(row);
                    result
                }
                None => (pair.state.clone(), Vec::new()),
            };
            assert_eq!(pair.state.clone().step(input.clone(), NOW, &TIMES), expected, "{:?} | {input:?}", pair.state);
        }
    }
    assert!(idle.is_empty(), "rows that no reachable state meets: {idle:?}");
}
