//! A stop from a chat: it acts before this returns, is answered at once, and told again when it has settled.

use std::sync::Arc;

use quell_engine::dispatch::{Stop, Ticket};
use quell_kernel::Push;
use quell_kernel::channel::commands::StopReach;
use quell_kernel::channel::keys::history_key;
use quell_kernel::registry::{StopAsk, StopScope};
use quell_protocol::api::Scope as Rights;
use quell_protocol::{ChannelMessage, InterruptionScope, RunId, StopReason, Surface};

use super::{Channels, Extra, caller, words};

/// How far a stop goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// What the sender asked for here, and what else in this conversation they may stop.
    Conversation(Rights),
    /// Everything in this channel.
    Channel,
    /// Everything was asked for by somebody who may not.
    Refused,
}

impl Reach {
    pub(super) fn of(asked: StopReach, rights: Rights) -> Self {
        match asked {
            StopReach::Own => Self::Conversation(rights),
            StopReach::All if rights == Rights::Admin => Self::Channel,
            StopReach::All => Self::Refused,
        }
    }
}

/// Whether a stop that found nothing is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aloud {
    /// It was said to the account.
    Always,
    /// People say such words to each other.
    IfItStopped,
}

/// Stops. Not async: when it returns, runs are being aborted, and what waited has been taken back.
pub(super) fn stop(channels: &Channels, (message, extra): (&ChannelMessage, &Extra), (reach, aloud): (Reach, Aloud)) {
    let outlet = &extra.channel.outlet;
    let scope = message.interruption_scope();
    let (stop, withdrawn) = match reach {
        Reach::Refused => return outlet.seldom(&extra.place, &message.sender, words::ONLY_OPERATORS),
        Reach::Conversation(rights) => {
            let covered = |other: &InterruptionScope| *other == scope;
            let whole = StopScope::Conversation { scope: scope.clone(), session: history_key(message) };
            act(channels, message, rights, &whole, covered)
        }
        Reach::Channel => {
            let covered = |other: &InterruptionScope| other.channel == message.channel;
            act(channels, message, Rights::Admin, &StopScope::Channel { name: message.channel.clone() }, covered)
        }
    };
    let queued = stop.withdrawn.len();
    let runs = roots(&stop, &stop.aborted).saturating_sub(queued);
    if runs + queued + withdrawn + stop.ended == 0 {
        return match (aloud, roots(&stop, &stop.ending)) {
            // An earlier stop did it, and says so when it has settled.
            (_, 1..) => outlet.seldom(&extra.place, &message.sender, words::STILL_STOPPING),
            (Aloud::Always, 0) => outlet.seldom(&extra.place, &message.sender, words::NOTHING_TO_STOP),
            (Aloud::IfItStopped, 0) => {}
        };
    }
    outlet.say_of_stop(&extra.place, words::stopping(runs, withdrawn + queued));
    if runs > 0 {
        tell_when_settled(channels, extra, stop);
    }
}

/// How many of these runs were asked for in a chat: what they started is not counted by itself.
fn roots(stop: &Stop, runs: &[RunId]) -> usize {
    let is_root = |ticket: &&Ticket| {
        let run = &ticket.cell().run;
        run.parent.is_none() && runs.contains(&run.id)
    };
    stop.tickets.iter().filter(is_root).count()
}

/// Answers what was stopped, and how many messages were taken back before a run was made of them.
fn act(
    channels: &Channels,
    message: &ChannelMessage,
    rights: Rights,
    scope: &StopScope,
    covered: impl Fn(&InterruptionScope) -> bool,
) -> (Stop, usize) {
    let engine = channels.engine();
    let caller = caller(&message.channel, &message.sender, rights);
    let ask = |push| StopAsk { push, reason: StopReason::Command, surface: Surface::Channel };
    // First what is no run yet: what becomes one in this very moment is a run when the engine is asked, or is in flight.
    let withdrawn = channels.inbox().stop(covered);
    channels.tell_left();
    let mut stop = engine.stop(&caller, scope, &ask(Push::Gentle));
    // Who says it again, while the first one is being settled, means it.
    if stop.aborted.is_empty() && !stop.ending.is_empty() {
        stop = engine.stop(&caller, scope, &ask(Push::Forced));
    }
    let mut taken_back = withdrawn.letters.len();
    for (run, sender) in withdrawn.in_flight {
        // A stop of a run that is not known yet is kept for whoever will have sent it.
        let sender = super::caller(&message.channel, &sender, Rights::Write);
        let of_run = engine.stop(&sender, &StopScope::Run { id: run, session: None }, &ask(Push::Gentle));
        taken_back += usize::from(of_run.tickets.is_empty());
        stop.aborted.extend(of_run.aborted);
        stop.ending.extend(of_run.ending);
        let new = of_run.tickets.into_iter().filter(|new| !stop.tickets.iter().any(|known| same(known, new)));
        stop.tickets.extend(new.collect::<Vec<_>>());
    }
    (stop, taken_back)
}

fn same(one: &Ticket, other: &Ticket) -> bool {
    Arc::ptr_eq(one.cell(), other.cell())
}

/// Tells the receipts of what was at work, when it is over.
fn tell_when_settled(channels: &Channels, extra: &Extra, stop: Stop) {
    let Some(place) = extra.channel.outlet.place_for_news() else {
        // Under a flood of stops only so many are told; each has acted.
        return;
    };
    let (extra, keep) = (extra.clone(), place);
    channels.scope().spawn(async move {
        let _keep = keep;
        stop.settled().await;
        let told = stop.tickets.iter().map(Ticket::cell).filter(|cell| {
            let run = &cell.run;
            run.parent.is_none() && stop.aborted.contains(&run.id)
        });
        let receipts = told.filter_map(|cell| cell.receipt()).filter(|receipt| !receipt.resources.is_empty());
        for text in words::all_settled(&receipts.collect::<Vec<_>>()) {
            extra.channel.outlet.say_of_stop(&extra.place, text);
        }
    });
}
