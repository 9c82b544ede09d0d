//! Shared inputs of the tests of the run machine.

mod explore;
mod mutants;
mod properties;
mod table;

use std::time::Duration;

use quell_protocol::{Principal, Requester, StopReason, Surface, Verdict};

use super::{Debts, RunEffect, RunState, RunStateInput, StopLevel, WorkOutcome};
use crate::time::{Moment, StopTimeouts};

/// A transition function: [`RunState::step`], or that of a mutant.
type StepFn = fn(RunState, RunStateInput, Moment, &StopTimeouts) -> (RunState, Vec<RunEffect>);

/// The moment of every input. States contain no time, so one moment is enough.
const NOW: Moment = Moment(Duration::from_secs(1000));

/// All three differ, so that a timer with the wrong duration is noticed.
const TIMES: StopTimeouts =
    StopTimeouts { term: Duration::from_millis(1), grace: Duration::from_millis(20), hard: Duration::from_millis(300) };

fn grace_timer() -> RunEffect {
    RunEffect::ArmGraceTimer(NOW.plus(TIMES.grace))
}

fn hard_limit_timer() -> RunEffect {
    RunEffect::ArmHardLimitTimer(NOW.plus(TIMES.hard))
}

fn aborted(reason: StopReason) -> Verdict {
    let by = Principal::parse("ann").ok().map(|principal| Requester { principal, surface: Surface::Http });
    Verdict::Aborted { reason, by }
}

fn abort(level: StopLevel, reason: StopReason) -> RunStateInput {
    RunStateInput::Abort { level, verdict: aborted(reason) }
}

fn failed() -> WorkOutcome {
    WorkOutcome::Failed { code: "model_error".into(), message: "it broke".into() }
}

/// Every input, with two reasons per kind of abort and both outcomes, so that a changed verdict is noticed.
fn inputs() -> Vec<RunStateInput> {
    vec![
        RunStateInput::Start,
        abort(StopLevel::Gentle, StopReason::User),
        abort(StopLevel::Gentle, StopReason::Timeout),
        abort(StopLevel::Forced, StopReason::User),
        abort(StopLevel::Forced, StopReason::Timeout),
        RunStateInput::WorkReturned(WorkOutcome::Completed),
        RunStateInput::WorkReturned(failed()),
        RunStateInput::GracePassed,
        RunStateInput::HardLimitPassed,
        RunStateInput::Released,
        RunStateInput::Recorded,
        RunStateInput::RecordFailed,
    ]
}
