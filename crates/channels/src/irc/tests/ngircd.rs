//! Tests against a real ngircd.

use quell_testkit::networks::irc::{IrcServer, IrcSettings, IrcTestUser};

use super::*;

/// A user in the room of the account.
async fn join_as_ann(server: &IrcServer) -> IrcTestUser {
    let ann = IrcTestUser::connect(server, "Ann").await;
    ann.join("#tea").await;
    ann
}

#[tokio::test]
#[ignore = "full: ngircd"]
async fn a_nick_that_is_taken_is_taken_back_when_it_is_free() {
    let server = IrcServer::start().await;
    let ann = join_as_ann(&server).await;
    let ghost = IrcTestUser::connect(&server, "quell").await;
    ghost.join("#tea").await;
    let fixture = IrcFixture::connect(&server.address(), json!({})).await;
    assert_eq!(fixture.sink.state().accounts[0].name, "quell_");
    ann.wait_join("quell_", "#tea").await;
    ann.send_message("#tea", "quell_: are you there?");
    fixture.sink.wait_for_text("are you there?").await;

    drop(ghost);
    let state = fixture.sink.wait_for("the nick", |state| state.accounts.len() == 2).await;
    assert_eq!(state.accounts[1].name, "quell");
    ann.send_message("#tea", "quell: and now?");
    assert!(fixture.sink.wait_for_text("and now?").await.is_addressed);
}

#[tokio::test]
#[ignore = "full: ngircd"]
async fn a_long_answer_arrives_whole_in_order_and_is_no_flood() {
    let server = IrcServer::start().await;
    let ann = join_as_ann(&server).await;
    let fixture = IrcFixture::connect(&server.address(), json!({})).await;
    ann.wait_join("quell", "#tea").await;
    // Two lines more than the server accepts at once: four of full length and one that has to be split.
    let longest = fixture.irc.limits().message_format.max_length;
    let whole = |n: usize| format!("{n}{}", "x".repeat(longest - 1));
    for n in 0..4 {
        fixture.send("#tea", &whole(n)).await.unwrap();
    }
    let cut = format!("{} {}", "안녕".repeat(60), "끝".repeat(60));
    fixture.send("#tea", &cut).await.unwrap();
    let heard = ann.wait_messages_from("quell", 6).await;
    assert_eq!(heard[..4], [whole(0), whole(1), whole(2), whole(3)]);
    assert_eq!(heard[4..].concat(), cut.replace(' ', ""), "nothing was cut off on the way");
    assert!(fixture.send("#tea", "still here").await.is_ok());
    assert_eq!(ann.wait_messages_from("quell", 7).await[6], "still here");
}

#[tokio::test]
#[ignore = "full: ngircd"]
async fn a_wrong_password_is_refused_in_the_servers_words() {
    let settings = IrcSettings { password: Some("earl grey".to_owned()), ..IrcSettings::default() };
    let server = IrcServer::start_with(settings).await;
    let sink = RecordingInboundSink::new();
    let lost = irc_network(&server.address(), json!({}), Some("oolong")).listen(&sink).await;
    assert!(matches!(&lost, ListenError::Refused(why) if why.contains("Bad password")), "{lost:?}");
    assert!(!format!("{lost:?}").contains("oolong"));
    assert!(sink.state().accounts.is_empty());
    let description = irc_network(&server.address(), json!({}), Some("earl grey")).probe().await;
    assert_eq!(description.unwrap(), "nick quell on irc.test (network TestNet)");
}

#[tokio::test]
#[ignore = "full: ngircd"]
async fn a_look_says_who_it_is_and_leaves() {
    let server = IrcServer::start().await;
    let fixture = IrcFixture::connect(&server.address(), json!({})).await;
    let description = fixture.irc.probe().await.unwrap();
    assert_eq!(
        description,
        "nick quell_ on irc.test (network TestNet); the nick quell is taken, maybe by Quell itself"
    );
    // The nick is free again, and the listening connection was not disturbed.
    let ann = IrcTestUser::connect(&server, "quell_").await;
    ann.send_message("quell", "still here?");
    fixture.sink.wait_for_text("still here?").await;
    drop(server);
    assert!(fixture.irc.probe().await.unwrap_err().0.contains("cannot be reached"));
}

#[tokio::test]
#[ignore = "full: ngircd"]
async fn a_room_that_is_closed_refuses_and_an_invitation_opens_it() {
    let server = IrcServer::start().await;
    let ann = join_as_ann(&server).await;
    ann.send_raw("MODE #tea +i");
    ann.wait_for("the mode", |lines| lines.iter().any(|line| line.command == "MODE" && line.text == "+i")).await;
    ann.join("#hall").await;
    let fixture = IrcFixture::connect(&server.address(), json!({"join": ["#tea", "#hall"]})).await;
    ann.wait_join("quell", "#hall").await;
    // The server responds in order: once a message in #hall arrives, the refusal of #tea has arrived.
    ann.send_message("#hall", "quell: hello");
    fixture.sink.wait_for_text("hello").await;
    let refused = fixture.send("#tea", "let me in").await;
    assert!(matches!(&refused, Err(SendError::Refused { why }) if why.contains("#tea")), "{refused:?}");
    assert!(fixture.send("#hall", "here I am").await.is_ok(), "one room is not the other");

    ann.send_raw("INVITE quell #tea");
    ann.wait_join("quell", "#tea").await;
    ann.send_message("#tea", "quell: welcome");
    fixture.sink.wait_for_text("welcome").await;
    assert!(fixture.send("#tea", "thank you").await.is_ok());

    ann.send_raw("KICK #tea quell :enough");
    ann.send_message("#hall", "quell: sorry");
    fixture.sink.wait_for_text("sorry").await;
    let refused = fixture.send("#tea", "why?").await;
    assert!(
        matches!(&refused, Err(SendError::Refused { why }) if why.contains("kicked by Ann: enough")),
        "{refused:?}"
    );
}

#[tokio::test]
#[ignore = "full: ngircd"]
async fn a_server_whose_certificate_nobody_vouches_for_gets_no_word() {
    let server = IrcServer::start_with(IrcSettings { tls: true, ..IrcSettings::default() }).await;
    let result = irc_network(&server.tls_address(), json!({"tls": null}), Some("secret")).probe().await;
    assert!(matches!(&result, Err(NetworkError(why)) if why.contains("certificate")), "{result:?}");
    assert!(!server.output().contains("User \"quell"), "{}", server.output());
}

#[tokio::test]
#[ignore = "full: ngircd"]
async fn messages_come_and_go_over_tls() {
    let server = IrcServer::start_with(IrcSettings { tls: true, ..IrcSettings::default() }).await;
    let ann = join_as_ann(&server).await;
    let irc = irc_network(&server.tls_address(), json!({}), None);
    let stream = byte_stream::connect_trusting(&server.certificate(), "127.0.0.1", irc.account.port).await.unwrap();
    let mut fixture = IrcFixture::listen_on(irc, stream);
    ann.wait_join("quell", "#tea").await;
    ann.send_message("#tea", "quell: psst");
    fixture.sink.wait_for_text("psst").await;
    fixture.send("#tea", "nobody listens").await.unwrap();
    assert_eq!(ann.wait_messages_from("quell", 1).await, ["nobody listens"]);
    drop(server);
    assert!(matches!(fixture.tasks.join_next().await, Some(Ok(ListenError::Connection(_)))));
}
