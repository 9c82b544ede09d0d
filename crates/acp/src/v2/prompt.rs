//! One prompt of version 2: the answer when its message enters the conversation, and the state of the session at its
//! end.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use quell_protocol::RunId;

use super::encode::{encode_end, encode_failure, encode_permission};
use super::session_states::SessionStates;
use super::{V2Agent, send_update};
use crate::content::join_prompt;
use crate::editor::{
    EditorTurn, EditorUpdate, EndReason, PermissionOutcome, PermissionRequest, PromptEnd, RunActivity,
};
use crate::turn::EditorPrompt;
use crate::updates::{USER_MESSAGE, message_id};
use crate::v2::encode::read_blocks;
use crate::wire::RpcError;
use crate::wire::v2::*;

/// Starts a prompt. Its request is answered when the run begins, or when it is clear that it never will.
pub(super) fn start_prompt(
    agent: &V2Agent,
    request: PromptRequest,
    responder: Responder<PromptResponse>,
    editor: &EditorConnection,
) -> Result<(), RpcError> {
    let begun = (|| {
        let content = join_prompt(read_blocks(&request.prompt)?)?;
        let (key, prompt) = agent.agent.begin_prompt(&request.session_id.0)?;
        Ok((content, key, prompt, agent.agent.client()?))
    })();
    let (content, key, prompt, client) = match begun {
        Ok(begun) => begun,
        Err(error) => return responder.respond_with_error(error),
    };
    let request_cancelled = responder.cancellation();
    let side = Arc::new(V2Turn {
        editor: editor.clone(),
        session: request.session_id,
        run: prompt.run().clone(),
        states: Arc::clone(&agent.states),
        waiting: Mutex::new(Some(WaitingPrompt { blocks: request.prompt, responder })),
    });
    let mut turn = EditorPrompt::new(client, Arc::clone(&side) as Arc<dyn EditorTurn>, key, prompt);
    editor.spawn(async move {
        let end = turn.run(content, request_cancelled).await;
        turn.prompt.leave();
        // Fails when the editor has gone.
        let _ = side.end(end);
        Ok(())
    })
}

struct V2Turn {
    editor: EditorConnection,
    session: SessionId,
    run: RunId,
    states: Arc<SessionStates>,
    /// `None` once the message is in the conversation.
    waiting: Mutex<Option<WaitingPrompt>>,
}

struct WaitingPrompt {
    blocks: Vec<ContentBlock>,
    responder: Responder<PromptResponse>,
}

impl V2Turn {
    fn take_waiting(&self) -> Option<WaitingPrompt> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// All updates of the run come before this.
    fn end(&self, end: Result<PromptEnd, RpcError>) -> Result<(), RpcError> {
        match (self.take_waiting(), &end) {
            // A message that was taken back is not in the conversation.
            (Some(message), Ok(PromptEnd { reason: EndReason::Cancelled, .. })) => {
                return message.responder.respond_with_error(RpcError::request_cancelled());
            }
            (Some(message), Err(error)) => return message.responder.respond_with_error(error.clone()),
            (Some(message), Ok(_)) => self.insert(message, RunActivity::Working)?,
            (None, _) => {}
        }
        let idle = match end {
            Ok(end) => encode_end(end),
            Err(error) => encode_failure(error),
        };
        self.states.end(&self.editor, &self.session, &self.run, idle)
    }

    /// Adds the message to the conversation, which answers its request.
    fn insert(&self, message: WaitingPrompt, activity: RunActivity) -> Result<(), RpcError> {
        let id = message_id(&self.run, USER_MESSAGE, 1);
        let update = SessionUpdate::UserMessage(UserMessage::new(id.clone()).content(message.blocks));
        self.editor.send_notification(UpdateSessionNotification::new(self.session.clone(), update))?;
        self.states.report(&self.editor, &self.session, &self.run, activity)?;
        message.responder.respond(PromptResponse::new(id))
    }
}

impl EditorTurn for V2Turn {
    fn send(&self, update: EditorUpdate) -> Result<(), RpcError> {
        send_update(&self.editor, &self.session, update)
    }

    fn ask(&self, request: PermissionRequest) -> BoxFuture<'static, Result<PermissionOutcome, RpcError>> {
        let asked = self.editor.send_request(encode_permission(self.session.clone(), request));
        Box::pin(async move {
            Ok(match asked.block_task().await?.outcome {
                RequestPermissionOutcome::Selected(selected) => {
                    PermissionOutcome::Selected(selected.option_id.to_string())
                }
                _ => PermissionOutcome::Cancelled,
            })
        })
    }

    fn report(&self, activity: RunActivity) -> Result<(), RpcError> {
        match self.take_waiting() {
            Some(message) => self.insert(message, activity),
            None => self.states.report(&self.editor, &self.session, &self.run, activity),
        }
    }
}
