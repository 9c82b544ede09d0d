//! Run memory consolidation as a background task, not as a run (row D12 in `docs/design/requirements.md`). After an
//! answer, the agent's models are asked what is worth remembering, and the result is saved as notes. The task has a scope
//! of its own: nothing waits for it, and every stop that covers the run ends it. Its usage belongs to no run, and
//! counts towards the agent's daily limit.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use quell_kernel::daily_spend::add_usage;
use quell_kernel::memory::consolidation::{
    CATEGORY_DAILY, ConsolidationInput, ConsolidationSummary, INSTRUCTION, SYSTEM_PROMPT,
};
use quell_kernel::memory::{CATEGORY_CORE, generate_note_key};
use quell_kernel::model_chain::{AnswerProgress, next_model};
use quell_kernel::prompt::{Prompt, Vision};
use quell_kernel::turn::TurnDraft;
use quell_llm::{ModelAnswer, ModelCallRequest, ModelError, ModelHandle, ModelSink};
use quell_protocol::Usage;
use quell_scope::{Interrupted, Point, Release, Scope};
use quell_tools::background::{BackgroundTaskGuard, RunIdentity};
use tokio::time::sleep;

use super::{RunTable, run_metrics};
use crate::agent::{Agent, unusable_answer_reason};
use crate::channel_origin::ChannelOrigin;
use crate::live_run::{BillingInfo, LiveRun};
use crate::memory::{Note, SaveNoteOutcome, note_scope_of_message};

/// Longer requests would block other consolidations that wait for a permit.
const MODEL_TIMEOUT: Duration = Duration::from_secs(120);

/// The consolidation of one answer. A failure says why nothing was saved.
struct Consolidation<'a> {
    runs: &'a RunTable,
    live_run: &'a LiveRun,
    agent: &'a Agent,
    scope: &'a Scope,
}

impl RunTable {
    /// Starts the consolidation of an answer, if it is configured. For a chat message, `channel_message` holds its
    /// words without the attachments.
    pub(super) fn start_consolidation(
        &self,
        live_run: &Arc<LiveRun>,
        agent: &Arc<Agent>,
        channel_message: Option<(&ChannelOrigin, &str)>,
    ) {
        let memory = &self.services().memory;
        let exchange = live_run.writer().with_draft(|draft| {
            memory.consolidation_input(&live_run.run, channel_message.map(|(_, words)| words), draft)
        });
        let Ok(Some(exchange)) = exchange else { return };
        let run = &live_run.run;
        let owner = RunIdentity { session: run.session.clone(), run: run.id.clone(), principal: run.principal.clone() };
        match self.services().background.register_task(owner, "consolidation of the memory", &live_run.scope) {
            Ok(task) => {
                self.spawn(run_consolidation_task(
                    self.clone(),
                    task,
                    Arc::clone(live_run),
                    Arc::clone(agent),
                    exchange,
                ));
            }
            Err(why) => tracing::warn!(run = %run.id, %why, "an answer is not consolidated"),
        }
    }
}

impl Consolidation<'_> {
    async fn run(
        &self,
        exchange: &ConsolidationInput,
        usage: &mut ConsolidationUsage,
    ) -> Result<(), Interrupted<String>> {
        let memory = &self.runs.services().memory;
        let _permit = self.scope.race(Point::Consolidation, memory.acquire_consolidation_permit()).await?;
        self.runs.check_daily_limit(&self.agent.id).map_err(|refusal| Interrupted::Failed(refusal.to_string()))?;
        // waits: the model is called with the scope.
        let summary = self.request_summary(exchange, usage).await?;
        // waits: each write is raced in `save_summary`.
        self.save_summary(summary).await
    }

    async fn request_summary(
        &self,
        exchange: &ConsolidationInput,
        usage: &mut ConsolidationUsage,
    ) -> Result<ConsolidationSummary, Interrupted<String>> {
        let mut calls = pin!(self.ask_models(exchange, usage));
        let answer = tokio::select! {
            biased;
            // The models are called with the scope.
            answer = &mut calls => answer?,
            () = sleep(MODEL_TIMEOUT) => {
                // Cancel the call as a stop would, so that its usage until now is counted.
                self.scope.cancel();
                // waits: the call was cancelled.
                let _cancelled = calls.await;
                return Err(Interrupted::Failed(format!("the model took more than {} s", MODEL_TIMEOUT.as_secs())));
            }
        };
        if let Some(problem) = unusable_answer_reason(&answer) {
            return Err(Interrupted::Failed(format!("the model {problem}")));
        }
        ConsolidationSummary::parse(&answer.message.text()).map_err(Interrupted::Failed)
    }

    /// Asks the first model of the agent, and the next one of its chain when a provider has failed.
    async fn ask_models(
        &self,
        exchange: &ConsolidationInput,
        usage: &mut ConsolidationUsage,
    ) -> Result<ModelAnswer, Interrupted<String>> {
        let mut in_use = 0_usize;
        loop {
            let model = self.agent.model_at(in_use);
            usage.begin_model(match in_use {
                0 => self.agent.billing_info().provider,
                _ => model.provider_name().to_owned(),
            });
            // waits: the model is called with the scope.
            let answer = self.ask_model(model, exchange, usage).await;
            self.scope.check(Point::AfterModel)?;
            let error = match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let Some(next) = next_model(in_use, self.agent.chain_length(), error.provider_failure(), usage.answer)
            else {
                return Err(Interrupted::Failed(error.to_string()));
            };
            self.scope.check(Point::ModelFallback)?;
            tracing::warn!(run = %self.live_run.id(), from = model.name(), %error, "another model consolidates an answer");
            in_use = next;
        }
    }

    async fn ask_model(
        &self,
        model: &ModelHandle,
        exchange: &ConsolidationInput,
        usage: &mut ConsolidationUsage,
    ) -> Result<ModelAnswer, ModelError> {
        let Self { live_run, agent, scope, .. } = *self;
        let draft = TurnDraft::new(live_run.id().clone(), INSTRUCTION.to_owned());
        let prompt = Prompt {
            model: model.name(),
            system: SYSTEM_PROMPT,
            turns: &[],
            draft: Some(&draft),
            run_context: Some(exchange.as_json()),
            time_zone: None,
            vision: Vision::TextOnly,
        };
        let conversation = model.encode_conversation(&prompt);
        let request = ModelCallRequest {
            run: live_run.id(),
            agent: &agent.id,
            conversation: &conversation,
            tools: &[],
            answer: &agent.config.answer_options(),
            thinking: None,
            web_search: false,
        };
        // waits: the model is called with the scope.
        model.call(&request, scope, usage).await
    }

    async fn save_summary(&self, summary: ConsolidationSummary) -> Result<(), Interrupted<String>> {
        let Self { runs, live_run, scope, .. } = *self;
        let clock = runs.clock();
        let new_note = |key: String, category: &str, text: String| Note {
            key,
            category: category.to_owned(),
            text,
            at: clock.rfc3339(clock.now()),
        };
        let daily_note = summary
            .history_entry
            .map(|text| new_note(format!("{CATEGORY_DAILY}_{}", live_run.id()), CATEGORY_DAILY, text));
        let core_note = summary.memory_update.map(|text| new_note(generate_note_key(&text), CATEGORY_CORE, text));
        for note in [daily_note, core_note].into_iter().flatten() {
            let note_scope = note_scope_of_message(&live_run.run, live_run.channel_origin.as_ref());
            let memory = &runs.services().memory;
            let save = memory.save_note_unless_forgotten(note_scope, note, live_run.accepted_at(), Some(scope));
            let saved = scope.race(Point::Remember, save).await?;
            match saved.map_err(|error| Interrupted::Failed(error.to_string()))? {
                SaveNoteOutcome::New | SaveNoteOutcome::Replaced => {}
                SaveNoteOutcome::NoSession | SaveNoteOutcome::Cancelled => {
                    return Err(Interrupted::Failed("its session or its notes were deleted meanwhile".to_owned()));
                }
            }
        }
        Ok(())
    }
}

async fn run_consolidation_task(
    runs: RunTable,
    task: BackgroundTaskGuard,
    live_run: Arc<LiveRun>,
    agent: Arc<Agent>,
    exchange: ConsolidationInput,
) {
    let mut consolidation_usage = ConsolidationUsage::new();
    let consolidation = Consolidation { runs: &runs, live_run: &live_run, agent: &agent, scope: task.scope() };
    let work = consolidation.run(&exchange, &mut consolidation_usage);
    let ended_how = match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(())) => Release::Finished,
        Ok(Err(Interrupted::Failed(why))) => {
            tracing::warn!(run = %live_run.id(), why, "an answer is not consolidated");
            Release::Failed
        }
        Ok(Err(Interrupted::Cancelled)) => Release::Cancelled,
        Err(_panic) => {
            tracing::error!(run = %live_run.id(), "the consolidation of an answer panicked; please report this");
            Release::Failed
        }
    };
    task.close(ended_how).await;
    consolidation_usage.settle_call(consolidation_usage.in_flight);
    let price = agent.billing_info().price;
    for (provider, usage) in &consolidation_usage.counted {
        run_metrics::count_usage(&BillingInfo { provider: provider.clone(), price }, *usage);
    }
    let usage = consolidation_usage.counted.values().copied().fold(Usage::default(), add_usage);
    if usage != Usage::default()
        && let Err(error) = runs.charge_usage(&agent.id, usage).await
    {
        tracing::error!(run = %live_run.id(), %error, "what a consolidation used could not be stored");
    }
}

/// Usage of the calls of one consolidation: as the provider counted it, else as estimated.
#[derive(Debug)]
struct ConsolidationUsage {
    /// By the provider that bills it.
    counted: BTreeMap<String, Usage>,
    /// The provider of the model in use.
    provider: String,
    in_flight: Usage,
    answer: AnswerProgress,
}

impl ConsolidationUsage {
    fn new() -> Self {
        let (counted, provider, in_flight) = (BTreeMap::new(), String::new(), Usage::default());
        Self { counted, provider, in_flight, answer: AnswerProgress::NotBegun }
    }

    /// From now on this provider is asked.
    fn begin_model(&mut self, provider: String) {
        self.settle_call(self.in_flight);
        (self.provider, self.answer) = (provider, AnswerProgress::NotBegun);
    }

    /// Counts the call in flight with `usage`, in place of its estimate.
    fn settle_call(&mut self, usage: Usage) {
        if usage != Usage::default() {
            let counted = self.counted.entry(self.provider.clone()).or_default();
            *counted = add_usage(*counted, usage);
        }
        self.in_flight = Usage::default();
    }
}

impl ModelSink for ConsolidationUsage {
    fn on_text_delta(&mut self, _: &str) {}

    fn on_thinking_delta(&mut self, _: &str) {}

    fn on_answer_begun(&mut self) {
        self.answer = AnswerProgress::Begun;
    }

    fn on_retry(&mut self, attempt: u32, delay: Duration, why: &str) {
        tracing::info!(attempt, delay_ms = delay.as_secs_f64() * 1000.0, why, "a consolidation is retried");
    }

    fn on_request_sent(&mut self, estimated_tokens: u64) {
        self.settle_call(self.in_flight);
        self.in_flight = Usage { input_tokens: estimated_tokens, output_tokens: 0, cached_tokens: 0, estimated: true };
    }

    fn on_request_not_billed(&mut self) {
        self.settle_call(Usage::default());
    }

    fn on_usage(&mut self, usage: Usage) {
        self.settle_call(usage);
    }
}
