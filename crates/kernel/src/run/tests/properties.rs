//! Properties of every transition. Each property has a mutant that breaks only it.

use std::collections::HashSet;

use super::explore::{ExploredState, ExploredStep, Property, TimerState, explore};
use super::{Debts, RunEffect, RunState, RunStateInput, StopLevel};

pub(super) const PROPERTIES: &[Property] = &[
    Property { name: "one ending is announced, with the verdict", holds: one_ending },
    Property { name: "one end is announced, at Ended", holds: one_ended },
    Property { name: "ended never comes before ending", holds: |m| !m.after.effects_so_far.out_of_order },
    Property { name: "one spawn, at the start", holds: one_spawn },
    Property { name: "one cancel, with the verdict", holds: one_cancel },
    Property { name: "at most one kill", holds: |m| m.after.effects_so_far.killed <= 1 },
    Property { name: "force kills what is held", holds: force_kills },
    Property { name: "at most one seal", holds: |m| m.after.effects_so_far.sealed <= 1 },
    Property { name: "a started run is sealed at its end", holds: sealed_at_the_end },
    Property { name: "sealed before recorded can pay", holds: sealed_before_recorded },
    Property { name: "the first verdict wins", holds: first_verdict_wins },
    Property { name: "stop level only rises", holds: push_rises },
    Property { name: "debts only shrink", holds: debts_shrink },
    Property { name: "the right timer is armed while ending", holds: timer_armed },
    Property { name: "a timer that is not armed does nothing", holds: idle_timer_does_nothing },
    Property { name: "timers alone lead to the end", holds: timers_lead_to_the_end },
    Property { name: "nothing owed means ended", holds: nothing_owed_means_ended },
    Property { name: "an end with debts takes the hard limit", holds: debts_at_hard_limit_only },
    Property { name: "after the end only debts change", holds: only_debts_after_the_end },
];

#[test]
fn every_property_holds_in_every_reachable_pair() {
    let found = explore(RunState::step, PROPERTIES);
    println!("run machine: {} reachable pairs of state and effects so far", found.pairs.len());
    assert!(found.broken.is_empty(), "{:#?}", found.broken);
    let kinds: HashSet<_> = found.pairs.iter().map(|pair| std::mem::discriminant(&pair.state)).collect();
    assert_eq!(kinds.len(), 4, "queued, running, ending and ended are reached");
}

fn one_ending(m: &ExploredStep<'_>) -> bool {
    m.after.effects_so_far.ending == u8::from(m.after.state.verdict().is_some())
}

fn one_ended(m: &ExploredStep<'_>) -> bool {
    m.after.effects_so_far.ended == u8::from(m.after.state.is_ended())
}

fn one_spawn(m: &ExploredStep<'_>) -> bool {
    match m.after.state {
        RunState::Queued => m.after.effects_so_far.spawned == 0,
        RunState::Running | RunState::Ending { .. } => m.after.effects_so_far.spawned == 1,
        RunState::Ended { .. } => m.after.effects_so_far.spawned <= 1,
    }
}

fn one_cancel(m: &ExploredStep<'_>) -> bool {
    let due = m.after.state.verdict().is_some() && started(m.after);
    m.after.effects_so_far.cancelled == u8::from(due)
}

fn force_kills(m: &ExploredStep<'_>) -> bool {
    let held = matches!(m.after.state, RunState::Ending { level: StopLevel::Forced, debts, .. } if debts.release);
    !held || m.after.effects_so_far.killed > 0
}

fn sealed_at_the_end(m: &ExploredStep<'_>) -> bool {
    !(m.after.state.is_ended() && started(m.after)) || m.after.effects_so_far.sealed > 0
}

fn sealed_before_recorded(m: &ExploredStep<'_>) -> bool {
    let paid = debts(m.before).record && !debts(m.after).record;
    !paid || m.before.effects_so_far.sealed > 0
}

fn first_verdict_wins(m: &ExploredStep<'_>) -> bool {
    let first = match (m.before.state.verdict(), m.input) {
        (Some(verdict), _) => verdict.clone(),
        (None, RunStateInput::Abort { verdict, .. }) => verdict.clone(),
        (None, RunStateInput::WorkReturned(outcome)) => outcome.clone().into(),
        (None, _) => return m.after.state.verdict().is_none(),
    };
    m.after.state.verdict().is_none_or(|verdict| *verdict == first)
}

fn push_rises(m: &ExploredStep<'_>) -> bool {
    let level = |pair: &ExploredState| match pair.state {
        RunState::Ending { level, .. } => Some(level),
        RunState::Queued | RunState::Running | RunState::Ended { .. } => None,
    };
    level(m.before).is_none() || level(m.after).is_none() || level(m.after) >= level(m.before)
}

fn debts_shrink(m: &ExploredStep<'_>) -> bool {
    if m.before.state.verdict().is_none() {
        return true;
    }
    let (before, after) = (debts(m.before), debts(m.after));
    let grown = |was: bool, is: bool| is && !was;
    let found_again = before.record_lost && !after.record_lost;
    !(grown(before.seal, after.seal)
        || grown(before.record, after.record)
        || grown(before.release, after.release)
        || found_again)
}

fn timer_armed(m: &ExploredStep<'_>) -> bool {
    match m.after.state {
        RunState::Ending { level: StopLevel::Gentle, .. } => m.after.effects_so_far.grace == TimerState::Armed,
        RunState::Ending { level: StopLevel::Forced, .. } => m.after.effects_so_far.hard == TimerState::Armed,
        RunState::Queued | RunState::Running | RunState::Ended { .. } => true,
    }
}

fn idle_timer_does_nothing(m: &ExploredStep<'_>) -> bool {
    let timer = match m.input {
        RunStateInput::GracePassed => m.before.effects_so_far.grace,
        RunStateInput::HardLimitPassed => m.before.effects_so_far.hard,
        _ => return true,
    };
    timer != TimerState::Idle || (m.after == m.before && m.effects.is_empty())
}

/// The run reaches its end even if from now on only armed timers fire.
fn timers_lead_to_the_end(m: &ExploredStep<'_>) -> bool {
    let mut pair = m.after.clone();
    // Two timers are the longest path; a third step detects a cycle.
    for _ in 0..3 {
        if !matches!(pair.state, RunState::Ending { .. }) {
            return true;
        }
        let due = match (pair.effects_so_far.grace, pair.effects_so_far.hard) {
            (TimerState::Idle, TimerState::Idle) => return false,
            (TimerState::Idle, TimerState::Armed | TimerState::Misarmed) => RunStateInput::HardLimitPassed,
            (TimerState::Armed | TimerState::Misarmed, _) => RunStateInput::GracePassed,
        };
        pair = pair.step(m.step, &due).0;
    }
    pair.state.is_ended()
}

fn nothing_owed_means_ended(m: &ExploredStep<'_>) -> bool {
    !matches!(m.after.state, RunState::Ending { debts, .. } if debts.is_paid())
}

fn debts_at_hard_limit_only(m: &ExploredStep<'_>) -> bool {
    let ends = m.after.state.is_ended() && !m.before.state.is_ended();
    !ends || debts(m.after).is_paid() || *m.input == RunStateInput::HardLimitPassed
}

fn only_debts_after_the_end(m: &ExploredStep<'_>) -> bool {
    if !m.before.state.is_ended() {
        return true;
    }
    let paid = debts(m.before) != debts(m.after);
    let effects: &[RunEffect] = if paid { &[RunEffect::AmendReceipt] } else { &[] };
    m.after.state.is_ended() && m.effects == effects
}

fn started(pair: &ExploredState) -> bool {
    pair.effects_so_far.spawned > 0
}

fn debts(pair: &ExploredState) -> Debts {
    match pair.state {
        RunState::Ending { debts, .. } | RunState::Ended { debts, .. } => debts,
        RunState::Queued | RunState::Running => Debts::default(),
    }
}
