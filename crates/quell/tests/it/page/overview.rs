//! The overview: runs, stop one, stop all, hold, background processes, approvals, channels.

use quell_testkit::commands::{self, ProcessMarker};
use quell_testkit::model::ScriptedResponse;
use quell_testkit::networks::telegram::FakeTelegram;
use serde_json::json;

use super::{LONG_GRACE_CONFIG, PageConfig, PageFixture};
use crate::test_engine::ProcessLock;

#[tokio::test(flavor = "multi_thread")]
async fn one_run_is_stopped_then_all_and_the_hold_stays_until_it_is_lifted() {
    let Some(fixture) = PageFixture::start().await else { return };
    let browser = &fixture.browser;
    fixture.sign_in().await;
    for _ in 0..3 {
        fixture.model.script(ScriptedResponse::silent_mid_stream("begun"));
    }
    let mut runs = Vec::new();
    for session in ["one", "two", "three"] {
        runs.push(fixture.http.send_message(session, "go on for ever").await);
    }
    fixture.go_to("#/runs").await;
    browser.wait_for("document.querySelectorAll('#runs tr[data-run]').length === 3").await;
    browser.wait_for("document.querySelector('[data-fact=runs]').textContent.includes('3')").await;
    let row = browser.text(&format!("#runs tr[data-run='{}']", runs[0])).await;
    assert!(row.contains("one") && row.contains("main"), "{row}");

    browser.click(&format!("#runs tr[data-run='{}'] .stop-run", runs[0])).await;
    browser.wait_hidden(&format!("#runs tr[data-run='{}'] .stop-run", runs[0])).await;
    assert_eq!(fixture.http.wait_ended(&runs[0]).await["verdict"]["kind"], "aborted");
    browser.wait_for("document.querySelector('[data-fact=runs]').textContent.includes('2')").await;

    // The stop of everything has two steps, and the first one can be cancelled.
    browser.click("#stop-all").await;
    browser.wait_visible("#stop-all-dialog").await;
    browser.click("#stop-all-cancel").await;
    browser.wait_hidden("#stop-all-dialog").await;
    browser.click("#stop-all").await;
    browser.click("#stop-all-hold").await;
    browser.click("#stop-all-confirm").await;
    browser.wait_hidden("#stop-all-dialog").await;
    browser.wait_text("#toasts .toast.success", "stopped").await;
    for run in &runs[1..] {
        assert_eq!(fixture.http.wait_ended(run).await["verdict"]["kind"], "aborted");
    }
    browser.wait_for("document.querySelector('[data-fact=runs]').textContent.includes('0')").await;
    browser.wait_for("document.querySelector('#hold').getAttribute('aria-checked') === 'true'").await;
    check_hold_on_every_view(&fixture).await;

    browser.click("#hold").await;
    browser.wait_for("document.querySelector('#hold').getAttribute('aria-checked') === 'false'").await;
    let hold = fixture.http.get("/api/hold").await.expect_status(200);
    assert_eq!(hold["held"], false);
    // A hold set over HTTP appears by itself.
    drop(fixture.http.put("/api/hold", &json!({"reason": "maintenance"})).await);
    browser.wait_for("document.querySelector('#hold').getAttribute('aria-checked') === 'true'").await;
    browser.assert_no_page_errors(&["status of 503"]).await;
}

async fn check_hold_on_every_view(fixture: &PageFixture) {
    let browser = &fixture.browser;
    for route in ["#/agents", "#/approvals", "#/runs", "#/s/one"] {
        fixture.go_to(route).await;
        browser.wait_visible("#hold[aria-checked=true]").await;
    }
    // A message is refused during a hold, and its text stays in the input field.
    browser.wait_visible("#message").await;
    fixture.send_message("is anybody there?").await;
    browser.wait_for("document.querySelector('#message').value === 'is anybody there?'").await;
    let seen = browser
        .wait_for("document.querySelector('#toasts .toast, #composer [role=alert], #settling')?.textContent.trim()");
    assert!(seen.await.is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn leftovers_of_a_stop_of_everything_are_shown_and_forced() {
    let Some(fixture) =
        PageFixture::start_with(&PageConfig { tables: LONG_GRACE_CONFIG, ..PageConfig::default() }).await
    else {
        return;
    };
    let browser = &fixture.browser;
    fixture.sign_in().await;
    let marker = ProcessMarker::new();
    let command = json!({"command": commands::ignores_signals(&marker)});
    fixture.model.script(ScriptedResponse::tool_call("c1", "shell", &command));
    let run = fixture.http.send_message("stubborn", "work").await;
    let mut events = fixture.http.run_events(&run, 0).await;
    while !events.wait_for("tool.output").await.data.to_string().contains("deaf") {}
    browser.click("#stop-all").await;
    browser.wait_text("#stop-all-dialog", "1 run").await;
    browser.click("#stop-all-confirm").await;
    browser.wait_text("#stop-all-dialog", "still settling").await;
    assert!(!marker.marked_processes().is_empty(), "the first stop is gentle");
    browser.click("#stop-all-confirm").await;
    browser.wait_hidden("#stop-all-dialog").await;
    assert_eq!(fixture.http.wait_ended(&run).await["verdict"]["kind"], "aborted");
    assert!(marker.marked_processes().is_empty(), "{:?}", marker.marked_processes());
    browser.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_in_the_background_is_seen_and_ended() {
    let Some(fixture) = PageFixture::start().await else { return };
    let browser = &fixture.browser;
    fixture.sign_in().await;
    let marker = ProcessMarker::new();
    let call = json!({"command": commands::obeys_signals(&marker), "background": true});
    fixture.model.script(ScriptedResponse::tool_call("c1", "shell", &call)).script(ScriptedResponse::text("It runs."));
    let run = fixture.http.send_message("builder", "start the server").await;
    fixture.http.wait_ended(&run).await;
    marker.wait_for_count(1).await;
    fixture.go_to("#/runs").await;
    browser.wait_for("document.querySelector('[data-fact=processes]').textContent.includes('1')").await;
    browser.wait_visible("#processes [data-process]").await;
    browser.click("#processes [data-process] .end-process").await;
    browser.wait_hidden("#processes [data-process] .end-process").await;
    browser.wait_for("document.querySelector('[data-fact=processes]').textContent.includes('0')").await;
    assert!(marker.marked_processes().is_empty(), "{:?}", marker.marked_processes());
    browser.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn approvals_are_answered_once_and_shown_as_they_are() {
    let asks = PageConfig { main: "approvals = { shell = \"ask\" }", ..PageConfig::default() };
    let Some(fixture) = PageFixture::start_with(&asks).await else { return };
    let browser = &fixture.browser;
    fixture.sign_in().await;
    let ask = |command: &str| ScriptedResponse::tool_call("c1", "shell", &json!({"command": command}));

    fixture.model.script(ask("echo allowed \u{202e}gnitirw\u{200b}")).script(ScriptedResponse::text("Thank you."));
    let allowed = fixture.http.send_message("asker", "please").await;
    fixture.go_to("#/approvals").await;
    browser.wait_visible("#approvals [data-approval]").await;
    browser.wait_for("document.querySelector('[data-fact=approvals]').textContent.includes('1')").await;
    let shown = browser.text("#approvals [data-approval]").await;
    assert!(shown.contains("echo allowed") && shown.contains("shell"), "{shown}");
    assert!(!shown.contains(['\u{202e}', '\u{200b}']), "invisible characters are written as escapes: {shown}");
    browser.click("#approvals .allow").await;
    browser.wait_hidden("#approvals [data-approval]").await;
    assert_eq!(fixture.http.wait_ended(&allowed).await["output"], "Thank you.");

    // In the open session, the chat shows the approval, too.
    fixture.model.script(ask("echo never")).script(ScriptedResponse::text("As you wish."));
    let denied = fixture.http.send_message("asker", "and this?").await;
    fixture.open_session("asker").await;
    browser.wait_visible("[data-approval] .deny").await;
    browser.click("[data-approval] .deny").await;
    browser.wait_hidden("[data-approval] .deny").await;
    assert_eq!(fixture.http.wait_ended(&denied).await["output"], "As you wish.");

    check_late_answer(&fixture, ask("echo late")).await;
    browser.assert_no_page_errors(&["status of 409", "status of 404"]).await;
}

/// Somebody else answers the approval before this page hears of it.
async fn check_late_answer(fixture: &PageFixture, call: ScriptedResponse) {
    let browser = &fixture.browser;
    fixture.model.script(call).script(ScriptedResponse::text("Somebody said yes."));
    let run = fixture.http.send_message("asker", "once more").await;
    fixture.go_to("#/approvals").await;
    browser.wait_visible("#approvals [data-approval] .deny").await;
    let asked = fixture.http.get("/api/approvals").await.expect_status(200);
    let path = format!("/api/approvals/{}", asked["items"][0]["id"].as_str().unwrap());
    // The click happens together with the other answer, before its event: the page's own request is held back.
    let click = "const button = document.querySelector('#approvals .deny');
        const send = window.fetch; window.fetch = (...words) => {
          if (!String(words[0]).includes('/api/approvals/')) return send(...words);
          return new Promise((go) => { window.__go = go; }).then(() => { window.fetch = send; return send(...words); });
        }; button.click();";
    browser.run_script(click, &[]).await;
    browser.wait_for("window.__go").await;
    drop(fixture.http.post(&path, &json!({"decision": "allow"})).await.expect_status(200));
    browser.run_script("window.__go();", &[]).await;
    // The toast explains what happened, with more words than the answer itself.
    let more = "[...document.querySelectorAll('#toasts .toast')].find((toast) => toast.textContent.trim().split(/\\s+/).length > 2)";
    browser.wait_for(&format!("{more}?.textContent")).await;
    browser.wait_hidden("#approvals [data-approval]").await;
    assert_eq!(fixture.http.wait_ended(&run).await["output"], "Somebody said yes.");
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_networks_are_shown_with_how_they_fare_and_why() {
    let _process_lock = ProcessLock::shared().await;
    let telegram = FakeTelegram::start().await;
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "7654321:AAAnotherTokenOfNobody_9876543210zy").unwrap();
    let tables = format!(
        "[channels.nowhere]\nkind = \"irc\"\nserver = \"127.0.0.1:1\"\ntls = false\nnick = \"quell\"\n\
         [channels.stranger]\nkind = \"telegram\"\napi_base = {:?}\ntoken_file = {:?}\n",
        telegram.base_url(),
        token.path()
    );
    let Some(fixture) = PageFixture::start_with(&PageConfig { tables: &tables, ..PageConfig::default() }).await else {
        return;
    };
    let browser = &fixture.browser;
    fixture.sign_in().await;
    fixture.go_to("#/runs").await;
    browser.wait_text("#channels [data-channel=nowhere]", "lost, tries again").await;
    browser.wait_text("#channels [data-channel=nowhere]", "irc · 0 heard, 0 answered").await;
    browser.wait_text("#channels [data-channel=stranger]", "refused").await;
    browser.wait_text("#channels [data-channel=stranger] .channel-why", "token").await;
    browser.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_chat_networks_nothing_is_said_of_them() {
    let Some(fixture) = PageFixture::start().await else { return };
    fixture.sign_in().await;
    fixture.go_to("#/runs").await;
    fixture.browser.wait_visible("#processes .empty").await;
    fixture.browser.wait_for("document.querySelector('#channels').parentElement.hidden === true").await;
}
