//! Messages to an agent: a new task, a word to a task that works, or the answer to an approval.
//!
//! What begins by a message goes on when the client is lost: only a stop stops it. Clients are programs, so a text that
//! is a stop word is only a text.

use quell_protocol::api::{OnBusy, RunView, SendRequest, StopRunRequest};
use quell_protocol::{ErrorCode, EventKind, RunId, SessionKey};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::errors::{A2aError, A2aErrorKind};
use super::messages::{A2aMessage, MessageContent};
use super::operations::A2aRequest;
use super::push_configs::PushConfigParams;
use super::task_stream::{TaskStream, TaskUpdates};
use super::tasks::{A2aTaskState, TaskParts, describe_task, pending_approval, waiting_approvals};
use super::{A2aAnswer, A2aBinding, push_configs};
use crate::budget::Reservation;
use crate::client_run::stream_permit;
use crate::http::{ApiCall, ProblemResponse, RunEventReader, StopWaitMode, problem_response, stop_one_run};
use crate::sent_message::{new_run_id, send_message};

/// Why a task is stopped that cannot tell its client anything.
const REFUSED_RECEIVER: &str = "the push receiver was refused";

#[derive(Debug, Deserialize)]
struct SendMessageParams {
    message: A2aMessage,
    configuration: Option<SendMessageConfiguration>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SendMessageConfiguration {
    return_immediately: Option<bool>,
    history_length: Option<u32>,
    task_push_notification_config: Option<PushConfigParams>,
}

/// A checked message of a client.
struct ReceivedMessage {
    message: A2aMessage,
    content: MessageContent,
    configuration: SendMessageConfiguration,
}

impl ReceivedMessage {
    fn read(request: &A2aRequest) -> Result<Self, A2aError> {
        let SendMessageParams { message, configuration } = request.parse_params()?;
        message.check()?;
        let content = message.content()?;
        Ok(Self { message, content, configuration: configuration.unwrap_or_default() })
    }
}

/// What came of a message of the client.
enum MessageOutcome {
    NewTask(RunId),
    /// The message was for this task, which is shown as it was before.
    ToTask(Box<RunView>),
}

pub(super) async fn send(request: &A2aRequest) -> Result<Value, A2aError> {
    let received = ReceivedMessage::read(request)?;
    let configuration = &received.configuration;
    let is_waiting = configuration.return_immediately != Some(true);
    // Taken before the message is sent: afterwards a refusal would leave a task that nobody knows.
    let permit = is_waiting.then(|| stream_permit(&request.call)).transpose()?;
    let (run, after) = match deliver(request, &received).await? {
        MessageOutcome::NewTask(run) => (run, 0),
        MessageOutcome::ToTask(view) => (view.run_id, view.seq),
    };
    // With several approvers the call may wait on, and so does one that another call of the step asks for.
    if let Some(permit) = permit.filter(|_| pending_approval(&request.call, &run).is_none()) {
        wait_for_answer(&request.call, &run, after, permit).await?;
    }
    Ok(json!({"task": show_task(request, &run, configuration).await?}))
}

pub(super) async fn stream(request: &A2aRequest, binding: &A2aBinding) -> Result<A2aAnswer, A2aError> {
    let received = ReceivedMessage::read(request)?;
    let configuration = &received.configuration;
    let permit = stream_permit(&request.call)?;
    let (task, run, updates) = match deliver(request, &received).await? {
        MessageOutcome::NewTask(run) => {
            let accepted = as_accepted(request.find_task(run.as_str()).await?);
            let parts = TaskParts::ALL.with_history(configuration.history_length);
            (
                describe_task(&accepted, None, TaskParts { artifacts: false, ..parts }),
                run,
                TaskUpdates::from_beginning(),
            )
        }
        MessageOutcome::ToTask(before) => {
            let view = request.find_task(before.run_id.as_str()).await?;
            let waiting = waiting_approvals(&request.call, &view.run_id);
            let parts = TaskParts::ALL.with_history(configuration.history_length);
            if A2aTaskState::of(&view, waiting.first()).is_terminal() {
                let task = describe_task(&view, None, parts);
                return Ok(A2aAnswer::Stream(Box::new(TaskStream::of_ended(&task, binding.clone()))));
            }
            let task = describe_task(&view, waiting.first(), TaskParts { artifacts: false, ..parts });
            (task, before.run_id.clone(), TaskUpdates::after(&view, &waiting))
        }
    };
    let reader = RunEventReader::open_with(request.call.clone(), &run, 0, permit).await?;
    Ok(A2aAnswer::Stream(Box::new(TaskStream::begin(task, reader, updates, binding.clone()))))
}

/// The view of a new run as it was when it was accepted: what came since is in its events.
fn as_accepted(view: RunView) -> RunView {
    let state = "queued".to_owned();
    RunView { state, started_at: None, ended_at: None, verdict: None, receipt: None, output: None, ..view }
}

/// Starts a task, or gives the message to the one that it names, and notes the receiver of its notifications.
async fn deliver(request: &A2aRequest, received: &ReceivedMessage) -> Result<MessageOutcome, A2aError> {
    let config = received.configuration.task_push_notification_config.clone();
    let Some(target) = config.map(PushConfigParams::into_target) else {
        return deliver_message(request, received).await;
    };
    // Before the message: a receiver that is refused must leave no work.
    request.call.engine().check_push_target(&request.call.caller, &target)?;
    let outcome = deliver_message(request, received).await?;
    match &outcome {
        MessageOutcome::NewTask(run) => {
            if let Err(refused) = push_configs::store_target(request, run, target).await {
                // Its client waits for notifications that would never come.
                let stop = StopRunRequest { reason: Some(REFUSED_RECEIVER.to_owned()), ..StopRunRequest::default() };
                stop_one_run(&request.call, run, &stop, StopWaitMode::CarriedOut).await?;
                return Err(refused);
            }
        }
        MessageOutcome::ToTask(view) => {
            push_configs::store_target(request, &view.run_id, target).await?;
        }
    }
    Ok(outcome)
}

async fn deliver_message(request: &A2aRequest, received: &ReceivedMessage) -> Result<MessageOutcome, A2aError> {
    request.call.require_write()?;
    let (context, before) = match received.message.task() {
        None => (new_context(received.message.context())?, None),
        Some(task) => {
            let view = task_for_message(request, received, task).await?;
            if let Some(outcome) = answer_approval(request, &received.message, &view)? {
                return Ok(outcome);
            }
            (view.session_key.clone(), Some(view))
        }
    };
    let run = new_run_id();
    let body = SendRequest {
        text: received.content.text.clone(),
        agent: Some(request.agent.clone()),
        idempotency_key: Some(run.clone()),
        on_busy: before.as_ref().map(|_| OnBusy::Steer),
        timeout_ms: None,
        literal: true,
        attachments: received.content.files.clone(),
    };
    let answer = send_message(&request.call, context, body).await?;
    Ok(match before {
        Some(before) if answer.run_id == before.run_id => MessageOutcome::ToTask(Box::new(before)),
        // Also a message for a task that has ended at this moment.
        _ => MessageOutcome::NewTask(answer.run_id),
    })
}

/// The task that a message names, if it can take the message.
async fn task_for_message(request: &A2aRequest, received: &ReceivedMessage, task: &str) -> Result<RunView, A2aError> {
    let view = request.find_task(task).await?;
    if received.message.context().is_some_and(|context| context != view.session_key.as_str()) {
        let text = format!("the task {task} belongs to another context than `contextId` names");
        return Err(A2aError::invalid("message.contextId", text));
    }
    let state = A2aTaskState::of(&view, None);
    if state.is_terminal() {
        let text = format!("the task {task} is over; send a message with its contextId alone");
        return Err(A2aError::new(A2aErrorKind::UnsupportedOperation, text));
    }
    if state == A2aTaskState::Submitted {
        let text = format!("the task {task} waits for its turn; cancel it, or send a message with its contextId alone");
        return Err(A2aError::new(A2aErrorKind::UnsupportedOperation, text));
    }
    Ok(view)
}

/// Answers the approval that a task waits for; `None` if it waits for none.
fn answer_approval(
    request: &A2aRequest,
    message: &A2aMessage,
    view: &RunView,
) -> Result<Option<MessageOutcome>, A2aError> {
    let waiting = request.call.engine().visible_approvals_of_tree(&request.call.caller, &view.run_id);
    let over = || {
        let text = format!("the task {} waits for no such approval; it may have been answered already", view.run_id);
        A2aError::invalid("message.parts", text)
    };
    if waiting.is_empty() {
        return if message.decision_data().is_some() { Err(over()) } else { Ok(None) };
    }
    let (named, answer) = message.approval_answer()?;
    let approval = match (named, waiting.as_slice()) {
        (Some(named), _) => named,
        (None, [only]) => only.id.clone(),
        (None, _) => {
            let text =
                "several calls wait; answer with a data part that has `approval`, as the question has, and `decision`";
            return Err(A2aError::invalid("message.parts", text));
        }
    };
    if !waiting.iter().any(|row| row.id == approval) {
        return Err(over());
    }
    let caller = request.call.require_approver()?;
    request.call.engine().answer_approval(caller, &approval, answer).map_err(ProblemResponse::from)?;
    Ok(Some(MessageOutcome::ToTask(Box::new(view.clone()))))
}

fn new_context(context: Option<&str>) -> Result<SessionKey, A2aError> {
    let key = context.map_or_else(|| format!("a2a:{}", Uuid::now_v7().simple()), str::to_owned);
    SessionKey::parse(key).map_err(|error| A2aError::invalid("message.contextId", format!("the {error}")))
}

/// Waits until a task is over or needs input. A client that leaves meanwhile changes nothing.
async fn wait_for_answer(call: &ApiCall, run: &RunId, after: u64, permit: Reservation) -> Result<(), A2aError> {
    let mut reader = RunEventReader::open_with(call.clone(), run, after, permit).await?;
    // waits: for the task; a client that leaves drops it.
    while let Some(next) = reader.next().await {
        let event = next.map_err(|end| problem_response(ErrorCode::Unauthorized, end.reason()))?;
        match &event.kind {
            EventKind::Ended { .. } => break,
            EventKind::ApprovalRequested { .. }
            | EventKind::SubRunApprovalRequested { .. }
            | EventKind::Snapshot { .. }
                if pending_approval(call, run).is_some() =>
            {
                break;
            }
            _ => {}
        }
    }
    Ok(())
}

async fn show_task(
    request: &A2aRequest,
    run: &RunId,
    configuration: &SendMessageConfiguration,
) -> Result<Value, A2aError> {
    let view = request.find_task(run.as_str()).await?;
    let approval = pending_approval(&request.call, run);
    Ok(describe_task(&view, approval.as_ref(), TaskParts::ALL.with_history(configuration.history_length)))
}
