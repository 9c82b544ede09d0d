//! Start of a daemon whose predecessor was killed with a thousand runs at work, each with a finished call and a text that
//! streamed. The floor is the same start with nothing to recover.

use quell_testkit::daemon::Home;
use quell_testkit::model::{Behaviour, ScriptedModel};
use serde_json::json;

use crate::many::slow_stream;
use crate::report::{Report, Target};
use crate::times::Times;
use crate::{config, quell};
use quell_testkit::gateway::Gateway;

const RUNS: usize = 1000;
const ROUNDS: usize = 5;

pub(crate) async fn measure(report: &mut Report) {
    let model = ScriptedModel::start().await;
    model.by_prompt(|_, request| match request.messages().last() {
        Some(last) if last["role"] == "tool" => slow_stream(),
        _ => Behaviour::tool_call("c1", "list_files", &json!({})),
    });
    let home = Home::new(&config(&model.base_url()));
    home.start(quell()).await.stop().await;
    let (mut floor, mut recovery) = <(Times, Times)>::default();
    for round in 0..ROUNDS {
        let daemon = home.start(quell()).await;
        floor.add(daemon.ready_after());
        let mut gateway = Gateway::connect(&daemon).await;
        for run in 0..RUNS {
            gateway.begin(&format!("open-{round}-{run}")).await;
        }
        for run in 0..RUNS {
            second_of(&model, &format!("open-{round}-{run}")).await;
        }
        drop(gateway);
        daemon.kill9().await;
        let daemon = home.start(quell()).await;
        recovery.add(daemon.ready_after());
        assert_eq!(daemon.http().get("/api/runs?state=active").await.expect_status(200)["items"], json!([]));
        daemon.stop().await;
    }
    let note = format!("max {:.1}, floor {:.1}, rounds {ROUNDS}", recovery.max(), floor.median());
    let name = format!("start with {RUNS} open runs to recover, median");
    report.target(&name, recovery.median(), Target(1000.0, "ms"), note);
}

/// The request behind the run's call streams.
async fn second_of(model: &ScriptedModel, run: &str) {
    loop {
        let seen = model.seen();
        let mut of_run = seen.iter().filter(|request| request.markers.last().is_some_and(|marker| marker == run));
        if let Some(request) = of_run.nth(1) {
            request.streaming().await;
            return;
        }
        drop(model.requests(seen.len() + 1).await);
    }
}
