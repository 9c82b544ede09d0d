//! Against a real ngircd.

use std::collections::BTreeSet;
use std::pin::pin;

use futures_util::poll;
use quell_testkit::networks::irc::{IrcPerson, IrcServer, IrcSettings};

use super::*;

/// Somebody in the room with the account.
async fn ann(server: &IrcServer) -> IrcPerson {
    let ann = IrcPerson::connect(server, "Ann").await;
    ann.join("#tea").await;
    ann
}

#[tokio::test]
async fn messages_come_and_go() {
    let server = IrcServer::start().await;
    let ann = ann(&server).await;
    let listener = Listener::connected(&server.address(), json!({})).await;
    ann.sees_join("quell", "#tea").await;
    assert_eq!(
        listener.ear.state().connected[0],
        crate::channels::seam::Own { id: "quell".into(), name: "quell".into() }
    );

    ann.say("#tea", "QUELL: hello");
    let heard = listener.hears("hello").await;
    assert_eq!((heard.sender.as_str(), heard.sender_name.as_deref()), ("ann", Some("Ann")));
    assert!(heard.addressed && heard.group);
    assert!(listener.send(&heard.place.target, "good day").await.is_ok());
    assert_eq!(ann.hears("quell", 1).await, ["good day"]);

    ann.say("quell", "in private");
    let private = listener.hears("in private").await;
    assert!(private.addressed && !private.group);
    assert!(listener.send(&private.place.target, "to you alone").await.is_ok());
    assert_eq!(ann.hears("quell", 2).await[1], "to you alone");
    assert!(ann.lines().iter().any(|line| line.text == "to you alone" && line.words == ["Ann"]));
}

#[tokio::test]
async fn a_stop_word_is_heard_without_the_nick() {
    let server = IrcServer::start().await;
    let ann = ann(&server).await;
    let listener = Listener::connected(&server.address(), json!({})).await;
    ann.sees_join("quell", "#tea").await;
    ann.raw("NOTICE #tea :quell: a notice");
    ann.say("#tea", "\u{1}VERSION\u{1}");
    ann.say("#tea", "tea, anybody?");
    ann.say("#tea", "\u{2}stop\u{2}");
    ann.say("#tea", "quell, stop");
    let state = listener.ear.wait_for("all lines", |state| state.heard.len() == 3).await;
    let heard: Vec<(&str, bool)> = state.heard.iter().map(|heard| (heard.text.as_str(), heard.addressed)).collect();
    assert_eq!(heard, [("tea, anybody?", false), ("stop", false), ("stop", true)]);
    let ids: BTreeSet<&str> = state.heard.iter().map(|heard| heard.id.as_str()).collect();
    assert_eq!(ids.len(), 3, "each has an id of its own");
}

#[tokio::test]
async fn a_nick_that_is_taken_is_taken_back_when_it_is_free() {
    let server = IrcServer::start().await;
    let ann = ann(&server).await;
    let ghost = IrcPerson::connect(&server, "quell").await;
    ghost.join("#tea").await;
    let listener = Listener::connected(&server.address(), json!({})).await;
    assert_eq!(listener.ear.state().connected[0].name, "quell_");
    ann.sees_join("quell_", "#tea").await;
    ann.say("#tea", "quell_: are you there?");
    listener.hears("are you there?").await;

    drop(ghost);
    let state = listener.ear.wait_for("the nick", |state| state.connected.len() == 2).await;
    assert_eq!(state.connected[1].name, "quell");
    ann.say("#tea", "quell: and now?");
    assert!(listener.hears("and now?").await.addressed);
}

#[tokio::test]
async fn a_long_answer_arrives_whole_in_order_and_is_no_flood() {
    let server = IrcServer::start().await;
    let ann = ann(&server).await;
    let listener = Listener::connected(&server.address(), json!({})).await;
    ann.sees_join("quell", "#tea").await;
    // Two lines more than the server takes at once, the longest that fit and one that has to be cut.
    let longest = listener.irc.manners().form.longest;
    let whole = |n: usize| format!("{n}{}", "x".repeat(longest - 1));
    for n in 0..4 {
        listener.send("#tea", &whole(n)).await.unwrap();
    }
    let cut = format!("{} {}", "안녕".repeat(60), "끝".repeat(60));
    listener.send("#tea", &cut).await.unwrap();
    let heard = ann.hears("quell", 6).await;
    assert_eq!(heard[..4], [whole(0), whole(1), whole(2), whole(3)]);
    assert_eq!(heard[4..].concat(), cut.replace(' ', ""), "nothing was cut off on the way");
    assert!(listener.send("#tea", "still here").await.is_ok());
    assert_eq!(ann.hears("quell", 7).await[6], "still here");
}

#[tokio::test]
async fn a_send_that_is_dropped_leaves_no_line() {
    let server = IrcServer::start().await;
    let ann = ann(&server).await;
    let listener = Listener::connected(&server.address(), json!({})).await;
    ann.sees_join("quell", "#tea").await;
    // With the line that enters the room it is what the server takes at once.
    for n in 0..4 {
        listener.send("#tea", &format!("{n}")).await.unwrap();
    }
    {
        let mut stopped = pin!(listener.send("#tea", "not to be said"));
        assert!(poll!(&mut stopped).is_pending(), "it waits for its turn");
    }
    listener.send("#tea", "last").await.unwrap();
    assert_eq!(ann.hears("quell", 5).await, ["0", "1", "2", "3", "last"]);
}

#[tokio::test]
async fn a_server_that_comes_back_is_found_again() {
    let mut server = IrcServer::start().await;
    let mut listener = Listener::connected(&server.address(), json!({})).await;
    let early = ann(&server).await;
    early.say("quell", "before");
    listener.hears("before").await;

    server.kill();
    assert!(matches!(listener.lost().await, Lost::Connection(_)));
    let sent = listener.send("#tea", "into the void").await;
    assert!(matches!(sent, Err(NotSent::Undelivered { after: Some(_), .. })), "{sent:?}");
    let lost = listener.irc.listen(listener.ear.as_ref()).await;
    assert!(matches!(&lost, Lost::Connection(why) if why.contains("cannot be reached")), "{lost:?}");

    server.restart().await;
    listener.listen().await;
    let ann = ann(&server).await;
    ann.say("quell", "after");
    listener.hears("after").await;
    assert!(listener.send("#tea", "back again").await.is_ok());
    assert_eq!(ann.hears("quell", 1).await, ["back again"]);
    let state = listener.ear.state();
    assert_eq!(state.texts(), ["before", "after"]);
    assert_ne!(state.heard[0].id, state.heard[1].id);
}

#[tokio::test]
async fn a_wrong_password_is_refused_in_the_servers_words() {
    let settings = IrcSettings { password: Some("earl grey".to_owned()), ..IrcSettings::default() };
    let server = IrcServer::start_with(settings).await;
    let ear = RecordingEar::new();
    let lost = irc(&server.address(), json!({}), Some("oolong")).listen(&ear).await;
    assert!(matches!(&lost, Lost::Refused(why) if why.contains("Bad password")), "{lost:?}");
    assert!(!format!("{lost:?}").contains("oolong"));
    assert!(ear.state().connected.is_empty());
    let told = irc(&server.address(), json!({}), Some("earl grey")).probe().await;
    assert_eq!(told.unwrap(), "nick quell on irc.test (network TestNet)");
}

#[tokio::test]
async fn a_look_says_who_it_is_and_leaves() {
    let server = IrcServer::start().await;
    let listener = Listener::connected(&server.address(), json!({})).await;
    let told = listener.irc.probe().await.unwrap();
    assert_eq!(told, "nick quell_ on irc.test (network TestNet); the nick quell is taken, maybe by Quell itself");
    // The nick is free again, and the connection that listens was left alone.
    let ann = IrcPerson::connect(&server, "quell_").await;
    ann.say("quell", "still here?");
    listener.hears("still here?").await;
    drop(server);
    assert!(listener.irc.probe().await.unwrap_err().0.contains("cannot be reached"));
}

#[tokio::test]
async fn a_room_that_is_closed_refuses_and_an_invitation_opens_it() {
    let server = IrcServer::start().await;
    let ann = ann(&server).await;
    ann.raw("MODE #tea +i");
    ann.wait_for("the mode", |lines| lines.iter().any(|line| line.command == "MODE" && line.text == "+i")).await;
    ann.join("#hall").await;
    let listener = Listener::connected(&server.address(), json!({"join": ["#tea", "#hall"]})).await;
    ann.sees_join("quell", "#hall").await;
    // The server answers in order: who hears something in the hall has been told of the room.
    ann.say("#hall", "quell: hello");
    listener.hears("hello").await;
    let refused = listener.send("#tea", "let me in").await;
    assert!(matches!(&refused, Err(NotSent::Refused { why }) if why.contains("#tea")), "{refused:?}");
    assert!(listener.send("#hall", "here I am").await.is_ok(), "one room is not the other");

    ann.raw("INVITE quell #tea");
    ann.sees_join("quell", "#tea").await;
    ann.say("#tea", "quell: welcome");
    listener.hears("welcome").await;
    assert!(listener.send("#tea", "thank you").await.is_ok());

    ann.raw("KICK #tea quell :enough");
    ann.say("#hall", "quell: sorry");
    listener.hears("sorry").await;
    let refused = listener.send("#tea", "why?").await;
    assert!(matches!(&refused, Err(NotSent::Refused { why }) if why.contains("kicked by Ann: enough")), "{refused:?}");
}

#[tokio::test]
async fn a_server_whose_certificate_nobody_vouches_for_gets_no_word() {
    let server = IrcServer::start_with(IrcSettings { tls: true, ..IrcSettings::default() }).await;
    let told = irc(&server.tls_address(), json!({"tls": null}), Some("secret")).probe().await;
    assert!(matches!(&told, Err(Trouble(why)) if why.contains("certificate")), "{told:?}");
    assert!(!server.output().contains("User \"quell"), "{}", server.output());
}

#[tokio::test]
async fn messages_come_and_go_over_tls() {
    let server = IrcServer::start_with(IrcSettings { tls: true, ..IrcSettings::default() }).await;
    let ann = ann(&server).await;
    let irc = Arc::new(irc(&server.tls_address(), json!({}), None));
    let stream = stream::connect_trusting(&server.certificate(), "127.0.0.1", irc.account.port).await.unwrap();
    let (ear, mut tasks) = (Arc::new(RecordingEar::new()), JoinSet::new());
    let (listening, hearing) = (Arc::clone(&irc), Arc::clone(&ear));
    tasks.spawn(
        async move { connection::listen(&listening.account, &listening.outbox, stream, hearing.as_ref()).await },
    );
    ann.sees_join("quell", "#tea").await;
    ann.say("#tea", "quell: psst");
    ear.wait_for("a line", |state| state.texts() == ["psst"]).await;
    irc.send(&place("#tea"), &piece("nobody listens"), "key").await.unwrap();
    assert_eq!(ann.hears("quell", 1).await, ["nobody listens"]);
    drop(server);
    assert!(matches!(tasks.join_next().await, Some(Ok(Lost::Connection(_)))));
}
