//! A run that waits for a hook that hangs.

use quell_protocol::ResourceKind;

use super::case_run::CaseRun;
use super::cases::{StopMoment, SweepCase};

/// A hook that hangs in the run of this case only, ignores signals, and starts a child in its own session.
pub(super) const HANGING_HOOK: &str = "case \"$QUELL_RUN_ID\" in a-hook-that-hangs.*) \
     trap '' TERM INT HUP; setsid sleep 600 & sleep 600 ;; esac";

pub(super) fn hook_case() -> SweepCase {
    SweepCase::new(
        "a hook that hangs",
        |_| Box::pin(async {}),
        StopMoment::OnCondition(|case_run| Box::pin(wait_hook_running(case_run))),
    )
}

async fn wait_hook_running(case_run: &CaseRun<'_>) {
    case_run.sweep.test_engine.wait_resource_held(&case_run.run, ResourceKind::Process).await;
}
