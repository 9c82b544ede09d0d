//! Calls that wait for a person, as requests for permission to the editor.

use std::path::PathBuf;

use quell_client::{ClientError, DaemonClient};
use quell_protocol::RunId;
use quell_protocol::approval::{ApprovalAnswer, ApprovalRow, Decision};
use quell_protocol::event::EventKind;
use tokio_util::sync::CancellationToken;

use crate::tool_calls::{CallStart, wire_call_id};
use crate::wire::{
    EditorConnection, PermissionOption, PermissionOptionKind, RequestPermissionOutcome, RequestPermissionRequest,
    SessionId,
};

const ALLOW_ONCE: &str = "allow_once";
const ALLOW_SESSION: &str = "allow_session";
const REJECT: &str = "reject";

/// A question to the editor that is open.
pub(crate) struct PermissionQuestion {
    pub(crate) approval: String,
    /// The event `approval.requested`.
    event: EventKind,
    place: QuestionPlace,
    /// Cancelled when the approval is decided elsewhere, or by a stop.
    pub(crate) withdrawn: CancellationToken,
}

/// Where a call waits.
pub(crate) struct QuestionPlace {
    pub(crate) session: SessionId,
    pub(crate) run: RunId,
    pub(crate) workdir: PathBuf,
}

/// What the editor says.
#[derive(Debug)]
pub(crate) enum PermissionReply {
    Answer(ApprovalAnswer),
    /// The editor has given up the whole turn.
    TurnCancelled,
    /// Decided elsewhere: the editor was told.
    Withdrawn,
    /// The daemon did not say what the question is.
    NotAsked(ClientError),
}

impl PermissionQuestion {
    /// The question that an approval means; `None` for other events.
    pub(crate) fn new(place: QuestionPlace, event: &EventKind) -> Option<Self> {
        let EventKind::ApprovalRequested { id, .. } = event else { return None };
        Some(Self { approval: id.clone(), event: event.clone(), place, withdrawn: CancellationToken::new() })
    }

    /// Asks the editor.
    ///
    /// # Cancel safety
    /// If dropped, the editor is told that the answer is not needed any more.
    pub(crate) async fn ask(self, client: DaemonClient, editor: EditorConnection) -> (String, PermissionReply) {
        let asking = async {
            let row = match find_approval(&client, &self.approval).await {
                Ok(row) => row,
                Err(error) => return PermissionReply::NotAsked(error),
            };
            let Some(request) = describe_question(&self.place, &self.event, row.as_ref()) else {
                return PermissionReply::Withdrawn;
            };
            match editor.send_request(request).block_task().await {
                Ok(response) => read_outcome(&response.outcome),
                Err(error) => PermissionReply::Answer(ApprovalAnswer::denial(Some(format!(
                    "the editor could not ask: {}",
                    error.message
                )))),
            }
        };
        let reply = tokio::select! {
            biased;
            // The dropped request sends `$/cancel_request`.
            () = self.withdrawn.cancelled() => PermissionReply::Withdrawn,
            reply = asking => reply,
        };
        (self.approval, reply)
    }
}

/// What the editor shows. `row` is the approval as the daemon lists it.
fn describe_question(
    place: &QuestionPlace,
    event: &EventKind,
    row: Option<&ApprovalRow>,
) -> Option<RequestPermissionRequest> {
    let EventKind::ApprovalRequested { call_id, tool, arguments, escalation, quorum, .. } = event else {
        return None;
    };
    let question = row.and_then(|row| row.question.as_deref());
    let mut notes = Vec::new();
    if let Some(escalation) = escalation {
        notes.push(format!("Runs outside of the sandbox: {}. It opens {}.", escalation.reason, escalation.opens));
    }
    if *quorum > 1 {
        notes.push(format!("{quorum} people must allow it."));
    }
    if let Some(question) = question {
        notes.push(format!("{} asks: {}", question.server, question.message));
    }
    let wire_id = wire_call_id(&place.run, call_id.as_str());
    let start = CallStart { id: &wire_id, tool, arguments, workdir: &place.workdir };
    let call = start.describe((!notes.is_empty()).then(|| notes.join("\n")));
    let needs_fields =
        question.is_some_and(|question| question.fields.iter().any(|field| field.required && field.default.is_none()));
    let mut options = Vec::new();
    if question.is_none() {
        options.push(PermissionOption::new(ALLOW_ONCE, "Allow", PermissionOptionKind::AllowOnce));
        options.push(PermissionOption::new(
            ALLOW_SESSION,
            "Allow this tool in this session",
            PermissionOptionKind::AllowAlways,
        ));
    } else if !needs_fields {
        options.push(PermissionOption::new(ALLOW_ONCE, "Accept", PermissionOptionKind::AllowOnce));
    }
    options.push(PermissionOption::new(REJECT, "Reject", PermissionOptionKind::RejectOnce));
    Some(RequestPermissionRequest::new(place.session.clone(), call, options))
}

fn read_outcome(outcome: &RequestPermissionOutcome) -> PermissionReply {
    match outcome {
        RequestPermissionOutcome::Selected(selected) => PermissionReply::Answer(match &*selected.option_id.0 {
            ALLOW_ONCE => Decision::Allow.into(),
            ALLOW_SESSION => ApprovalAnswer::for_session(),
            REJECT => Decision::Deny.into(),
            other => ApprovalAnswer::denial(Some(format!("the editor chose {other:?}, which is no option"))),
        }),
        _ => PermissionReply::TurnCancelled,
    }
}

/// The approval with its question, which the event does not carry.
async fn find_approval(client: &DaemonClient, id: &str) -> Result<Option<ApprovalRow>, ClientError> {
    Ok(client.list_approvals().await?.into_iter().find(|row| row.id == id))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn outcome(value: serde_json::Value) -> PermissionReply {
        read_outcome(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn only_the_offered_options_allow() {
        let selected = |id: &str| match outcome(json!({"outcome": "selected", "optionId": id})) {
            PermissionReply::Answer(answer) => answer,
            other => panic!("no answer: {other:?}"),
        };
        assert_eq!(selected(ALLOW_ONCE), Decision::Allow.into());
        assert_eq!(selected(ALLOW_SESSION), ApprovalAnswer::for_session());
        assert_eq!(selected("yes").decision, Decision::Deny);
        assert!(matches!(outcome(json!({"outcome": "cancelled"})), PermissionReply::TurnCancelled));
    }

    #[test]
    fn a_question_says_what_would_run() {
        let event: EventKind = serde_json::from_value(json!({
            "type": "approval.requested", "id": "a1", "callId": "c1", "tool": "shell",
            "arguments": {"command": "rm -r x"}, "expiresAt": "2026-01-01T00:00:00Z", "quorum": 2,
        }))
        .unwrap();
        let (session, run) = (SessionId::new("s"), RunId::parse("r1").unwrap());
        let place = QuestionPlace { session, run, workdir: "/w".into() };
        let request = serde_json::to_value(describe_question(&place, &event, None).unwrap()).unwrap();
        assert_eq!(request["toolCall"]["title"], "`rm -r x`");
        assert!(request["toolCall"]["content"][0]["content"]["text"].as_str().unwrap().contains("2 people"));
        let kinds: Vec<_> = request["options"].as_array().unwrap().iter().map(|option| &option["kind"]).collect();
        assert_eq!(kinds, ["allow_once", "allow_always", "reject_once"]);
    }
}
