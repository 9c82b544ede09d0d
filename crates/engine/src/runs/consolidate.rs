//! What is kept of an exchange (row D12): when a run has answered, its model is asked once more what of it is worth remembering,
//! and that is written down. It is work behind the run, with a scope of its own: nobody waits for it, and every stop that covers
//! the run ends it. What it uses is no run's, and counts against its agent's day.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use quell_kernel::memory::consolidation::{DAILY, Exchange, Gist, INSTRUCTION, SYSTEM};
use quell_kernel::memory::{CORE, key_of};
use quell_kernel::spend::plus;
use quell_kernel::turn::TurnDraft;
use quell_kernel::view::{Prompt, Sight};
use quell_protocol::Usage;
use tokio::time::sleep;

use super::{Runs, measure};
use crate::agent::{Agent, unusable_because};
use crate::cell::Cell;
use crate::channel::Errand;
use crate::llm::{ModelRequest, ModelSink};
use crate::memory::{Note, Remembered, whose_notes};
use crate::scope::{Cancelled, Point, Scope};
use crate::tools::background::{Owner, TaskAtWork};

/// A model that takes longer than this for a few lines keeps others waiting who want to remember, too.
const LONGEST: Duration = Duration::from_secs(120);

/// What is worth it is written down, or why not.
type Noted = Result<(), String>;

impl Runs {
    /// Begins to consolidate what a run has answered, if the configuration wants that. `heard` is what its message says without
    /// what came with it, where that is told apart: in a chat.
    pub(super) fn consolidate(&self, cell: &Arc<Cell>, agent: &Arc<Agent>, heard: Option<(&Errand, &str)>) {
        let memory = &self.workshop().memory;
        let exchange = cell.pen().draft(|draft| memory.exchange(&cell.run, heard.map(|(_, words)| words), draft));
        let Ok(Some(exchange)) = exchange else { return };
        let run = &cell.run;
        let owner = Owner { session: run.session.clone(), run: run.id.clone(), principal: run.principal.clone() };
        match self.workshop().background.take_task(owner, "consolidation of the memory", &cell.scope) {
            Ok(task) => self.spawn(see_through(self.clone(), task, Arc::clone(cell), (Arc::clone(agent), exchange))),
            Err(why) => tracing::warn!(run = %run.id, %why, "an answer is not consolidated"),
        }
    }

    async fn consolidated(
        &self,
        (cell, agent): (&Cell, &Agent),
        exchange: &Exchange,
        (scope, spent): (&Scope, &mut Tally),
    ) -> Result<Noted, Cancelled> {
        let _place = scope.race(Point::Consolidation, self.workshop().memory.place_to_consolidate()).await?;
        if let Err(refusal) = self.may_spend(&agent.id) {
            return Ok(Err(refusal.to_string()));
        }
        let gist = match self.gist((cell, agent), exchange, (scope, spent)).await? {
            Ok(gist) => gist,
            Err(problem) => return Ok(Err(problem)),
        };
        // waits: each write is raced there.
        self.write_down(cell, gist, scope).await
    }

    async fn gist(
        &self,
        (cell, agent): (&Cell, &Agent),
        exchange: &Exchange,
        (scope, spent): (&Scope, &mut Tally),
    ) -> Result<Result<Gist, String>, Cancelled> {
        let question = TurnDraft::new(cell.id().clone(), INSTRUCTION.to_owned());
        let prompt = Prompt {
            model: agent.model.name(),
            system: SYSTEM,
            turns: &[],
            draft: Some(&question),
            preamble: Some(exchange.record()),
            sight: Sight::Blind,
        };
        let conversation = agent.model.conversation(&prompt);
        let request = ModelRequest {
            run: cell.id(),
            agent: &agent.id,
            conversation: &conversation,
            tools: &[],
            temperature: agent.config.temperature,
            max_tokens: agent.config.max_tokens,
            thinking: None,
        };
        let mut call = pin!(agent.model.call(&request, scope, spent));
        let answer = tokio::select! {
            biased;
            // The model is called with the scope.
            answer = &mut call => answer,
            () = sleep(LONGEST) => {
                // As a stop would, so that what came until now is counted.
                scope.cancel();
                // waits: for a call that was cancelled.
                let _cancelled = call.await;
                return Ok(Err(format!("the model took more than {} s", LONGEST.as_secs())));
            }
        };
        scope.check(Point::AfterModel)?;
        Ok(match answer {
            Err(error) => Err(error.to_string()),
            Ok(answer) => match unusable_because(&answer) {
                Some(problem) => Err(format!("the model {problem}")),
                None => Gist::read(&answer.message.text()),
            },
        })
    }

    async fn write_down(&self, cell: &Cell, gist: Gist, scope: &Scope) -> Result<Noted, Cancelled> {
        let clock = self.clock();
        let note = |key: String, category: &str, text: String| Note {
            key,
            category: category.to_owned(),
            text,
            at: clock.rfc3339(clock.now()),
        };
        let happened = gist.history_entry.map(|text| note(format!("{DAILY}_{}", cell.id()), DAILY, text));
        let learned = gist.memory_update.map(|text| note(key_of(&text), CORE, text));
        for note in [happened, learned].into_iter().flatten() {
            let whose = whose_notes(&cell.run, cell.errand.as_ref());
            let writing = self.workshop().memory.remember_said((whose, note), cell.accepted(), Some(scope));
            match scope.race(Point::Remember, writing).await? {
                Ok(Remembered::New | Remembered::Replaced) => {}
                Ok(Remembered::NoSession | Remembered::Unwanted) => {
                    return Ok(Err("it was to be forgotten meanwhile".to_owned()));
                }
                Err(error) => return Ok(Err(error.to_string())),
            }
        }
        Ok(Ok(()))
    }
}

async fn see_through(runs: Runs, task: TaskAtWork, cell: Arc<Cell>, (agent, exchange): (Arc<Agent>, Exchange)) {
    let mut spent = Tally::default();
    let work = runs.consolidated((&cell, &agent), &exchange, (task.scope(), &mut spent));
    let how = match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(Ok(()))) => "finished",
        Ok(Ok(Err(why))) => {
            tracing::warn!(run = %cell.id(), why, "an answer is not consolidated");
            "failed"
        }
        Ok(Err(Cancelled)) => "cancelled",
        Err(_panic) => {
            tracing::error!(run = %cell.id(), "the consolidation of an answer panicked; please report this");
            "failed"
        }
    };
    task.close(how).await;
    let usage = spent.total();
    measure::used(&agent.bill(), usage);
    if usage != Usage::default()
        && let Err(error) = runs.charge(&agent.id, usage).await
    {
        tracing::error!(run = %cell.id(), %error, "what a consolidation used could not be stored");
    }
}

/// What the calls of one consolidation used: each as its provider counted it, else as it was estimated.
#[derive(Debug, Default)]
struct Tally {
    counted: Usage,
    under_way: Usage,
}

impl Tally {
    fn total(&self) -> Usage {
        plus(self.counted, self.under_way)
    }

    fn settle(&mut self, usage: Usage) {
        self.under_way = usage;
        self.counted = self.total();
        self.under_way = Usage::default();
    }
}

impl ModelSink for Tally {
    fn text(&mut self, _: &str) {}

    fn thinking(&mut self, _: &str) {}

    fn retrying(&mut self, attempt: u32, delay: Duration, why: &str) {
        tracing::info!(attempt, delay_ms = delay.as_secs_f64() * 1000.0, why, "a consolidation is retried");
    }

    fn input_sent(&mut self, estimated_tokens: u64) {
        self.settle(self.under_way);
        self.under_way = Usage { input_tokens: estimated_tokens, output_tokens: 0, estimated: true };
    }

    fn cost_nothing(&mut self) {
        self.settle(Usage::default());
    }

    fn usage(&mut self, usage: Usage) {
        self.settle(usage);
    }
}
