//! What hooks are told of runs: that one is about to take its first step, and that one is over.

use quell_protocol::api::RunView;
use quell_protocol::hook::{HookEvent, RunFacts, SessionFacts};
use tokio::time::{Instant, sleep};

use super::Runs;
use super::finish::{AGAIN, KEPT};
use crate::cell::Cell;
use crate::hooks::Happening;
use crate::scope::Cancelled;

impl Runs {
    /// Waits for the hooks of a run that starts. They cannot refuse it, and a stop ends them with it.
    pub(super) async fn ask_start(&self, cell: &Cell) -> Result<(), Cancelled> {
        let hooks = &self.workshop().hooks;
        if hooks.has(HookEvent::RunStart) {
            // A veto is for sessions only.
            let _agreed =
                hooks.ask(happening(HookEvent::RunStart, cell.view(), cell.session.get()), &cell.scope).await?;
        }
        Ok(())
    }

    /// Tells that a run is over that had begun. When this returns, its webhooks are in the database, which is asked again
    /// for as long as the end itself would be.
    pub(super) async fn tell_end(&self, cell: &Cell) {
        let hooks = &self.workshop().hooks;
        if !hooks.has(HookEvent::RunEnd) {
            return;
        }
        let view = cell.view();
        if view.started_at.is_some() {
            let (ended, begun) = (happening(HookEvent::RunEnd, view, cell.session.get()), Instant::now());
            while let Err(error) = hooks.record(ended.clone()).await {
                tracing::error!(run = %cell.id(), %error, "the hooks of a run that ended could not be stored");
                if begun.elapsed() > KEPT {
                    return hooks.tell(ended);
                }
                sleep(AGAIN).await;
            }
        }
    }
}

/// An event of a run, from what everybody may see of it, without its texts, and from what is known of its session.
#[must_use]
pub fn happening(event: HookEvent, view: RunView, session: Option<&SessionFacts>) -> Happening {
    let session = SessionFacts {
        key: view.session_key,
        agent: view.agent.clone(),
        user_id: session.and_then(|session| session.user_id.clone()),
        chat_id: session.and_then(|session| session.chat_id.clone()),
        provider: session.and_then(|session| session.provider.clone()),
        // That is told of the session, not of each of its runs.
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
    Happening::of_run(event, session, run)
}
