//! When the conversation gets too long for the model: older turns are summarised by the model itself, and the summary stands
//! in for them from this turn on. The call is one like any other: raced, in the ledger, counted.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use quell_kernel::registry::Phase;
use quell_kernel::turn::{Compaction, Turn, TurnDraft, blank, readable, turns_to_summarise};
use quell_kernel::view;
use quell_protocol::Usage;

use super::Job;
use super::answer::unusable;
use crate::cell::Pen;
use crate::llm::{ModelError, ModelRequest, ModelSink};
use crate::scope::{Cancelled, Point};

/// The usual rule of thumb.
const BYTES_PER_TOKEN: usize = 4;
/// How full the window may be before older turns are summarised, in percent: estimates are rough, and the answer needs room.
const FULL_PERCENT: usize = 80;

const SYSTEM: &str = "You summarise conversations between a user and an assistant with tools, for the assistant that will go on with them.";
const INSTRUCTION: &str = "Summarise the whole conversation above for yourself, because you will not see it again. Keep what the user wants and \
     has decided, what was done and with which result, names, paths, numbers and open questions. Say what was stopped and \
     must not be resumed unless the user asks. Answer with the summary alone and call no tool.";

/// Stands before a summary that is to go into the new one.
const EARLIER: &str = "Before the conversation above there was more. It was summarised as:";

/// What came of making room.
pub(super) enum Room {
    /// There is room now.
    Made,
    /// Nothing older is left to summarise.
    Nothing,
    /// The summary failed.
    Failed(String),
}

/// How much room is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// What the configured window asks for.
    Window,
    /// Half of what was sent: the provider found it too long.
    Half,
}

/// What a request may show, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowance(usize);

impl Job<'_> {
    /// Summarises older turns when they would not fit.
    pub(super) async fn make_room(&self, wanted: Wanted) -> Result<Room, Cancelled> {
        self.scope.check(Point::Compaction)?;
        let shown = self.pen.draft(|draft| Shown::of(self, draft))?;
        let Allowance(limit) = self.allowance(wanted)?;
        let count = turns_to_summarise(&shown.sizes, shown.fixed, limit);
        if count == 0 {
            return Ok(Room::Nothing);
        }
        let first = self.history.len() - shown.sizes.len();
        let old = self.history.get(first..first + count).unwrap_or_default();
        let earlier = shown.summary.as_deref();
        let room = match wanted {
            Wanted::Window => self.window(),
            Wanted::Half => limit,
        };
        let summary = match self.summarise(&readable(old, room), earlier).await? {
            Ok(summary) => summary,
            Err(problem) => return Ok(Room::Failed(problem)),
        };
        let compaction = Compaction::of(old, earlier, summary, shown.sizes.len() - count);
        self.pen.compacted(compaction, count)?;
        Ok(Room::Made)
    }

    /// Where no summary could be had: the last words stand in for all older turns, so that the next request fits.
    pub(super) fn keep_last_words(&self) -> Result<(), Cancelled> {
        let shown = self.pen.draft(|draft| Shown::of(self, draft))?;
        let count = shown.sizes.len();
        let seen = self.history.get(self.history.len() - count..).unwrap_or_default();
        Ok(self.pen.compacted(Compaction::of_last_words(seen, shown.summary.as_deref()), count)?)
    }

    /// What a request may show now.
    pub(super) fn allowance(&self, wanted: Wanted) -> Result<Allowance, Cancelled> {
        Ok(Allowance(match wanted {
            Wanted::Window => self.window() / 100 * FULL_PERCENT,
            Wanted::Half => self.pen.draft(|draft| Shown::of(self, draft).total())? / 2,
        }))
    }

    /// What the model can read at once, in bytes.
    fn window(&self) -> usize {
        self.agent.config.window_tokens.saturating_mul(BYTES_PER_TOKEN)
    }

    /// The draft as the next request shows it: where it is too long by itself, its oldest results give way.
    pub(super) fn shown_draft<'d>(&self, draft: &'d TurnDraft, Allowance(limit): Allowance) -> Cow<'d, TurnDraft> {
        let rest = Shown::of(self, draft).total() - draft.size();
        // What older turns take beyond their half is not the draft's to give.
        draft.fitting(limit.saturating_sub(rest).max(limit / 2))
    }

    /// True when the draft can be shown shorter than it is.
    pub(super) fn can_shrink(&self, allowance: Allowance) -> Result<bool, Cancelled> {
        Ok(self.pen.draft(|draft| self.shown_draft(draft, allowance).size() < draft.size())?)
    }

    async fn summarise(&self, old: &[Arc<Turn>], earlier: Option<&str>) -> Result<Result<String, String>, Cancelled> {
        let instruction = match earlier.filter(|_| view::summary(old, None).is_none()) {
            Some(earlier) => format!("{EARLIER}\n\n{earlier}\n\n{INSTRUCTION}"),
            None => INSTRUCTION.to_owned(),
        };
        let request = TurnDraft::new(self.run.clone(), instruction);
        let conversation = self.spell(SYSTEM, old, &request, None);
        // waits: for servers that start, with the scope.
        let tools = self.offered_tools().await?;
        let request = ModelRequest {
            run: self.run,
            agent: &self.agent.id,
            conversation: &conversation,
            // Providers refuse calls in a history without the tools that they name.
            tools: &tools,
            temperature: self.agent.config.temperature,
            max_tokens: self.agent.config.max_tokens,
            thinking: None,
        };
        self.within_daily_limit()?;
        self.reins.phase(Phase::Waiting);
        let answer = self.agent.model.call(&request, self.scope, &mut SilentSink { pen: &self.pen }).await;
        self.reins.phase(Phase::Processing);
        self.scope.check(Point::Compaction)?;
        match answer {
            Ok(answer) => Ok(match (unusable(&answer), answer.message.text()) {
                (Some(unusable), _) => Err(format!("the model {}", unusable.problem)),
                (None, summary) if blank(&summary) => Err("the model gave no summary".to_owned()),
                (None, summary) => Ok(summary),
            }),
            Err(ModelError::Cancelled) => Err(Cancelled),
            Err(error) => Ok(Err(error.to_string())),
        }
    }
}

/// Sizes of what a request would show, in bytes.
struct Shown {
    /// Of the turns that are seen as they are.
    sizes: Vec<usize>,
    /// Of everything else.
    fixed: usize,
    /// What stands in for the turns before.
    summary: Option<String>,
}

impl Shown {
    fn of(job: &Job<'_>, draft: &TurnDraft) -> Self {
        let seen = view::turns_seen(job.history, Some(draft));
        let turns = job.history.get(job.history.len() - seen..).unwrap_or_default();
        let sizes = turns.iter().map(|turn| turn.size()).collect();
        let summary = view::summary(job.history, Some(draft)).map(str::to_owned);
        let beside = summary.as_ref().map_or(0, String::len) + job.preamble.as_ref().map_or(0, String::len);
        let fixed = job.agent.system.len() + beside + draft.size();
        Self { sizes, fixed, summary }
    }

    fn total(&self) -> usize {
        self.sizes.iter().sum::<usize>() + self.fixed
    }
}

/// Counts and shows nothing: a summary is no answer.
struct SilentSink<'a> {
    pen: &'a Pen,
}

impl ModelSink for SilentSink<'_> {
    fn text(&mut self, _: &str) {}

    fn thinking(&mut self, _: &str) {}

    fn retrying(&mut self, attempt: u32, delay: Duration, why: &str) {
        tracing::info!(attempt, delay_ms = delay.as_secs_f64() * 1000.0, why, "summary is retried");
    }

    fn input_sent(&mut self, estimated_tokens: u64) {
        self.pen.call_sent(estimated_tokens);
    }

    fn cost_nothing(&mut self) {
        self.pen.call_counted(Usage::default());
    }

    fn usage(&mut self, usage: Usage) {
        self.pen.call_counted(usage);
    }
}
