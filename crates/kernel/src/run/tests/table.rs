//! The table of ARCHITECTURE.md, row by row. In every reachable state every input either matches one row or does nothing.

use super::explore::explore;
use super::{Debts, Effect, Input, NOW, Push, RunState, TIMES, grace, hard, inputs};

type Answer = (RunState, Vec<Effect>);

/// One row of the table.
struct Row {
    name: &'static str,
    /// The answer, where the row fits.
    answer: fn(&RunState, &Input) -> Option<Answer>,
}

/// All debts but the seal.
const SEALED: Debts = Debts { seal: false, record: true, release: true, record_lost: false };

const BEGINNING: &[Row] = &[
    Row {
        name: "queued | start",
        answer: |state, input| match (state, input) {
            (RunState::Queued, Input::Start) => Some((RunState::Running, vec![Effect::Spawn])),
            _ => None,
        },
    },
    Row {
        name: "queued | abort",
        answer: |state, input| match (state, input) {
            (RunState::Queued, Input::Abort { verdict, .. }) => {
                let ended = RunState::Ended { verdict: verdict.clone(), debts: Debts::default() };
                Some((ended, vec![Effect::AnnounceEnding, Effect::AnnounceEnded]))
            }
            _ => None,
        },
    },
    Row {
        name: "running | abort gentle",
        answer: |state, input| match (state, input) {
            (RunState::Running, Input::Abort { push: Push::Gentle, verdict }) => {
                let debts = Debts { seal: true, ..SEALED };
                let ending = RunState::Ending { verdict: verdict.clone(), push: Push::Gentle, debts };
                Some((ending, vec![Effect::Cancel, grace(), Effect::AnnounceEnding]))
            }
            _ => None,
        },
    },
    Row {
        name: "running | abort forced",
        answer: |state, input| match (state, input) {
            (RunState::Running, Input::Abort { push: Push::Forced, verdict }) => {
                let ending = RunState::Ending { verdict: verdict.clone(), push: Push::Forced, debts: SEALED };
                let effects = vec![Effect::Cancel, Effect::Kill, Effect::AnnounceEnding, Effect::Seal, hard()];
                Some((ending, effects))
            }
            _ => None,
        },
    },
    Row {
        name: "running | work returned",
        answer: |state, input| match (state, input) {
            (RunState::Running, Input::Returned(outcome)) => {
                let verdict = outcome.clone().into();
                let ending = RunState::Ending { verdict, push: Push::Gentle, debts: SEALED };
                Some((ending, vec![Effect::AnnounceEnding, Effect::Seal, Effect::Cancel, grace()]))
            }
            _ => None,
        },
    },
];

const ENDING: &[Row] = &[
    Row {
        name: "ending | work returned, seal owed",
        answer: |state, input| match (state, input) {
            (RunState::Ending { verdict, push, debts }, Input::Returned(_)) if debts.seal => {
                let debts = Debts { seal: false, ..*debts };
                Some((RunState::Ending { verdict: verdict.clone(), push: *push, debts }, vec![Effect::Seal]))
            }
            _ => None,
        },
    },
    Row {
        name: "ending, gentle | abort forced",
        answer: |state, input| match (state, input) {
            (RunState::Ending { push: Push::Gentle, debts, .. }, Input::Abort { push: Push::Forced, .. }) => {
                Some((forced(state), [vec![Effect::Kill], seal_if_owed(*debts), vec![hard()]].concat()))
            }
            _ => None,
        },
    },
    Row {
        name: "ending, gentle | grace passed",
        answer: |state, input| match (state, input) {
            (RunState::Ending { push: Push::Gentle, debts, .. }, Input::GracePassed) if debts.release => {
                Some((forced(state), [vec![Effect::Kill], seal_if_owed(*debts), vec![hard()]].concat()))
            }
            _ => None,
        },
    },
    Row {
        name: "ending, gentle | grace passed, only record is owed",
        answer: |state, input| match (state, input) {
            (RunState::Ending { push: Push::Gentle, debts, .. }, Input::GracePassed) if !debts.release => {
                Some((forced(state), vec![hard()]))
            }
            _ => None,
        },
    },
    Row {
        name: "ending | released",
        answer: |state, input| match (state, input) {
            (RunState::Ending { debts, .. }, Input::Released) if debts.release => {
                let left = Debts { seal: false, release: false, ..*debts };
                Some(paid(state, left, seal_if_owed(*debts)))
            }
            _ => None,
        },
    },
    Row {
        name: "ending, sealed | recorded",
        answer: |state, input| match (state, input) {
            (RunState::Ending { debts, .. }, Input::Recorded) if debts.record && !debts.seal => {
                Some(paid(state, Debts { record: false, ..*debts }, Vec::new()))
            }
            _ => None,
        },
    },
    Row {
        name: "ending, sealed | record failed",
        answer: |state, input| match (state, input) {
            (RunState::Ending { debts, .. }, Input::RecordFailed) if debts.record && !debts.seal => {
                Some(paid(state, Debts { record: false, record_lost: true, ..*debts }, Vec::new()))
            }
            _ => None,
        },
    },
    Row {
        name: "ending, forced | hard limit passed",
        answer: |state, input| match (state, input) {
            (RunState::Ending { verdict, push: Push::Forced, debts }, Input::HardPassed) => {
                let ended = RunState::Ended { verdict: verdict.clone(), debts: *debts };
                Some((ended, vec![Effect::AnnounceEnded]))
            }
            _ => None,
        },
    },
];

const ENDED: &[Row] = &[
    Row {
        name: "ended | released, late",
        answer: |state, input| match (state, input) {
            (RunState::Ended { verdict, debts }, Input::Released) if debts.release => {
                let debts = Debts { release: false, ..*debts };
                Some((RunState::Ended { verdict: verdict.clone(), debts }, vec![Effect::AmendReceipt]))
            }
            _ => None,
        },
    },
    Row {
        name: "ended | recorded, late",
        answer: |state, input| match (state, input) {
            (RunState::Ended { verdict, debts }, Input::Recorded) if debts.record => {
                let debts = Debts { record: false, ..*debts };
                Some((RunState::Ended { verdict: verdict.clone(), debts }, vec![Effect::AmendReceipt]))
            }
            _ => None,
        },
    },
];

fn seal_if_owed(debts: Debts) -> Vec<Effect> {
    if debts.seal { vec![Effect::Seal] } else { Vec::new() }
}

/// An ending run, pushed: sealed, the rest still owed.
fn forced(state: &RunState) -> RunState {
    let RunState::Ending { verdict, debts, .. } = state else { panic!("only what is ending is forced") };
    let debts = Debts { seal: false, ..*debts };
    RunState::Ending { verdict: verdict.clone(), push: Push::Forced, debts }
}

/// An ending run with these debts left, which is over when there are none.
fn paid(state: &RunState, left: Debts, mut effects: Vec<Effect>) -> Answer {
    let RunState::Ending { verdict, push, .. } = state else { panic!("only what is ending pays") };
    if left.record || left.release {
        return (RunState::Ending { verdict: verdict.clone(), push: *push, debts: left }, effects);
    }
    effects.push(Effect::AnnounceEnded);
    (RunState::Ended { verdict: verdict.clone(), debts: left }, effects)
}

#[test]
fn every_row_of_the_table_holds_and_nothing_else_happens() {
    let rows = || [BEGINNING, ENDING, ENDED].into_iter().flatten();
    let mut used = vec![false; rows().count()];
    for pair in explore(RunState::step).pairs {
        for input in inputs() {
            let case = format!("{:?} | {input:?}", pair.state);
            let mut fits =
                rows().enumerate().filter_map(|(at, row)| Some((at, row, (row.answer)(&pair.state, &input)?)));
            let (first, second) = (fits.next(), fits.next());
            assert!(second.is_none(), "two rows fit {case}");
            let wanted = first.map_or_else(
                || (pair.state.clone(), Vec::new()),
                |(at, _, answer)| {
                    used[at] = true;
                    answer
                },
            );
            assert_eq!(pair.state.clone().step(input, NOW, &TIMES), wanted, "{case}");
        }
    }
    let idle: Vec<_> = rows().zip(used).filter(|(_, used)| !used).map(|(row, _)| row.name).collect();
    assert!(idle.is_empty(), "rows that no reachable state meets: {idle:?}");
}
