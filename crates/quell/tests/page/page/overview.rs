//! The overview: runs, stop one, stop all, hold, background processes, approvals, channels.

use quell_testkit::model::UsageReporting;
use quell_testkit::networks::telegram::FakeTelegram;

use super::{LONG_GRACE_CONFIG, PageConfig, PageFixture};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn one_run_is_stopped_then_all_and_the_hold_stays_until_it_is_lifted() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    let mut runs = Vec::new();
    for session in ["one", "two", "three"] {
        fixture.model.script(ScriptedResponse::silent_mid_stream("begun"));
        runs.push(fixture.http.send_message(session, "go on for ever").await);
    }
    fixture.go_to("#/runs").await;
    fixture.wait_for("document.querySelectorAll('#runs tr[data-run]').length === 3").await;
    fixture.wait_fact("runs", "3").await;
    let row = fixture.text(&format!("#runs tr[data-run='{}']", runs[0])).await;
    assert!(row.contains("one") && row.contains("main"), "{row}");

    let stop_first = format!("#runs tr[data-run='{}'] .stop-run", runs[0]);
    fixture.click_until_hidden(&stop_first, &stop_first).await;
    assert_eq!(fixture.http.wait_ended(&runs[0]).await["verdict"]["kind"], "aborted");
    fixture.wait_fact("runs", "2").await;

    // The stop of everything has two steps, and the first one can be cancelled.
    fixture.click_until_visible("#stop-all", "#stop-all-dialog").await;
    fixture.click_until_hidden("#stop-all-cancel", "#stop-all-dialog").await;
    fixture.click("#stop-all").await;
    fixture.click("#stop-all-hold").await;
    fixture.click_until_hidden("#stop-all-confirm", "#stop-all-dialog").await;
    fixture.wait_text("#toasts .toast.success", "stopped").await;
    for run in &runs[1..] {
        assert_eq!(fixture.http.wait_ended(run).await["verdict"]["kind"], "aborted");
    }
    fixture.wait_fact("runs", "0").await;
    fixture.wait_visible("#hold[aria-checked=true]").await;
    check_hold_on_every_view(&fixture).await;

    fixture.click_until_visible("#hold", "#hold[aria-checked=false]").await;
    let hold = fixture.http.get("/api/hold").await.expect_status(200);
    assert_eq!(hold["held"], false);
    // A hold set over HTTP appears by itself.
    drop(fixture.http.put("/api/hold", &json!({"reason": "maintenance"})).await);
    fixture.wait_visible("#hold[aria-checked=true]").await;
    fixture.assert_no_page_errors(&["status of 503"]).await;
}

async fn check_hold_on_every_view(fixture: &PageFixture) {
    for route in ["#/agents", "#/approvals", "#/runs", "#/s/one"] {
        fixture.go_to(route).await;
        fixture.wait_visible("#hold[aria-checked=true]").await;
    }
    // A message is refused during a hold, and its text stays in the input field.
    fixture.wait_visible("#message").await;
    fixture.send_message("is anybody there?").await;
    fixture.wait_for("document.querySelector('#message').value === 'is anybody there?'").await;
    let seen = fixture
        .wait_for("document.querySelector('#toasts .toast, #composer [role=alert], #settling')?.textContent.trim()");
    assert!(seen.await.is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn leftovers_of_a_stop_of_everything_are_shown_and_forced() {
    let Some(fixture) = PageFixture::start_signed_in_with(&PageConfig::tables(LONG_GRACE_CONFIG)).await else { return };
    let marker = ProcessMarker::new();
    fixture.model.script(shell_call(commands::ignores_signals(&marker)));
    let run = fixture.http.send_message("stubborn", "work").await;
    let mut events = fixture.http.run_events(&run, 0).await;
    while !events.wait_for("tool.output").await.data.to_string().contains("deaf") {}
    fixture.click_until_text("#stop-all", "#stop-all-dialog", "1 run").await;
    fixture.click_until_text("#stop-all-confirm", "#stop-all-dialog", "still settling").await;
    assert!(!marker.marked_processes().is_empty(), "the first stop is gentle");
    fixture.click_until_hidden("#stop-all-confirm", "#stop-all-dialog").await;
    assert_eq!(fixture.http.wait_ended(&run).await["verdict"]["kind"], "aborted");
    assert!(marker.marked_processes().is_empty(), "{:?}", marker.marked_processes());
    fixture.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_in_the_background_is_seen_and_ended() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    let marker = ProcessMarker::new();
    fixture.model.script(background_call(commands::obeys_signals(&marker))).script(ScriptedResponse::text("It runs."));
    let run = fixture.http.send_message("builder", "start the server").await;
    fixture.http.wait_ended(&run).await;
    marker.wait_for_count(1).await;
    fixture.go_to("#/runs").await;
    fixture.wait_fact("processes", "1").await;
    fixture.wait_visible("#processes [data-process]").await;
    // Without chat networks, nothing is said of them.
    fixture.wait_for("document.querySelector('#channels').parentElement.hidden === true").await;
    let end = "#processes [data-process] .end-process";
    fixture.click_until_hidden(end, end).await;
    fixture.wait_fact("processes", "0").await;
    assert!(marker.marked_processes().is_empty(), "{:?}", marker.marked_processes());
    fixture.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn approvals_are_answered_once_and_shown_as_they_are() {
    let asks = PageConfig::main("approvals = { shell = \"ask\" }");
    let Some(fixture) = PageFixture::start_signed_in_with(&asks).await else { return };
    fixture.model.script(shell_call("echo allowed \u{202e}gnitirw\u{200b}"));
    fixture.model.script(ScriptedResponse::text("Thank you."));
    let allowed = fixture.http.send_message("asker", "please").await;
    fixture.go_to("#/approvals").await;
    fixture.wait_visible("#approvals [data-approval]").await;
    fixture.wait_fact("approvals", "1").await;
    let shown = fixture.text("#approvals [data-approval]").await;
    assert!(shown.contains("echo allowed") && shown.contains("shell"), "{shown}");
    assert!(!shown.contains(['\u{202e}', '\u{200b}']), "invisible characters are written as escapes: {shown}");
    fixture.click_until_hidden("#approvals .allow", "#approvals [data-approval]").await;
    assert_eq!(fixture.http.wait_ended(&allowed).await["output"], "Thank you.");

    // In the open session, the chat shows the approval, too.
    fixture.model.script(shell_call("echo never")).script(ScriptedResponse::text("As you wish."));
    let denied = fixture.http.send_message("asker", "and this?").await;
    fixture.open_session("asker").await;
    fixture.wait_visible("[data-approval] .deny").await;
    fixture.click_until_hidden("[data-approval] .deny", "[data-approval] .deny").await;
    assert_eq!(fixture.http.wait_ended(&denied).await["output"], "As you wish.");

    check_late_answer(&fixture, shell_call("echo late")).await;
    fixture.assert_no_page_errors(&["status of 409", "status of 404"]).await;
}

/// Focuses the call that waits, once its first clicks are no accident any more, and presses a key.
async fn answer_by_key(fixture: &PageFixture, key: &str) {
    fixture.wait_visible("#approvals [data-approval]:not(.click-guard)").await;
    fixture.run_script("document.querySelector('#approvals [data-approval]').focus()", &[]).await;
    fixture.type_text(key).await;
    fixture.wait_hidden("#approvals [data-approval]").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_answered_by_key_and_what_is_remembered_is_revoked() {
    let asks = PageConfig::main("approvals = { shell = \"ask\" }");
    let Some(fixture) = PageFixture::start_signed_in_with(&asks).await else { return };
    let script_call = |answer: &str| {
        fixture.model.script(shell_call("echo hi")).script(ScriptedResponse::text(answer));
    };
    script_call("Allowed.");
    let run = fixture.http.send_message("asker", "please").await;
    fixture.go_to("#/approvals").await;
    fixture.wait_for("document.title.startsWith('(1) ')").await;
    fixture.wait_visible("#approvals [data-approval]:not(.click-guard)").await;
    fixture.click("#approvals .approval-remember summary").await;
    assert_eq!(fixture.text("#approvals .allow-session").await, "Allow every shell call of this session");
    fixture.click_until_hidden("#approvals .allow-session", "#approvals [data-approval]").await;
    assert_eq!(fixture.http.wait_ended(&run).await["output"], "Allowed.");
    fixture.wait_for("!document.title.startsWith('(')").await;
    fixture.wait_text("#approval-rules [data-rule]", "in the session asker").await;
    script_call("Not asked.");
    let remembered = fixture.http.send_message("asker", "again").await;
    assert_eq!(fixture.http.wait_ended(&remembered).await["output"], "Not asked.");

    fixture.click_until_hidden("#approval-rules [data-rule] button", "#approval-rules").await;
    script_call("Denied.");
    let asked_again = fixture.http.send_message("asker", "and now?").await;
    answer_by_key(&fixture, "n").await;
    assert_eq!(fixture.http.wait_ended(&asked_again).await["output"], "Denied.");

    script_call("I see.");
    let reasoned = fixture.http.send_message("asker", "once more").await;
    fixture.wait_visible("#approvals [data-approval]:not(.click-guard)").await;
    fixture.click("#approvals .approval-remember:last-of-type summary").await;
    fixture.fill("#approvals .approval-remember:last-of-type input", "not on Friday").await;
    let deny = "#approvals .approval-remember:last-of-type .deny";
    fixture.click_until_hidden(deny, "#approvals [data-approval]").await;
    assert_eq!(fixture.http.wait_ended(&reasoned).await["output"], "I see.");
    let told = fixture.model.recorded_requests().pop().unwrap().body["messages"].to_string();
    assert!(told.contains("not on Friday"), "{told}");
    fixture.assert_no_page_errors(&[]).await;
}

/// Regression: the letters of a reason answered the call; "should" allowed every call of the session.
#[tokio::test(flavor = "multi_thread")]
async fn letters_that_are_typed_elsewhere_answer_no_call() {
    let asks = PageConfig::main("approvals = { shell = \"ask\" }");
    let Some(fixture) = PageFixture::start_signed_in_with(&asks).await else { return };
    fixture.model.script(shell_call("echo hi")).script(ScriptedResponse::text("I see."));
    let run = fixture.http.send_message("asker", "please").await;
    fixture.go_to("#/approvals").await;
    fixture.wait_visible("#approvals [data-approval]:not(.click-guard)").await;
    for place in [".approval-remember summary", ".approval-call", ".quiet-link"] {
        let place = format!("#approvals {place}");
        fixture.run_script(&format!("document.querySelector('{place}').focus()"), &[]).await;
        fixture.type_text("ysn").await;
    }
    // Typed at once, without a second click.
    fixture.click("#approvals .approval-remember:last-of-type summary").await;
    fixture.wait_for("document.activeElement.matches('.approval-remember:last-of-type input')").await;
    fixture.type_text("should yes not").await;
    assert_eq!(fixture.eval("document.activeElement.value").await, "should yes not");
    let waiting = fixture.http.get("/api/approvals").await.expect_status(200);
    assert_eq!(waiting["items"].as_array().unwrap().len(), 1, "{waiting:#}");
    fixture.click_until_hidden("#approvals .approval-remember:last-of-type .deny", "#approvals [data-approval]").await;
    fixture.http.wait_ended(&run).await;
    let told = fixture.model.recorded_requests().pop().unwrap().body["messages"].to_string();
    assert!(told.contains("should yes not"), "{told}");
    let rules = fixture.http.get("/api/approval-rules").await.expect_status(200);
    assert_eq!(rules["items"], json!([]));
    fixture.assert_no_page_errors(&[]).await;
}

/// A browser without a person permits no notifications, so the page gets one that counts them.
const COUNT_NOTIFICATIONS: &str = "window.__shown = [];
    window.Notification = class {
      static permission = 'granted';
      static requestPermission = async () => 'granted';
      constructor(title, { body }) { window.__shown.push({ title, body, open: true }); this.at = window.__shown.length - 1; }
      close() { window.__shown[this.at].open = false; }
    };
    Object.defineProperty(document, 'hidden', { get: () => true });";

#[tokio::test(flavor = "multi_thread")]
async fn a_hidden_page_notifies_of_a_waiting_call_until_it_is_answered() {
    let asks = PageConfig::main("approvals = { shell = \"ask\" }");
    let Some(fixture) = PageFixture::start_signed_in_with(&asks).await else { return };
    fixture.go_to("#/approvals").await;
    fixture.run_script(COUNT_NOTIFICATIONS, &[]).await;
    fixture.click("#approval-notices button").await;
    fixture.wait_visible("#approval-notices button[aria-checked=true]").await;
    fixture.model.script(shell_call("echo secret")).script(ScriptedResponse::text("Thank you."));
    let run = fixture.http.send_message("asker", "please").await;
    fixture.wait_for("window.__shown.length === 1 && window.__shown[0].open").await;
    let shown = fixture.eval("window.__shown[0]").await;
    assert_eq!((&shown["title"], &shown["body"]), (&json!("main wants to call shell"), &json!("asker")));
    let asked = fixture.http.get("/api/approvals").await.expect_status(200);
    let path = format!("/api/approvals/{}", asked["items"][0]["id"].as_str().unwrap());
    fixture.http.post(&path, &json!({"decision": "deny"})).await.expect_status(200);
    fixture.wait_for("!window.__shown[0].open").await;
    fixture.http.wait_ended(&run).await;
    fixture.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_asks_to_leave_the_sandbox_is_marked_and_remembered_by_its_command() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    let call = |command: &str| {
        let arguments = json!({"command": command, "escalate": "it needs \u{202e} the disk"});
        ScriptedResponse::tool_call("c1", "shell", &arguments)
    };
    fixture.model.script(call("echo outside")).script(ScriptedResponse::text("Thank you."));
    let run = fixture.http.send_message("leaver", "please").await;
    fixture.go_to("#/approvals").await;
    fixture.wait_visible("#approvals .approval.outside .approval-outside").await;
    let shown = fixture.text("#approvals [data-approval]").await;
    for part in ["Outside of the sandbox", "the disk", "permits changes in", "stay out of reach", "echo outside"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains('\u{202e}'), "invisible characters are written as escapes: {shown}");
    fixture.click("#approvals .approval-remember summary").await;
    assert_eq!(fixture.eval("document.querySelector('.approval-remember input').value").await, "echo outside");
    assert_eq!(fixture.eval("document.querySelector('.allow-session')").await, json!(null));
    fixture.click_until_hidden("#approvals .allow-pattern", "#approvals [data-approval]").await;
    assert_eq!(fixture.http.wait_ended(&run).await["output"], "Thank you.");
    fixture.model.script(call("echo outside")).script(ScriptedResponse::text("Not asked."));
    let remembered = fixture.http.send_message("leaver", "again").await;
    assert_eq!(fixture.http.wait_ended(&remembered).await["output"], "Not asked.");
    fixture.assert_no_page_errors(&[]).await;
}

/// Somebody else answers the approval before this page hears of it.
async fn check_late_answer(fixture: &PageFixture, call: ScriptedResponse) {
    fixture.model.script(call).script(ScriptedResponse::text("Somebody said yes."));
    let run = fixture.http.send_message("asker", "once more").await;
    fixture.go_to("#/approvals").await;
    fixture.wait_visible("#approvals [data-approval] .deny").await;
    let asked = fixture.http.get("/api/approvals").await.expect_status(200);
    let path = format!("/api/approvals/{}", asked["items"][0]["id"].as_str().unwrap());
    // The click happens together with the other answer, before its event: the page's own request is held back.
    let click = "const button = document.querySelector('#approvals .deny');
        const send = window.fetch; window.fetch = (...words) => {
          if (!String(words[0]).includes('/api/approvals/')) return send(...words);
          return new Promise((go) => { window.__go = go; }).then(() => { window.fetch = send; return send(...words); });
        }; button.click();";
    fixture.run_script(click, &[]).await;
    fixture.wait_for("window.__go").await;
    let token = json!({"name": "somebody", "scope": "approve"});
    let made = fixture.http.post("/api/tokens", &token).await.expect_status(201);
    let somebody = fixture.http.with_token(made["token"].as_str().unwrap());
    drop(somebody.post(&path, &json!({"decision": "allow"})).await.expect_status(200));
    fixture.run_script("window.__go();", &[]).await;
    // The toast explains what happened, with more words than the answer itself.
    let more = "[...document.querySelectorAll('#toasts .toast')].find((toast) => toast.textContent.trim().split(/\\s+/).length > 2)";
    fixture.wait_for(&format!("{more}?.textContent")).await;
    fixture.wait_hidden("#approvals [data-approval]").await;
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
    let Some(fixture) = PageFixture::start_signed_in_with(&PageConfig::tables(&tables)).await else { return };
    fixture.go_to("#/runs").await;
    fixture.wait_text("#channels [data-channel=nowhere]", "lost, tries again").await;
    fixture.wait_text("#channels [data-channel=nowhere]", "irc · 0 heard, 0 answered").await;
    fixture.wait_text("#channels [data-channel=stranger]", "refused").await;
    fixture.wait_text("#channels [data-channel=stranger] .channel-why", "token").await;
    fixture.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admin_sees_what_each_key_may_use_and_has_used() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    let restrictions = json!({"apis": ["openai"], "models": ["scripted/*"], "dailyCost": 5.0});
    let body = json!({"name": "app", "scope": "write", "expiresInS": 2_592_000, "restrictions": restrictions});
    let _ = fixture.http.post("/api/tokens", &body).await.expect_status(201);
    let desk = fixture.http.post("/api/tokens", &json!({"name": "desk", "scope": "write"})).await.expect_status(201);
    fixture.go_to("#/runs").await;
    fixture.wait_text("#tokens [data-token=app]", "write · only openai · models scripted/* · at most 5 a day").await;
    fixture.wait_text("#tokens [data-token=app]", "expires at").await;
    fixture.wait_text("#tokens [data-token=desk]", "today: 0 tokens").await;
    // The end of a run changes what its token has used.
    let answer = ScriptedStream::new().text("done").usage(UsageReporting::Always, 1000, 234);
    fixture.model.script(answer);
    let desk = fixture.http.with_token(desk["token"].as_str().unwrap());
    let run = desk.send_message("s", "go").await;
    fixture.http.wait_ended(&run).await;
    fixture.wait_text("#tokens [data-token=desk]", "today: 1,234 tokens · 30 days: 1,234 tokens").await;
    fixture.screenshot(&super::screenshot_dir().join("api-keys.png")).await;
    fixture.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_listed_paused_resumed_and_removed() {
    let Some(fixture) = PageFixture::start_signed_in_with(&PageConfig::main("")).await else { return };
    let body = json!({"every": "1h", "text": "say what is new", "sessionKey": "watch"});
    let schedule = fixture.http.post("/api/schedules", &body).await.expect_status(201);
    let path = format!("/api/schedules/{}", schedule["id"].as_str().unwrap());
    fixture.go_to("#/runs").await;
    fixture.wait_text("#schedules [data-schedule]", "say what is new").await;
    fixture.wait_text("#schedules .schedule-facts", "next at").await;
    fixture.click_until_text("#schedules .pause-schedule", "#schedules .schedule-facts", "paused: by hand").await;
    assert_eq!(fixture.http.get(&path).await.expect_status(200)["paused"]["by"], "admin");
    fixture.click_until_text("#schedules .pause-schedule", "#schedules .schedule-facts", "next at").await;
    fixture.click_until_hidden("#schedules .remove-schedule", "#schedules").await;
    assert_eq!(fixture.http.get("/api/schedules").await.expect_status(200)["items"], json!([]));
}
