//! The run machine, held against its table in ARCHITECTURE.md and explored to its fixpoint.

mod explore;
mod mutants;
mod properties;
mod table;

use std::time::Duration;

use quell_protocol::{By, Principal, StopReason, Surface, Verdict};

use super::{Debts, Effect, Input, Outcome, Push, RunState};
use crate::time::{Moment, StopTimes};

/// One transition, as [`RunState::step`] is one; mutants are others.
type Step = fn(RunState, Input, Moment, &StopTimes) -> (RunState, Vec<Effect>);

/// When everything happens here. The machine's states hold no time, so one moment is as good as many.
const NOW: Moment = Moment(Duration::from_secs(1000));

/// All three differ, so that a timer armed with the wrong one shows.
const TIMES: StopTimes =
    StopTimes { term: Duration::from_millis(1), grace: Duration::from_millis(20), hard: Duration::from_millis(300) };

fn grace() -> Effect {
    Effect::ArmGrace(NOW.plus(TIMES.grace))
}

fn hard() -> Effect {
    Effect::ArmHard(NOW.plus(TIMES.hard))
}

fn aborted(reason: StopReason) -> Verdict {
    let by = Principal::parse("ann").ok().map(|principal| By { principal, surface: Surface::Http });
    Verdict::Aborted { reason, by }
}

fn abort(push: Push, reason: StopReason) -> Input {
    Input::Abort { push, verdict: aborted(reason) }
}

fn failed() -> Outcome {
    Outcome::Failed { code: "model_error".into(), message: "it broke".into() }
}

/// Every input, with two reasons for each kind of abort and both outcomes, so that a verdict that changes shows.
fn inputs() -> Vec<Input> {
    vec![
        Input::Start,
        abort(Push::Gentle, StopReason::User),
        abort(Push::Gentle, StopReason::Timeout),
        abort(Push::Forced, StopReason::User),
        abort(Push::Forced, StopReason::Timeout),
        Input::Returned(Outcome::Completed),
        Input::Returned(failed()),
        Input::GracePassed,
        Input::HardPassed,
        Input::Released,
        Input::Recorded,
        Input::RecordFailed,
    ]
}
