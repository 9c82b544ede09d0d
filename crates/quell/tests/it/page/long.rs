//! A session of 5,000 messages: it opens at its end, scrolls smoothly to its beginning, and everything is there.

use std::fmt::Write as _;

use quell_testkit::browser::is_skipped;
use quell_testkit::model::Behaviour;
use reqwest::Method;
use serde_json::{Value, json};

use super::Scene;
use super::fast::spread;

/// Each turn has a message of a person and an answer.
const TURNS: usize = 2500;

#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_messages_scroll_smoothly() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    seed(&scene).await;
    let browser = &scene.browser;
    scene.sign_in().await;
    scene.session("long").await;
    browser.reads("article.turn[data-role=assistant]", &format!("Answer {}.", TURNS - 1)).await;
    let at_end = "(e => e.scrollHeight - e.scrollTop - e.clientHeight < 100)";
    browser.until(&format!("{at_end}({SCROLLS}(document.querySelector('#turns')))")).await;
    let floor = || async { browser.run_until_done(FLOOR, &[]).await.as_f64().unwrap() };
    let before = floor().await;
    let (mut gaps, mut articles) = (Vec::<f64>::new(), Value::Null);
    while articles.is_null() {
        let part = browser.run_until_done(&scrolling(), &[]).await;
        gaps.extend(part["gaps"].as_array().unwrap().iter().map(|gap| gap.as_f64().unwrap()));
        assert!(gaps.len() < 6000, "the first message is not reached");
        articles = part["articles"].clone();
    }
    gaps.sort_by(f64::total_cmp);
    let [median, p95, longest] = spread(&json!(gaps));
    // Where the page's work takes a multiple of its time just now, a frame may take that multiple, too.
    let slower = f64::max(1.0, before.max(floor().await) / IDLE);
    let tasks = browser.long_tasks().await;
    println!(
        "{} articles after {} frames: median {median:.1} ms, 95 % {p95:.1} ms, longest {longest:.1} ms, on a machine {slower:.1} \
         times slower than idle (floor {before:.1} ms); long tasks {tasks:?}",
        articles,
        gaps.len()
    );
    browser.reads("article.turn[data-role=user]", "Question 0?").await;
    assert!(median < 50.0 * slower && p95 < 250.0 * slower, "it does not scroll smoothly");
    browser.assert_quiet(&[]).await;
}

/// The element that scrolls, from one inside it.
const SCROLLS: &str = "(function up(e) { return !e ? document.scrollingElement
    : e.scrollHeight > e.clientHeight && /auto|scroll/.test(getComputedStyle(e).overflowY) ? e : up(e.parentElement); })";

/// The median time, in milliseconds, of the same piece of work in the page.
const FLOOR: &str = "const times = [];
    for (let n = 0; n < 15; n++) {
      const begun = performance.now();
      let sum = 0;
      for (let i = 0; i < 2e6; i++) sum += Math.sqrt(i);
      times.push(performance.now() - begun + 0 * sum);
    }
    done(times.sort((a, b) => a - b)[7]);";

/// What [`FLOOR`] takes on an idle machine, at most.
const IDLE: f64 = 5.0;

/// Scrolls up by a screen in each of a hundred frames, or until the first message is there: then it tells the number of
/// articles. Hands out the times between frames.
fn scrolling() -> String {
    format!(
        "const box = {SCROLLS}(document.querySelector('#turns'));
         const gaps = []; let before = performance.now();
         const first = () => document.querySelector('#turns article.turn')?.textContent.includes('Question 0?');
         const frame = (now) => {{
           gaps.push(now - before); before = now;
           box.scrollTop -= box.clientHeight;
           const over = box.scrollTop <= 0 && first();
           if (over || gaps.length >= 100) {{
             done({{ gaps, articles: over ? document.querySelectorAll('#turns article.turn').length : null }});
           }} else requestAnimationFrame(frame);
         }};
         requestAnimationFrame(frame);"
    )
}

/// Lets one turn happen, and imports it 2,500 times as another session.
async fn seed(scene: &Scene) {
    scene.model.script(Behaviour::text("Answer N.\n\nWith a second paragraph and some `code` in it.\n\n- one\n- two"));
    let run = scene.send("seed", "Question N?").await;
    scene.ended(&run).await;
    let export = scene.http.request(Method::GET, "/api/sessions/seed/export").send().await.unwrap();
    let lines = export.text().await.unwrap();
    let (head, rest) = lines.split_once('\n').unwrap();
    let mut archive = head.replace("\"seed\"", "\"long\"") + "\n";
    // All runs, then all turns, as an export has them.
    for kind in ["\"kind\":\"run\"", "\"kind\":\"turn\""] {
        for turn in 0..TURNS {
            for line in rest.lines().filter(|line| line.contains(kind)) {
                let line = line.replace(&run, &format!("run-{turn}")).replace("\"seed\"", "\"long\"");
                let line = line.replace("Question N?", &format!("Question {turn}?"));
                writeln!(archive, "{}", line.replace("Answer N.", &format!("Answer {turn}."))).unwrap();
            }
        }
    }
    let import = scene.http.request(Method::POST, "/api/import").header("content-type", "application/x-ndjson");
    let _ = scene.http.send(import.body(archive)).await.expect_status(201);
}
