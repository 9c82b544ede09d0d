//! A session of 5,000 messages: it opens at its end, scrolls smoothly to its beginning, and everything is there.

use std::fmt::Write as _;

use quell_testkit::browser::is_skipped;
use quell_testkit::model::Behaviour;
use reqwest::Method;

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
    let frames = browser.run_until_done(&scrolling(), &[]).await;
    let [median, p95, longest] = spread(&frames["gaps"]);
    let tasks = browser.long_tasks().await;
    println!(
        "{} articles after {} frames: median {median:.1} ms, 95 % {p95:.1} ms, longest {longest:.1} ms; long tasks {tasks:?}",
        frames["articles"],
        frames["gaps"].as_array().unwrap().len()
    );
    browser.reads("article.turn[data-role=user]", "Question 0?").await;
    assert!(median < 50.0 && p95 < 250.0, "it does not scroll smoothly");
    browser.assert_quiet(&[]).await;
}

/// The element that scrolls, from one inside it.
const SCROLLS: &str = "(function up(e) { return !e ? document.scrollingElement
    : e.scrollHeight > e.clientHeight && /auto|scroll/.test(getComputedStyle(e).overflowY) ? e : up(e.parentElement); })";

/// Scrolls up by a screen in each frame until the first message is there; hands out the times between frames.
fn scrolling() -> String {
    format!(
        "const box = {SCROLLS}(document.querySelector('#turns'));
         const gaps = []; let before = performance.now();
         const first = () => document.querySelector('#turns article.turn')?.textContent.includes('Question 0?');
         const frame = (now) => {{
           gaps.push(now - before); before = now;
           box.scrollTop -= box.clientHeight;
           if (box.scrollTop <= 0 && first() || gaps.length > 6000) {{
             done({{ gaps: gaps.sort((a, b) => a - b), articles: document.querySelectorAll('#turns article.turn').length }});
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
