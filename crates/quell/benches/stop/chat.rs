//! A person at a terminal: from the press of Esc to "stopping" on the screen, to the end of the model request, and to the
//! receipt on the screen, while other runs stream. Each press comes right behind a picture, which is the worst moment.

use std::time::{Duration, Instant};

use quell_testkit::daemon::Daemon;
use quell_testkit::model::{Behaviour, ScriptedModel};
use quell_testkit::pty::{Pty, Size};
use serde_json::json;

use crate::report::{Report, Target};
use crate::times::Times;
use crate::{config, quell};

/// Runs of others that stream meanwhile.
const OTHERS: usize = 100;

pub(crate) async fn measure(report: &mut Report, samples: usize) {
    let model = ScriptedModel::start().await;
    model.by_prompt(|_, _| Behaviour::tokens_forever(Duration::from_millis(20)));
    let daemon = Daemon::start(quell(), &config(&model.base_url())).await;
    let http = daemon.http();
    for other in 0..OTHERS {
        let path = format!("/api/sessions/other-{other}/runs");
        let _ = http.post(&path, &json!({"text": format!("marker:other-{other}")})).await.expect_status(202);
        model.marked(&format!("other-{other}")).await.streaming().await;
    }
    let mut command = daemon.home().command(quell());
    command.arg("chat").env("LC_ALL", "C.UTF-8");
    let mut chat = Pty::start(&command, Size { rows: 24, columns: 80 });
    chat.shows("● live").await;
    let (mut shown, mut closed, mut settled) = <(Times, Times, Times)>::default();
    for sample in 0..samples {
        chat.keys(&format!("marker:sample-{sample}-end\r"));
        chat.shows("● answering").await;
        let pressed = Instant::now();
        chat.keys("\x1b");
        let said = |text: &str| text.contains("◆ stopping") || text.contains("Execution paused");
        let (_, at) = chat.until("stopping", |screen| said(&screen.text())).await;
        shown.add(at.saturating_duration_since(pressed));
        let left = model.marked(&format!("sample-{sample}-end")).await.client_left().await;
        closed.add(left.saturating_duration_since(pressed));
        let (_, at) = chat.until("the receipt", |screen| screen.text().contains("Execution paused")).await;
        settled.add(at.saturating_duration_since(pressed));
        chat.shows("○ ready").await;
        chat.keys("/new\r");
        chat.shows("Nothing was said here yet").await;
    }
    let note = |times: &Times| format!("median {:.3}, {OTHERS} other runs stream, n {}", times.median(), times.len());
    for (name, times, target) in [("`stopping` on the screen", &shown, 50.0), ("model socket closed", &closed, 100.0)] {
        report.target(&format!("terminal: Esc -> {name}, p99"), times.p99(), Target(target, "ms"), note(times));
    }
    report.figure("terminal: Esc -> receipt on the screen, p99", settled.p99(), note(&settled));
    drop(chat);
    daemon.stop().await;
}
