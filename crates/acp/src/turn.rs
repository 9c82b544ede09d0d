//! One prompt of the editor: a run that is followed to its end, with its permissions and its stop.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use quell_client::daemon_client::{RunEventStreamItem, StopWait};
use quell_client::{AttachedSend, ClientError, DaemonClient, receipt_line};
use quell_protocol::api::{SendRequest, StopAnswer, StopRunRequest};
use quell_protocol::approval::{ApprovalRow, ApprovalState, Decision};
use quell_protocol::event::EventKind;
use quell_protocol::{Receipt, RunEvent, SessionKey, StopReason, Verdict};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::content::PromptContent;
use crate::editor::{CallStatus, EditorTurn, EditorUpdate, EndReason, PromptEnd, RunActivity};
use crate::errors::{failed, from_client};
use crate::open_sessions::PromptGuard;
use crate::permissions::{PermissionQuestion, PermissionReply};
use crate::updates::RunUpdates;
use crate::wire::{Meta, RequestCancellation, RpcError};

/// Codes of failed runs that have a stop reason of their own.
const CODE_REFUSED: &str = "refused";
const CODE_TRUNCATED: &str = "truncated";

pub(crate) struct EditorPrompt {
    client: DaemonClient,
    editor: Arc<dyn EditorTurn>,
    key: SessionKey,
    pub(crate) prompt: PromptGuard,
    updates: RunUpdates,
    questions: FuturesUnordered<BoxFuture<'static, (String, PermissionReply)>>,
    /// The open questions, by their approvals.
    open_questions: HashMap<String, OpenQuestion>,
    is_stop_requested: bool,
    /// What the editor was told last; `None` before the run has begun.
    activity: Option<RunActivity>,
}

struct OpenQuestion {
    withdrawn: CancellationToken,
    /// The id of the call in the editor, if a sub-run asks: nothing else tells the editor how it goes on.
    sub_run_call: Option<String>,
    /// What the editor has decided. The question stays open until it is resolved: others may have to allow the call, too.
    decision: Option<Decision>,
}

impl EditorPrompt {
    pub(crate) fn new(client: DaemonClient, editor: Arc<dyn EditorTurn>, key: SessionKey, prompt: PromptGuard) -> Self {
        let updates = RunUpdates::new(prompt.run().clone(), prompt.workdir.clone());
        let (questions, open_questions) = (FuturesUnordered::new(), HashMap::new());
        let (is_stop_requested, activity) = (false, None);
        Self { client, editor, key, prompt, updates, questions, open_questions, is_stop_requested, activity }
    }

    /// Sends the message and follows its run to the end. A cancelled session or `request` asks for a stop; the answer
    /// still comes with the end of the run.
    ///
    /// # Errors
    /// Why there is no run, or why it failed. A stop is no error, whatever the run came to meanwhile.
    ///
    /// # Cancel safety
    /// If dropped, the daemon stops the run.
    pub(crate) async fn run(
        &mut self,
        content: PromptContent,
        request: RequestCancellation,
    ) -> Result<PromptEnd, RpcError> {
        let session = self.prompt.cancel_token();
        let cancelled = async {
            tokio::select! {
                () = session.cancelled() => {}
                () = request.cancelled() => {}
            }
        };
        match self.send_and_follow(content, cancelled).await {
            Err(error) if self.is_stop_requested => {
                let run = self.prompt.run();
                let note = format!(
                    "\n(The end of the run is not known: {}. `quell runs show {run}` shows it.)\n",
                    error.message
                );
                self.editor.send(self.updates.add_text(&note))?;
                Ok(PromptEnd { reason: EndReason::Cancelled, meta: None })
            }
            answer => answer,
        }
    }

    async fn send_and_follow(
        &mut self,
        content: PromptContent,
        cancelled: impl Future<Output = ()>,
    ) -> Result<PromptEnd, RpcError> {
        let PromptContent { text, attachments } = content;
        let (agent, timeout_ms, on_busy, idempotency_key) = (None, None, None, None);
        let message = SendRequest { text, attachments, agent, idempotency_key, on_busy, timeout_ms, literal: false };
        let mut cancelled = std::pin::pin!(cancelled);
        let (client, key, run) = (self.client.clone(), self.key.clone(), self.prompt.run().clone());
        let mut sending = std::pin::pin!(client.send_attached(&key, &run, &message));
        let sent = loop {
            tokio::select! {
                biased;
                () = &mut cancelled, if !self.is_stop_requested => self.request_stop().await?,
                sent = &mut sending => break sent.map_err(|error| from_client(&error))?,
            }
        };
        let mut events = match sent {
            AttachedSend::Following(events) => events,
            AttachedSend::Stopped(answer) => {
                self.report_activity()?;
                self.editor.send(self.updates.add_text(&describe_stop(&answer)))?;
                return Ok(PromptEnd { reason: EndReason::EndTurn, meta: None });
            }
        };
        loop {
            tokio::select! {
                biased;
                () = &mut cancelled, if !self.is_stop_requested => self.request_stop().await?,
                Some((approval, reply)) = self.questions.next() => {
                    self.handle_reply(approval, reply).await?;
                    self.report_activity()?;
                }
                item = events.next() => if let Some(event) = read_item(item)?
                    && let Some(answer) = self.handle_event(&event)?
                {
                    return answer;
                },
            }
        }
    }

    fn handle_event(&mut self, event: &RunEvent) -> Result<Option<Result<PromptEnd, RpcError>>, RpcError> {
        let tells_of_work =
            !matches!(event.kind, EventKind::Queued { .. } | EventKind::Ending { .. } | EventKind::Ended { .. });
        if tells_of_work && self.activity.is_none() {
            self.report_activity()?;
        }
        for update in self.updates.translate(&event.kind) {
            self.editor.send(update)?;
        }
        match &event.kind {
            requested @ EventKind::ApprovalRequested { .. } if !self.is_stop_requested => {
                let (workdir, run) = (&self.prompt.workdir, self.prompt.run());
                if let Some(question) = PermissionQuestion::from_event(workdir, run, requested) {
                    self.ask(question);
                }
            }
            EventKind::ApprovalResolved { id, .. } => {
                if let Some(question) = self.open_questions.remove(id) {
                    question.withdrawn.cancel();
                }
            }
            EventKind::SubRunApprovalRequested { approval } if !self.is_stop_requested => {
                self.ask_row((**approval).clone());
            }
            EventKind::SubRunApprovalResolved { approval } => {
                if let Some(question) = self.open_questions.remove(&approval.id) {
                    let is_allowed = matches!(approval.state, ApprovalState::Allowed { .. });
                    let status = if is_allowed { CallStatus::Completed } else { CallStatus::Failed };
                    self.close_question(question, status)?;
                }
            }
            EventKind::Snapshot { approvals, .. } if !self.is_stop_requested => self.catch_up_questions(approvals)?,
            EventKind::Ending { verdict: Verdict::Aborted { .. } } => self.close_questions()?,
            // Calls of sub-runs in the background go on waiting.
            EventKind::Ending { .. } => {
                self.open_questions.drain().for_each(|(_, question)| question.withdrawn.cancel());
            }
            EventKind::Ended { verdict, receipt, .. } => {
                self.close_questions()?;
                return Ok(Some(self.answer(verdict, receipt)));
            }
            _ => {}
        }
        if tells_of_work {
            self.report_activity()?;
        }
        Ok(None)
    }

    /// Tells the editor whether the run waits for a person, if that has changed.
    fn report_activity(&mut self) -> Result<(), RpcError> {
        let has_own_question = self.open_questions.values().any(|question| question.sub_run_call.is_none());
        let activity = if has_own_question && !self.updates.is_call_running() {
            RunActivity::WaitsForPerson
        } else {
            RunActivity::Working
        };
        if self.activity.replace(activity) == Some(activity) { Ok(()) } else { self.editor.report(activity) }
    }

    /// After missed events: closes what was decided meanwhile, and asks what waits.
    fn catch_up_questions(&mut self, waiting: &[ApprovalRow]) -> Result<(), RpcError> {
        let is_decided = |approval: &String| !waiting.iter().any(|row| row.id == *approval);
        let decided: Vec<_> = self.open_questions.extract_if(|approval, _| is_decided(approval)).collect();
        for (_, question) in decided {
            let is_denied = question.decision == Some(Decision::Deny);
            self.close_question(question, if is_denied { CallStatus::Failed } else { CallStatus::Completed })?;
        }
        waiting.iter().cloned().for_each(|row| self.ask_row(row));
        Ok(())
    }

    fn ask_row(&mut self, row: ApprovalRow) {
        if !self.open_questions.contains_key(&row.id) {
            self.ask(PermissionQuestion::from_row(&self.prompt.workdir, self.prompt.run(), row));
        }
    }

    fn ask(&mut self, question: PermissionQuestion) {
        let sub_run_call = question.id_of_sub_run_call();
        let open = OpenQuestion { withdrawn: question.withdrawn.clone(), sub_run_call, decision: None };
        self.open_questions.insert(question.approval.clone(), open);
        self.questions.push(Box::pin(question.ask(self.client.clone(), Arc::clone(&self.editor))));
    }

    /// Withdraws a question. A call of a sub-run is shown with this status from now on.
    fn close_question(&self, question: OpenQuestion, status: CallStatus) -> Result<(), RpcError> {
        question.withdrawn.cancel();
        let Some(id) = question.sub_run_call else { return Ok(()) };
        self.editor.send(EditorUpdate::CallStatus { id, status })
    }

    async fn handle_reply(&mut self, approval: String, reply: PermissionReply) -> Result<(), RpcError> {
        if let (Some(question), PermissionReply::Answered { decision, .. }) =
            (self.open_questions.get_mut(&approval), &reply)
        {
            question.decision = Some(*decision);
        }
        match reply {
            PermissionReply::Withdrawn | PermissionReply::Answered { accepted: Ok(()), .. } => Ok(()),
            PermissionReply::NotAsked(error) => self.editor.send(self.updates.add_text(&format!(
                "\n(A call waits for a person, and the editor cannot ask: {error}. `quell approvals` shows it.)\n"
            ))),
            PermissionReply::TurnCancelled if self.is_stop_requested => Ok(()),
            PermissionReply::TurnCancelled => self.request_stop().await,
            PermissionReply::Answered { accepted: Err(error), .. } => match error {
                // Decided meanwhile by somebody else, by time or by a stop.
                ClientError::Refused(problem) if matches!(problem.status, 404 | 409) => Ok(()),
                error => {
                    self.editor.send(self.updates.add_text(&format!("\n(The answer was not accepted: {error})\n")))
                }
            },
        }
    }

    /// Asks the daemon to stop the run, also if it is not accepted yet.
    async fn request_stop(&mut self) -> Result<(), RpcError> {
        self.is_stop_requested = true;
        // Fails when the editor has gone, which is no reason not to stop.
        let _ = self.close_questions();
        let reason = self.prompt.is_editor_gone().then(|| StopReason::Disconnect.as_str().to_owned());
        let request = StopRunRequest { session_key: Some(self.key.clone()), force: false, reason };
        match self.client.stop_run(self.prompt.run(), &request, StopWait::UntilRequested).await {
            Ok(_) => Ok(()),
            // Not accepted yet: the daemon remembers the stop.
            Err(error) if error.is_not_found() => Ok(()),
            // The caller drops the stream, which stops the run, too.
            Err(error) => Err(from_client(&error)),
        }
    }

    fn close_questions(&mut self) -> Result<(), RpcError> {
        let open = std::mem::take(&mut self.open_questions);
        open.into_values().try_for_each(|question| self.close_question(question, CallStatus::Cancelled))
    }

    fn answer(&self, verdict: &Verdict, receipt: &Receipt) -> Result<PromptEnd, RpcError> {
        match stop_reason(verdict) {
            Ok(reason) => Ok(PromptEnd { reason, meta: receipt_meta(receipt) }),
            Err(_) if self.is_stop_requested => {
                Ok(PromptEnd { reason: EndReason::Cancelled, meta: receipt_meta(receipt) })
            }
            Err(message) => Err(failed(message).data(json!({"runId": self.prompt.run(), "receipt": receipt}))),
        }
    }
}

/// The next event; `None` if the connection was lost and is opened again, to follow the stop that this causes.
fn read_item(item: Option<Result<RunEventStreamItem, ClientError>>) -> Result<Option<Box<RunEvent>>, RpcError> {
    match item {
        Some(Ok(RunEventStreamItem::Event(event))) => Ok(Some(event)),
        Some(Ok(RunEventStreamItem::Disconnected { .. } | RunEventStreamItem::Reconnected)) => Ok(None),
        Some(Err(error)) => Err(from_client(&error)),
        None => Err(failed("the daemon ended the events of the run before its end; `quell runs` shows its state")),
    }
}

/// The stop reason of a verdict, or the text of an error.
fn stop_reason(verdict: &Verdict) -> Result<EndReason, String> {
    match verdict {
        Verdict::Completed => Ok(EndReason::EndTurn),
        Verdict::Failed { code, .. } if code == CODE_TRUNCATED => Ok(EndReason::MaxTokens),
        Verdict::Failed { code, .. } if code == CODE_REFUSED => Ok(EndReason::Refusal),
        Verdict::Failed { message, .. } => Err(message.clone()),
        Verdict::Aborted { reason, .. } => match reason {
            StopReason::Steps => Ok(EndReason::MaxTurnRequests),
            StopReason::Tokens => Ok(EndReason::MaxTokens),
            StopReason::Timeout => {
                Err("the run has reached its time limit; raise run_timeout_s in [limits]".to_owned())
            }
            StopReason::DailyLimit => Err("the agent has reached its daily limit".to_owned()),
            StopReason::DaemonStopped => Err("the daemon ended during the run".to_owned()),
            StopReason::User
            | StopReason::Command
            | StopReason::Superseded
            | StopReason::Shutdown
            | StopReason::Disconnect
            | StopReason::Other(_) => Ok(EndReason::Cancelled),
        },
    }
}

/// The receipt, for editors that show it.
fn receipt_meta(receipt: &Receipt) -> Option<Meta> {
    let line = receipt_line(receipt);
    let value = json!({"quell": {"runId": receipt.run_id, "receiptLine": line, "receipt": receipt}});
    value.as_object().cloned()
}

fn describe_stop(answer: &StopAnswer) -> String {
    match answer.run_ids.len() {
        0 => "There was nothing to stop.".to_owned(),
        1 => "Stopped 1 run.".to_owned(),
        count => format!("Stopped {count} runs."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason_of(verdict: Verdict) -> Result<EndReason, String> {
        stop_reason(&verdict)
    }

    #[test]
    fn each_end_has_its_stop_reason() {
        let aborted = |reason| reason_of(Verdict::Aborted { reason, by: None });
        let failed = |code: &str| reason_of(Verdict::Failed { code: code.into(), message: "why".into() });
        assert_eq!(reason_of(Verdict::Completed), Ok(EndReason::EndTurn));
        assert_eq!(failed("truncated"), Ok(EndReason::MaxTokens));
        assert_eq!(failed("refused"), Ok(EndReason::Refusal));
        assert_eq!(failed("model_error"), Err("why".to_owned()));
        assert_eq!(aborted(StopReason::Steps), Ok(EndReason::MaxTurnRequests));
        for reason in [StopReason::User, StopReason::Command, StopReason::Disconnect, StopReason::Other("x".into())] {
            assert_eq!(aborted(reason), Ok(EndReason::Cancelled), "a stop is no error");
        }
        assert!(aborted(StopReason::Timeout).unwrap_err().contains("run_timeout_s"));
    }
}
