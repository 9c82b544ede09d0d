//! Esc in the terminal chat: time to "stopping", to the closed model request, to the receipt.
//!
//! Other runs stream meanwhile. Each key press comes just after the screen was drawn, which is the worst case.

use std::time::{Duration, Instant};

use quell_testkit::daemon::TestDaemon;
use quell_testkit::model::{ScriptedModel, ScriptedResponse};
use quell_testkit::pty::{Pty, PtySize};

use crate::report::{BenchReport, FigureTarget, Quantile};
use crate::times::Times;
use crate::{config, quell};

/// Runs of other sessions that stream meanwhile.
const OTHER_RUNS: usize = 100;

pub(crate) async fn measure(report: &BenchReport, samples: usize) {
    let model = ScriptedModel::start().await;
    model.respond_by_prompt(|_, _| ScriptedResponse::tokens_forever(Duration::from_millis(20)));
    let daemon = TestDaemon::start(quell(), &config(&model.base_url())).await;
    let http = daemon.api();
    for other in 0..OTHER_RUNS {
        http.send_message(&format!("other-{other}"), &format!("marker:other-{other}")).await;
        model.wait_for_marked_request(&format!("other-{other}")).await.wait_streaming().await;
    }
    let mut command = daemon.home().command(quell());
    command.arg("chat").env("LC_ALL", "C.UTF-8");
    let mut chat = Pty::start(&command, PtySize { rows: 24, columns: 80 });
    chat.wait_text("● live").await;
    let (mut shown, mut closed, mut settled) = <(Times, Times, Times)>::default();
    for sample in 0..samples {
        chat.type_keys(&format!("marker:sample-{sample}-end\r"));
        chat.wait_text("● answering").await;
        let pressed = Instant::now();
        chat.type_keys("\x1b");
        let is_stopping = |text: &str| text.contains("◆ stopping") || text.contains("Execution paused");
        let (_, at) = chat.wait_until("stopping", |screen| is_stopping(&screen.text())).await;
        shown.add(at.saturating_duration_since(pressed));
        let left = model.wait_for_marked_request(&format!("sample-{sample}-end")).await.wait_client_left().await;
        closed.add(left.saturating_duration_since(pressed));
        let (_, at) = chat.wait_until("the receipt", |screen| screen.text().contains("Execution paused")).await;
        settled.add(at.saturating_duration_since(pressed));
        chat.wait_text("○ ready").await;
        chat.type_keys("/new\r");
        chat.wait_text("Nothing was said here yet").await;
    }
    let note = format!("{OTHER_RUNS} other runs stream");
    for (name, times, target) in [
        ("`stopping` on the screen", &shown, FigureTarget::AtMost(50.0)),
        ("model socket closed", &closed, FigureTarget::AtMost(100.0)),
        ("receipt on the screen", &settled, FigureTarget::Free),
    ] {
        report.add_times(format!("terminal: Esc -> {name}"), (times, Quantile::P99), target, &note);
    }
    drop(chat);
    daemon.stop().await;
}
