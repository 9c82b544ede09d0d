//! Handle a stop from a chat: stop runs, commands and waiting messages, reply at once, report when settled.

use std::collections::HashSet;
use std::sync::Arc;

use quell_engine::engine::{StopResult, Ticket};
use quell_engine::live_run::LiveRun;
use quell_kernel::StopLevel;
use quell_kernel::channel::commands::StopReach;
use quell_kernel::channel::session_keys::conversation_key;
use quell_kernel::registry::{StopRequest, StopScope};
use quell_protocol::api::AccessLevel;
use quell_protocol::{ChannelMessage, InterruptionScope, Receipt, RunId, StopReason, Surface};

use super::{Channels, ChatOrigin, channel_caller, texts};

/// Reach of a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChannelStopScope {
    /// The sender's own runs in this conversation, and others in it that their access level allows.
    Conversation(AccessLevel),
    /// Everything in this channel.
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
    let notices = &origin.channel.notices;
    let scope = message.interruption_scope();
    let result = match stop_scope {
        ChannelStopScope::Forbidden => {
            return notices.push_stop_reply_unless_recent(
                &origin.address,
                &message.sender,
                texts::STOP_ALL_NEEDS_OPERATOR,
            );
        }
        ChannelStopScope::Conversation(access_level) => {
            let is_covered = |other: &InterruptionScope| *other == scope;
            let stop_scope = StopScope::Conversation { scope: scope.clone(), session: conversation_key(message) };
            perform_stop(channels, message, access_level, &stop_scope, is_covered)
        }
        ChannelStopScope::Channel => {
            let is_covered = |other: &InterruptionScope| other.channel == message.channel;
            perform_stop(
                channels,
                message,
                AccessLevel::Admin,
                &StopScope::Channel { name: message.channel.clone() },
                is_covered,
            )
        }
    };
    let summary = ChatStopSummary::from_result(&result);
    if summary.is_empty() {
        return match reply_policy {
            // An earlier stop ended them and will report when they have settled.
            _ if summary.is_still_stopping => {
                notices.push_stop_reply_unless_recent(&origin.address, &message.sender, texts::STILL_STOPPING)
            }
            StopReplyPolicy::Always if result.engine_stop.background.tasks.iter().any(|task| task.is_active()) => {
                notices.push_stop_reply_unless_recent(
                    &origin.address,
                    &message.sender,
                    texts::ONLY_CONSOLIDATION_STOPPED,
                );
            }
            StopReplyPolicy::Always => {
                notices.push_stop_reply_unless_recent(&origin.address, &message.sender, texts::NOTHING_TO_STOP)
            }
            StopReplyPolicy::IfSomethingStopped => {}
        };
    }
    let (commands, background_commands) = (summary.stopped_commands, summary.background_commands);
    notices.push_stop_reply(
        &origin.address,
        texts::stopping_text(summary.stopped_runs.len(), commands, background_commands, summary.withdrawn_messages),
    );
    // Stopped commands report their own results.
    if !summary.stopped_runs.is_empty() || background_commands > 0 {
        let live_runs = summary.stopped_runs.into_iter().map(|run| Arc::clone(run.live_run())).collect();
        report_when_settled(channels, origin, result.engine_stop, live_runs, background_commands);
    }
}

struct ChatStopResult {
    engine_stop: StopResult,
    /// Messages that were withdrawn before they became runs.
    withdrawn_messages: usize,
    stopped_commands: usize,
    /// Commands that an earlier stop had already cancelled.
    commands_already_stopping: usize,
}

/// The result of a stop, counted as people count it.
struct ChatStopSummary<'a> {
    /// Active runs that were stopped, without those that another of them had started.
    stopped_runs: Vec<&'a Ticket>,
    withdrawn_messages: usize,
    stopped_commands: usize,
    background_commands: usize,
    /// Something that an earlier stop ended has not settled.
    is_still_stopping: bool,
}

impl<'a> ChatStopSummary<'a> {
    fn from_result(result: &'a ChatStopResult) -> Self {
        let stop = &result.engine_stop;
        let queued_run_ids: HashSet<&RunId> = stop.withdrawn.iter().map(|(run, _)| run).collect();
        let roots = root_tickets(stop, &stop.aborted);
        let (waiting, stopped_runs): (Vec<&Ticket>, Vec<&Ticket>) =
            roots.into_iter().partition(|run| queued_run_ids.contains(run.live_run().id()));
        let is_still_stopping = !stop.already_ending.is_empty()
            || stop.background.processes.len() > stop.background.newly_ended
            || result.commands_already_stopping > 0;
        Self {
            stopped_runs,
            withdrawn_messages: waiting.len() + result.withdrawn_messages,
            stopped_commands: result.stopped_commands,
            background_commands: stop.background.newly_ended,
            is_still_stopping,
        }
    }

    fn is_empty(&self) -> bool {
        self.stopped_runs.is_empty() && self.withdrawn_messages + self.stopped_commands + self.background_commands == 0
    }
}

/// The tickets of those runs that no other run in `runs` has started.
fn root_tickets<'a>(stop: &'a StopResult, runs: &[RunId]) -> Vec<&'a Ticket> {
    let run_ids: HashSet<&RunId> = runs.iter().collect();
    let is_root = |ticket: &&Ticket| {
        let run = &ticket.live_run().run;
        run_ids.contains(&run.id) && run.parent.as_ref().is_none_or(|parent| !run_ids.contains(parent))
    };
    stop.tickets.iter().filter(is_root).collect()
}

/// Stops the runs in `scope` and everything of this channel's inbox for which `is_covered` is true.
fn perform_stop(
    channels: &Channels,
    message: &ChannelMessage,
    caller_scope: AccessLevel,
    scope: &StopScope,
    is_covered: impl Fn(&InterruptionScope) -> bool,
) -> ChatStopResult {
    let engine = channels.engine();
    let caller = channel_caller(&message.channel, &message.sender, caller_scope);
    let request = |level| StopRequest { level, reason: StopReason::Command, surface: Surface::Channel };
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
    let ends_already = !stop.already_ending.is_empty() || !stop.background.processes.is_empty();
    if !stop.stopped_anything() && ends_already && newly_stopped.is_empty() {
        stop = engine.stop(&caller, scope, &request(StopLevel::Forced));
    }
    let mut withdrawn_messages = withdrawn.messages.len();
    for (run, sender) in withdrawn.in_flight {
        let owner = super::channel_principal(&message.channel, &sender);
        let of_run = engine.stop_run_of_owner(&caller, &run, &owner, &request(StopLevel::Gentle));
        withdrawn_messages += usize::from(of_run.tickets.is_empty());
        stop.aborted.extend(of_run.aborted);
        stop.already_ending.extend(of_run.already_ending);
        stop.withdrawn.extend(of_run.withdrawn);
        let new = of_run.tickets.into_iter().filter(|new| !stop.tickets.iter().any(|known| is_same_run(known, new)));
        stop.tickets.extend(new.collect::<Vec<_>>());
    }
    ChatStopResult {
        engine_stop: stop,
        withdrawn_messages,
        stopped_commands: newly_stopped.len(),
        commands_already_stopping: already_stopping.len(),
    }
}

fn is_same_run(one: &Ticket, other: &Ticket) -> bool {
    Arc::ptr_eq(one.live_run(), other.live_run())
}

/// Sends the receipts of the stopped runs, and the end of their background commands, when all of it has settled.
fn report_when_settled(
    channels: &Channels,
    origin: &ChatOrigin,
    stop: StopResult,
    live_runs: Vec<Arc<LiveRun>>,
    commands: usize,
) {
    let Some(permit) = origin.channel.notices.acquire_stop_permit() else {
        // A flood of stops gets a limited number of reports; every stop has acted.
        return;
    };
    let (channels, origin, permit) = (channels.clone(), origin.clone(), permit);
    let scope = channels.scope().clone();
    scope.spawn(async move {
        let _permit = permit;
        stop.wait_settled().await;
        let receipts = live_runs.iter().filter_map(|live_run| live_run.receipt());
        let receipts: Vec<Receipt> = receipts.filter(|receipt| !receipt.resources.is_empty()).collect();
        let left: Vec<&str> =
            stop.background.processes.iter().filter(|it| !it.ended_cleanly()).map(|it| it.id.as_str()).collect();
        // The channel's configuration may have changed meanwhile.
        let channel = channels.find_channel(&origin.channel.name).unwrap_or_else(|| Arc::clone(&origin.channel));
        for text in texts::stop_receipt_texts(&receipts).into_iter().chain(texts::commands_ended_text(commands, &left))
        {
            channel.notices.push_stop_reply(&origin.address, text);
        }
    });
}
