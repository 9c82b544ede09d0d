//! A plain model call for a client of a model API: one request, no agent, no tools but the client's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_kernel::client_request::{AnswerEnd, AnswerOptions};
use quell_kernel::image::{Image, ImageSource, ImageUnavailable};
use quell_kernel::model_chain::AnswerProgress;
use quell_kernel::prompt::{self, ImageSet, Prompt, Vision};
use quell_kernel::registry::RunPhase;
use quell_kernel::run::WorkOutcome;
use quell_kernel::turn::{ModelMessage, ToolCall, Turn, TurnDraft};
use quell_llm::{Conversation, FinishReason, ModelAnswer, ModelCallRequest, ModelError, ModelHandle};
use quell_scope::{Cancelled, Point, Scope};

use super::ModelStepSink;
use super::model_answer::parse_raw_call;
use crate::live_run::{ClientAnswer, ClientHistory, ClientWork, LiveRun};

/// Error code of a plain model call whose request the provider did not accept.
const CODE_REJECTED: &str = "request_rejected";

/// Calls a model once with the conversation of a client. An answer that a limit or a filter cut counts; the client is
/// told how it ended.
///
/// # Errors
/// [`Cancelled`] if the scope was cancelled; what has come of the answer is in the draft.
///
/// # Cancel safety
/// Safe to drop at any await: the draft is in the live run, and held resources are in the ledger.
pub async fn call_model_for_client(
    live_run: &Arc<LiveRun>,
    model: &ModelHandle,
    client: ClientWork,
    set_phase: &(dyn Fn(RunPhase) + Sync),
) -> Result<WorkOutcome, Cancelled> {
    let (scope, writer) = (&live_run.scope, live_run.writer());
    scope.check(Point::BeforeStep)?;
    writer.begin_step(1)?;
    // waits: on a thread of the scope, which is told of a stop.
    let (conversation, options) = encode_conversation(live_run, model, client).await?;
    scope.check(Point::ContextBuilt)?;
    let request = ModelCallRequest {
        run: live_run.id(),
        agent: &live_run.run.agent,
        conversation: &conversation,
        tools: &options.tools,
        answer: &options,
        thinking: options.thinking.mode_or(None),
        web_search: false,
    };
    let max_attempts = model.max_attempts();
    let mut sink = ModelStepSink { writer: &writer, max_attempts, answer: AnswerProgress::NotBegun };
    set_phase(RunPhase::Waiting);
    let answer = model.call(&request, scope, &mut sink).await;
    set_phase(RunPhase::Processing);
    scope.check(Point::AfterModel)?;
    match answer {
        Ok(answer) => {
            let ModelAnswer { message, finish_reason, .. } = answer;
            let model = model.name().to_owned();
            let message = ModelMessage { model: Some(model.clone()), ..message.map_calls(parse_raw_call) };
            let calls: Vec<ToolCall> = writer.finish_message(message)?;
            let end = answer_end(&finish_reason, !calls.is_empty());
            writer.record_client_answer(ClientAnswer { end, calls, model })?;
            Ok(WorkOutcome::Completed)
        }
        Err(ModelError::Cancelled) => Err(Cancelled),
        Err(error) => Ok(WorkOutcome::Failed { code: failure_code(&error).to_owned(), message: error.to_string() }),
    }
}

/// The conversation in the wire format of the model, and how the client wants its answer. Nothing else of the request
/// stays in memory through the answer.
async fn encode_conversation(
    live_run: &LiveRun,
    model: &ModelHandle,
    client: ClientWork,
) -> Result<(Conversation, AnswerOptions), Cancelled> {
    let turns: &[Arc<Turn>] = match &client.history {
        ClientHistory::OfRequest(turns) => turns,
        ClientHistory::OfSession => &[],
    };
    // The draft of the run has less: it is stored.
    let draft = client.draft(live_run.id().clone());
    // waits: on a thread of the scope, which is told of a stop.
    let images = decode_images(&live_run.scope, turns, &draft).await?;
    let conversation = model.encode_conversation(&Prompt {
        model: model.name(),
        system: &client.instructions,
        turns,
        draft: Some(&draft),
        run_context: None,
        time_zone: None,
        vision: Vision::Images(&images),
    });
    Ok((conversation, client.answer))
}

/// Decodes the images that the conversation contains. Files of this machine are not read for a client.
async fn decode_images(scope: &Scope, turns: &[Arc<Turn>], draft: &TurnDraft) -> Result<ImageSet, Cancelled> {
    let mut images = ImageSet::default();
    let sources = prompt::wanted_image_sources(turns, Some(draft));
    let sources: Vec<String> =
        sources.into_iter().filter(|source| !matches!(ImageSource::parse(source), ImageSource::Url(_))).collect();
    if sources.is_empty() {
        return Ok(images);
    }
    let decode = move |stop: &AtomicBool| {
        let decode_one = |source: String| {
            let image = match ImageSource::parse(&source) {
                ImageSource::Data(url) => Image::from_data_url(url),
                ImageSource::File(_) | ImageSource::Url(_) | ImageSource::Unknown => {
                    Err(ImageUnavailable::OutsideImageFolders)
                }
            };
            (source, image)
        };
        sources.into_iter().take_while(|_| !stop.load(Ordering::Relaxed)).map(decode_one).collect::<Vec<_>>()
    };
    for (source, image) in scope.blocking(Point::Pictures, "pictures", decode).await? {
        images.insert_if_absent(source, image);
    }
    Ok(images)
}

/// The code of a failure. A request that the provider does not accept is the client's to correct.
fn failure_code(error: &ModelError) -> &'static str {
    match error {
        ModelError::Rejected { status: Some(400 | 404 | 413 | 422), .. } => CODE_REJECTED,
        error => error.code(),
    }
}

fn answer_end(reason: &FinishReason, has_calls: bool) -> AnswerEnd {
    match reason {
        FinishReason::StopSequence(which) => AnswerEnd::StopSequence(Some(which.clone())),
        FinishReason::Length => AnswerEnd::Length,
        FinishReason::ContentFilter => AnswerEnd::Filtered,
        FinishReason::Stop | FinishReason::ToolCalls | FinishReason::Paused | FinishReason::Other(_) => {
            if has_calls {
                AnswerEnd::Calls
            } else {
                AnswerEnd::Done
            }
        }
    }
}
