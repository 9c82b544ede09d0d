//! A stop from a chat: it acts before this returns, is answered at once, and told again when it has settled.

use std::collections::HashSet;
use std::sync::Arc;

use quell_engine::cell::Cell;
use quell_engine::dispatch::{Stop, Ticket};
use quell_kernel::Push;
use quell_kernel::channel::commands::StopReach;
use quell_kernel::channel::keys::history_key;
use quell_kernel::registry::{StopAsk, StopScope};
use quell_protocol::api::Scope as Rights;
use quell_protocol::{ChannelMessage, InterruptionScope, Receipt, RunId, StopReason, Surface};

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
    let done = match reach {
        Reach::Refused => return outlet.seldom_of_stop(&extra.place, &message.sender, words::ONLY_OPERATORS),
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
    let found = Found::of(&done);
    if found.is_nothing() {
        return match aloud {
            // An earlier stop did it, and says so when it has settled.
            _ if found.ending => outlet.seldom_of_stop(&extra.place, &message.sender, words::STILL_STOPPING),
            Aloud::Always if done.stop.tasks.iter().any(|task| task.is_at_work()) => {
                outlet.seldom_of_stop(&extra.place, &message.sender, words::NOTHING_BUT_NOTES);
            }
            Aloud::Always => outlet.seldom_of_stop(&extra.place, &message.sender, words::NOTHING_TO_STOP),
            Aloud::IfItStopped => {}
        };
    }
    let (commands, behind) = (found.commands, found.behind);
    outlet.say_of_stop(&extra.place, words::stopping((found.runs.len(), commands), behind, found.waiting));
    // What came of its commands they say themselves.
    if !found.runs.is_empty() || behind > 0 {
        let told = found.runs.into_iter().map(|run| Arc::clone(run.cell())).collect();
        tell_when_settled(channels, extra, (done.stop, told, behind));
    }
}

/// What a stop did.
struct Done {
    stop: Stop,
    /// Messages that were taken back before a run was made of them.
    withdrawn: usize,
    /// Commands of the chat that were being done.
    commands: usize,
    /// Such that an earlier stop had told already.
    commands_ending: usize,
}

/// What a stop found, as people count it.
struct Found<'a> {
    /// Runs that were at work and that nothing else among them had started.
    runs: Vec<&'a Ticket>,
    /// Messages that will not be answered.
    waiting: usize,
    /// Commands of the chat that were being done.
    commands: usize,
    /// Background commands that it ends.
    behind: usize,
    /// Something is still ending because of an earlier stop.
    ending: bool,
}

impl<'a> Found<'a> {
    fn of(done: &'a Done) -> Self {
        let stop = &done.stop;
        let waited: HashSet<&RunId> = stop.withdrawn.iter().map(|(run, _)| run).collect();
        let roots = roots(stop, &stop.aborted);
        let (waiting, runs): (Vec<&Ticket>, Vec<&Ticket>) =
            roots.into_iter().partition(|run| waited.contains(run.cell().id()));
        let ending = !stop.ending.is_empty() || stop.processes.len() > stop.ended || done.commands_ending > 0;
        Self { runs, waiting: waiting.len() + done.withdrawn, commands: done.commands, behind: stop.ended, ending }
    }

    fn is_nothing(&self) -> bool {
        self.runs.is_empty() && self.waiting + self.commands + self.behind == 0
    }
}

/// Those of these runs that none of the others had started.
fn roots<'a>(stop: &'a Stop, runs: &[RunId]) -> Vec<&'a Ticket> {
    let these: HashSet<&RunId> = runs.iter().collect();
    let is_root = |ticket: &&Ticket| {
        let run = &ticket.cell().run;
        these.contains(&run.id) && run.parent.as_ref().is_none_or(|parent| !these.contains(parent))
    };
    stop.tickets.iter().filter(is_root).collect()
}

/// Stops what is covered.
fn act(
    channels: &Channels,
    message: &ChannelMessage,
    rights: Rights,
    scope: &StopScope,
    covered: impl Fn(&InterruptionScope) -> bool,
) -> Done {
    let engine = channels.engine();
    let caller = caller(&message.channel, &message.sender, rights);
    let ask = |push| StopAsk { push, reason: StopReason::Command, surface: Surface::Channel };
    // First what is no run yet: what becomes one in this very moment is a run when the engine is asked, or is in flight.
    let withdrawn = channels.inbox().stop(covered);
    channels.tell_left();
    let (ending, told): (Vec<Extra>, Vec<Extra>) =
        withdrawn.commands.into_iter().partition(|command| command.stopped.is_cancelled());
    for command in &told {
        command.stopped.cancel();
    }
    let mut stop = engine.stop(&caller, scope, &ask(Push::Gentle));
    // Who says it again, while the first one is being settled, means it. What a command of theirs ends was not stopped by a stop.
    let ends_already = !stop.ending.is_empty() || !stop.processes.is_empty();
    if !stop.did_something() && ends_already && told.is_empty() {
        stop = engine.stop(&caller, scope, &ask(Push::Forced));
    }
    let mut taken_back = withdrawn.letters.len();
    for (run, sender) in withdrawn.in_flight {
        let owner = super::principal(&message.channel, &sender);
        let of_run = engine.stop_coming(&caller, (&run, &owner), &ask(Push::Gentle));
        taken_back += usize::from(of_run.tickets.is_empty());
        stop.aborted.extend(of_run.aborted);
        stop.ending.extend(of_run.ending);
        stop.withdrawn.extend(of_run.withdrawn);
        let new = of_run.tickets.into_iter().filter(|new| !stop.tickets.iter().any(|known| same(known, new)));
        stop.tickets.extend(new.collect::<Vec<_>>());
    }
    Done { stop, withdrawn: taken_back, commands: told.len(), commands_ending: ending.len() }
}

fn same(one: &Ticket, other: &Ticket) -> bool {
    Arc::ptr_eq(one.cell(), other.cell())
}

/// Tells the receipts of what was at work, and that the commands have ended, when all of it is over.
fn tell_when_settled(channels: &Channels, extra: &Extra, (stop, told, commands): (Stop, Vec<Arc<Cell>>, usize)) {
    let Some(place) = extra.channel.outlet.place_for_news() else {
        // Under a flood of stops only so many are told; each has acted.
        return;
    };
    let (channels, extra, keep) = (channels.clone(), extra.clone(), place);
    let scope = channels.scope().clone();
    scope.spawn(async move {
        let _keep = keep;
        stop.settled().await;
        let receipts = told.iter().filter_map(|cell| cell.receipt());
        let receipts: Vec<Receipt> = receipts.filter(|receipt| !receipt.resources.is_empty()).collect();
        let left: Vec<&str> = stop.processes.iter().filter(|it| !it.is_gone()).map(|it| it.id.as_str()).collect();
        // Its section of the configuration may have been changed meanwhile.
        let channel = channels.channel(&extra.channel.name).unwrap_or_else(|| Arc::clone(&extra.channel));
        for text in words::all_settled(&receipts).into_iter().chain(words::commands_ended(commands, &left)) {
            channel.outlet.say_of_stop(&extra.place, text);
        }
    });
}
