//! Load time of the web page in Chromium, and Esc to "stopping".
//!
//! A hundred other runs stream meanwhile. The browser takes the times; the baseline is a key press that only changes
//! a word.

use std::time::Duration;

use quell_testkit::browser::{Browser, Key, Viewport, is_skipped};
use quell_testkit::daemon::TestDaemon;
use quell_testkit::model::{ScriptedModel, ScriptedResponse};
use serde_json::{Value, json};

use crate::report::{BenchReport, FigureTarget, Quantile};
use crate::times::Times;
use crate::{config, quell};

/// Runs that stream meanwhile, each with ten tokens a second.
const OTHER_RUNS: usize = 100;
const SAMPLES: usize = 20;

/// Returns the bytes that were transferred, and the time when the document was loaded with all that it needs.
const LOAD_SCRIPT: &str = "(() => {
  const [page] = performance.getEntriesByType('navigation');
  const files = performance.getEntriesByType('resource').filter((file) => file.name.includes('/assets/'));
  const bytes = [page, ...files].reduce((sum, file) => sum + file.transferSize, 0);
  const last = Math.max(page.loadEventEnd, ...files.map((file) => file.responseEnd));
  return page.loadEventEnd > 0 && { bytes, last };
})()";

/// Takes the times of the key press, of the first sign of the stop on the page, and of the stopped turn. A change
/// counts from the next frame on.
const TIMING_SCRIPT: &str = "const times = window.__times = {};
  const shown = (name) => requestAnimationFrame(() => setTimeout(() => { times[name] ??= performance.now() - times.pressed; }));
  addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || times.pressed) return;
    times.pressed = event.timeStamp;
    document.title = 'pressed';
    shown('floor');
  }, true);
  window.__watch?.disconnect();
  const before = document.querySelectorAll('article.turn.stopped').length;
  window.__watch = new MutationObserver(() => {
    if (!times.pressed) return;
    if (document.querySelector('#send').dataset.mode !== 'stop' && !times.saw) { times.saw = true; shown('stopping'); }
    if (document.querySelectorAll('article.turn.stopped').length > before && !times.end) { times.end = true; shown('stopped'); }
  });
  window.__watch.observe(document.body, { subtree: true, childList: true, attributes: true });";

pub(crate) async fn measure(report: &BenchReport) {
    if is_skipped() {
        return;
    }
    let model = ScriptedModel::start().await;
    model.respond_by_prompt(|_, _| ScriptedResponse::tokens_forever(Duration::from_millis(100)));
    let daemon = TestDaemon::start(quell(), &config(&model.base_url())).await;
    let browser = Browser::start(Viewport::DESKTOP).await;
    measure_load(report, &daemon, &browser).await;
    let api = daemon.api();
    for other in 0..OTHER_RUNS {
        api.send_message(&format!("other-{other}"), "go on").await;
    }
    model.wait_for_requests(OTHER_RUNS).await;
    let (mut floor, mut stopping, mut stopped) = <(Times, Times, Times)>::default();
    browser.run_script("location.hash = '#/s/mine'", &[]).await;
    browser.wait_for("document.querySelector('#chat-title').textContent === 'mine'").await;
    for _ in 0..SAMPLES {
        let times = time_one_stop(&browser).await;
        let time = |name: &str| Duration::from_secs_f64(times[name].as_f64().unwrap() / 1000.0);
        floor.add(time("floor"));
        stopping.add(time("stopping"));
        stopped.add(time("stopped"));
    }
    let note = format!("baseline (a word on the screen) {:.1}, {OTHER_RUNS} other runs stream", floor.median());
    let (what, most) = ("page: Esc -> \"stopping\" on the screen", FigureTarget::AtMost(50.0));
    report.add_times(what, (&stopping, Quantile::Median), most, &note);
    let (what, most) = ("page: Esc -> stopped on the screen", FigureTarget::AtMost(100.0));
    report.add_times(what, (&stopped, Quantile::Median), most, &note);
    report.add_times(what, (&stopped, Quantile::Max), FigureTarget::Free, "");
    daemon.stop().await;
}

async fn measure_load(report: &BenchReport, daemon: &TestDaemon, browser: &Browser) {
    let made = daemon.api().post("/api/sign-in-link", &json!({})).await.expect_status(200);
    let link = format!("{}{}", daemon.url(), made["path"].as_str().unwrap());
    browser.open(&link).await;
    browser.wait_visible("[data-fact=connection][data-state=live]").await;
    let mut times = Times::default();
    let mut weight = 0.0;
    for _ in 0..SAMPLES {
        // Clear what the previous visit has cached.
        browser.cdp("Network.clearBrowserCache", json!({})).await;
        browser.reload().await;
        browser.wait_visible("[data-fact=connection][data-state=live]").await;
        let loaded = browser.wait_for(LOAD_SCRIPT).await;
        times.add(Duration::from_secs_f64(loaded["last"].as_f64().unwrap() / 1000.0));
        weight = loaded["bytes"].as_f64().unwrap() / 1000.0;
    }
    let what = "page: load with an empty cache";
    report.add_times(what, (&times, Quantile::Median), FigureTarget::AtMost(300.0), "");
    report.add("page: over the wire, compressed", (weight, "KB"), FigureTarget::AtMost(150.0), "");
}

/// Sends one message, waits until the answer has begun, and presses Esc.
async fn time_one_stop(browser: &Browser) -> Value {
    browser.fill("#message", "go on").await;
    browser.press_key(Key::Enter).await;
    browser.wait_for("document.querySelector('#send').dataset.mode === 'stop'").await;
    browser.wait_for("[...document.querySelectorAll('article.turn[data-role=assistant]')].at(-1)?.querySelector('.markdown')?.textContent.length > 20").await;
    browser.run_script(TIMING_SCRIPT, &[]).await;
    browser.press_key(Key::Escape).await;
    let times = browser
        .wait_for("window.__times.floor && window.__times.stopping && window.__times.stopped && window.__times")
        .await;
    browser.wait_for("document.querySelector('#send').dataset.mode === 'send'").await;
    times
}
