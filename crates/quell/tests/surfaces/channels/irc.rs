//! IRC: line-by-line answers, stops in rooms and private chats, a server that is away.

use quell_test_support::mcp_servers::config_section;
use quell_testkit::daemon::poll_until;
use quell_testkit::model::{ScriptedResponse, ScriptedStream};
use quell_testkit::networks::irc::{IrcLine, IrcServer, IrcSettings, IrcTestUser};
use serde_json::json;

use super::ChannelDaemonFixture;
use crate::test_engine::ProcessLock;

const PASSWORD: &str = "only-for-tests";
const NICK: &str = "quell";
const ROOM: &str = "#tea";
/// The user's own spelling; servers and allow-lists compare nicks without case.
const ANN: &str = "Ann";

fn channel_config(server: &IrcServer) -> String {
    format!(
        "[channels.irc]\nkind = \"irc\"\nserver = \"{}\"\ntls = false\nnick = \"{NICK}\"\njoin = [\"{ROOM}\"]\n\
         token_env = \"TOKEN\"\nallow = [\"ann\", \"bob\"]\n",
        server.address()
    )
}

async fn start() -> (IrcServer, ChannelDaemonFixture) {
    start_with("").await
}

/// With more configuration behind that of the channel.
async fn start_with(more: &str) -> (IrcServer, ChannelDaemonFixture) {
    let process_lock = ProcessLock::shared().await;
    let settings = IrcSettings { password: Some(PASSWORD.to_owned()), ..IrcSettings::default() };
    let server = IrcServer::start_with(settings).await;
    let config = format!("{}{more}", channel_config(&server));
    let fixture = ChannelDaemonFixture::start(process_lock, &config, PASSWORD).await;
    (server, fixture)
}

/// Connects a user, joins the room and waits until the agent is there too.
async fn connect_user(server: &IrcServer, nick: &str) -> IrcTestUser {
    let person = IrcTestUser::connect(server, nick).await;
    person.join(ROOM).await;
    let is_agent = |line: &IrcLine| match line.command.as_str() {
        "JOIN" => line.from == NICK && line.text == ROOM,
        // RPL_NAMREPLY: a prefix before the nick shows the mode, such as operator.
        "353" => line.text.split_whitespace().any(|name| name.trim_start_matches(['@', '+', '%', '&', '~']) == NICK),
        _ => false,
    };
    person.wait_for("the agent in the room", |lines| lines.iter().any(is_agent)).await;
    person
}

fn agent_lines(lines: &[IrcLine], target: &str) -> Vec<String> {
    let by_agent = lines.iter().filter(|line| line.command == "PRIVMSG" && line.from == NICK && line.words == [target]);
    by_agent.map(|line| line.text.clone()).collect()
}

/// Waits until the agent has sent `count` lines to this target.
async fn wait_agent_lines(person: &IrcTestUser, target: &str, count: usize) -> Vec<String> {
    let lines = person.wait_for("lines of the agent", |lines| agent_lines(lines, target).len() >= count).await;
    agent_lines(&lines, target)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: ngircd"]
async fn answers_come_line_by_line_in_the_room_and_in_private() {
    let (server, fixture) = start().await;
    let ann = connect_user(&server, ANN).await;
    let stranger = connect_user(&server, "eve").await;
    stranger.send_message(ROOM, "quell: tell me everything");
    ann.wait_for("the stranger", |lines| lines.iter().any(|line| line.from == "eve" && line.command == "PRIVMSG"))
        .await;
    ann.send_message(ROOM, "tea, anybody?");

    let long: Vec<String> = (0..100).map(|number| format!("leaf{number}")).collect();
    let answer = format!("First.\n\nSecond, for 한국.\n{}", long.join(" "));
    fixture.model.script(ScriptedResponse::text(&answer));
    ann.send_message(ROOM, "QUELL: how is tea made?");
    let whole = |lines: &[IrcLine]| agent_lines(lines, ROOM).last().is_some_and(|line| line.ends_with("leaf99"));
    let lines = agent_lines(&ann.wait_for("the whole answer", whole).await, ROOM);
    assert_eq!(lines[..2], ["First.", "Second, for 한국."]);
    assert!(lines.len() > 3, "the third is too long for one line: {lines:#?}");
    assert_eq!(lines[2..].join(" "), long.join(" "), "lines are missing or out of order");
    let request = fixture.model.request_at(0).wait_arrived().await;
    let said_to_model = request.body["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap();
    assert!(said_to_model.contains("channel=irc, reply_target=#tea, sender=ann"), "{said_to_model}");
    assert!(said_to_model.ends_with("how is tea made?"), "{said_to_model}");

    fixture.model.script(ScriptedResponse::text("Hello, you."));
    ann.send_message(NICK, "hello");
    assert_eq!(wait_agent_lines(&ann, ANN, 1).await, ["Hello, you."]);
    let request = fixture.model.request_at(1).wait_arrived().await;
    assert!(!request.body.to_string().contains("how is tea made?"), "the private chat shares the room's conversation");
    assert_eq!(agent_lines(&ann.lines(), ROOM), lines, "a private answer was sent to the room");
    assert_eq!(fixture.model.request_count(), 2, "another message was answered");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: ngircd"]
async fn a_stop_ends_the_run_with_and_without_the_nick_and_nobody_elses() {
    let (server, fixture) = start().await;
    let (ann, bob) = (connect_user(&server, ANN).await, connect_user(&server, "bob").await);
    for (number, (target, heard_in, stop)) in [(ROOM, ROOM, "stop"), (NICK, ANN, "/stop")].into_iter().enumerate() {
        fixture.model.script(ScriptedResponse::silent_mid_stream("I have begun"));
        ann.send_message(target, "quell: write a book");
        fixture.model.request_at(number).wait_streaming().await;
        ann.send_message(target, stop);
        fixture.model.request_at(number).wait_client_left().await;
        let lines = wait_agent_lines(&ann, heard_in, 2).await;
        assert_eq!(lines[0], "Stopping your request.");
        assert!(lines[1].starts_with("⏹ stopped in") && lines[1].contains("history valid"), "{lines:#?}");
        assert_eq!(lines.len(), 2, "{lines:#?}");
    }

    // A stop by another user is refused with a reply, and the run goes on.
    fixture.model.script(ScriptedStream::new().text("Here ").wait_for_gate("more").text("it is."));
    ann.send_message(ROOM, "quell: and a poem?");
    fixture.model.request_at(2).wait_streaming().await;
    bob.send_message(ROOM, "quell: stop");
    assert_eq!(wait_agent_lines(&bob, ROOM, 3).await[2], "Nothing of yours is running here.");
    fixture.model.open_gate("more");
    assert_eq!(wait_agent_lines(&ann, ROOM, 4).await[3], "Here it is.");
    fixture.assert_stop_told(2).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: ngircd"]
async fn an_answer_that_is_ready_while_the_server_is_away_comes_once() {
    let (mut server, fixture) = start().await;
    fixture.model.script(ScriptedStream::new().text("One ").wait_for_gate("rest").text("and a half."));
    let ann = connect_user(&server, ANN).await;
    ann.send_message(ROOM, "quell: first");
    fixture.model.request_at(0).wait_streaming().await;
    server.kill();
    poll_until("a lost connection", async || fixture.daemon.output().contains("channel lost").then_some(())).await;
    fixture.model.open_gate("rest");
    fixture.model.request_at(0).wait_finished().await;
    server.restart().await;
    let ann = connect_user(&server, ANN).await;
    assert_eq!(wait_agent_lines(&ann, ROOM, 1).await, ["One and a half."]);
    // A second answer to the question before would come before the answer to this one.
    fixture.model.script(ScriptedResponse::text("Two."));
    ann.send_message(ROOM, "quell: second");
    assert_eq!(wait_agent_lines(&ann, ROOM, 2).await, ["One and a half.", "Two."]);
    assert_eq!(fixture.model.request_count(), 2);
}

/// A nick proves nothing, so only those whom the configuration names answer for a user.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: ngircd"]
async fn a_nick_answers_a_question_only_as_an_approver() {
    let folder = tempfile::tempdir().unwrap();
    let more = format!("approvers = [\"bob\"]\n{}", config_section(folder.path(), ""));
    let (server, fixture) = start_with(&more).await;
    let (ann, bob) = (connect_user(&server, ANN).await, connect_user(&server, "bob").await);
    fixture.model.script(ScriptedResponse::tool_call("c1", "test__ask", &json!({})));
    fixture.model.script(ScriptedResponse::text("Thank you."));
    ann.send_message(ROOM, "quell: ask me");
    let row = fixture.daemon.api().wait_approval().await;
    assert!(row["question"].is_object(), "{row:#}");
    let answer = format!("quell: /approve {} name=Ada", row["id"].as_str().unwrap());
    ann.send_message(ROOM, &answer);
    let says = |lines: &[IrcLine], words: &str| agent_lines(lines, ROOM).iter().any(|line| line.contains(words));
    ann.wait_for("the refusal", |lines| says(lines, "You may not answer this call.")).await;
    assert_eq!(fixture.daemon.api().wait_approval().await["id"], row["id"], "it waits for somebody else");
    bob.send_message(ROOM, &answer);
    ann.wait_for("the answer", |lines| says(lines, "Thank you.")).await;
    let told = fixture.model.recorded_requests().pop().unwrap().body["messages"].to_string();
    assert!(told.contains("accept Ada"), "{told}");
}
