//! Prepare a chat message for its run (hooks, attachments, context) and deliver the answer. Every wait is raced, and
//! each running operation is in the run's ledger.

use std::path::Path;
use std::sync::Arc;

use quell_kernel::approval::ApprovalPolicy;
use quell_kernel::permissions::contains_tool;
use quell_kernel::prompt::channel_context;
use quell_kernel::run::WorkOutcome;
use quell_kernel::turn::{CODE_WITHHELD, ToolCall, Turn, newest_within_chars};
use quell_protocol::approval::ApprovalState;
use quell_protocol::{CallId, ChannelMessage, HookEvent, ResourceKind};
use quell_scope::{Cancelled, Point, Release};
use serde_json::json;

use super::{RunTable, run_hook_trigger};
use crate::agent::{Agent, ApprovalRequest, CRON_ADD, SEND_FILE, request_approval};
use crate::channel_origin::{ChannelOrigin, DeliveryContext};
use crate::hooks::{HookTrigger, MessageAnswer};
use crate::live_run::LiveRun;

pub(super) enum AnswerDelivery {
    /// The answer is shown, or its network was asked to show it.
    Sent,
    /// A hook withheld it: the run is completed, and the answer is not used any further.
    Withheld,
    /// The answer was not sent, and this is the run's outcome.
    Failed(WorkOutcome),
}

impl RunTable {
    /// Runs the message hooks and fetches the attachments, before the first step. The model reads the resulting
    /// message. Returns its words without the attachments, or the run's outcome if the message is withheld.
    pub(super) async fn prepare_channel_message(
        &self,
        live_run: &Arc<LiveRun>,
        channel_origin: &ChannelOrigin,
        workdir: &Path,
    ) -> Result<Result<String, WorkOutcome>, Cancelled> {
        let message = channel_origin.message();
        let new_trigger = || HookTrigger::for_received_message(message.clone());
        let content = match self.ask_message_hook(HookEvent::MessageReceived, live_run, new_trigger).await? {
            MessageAnswer::Unchanged => message.content.clone(),
            MessageAnswer::Content(content) => content,
            MessageAnswer::Cancel { reason } => {
                channel_origin.delivery().on_withheld(&reason);
                let message = format!("a hook kept the message back: {reason}");
                return Ok(Err(WorkOutcome::Failed { code: CODE_WITHHELD.to_owned(), message }));
            }
        };
        // waits: raced in `fetch_attachments`.
        let lines = self.fetch_attachments(live_run, channel_origin, workdir).await?;
        let text = [content.clone()].into_iter().chain(lines).filter(|text| !text.trim().is_empty());
        let text = text.collect::<Vec<_>>().join("\n");
        if text != live_run.run.text {
            live_run.writer().replace_question(text.clone())?;
        }
        // Save the note after the hooks: text that a hook removed is not remembered.
        let (said_at, at) = (live_run.accepted_at(), || live_run.view().accepted_at);
        let saving = self.services().memory.save_message(&live_run.run, Some((channel_origin, &text)), said_at, at);
        live_run.scope.race(Point::Remember, saving).await?;
        Ok(Ok(content))
    }

    async fn fetch_attachments(
        &self,
        live_run: &LiveRun,
        channel_origin: &ChannelOrigin,
        workdir: &Path,
    ) -> Result<Vec<String>, Cancelled> {
        let message = channel_origin.message();
        if message.attachments.is_empty() {
            return Ok(Vec::new());
        }
        let label = format!("{} attachments from {}", message.attachments.len(), message.channel);
        let held = live_run.scope.hold(ResourceKind::Delivery, label);
        let lines = live_run
            .scope
            .race(Point::Attachments, channel_origin.delivery().fetch_attachments(delivery_context(live_run, workdir)))
            .await?;
        held.release(Release::Finished);
        Ok(lines)
    }

    async fn ask_message_hook(
        &self,
        event: HookEvent,
        live_run: &Arc<LiveRun>,
        new_trigger: impl FnOnce() -> HookTrigger,
    ) -> Result<MessageAnswer, Cancelled> {
        let hooks = &self.services().hooks;
        if !hooks.has_hooks_for(event) {
            return Ok(MessageAnswer::Unchanged);
        }
        let HookTrigger { session, run, .. } = run_hook_trigger(event, live_run.view(), live_run.session.get());
        // waits: raced in the hooks.
        hooks.filter_message(HookTrigger { session, run, ..new_trigger() }, &live_run.scope).await
    }

    /// Context for the model in this run only: time and place, and instructions of the channel.
    pub(super) fn channel_context(
        &self,
        channel_origin: &ChannelOrigin,
        agent: &Agent,
        history: &[Arc<Turn>],
    ) -> String {
        let (clock, options) = (self.clock(), channel_origin.options());
        let file_hint = options.send_files_hint.iter().filter(|_| send_file_policy(agent) != ApprovalPolicy::Deny);
        let schedule_hint = contains_tool(&agent.config.tools, CRON_ADD).then(|| {
            let ChannelMessage { channel, reply_target, .. } = channel_origin.message();
            format!("{CRON_ADD}: delivery={}", json!({"channel": channel, "to": reply_target}))
        });
        let notes = options.context_lines.iter().chain(file_hint).cloned().chain(schedule_hint);
        let notes: Vec<String> = notes.collect();
        channel_context(channel_origin.message(), &clock.rfc3339(clock.now()), &notes, history)
    }

    /// Formats the answer, stores it and delivers it to its chat, after the last step.
    pub(super) async fn deliver_answer(
        &self,
        live_run: &Arc<LiveRun>,
        channel_origin: &ChannelOrigin,
        agent: &Agent,
    ) -> Result<AnswerDelivery, Cancelled> {
        let (writer, scope, delivery) = (live_run.writer(), &live_run.scope, channel_origin.delivery());
        let original = writer.with_draft(|draft| draft.answer().unwrap_or_default())?;
        let new_trigger = || HookTrigger::for_outgoing_message(channel_origin.message().clone(), original.clone());
        let (answer, withheld) = match self.ask_message_hook(HookEvent::MessageSending, live_run, new_trigger).await? {
            MessageAnswer::Unchanged => (original.clone(), None),
            MessageAnswer::Content(content) => (content, None),
            MessageAnswer::Cancel { reason } => (original.clone(), Some(reason)),
        };
        let formatted = delivery.format_answer(&answer);
        if formatted != original {
            writer.replace_answer(formatted.clone())?;
        }
        if let Err(unwritten) = scope.race(Point::Journal, writer.wait_for_journal()).await? {
            let message = format!("the answer was not sent, because it is written down first, and {unwritten}");
            return Ok(AnswerDelivery::Failed(WorkOutcome::Failed { code: "store".to_owned(), message }));
        }
        let message = channel_origin.message();
        let sendable_files = match withheld {
            Some(_) => Vec::new(),
            // waits: for a person, raced in `approve_files`.
            None => self.approve_files(live_run, agent, delivery.find_files(&formatted)).await?,
        };
        let held = scope.hold(ResourceKind::Delivery, format!("{} {}", message.channel, message.reply_target));
        if let Some(reason) = withheld {
            delivery.on_withheld(&reason);
            held.release(Release::Withheld);
            return Ok(AnswerDelivery::Withheld);
        }
        let context = DeliveryContext { sendable_files: &sendable_files, ..delivery_context(live_run, &agent.workdir) };
        match scope.race(Point::Delivery, delivery.deliver_answer(&formatted, context)).await? {
            Ok(()) => held.release(Release::Finished),
            Err(undelivered) => {
                tracing::warn!(run = %live_run.id(), channel = message.channel, %undelivered, "an answer is not shown");
                held.release(undelivered.release());
            }
        }
        Ok(AnswerDelivery::Sent)
    }

    /// Selects the files of an answer that may be sent: a file marker counts as a call of the tool `send_file`.
    async fn approve_files(
        &self,
        live_run: &Arc<LiveRun>,
        agent: &Agent,
        files: Vec<String>,
    ) -> Result<Vec<String>, Cancelled> {
        match send_file_policy(agent) {
            ApprovalPolicy::Auto => return Ok(files),
            ApprovalPolicy::Deny => return Ok(Vec::new()),
            ApprovalPolicy::Ask => {}
        }
        let mut allowed = Vec::new();
        for (number, path) in files.into_iter().enumerate() {
            let Ok(id) = CallId::parse(format!("{SEND_FILE}-{}", number + 1)) else { continue };
            let call = ToolCall { id, tool: SEND_FILE.to_owned(), arguments: json!({ "path": path }) };
            let request = ApprovalRequest { call: &call, escalation: None };
            // waits: raced in `request_approval`.
            match request_approval(self.services(), agent, &live_run.scope, &live_run.writer(), request).await? {
                ApprovalState::Allowed { .. } => allowed.push(path),
                ApprovalState::Denied { .. } | ApprovalState::TimedOut => {}
                // Only a stop cancels an approval.
                ApprovalState::Cancelled | ApprovalState::Pending => return Err(Cancelled),
            }
        }
        Ok(allowed)
    }
}

fn send_file_policy(agent: &Agent) -> ApprovalPolicy {
    if agent.config.has_tool(SEND_FILE) { agent.config.approval_policy(SEND_FILE) } else { ApprovalPolicy::Deny }
}

/// The turns that a run from a chat continues on: as many of the newest as its options allow.
pub(super) fn trim_history(history: Vec<Arc<Turn>>, channel_origin: Option<&ChannelOrigin>) -> Vec<Arc<Turn>> {
    let Some(channel_origin) = channel_origin else { return history };
    newest_within_chars(&history, channel_origin.options().max_history_chars)
}

fn delivery_context<'a>(live_run: &'a LiveRun, workdir: &'a Path) -> DeliveryContext<'a> {
    DeliveryContext { scope: &live_run.scope, session: &live_run.run.session, workdir, sendable_files: &[] }
}
