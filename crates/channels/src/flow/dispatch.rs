//! Take messages from the inbox when it is their turn, and execute them as commands or submit them as runs.
//!
//! The inbox and the registry decide; this module carries out their decisions. It never waits for a run.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use quell_engine::channel_origin::{ChannelOrigin, ChannelRunOptions};
use quell_engine::engine::{
    Caller, RunWork, SessionTransferError, StopTextMode, Submission, SubmitError, SubmitOutcome,
};
use quell_kernel::admission::AdmissionError;
use quell_kernel::channel::commands::ChannelCommand;
use quell_kernel::channel::inbox::{InboxMessage, InboxPoll};
use quell_kernel::channel::sanitise::NarrationPolicy;
use quell_protocol::api::OnBusy;
use quell_protocol::{ChannelMessage, HookEvent, RunId, StopReason, Verdict};
use quell_store::StoreError;
use tokio::time::sleep_until;

use super::notices::NoticePriority;
use super::progress::show_progress;
use super::reply_delivery::ChatReply;
use super::session_waits::SessionWaitOutcome;
use super::{Channels, ChatOrigin, channel_caller, commands, mcp_commands, stale_replies, texts};
use crate::config::ChannelKind;

/// Text of a run whose message has files and no words.
const FILES_ONLY_TEXT: &str = "(files, without words)";

/// Takes messages from the inbox until the channels are shut down.
pub(super) async fn run_dispatch_loop(channels: Channels) {
    let mut commands = FuturesUnordered::new();
    let mut messages = FuturesUnordered::new();
    loop {
        let now = channels.now();
        let next = channels.lock_inbox().poll(now);
        let until = match next {
            InboxPoll::Ready(batch) => {
                let is_command =
                    batch.first().is_some_and(|first| ChannelCommand::parse(&first.message.content).is_some());
                let in_flight = if is_command { &mut commands } else { &mut messages };
                in_flight.push(process_batch(channels.clone(), batch));
                continue;
            }
            InboxPoll::WaitUntil(moment) => Some(channels.clock().instant(moment)),
            InboxPoll::Idle => None,
        };
        let pause = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        // Every arm only waits: a batch in flight stays in its set when another arm wins.
        tokio::select! {
            () = channels.scope().cancelled() => break,
            () = channels.0.wake_dispatcher.notified() => {}
            () = pause => {}
            Some(()) = commands.next() => {}
            Some(()) = messages.next() => {}
        }
    }
    // Messages without a run are dropped as if they had not arrived. Commands have been stopped, and still send their
    // results.
    drop(messages);
    tokio::select! {
        () = channels.scope().forced() => {}
        () = async { while commands.next().await.is_some() {} } => {}
    }
}

async fn process_batch(channels: Channels, batch: Vec<InboxMessage<ChatOrigin>>) {
    let Some(mut queued) = merge_messages(batch) else { return };
    let conversation = queued.conversation.clone();
    let work = async {
        (channels.0.reload_config)();
        match ChannelCommand::parse(&queued.message.content) {
            Some(ChannelCommand::McpMessage(command)) => {
                // A message that the network delivers again has its run already.
                if matches!(channels.engine().find_run(&queued.run_id).await, Ok(Some(_))) {
                    return handle_duplicate(&channels, &queued.extra, &queued.run_id).await;
                }
                if mcp_commands::prepare_message(&channels, &mut queued, command).await {
                    submit_run(&channels, queued).await;
                }
            }
            Some(command) => commands::execute_command(&channels, &queued, command).await,
            None => submit_run(&channels, queued).await,
        }
    };
    // A panic ends the processing of this batch, not the dispatcher.
    if AssertUnwindSafe(work).catch_unwind().await.is_err() {
        tracing::error!(%conversation, "the processing of a message panicked");
    }
    channels.lock_inbox().finish(&conversation);
    channels.notify_inbox_changed();
}

/// Merges collected messages into one, with the id and the address of the first.
fn merge_messages(batch: Vec<InboxMessage<ChatOrigin>>) -> Option<InboxMessage<ChatOrigin>> {
    batch.into_iter().reduce(|mut first, next| {
        first.message.content = [first.message.content.as_str(), &next.message.content].join("\n");
        first.message.attachments.extend(next.message.attachments);
        first
    })
}

async fn submit_run(channels: &Channels, queued: InboxMessage<ChatOrigin>) {
    let InboxMessage { message, conversation, run_id: run, extra, .. } = queued;
    let channel = &extra.channel;
    let Some(access_level) = channel.access_level(&message.sender) else { return };
    let settings = channels.current_settings();
    let messages = settings.settings.messages;
    let options = ChannelRunOptions {
        context_lines: channel_notes(&extra),
        send_files_hint: supports_files(channel.config.kind).then(|| FILE_MARKER_NOTE.to_owned()),
        routed_model: settings.settings.routing.model_for(&message.content),
        max_history_chars: messages.history_budget_chars,
        max_steps: Some(messages.max_rounds()),
    };
    let caller = channel_caller(&message.channel, &message.sender, access_level);
    let text = if message.content.is_empty() { FILES_ONLY_TEXT.to_owned() } else { message.content.clone() };
    let narration = if messages.sanitize_narration { NarrationPolicy::Drop } else { NarrationPolicy::Keep };
    let reply = Arc::new(ChatReply::new(channels, &extra, run.clone(), message.clone(), narration));
    let submission = Submission {
        session: conversation,
        text,
        work: RunWork::default(),
        agent: channel.config.agent.clone(),
        idempotency_key: Some(run),
        on_busy: effective_on_busy(channels, channel.on_busy(), &message),
        timeout: Some(messages.reply_timeout()),
        stop_text_mode: StopTextMode::Literal,
        channel_origin: Some(ChannelOrigin::new(message.clone(), options, Arc::clone(&reply) as _)),
    };
    match submit_in_own_session(channels, &caller, submission, &reply.target.run_id).await {
        Ok(None) => {}
        Ok(Some(outcome)) => handle_outcome(channels, &extra, reply, outcome).await,
        Err(SubmitError::Refused(AdmissionError::QueueFull { .. })) => {
            let (priority, sender) = (NoticePriority::Text, &message.sender);
            let text = texts::TOO_MANY_WAITING.text(extra.language(channels));
            channel.notices.push_unless_recent(priority, &extra.address, sender, text);
        }
        Err(error) => reject_submission(channels, &extra, &message, &error),
    }
}

/// Submits a message when its session belongs to this node. `None` if it was stopped before.
async fn submit_in_own_session(
    channels: &Channels,
    caller: &Caller,
    submission: Submission,
    run: &RunId,
) -> Result<Option<SubmitOutcome>, SubmitError> {
    loop {
        match channels.wait_for_session(run, &submission.session).await {
            SessionWaitOutcome::Ready => {}
            SessionWaitOutcome::Stopped | SessionWaitOutcome::Failed(SessionTransferError::Stopped) => return Ok(None),
            SessionWaitOutcome::Failed(SessionTransferError::InUse { .. }) => {
                return Err(SubmitError::Refused(AdmissionError::Busy));
            }
            SessionWaitOutcome::Failed(SessionTransferError::Store(error)) => return Err(error.into()),
        }
        match channels.engine().submit(caller, submission.clone()).await {
            // Another node has claimed it in between.
            Err(SubmitError::Store(StoreError::OtherNode(_))) => {}
            outcome => return outcome.map(Some),
        }
    }
}

async fn handle_outcome(channels: &Channels, extra: &ChatOrigin, reply: Arc<ChatReply>, outcome: SubmitOutcome) {
    match outcome {
        SubmitOutcome::Accepted(accepted) => {
            channels.scope().spawn(show_progress(channels.clone(), reply, accepted.run_id));
        }
        SubmitOutcome::Duplicate(known) => handle_duplicate(channels, extra, &known.run_id).await,
        SubmitOutcome::Stopped(_) => {}
    }
}

/// A message that a hook must see, or that has files, needs a run of its own to be prepared: it cannot steer the active
/// run.
fn effective_on_busy(channels: &Channels, configured: OnBusy, message: &ChannelMessage) -> OnBusy {
    let needs_own_run =
        channels.engine().hooks().has_hooks_for(HookEvent::MessageReceived) || !message.attachments.is_empty();
    if configured == OnBusy::Steer && needs_own_run { OnBusy::Queue } else { configured }
}

/// Handles a message that the network delivered again, after a restart of the daemon or of its own. If the daemon
/// stopped before it was answered, this tells the sender, unless the repair of stale replies will.
async fn handle_duplicate(channels: &Channels, origin: &ChatOrigin, run: &RunId) {
    if stale_replies::is_stale_run(channels, run).await {
        return;
    }
    let view = channels.engine().find_run(run).await.ok().flatten();
    let daemon_stopped = Some(Verdict::Aborted { reason: StopReason::DaemonStopped, by: None });
    if view.is_some_and(|view| view.verdict == daemon_stopped) {
        let text = texts::RESTARTED.text(origin.language(channels));
        origin.channel.notices.push(NoticePriority::Text, &origin.address, text);
    }
}

fn reject_submission(channels: &Channels, origin: &ChatOrigin, message: &ChannelMessage, error: &SubmitError) {
    tracing::warn!(channel = message.channel, sender = message.sender, %error, "a message was refused");
    let text = texts::rejection_text(error.code()).text(origin.language(channels));
    origin.channel.notices.push(NoticePriority::Text, &origin.address, text);
}

/// Lines of the run context: the format of answers for this network, and the configured instructions.
fn channel_notes(origin: &ChatOrigin) -> Vec<String> {
    let config = &origin.channel.config;
    let of_network = match config.kind {
        ChannelKind::Irc => {
            "Answer in plain text without Markdown, in few short lines: long ones are cut into several messages."
        }
        ChannelKind::Telegram
        | ChannelKind::Discord
        | ChannelKind::Slack
        | ChannelKind::Matrix
        | ChannelKind::Webhook => "Answer in Markdown.",
    };
    [of_network.to_owned()].into_iter().chain(config.instructions.clone()).collect()
}

/// Line of the run context for agents that may send files.
const FILE_MARKER_NOTE: &str =
    "A line [IMAGE:path], [FILE:path], [AUDIO:path] or [VIDEO:path] sends a file of your workdir.";

fn supports_files(kind: ChannelKind) -> bool {
    match kind {
        ChannelKind::Telegram | ChannelKind::Discord | ChannelKind::Slack | ChannelKind::Matrix => true,
        ChannelKind::Irc | ChannelKind::Webhook => false,
    }
}
