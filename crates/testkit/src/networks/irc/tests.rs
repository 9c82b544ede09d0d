//! The server and its test users behave as other tests expect.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::test_user::parse_line;
use super::*;

#[tokio::test]
async fn people_talk_and_a_server_comes_back_on_its_port() {
    let mut server = IrcServer::start().await;
    let ann = IrcTestUser::connect(&server, "ann").await;
    ann.join("#tea").await;
    let bob = IrcTestUser::connect(&server, "bob").await;
    bob.join("#tea").await;
    ann.wait_join("bob", "#tea").await;
    ann.send_message("#tea", "milk: or: lemon?");
    assert_eq!(bob.wait_messages_from("ann", 1).await, ["milk: or: lemon?"]);

    let address = server.address();
    server.restart().await;
    assert_eq!(server.address(), address);
    let ann = IrcTestUser::connect(&server, "ann").await;
    assert!(ann.messages_from("bob").is_empty());
}

#[tokio::test]
async fn a_server_wants_its_password() {
    let server =
        IrcServer::start_with(IrcSettings { password: Some("tea".to_owned()), ..IrcSettings::default() }).await;
    assert_eq!(IrcTestUser::connect(&server, "ann").await.nick(), "ann");
    let mut stranger = TcpStream::connect(server.address()).await.unwrap();
    stranger.write_all(b"NICK eve\r\nUSER eve 0 * :eve\r\n").await.unwrap();
    let mut told = String::new();
    stranger.read_to_string(&mut told).await.unwrap();
    assert!(told.contains("Bad password"), "{told}");
}

#[test]
fn lines_are_taken_apart() {
    let line = parse_line(":ann!~a@host PRIVMSG #tea :one :two");
    assert_eq!((line.from.as_str(), line.command.as_str(), line.text.as_str()), ("ann", "PRIVMSG", "one :two"));
    assert_eq!(line.words, ["#tea"]);
    let line = parse_line(":irc.test 366 ann #tea :End of NAMES list");
    assert_eq!(line.words, ["ann", "#tea"]);
    assert_eq!(parse_line("PING irc.test").text, "irc.test");
}
