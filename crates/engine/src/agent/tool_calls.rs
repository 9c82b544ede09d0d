//! Execute the tool calls of one message: those that do not conflict at the same time, the others one after another.
//!
//! [`CallBatch`] decides which calls may run. Results stand in the history in the order of the calls, whichever ends
//! first.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use quell_kernel::call_batch::CallBatch;
use quell_kernel::run::WorkOutcome;
use quell_kernel::turn::{ToolCall, TurnDraft};
use quell_scope::{Cancelled, Point};
use tokio::time::Instant;

use super::AgentLoop;
use super::model_answer::{MAX_TURN_BYTES, invalid_arguments_result, turn_too_large};
use crate::journal::JournalWriteError;

impl AgentLoop<'_> {
    /// Executes the calls of one message. Returns the run's outcome if the run cannot continue; calls that are running
    /// then end first, and no further one starts.
    ///
    /// # Errors
    /// [`Cancelled`] once a stop has come and every running call has handled it.
    ///
    /// # Cancel safety
    /// Safe to drop: what a running call holds is in the ledger and is told to end.
    pub(super) async fn execute_calls(&self, calls: &[ToolCall]) -> Result<Option<WorkOutcome>, Cancelled> {
        let concurrencies = calls.iter().map(|call| self.call_concurrency(call));
        let mut batch = CallBatch::new(concurrencies, self.services.limits.parallel_calls);
        if calls.len() > 1 {
            self.writer.report_waiting_calls(calls)?;
        }
        let mut running = FuturesUnordered::new();
        let mut result = Ok(None);
        loop {
            if matches!(result, Ok(None)) {
                running.extend(batch.start_due().into_iter().map(|index| async move {
                    // waits: each wait is raced in `execute_call`.
                    (index, self.execute_call(&calls[index]).await)
                }));
            }
            // waits: for calls, each of which ends at a stop.
            let Some((index, ended)) = running.next().await else { return result };
            batch.end_call(index);
            let ended = ended.and_then(|outcome| Ok(outcome.or(self.check_turn_size()?)));
            // A stop takes precedence over a failure, which takes precedence over going on.
            result = match (result, ended) {
                (Err(Cancelled), _) | (_, Err(Cancelled)) => Err(Cancelled),
                (Ok(earlier), Ok(outcome)) => Ok(earlier.or(outcome)),
            };
        }
    }

    fn check_turn_size(&self) -> Result<Option<WorkOutcome>, Cancelled> {
        let size = self.writer.with_draft(TurnDraft::memory_size)?;
        Ok((size > MAX_TURN_BYTES).then(turn_too_large))
    }

    /// Executes one call and puts its result into the draft. Returns the run's outcome if the run cannot continue.
    async fn execute_call(&self, call: &ToolCall) -> Result<Option<WorkOutcome>, Cancelled> {
        self.scope.check(Point::BeforeTool)?;
        let planned = match invalid_arguments_result(call) {
            Some(result) => Err(result),
            // waits: on a thread of the scope, which is told of a stop.
            None => self.plan_call(call).await?,
        };
        let permitted = match planned {
            // waits: the wait for a person is raced in `check_approval`.
            Ok(planned) => self.check_approval(&planned).await?.map_or(Ok(planned), Err),
            Err(result) => Err(result),
        };
        // A call that is not permitted executes nothing, so it needs no journal line.
        if permitted.is_ok()
            && let Err(unwritten) = self.scope.race(Point::Journal, self.writer.journal_call_start(&call.id)).await?
        {
            return Ok(Some(WorkOutcome::Failed {
                code: "store".to_owned(),
                message: journal_failure_message(&call.tool, &unwritten),
            }));
        }
        self.writer.begin_call(call)?;
        let started_at = Instant::now();
        let result = match permitted {
            Err(result) => result,
            // waits: with the scope, in `call_tool`.
            Ok(planned) => self.call_tool(&planned).await?,
        };
        let result = if self.scope.is_cancelled() { result.marked_after_stop() } else { result };
        self.writer.finish_call(&call.id, result, started_at.elapsed())?;
        self.scope.check(Point::AfterTool)?;
        Ok(None)
    }
}

fn journal_failure_message(tool: &str, why: &JournalWriteError) -> String {
    format!(
        "{tool} was not started, because its start has to be stored first, and {why}; correct that and send the message again"
    )
}
