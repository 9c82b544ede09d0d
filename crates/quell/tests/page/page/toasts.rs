//! Every toast about a stop of a model call (rows B4 and B9 of docs/design/requirements.md): stopped, nothing to stop, and
//! each way in which a stop can fail, with its reason.
//!
//! A healthy daemon almost never refuses a stop that its page offers. So a proxy answers with the daemon's own
//! refusals, and the browser is set offline for a lost network.

use quell_testkit::browser::ConsoleEntry;

use super::{PageConfig, PageFixture};
use crate::prelude::*;

const ABORT_BUTTON: &str = "#agents [data-agent='main'] .abort-btn";

/// Each refusal: status, code, title, and the detail that the toast must show.
const REFUSALS: [(u16, &str, &str, &str); 4] = [
    (500, "society_not_initialized", "The engine is not ready", "the engine is still starting"),
    (400, "missing_agent_id", "No agent id", "the agent id is blank"),
    (404, "agent_not_found", "No such agent", "there is no agent \"main\""),
    (403, "forbidden", "Not allowed", "this needs the scope write"),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_to_the_stop_of_a_call_is_a_toast() {
    let Some((fixture, proxy)) = PageFixture::start_behind_proxy(&PageConfig::default()).await else { return };
    proxy.set_agent_status("main", "waiting_llm");
    fixture.wait_visible(ABORT_BUTTON).await;
    let style = json!(["Stop this call", "Waiting for the model", "rgb(204, 0, 0)"]);
    assert_eq!(fixture.eval(BUTTON_STYLE_SCRIPT).await, style, "the base of its red is #cc0000");
    assert!(fixture.eval("document.querySelector('#toasts').getAttribute('aria-live')").await.is_string());

    let nothing = json!({"ok": true, "agentId": "main", "aborted": false, "runIds": [], "reason": "not_waiting_llm"});
    proxy.set_abort_answer("main", 200, nothing);
    fixture.click(ABORT_BUTTON).await;
    fixture.wait_toast("info", "No model call in progress").await;
    proxy.set_abort_answer("main", 200, json!({"ok": true, "agentId": "main", "aborted": true, "runIds": []}));
    fixture.click(ABORT_BUTTON).await;
    fixture.wait_toast("success", "Model call stopped").await;
    fixture.assert_no_page_errors(&[]).await;

    for (status, code, title, detail) in REFUSALS {
        let body = json!({"type": "about:blank", "title": title, "status": status, "detail": detail, "code": code, "error": code});
        proxy.set_abort_answer("main", status, body);
        check_refused_stop(&fixture, detail, &format!("status of {status}")).await;
    }
    proxy.set_abort_answer("main", 502, json!("<html>Bad gateway</html>"));
    check_refused_stop(&fixture, "", "status of 502").await;
    fixture.set_offline(true).await;
    check_refused_stop(&fixture, "", "ERR_INTERNET_DISCONNECTED").await;
    fixture.set_offline(false).await;
}

/// A failed stop: an error toast with the reason, one console entry, and a button that can be used again.
async fn check_refused_stop(fixture: &PageFixture, detail: &str, network: &str) {
    let forget = "document.querySelectorAll('#toasts .toast.error').forEach(toast => { toast.dataset.old = 1; });";
    fixture.run_script(forget, &[]).await;
    fixture.click(ABORT_BUTTON).await;
    let text = fixture.wait_for("document.querySelector('#toasts .toast.error:not([data-old])')?.textContent").await;
    let text = text.as_str().unwrap();
    let (_, reason) = text.split_once("Could not stop the call: ").unwrap_or_else(|| panic!("{text:?}"));
    assert!(reason.contains(detail), "{text:?} lacks {detail:?}");
    let words = reason.split_whitespace().count();
    let is_text = (2..30).contains(&words) && !reason.contains(['<', '{']) && !reason.trim_end().ends_with(':');
    assert!(is_text, "no reason for people: {reason:?}");
    // The browser's own entry about the request and the page's entry about the failure; nothing else.
    let failure = "Could not stop the call";
    let entries = fixture.wait_console_entries(&[failure, network]).await;
    let of_page = |entry: &&ConsoleEntry| entry.source == "console-api" && entry.text.contains(failure);
    assert_eq!(entries.iter().filter(of_page).count(), 1, "{entries:#?}");
    let loud = entries.iter().filter(|entry| entry.level == "SEVERE" && !of_page(entry));
    assert!(loud.clone().all(|entry| entry.text.contains(network)), "{:#?}", loud.collect::<Vec<_>>());
    fixture.wait_visible(ABORT_BUTTON).await;
}

/// Tooltips and background colour of the abort button.
const BUTTON_STYLE_SCRIPT: &str = "(row => [row.querySelector('.abort-btn').title, row.querySelector('.compute-status.waiting').title,
    getComputedStyle(row.querySelector('.abort-btn')).backgroundColor])(document.querySelector('#agents [data-agent=main]'))";
