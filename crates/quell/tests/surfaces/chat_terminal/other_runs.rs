//! Runs, approvals and sub-agents started elsewhere are shown, answered and stopped in the chat.

use super::{CTRL_C, ChatFixture, ENTER, ESC};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_this_session_that_was_sent_over_http_is_seen_and_stopped() {
    let mut fixture = ChatFixture::start().await;
    fixture.model.script(ScriptedStream::new().text("for somebody else").wait_for_gate("never"));
    fixture.daemon.api().send_message("s", "from elsewhere").await;
    fixture.chat.wait_text("› from elsewhere").await;
    fixture.chat.wait_text("for somebody else").await;
    fixture.type_until(ESC, "Execution paused").await;
    fixture.model.request_at(0).wait_client_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_another_session_is_picked_attached_to_and_stopped() {
    let mut fixture = ChatFixture::start().await;
    fixture.model.script(ScriptedStream::new().text("far away").wait_for_gate("never"));
    fixture.daemon.api().send_message("other", "a task of others").await;
    fixture.model.request_at(0).wait_paused().await;
    fixture.send_until("/runs", "▸ a task of others").await;
    fixture.type_until(ENTER, "far away").await;
    let shown = fixture.chat.snapshot().rows();
    assert!(shown[0].starts_with("other · main"), "{shown:?}");
    fixture.type_until(ESC, "Execution paused").await;
    // With Del it is stopped on the list, without going there.
    fixture.model.script(ScriptedStream::new().text("farther").wait_for_gate("never"));
    fixture.daemon.api().send_message("third", "the next task").await;
    fixture.model.request_at(1).wait_paused().await;
    fixture.send_until("/runs", "▸ the next task").await;
    fixture.type_until("\x1b[3~", "nothing runs").await;
    fixture.model.request_at(1).wait_client_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_is_shown_in_full_and_answered_in_place() {
    let mut fixture = ChatFixture::start_with("approvals.shell = \"ask\"\n", &["--session", "s"]).await;
    let command = format!("echo {}; : the-very-end", "long ".repeat(40));
    fixture.model.script(shell_call(command)).script(ScriptedResponse::text("It ran."));
    fixture.send_until("run it", "shell asks whether it may run, for agent main").await;
    let shown = fixture.chat.wait_text("the-very-end").await.text();
    assert!(shown.contains("command: echo long long"), "{shown}");
    fixture.chat.wait_text("y allow").await;
    fixture.type_until("y", "It ran.").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn typing_does_not_approve_a_call_by_accident() {
    let mut fixture = ChatFixture::start_with("approvals.shell = \"ask\"\n", &["--session", "s"]).await;
    let marker = ProcessMarker::new();
    let command = commands::setsid_child(&marker);
    fixture.model.script(shell_call(command)).script(ScriptedResponse::text("Then not."));
    fixture.send_line("run it");
    fixture.type_until("ye", "asks whether it may run").await;
    fixture.type_until("yes", "› yeyes").await;
    fixture.chat.wait_text("/approve · /deny").await;
    fixture.type_until(CTRL_C, "n deny").await;
    fixture.type_until("n", "Then not.").await;
    fixture.chat.wait_text("denied").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sub_agent_is_a_line_of_its_own_while_it_works() {
    let more = "[agents.scout]\nmodel = \"scripted/m\"\nparent = \"main\"\n";
    let mut fixture = ChatFixture::start_with(more, &["--session", "s", "--agent", "main"]).await;
    let start = json!({"agent": "scout", "prompt": "look around", "wait": true});
    fixture.model.script(ScriptedResponse::tool_call("c1", "spawn_agent", &start));
    fixture.model.script(ScriptedStream::new().text("I look").wait_for_gate("never"));
    fixture.send_until("send a scout", "└ scout  waiting for the model").await;
    fixture.type_until(ESC, "1 sub-run stopped").await;
    fixture.model.request_at(1).wait_client_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_is_shown_and_lifted() {
    let mut fixture = ChatFixture::start().await;
    fixture.send_until("/hold on", "⚑ hold").await;
    fixture.send_until("hello", "not sent, the text is back in the input").await;
    fixture.chat.wait_text("› hello").await;
    fixture.chat.type_keys(CTRL_C);
    fixture.send_line("/hold off");
    fixture.chat.wait_text_gone("⚑ hold").await;
    fixture.model.script(ScriptedResponse::text("Here I am."));
    fixture.type_until("\x1b[A\x1b[A", "› hello").await;
    fixture.type_until(ENTER, "Here I am.").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_model_answers_from_the_next_run_on() {
    let mut fixture = ChatFixture::start().await;
    fixture.send_until("/model scripted/other", "s · main · scripted/other").await;
    fixture.model.script(ScriptedResponse::text("As the other."));
    fixture.send_until("who are you?", "As the other.").await;
    assert_eq!(fixture.model.request_at(0).wait_arrived().await.body["model"], "other");
    fixture.send_until("/model nowhere/none", "▲ ").await;
    let shown = fixture.chat.snapshot().rows();
    assert!(shown[0].starts_with("s · main · scripted/other"), "{shown:?}");
}
