//! Summarise old turns with the model when a request would exceed the context window. From this turn on the summary
//! replaces them. The call is like any other model call: raced, in the ledger, counted, and answered by the next model of
//! the chain if a provider fails.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use quell_kernel::model_chain::AnswerProgress;
use quell_kernel::prompt;
use quell_kernel::registry::RunPhase;
use quell_kernel::run::WorkOutcome;
use quell_kernel::turn::{Compaction, ModelMessage, Turn, TurnDraft, is_blank, newest_that_fit, turns_to_summarise};
use quell_llm::{ModelAnswer, ModelCallRequest, ModelError, ModelSink};
use quell_protocol::Usage;
use quell_scope::{Cancelled, Interrupted, Point};

use super::AgentLoop;
use super::model_answer::find_unusable_answer;
use crate::live_run::RunWriter;

/// Estimate for all models.
const BYTES_PER_TOKEN: usize = 4;
/// The percentage of the window above which older turns are summarised: sizes are estimates, and the answer needs room.
const WINDOW_FULL_PERCENT: usize = 80;

const SUMMARY_SYSTEM_PROMPT: &str = "You summarise conversations between a user and an assistant with tools, for the assistant that will go on with them.";
const SUMMARY_INSTRUCTION: &str = "Summarise the whole conversation above for yourself, because you will not see it again. Keep what the user wants and \
     has decided, what was done and with which result, names, paths, numbers and open questions. Say what was stopped and \
     must not be resumed unless the user asks. Answer with the summary alone and call no tool.";

/// Heading of an earlier summary, which the new one has to include.
const EARLIER_SUMMARY_HEADING: &str = "Before the conversation above there was more. It was summarised as:";

pub(super) enum CompactionOutcome {
    Compacted,
    NothingToCompact,
    Failed(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CompactionTarget {
    FitWindow,
    /// Half of the last request, which the provider refused as too long.
    HalveRequest,
    /// All earlier turns, because a person asked for it.
    Everything,
}

/// The answers of a run that summarises on request.
const COMPACTED_ANSWER: &str = "The conversation before this was summarised. The model now reads the summary instead.";
const NOTHING_TO_COMPACT_ANSWER: &str = "There was nothing to summarise.";

#[derive(Debug, Clone, Copy)]
pub(super) struct RequestBudget(usize);

impl AgentLoop<'_> {
    /// Summarises the whole conversation before this run, and answers that it did.
    ///
    /// # Errors
    /// [`Cancelled`] if the scope was cancelled; the conversation is as before then.
    ///
    /// # Cancel safety
    /// As [`AgentLoop::run`].
    pub async fn compact_on_request(&self) -> Result<WorkOutcome, Cancelled> {
        self.scope.check(Point::BeforeStep)?;
        self.check_budget(1)?;
        self.writer.begin_step(1)?;
        // waits: for files, with the scope, in `load_images`.
        self.load_images().await?;
        // waits: the model is called with the scope, in `compact_history`.
        let answer = match self.compact_history(CompactionTarget::Everything).await? {
            CompactionOutcome::Compacted => COMPACTED_ANSWER,
            CompactionOutcome::NothingToCompact => NOTHING_TO_COMPACT_ANSWER,
            CompactionOutcome::Failed(problem) => {
                let message = format!("the conversation was not summarised, and stays as it is: {problem}");
                return Ok(WorkOutcome::Failed { code: "compaction_failed".to_owned(), message });
            }
        };
        self.writer.finish_message(ModelMessage::new(Vec::new(), answer, Vec::new()))?;
        Ok(WorkOutcome::Completed)
    }

    /// Summarises older turns if they would not fit.
    pub(super) async fn compact_history(&self, target: CompactionTarget) -> Result<CompactionOutcome, Cancelled> {
        self.scope.check(Point::Compaction)?;
        let sizes = self.writer.with_draft(|draft| RequestSizes::measure(self, draft))?;
        let RequestBudget(limit) = self.request_budget(target)?;
        let first = self.history.len() - sizes.turn_sizes.len();
        let visible_turns = self.history.get(first..).unwrap_or_default();
        let turn_count = match target {
            CompactionTarget::Everything if visible_turns.iter().all(|turn| is_summary_alone(turn)) => 0,
            CompactionTarget::Everything => visible_turns.len(),
            CompactionTarget::FitWindow | CompactionTarget::HalveRequest => {
                turns_to_summarise(&sizes.turn_sizes, sizes.fixed_bytes, limit)
            }
        };
        if turn_count == 0 {
            return Ok(CompactionOutcome::NothingToCompact);
        }
        let old_turns = self.history.get(first..first + turn_count).unwrap_or_default();
        let earlier_summary = sizes.summary.as_deref();
        let max_bytes = match target {
            CompactionTarget::FitWindow | CompactionTarget::Everything => self.window_bytes(),
            CompactionTarget::HalveRequest => limit,
        };
        let summary = match self.summarise_turns(&newest_that_fit(old_turns, max_bytes), earlier_summary).await {
            Ok(summary) => summary,
            Err(interrupted) => return interrupted.into_failure().map(CompactionOutcome::Failed),
        };
        let compaction = Compaction::new(old_turns, earlier_summary, summary, sizes.turn_sizes.len() - turn_count);
        self.writer.record_compaction(compaction, turn_count)?;
        Ok(CompactionOutcome::Compacted)
    }

    /// Replaces all older turns by their last messages, if no summary could be made, so that the next request fits.
    pub(super) fn compact_to_last_messages(&self) -> Result<(), Cancelled> {
        let sizes = self.writer.with_draft(|draft| RequestSizes::measure(self, draft))?;
        let turn_count = sizes.turn_sizes.len();
        let visible_turns = self.history.get(self.history.len() - turn_count..).unwrap_or_default();
        Ok(self
            .writer
            .record_compaction(Compaction::from_last_messages(visible_turns, sizes.summary.as_deref()), turn_count)?)
    }

    /// The most bytes of the next request.
    pub(super) fn request_budget(&self, target: CompactionTarget) -> Result<RequestBudget, Cancelled> {
        Ok(RequestBudget(match target {
            CompactionTarget::FitWindow | CompactionTarget::Everything => {
                self.window_bytes() / 100 * WINDOW_FULL_PERCENT
            }
            CompactionTarget::HalveRequest => {
                self.writer.with_draft(|draft| RequestSizes::measure(self, draft).total_bytes())? / 2
            }
        }))
    }

    /// The window of the model in bytes.
    fn window_bytes(&self) -> usize {
        self.agent.config.window_tokens.saturating_mul(BYTES_PER_TOKEN)
    }

    /// The draft for the next request: if it is too long by itself, its oldest results are shortened.
    pub(super) fn draft_within_budget<'d>(
        &self,
        draft: &'d TurnDraft,
        RequestBudget(limit): RequestBudget,
    ) -> Cow<'d, TurnDraft> {
        let other_bytes = RequestSizes::measure(self, draft).total_bytes() - draft.size();
        // The draft always gets at least half of the limit, even if older turns take more than the other half.
        draft.shortened_to_fit(limit.saturating_sub(other_bytes).max(limit / 2))
    }

    pub(super) fn can_shorten_draft(&self, budget: RequestBudget) -> Result<bool, Cancelled> {
        Ok(self.writer.with_draft(|draft| self.draft_within_budget(draft, budget).size() < draft.size())?)
    }

    async fn summarise_turns(
        &self,
        old_turns: &[Arc<Turn>],
        earlier_summary: Option<&str>,
    ) -> Result<String, Interrupted<String>> {
        let instruction = match earlier_summary.filter(|_| prompt::visible_summary(old_turns, None).is_none()) {
            Some(earlier) => format!("{EARLIER_SUMMARY_HEADING}\n\n{earlier}\n\n{SUMMARY_INSTRUCTION}"),
            None => SUMMARY_INSTRUCTION.to_owned(),
        };
        let request = TurnDraft::new(self.run_id.clone(), instruction);
        let answer = loop {
            let mut sink = SummarySink { writer: &self.writer, answer: AnswerProgress::NotBegun };
            // waits: with the scope, in `call_for_summary`.
            let interrupted = match self.call_for_summary(old_turns, &request, &mut sink).await {
                Ok(answer) => break answer,
                Err(interrupted) => interrupted,
            };
            let error = interrupted.into_failure()?;
            if !self.switch_model(&error, sink.answer)? {
                return Err(Interrupted::Failed(error.to_string()));
            }
        };
        match (find_unusable_answer(&answer), answer.message.own_text()) {
            (Some(unusable), _) => Err(Interrupted::Failed(format!("the model {}", unusable.problem))),
            (None, summary) if is_blank(&summary) => Err(Interrupted::Failed("the model gave no summary".to_owned())),
            (None, summary) => Ok(summary),
        }
    }

    /// Asks the model in use for a summary.
    async fn call_for_summary(
        &self,
        old_turns: &[Arc<Turn>],
        request: &TurnDraft,
        sink: &mut SummarySink<'_>,
    ) -> Result<ModelAnswer, Interrupted<ModelError>> {
        let conversation = self.build_conversation(SUMMARY_SYSTEM_PROMPT, old_turns, request, None);
        // waits: for servers that start, with the scope.
        let tools = self.available_tools().await?;
        let request = ModelCallRequest {
            run: self.run_id,
            agent: &self.agent.id,
            conversation: &conversation,
            // Providers refuse calls in a history if the tools that they name are missing.
            tools: &tools,
            answer: &self.agent.config.answer_options(),
            thinking: None,
            // As in the calls whose searches are in the history.
            web_search: self.searches_web(),
        };
        self.check_daily_limit()?;
        self.control.set_phase(RunPhase::Waiting);
        let answer = self.model().call(&request, self.scope, sink).await;
        self.control.set_phase(RunPhase::Processing);
        self.scope.check(Point::Compaction)?;
        answer.map_err(|error| match error {
            ModelError::Cancelled => Interrupted::Cancelled,
            error => Interrupted::Failed(error),
        })
    }
}

/// True for the turn of a run that has summarised the conversation on request.
fn is_summary_alone(turn: &Turn) -> bool {
    turn.is_compaction_request() && turn.compaction().is_some()
}

/// Sizes of the parts of a request, in bytes.
struct RequestSizes {
    /// Of the turns that are sent unchanged.
    turn_sizes: Vec<usize>,
    /// Of everything else.
    fixed_bytes: usize,
    summary: Option<String>,
}

impl RequestSizes {
    fn measure(agent_loop: &AgentLoop<'_>, draft: &TurnDraft) -> Self {
        let visible_count = prompt::visible_turn_count(agent_loop.history, Some(draft));
        let turns = agent_loop.history.get(agent_loop.history.len() - visible_count..).unwrap_or_default();
        let turn_sizes = turns.iter().map(|turn| turn.size()).collect();
        let summary = prompt::visible_summary(agent_loop.history, Some(draft)).map(str::to_owned);
        let extra_bytes =
            summary.as_ref().map_or(0, String::len) + agent_loop.run_context.as_ref().map_or(0, String::len);
        let fixed_bytes = agent_loop.agent.system_prompt.len() + extra_bytes + draft.size();
        Self { turn_sizes, fixed_bytes, summary }
    }

    fn total_bytes(&self) -> usize {
        self.turn_sizes.iter().sum::<usize>() + self.fixed_bytes
    }
}

/// Counts usage and emits no text: a summary is not part of the answer.
struct SummarySink<'a> {
    writer: &'a RunWriter,
    answer: AnswerProgress,
}

impl ModelSink for SummarySink<'_> {
    fn on_text_delta(&mut self, _: &str) {}

    fn on_thinking_delta(&mut self, _: &str) {}

    fn on_answer_begun(&mut self) {
        self.answer = AnswerProgress::Begun;
    }

    fn on_web_search(&mut self, query: &str) {
        self.writer.report_web_search(query);
    }

    fn on_retry(&mut self, attempt: u32, delay: Duration, why: &str) {
        tracing::info!(attempt, delay_ms = delay.as_secs_f64() * 1000.0, why, "summary is retried");
    }

    fn on_request_sent(&mut self, estimated_tokens: u64) {
        self.writer.record_model_request(estimated_tokens);
    }

    fn on_request_not_billed(&mut self) {
        self.writer.record_model_usage(Usage::default());
    }

    fn on_usage(&mut self, usage: Usage) {
        self.writer.record_model_usage(usage);
    }
}
