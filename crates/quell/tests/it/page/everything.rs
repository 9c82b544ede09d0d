//! The view of everything: runs with what they do, stop one, stop all, the hold; processes in the background; approvals.

use quell_testkit::browser::is_skipped;
use quell_testkit::commands::{self, Marker};
use quell_testkit::model::Behaviour;
use quell_testkit::networks::telegram::FakeTelegram;
use serde_json::json;

use super::{PATIENT, Plan, Scene};
use crate::harness::Claim;

#[tokio::test(flavor = "multi_thread")]
async fn one_run_is_stopped_then_all_and_the_hold_stays_until_it_is_lifted() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    let browser = &scene.browser;
    scene.sign_in().await;
    for _ in 0..3 {
        scene.model.script(Behaviour::silent_mid_stream("begun"));
    }
    let mut runs = Vec::new();
    for session in ["one", "two", "three"] {
        runs.push(scene.send(session, "go on for ever").await);
    }
    scene.go("#/runs").await;
    browser.until("document.querySelectorAll('#runs tr[data-run]').length === 3").await;
    browser.until("document.querySelector('[data-fact=runs]').textContent.includes('3')").await;
    let row = browser.text(&format!("#runs tr[data-run='{}']", runs[0])).await;
    assert!(row.contains("one") && row.contains("main"), "{row}");

    browser.click(&format!("#runs tr[data-run='{}'] .stop-run", runs[0])).await;
    browser.gone(&format!("#runs tr[data-run='{}'] .stop-run", runs[0])).await;
    assert_eq!(scene.ended(&runs[0]).await["verdict"]["kind"], "aborted");
    browser.until("document.querySelector('[data-fact=runs]').textContent.includes('2')").await;

    // Two steps: the first one can be taken back.
    browser.click("#stop-all").await;
    browser.shown("#stop-all-dialog").await;
    browser.click("#stop-all-cancel").await;
    browser.gone("#stop-all-dialog").await;
    browser.click("#stop-all").await;
    browser.click("#stop-all-hold").await;
    browser.click("#stop-all-confirm").await;
    browser.gone("#stop-all-dialog").await;
    browser.reads("#toasts .toast.success", "stopped").await;
    for run in &runs[1..] {
        assert_eq!(scene.ended(run).await["verdict"]["kind"], "aborted");
    }
    browser.until("document.querySelector('[data-fact=runs]').textContent.includes('0')").await;
    browser.until("document.querySelector('#hold').getAttribute('aria-checked') === 'true'").await;
    held_on_every_view(&scene).await;

    browser.click("#hold").await;
    browser.until("document.querySelector('#hold').getAttribute('aria-checked') === 'false'").await;
    let hold = scene.http.get("/api/hold").await.expect_status(200);
    assert_eq!(hold["held"], false);
    // From elsewhere it comes by itself.
    drop(scene.http.put("/api/hold", &json!({"reason": "maintenance"})).await);
    browser.until("document.querySelector('#hold').getAttribute('aria-checked') === 'true'").await;
    browser.assert_quiet(&["status of 503"]).await;
}

async fn held_on_every_view(scene: &Scene) {
    let browser = &scene.browser;
    for route in ["#/agents", "#/approvals", "#/runs", "#/s/one"] {
        scene.go(route).await;
        browser.shown("#hold[aria-checked=true]").await;
    }
    // A message is refused while everything is held, and is not lost.
    browser.shown("#message").await;
    scene.say("is anybody there?").await;
    browser.until("document.querySelector('#message').value === 'is anybody there?'").await;
    let seen = browser
        .until("document.querySelector('#toasts .toast, #composer [role=alert], #settling')?.textContent.trim()");
    assert!(seen.await.is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_stop_of_everything_leaves_is_shown_and_forced() {
    if is_skipped() {
        return;
    }
    let scene = Scene::with(&Plan { tables: PATIENT, ..Plan::default() }).await;
    let browser = &scene.browser;
    scene.sign_in().await;
    let mark = Marker::new();
    let deaf = json!({"command": commands::ignores_signals(&mark)});
    scene.model.script(Behaviour::tool_call("c1", "shell", &deaf));
    let run = scene.send("stubborn", "work").await;
    let mut events = scene.http.events(&run, 0).await;
    while !events.until("tool.output").await.data.to_string().contains("deaf") {}
    browser.click("#stop-all").await;
    browser.reads("#stop-all-dialog", "1 run").await;
    browser.click("#stop-all-confirm").await;
    browser.reads("#stop-all-dialog", "still settling").await;
    assert!(!mark.survivors().is_empty(), "the first stop is gentle");
    browser.click("#stop-all-confirm").await;
    browser.gone("#stop-all-dialog").await;
    assert_eq!(scene.ended(&run).await["verdict"]["kind"], "aborted");
    assert!(mark.survivors().is_empty(), "{:?}", mark.survivors());
    browser.assert_quiet(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_in_the_background_is_seen_and_ended() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    let browser = &scene.browser;
    scene.sign_in().await;
    let mark = Marker::new();
    let call = json!({"command": commands::obedient(&mark), "background": true});
    scene.model.script(Behaviour::tool_call("c1", "shell", &call)).script(Behaviour::text("It runs."));
    let run = scene.send("builder", "start the server").await;
    scene.ended(&run).await;
    mark.at_least(1).await;
    scene.go("#/runs").await;
    browser.until("document.querySelector('[data-fact=processes]').textContent.includes('1')").await;
    browser.shown("#processes [data-process]").await;
    browser.click("#processes [data-process] .end-process").await;
    browser.gone("#processes [data-process] .end-process").await;
    browser.until("document.querySelector('[data-fact=processes]').textContent.includes('0')").await;
    assert!(mark.survivors().is_empty(), "{:?}", mark.survivors());
    browser.assert_quiet(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn approvals_are_answered_once_and_shown_as_they_are() {
    if is_skipped() {
        return;
    }
    let asks = Plan { main: "approvals = { shell = \"ask\" }", ..Plan::default() };
    let scene = Scene::with(&asks).await;
    let browser = &scene.browser;
    scene.sign_in().await;
    let ask = |command: &str| Behaviour::tool_call("c1", "shell", &json!({"command": command}));

    scene.model.script(ask("echo allowed \u{202e}gnitirw\u{200b}")).script(Behaviour::text("Thank you."));
    let allowed = scene.send("asker", "please").await;
    scene.go("#/approvals").await;
    browser.shown("#approvals [data-approval]").await;
    browser.until("document.querySelector('[data-fact=approvals]').textContent.includes('1')").await;
    let shown = browser.text("#approvals [data-approval]").await;
    assert!(shown.contains("echo allowed") && shown.contains("shell"), "{shown}");
    assert!(!shown.contains(['\u{202e}', '\u{200b}']), "what cannot be seen is spelt out: {shown}");
    browser.click("#approvals .allow").await;
    browser.gone("#approvals [data-approval]").await;
    assert_eq!(scene.ended(&allowed).await["output"], "Thank you.");

    // In the open session it is asked in the chat, too.
    scene.model.script(ask("echo never")).script(Behaviour::text("As you wish."));
    let denied = scene.send("asker", "and this?").await;
    scene.session("asker").await;
    browser.shown("[data-approval] .deny").await;
    browser.click("[data-approval] .deny").await;
    browser.gone("[data-approval] .deny").await;
    assert_eq!(scene.ended(&denied).await["output"], "As you wish.");

    late(&scene, ask("echo late")).await;
    browser.assert_quiet(&["status of 409", "status of 404"]).await;
}

/// Somebody else has answered while this page could not be told.
async fn late(scene: &Scene, call: Behaviour) {
    let browser = &scene.browser;
    scene.model.script(call).script(Behaviour::text("Somebody said yes."));
    let run = scene.send("asker", "once more").await;
    scene.go("#/approvals").await;
    browser.shown("#approvals [data-approval] .deny").await;
    let asked = scene.http.get("/api/approvals").await.expect_status(200);
    let path = format!("/api/approvals/{}", asked["items"][0]["id"].as_str().unwrap());
    // The click comes in the same moment as the other answer, before any event of it: the page's own request is held up.
    let click = "const button = document.querySelector('#approvals .deny');
        const send = window.fetch; window.fetch = (...words) => {
          if (!String(words[0]).includes('/api/approvals/')) return send(...words);
          return new Promise((go) => { window.__go = go; }).then(() => { window.fetch = send; return send(...words); });
        }; button.click();";
    browser.run(click, &[]).await;
    browser.until("window.__go").await;
    drop(scene.http.post(&path, &json!({"decision": "allow"})).await.expect_status(200));
    browser.run("window.__go();", &[]).await;
    // It says more than what was answered, as the notices before it do.
    let more = "[...document.querySelectorAll('#toasts .toast')].find((toast) => toast.textContent.trim().split(/\\s+/).length > 2)";
    browser.until(&format!("{more}?.textContent")).await;
    browser.gone("#approvals [data-approval]").await;
    assert_eq!(scene.ended(&run).await["output"], "Somebody said yes.");
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_networks_are_shown_with_how_they_fare_and_why() {
    if is_skipped() {
        return;
    }
    let _claim = Claim::shared().await;
    let telegram = FakeTelegram::start().await;
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "7654321:AAAnotherTokenOfNobody_9876543210zy").unwrap();
    let tables = format!(
        "[channels.nowhere]\nkind = \"irc\"\nserver = \"127.0.0.1:1\"\ntls = false\nnick = \"quell\"\n\
         [channels.stranger]\nkind = \"telegram\"\napi_base = {:?}\ntoken_file = {:?}\n",
        telegram.base_url(),
        token.path()
    );
    let scene = Scene::with(&Plan { tables: &tables, ..Plan::default() }).await;
    let browser = &scene.browser;
    scene.sign_in().await;
    scene.go("#/runs").await;
    browser.reads("#channels [data-channel=nowhere]", "lost, tries again").await;
    browser.reads("#channels [data-channel=nowhere]", "irc · 0 heard, 0 answered").await;
    browser.reads("#channels [data-channel=stranger]", "refused").await;
    browser.reads("#channels [data-channel=stranger] .channel-why", "token").await;
    browser.assert_quiet(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_chat_networks_nothing_is_said_of_them() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    scene.sign_in().await;
    scene.go("#/runs").await;
    scene.browser.shown("#processes .empty").await;
    scene.browser.until("document.querySelector('#channels').parentElement.hidden === true").await;
}
