//! What a run does for the chat network that its message came from, before its first step and after its last: hooks, files,
//! what the model is told besides the message, and the answer's way there. Every wait is raced, and what is under way stands in
//! the run's ledger.

use std::path::Path;
use std::sync::Arc;

use quell_kernel::approval::ApprovalPolicy;
use quell_kernel::run::Outcome;
use quell_kernel::turn::{ToolCall, Turn, WITHHELD, within_chars};
use quell_kernel::view::circumstances;
use quell_protocol::approval::ApprovalState;
use quell_protocol::{CallId, HookEvent, ResourceKind};
use serde_json::json;

use super::{Runs, happening};
use crate::agent::{Agent, SEND_FILE, ask_person};
use crate::cell::Cell;
use crate::channel::{Errand, Spot};
use crate::hooks::{Happening, MessageAnswer};
use crate::scope::{Cancelled, Point};

/// What became of an answer.
pub(super) enum Carried {
    /// It is shown, or its network was asked to show it.
    Away,
    /// A hook kept it back: the run is completed, and nothing more is made of it.
    Withheld,
    /// It was not sent, and that is the run's outcome.
    Not(Outcome),
}

impl Runs {
    /// Before the first step: hooks may change the message or keep it back, and what came with it is fetched; the message that
    /// the model reads is the one that comes of this. Answers its words without the files, or the run's outcome when there is
    /// nothing to be done.
    pub(super) async fn gather(
        &self,
        cell: &Arc<Cell>,
        errand: &Errand,
        workdir: &Path,
    ) -> Result<Result<String, Outcome>, Cancelled> {
        let message = errand.message();
        let asked = || Happening::of_received(message.clone());
        let content = match self.ask_hook(HookEvent::MessageReceived, cell, asked).await? {
            MessageAnswer::Unchanged => message.content.clone(),
            MessageAnswer::Content(content) => content,
            MessageAnswer::Cancel { reason } => {
                errand.courier().withheld(&reason);
                let message = format!("a hook kept the message back: {reason}");
                return Ok(Err(Outcome::Failed { code: WITHHELD.to_owned(), message }));
            }
        };
        // waits: raced there.
        let lines = self.fetch(cell, errand, workdir).await?;
        let text = [content.clone()].into_iter().chain(lines).filter(|text| !text.trim().is_empty());
        let text = text.collect::<Vec<_>>().join("\n");
        if text != cell.run.text {
            cell.pen().ask_instead(text.clone())?;
        }
        // What a hook took out of a message is remembered nowhere.
        let at = (cell.accepted(), || cell.view().accepted_at);
        let saving = self.workshop().memory.save_message(&cell.run, Some((errand, &text)), at);
        cell.scope.race(Point::Remember, saving).await?;
        Ok(Ok(content))
    }

    async fn fetch(&self, cell: &Cell, errand: &Errand, workdir: &Path) -> Result<Vec<String>, Cancelled> {
        let message = errand.message();
        if message.attachments.is_empty() {
            return Ok(Vec::new());
        }
        let label = format!("{} attachments from {}", message.attachments.len(), message.channel);
        let held = cell.scope.hold(ResourceKind::Delivery, label);
        let lines = cell.scope.race(Point::Attachments, errand.courier().fetch(spot(cell, workdir))).await?;
        held.release("finished");
        Ok(lines)
    }

    async fn ask_hook(
        &self,
        event: HookEvent,
        cell: &Arc<Cell>,
        asked: impl FnOnce() -> Happening,
    ) -> Result<MessageAnswer, Cancelled> {
        let hooks = &self.workshop().hooks;
        if !hooks.has(event) {
            return Ok(MessageAnswer::Unchanged);
        }
        let Happening { session, run, .. } = happening(event, cell.view(), cell.session.get());
        // waits: raced in the hooks.
        hooks.ask_message(Happening { session, run, ..asked() }, &cell.scope).await
    }

    /// What the model is told in this run alone: when and where it is, and how the channel wants to be answered.
    pub(super) fn circumstances(&self, errand: &Errand, agent: &Agent, history: &[Arc<Turn>]) -> String {
        let (clock, orders) = (self.clock(), errand.orders());
        let files = orders.files_note.iter().filter(|_| files_policy(agent) != ApprovalPolicy::Deny);
        let notes: Vec<String> = orders.notes.iter().chain(files).cloned().collect();
        circumstances(errand.message(), &clock.rfc3339(clock.now()), &notes, history)
    }

    /// After the last step: the answer is made fit to be shown, written down, and carried to where the message came from.
    pub(super) async fn carry(&self, cell: &Arc<Cell>, errand: &Errand, agent: &Agent) -> Result<Carried, Cancelled> {
        let (pen, scope, courier) = (cell.pen(), &cell.scope, errand.courier());
        let said = pen.draft(|draft| draft.answer().unwrap_or_default())?;
        let asked = || Happening::of_sending(errand.message().clone(), said.clone());
        let (answer, withheld) = match self.ask_hook(HookEvent::MessageSending, cell, asked).await? {
            MessageAnswer::Unchanged => (said.clone(), None),
            MessageAnswer::Content(content) => (content, None),
            MessageAnswer::Cancel { reason } => (said.clone(), Some(reason)),
        };
        let shown = courier.edit(&answer);
        if shown != said {
            pen.answer_instead(shown.clone())?;
        }
        if let Err(unwritten) = scope.race(Point::Journal, pen.written()).await? {
            let message = format!("the answer was not sent, because it is written down first, and {unwritten}");
            return Ok(Carried::Not(Outcome::Failed { code: "store".to_owned(), message }));
        }
        let message = errand.message();
        let sendable = match withheld {
            Some(_) => Vec::new(),
            // waits: for a person, raced there.
            None => self.sendable(cell, agent, courier.files_of(&shown)).await?,
        };
        let held = scope.hold(ResourceKind::Delivery, format!("{} {}", message.channel, message.reply_target));
        if let Some(reason) = withheld {
            courier.withheld(&reason);
            held.release("withheld");
            return Ok(Carried::Withheld);
        }
        let spot = Spot { sendable: &sendable, ..spot(cell, &agent.workdir) };
        match scope.race(Point::Delivery, courier.deliver(&shown, spot)).await? {
            Ok(()) => held.release("finished"),
            Err(undelivered) => {
                tracing::warn!(run = %cell.id(), channel = message.channel, %undelivered, "an answer is not shown");
                held.release(undelivered.word());
            }
        }
        Ok(Carried::Away)
    }

    /// Of the files that an answer names, those that it may send: a marker counts as a call of the tool `send_file`.
    async fn sendable(&self, cell: &Arc<Cell>, agent: &Agent, files: Vec<String>) -> Result<Vec<String>, Cancelled> {
        match files_policy(agent) {
            ApprovalPolicy::Auto => return Ok(files),
            ApprovalPolicy::Deny => return Ok(Vec::new()),
            ApprovalPolicy::Ask => {}
        }
        let mut sendable = Vec::new();
        for (number, path) in files.into_iter().enumerate() {
            let Ok(id) = CallId::parse(format!("{SEND_FILE}-{}", number + 1)) else { continue };
            let call = ToolCall { id, tool: SEND_FILE.to_owned(), arguments: json!({ "path": path }) };
            // waits: raced there.
            match ask_person((self.workshop(), agent), &cell.scope, &cell.pen(), &call).await? {
                ApprovalState::Allowed { .. } => sendable.push(path),
                ApprovalState::Denied { .. } | ApprovalState::TimedOut => {}
                // Only a stop cancels.
                ApprovalState::Cancelled | ApprovalState::Pending => return Err(Cancelled),
            }
        }
        Ok(sendable)
    }
}

fn files_policy(agent: &Agent) -> ApprovalPolicy {
    if agent.config.has_tool(SEND_FILE) { agent.config.approval(SEND_FILE) } else { ApprovalPolicy::Deny }
}

/// The turns that a run on an errand continues on: as many of the newest as its orders allow.
pub(super) fn shown(history: Vec<Arc<Turn>>, errand: Option<&Errand>) -> Vec<Arc<Turn>> {
    let Some(errand) = errand else { return history };
    within_chars(&history, errand.orders().history_chars)
}

fn spot<'a>(cell: &'a Cell, workdir: &'a Path) -> Spot<'a> {
    Spot { scope: &cell.scope, session: &cell.run.session, workdir, sendable: &[] }
}
