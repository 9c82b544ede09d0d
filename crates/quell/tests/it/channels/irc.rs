//! IRC: a real server, answers line by line, stops in a room and in private, and a server that goes away and comes back.

use std::time::Instant;

use quell_testkit::model::{Behaviour, Stream};
use quell_testkit::networks::irc::{IrcLine, IrcPerson, IrcServer, IrcSettings};

use super::{CLOSED_WITHIN, House, loses, losses};
use crate::harness::Claim;

const PASSWORD: &str = "only-for-tests";
const NICK: &str = "quell";
const ROOM: &str = "#tea";
/// As ann writes herself; servers and allow-lists compare nicks without case.
const ANN: &str = "Ann";

fn channel(server: &IrcServer, more: &str) -> String {
    format!(
        "[channels.irc]\nkind = \"irc\"\nserver = \"{}\"\ntls = false\nnick = \"{NICK}\"\njoin = [\"{ROOM}\"]\n\
         token_env = \"TOKEN\"\nallow = [\"ann\", \"bob\"]\n{more}\n",
        server.address()
    )
}

async fn open(more: &str) -> (IrcServer, House) {
    let claim = Claim::shared().await;
    let settings = IrcSettings { password: Some(PASSWORD.to_owned()), ..IrcSettings::default() };
    let server = IrcServer::start_with(settings).await;
    let house = House::open(claim, &channel(&server, more), PASSWORD).await;
    (server, house)
}

/// Somebody in the room, once the agent is there too.
async fn person(server: &IrcServer, nick: &str) -> IrcPerson {
    let person = IrcPerson::connect(server, nick).await;
    person.join(ROOM).await;
    let is_agent = |line: &IrcLine| match line.command.as_str() {
        "JOIN" => line.from == NICK && line.text == ROOM,
        // RPL_NAMREPLY: operators and the like have a sign before their nick.
        "353" => line.text.split_whitespace().any(|name| name.trim_start_matches(['@', '+', '%', '&', '~']) == NICK),
        _ => false,
    };
    person.wait_for("the agent in the room", |lines| lines.iter().any(is_agent)).await;
    person
}

/// What the agent said in a room, or to a nick.
fn said(lines: &[IrcLine], target: &str) -> Vec<String> {
    let by_agent = lines.iter().filter(|line| line.command == "PRIVMSG" && line.from == NICK && line.words == [target]);
    by_agent.map(|line| line.text.clone()).collect()
}

/// Waits until the agent has said so many lines there.
async fn hears(person: &IrcPerson, target: &str, count: usize) -> Vec<String> {
    let lines = person.wait_for("lines of the agent", |lines| said(lines, target).len() >= count).await;
    said(&lines, target)
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_come_line_by_line_in_the_room_and_in_private() {
    let (server, house) = open("").await;
    let ann = person(&server, ANN).await;
    let stranger = person(&server, "eve").await;
    stranger.say(ROOM, "quell: tell me everything");
    ann.wait_for("the stranger", |lines| lines.iter().any(|line| line.from == "eve" && line.command == "PRIVMSG"))
        .await;
    ann.say(ROOM, "tea, anybody?");

    let long: Vec<String> = (0..100).map(|number| format!("leaf{number}")).collect();
    let answer = format!("First.\n\nSecond, for 한국.\n{}", long.join(" "));
    house.model.script(Behaviour::text(&answer));
    ann.say(ROOM, "QUELL: how is tea made?");
    let whole = |lines: &[IrcLine]| said(lines, ROOM).last().is_some_and(|line| line.ends_with("leaf99"));
    let lines = said(&ann.wait_for("the whole answer", whole).await, ROOM);
    assert_eq!(lines[..2], ["First.", "Second, for 한국."]);
    assert!(lines.len() > 3, "the third is too long for one line: {lines:#?}");
    assert_eq!(lines[2..].join(" "), long.join(" "), "nothing is missing, and all in its order");
    let request = house.model.request(0).arrived().await;
    let said_to_model = request.body["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap();
    assert!(said_to_model.contains("channel=irc, reply_target=#tea, sender=ann"), "{said_to_model}");
    assert!(said_to_model.ends_with("how is tea made?"), "{said_to_model}");

    house.model.script(Behaviour::text("Hello, you."));
    ann.say(NICK, "hello");
    assert_eq!(hears(&ann, ANN, 1).await, ["Hello, you."]);
    let request = house.model.request(1).arrived().await;
    assert!(!request.body.to_string().contains("how is tea made?"), "the room is another conversation");
    assert_eq!(said(&ann.lines(), ROOM), lines, "what is private is said in private");
    assert_eq!(house.model.request_count(), 2, "nobody else was answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_the_run_with_and_without_the_nick_and_nobody_elses() {
    let (server, house) = open("").await;
    let (ann, bob) = (person(&server, ANN).await, person(&server, "bob").await);
    for (number, (target, heard_in, stop)) in [(ROOM, ROOM, "stop"), (NICK, ANN, "/stop")].into_iter().enumerate() {
        house.model.script(Behaviour::silent_mid_stream("I have begun"));
        ann.say(target, "quell: write a book");
        house.model.request(number).streaming().await;
        let begun = Instant::now();
        ann.say(target, stop);
        let left = house.model.request(number).client_left().await;
        assert!(left - begun < CLOSED_WITHIN, "{stop}: {:?}", left - begun);
        let lines = hears(&ann, heard_in, 2).await;
        assert_eq!(lines[0], "Stopping your request.");
        assert!(lines[1].starts_with("⏹ stopped in") && lines[1].contains("history valid"), "{lines:#?}");
        assert_eq!(lines.len(), 2, "{lines:#?}");
    }

    // Who stops what is not theirs is told so, and the run goes on.
    house.model.script(Stream::new().text("Here ").wait_for("more").text("it is."));
    ann.say(ROOM, "quell: and a poem?");
    house.model.request(2).streaming().await;
    bob.say(ROOM, "quell: stop");
    assert_eq!(hears(&bob, ROOM, 3).await[2], "Nothing of yours is running here.");
    house.model.open_gate("more");
    assert_eq!(hears(&ann, ROOM, 4).await[3], "Here it is.");
    house.model.assert_histories_valid();
    let request = house.model.request(2).arrived().await;
    assert!(request.body.to_string().contains("was stopped on purpose by the user"), "{}", request.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_takes_back_what_has_not_gone_yet() {
    let (server, house) = open("").await;
    let ann = person(&server, ANN).await;
    // More than a server takes at once: the rest goes slowly.
    let answer: Vec<String> = (0..30).map(|number| format!("verse {number}")).collect();
    house.model.script(Behaviour::text(answer.join("\n")));
    ann.say(ROOM, "quell: a poem");
    hears(&ann, ROOM, 1).await;
    ann.say(ROOM, "stop");
    let stopped = |lines: &[IrcLine]| said(lines, ROOM).iter().any(|line| line.starts_with("⏹ stopped in"));
    let lines = said(&ann.wait_for("the receipt", stopped).await, ROOM);
    let gone = lines.len() - 2;
    assert!(gone < answer.len(), "{lines:#?}");
    assert_eq!(lines[..gone], answer[..gone], "what has gone stands there in its order");
    assert_eq!(lines[gone], "Stopping your request.");
    house.model.script(Behaviour::text("Prose, then."));
    ann.say(ROOM, "quell: and now?");
    assert_eq!(hears(&ann, ROOM, lines.len() + 1).await[lines.len()..], ["Prose, then."]);
    house.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_message_interrupts() {
    let (server, house) = open("interrupt_on_new_message = true").await;
    let ann = person(&server, ANN).await;
    house.model.script(Behaviour::silent_mid_stream("Black tea is"));
    ann.say(ROOM, "quell: tell me of tea");
    house.model.request(0).streaming().await;
    house.model.script(Behaviour::text("Coffee it is."));
    ann.say(ROOM, "quell: coffee, I mean");
    house.model.request(0).client_left().await;
    assert_eq!(hears(&ann, ROOM, 1).await, ["Coffee it is."]);
    house.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_back_is_found_and_each_question_is_answered_once() {
    let (mut server, house) = open("").await;
    let ann = person(&server, ANN).await;
    house.model.script(Behaviour::text("One."));
    ann.say(ROOM, "quell: first");
    assert_eq!(hears(&ann, ROOM, 1).await, ["One."]);

    // Nothing runs.
    server.restart().await;
    let ann = person(&server, ANN).await;
    house.model.script(Stream::new().text("Two ").wait_for("two").text("and a half."));
    ann.say(ROOM, "quell: second");
    house.model.request(1).streaming().await;

    // An answer is being made, and is ready when the server is back.
    server.restart().await;
    let ann = person(&server, ANN).await;
    house.model.open_gate("two");
    assert_eq!(hears(&ann, ROOM, 1).await, ["Two and a half."]);

    // An answer is ready while the server is away.
    house.model.script(Stream::new().text("Three ").wait_for("three").text("at last."));
    ann.say(ROOM, "quell: third");
    house.model.request(2).streaming().await;
    let before = losses(&house);
    server.kill();
    loses(&house, before).await;
    house.model.open_gate("three");
    house.model.request(2).finished().await;
    server.restart().await;
    let ann = person(&server, ANN).await;
    assert_eq!(hears(&ann, ROOM, 1).await, ["Three at last."]);
    house.model.script(Behaviour::text("Four."));
    ann.say(ROOM, "quell: fourth");
    assert_eq!(hears(&ann, ROOM, 2).await, ["Three at last.", "Four."]);
    assert_eq!(house.model.request_count(), 4);
}
