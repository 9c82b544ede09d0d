//! Run state machine: queued, running, ending, ended.
//!
//! The first verdict wins. The stop level only rises. Debts only shrink. The end is announced exactly once: when nothing is owed,
//! or at the hard limit with the open debts named. Every match arm below is a row of this table; there is no catch-all.
//!
//! | state | input | next | effects |
//! |---|---|---|---|
//! | Queued | start | Running | start work |
//! | Queued | abort | Ended (aborted) | announce ending, announce ended |
//! | Running | abort gentle | Ending (seal, record, release owed) | cancel, arm grace, announce ending |
//! | Running | abort forced | Ending (record, release owed) | cancel, kill, announce ending, seal, arm hard limit |
//! | Running | work returned | Ending (record, release owed) | announce ending, seal, cancel, arm grace |
//! | Ending | work returned, seal owed | seal paid | seal |
//! | Ending, gentle | abort forced | level forced | kill, seal if owed, arm hard limit |
//! | Ending, gentle | grace passed | level forced | kill unless nothing is held, seal if owed, arm hard limit |
//! | Ending | released | release paid; Ended if nothing is owed | seal if owed, announce ended if so |
//! | Ending, sealed | recorded / record failed | record paid / lost; Ended if nothing is owed | announce ended if so |
//! | Ending, forced | hard limit passed | Ended (open debts) | announce ended, debts named |
//! | Ended | released or recorded | that debt paid late | amend the receipt |
//! | any | anything else | unchanged | none |

use quell_protocol::Verdict;
use serde::{Deserialize, Serialize};

use crate::time::{Moment, StopTimeouts};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunState {
    /// Accepted, not started.
    Queued,
    Running,
    /// Has its verdict, and still owes something.
    Ending {
        verdict: Verdict,
        level: StopLevel,
        debts: Debts,
    },
    /// `run.ended` was announced.
    Ended {
        verdict: Verdict,
        /// Debts that were open at the hard limit; they may be paid late.
        debts: Debts,
    },
}

/// How hard a stop presses. It only rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StopLevel {
    /// Cancel futures, close connections, and send SIGTERM to processes first.
    Gentle,
    /// Kill everything at once.
    Forced,
}

/// What an ending run still owes before it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Debts {
    /// The draft is still open.
    pub seal: bool,
    /// The turn is not stored.
    pub record: bool,
    /// The run still holds resources.
    pub release: bool,
    /// Storing the turn failed for good: the record is no longer owed, and nothing was stored.
    pub record_lost: bool,
}

impl Debts {
    const ALL: Self = Self { seal: true, record: true, release: true, record_lost: false };

    pub fn is_paid(self) -> bool {
        !(self.seal || self.record || self.release)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkOutcome {
    Completed,
    Failed {
        /// Stable error code for programs.
        code: String,
        /// Text for people.
        message: String,
    },
}

impl From<WorkOutcome> for Verdict {
    fn from(outcome: WorkOutcome) -> Self {
        match outcome {
            WorkOutcome::Completed => Self::Completed,
            WorkOutcome::Failed { code, message } => Self::Failed { code, message },
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunStateInput {
    Start,
    /// A caller or a limit stops the run. `verdict` counts if the run has none yet.
    Abort {
        level: StopLevel,
        verdict: Verdict,
    },
    /// The agent loop returned. After an abort its outcome is ignored.
    WorkReturned(WorkOutcome),
    GracePassed,
    HardLimitPassed,
    /// Everything that the run held is released.
    Released,
    Recorded,
    /// The turn could not be stored and will not be.
    RecordFailed,
}

/// An action for the engine. Effects are carried out in the order of their list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEffect {
    StartWork,
    /// Cancel the scope: futures are dropped, wardens send SIGTERM.
    Cancel,
    /// Let the wardens send SIGKILL, and drop the work.
    Kill,
    /// Seal the draft and pass the turn on to be stored.
    Seal,
    /// Send [`RunStateInput::GracePassed`] at this moment.
    ArmGraceTimer(Moment),
    /// Send [`RunStateInput::HardLimitPassed`] at this moment.
    ArmHardLimitTimer(Moment),
    AnnounceEnding,
    AnnounceEnded,
    /// Change the stored receipt: a debt was paid after the end.
    AmendReceipt,
}

impl RunState {
    /// Computes the next state and the effects of an input.
    #[must_use]
    pub fn step(self, input: RunStateInput, now: Moment, times: &StopTimeouts) -> (Self, Vec<RunEffect>) {
        match self {
            Self::Queued => step_queued(input),
            Self::Running => step_running(input, now, times),
            Self::Ending { verdict, level, debts } => {
                step_ending(EndingRun { verdict, level, debts }, input, now, times)
            }
            Self::Ended { verdict, debts } => step_ended(verdict, debts, &input),
        }
    }

    pub fn verdict(&self) -> Option<&Verdict> {
        match self {
            Self::Queued | Self::Running => None,
            Self::Ending { verdict, .. } | Self::Ended { verdict, .. } => Some(verdict),
        }
    }

    /// True once the end was announced.
    pub fn is_ended(&self) -> bool {
        matches!(self, Self::Ended { .. })
    }
}

fn step_queued(input: RunStateInput) -> (RunState, Vec<RunEffect>) {
    match input {
        RunStateInput::Start => (RunState::Running, vec![RunEffect::StartWork]),
        RunStateInput::Abort { level: _, verdict } => {
            let state = RunState::Ended { verdict, debts: Debts::default() };
            (state, vec![RunEffect::AnnounceEnding, RunEffect::AnnounceEnded])
        }
        RunStateInput::WorkReturned(_)
        | RunStateInput::GracePassed
        | RunStateInput::HardLimitPassed
        | RunStateInput::Released
        | RunStateInput::Recorded
        | RunStateInput::RecordFailed => (RunState::Queued, Vec::new()),
    }
}

fn step_running(input: RunStateInput, now: Moment, times: &StopTimeouts) -> (RunState, Vec<RunEffect>) {
    match input {
        RunStateInput::Abort { level: StopLevel::Gentle, verdict } => {
            let state = RunState::Ending { verdict, level: StopLevel::Gentle, debts: Debts::ALL };
            (state, vec![RunEffect::Cancel, RunEffect::ArmGraceTimer(now.plus(times.grace)), RunEffect::AnnounceEnding])
        }
        RunStateInput::Abort { level: StopLevel::Forced, verdict } => {
            let debts = Debts { seal: false, ..Debts::ALL };
            let state = RunState::Ending { verdict, level: StopLevel::Forced, debts };
            let hard = RunEffect::ArmHardLimitTimer(now.plus(times.hard));
            (state, vec![RunEffect::Cancel, RunEffect::Kill, RunEffect::AnnounceEnding, RunEffect::Seal, hard])
        }
        RunStateInput::WorkReturned(outcome) => {
            let debts = Debts { seal: false, ..Debts::ALL };
            let state = RunState::Ending { verdict: outcome.into(), level: StopLevel::Gentle, debts };
            let grace = RunEffect::ArmGraceTimer(now.plus(times.grace));
            (state, vec![RunEffect::AnnounceEnding, RunEffect::Seal, RunEffect::Cancel, grace])
        }
        RunStateInput::Start
        | RunStateInput::GracePassed
        | RunStateInput::HardLimitPassed
        | RunStateInput::Released
        | RunStateInput::Recorded
        | RunStateInput::RecordFailed => (RunState::Running, Vec::new()),
    }
}

struct EndingRun {
    verdict: Verdict,
    level: StopLevel,
    debts: Debts,
}

fn step_ending(
    ending: EndingRun,
    input: RunStateInput,
    now: Moment,
    times: &StopTimeouts,
) -> (RunState, Vec<RunEffect>) {
    let EndingRun { level, debts, .. } = ending;
    match input {
        RunStateInput::WorkReturned(_) if debts.seal => {
            ending.apply_debts(Debts { seal: false, ..debts }, vec![RunEffect::Seal])
        }
        RunStateInput::Abort { level: StopLevel::Forced, .. } if level == StopLevel::Gentle => {
            ending.force(vec![RunEffect::Kill], now, times)
        }
        RunStateInput::GracePassed if level == StopLevel::Gentle => {
            // Without held resources there is nothing to kill: the run only waits for the database.
            let kill = if debts.release { vec![RunEffect::Kill] } else { Vec::new() };
            ending.force(kill, now, times)
        }
        RunStateInput::Released if debts.release => {
            let seal = if debts.seal { vec![RunEffect::Seal] } else { Vec::new() };
            ending.apply_debts(Debts { seal: false, release: false, ..debts }, seal)
        }
        RunStateInput::Recorded if debts.record && !debts.seal => {
            ending.apply_debts(Debts { record: false, ..debts }, Vec::new())
        }
        RunStateInput::RecordFailed if debts.record && !debts.seal => {
            ending.apply_debts(Debts { record: false, record_lost: true, ..debts }, Vec::new())
        }
        RunStateInput::HardLimitPassed if level == StopLevel::Forced => {
            (RunState::Ended { verdict: ending.verdict, debts }, vec![RunEffect::AnnounceEnded])
        }
        RunStateInput::Start
        | RunStateInput::Abort { .. }
        | RunStateInput::WorkReturned(_)
        | RunStateInput::GracePassed
        | RunStateInput::HardLimitPassed
        | RunStateInput::Released
        | RunStateInput::Recorded
        | RunStateInput::RecordFailed => ending.apply_debts(debts, Vec::new()),
    }
}

impl EndingRun {
    fn force(self, mut effects: Vec<RunEffect>, now: Moment, times: &StopTimeouts) -> (RunState, Vec<RunEffect>) {
        if self.debts.seal {
            effects.push(RunEffect::Seal);
        }
        effects.push(RunEffect::ArmHardLimitTimer(now.plus(times.hard)));
        let debts = Debts { seal: false, ..self.debts };
        (RunState::Ending { verdict: self.verdict, level: StopLevel::Forced, debts }, effects)
    }

    fn apply_debts(self, debts: Debts, mut effects: Vec<RunEffect>) -> (RunState, Vec<RunEffect>) {
        if debts.is_paid() {
            effects.push(RunEffect::AnnounceEnded);
            return (RunState::Ended { verdict: self.verdict, debts }, effects);
        }
        (RunState::Ending { verdict: self.verdict, level: self.level, debts }, effects)
    }
}

fn step_ended(verdict: Verdict, debts: Debts, input: &RunStateInput) -> (RunState, Vec<RunEffect>) {
    let paid = match input {
        RunStateInput::Released if debts.release => Debts { release: false, ..debts },
        RunStateInput::Recorded if debts.record => Debts { record: false, ..debts },
        RunStateInput::Start
        | RunStateInput::Abort { .. }
        | RunStateInput::WorkReturned(_)
        | RunStateInput::GracePassed
        | RunStateInput::HardLimitPassed
        | RunStateInput::Released
        | RunStateInput::Recorded
        | RunStateInput::RecordFailed => debts,
    };
    let effects = if paid == debts { Vec::new() } else { vec![RunEffect::AmendReceipt] };
    (RunState::Ended { verdict, debts: paid }, effects)
}

#[cfg(test)]
mod tests;
