//! Calls that wait for a person, as requests for permission to the editor.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_client::{ClientError, DaemonClient};
use quell_protocol::approval::{ApprovalAnswer, ApprovalRow, Decision, Escalation, may_be_allowed_for_session};
use quell_protocol::event::EventKind;
use quell_protocol::question::ServerQuestion;
use quell_protocol::{AgentId, CallId, RunId};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::editor::{ChoiceKind, EditorTurn, PermissionChoice, PermissionOutcome, PermissionRequest};
use crate::tool_calls::{CallStart, wire_call_id};

const ALLOW_ONCE: &str = "allow_once";
const ALLOW_SESSION: &str = "allow_session";
const REJECT: &str = "reject";

/// A question to the editor.
pub(crate) struct PermissionQuestion {
    pub(crate) approval: String,
    workdir: PathBuf,
    call: PermissionCall,
    /// The event of an approval does not carry the question of an MCP server.
    is_question_known: bool,
    /// Cancelled when the approval is decided elsewhere, or by a stop.
    pub(crate) withdrawn: CancellationToken,
}

/// The call that waits for a person.
struct PermissionCall {
    run: RunId,
    /// Set if a sub-run asks.
    sub_agent: Option<AgentId>,
    id: CallId,
    tool: String,
    arguments: Value,
    escalation: Option<Escalation>,
    quorum: u32,
    question: Option<Box<ServerQuestion>>,
}

/// What came of a question.
#[derive(Debug)]
pub(crate) enum PermissionReply {
    /// The editor has decided, and the daemon was told: whether it took the answer.
    Answered { decision: Decision, accepted: Result<(), ClientError> },
    /// The editor has given up the whole turn.
    TurnCancelled,
    /// Decided elsewhere: the editor was told.
    Withdrawn,
    /// The daemon did not say what the question is.
    NotAsked(ClientError),
}

impl PermissionQuestion {
    /// The question that an event of the run means; `None` for other events than a requested approval.
    pub(crate) fn from_event(workdir: &Path, run: &RunId, event: &EventKind) -> Option<Self> {
        let EventKind::ApprovalRequested { id, call_id, tool, arguments, escalation, quorum, .. } = event else {
            return None;
        };
        let call = PermissionCall {
            run: run.clone(),
            sub_agent: None,
            id: call_id.clone(),
            tool: tool.clone(),
            arguments: arguments.clone(),
            escalation: escalation.as_deref().cloned(),
            quorum: *quorum,
            question: None,
        };
        let (approval, workdir, withdrawn) = (id.clone(), workdir.to_owned(), CancellationToken::new());
        Some(Self { approval, workdir, call, is_question_known: false, withdrawn })
    }

    /// The question of `run`, or of a run below it.
    pub(crate) fn from_row(workdir: &Path, run: &RunId, row: ApprovalRow) -> Self {
        let ApprovalRow { id, run_id, agent, call_id, tool, arguments, escalation, quorum, question, .. } = row;
        let sub_agent = (run_id != *run).then_some(agent);
        let call =
            PermissionCall { run: run_id, sub_agent, id: call_id, tool, arguments, escalation, quorum, question };
        let (workdir, withdrawn) = (workdir.to_owned(), CancellationToken::new());
        Self { approval: id, workdir, call, is_question_known: true, withdrawn }
    }

    /// The id of the call in the editor, if a sub-run asks: the editor has not heard of this call before.
    pub(crate) fn id_of_sub_run_call(&self) -> Option<String> {
        self.call.sub_agent.as_ref().map(|_| wire_call_id(&self.call.run, self.call.id.as_str()))
    }

    /// Asks the editor.
    ///
    /// # Cancel safety
    /// If dropped, the editor is told that the answer is not needed any more.
    pub(crate) async fn ask(self, client: DaemonClient, editor: Arc<dyn EditorTurn>) -> (String, PermissionReply) {
        let Self { approval, workdir, mut call, is_question_known, withdrawn } = self;
        let asking = async {
            if !is_question_known {
                match client.list_approvals().await {
                    Ok(rows) => {
                        call.question = rows.into_iter().find(|row| row.id == approval).and_then(|row| row.question);
                    }
                    Err(error) => return PermissionReply::NotAsked(error),
                }
            }
            let answer = match editor.ask(call.permission_request(&workdir)).await {
                Ok(outcome) => read_outcome(&outcome),
                Err(error) => {
                    Some(ApprovalAnswer::denial(Some(format!("the editor could not ask: {}", error.message))))
                }
            };
            let Some(answer) = answer else { return PermissionReply::TurnCancelled };
            let accepted = client.answer_approval(&approval, &answer).await.map(drop);
            PermissionReply::Answered { decision: answer.decision, accepted }
        };
        let reply = tokio::select! {
            biased;
            // The dropped request sends `$/cancel_request`.
            () = withdrawn.cancelled() => PermissionReply::Withdrawn,
            reply = asking => reply,
        };
        (approval, reply)
    }
}

impl PermissionCall {
    fn permission_request(&self, workdir: &Path) -> PermissionRequest {
        let mut notes = Vec::new();
        if let Some(agent) = &self.sub_agent {
            notes.push(format!("Asked by the sub-agent {agent}."));
        }
        if let Some(escalation) = &self.escalation {
            notes.push(format!("Runs outside of the sandbox: {}. It opens {}.", escalation.reason, escalation.opens));
        }
        if self.quorum > 1 {
            notes.push(format!("{} people must allow it.", self.quorum));
        }
        if let Some(question) = &self.question {
            notes.push(format!("{} asks: {}", question.server, question.message));
        }
        let wire_id = wire_call_id(&self.run, self.id.as_str());
        let start = CallStart { id: &wire_id, tool: &self.tool, arguments: &self.arguments, workdir };
        let note = (!notes.is_empty()).then(|| notes.join("\n"));
        PermissionRequest { call: start.describe(), note, choices: self.choices() }
    }

    fn choices(&self) -> Vec<PermissionChoice> {
        let accept = |name| PermissionChoice { id: ALLOW_ONCE, name, kind: ChoiceKind::AllowOnce };
        let mut choices = match &self.question {
            None => vec![accept("Allow")],
            // The editor cannot fill in fields.
            Some(question) if question.fields.iter().any(|field| field.required && field.default.is_none()) => {
                Vec::new()
            }
            Some(_) => vec![accept("Accept")],
        };
        if may_be_allowed_for_session(self.escalation.as_ref(), self.question.as_deref(), self.quorum) {
            choices.push(PermissionChoice {
                id: ALLOW_SESSION,
                name: "Allow every call of this tool in this session",
                kind: ChoiceKind::AllowAlways,
            });
        }
        choices.push(PermissionChoice { id: REJECT, name: "Reject", kind: ChoiceKind::RejectOnce });
        choices
    }
}

/// `None` if the editor has cancelled the turn.
fn read_outcome(outcome: &PermissionOutcome) -> Option<ApprovalAnswer> {
    match outcome {
        PermissionOutcome::Selected(choice) => Some(match choice.as_str() {
            ALLOW_ONCE => Decision::Allow.into(),
            ALLOW_SESSION => ApprovalAnswer::for_session(),
            REJECT => Decision::Deny.into(),
            other => ApprovalAnswer::denial(Some(format!("the editor chose {other:?}, which is no option"))),
        }),
        PermissionOutcome::Cancelled => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_offered_choices_allow() {
        let selected = |id: &str| read_outcome(&PermissionOutcome::Selected(id.to_owned())).unwrap();
        assert_eq!(selected(ALLOW_ONCE), Decision::Allow.into());
        assert_eq!(selected(ALLOW_SESSION), ApprovalAnswer::for_session());
        assert_eq!(selected("yes").decision, Decision::Deny);
        assert_eq!(read_outcome(&PermissionOutcome::Cancelled), None);
    }

    /// The request for a call that `extra` continues.
    fn requested(extra: &Value) -> PermissionRequest {
        let mut event = json!({
            "type": "approval.requested", "id": "a1", "callId": "c1", "tool": "shell",
            "arguments": {"command": "rm -r x"}, "expiresAt": "2026-01-01T00:00:00Z",
        });
        event.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let event: EventKind = serde_json::from_value(event).unwrap();
        let asked = PermissionQuestion::from_event(Path::new("/w"), &RunId::parse("r1").unwrap(), &event).unwrap();
        asked.call.permission_request(&asked.workdir)
    }

    fn choices(request: &PermissionRequest) -> Vec<ChoiceKind> {
        request.choices.iter().map(|choice| choice.kind).collect()
    }

    #[test]
    fn a_question_says_what_would_run() {
        let request = requested(&json!({}));
        assert_eq!((request.call.title.as_str(), &request.note), ("`rm -r x`", &None));
        assert_eq!(choices(&request), [ChoiceKind::AllowOnce, ChoiceKind::AllowAlways, ChoiceKind::RejectOnce]);
    }

    #[test]
    fn what_needs_several_people_or_leaves_the_sandbox_is_allowed_once() {
        let once = [ChoiceKind::AllowOnce, ChoiceKind::RejectOnce];
        let several = requested(&json!({"quorum": 2}));
        assert!(several.note.as_ref().unwrap().contains("2 people"));
        assert_eq!(choices(&several), once);
        let outside = json!({"reason": "r", "mode": "workspace", "rule": "w", "opens": "everything"});
        assert_eq!(choices(&requested(&json!({"escalation": outside}))), once);
    }
}
