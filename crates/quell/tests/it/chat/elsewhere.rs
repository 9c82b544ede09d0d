//! Runs that were started elsewhere, approvals, sub-agents: seen here, answered here, stopped here.

use quell_testkit::commands::{self, Marker};
use quell_testkit::model::{Behaviour, Stream};
use serde_json::json;

use super::{ENTER, ESC, Table};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_this_session_that_was_sent_over_http_is_seen_and_stopped() {
    let mut table = Table::set().await;
    table.model.script(Stream::new().text("for somebody else").wait_for("never"));
    let body = json!({"text": "from elsewhere"});
    let _ = table.daemon.http().post("/api/sessions/s/runs", &body).await.expect_status(202);
    table.chat.shows("› from elsewhere").await;
    table.chat.shows("for somebody else").await;
    table.chat.keys(ESC);
    table.chat.shows("Execution paused").await;
    table.model.request(0).client_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_another_session_is_picked_attached_to_and_stopped() {
    let mut table = Table::set().await;
    table.model.script(Stream::new().text("far away").wait_for("never"));
    let body = json!({"text": "a task of others"});
    let _ = table.daemon.http().post("/api/sessions/other/runs", &body).await.expect_status(202);
    table.model.request(0).resting().await;
    table.say("/runs");
    table.chat.shows("▸ a task of others").await;
    table.chat.keys(ENTER);
    table.chat.shows("far away").await;
    let shown = table.chat.now().rows();
    assert!(shown[0].starts_with("other · main"), "{shown:?}");
    table.chat.keys(ESC);
    table.chat.shows("Execution paused").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_stopped_from_the_list_without_going_there() {
    let mut table = Table::set().await;
    table.model.script(Stream::new().text("far away").wait_for("never"));
    let body = json!({"text": "a task of others"});
    let _ = table.daemon.http().post("/api/sessions/other/runs", &body).await.expect_status(202);
    table.model.request(0).resting().await;
    table.say("/runs");
    table.chat.shows("▸ a task of others").await;
    table.chat.keys("\x1b[3~");
    table.model.request(0).client_left().await;
    table.chat.shows("nothing runs").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_is_shown_in_full_and_answered_in_place() {
    let mut table = Table::with("approvals.shell = \"ask\"\n", &["--session", "s"]).await;
    let command = format!("echo {}; : the-very-end", "long ".repeat(40));
    table.model.script(Behaviour::tool_call("c1", "shell", &json!({"command": command})));
    table.model.script(Behaviour::text("It ran."));
    table.say("run it");
    table.chat.shows("shell asks whether it may run, for agent main").await;
    let shown = table.chat.shows("the-very-end").await.text();
    assert!(shown.contains("command: echo long long"), "{shown}");
    table.chat.shows("y allow").await;
    table.chat.keys("y");
    table.chat.shows("It ran.").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_types_does_not_allow_by_accident() {
    let mut table = Table::with("approvals.shell = \"ask\"\n", &["--session", "s"]).await;
    let mark = Marker::new();
    let command = commands::setsid_child(&mark);
    table.model.script(Behaviour::tool_call("c1", "shell", &json!({"command": command})));
    table.model.script(Behaviour::text("Then not."));
    table.say("run it");
    table.chat.keys("ye");
    table.chat.shows("asks whether it may run").await;
    table.chat.keys("yes");
    table.chat.shows("› yeyes").await;
    table.chat.shows("/approve · /deny").await;
    table.chat.keys(super::CTRL_C);
    table.chat.shows("n deny").await;
    table.chat.keys("n");
    table.chat.shows("Then not.").await;
    table.chat.shows("denied").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sub_agent_is_a_line_of_its_own_while_it_works() {
    let more = "[agents.scout]\nmodel = \"scripted/m\"\nparent = \"main\"\n";
    let mut table = Table::with(more, &["--session", "s", "--agent", "main"]).await;
    let start = json!({"agent": "scout", "prompt": "look around", "wait": true});
    table.model.script(Behaviour::tool_call("c1", "spawn_agent", &start));
    table.model.script(Stream::new().text("I look").wait_for("never"));
    table.say("send a scout");
    table.chat.shows("└ scout  waiting for the model").await;
    table.chat.keys(ESC);
    table.chat.shows("1 sub-run stopped").await;
    table.model.request(1).client_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_is_shown_and_lifted() {
    let mut table = Table::set().await;
    table.say("/hold on");
    table.chat.shows("⚑ hold").await;
    table.say("hello");
    table.chat.shows("not sent, the text is back in the input").await;
    table.chat.shows("› hello").await;
    table.chat.keys(super::CTRL_C);
    table.say("/hold off");
    table.chat.hides("⚑ hold").await;
    table.model.script(Behaviour::text("Here I am."));
    table.chat.keys("\x1b[A\x1b[A");
    table.chat.shows("› hello").await;
    table.chat.keys(ENTER);
    table.chat.shows("Here I am.").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_model_answers_from_the_next_run_on() {
    let mut table = Table::set().await;
    table.say("/model scripted/other");
    table.chat.shows("s · main · scripted/other").await;
    table.model.script(Behaviour::text("As the other."));
    table.say("who are you?");
    table.chat.shows("As the other.").await;
    let request = table.model.request(0).arrived().await;
    assert_eq!(request.body["model"], "other");
    table.say("/model nowhere/none");
    table.chat.shows("▲ ").await;
    let shown = table.chat.now().rows();
    assert!(shown[0].starts_with("s · main · scripted/other"), "{shown:?}");
}
