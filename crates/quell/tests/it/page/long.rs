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
    let plain = browser.run_until_done(PLAIN_SCROLLING, &[]).await;
    let [plain_median, plain_p95, _] = spread(&plain["gaps"]);
    let frames = browser.run_until_done(&scrolling(), &[]).await;
    let [median, p95, longest] = spread(&frames["gaps"]);
    let tasks = browser.long_tasks().await;
    println!(
        "{} articles after {} frames: median {median:.1} ms (plain {plain_median:.1}), 95 % {p95:.1} ms (plain {plain_p95:.1}), \
         longest {longest:.1} ms; long tasks {tasks:?}",
        frames["articles"],
        frames["gaps"].as_array().unwrap().len()
    );
    browser.reads("article.turn[data-role=user]", "Question 0?").await;
    // On a busy machine the browser itself is slow: what it takes for plain paragraphs is the floor.
    let smooth = median < f64::max(50.0, 4.0 * plain_median) && p95 < f64::max(250.0, 8.0 * plain_p95);
    assert!(smooth, "it does not scroll smoothly");
    browser.assert_quiet(&[]).await;
}

/// The element that scrolls, from one inside it.
const SCROLLS: &str = "(function up(e) { return !e ? document.scrollingElement
    : e.scrollHeight > e.clientHeight && /auto|scroll/.test(getComputedStyle(e).overflowY) ? e : up(e.parentElement); })";

/// Scrolls through as many plain paragraphs as there are messages, by a screen in each frame.
const PLAIN_SCROLLING: &str = "const box = document.createElement('div');
    Object.assign(box.style, { position: 'fixed', inset: '0', overflow: 'auto', background: 'white', zIndex: '9999' });
    for (let n = 0; n < 5000; n++) {
      const line = document.createElement('p');
      line.textContent = `Line ${n}. `.repeat(30);
      box.append(line);
    }
    document.body.append(box);
    box.scrollTop = box.scrollHeight;
    const gaps = []; let before = performance.now();
    const frame = (now) => {
      gaps.push(now - before); before = now;
      box.scrollTop -= box.clientHeight;
      if (box.scrollTop <= 0) {
        box.remove();
        done({ gaps: gaps.sort((a, b) => a - b) });
      } else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);";

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
