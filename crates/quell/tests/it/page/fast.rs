//! How fast the page is: its weight and load, a stream of 500 tokens per second, and the way of a key press to the stop while
//! a hundred other runs stream. The figures are printed; what is asserted is wide enough for a debug build on a busy machine.

use std::time::Duration;

use quell_testkit::browser::{Key, is_skipped};
use quell_testkit::model::Behaviour;
use serde_json::Value;

use super::{Plan, Scene};

/// What came over the wire, compressed, and when it was there.
const WIRE: &str = "(() => {
  const [page] = performance.getEntriesByType('navigation');
  const files = performance.getEntriesByType('resource').filter((file) => file.name.includes('/assets/'));
  const bytes = [page, ...files].reduce((sum, file) => sum + file.transferSize, 0);
  const unpacked = [page, ...files].reduce((sum, file) => sum + file.decodedBodySize, 0);
  return { bytes, unpacked, files: files.length, loaded: Math.round(page.loadEventEnd),
    last: Math.round(Math.max(...files.map((file) => file.responseEnd))) };
})()";

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_light_and_loads_fast() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    let browser = &scene.browser;
    scene.sign_in().await;
    browser.until("performance.getEntriesByType('navigation')[0].loadEventEnd > 0").await;
    let cold = browser.value(WIRE).await;
    println!("cold: {cold}");
    assert!(cold["files"].as_u64().unwrap() > 10, "not all of the page is counted: {cold}");
    assert!(cold["bytes"].as_u64().unwrap() < 150_000, "too heavy: {cold}");
    assert!(cold["bytes"].as_u64().unwrap() * 2 < cold["unpacked"].as_u64().unwrap(), "it comes compressed: {cold}");
    assert!(cold["loaded"].as_u64().unwrap() < 3000, "too slow: {cold}");
    browser.reload().await;
    browser.shown("[data-fact=connection][data-state=live]").await;
    let warm = browser.value(WIRE).await;
    println!("warm: {warm}");
    assert!(warm["bytes"].as_u64().unwrap() * 2 < cold["bytes"].as_u64().unwrap(), "nothing comes twice: {warm}");
}

/// Collects the times between frames until the expression is true.
fn frames_until(condition: &str) -> String {
    format!(
        "const gaps = []; let before = performance.now();
         const frame = (now) => {{
           gaps.push(now - before); before = now;
           if ({condition}) done(gaps.sort((a, b) => a - b)); else requestAnimationFrame(frame);
         }};
         requestAnimationFrame(frame);"
    )
}

/// Of sorted times: the median, the 95th percentile and the longest.
pub(super) fn spread(sorted: &Value) -> [f64; 3] {
    let times: Vec<f64> = sorted.as_array().unwrap().iter().map(|time| time.as_f64().unwrap()).collect();
    [times.len() / 2, times.len() * 95 / 100, times.len() - 1].map(|at| times[at])
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_tokens_per_second_do_not_freeze_the_tab() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    let browser = &scene.browser;
    scene.sign_in().await;
    browser.shown("#message").await;
    scene.model.script(Behaviour::tokens_forever(Duration::from_millis(2)));
    scene.say("as fast as you can").await;
    scene.mode("stop").await;
    browser
        .until("document.querySelector('article.turn[data-role=assistant] .markdown')?.textContent.length > 100")
        .await;
    browser.run("window.__book.longTasks.length = 0", &[]).await;
    // Five seconds of it, by the page's own clock.
    let end = "now > (window.__end ??= now + 5000)";
    let before = browser.text("article.turn[data-role=assistant] .markdown").await.len();
    let [median, p95, longest] = spread(&browser.run_until_done(&frames_until(end), &[]).await);
    let grown = browser.text("article.turn[data-role=assistant] .markdown").await.len() - before;
    let tasks = browser.long_tasks().await;
    println!(
        "frames: median {median:.1} ms, 95 % {p95:.1} ms, longest {longest:.1} ms; {grown} characters in 5 s; long tasks {tasks:?}"
    );
    assert!(grown > 2000, "the text keeps up: {grown} characters");
    assert!(longest < 1000.0 && p95 < 200.0, "the tab freezes");
    // Input is taken meanwhile.
    browser.fill("#message", "still here").await;
    browser.press(Key::Escape).await;
    scene.mode("send").await;
    browser.assert_quiet(&[]).await;
}

/// Notes when the key was pressed, when the page said "stopping", and when it said "stopped".
const CLOCK: &str = "const times = window.__times = {};
  addEventListener('keydown', (event) => { if (event.key === 'Escape') times.pressed = event.timeStamp; }, true);
  new MutationObserver(() => {
    const mode = document.querySelector('#send').dataset.mode;
    if (times.pressed && mode !== 'stop') times.stopping ??= performance.now() - times.pressed;
    if (document.querySelector('article.turn.stopped')) times.stopped ??= performance.now() - times.pressed;
  }).observe(document.body, { subtree: true, childList: true, attributes: true });";

#[tokio::test(flavor = "multi_thread")]
async fn a_key_press_stops_at_once_while_a_hundred_other_runs_stream() {
    if is_skipped() {
        return;
    }
    let many = Plan { tables: "[limits]\nin_flight_runs = 200\n", ..Plan::default() };
    let scene = Scene::with(&many).await;
    let browser = &scene.browser;
    scene.sign_in().await;
    scene.model.by_prompt(|_, _| Behaviour::tokens_forever(Duration::from_millis(100)));
    for other in 0..100 {
        scene.send(&format!("other-{other}"), "go on").await;
    }
    scene.model.requests(100).await;
    browser.until("document.querySelector('[data-fact=runs]').textContent.includes('100')").await;
    scene.session("mine").await;
    scene.say("go on").await;
    scene.mode("stop").await;
    browser
        .until("document.querySelector('article.turn[data-role=assistant] .markdown')?.textContent.length > 20")
        .await;
    browser.run(CLOCK, &[]).await;
    browser.press(Key::Escape).await;
    let times = browser.until("window.__times.stopped && window.__times.stopping && window.__times").await;
    println!("from the key press: {times}");
    assert!(times["stopping"].as_f64().unwrap() < 500.0 && times["stopped"].as_f64().unwrap() < 2000.0, "{times}");
    browser.assert_quiet(&["/api/sessions/mine"]).await;
}
