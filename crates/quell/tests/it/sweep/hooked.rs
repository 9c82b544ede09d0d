//! A run that waits for a hook which does not end.

use quell_protocol::ResourceKind;

use super::cases::{Case, Moment};
use super::scene::Scene;

/// What hangs in the run of this case only, hears no signal, and has a child in a session of its own.
pub(super) const COMMAND: &str = "case \"$QUELL_RUN_ID\" in a-hook-that-hangs.*) \
     trap '' TERM INT HUP; setsid sleep 600 & sleep 600 ;; esac";

pub(super) fn case() -> Case {
    Case::new("a hook that hangs", |_| Box::pin(async {}), Moment::When(|scene| Box::pin(it_hangs(scene))))
}

async fn it_hangs(scene: &Scene<'_>) {
    scene.site.house.holds(&scene.run, ResourceKind::Process).await;
}
