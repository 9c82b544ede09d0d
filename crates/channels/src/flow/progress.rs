//! Show the progress of one run in its chat: reaction, typing indicator, draft, tool notices.
//!
//! One task for each run is the only writer of these: a reaction is removed after it was added, and a draft is never
//! edited after it was finished. The task waits for the network only while the run is active; the steps after its end
//! have time limits. State that a killed daemon would leave in the chat is stored first ([`super::stale_replies`]).

use std::sync::Arc;
use std::time::Duration;

use quell_engine::live_run::{Follower, LiveRun, RunProgress};
use quell_kernel::channel::tool_notice::{call_notice, diff_notice};
use quell_protocol::event::EventKind;
use quell_protocol::{RunId, Verdict};
use quell_store::{ChannelStore, PendingReply};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::approval_messages::show_approval;
use super::finished_reply::NotificationStatus;
use super::notices::NoticePriority;
use super::reply_delivery::ChatReply;
use super::reply_target::{DONE_EMOJI, ReplyTarget, SEEN_EMOJI, verdict_emoji};
use super::{Channels, texts};
use crate::format::{MessagePiece, format_draft};
use crate::network::{Drafts, MessageId, SendError};

/// Time limit of one short call to the network, such as adding a reaction.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// What a draft shows before there is text.
const DRAFT_PLACEHOLDER: &str = "...";

/// Shows the progress of a message's run from its acceptance to its end. `answering_run` is that run, or the active run
/// that may take the message in.
pub(super) async fn show_progress(channels: Channels, reply: Arc<ChatReply>, answering_run: RunId) {
    let engine = channels.engine();
    let _shutdown_guard = engine.delay_shutdown();
    let run_id = &reply.target.run_id;
    let Some(live_run) = engine.live_run(run_id) else {
        // The run has ended and is no longer in memory.
        let view = engine.find_run(run_id).await.ok().flatten();
        if let Some((verdict, receipt)) = view.and_then(|view| view.verdict.zip(view.receipt)) {
            let finished_reply = reply.finish(String::new());
            let fallback_text = texts::no_answer_text(&verdict, &receipt, finished_reply.language);
            finished_reply.send_outcome(&verdict, fallback_text).await;
            finished_reply.add_final_reaction(finished_reply.final_emoji(&verdict)).await;
        }
        return;
    };
    let progress = ProgressView { reply: &reply, live_run: &live_run };
    progress.save_pending_reply().await;
    // A short time limit, because the draft comes after it.
    reply.target.add_reaction(SEEN_EMOJI, CALL_TIMEOUT).await;
    progress.follow_run(&mut live_run.follow(0)).await;
    live_run.wait_for_progress(RunProgress::Ended).await;
    let partial_text = live_run.view().output.unwrap_or_default();
    let finished_reply = reply.finish(channels.visible_draft_text(&partial_text));
    let emoji = match live_run.verdict().zip(live_run.receipt()) {
        Some((verdict, receipt)) => {
            let fallback_text = texts::no_answer_text(&verdict, &receipt, finished_reply.language);
            let status = finished_reply.send_outcome(&verdict, fallback_text).await;
            if status == NotificationStatus::Settled && verdict != Verdict::Completed {
                progress.mark_outcome_sent().await;
            }
            finished_reply.final_emoji(&verdict)
        }
        // The message was steered into another run: wait for the end of that one.
        None => match engine.live_run(&answering_run) {
            Some(other) => {
                other.wait_for_progress(RunProgress::Ended).await;
                Some(other.verdict().map_or(DONE_EMOJI, |verdict| verdict_emoji(&verdict)))
            }
            None => Some(DONE_EMOJI),
        },
    };
    reply.target.remove_reaction(SEEN_EMOJI).await;
    finished_reply.add_final_reaction(emoji).await;
    progress.delete_pending_reply().await;
}

struct ProgressView<'a> {
    reply: &'a ChatReply,
    live_run: &'a Arc<LiveRun>,
}

/// The text of the reply so far, and when the draft may be edited again.
#[derive(Debug)]
struct DraftText {
    text: String,
    /// A new step has begun: its text replaces the text of the step before.
    is_new_step: bool,
    /// The text that was last compared with the draft.
    checked_text: Option<String>,
    shown_piece: Option<MessagePiece>,
    /// The draft was sent without a confirmation: it may be shown or not.
    is_unconfirmed: bool,
    next_edit_at: Instant,
}

enum DraftStatus {
    Active,
    Ended,
}

impl ProgressView<'_> {
    /// Follows the run while it is active. After it returns, nothing here writes to the draft or the typing indicator.
    async fn follow_run(&self, follower: &mut Follower) {
        let limits = self.reply.target.channel.limits;
        let mut draft_text = DraftText::new();
        let mut draft_guard = self.draft_network().and_then(|_| self.reply.acquire_draft());
        let mut typing = interval(limits.typing_interval);
        typing.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut is_writing, mut is_delivering) = (false, false);
        loop {
            let drafts = draft_guard.is_some() && is_writing;
            // Before the next edit is allowed, the chat cannot show new text: until then, events are not read one by
            // one. Only a call that waits for somebody is shown at once.
            let is_waiting =
                drafts && !self.reply.target.channel.config.show_tool_calls && Instant::now() < draft_text.next_edit_at;
            let due = is_waiting || (drafts && draft_text.has_changed());
            let seen = follower.last_seen_seq();
            // Every arm only waits; calls to the network come after the select. Rare events are polled first.
            let step = tokio::select! {
                biased;
                () = self.live_run.wait_for_progress(RunProgress::Ending) => ProgressStep::Ended,
                () = self.reply.wait_for_delivery(), if !is_delivering => ProgressStep::Delivering,
                _ = typing.tick(), if is_writing => ProgressStep::Typing,
                () = sleep_until(draft_text.next_edit_at), if due => ProgressStep::Draft,
                () = self.live_run.wait_for_approval_after(seen), if is_waiting => ProgressStep::Approval,
                event = follower.next(), if !is_waiting => match event {
                    Some(event) => ProgressStep::Event(event.kind.clone()),
                    None => ProgressStep::Ended,
                },
            };
            match step {
                ProgressStep::Ended => break,
                // From now on the chat shows the reply, which ends the typing indicator.
                ProgressStep::Delivering => {
                    (is_delivering, draft_guard) = (true, None);
                    if std::mem::take(&mut is_writing) {
                        self.hide_typing().await;
                    }
                }
                ProgressStep::Event(kind) => {
                    is_writing |= matches!(kind, EventKind::Started { .. });
                    self.apply_event(kind, &mut draft_text);
                }
                ProgressStep::Typing => self.show_typing().await,
                ProgressStep::Approval => self.apply_kept_events(follower, &mut draft_text),
                ProgressStep::Draft => {
                    self.apply_kept_events(follower, &mut draft_text);
                    if !draft_text.has_changed() {
                        continue;
                    }
                    let first = self.reply.draft_message().is_none();
                    if let DraftStatus::Ended = self.update_draft(&mut draft_text).await {
                        draft_guard = None;
                    }
                    if first {
                        // The message has ended the typing indicator: show it again.
                        typing.reset_immediately();
                    }
                }
            }
        }
        if is_writing {
            self.hide_typing().await;
        }
    }

    fn apply_kept_events(&self, follower: &mut Follower, draft_text: &mut DraftText) {
        while let Some(event) = follower.try_next() {
            self.apply_event(event.kind.clone(), draft_text);
        }
    }

    fn apply_event(&self, kind: EventKind, draft_text: &mut DraftText) {
        match kind {
            EventKind::TextDelta { text } => draft_text.append_delta(&text),
            EventKind::StepStarted { .. } => draft_text.is_new_step = true,
            EventKind::Snapshot { text, .. } => (draft_text.text, draft_text.is_new_step) = (text, false),
            EventKind::ToolStarted { tool, arguments, .. } => self.notify_tool(|| Some(call_notice(&tool, &arguments))),
            EventKind::ToolEnded { diff: Some(diff), .. } => self.notify_tool(|| diff_notice(&diff)),
            EventKind::ApprovalRequested { id, .. } if self.shows_approval(&id) => {
                show_approval(&self.reply.channels, &self.reply.target, &id);
            }
            _ => {}
        }
    }

    /// Sends a notice about a tool call, where the channel shows them.
    fn notify_tool(&self, text: impl FnOnce() -> Option<String>) {
        let ReplyTarget { channel, address, .. } = &self.reply.target;
        if channel.config.show_tool_calls
            && let Some(text) = text()
        {
            channel.notices.push(NoticePriority::Tool, address, text);
        }
    }

    /// A call is shown where somebody may allow it. A question is for the sender.
    fn shows_approval(&self, id: &str) -> bool {
        let is_question = || self.reply.channels.engine().find_approval(id).is_some_and(|row| row.question.is_some());
        !self.reply.target.channel.config.approvers.is_empty() || is_question()
    }

    fn draft_network(&self) -> Option<&dyn Drafts> {
        self.reply.target.channel.network.features().drafts.filter(|_| self.reply.target.channel.config.drafts)
    }

    /// Sends the draft, or edits it if its content has changed.
    ///
    /// Not raced against the end of the run: a draft that was sent must be known to be finished, and an edit that was
    /// given up half-way could arrive after the last one. The stop itself does not wait for this.
    async fn update_draft(&self, draft_text: &mut DraftText) -> DraftStatus {
        let Some(drafts) = self.draft_network() else { return DraftStatus::Ended };
        let ReplyTarget { channel, address, .. } = &self.reply.target;
        let text = self.reply.channels.visible_draft_text(&draft_text.text);
        let format = &channel.limits.message_format;
        let piece = Some(format_draft(&text, format)).filter(|piece| !piece.plain.trim().is_empty());
        // Unfinished markup alone, such as the opening of bold text, shows nothing.
        let piece = piece.unwrap_or_else(|| format_draft(DRAFT_PLACEHOLDER, format));
        draft_text.checked_text = Some(draft_text.text.clone());
        if draft_text.shown_piece.as_ref() == Some(&piece) {
            return DraftStatus::Active;
        }
        draft_text.next_edit_at = Instant::now() + channel.limits.edit_interval;
        let result = match self.reply.draft_message() {
            Some(message) => timeout(CALL_TIMEOUT, drafts.edit(address, &message, &piece)).await,
            None => {
                let key = format!("{}-draft", self.reply.target.run_id);
                let sent = timeout(CALL_TIMEOUT, channel.network.send(address, &piece, &key)).await;
                sent.map(|sent| {
                    sent.map(|message| {
                        self.save_draft_message(&message);
                        self.reply.set_draft_message(message);
                    })
                })
            }
        };
        match result {
            // The message shows the text of the first send with this key: edit it next.
            Ok(Ok(())) if std::mem::take(&mut draft_text.is_unconfirmed) => draft_text.checked_text = None,
            Ok(Ok(())) => draft_text.shown_piece = Some(piece),
            // The text is shown by the next edit.
            Ok(Err(SendError::NotDelivered { retry_after: after, .. })) => {
                draft_text.checked_text = None;
                draft_text.next_edit_at += after.unwrap_or_default();
            }
            // Sending again with the same key returns the message id.
            Ok(Err(SendError::Unknown { is_repeatable: true, .. })) if self.reply.draft_message().is_none() => {
                (draft_text.is_unconfirmed, draft_text.checked_text) = (true, None);
            }
            // An unconfirmed message cannot be used as a draft.
            Ok(Err(SendError::Unknown { .. })) | Err(_) if self.reply.draft_message().is_none() => {
                return DraftStatus::Ended;
            }
            Ok(Err(SendError::Unknown { .. })) | Err(_) => draft_text.checked_text = None,
            Ok(Err(SendError::Refused { .. })) => return DraftStatus::Ended,
        }
        DraftStatus::Active
    }

    fn channel_store(&self) -> &dyn ChannelStore {
        self.reply.channels.engine().channel_store()
    }

    /// Stores that a sender waits for a reply, before the chat shows anything. The end of the run does not wait for
    /// this.
    async fn save_pending_reply(&self) {
        let ReplyTarget { channel, address, request_message, run_id } = &self.reply.target;
        let pending_reply = PendingReply {
            run: run_id.clone(),
            channel: channel.name.clone(),
            target: address.target.clone(),
            thread: address.thread.clone(),
            request_message: request_message.0.clone(),
            draft_message: None,
        };
        tokio::select! {
            biased;
            // Polled first: one poll hands the write to the store, even if the other arm wins.
            saved = self.channel_store().save_pending_reply(pending_reply) => if let Err(error) = saved {
                tracing::warn!(run = %run_id, %error, "cannot store the pending reply of a run");
            },
            () = self.live_run.wait_for_progress(RunProgress::Ending) => {}
        }
    }

    /// Stores the message id of the draft in a task of its own, so that nothing waits for it.
    fn save_draft_message(&self, message: &MessageId) {
        let (engine, run, draft) =
            (self.reply.channels.engine().clone(), self.reply.target.run_id.clone(), message.0.clone());
        self.reply.channels.scope().spawn(async move {
            if let Err(error) = engine.channel_store().save_pending_reply_draft(run.clone(), Some(draft)).await {
                tracing::warn!(%run, %error, "cannot store the message id of a draft");
            }
        });
    }

    /// Records that the outcome was sent, because a shutdown may prevent the steps after it.
    async fn mark_outcome_sent(&self) {
        let run = &self.reply.target.run_id;
        if let Err(error) = self.channel_store().mark_outcome_sent(run.clone()).await {
            tracing::debug!(%run, %error, "the outcome of a run may be sent again after a restart");
        }
    }

    async fn delete_pending_reply(&self) {
        let run = &self.reply.target.run_id;
        if let Err(error) = self.channel_store().delete_pending_reply(run.clone()).await {
            tracing::debug!(%run, %error, "the outcome of a run will be sent again after a restart");
        }
    }

    async fn show_typing(&self) {
        let Some(typing) = self.reply.target.channel.network.features().typing else { return };
        // Not raced against the end of the run: a call that was given up half-way could take effect after `hide`.
        let shown = tokio::select! {
            biased;
            () = self.reply.wait_for_delivery() => return,
            shown = timeout(CALL_TIMEOUT, typing.show(&self.reply.target.address)) => shown,
        };
        if !matches!(shown, Ok(Ok(()))) {
            tracing::debug!(run = %self.reply.target.run_id, ?shown, "the typing indicator was not shown");
        }
    }

    async fn hide_typing(&self) {
        let Some(typing) = self.reply.target.channel.network.features().typing else { return };
        let hidden = timeout(CALL_TIMEOUT, typing.hide(&self.reply.target.address)).await;
        if !matches!(hidden, Ok(Ok(()))) {
            tracing::debug!(run = %self.reply.target.run_id, ?hidden, "the typing indicator was not hidden");
        }
    }
}

enum ProgressStep {
    Ended,
    Delivering,
    Event(EventKind),
    Typing,
    Approval,
    Draft,
}

impl DraftText {
    fn new() -> Self {
        Self {
            text: String::new(),
            is_new_step: false,
            checked_text: None,
            shown_piece: None,
            is_unconfirmed: false,
            next_edit_at: Instant::now(),
        }
    }

    fn append_delta(&mut self, text: &str) {
        if std::mem::take(&mut self.is_new_step) {
            self.text.clear();
        }
        self.text.push_str(text);
    }

    /// True if the text has changed since it was last compared with the draft. True at first, before there is any text.
    fn has_changed(&self) -> bool {
        self.checked_text.as_ref() != Some(&self.text)
    }
}
