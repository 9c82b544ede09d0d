//! Tests against an in-memory server with a paused clock: behaviour that a real server seldom shows.

use std::pin::pin;

use futures_util::poll;
use tokio::io::{
    AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf, duplex, split,
};
use tokio::time::Instant;

use super::*;

/// A server whose lines the test writes, and the account that is connected to it.
struct ScriptedIrcServer {
    client_lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
    fixture: IrcFixture,
}

impl ScriptedIrcServer {
    /// Accepts a connection with this buffer size in bytes.
    fn accept(irc: IrcNetwork, buffer: usize) -> Self {
        let (server, client) = duplex(buffer);
        let (reader, writer) = split(server);
        Self {
            client_lines: BufReader::new(reader).lines(),
            writer,
            fixture: IrcFixture::listen_on(irc, Box::new(client)),
        }
    }

    /// Accepts a connection and welcomes the account, which has no room.
    async fn accept_and_welcome(buffer: usize) -> Self {
        let mut server = Self::accept(irc_network("irc.test:6667", json!({"join": []}), None), buffer);
        server.read_until("USER quell 0 * :Quell, a gateway for agents").await;
        server.send_line(":irc.test 001 quell :welcome").await;
        server.fixture.sink.wait_for("the welcome", |state| !state.accounts.is_empty()).await;
        server
    }

    async fn send_line(&mut self, line: &str) {
        self.send_bytes(format!("{line}\r\n").as_bytes()).await;
    }

    async fn send_bytes(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).await.unwrap();
    }

    /// Reads up to and including this line.
    async fn read_until(&mut self, expected: &str) {
        while self.read_line().await != expected {}
    }

    async fn read_line(&mut self) -> String {
        self.client_lines.next_line().await.unwrap().expect("the connection is closed")
    }

    async fn wait_for_end(&mut self) -> ListenError {
        self.fixture.tasks.join_next().await.unwrap().unwrap()
    }

    /// Sends a message in a background task.
    fn send_in_background(&self, text: &str) -> JoinSet<Result<MessageId, SendError>> {
        let (irc, text, mut sending) = (Arc::clone(&self.fixture.irc), text.to_owned(), JoinSet::new());
        sending.spawn(async move { irc.send(&chat_address("#tea"), &message_piece(&text), "key").await });
        sending
    }
}

async fn send_outcome(mut sending: JoinSet<Result<MessageId, SendError>>) -> Result<MessageId, SendError> {
    sending.join_next().await.unwrap().unwrap()
}

const LARGE_BUFFER: usize = 64 * 1024;

#[tokio::test(start_paused = true)]
async fn an_account_is_proven_before_the_welcome() {
    let irc = irc_network("irc.test:6667", json!({"sasl_account": "me"}), Some("secret"));
    let mut server = ScriptedIrcServer::accept(irc, LARGE_BUFFER);
    server.read_until("CAP LS 302").await;
    server.send_line("CAP * LS * :server-time").await;
    server.send_line("CAP * LS :sasl=PLAIN").await;
    server.read_until("CAP REQ :server-time sasl").await;
    server.send_line("PING :are you human?").await;
    server.read_until("PONG :are you human?").await;
    server.send_line("CAP * ACK :server-time sasl").await;
    server.read_until("AUTHENTICATE PLAIN").await;
    server.send_line("AUTHENTICATE +").await;
    server.read_until("AUTHENTICATE AG1lAHNlY3JldA==").await;
    server.send_line(":irc.test 903 * :SASL authentication successful").await;
    server.read_until("CAP END").await;
    server.send_line(":irc.test 001 quell :welcome").await;
    server.read_until("JOIN #tea").await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_asked_and_then_left() {
    let mut server = ScriptedIrcServer::accept_and_welcome(LARGE_BUFFER).await;
    let begin = Instant::now();
    server.read_until("PING :irc.test").await;
    assert_eq!(begin.elapsed().as_secs(), 90);
    server.send_line(":irc.test PONG irc.test :irc.test").await;
    server.read_until("PING :irc.test").await;
    assert_eq!(begin.elapsed().as_secs(), 180);
    let lost = server.wait_for_end().await;
    assert_eq!(begin.elapsed().as_secs(), 210);
    assert!(matches!(&lost, ListenError::Connection(why) if why.contains("120 s")), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_welcome_is_left() {
    let mut server = ScriptedIrcServer::accept(irc_network("irc.test:6667", json!({}), None), LARGE_BUFFER);
    let begin = Instant::now();
    let lost = server.wait_for_end().await;
    assert!(matches!(&lost, ListenError::Connection(why) if why.contains("60 s")), "{lost:?}");
    assert_eq!(begin.elapsed().as_secs(), 60);
    assert!(server.fixture.sink.state().accounts.is_empty());
}

#[tokio::test(start_paused = true)]
async fn lines_go_as_fast_as_the_server_takes_them_and_answers_at_once() {
    let mut server = ScriptedIrcServer::accept_and_welcome(LARGE_BUFFER).await;
    let begin = Instant::now();
    let sending: Vec<_> = (0..8).map(|n| server.send_in_background(&n.to_string())).collect();
    let mut times = Vec::new();
    for n in 0..7 {
        assert_eq!(server.read_line().await, format!("PRIVMSG #tea :{n}"));
        times.push(begin.elapsed().as_secs());
    }
    assert_eq!(times, [0, 0, 0, 0, 0, 2, 4]);
    server.send_line("PING :now").await;
    assert_eq!(server.read_line().await, "PONG :now");
    assert_eq!(begin.elapsed().as_secs(), 4, "an answer waits for no message");
    assert_eq!(server.read_line().await, "PRIVMSG #tea :7");
    assert_eq!(begin.elapsed().as_secs(), 8, "and costs as much as one");
    for sending in sending {
        assert!(send_outcome(sending).await.is_ok());
    }
}

/// The buffer size of a small socket, and a text whose line fills it exactly.
const SMALL_BUFFER: usize = 64;
const BUFFER_FILLING_TEXT: &str = "a text that fills the socket up to its last byte";

#[tokio::test(start_paused = true)]
async fn a_line_that_is_not_yet_written_can_be_withdrawn() {
    let mut server = ScriptedIrcServer::accept_and_welcome(SMALL_BUFFER).await;
    assert!(
        send_outcome(server.send_in_background(BUFFER_FILLING_TEXT)).await.is_ok(),
        "the socket has taken it, although nobody has read it"
    );
    {
        let mut stopped = pin!(server.fixture.send("#tea", "not to be said"));
        assert!(poll!(&mut stopped).is_pending());
        // Once this line is received, the connection has tried to write.
        server.writer.write_all(b":a!b@c PRIVMSG quell :x\r\n").await.unwrap();
        server.fixture.sink.wait_for("a line", |state| state.texts() == ["x"]).await;
        assert!(poll!(&mut stopped).is_pending());
    }
    let last = server.send_in_background("last");
    assert_eq!(server.read_line().await, format!("PRIVMSG #tea :{BUFFER_FILLING_TEXT}"));
    assert_eq!(server.read_line().await, "PRIVMSG #tea :last");
    assert!(send_outcome(last).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_message_of_many_lines_ends_where_it_is_stopped() {
    let mut server = ScriptedIrcServer::accept_and_welcome(LARGE_BUFFER).await;
    let lines: Vec<String> = (0..7).map(|n| format!("line {n}")).collect();
    {
        let (irc, address, piece) =
            (Arc::clone(&server.fixture.irc), chat_address("#tea"), message_piece(&lines.join("\n")));
        let mut stopped = pin!(irc.send(&address, &piece, "key"));
        assert!(poll!(&mut stopped).is_pending());
        for line in &lines[..5] {
            assert_eq!(server.read_line().await, format!("PRIVMSG #tea :{line}"));
        }
        assert!(poll!(&mut stopped).is_pending());
    }
    assert!(send_outcome(server.send_in_background("last")).await.is_ok());
    assert_eq!(server.read_line().await, "PRIVMSG #tea :last");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_off_tells_what_became_of_each_message() {
    let mut server = ScriptedIrcServer::accept_and_welcome(SMALL_BUFFER).await;
    let begun = server.send_in_background(&"x".repeat(100));
    let mut first = [0; 8];
    server.client_lines.get_mut().read_exact(&mut first).await.unwrap();
    let waits = server.send_in_background("waits");
    let ScriptedIrcServer { client_lines: said, writer, mut fixture } = server;
    drop((said, writer));
    assert!(matches!(fixture.tasks.join_next().await, Some(Ok(ListenError::Connection(_)))));
    let begun = send_outcome(begun).await;
    assert!(matches!(begun, Err(SendError::Unknown { is_repeatable: false, .. })), "{begun:?}");
    let waits = send_outcome(waits).await;
    assert!(matches!(waits, Err(SendError::NotDelivered { retry_after: Some(_), .. })), "{waits:?}");
    let late = fixture.send("#tea", "late").await;
    assert!(matches!(late, Err(SendError::NotDelivered { retry_after: Some(_), .. })), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_message_of_which_a_part_has_gone_is_neither_sent_nor_unsent() {
    let mut server = ScriptedIrcServer::accept_and_welcome(LARGE_BUFFER).await;
    let partly = server.send_in_background("0\n1\n2\n3\n4\n5\n6");
    server.read_until("PRIVMSG #tea :4").await;
    let not_at_all = server.send_in_background("waits");
    server.send_line("ERROR :Closing Link: enough").await;
    assert!(matches!(server.wait_for_end().await, ListenError::Connection(why) if why.contains("enough")));
    let partly = send_outcome(partly).await;
    assert!(matches!(partly, Err(SendError::Unknown { is_repeatable: false, .. })), "{partly:?}");
    let not_at_all = send_outcome(not_at_all).await;
    assert!(matches!(not_at_all, Err(SendError::NotDelivered { .. })), "{not_at_all:?}");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_listening_ends_every_waiting_send() {
    let mut server = ScriptedIrcServer::accept_and_welcome(LARGE_BUFFER).await;
    let sent: Vec<_> = (0..5).map(|n| server.send_in_background(&n.to_string())).collect();
    server.read_until("PRIVMSG #tea :4").await;
    let waits = server.send_in_background("waits");
    for sent in sent {
        assert!(send_outcome(sent).await.is_ok());
    }
    server.fixture.tasks.shutdown().await;
    let waits = send_outcome(waits).await;
    assert!(matches!(waits, Err(SendError::NotDelivered { .. })), "{waits:?}");
    assert!(server.client_lines.next_line().await.unwrap().is_none(), "the connection is closed");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_read_is_left() {
    let mut server = ScriptedIrcServer::accept_and_welcome(SMALL_BUFFER).await;
    let begin = Instant::now();
    let stuck = server.send_in_background(&"x".repeat(100));
    let lost = server.wait_for_end().await;
    assert!(matches!(&lost, ListenError::Connection(why) if why.contains("does not read")), "{lost:?}");
    assert_eq!(begin.elapsed().as_secs(), 60);
    assert!(matches!(send_outcome(stuck).await, Err(SendError::Unknown { is_repeatable: false, .. })));

    let mut server = ScriptedIrcServer::accept_and_welcome(SMALL_BUFFER).await;
    for _ in 0..200 {
        // The connection ends during this loop.
        if server.writer.write_all(b"PING :flood\r\n").await.is_err() {
            break;
        }
    }
    let lost = server.wait_for_end().await;
    assert!(matches!(&lost, ListenError::Connection(why) if why.contains("sends requests")), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn too_many_messages_are_not_kept() {
    let server = ScriptedIrcServer::accept_and_welcome(LARGE_BUFFER).await;
    let mut waiting: Vec<_> = (0..300).map(|n| server.send_in_background(&n.to_string())).collect();
    let last = send_outcome(waiting.remove(299)).await;
    assert!(
        matches!(&last, Err(SendError::NotDelivered { why, retry_after: Some(_) }) if why.contains("too many")),
        "{last:?}"
    );
    assert!(send_outcome(waiting.remove(9)).await.is_ok(), "who came before is not left out");
}
