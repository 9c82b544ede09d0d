//! `openclaw tui`, unmodified, on a pseudo-terminal.

use quell_testkit::pty::Pty;

use super::clients::{OpenClawFixture, assert_stopped_cleanly, enter_line};
use crate::prelude::*;

const ESC: &str = "\x1b";
const ENTER: &str = "\r";
const UP: &str = "\x1b[A";

/// An answer that goes on when its beginning is shown: the terminal client hangs on answers that come at once.
fn answer_in_two_parts(answer: &str) -> ScriptedStream {
    ScriptedStream::new().text(format!("{answer} begins")).wait_for_gate(answer).text(" and ends")
}

/// Waits for an answer of [`answer_in_two_parts`], and until the client takes the next line.
async fn read_answer(openclaw: &OpenClawFixture, terminal: &Pty, answer: &str) {
    terminal.wait_text(&format!("{answer} begins")).await;
    openclaw.model.open_gate(answer);
    terminal.wait_text(&format!("{answer} begins and ends")).await;
    terminal.wait_text("connected | idle").await;
}

async fn ask(openclaw: &OpenClawFixture, terminal: &mut Pty, text: &str, answer: &str) {
    openclaw.model.script(answer_in_two_parts(answer));
    enter_line(terminal, text).await;
    read_answer(openclaw, terminal, answer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_sends_stops_and_changes_settings() {
    let Some(openclaw) = OpenClawFixture::start("").await else { return };
    let mut terminal = openclaw.open_terminal().await;
    ask(&openclaw, &mut terminal, "hello", "the first answer").await;

    openclaw.model.script(ScriptedResponse::silent_mid_stream("it goes on"));
    enter_line(&mut terminal, "now stop").await;
    terminal.wait_text("it goes on").await;
    terminal.type_keys(ESC);
    terminal.wait_text("run aborted").await;
    assert_stopped_cleanly(&openclaw.wait_newest_run_ended().await);

    enter_line(&mut terminal, "/new").await;
    terminal.wait_text("new session: agent:main:tui-").await;
    enter_line(&mut terminal, "/model scripted/other").await;
    terminal.wait_text("model set to scripted/other").await;
    enter_line(&mut terminal, "/think off").await;
    terminal.wait_text("thinking set to off").await;
    enter_line(&mut terminal, "/think high").await;
    terminal.wait_text("think failed").await;
    enter_line(&mut terminal, "/verbose on").await;
    terminal.wait_text("verbose on").await;
    ask(&openclaw, &mut terminal, "which model", "another answer").await;
    let requests = openclaw.model.recorded_requests();
    assert_eq!(requests.last().unwrap().body["model"], "other");

    enter_line(&mut terminal, "/sessions").await;
    terminal.wait_text("Filter:").await;
    terminal.wait_text("hello").await;
    openclaw.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_shows_a_waiting_call_and_answers_it() {
    let (agent, tables) = ("approvals = { shell = \"ask\" }", "[approvals]\nby_own_principal = true\n");
    let Some(openclaw) = OpenClawFixture::start_with(agent, tables).await else { return };
    let mut terminal = openclaw.open_terminal().await;
    let call = |id: &str| ScriptedResponse::tool_call(id, "shell", &json!({"command": "echo ran"}));
    openclaw.model.script(call("c1")).script(answer_in_two_parts("it was allowed"));
    enter_line(&mut terminal, "run it").await;
    terminal.wait_text("main wants to run shell").await;
    terminal.type_keys(UP);
    terminal.wait_text("→ Always allow").await;
    terminal.type_keys(UP);
    terminal.wait_text("→ Allow once").await;
    terminal.type_keys(ENTER);
    terminal.wait_text("plugin approval: allowed once").await;
    read_answer(&openclaw, &terminal, "it was allowed").await;

    openclaw.model.script(call("c2")).script(answer_in_two_parts("it was denied"));
    enter_line(&mut terminal, "run it again").await;
    terminal.wait_text("main wants to run shell").await;
    let waiting = openclaw.http.get("/api/approvals").await.expect_status(200);
    let id = waiting["items"][0]["id"].as_str().unwrap();
    openclaw.http.post(&format!("/api/approvals/{id}"), &json!({"decision": "deny"})).await.expect_status(200);
    terminal.wait_text_gone("main wants to run shell").await;
    read_answer(&openclaw, &terminal, "it was denied").await;

    openclaw.model.script(call("c3")).script(answer_in_two_parts("it is always allowed"));
    enter_line(&mut terminal, "run it once more").await;
    terminal.wait_text("main wants to run shell").await;
    terminal.type_keys(UP);
    terminal.wait_text("→ Always allow").await;
    terminal.type_keys(ENTER);
    terminal.wait_text("plugin approval: always allowed").await;
    read_answer(&openclaw, &terminal, "it is always allowed").await;
    let rules = openclaw.http.get("/api/approval-rules").await.expect_status(200);
    assert_fields(&rules["items"][0], &json!({"tool": "shell", "pattern": "echo ran"}));
    openclaw.model.script(call("c4")).script(answer_in_two_parts("nobody was asked"));
    enter_line(&mut terminal, "run it again and again").await;
    read_answer(&openclaw, &terminal, "nobody was asked").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_comes_back_after_a_killed_daemon() {
    let Some(mut openclaw) = OpenClawFixture::start("").await else { return };
    let mut terminal = openclaw.open_terminal().await;
    ask(&openclaw, &mut terminal, "before", "the first answer").await;
    openclaw.wait_newest_run_ended().await;
    let (home, address) = (openclaw.daemon.home().clone(), openclaw.daemon.address().to_owned());
    openclaw.daemon.kill9().await;
    terminal.wait_text("gateway disconnected").await;
    openclaw.daemon = home.start_on(quell_exe(), &address).await;
    terminal.wait_text("reconnected").await;
    terminal.wait_text("the first answer").await;
    ask(&openclaw, &mut terminal, "after", "the second answer").await;
}
