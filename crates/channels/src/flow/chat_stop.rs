//! Handle a stop from a chat: stop runs, commands and waiting messages, reply at once, report when settled.

use std::collections::HashSet;
use std::sync::Arc;

use quell_engine::engine::{StopResult, Ticket, build_stop_answer};
use quell_engine::live_run::LiveRun;
use quell_kernel::StopLevel;
use quell_kernel::channel::commands::StopReach;
use quell_kernel::channel::session_keys::conversation_key;
use quell_kernel::registry::{StopRequest, StopScope};
use quell_protocol::api::{AccessLevel, StopAnswer, UnreachedNode};
use quell_protocol::{ChannelMessage, InterruptionScope, Receipt, RunId, StopReason, Surface};

use super::notices::NoticePriority;
use super::texts::StopCounts;
use super::{Channels, ChatOrigin, channel_caller, texts};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChannelStopScope {
    /// The sender's own runs in this conversation, and others in it that their access level allows.
    Conversation(AccessLevel),
    Channel,
    /// `/stop all` from a sender who is not an operator.
    Forbidden,
}

impl ChannelStopScope {
    pub(super) fn from_command(reach: StopReach, access_level: AccessLevel) -> Self {
        match reach {
            StopReach::Own => Self::Conversation(access_level),
            StopReach::All if access_level == AccessLevel::Admin => Self::Channel,
            StopReach::All => Self::Forbidden,
        }
    }
}

/// Whether to reply to a stop that found nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReplyPolicy {
    /// The message was addressed to the bot.
    Always,
    /// The message was a bare stop word, which people also say to each other.
    IfSomethingStopped,
}

/// Handles a stop. Not async: when it returns, the runs are being aborted and the waiting messages are withdrawn.
pub(super) fn handle_stop(
    channels: &Channels,
    message: &ChannelMessage,
    origin: &ChatOrigin,
    stop_scope: ChannelStopScope,
    reply_policy: StopReplyPolicy,
) {
    let push_unless_recent = |text| {
        let (notices, priority) = (&origin.channel.notices, NoticePriority::Stop);
        notices.push_unless_recent(priority, &origin.address, &message.sender, text);
    };
    let scope = message.interruption_scope();
    let stop = match stop_scope {
        ChannelStopScope::Forbidden => {
            return push_unless_recent(texts::STOP_ALL_NEEDS_OPERATOR.text(origin.language(channels)));
        }
        ChannelStopScope::Conversation(access_level) => {
            let is_covered = |other: &InterruptionScope| *other == scope;
            let stop_scope = StopScope::Conversation { scope: scope.clone(), session: conversation_key(message) };
            perform_stop(channels, message, access_level, &stop_scope, is_covered)
        }
        ChannelStopScope::Channel => {
            let is_covered = |other: &InterruptionScope| other.channel == message.channel;
            let stop_scope = StopScope::Channel { name: message.channel.clone() };
            perform_stop(channels, message, AccessLevel::Admin, &stop_scope, is_covered)
        }
    };
    if stop.engine_stop.is_carried_out() {
        return reply_to_stop(channels, message, origin, reply_policy, stop);
    }
    // The stop has been carried out here, and is on its way to the other nodes.
    let Some(permit) = origin.channel.notices.acquire_stop_permit() else {
        return reply_to_stop(channels, message, origin, reply_policy, stop);
    };
    let (channels, message, origin) = (channels.clone(), message.clone(), origin.clone());
    let scope = channels.scope().clone();
    scope.spawn(async move {
        let stop = wait_for_peers(&channels, &message, stop).await;
        drop(permit);
        reply_to_stop(&channels, &message, &origin, reply_policy, stop);
    });
}

/// Adds what other nodes have stopped. A stop of something that is ending there already forces it, as one here does.
async fn wait_for_peers(channels: &Channels, message: &ChannelMessage, mut stop: PerformedStop) -> PerformedStop {
    stop.engine_stop.wait_carried_out().await;
    stop.add_peers();
    if stop.is_empty() && stop.is_still_stopping && !stop.is_forced {
        let caller = channel_caller(&message.channel, &message.sender, stop.caller_scope);
        let request = stop_request(StopLevel::Forced);
        let paused = std::mem::take(&mut stop.engine_stop.schedules);
        stop.engine_stop = channels.engine().stop(&caller, &stop.scope, &request);
        stop.engine_stop.schedules.add_earlier(paused);
        stop.engine_stop.wait_carried_out().await;
        stop.add_peers();
    }
    stop
}

/// Tells what the stop has ended, and reports its end later.
fn reply_to_stop(
    channels: &Channels,
    message: &ChannelMessage,
    origin: &ChatOrigin,
    reply_policy: StopReplyPolicy,
    stop: PerformedStop,
) {
    let push_unless_recent = |text| {
        let (notices, priority) = (&origin.channel.notices, NoticePriority::Stop);
        notices.push_unless_recent(priority, &origin.address, &message.sender, text);
    };
    let language = origin.language(channels);
    let answer = build_stop_answer(&stop.engine_stop);
    let paused = texts::paused_schedules_text(&answer, language);
    if stop.is_empty() && stop.unreached.is_empty() && paused.is_none() {
        let ended_consolidation = stop.engine_stop.background.tasks.iter().any(|task| task.is_active());
        return match reply_policy {
            // An earlier stop ended them and will report when they have settled.
            _ if stop.is_still_stopping => push_unless_recent(texts::STILL_STOPPING.text(language)),
            StopReplyPolicy::Always if ended_consolidation => {
                push_unless_recent(texts::ONLY_CONSOLIDATION_STOPPED.text(language));
            }
            StopReplyPolicy::Always => push_unless_recent(texts::NOTHING_TO_STOP.text(language)),
            StopReplyPolicy::IfSomethingStopped => {}
        };
    }
    let background_commands = stop.background_commands();
    let runs = stop.stopped_runs.len() + stop.peer_runs.len();
    let counts = StopCounts {
        runs,
        commands: stop.stopped_commands,
        background_commands,
        withdrawn_messages: stop.withdrawn_messages,
    };
    let stopping = texts::stopping_text(counts, language);
    let unreached = texts::unreached_nodes_text(&stop.unreached, language);
    let parts = [Some(stopping).filter(|text| !text.is_empty()), paused, unreached];
    let text = parts.into_iter().flatten().collect::<Vec<_>>();
    origin.channel.notices.push(NoticePriority::Stop, &origin.address, text.join(" "));
    // Stopped commands report their own results.
    if runs > 0 || background_commands > 0 {
        report_when_settled(channels, origin, stop);
    }
}

/// What a stop ended, counted as people count it.
struct PerformedStop {
    engine_stop: StopResult,
    /// Active runs that were stopped, without those that another of them had started.
    stopped_runs: Vec<Arc<LiveRun>>,
    /// Messages that were withdrawn before they became runs, or as queued runs.
    withdrawn_messages: usize,
    stopped_commands: usize,
    /// Something that an earlier stop ended has not settled.
    is_still_stopping: bool,
    /// Runs that other nodes have stopped.
    peer_runs: Vec<RunId>,
    /// Background commands that other nodes have ended.
    peer_commands: usize,
    /// Nodes that do not answer; they carry out the stop later, or their lease ends.
    unreached: Vec<UnreachedNode>,
    scope: StopScope,
    caller_scope: AccessLevel,
    is_forced: bool,
}

impl PerformedStop {
    fn is_empty(&self) -> bool {
        let runs = self.stopped_runs.len() + self.peer_runs.len();
        runs + self.withdrawn_messages + self.stopped_commands + self.background_commands() == 0
    }

    fn background_commands(&self) -> usize {
        self.engine_stop.newly_ended_processes() + self.peer_commands
    }

    /// Counts what other nodes have answered.
    fn add_peers(&mut self) {
        let mut answer = StopAnswer::default();
        self.engine_stop.peers.add_to(&mut answer);
        let withdrawn: HashSet<&RunId> = answer.withdrawn.iter().map(|withdrawn| &withdrawn.run_id).collect();
        self.peer_runs = answer.run_ids.iter().filter(|run| !withdrawn.contains(run)).cloned().collect();
        self.withdrawn_messages += answer.withdrawn.len();
        if answer.aborted {
            self.peer_commands = answer.processes.len();
        } else {
            self.is_still_stopping |= !answer.processes.is_empty();
        }
        self.is_still_stopping |= !answer.ending.is_empty();
        self.unreached = answer.unreached;
    }
}

fn stop_request(level: StopLevel) -> StopRequest {
    StopRequest { level, reason: StopReason::Command, surface: Surface::Channel }
}

/// Those stopped runs that no other of them has started.
fn root_runs(stop: &StopResult) -> impl Iterator<Item = &Arc<LiveRun>> {
    let run_ids: HashSet<&RunId> = stop.aborted.iter().collect();
    let is_root = move |live_run: &&Arc<LiveRun>| {
        let run = &live_run.run;
        run_ids.contains(&run.id) && run.parent.as_ref().is_none_or(|parent| !run_ids.contains(parent))
    };
    stop.tickets.iter().map(Ticket::live_run).filter(is_root)
}

/// Stops the runs in `scope` and everything of this channel's inbox for which `is_covered` is true.
fn perform_stop(
    channels: &Channels,
    message: &ChannelMessage,
    caller_scope: AccessLevel,
    scope: &StopScope,
    is_covered: impl Fn(&InterruptionScope) -> bool,
) -> PerformedStop {
    let engine = channels.engine();
    let caller = channel_caller(&message.channel, &message.sender, caller_scope);
    let request = stop_request;
    // The inbox comes first: a message that becomes a run meanwhile is seen by the engine, or is listed as in flight.
    let withdrawn = channels.lock_inbox().stop(is_covered);
    channels.notify_inbox_changed();
    let (already_stopping, newly_stopped): (Vec<ChatOrigin>, Vec<ChatOrigin>) =
        withdrawn.commands.into_iter().partition(|command| command.stop_token.is_cancelled());
    for command in &newly_stopped {
        command.stop_token.cancel();
    }
    let mut stop = engine.stop(&caller, scope, &request(StopLevel::Gentle));
    // A second stop while the first one settles forces it. A stop that ended a command of the chat is not such a second
    // stop.
    let ends_already = !stop.already_ending.is_empty() || stop.has_processes();
    let is_forced = !stop.stopped_anything() && ends_already && newly_stopped.is_empty();
    if is_forced {
        let paused = std::mem::take(&mut stop.schedules);
        stop = engine.stop(&caller, scope, &request(StopLevel::Forced));
        stop.schedules.add_earlier(paused);
    }
    let mut withdrawn_messages = withdrawn.messages.len();
    for (run, sender) in withdrawn.in_flight {
        let owner = super::channel_principal(&message.channel, &sender);
        channels.cancel_session_wait(&run);
        let of_run = engine.stop_run_of_owner(&caller, &run, &owner, &request(StopLevel::Gentle));
        withdrawn_messages += usize::from(of_run.tickets.is_empty());
        stop.aborted.extend(of_run.aborted);
        stop.already_ending.extend(of_run.already_ending);
        stop.withdrawn.extend(of_run.withdrawn);
        let new = of_run.tickets.into_iter().filter(|new| !stop.tickets.iter().any(|known| is_same_run(known, new)));
        stop.tickets.extend(new.collect::<Vec<_>>());
    }
    let queued: HashSet<&RunId> = stop.withdrawn.iter().map(|(run, _)| run).collect();
    let (queued_runs, stopped_runs): (Vec<_>, Vec<_>) =
        root_runs(&stop).cloned().partition(|live_run| queued.contains(live_run.id()));
    let is_still_stopping = !stop.already_ending.is_empty()
        || stop.count_processes() > stop.newly_ended_processes()
        || !already_stopping.is_empty();
    PerformedStop {
        stopped_runs,
        withdrawn_messages: queued_runs.len() + withdrawn_messages,
        stopped_commands: newly_stopped.len(),
        is_still_stopping,
        peer_runs: Vec::new(),
        peer_commands: 0,
        unreached: Vec::new(),
        scope: scope.clone(),
        caller_scope,
        is_forced,
        engine_stop: stop,
    }
}

fn is_same_run(one: &Ticket, other: &Ticket) -> bool {
    Arc::ptr_eq(one.live_run(), other.live_run())
}

/// Sends the receipts of the stopped runs, and the end of their background commands, when all of it has settled.
fn report_when_settled(channels: &Channels, origin: &ChatOrigin, stop: PerformedStop) {
    let Some(permit) = origin.channel.notices.acquire_stop_permit() else {
        // A flood of stops gets a limited number of reports; every stop has acted.
        return;
    };
    let (channels, origin) = (channels.clone(), origin.clone());
    let scope = channels.scope().clone();
    scope.spawn(async move {
        let _permit = permit;
        let background_commands = stop.background_commands();
        let PerformedStop { engine_stop: mut stop, stopped_runs, peer_runs, .. } = stop;
        stop.wait_settled_everywhere().await;
        let mut receipts: Vec<Receipt> = stopped_runs.iter().filter_map(|live_run| live_run.receipt()).collect();
        for run in peer_runs {
            receipts.extend(channels.engine().find_run(&run).await.ok().flatten().and_then(|view| view.receipt));
        }
        receipts.retain(|receipt| !receipt.resources.is_empty());
        let left = stop.unclean_processes();
        let left: Vec<&str> = left.iter().map(String::as_str).collect();
        let language = origin.language(&channels);
        let commands_ended = texts::commands_ended_text(background_commands, &left, language);
        // The channel's configuration may have changed meanwhile.
        let channel = channels.current_channel(&origin.channel);
        for text in texts::stop_receipt_texts(&receipts, language).into_iter().chain(commands_ended) {
            channel.notices.push(NoticePriority::Stop, &origin.address, text);
        }
    });
}
