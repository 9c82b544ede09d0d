//! The life of a run: queued, running, ending, ended.
//!
//! The first verdict wins; push only rises; debts only shrink; the end is announced exactly once, when nothing is owed or at
//! the hard limit with the open debts named. Every arm below is a row of this table; there is no catch-all.
//!
//! | state | input | next | effects |
//! |---|---|---|---|
//! | Queued | start | Running | spawn |
//! | Queued | abort | Ended (aborted) | announce ending, announce ended |
//! | Running | abort gentle | Ending (seal, record, release owed) | cancel, arm grace, announce ending |
//! | Running | abort forced | Ending (record, release owed) | cancel, kill, announce ending, seal, arm hard limit |
//! | Running | work returned | Ending (record, release owed) | announce ending, seal, cancel, arm grace |
//! | Ending | work returned, seal owed | seal paid | seal |
//! | Ending, gentle | abort forced | push forced | kill, seal if owed, arm hard limit |
//! | Ending, gentle | grace passed | push forced | kill unless nothing is held, seal if owed, arm hard limit |
//! | Ending | released | release paid; Ended if nothing is owed | seal if owed, announce ended if so |
//! | Ending, sealed | recorded / record failed | record paid / lost; Ended if nothing is owed | announce ended if so |
//! | Ending, forced | hard limit passed | Ended (open debts) | announce ended, debts named |
//! | Ended | released or recorded | that debt paid late | amend the receipt |
//! | any | anything else | unchanged | none |

use quell_protocol::Verdict;

use crate::time::{Moment, StopTimes};

/// Where a run stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunState {
    /// Accepted, not begun.
    Queued,
    /// At work.
    Running,
    /// The verdict stands; something is still owed.
    Ending {
        /// The first verdict.
        verdict: Verdict,
        /// How hard it is pushed.
        push: Push,
        /// What is owed.
        debts: Debts,
    },
    /// Announced as over.
    Ended {
        /// The first verdict.
        verdict: Verdict,
        /// What was still owed at the hard limit; paid late, if ever.
        debts: Debts,
    },
}

/// How hard an ending is pushed. Only rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Push {
    /// Futures are cancelled, processes get SIGTERM first.
    Gentle,
    /// Everything is killed.
    Forced,
}

/// What a run still owes before it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Debts {
    /// The draft is still open.
    pub seal: bool,
    /// The turn is not committed.
    pub record: bool,
    /// The run still holds something.
    pub release: bool,
    /// The record was tried and failed: nothing is owed any more, and nothing was written.
    pub record_lost: bool,
}

impl Debts {
    const ALL: Self = Self { seal: true, record: true, release: true, record_lost: false };

    /// True when nothing is owed.
    #[must_use]
    pub fn paid(self) -> bool {
        !(self.seal || self.record || self.release)
    }

    /// The open debts by name, for the receipt.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        let all = [(self.seal, "seal"), (self.record, "record"), (self.release, "release")];
        all.into_iter().filter(|(owed, _)| *owed).map(|(_, name)| name).collect()
    }
}

/// What the work of a run comes back with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It has an answer.
    Completed,
    /// It could not go on.
    Failed {
        /// Stable word.
        code: String,
        /// For people.
        message: String,
    },
}

impl From<Outcome> for Verdict {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Completed => Self::Completed,
            Outcome::Failed { code, message } => Self::Failed { code, message },
        }
    }
}

/// What can happen to a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Its turn has come.
    Start,
    /// Somebody or some limit stops it; `verdict` is the aborted one.
    Abort {
        /// How hard.
        push: Push,
        /// The verdict to hold from now on, if none does.
        verdict: Verdict,
    },
    /// The agent loop returned; after an abort its outcome no longer matters.
    Returned(Outcome),
    /// The grace timer fired.
    GracePassed,
    /// The hard timer fired.
    HardPassed,
    /// Everything held is back.
    Released,
    /// The turn is committed.
    Recorded,
    /// The turn could not be committed and will not be.
    RecordFailed,
}

/// What the engine has to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Start the work.
    Spawn,
    /// Fire the token: futures are dropped, wardens told to TERM.
    Cancel,
    /// Tell the wardens to KILL and drop the work.
    Kill,
    /// Close the draft and hand the turn to the recorder.
    Seal,
    /// Send [`Input::GracePassed`] at this moment.
    ArmGrace(Moment),
    /// Send [`Input::HardPassed`] at this moment.
    ArmHard(Moment),
    /// Announce `run.ending`.
    AnnounceEnding,
    /// Announce `run.ended`.
    AnnounceEnded,
    /// A debt was paid after the end: the stored receipt changes.
    AmendReceipt,
}

impl RunState {
    /// One transition. Pure: the same arguments give the same answer.
    #[must_use]
    pub fn step(self, input: Input, now: Moment, times: &StopTimes) -> (Self, Vec<Effect>) {
        match self {
            Self::Queued => queued(input),
            Self::Running => running(input, now, times),
            Self::Ending { verdict, push, debts } => ending(Owing { verdict, push, debts }, input, now, times),
            Self::Ended { verdict, debts } => ended(verdict, debts, &input),
        }
    }

    /// `queued`, `running`, `ending`, `ended`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Ending { .. } => "ending",
            Self::Ended { .. } => "ended",
        }
    }

    /// The verdict, once there is one.
    #[must_use]
    pub fn verdict(&self) -> Option<&Verdict> {
        match self {
            Self::Queued | Self::Running => None,
            Self::Ending { verdict, .. } | Self::Ended { verdict, .. } => Some(verdict),
        }
    }

    /// True once `run.ended` was announced.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        matches!(self, Self::Ended { .. })
    }
}

fn queued(input: Input) -> (RunState, Vec<Effect>) {
    match input {
        Input::Start => (RunState::Running, vec![Effect::Spawn]),
        Input::Abort { push: _, verdict } => {
            let state = RunState::Ended { verdict, debts: Debts::default() };
            (state, vec![Effect::AnnounceEnding, Effect::AnnounceEnded])
        }
        Input::Returned(_)
        | Input::GracePassed
        | Input::HardPassed
        | Input::Released
        | Input::Recorded
        | Input::RecordFailed => (RunState::Queued, Vec::new()),
    }
}

fn running(input: Input, now: Moment, times: &StopTimes) -> (RunState, Vec<Effect>) {
    match input {
        Input::Abort { push: Push::Gentle, verdict } => {
            let state = RunState::Ending { verdict, push: Push::Gentle, debts: Debts::ALL };
            (state, vec![Effect::Cancel, Effect::ArmGrace(now.plus(times.grace)), Effect::AnnounceEnding])
        }
        Input::Abort { push: Push::Forced, verdict } => {
            let debts = Debts { seal: false, ..Debts::ALL };
            let state = RunState::Ending { verdict, push: Push::Forced, debts };
            let hard = Effect::ArmHard(now.plus(times.hard));
            (state, vec![Effect::Cancel, Effect::Kill, Effect::AnnounceEnding, Effect::Seal, hard])
        }
        Input::Returned(outcome) => {
            let debts = Debts { seal: false, ..Debts::ALL };
            let state = RunState::Ending { verdict: outcome.into(), push: Push::Gentle, debts };
            let grace = Effect::ArmGrace(now.plus(times.grace));
            (state, vec![Effect::AnnounceEnding, Effect::Seal, Effect::Cancel, grace])
        }
        Input::Start
        | Input::GracePassed
        | Input::HardPassed
        | Input::Released
        | Input::Recorded
        | Input::RecordFailed => (RunState::Running, Vec::new()),
    }
}

/// An ending run, taken apart.
struct Owing {
    verdict: Verdict,
    push: Push,
    debts: Debts,
}

fn ending(owing: Owing, input: Input, now: Moment, times: &StopTimes) -> (RunState, Vec<Effect>) {
    let Owing { push, debts, .. } = owing;
    match input {
        Input::Returned(_) if debts.seal => owing.pay(Debts { seal: false, ..debts }, vec![Effect::Seal]),
        Input::Abort { push: Push::Forced, .. } if push == Push::Gentle => owing.force(vec![Effect::Kill], now, times),
        Input::GracePassed if push == Push::Gentle => {
            // What only waits for the database has nothing left to kill.
            let kill = if debts.release { vec![Effect::Kill] } else { Vec::new() };
            owing.force(kill, now, times)
        }
        Input::Released if debts.release => {
            let seal = if debts.seal { vec![Effect::Seal] } else { Vec::new() };
            owing.pay(Debts { seal: false, release: false, ..debts }, seal)
        }
        Input::Recorded if debts.record && !debts.seal => owing.pay(Debts { record: false, ..debts }, Vec::new()),
        Input::RecordFailed if debts.record && !debts.seal => {
            owing.pay(Debts { record: false, record_lost: true, ..debts }, Vec::new())
        }
        Input::HardPassed if push == Push::Forced => {
            (RunState::Ended { verdict: owing.verdict, debts }, vec![Effect::AnnounceEnded])
        }
        Input::Start
        | Input::Abort { .. }
        | Input::Returned(_)
        | Input::GracePassed
        | Input::HardPassed
        | Input::Released
        | Input::Recorded
        | Input::RecordFailed => owing.pay(debts, Vec::new()),
    }
}

impl Owing {
    fn force(self, mut effects: Vec<Effect>, now: Moment, times: &StopTimes) -> (RunState, Vec<Effect>) {
        if self.debts.seal {
            effects.push(Effect::Seal);
        }
        effects.push(Effect::ArmHard(now.plus(times.hard)));
        let debts = Debts { seal: false, ..self.debts };
        (RunState::Ending { verdict: self.verdict, push: Push::Forced, debts }, effects)
    }

    fn pay(self, debts: Debts, mut effects: Vec<Effect>) -> (RunState, Vec<Effect>) {
        if debts.paid() {
            effects.push(Effect::AnnounceEnded);
            return (RunState::Ended { verdict: self.verdict, debts }, effects);
        }
        (RunState::Ending { verdict: self.verdict, push: self.push, debts }, effects)
    }
}

fn ended(verdict: Verdict, debts: Debts, input: &Input) -> (RunState, Vec<Effect>) {
    let paid = match input {
        Input::Released if debts.release => Debts { release: false, ..debts },
        Input::Recorded if debts.record => Debts { record: false, ..debts },
        Input::Start
        | Input::Abort { .. }
        | Input::Returned(_)
        | Input::GracePassed
        | Input::HardPassed
        | Input::Released
        | Input::Recorded
        | Input::RecordFailed => debts,
    };
    let effects = if paid == debts { Vec::new() } else { vec![Effect::AmendReceipt] };
    (RunState::Ended { verdict, debts: paid }, effects)
}

#[cfg(test)]
mod tests;
