//! Call run-start hooks and queue run-end hooks.

use quell_protocol::api::RunView;
use quell_protocol::hook::{HookEvent, RunFacts, SessionFacts};
use quell_scope::Cancelled;
use tokio::time::{Instant, sleep};

use super::RunTable;
use super::recording::{MAX_RETRY_TIME, RetryDelays};
use crate::hooks::HookTrigger;
use crate::live_run::LiveRun;

impl RunTable {
    /// Waits for the hooks of a run that starts. They cannot refuse it, and a stop of the run ends them.
    pub(super) async fn run_start_hooks(&self, live_run: &LiveRun) -> Result<(), Cancelled> {
        let hooks = &self.services().hooks;
        if hooks.has_hooks_for(HookEvent::RunStart) {
            hooks
                .call_hooks(
                    run_hook_trigger(HookEvent::RunStart, live_run.view(), live_run.session.get()),
                    &live_run.scope,
                )
                .await?;
        }
        Ok(())
    }

    /// Queues the hooks of a run that is over, if it had started. When this returns, its webhooks are in the database.
    /// The write is retried as long as that of the run's end.
    pub(super) async fn record_end_hooks(&self, live_run: &LiveRun) {
        let hooks = &self.services().hooks;
        if !hooks.has_hooks_for(HookEvent::RunEnd) {
            return;
        }
        let view = live_run.view();
        if view.started_at.is_some() {
            let (trigger, started_at) =
                (run_hook_trigger(HookEvent::RunEnd, view, live_run.session.get()), Instant::now());
            let mut delays = RetryDelays::default();
            while let Err(error) = hooks.notify_durably(trigger.clone()).await {
                tracing::error!(run = %live_run.id(), %error, "the hooks of a run that ended could not be stored");
                if started_at.elapsed() > MAX_RETRY_TIME {
                    return hooks.notify(trigger);
                }
                sleep(delays.next_delay()).await;
            }
        }
    }
}

/// Builds the event of a run from its public view without the texts, and from the known facts of its session.
pub fn run_hook_trigger(event: HookEvent, view: RunView, session: Option<&SessionFacts>) -> HookTrigger {
    let session = SessionFacts {
        key: view.session_key,
        agent: view.agent.clone(),
        user_id: session.and_then(|session| session.user_id.clone()),
        chat_id: session.and_then(|session| session.chat_id.clone()),
        provider: session.and_then(|session| session.provider.clone()),
        // Only session events carry this.
        revived: None,
    };
    let run = RunFacts {
        run_id: view.run_id,
        agent: view.agent,
        parent: view.parent,
        principal: view.principal,
        surface: view.surface,
        verdict: view.verdict,
        receipt: view.receipt,
    };
    HookTrigger::for_run(event, session, run)
}
