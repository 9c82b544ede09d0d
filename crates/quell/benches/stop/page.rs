//! The page in a real Chromium: how long it takes to load, what it weighs, and the way of a key press to the stop on the screen
//! while a hundred other runs stream. The browser keeps the time; its floor is a key press that only changes a word.

use std::time::Duration;

use quell_testkit::browser::{Browser, Key, Screen, is_skipped};
use quell_testkit::daemon::Daemon;
use quell_testkit::model::{Behaviour, ScriptedModel};
use serde_json::{Value, json};

use crate::report::{Report, Target};
use crate::times::Times;
use crate::{config, quell};

/// Runs that stream meanwhile, each ten tokens a second.
const OTHERS: usize = 100;
const SAMPLES: usize = 20;

/// What came over the wire, and when the document was there with all that it needs.
const LOADED: &str = "(() => {
  const [page] = performance.getEntriesByType('navigation');
  const files = performance.getEntriesByType('resource').filter((file) => file.name.includes('/assets/'));
  const bytes = [page, ...files].reduce((sum, file) => sum + file.transferSize, 0);
  const last = Math.max(page.loadEventEnd, ...files.map((file) => file.responseEnd));
  return page.loadEventEnd > 0 && { bytes, last };
})()";

/// When the key was pressed, when the page first showed that it stops, and when the turn was stopped. What is shown counts
/// from the next frame on.
const CLOCK: &str = "const times = window.__times = {};
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

pub(crate) async fn measure(report: &mut Report) {
    if is_skipped() {
        return;
    }
    let model = ScriptedModel::start().await;
    model.by_prompt(|_, _| Behaviour::tokens_forever(Duration::from_millis(100)));
    let daemon = Daemon::start(quell(), &config(&model.base_url())).await;
    let browser = Browser::start(Screen::WIDE).await;
    load(report, &daemon, &browser).await;
    let api = daemon.http();
    for other in 0..OTHERS {
        let _ =
            api.post(&format!("/api/sessions/other-{other}/runs"), &json!({"text": "go on"})).await.expect_status(202);
    }
    model.requests(OTHERS).await;
    let (mut floor, mut stopping, mut stopped) = <(Times, Times, Times)>::default();
    browser.run("location.hash = '#/s/mine'", &[]).await;
    browser.until("document.querySelector('#chat-title').textContent === 'mine'").await;
    for _ in 0..SAMPLES {
        let times = one(&browser).await;
        let time = |name: &str| Duration::from_secs_f64(times[name].as_f64().unwrap() / 1000.0);
        floor.add(time("floor"));
        stopping.add(time("stopping"));
        stopped.add(time("stopped"));
    }
    let note = format!("floor (a word on the screen) {:.1}, {OTHERS} other runs stream", floor.median());
    report.target(
        "page: Esc -> \"stopping\" on the screen, median",
        stopping.median(),
        Target(50.0, "ms"),
        note.clone(),
    );
    report.target("page: Esc -> stopped on the screen, median", stopped.median(), Target(100.0, "ms"), note);
    report.figure("page: Esc -> stopped on the screen, slowest", stopped.max(), String::new());
    daemon.stop().await;
}

async fn load(report: &mut Report, daemon: &Daemon, browser: &Browser) {
    let made = daemon.http().post("/api/sign-in-link", &json!({})).await.expect_status(200);
    let link = format!("{}{}", daemon.url(), made["path"].as_str().unwrap());
    browser.open(&link).await;
    browser.shown("[data-fact=connection][data-state=live]").await;
    let mut times = Times::default();
    let mut weight = 0.0;
    for _ in 0..SAMPLES {
        // Nothing is kept from the visit before.
        browser.cdp("Network.clearBrowserCache", json!({})).await;
        browser.reload().await;
        browser.shown("[data-fact=connection][data-state=live]").await;
        let loaded = browser.until(LOADED).await;
        times.add(Duration::from_secs_f64(loaded["last"].as_f64().unwrap() / 1000.0));
        weight = loaded["bytes"].as_f64().unwrap() / 1000.0;
    }
    report.target(
        "page: load with an empty cache, median",
        times.median(),
        Target(300.0, "ms"),
        format!("max {:.0}", times.max()),
    );
    report.target("page: over the wire, compressed", weight, Target(150.0, "KB"), String::new());
}

/// One message, its answer begun, Esc.
async fn one(browser: &Browser) -> Value {
    browser.fill("#message", "go on").await;
    browser.press(Key::Enter).await;
    browser.until("document.querySelector('#send').dataset.mode === 'stop'").await;
    browser.until("[...document.querySelectorAll('article.turn[data-role=assistant]')].at(-1)?.querySelector('.markdown')?.textContent.length > 20").await;
    browser.run(CLOCK, &[]).await;
    browser.press(Key::Escape).await;
    let times = browser
        .until("window.__times.floor && window.__times.stopping && window.__times.stopped && window.__times")
        .await;
    browser.until("document.querySelector('#send').dataset.mode === 'send'").await;
    times
}
