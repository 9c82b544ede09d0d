//! A session of 5,000 messages opens at its end, scrolls to its beginning, and shows all of them.

use std::fmt::Write as _;

use super::performance::{machine_slowness, percentiles};
use super::{PageConfig, PageFixture};
use crate::prelude::*;

/// Each turn has one user message and one answer.
const TURNS: usize = 2500;

#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_messages_scroll_to_the_first_one() {
    scroll_long_session().await;
}

async fn scroll_long_session() {
    let Some(fixture) = PageFixture::start_with(&PageConfig::default()).await else { return };
    import_long_session(&fixture).await;
    fixture.sign_in().await;
    fixture.open_session("long").await;
    fixture.wait_text("article.turn[data-role=assistant]", &format!("Answer {}.", TURNS - 1)).await;
    let at_end = "(e => e.scrollHeight - e.scrollTop - e.clientHeight < 100)";
    fixture.wait_for(&format!("{at_end}({SCROLL_CONTAINER_SCRIPT}(document.querySelector('#turns')))")).await;
    let before = machine_slowness(&fixture).await;
    let (mut gaps, mut articles) = (Vec::<f64>::new(), Value::Null);
    while articles.is_null() {
        let part = fixture.run_async_script(&scroll_script(), &[]).await;
        gaps.extend(part["gaps"].as_array().unwrap().iter().map(|gap| gap.as_f64().unwrap()));
        assert!(gaps.len() < 6000, "the first message is not reached");
        articles = part["articles"].clone();
    }
    gaps.sort_by(f64::total_cmp);
    let [median, p95, longest] = percentiles(&json!(gaps));
    let slower = before.max(machine_slowness(&fixture).await);
    let tasks = fixture.long_tasks().await;
    eprintln!(
        "{articles} articles after {} frames: median {median:.1} ms, 95 % {p95:.1} ms, longest {longest:.1} ms, on a machine \
         {slower:.1} times slower than idle; long tasks {tasks:?}",
        gaps.len()
    );
    fixture.wait_text("article.turn[data-role=user]", "Question 0?").await;
    fixture.assert_no_page_errors(&[]).await;
}

/// Finds the nearest scrolling ancestor of an element.
const SCROLL_CONTAINER_SCRIPT: &str = "(function up(e) { return !e ? document.scrollingElement
    : e.scrollHeight > e.clientHeight && /auto|scroll/.test(getComputedStyle(e).overflowY) ? e : up(e.parentElement); })";

/// Scrolls up by one screen per frame, for a hundred frames or until the first message is shown. Returns the times
/// between frames, and the number of articles once the first message is shown.
fn scroll_script() -> String {
    format!(
        "const box = {SCROLL_CONTAINER_SCRIPT}(document.querySelector('#turns'));
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

/// Runs one turn, exports it, and imports it 2,500 times as another session.
async fn import_long_session(fixture: &PageFixture) {
    let answer = "Answer N.\n\nWith a second paragraph and some `code` in it.\n\n- one\n- two";
    fixture.model.script(ScriptedResponse::text(answer));
    let run = fixture.http.send_message("seed", "Question N?").await;
    fixture.http.wait_ended(&run).await;
    let export = fixture.http.request(Method::GET, "/api/sessions/seed/export").send().await.unwrap();
    let lines = export.text().await.unwrap();
    let (head, rest) = lines.split_once('\n').unwrap();
    let mut archive = head.replace("\"seed\"", "\"long\"") + "\n";
    // All runs first, then all turns, as in an export.
    for kind in ["\"kind\":\"run\"", "\"kind\":\"turn\""] {
        for turn in 0..TURNS {
            for line in rest.lines().filter(|line| line.contains(kind)) {
                let line = line.replace(&run, &format!("run-{turn}")).replace("\"seed\"", "\"long\"");
                let line = line.replace("Question N?", &format!("Question {turn}?"));
                writeln!(archive, "{}", line.replace("Answer N.", &format!("Answer {turn}."))).unwrap();
            }
        }
    }
    let import = fixture.http.request(Method::POST, "/api/import").header("content-type", "application/x-ndjson");
    let _ = fixture.http.send(import.body(archive)).await.expect_status(201);
}

mod timing {
    use super::*;

    /// The targets for frames are 50 ms (median) and 250 ms (95 %).
    #[tokio::test(flavor = "multi_thread")]
    async fn five_thousand_messages_scroll() {
        scroll_long_session().await;
    }
}
