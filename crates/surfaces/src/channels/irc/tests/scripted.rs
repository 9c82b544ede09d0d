//! Against servers by script, in memory and with time that only waiting moves: what a real server seldom does.

use std::pin::pin;

use futures_util::poll;
use tokio::io::{
    AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf, duplex, split,
};
use tokio::time::Instant;

use super::*;

/// A server that does what the test says, and the account that is connected to it.
struct Script {
    said: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
    irc: Arc<Irc>,
    ear: Arc<RecordingEar>,
    tasks: JoinSet<Lost>,
}

impl Script {
    /// One that has been connected to, and takes so many bytes without reading.
    fn begin(irc: Irc, buffer: usize) -> Self {
        let (server, client) = duplex(buffer);
        let (reader, writer) = split(server);
        let (irc, ear, mut tasks) = (Arc::new(irc), Arc::new(RecordingEar::new()), JoinSet::new());
        let (listening, hearing) = (Arc::clone(&irc), Arc::clone(&ear));
        tasks.spawn(async move {
            connection::listen(&listening.account, &listening.outbox, client, hearing.as_ref()).await
        });
        Self { said: BufReader::new(reader).lines(), writer, irc, ear, tasks }
    }

    /// One that has welcomed an account without a room.
    async fn welcomed(buffer: usize) -> Self {
        let mut script = Self::begin(irc("irc.test:6667", json!({"join": []}), None), buffer);
        script.reads("USER quell 0 * :Quell, a gateway for agents").await;
        script.says(":irc.test 001 quell :welcome").await;
        script.ear.wait_for("the welcome", |state| !state.connected.is_empty()).await;
        script
    }

    async fn says(&mut self, line: &str) {
        self.says_bytes(format!("{line}\r\n").as_bytes()).await;
    }

    async fn says_bytes(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).await.unwrap();
    }

    /// Reads up to this line.
    async fn reads(&mut self, expected: &str) {
        while self.read().await != expected {}
    }

    async fn read(&mut self) -> String {
        self.said.next_line().await.unwrap().expect("the connection is closed")
    }

    async fn lost(&mut self) -> Lost {
        self.tasks.join_next().await.unwrap().unwrap()
    }

    /// Sends in the background.
    fn sends(&self, text: &str) -> JoinSet<Result<MessageId, NotSent>> {
        let (irc, text, mut sending) = (Arc::clone(&self.irc), text.to_owned(), JoinSet::new());
        sending.spawn(async move { irc.send(&place("#tea"), &piece(&text), "key").await });
        sending
    }
}

async fn fate(mut sending: JoinSet<Result<MessageId, NotSent>>) -> Result<MessageId, NotSent> {
    sending.join_next().await.unwrap().unwrap()
}

const ROOMY: usize = 64 * 1024;

#[tokio::test(start_paused = true)]
async fn an_account_is_proven_before_the_welcome() {
    let keys = json!({"sasl_account": "me"});
    let mut script = Script::begin(irc("irc.test:6667", keys.clone(), Some("secret")), ROOMY);
    script.reads("CAP LS 302").await;
    script.says("CAP * LS * :server-time").await;
    script.says("CAP * LS :sasl=PLAIN").await;
    script.reads("CAP REQ :server-time sasl").await;
    script.says("PING :are you human?").await;
    script.reads("PONG :are you human?").await;
    script.says("CAP * ACK :server-time sasl").await;
    script.reads("AUTHENTICATE PLAIN").await;
    script.says("AUTHENTICATE +").await;
    script.reads("AUTHENTICATE AG1lAHNlY3JldA==").await;
    script.says(":irc.test 903 * :SASL authentication successful").await;
    script.reads("CAP END").await;
    script.says(":irc.test 001 quell :welcome").await;
    script.reads("JOIN #tea").await;

    let mut script = Script::begin(irc("irc.test:6667", keys, Some("secret")), ROOMY);
    script.says("CAP * LS :sasl\r\nCAP * ACK :sasl\r\nAUTHENTICATE +").await;
    script.says(":irc.test 904 * :SASL authentication failed").await;
    assert_eq!(script.lost().await, Lost::Refused("the account was refused: SASL authentication failed".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn garbage_is_not_heard_and_does_no_harm() {
    let mut script = Script::welcomed(ROOMY).await;
    script
        .says_bytes(b"\0\xff\xfe:::@@@\r\n@\r\n:\r\n \r\n\r\nPRIVMSG\r\n:a!b@c PRIVMSG\r\n:a!b@c PRIVMSG quell\r\n")
        .await;
    script
        .says_bytes(b":irc.test 005\r\n:irc.test 433\r\nKICK\r\nNICK\r\nJOIN\r\nINVITE\r\nCAP\r\nAUTHENTICATE +\r\n")
        .await;
    let endless = format!(":a!b@c PRIVMSG quell :{}\r\n", "x".repeat(100_000));
    script.says_bytes(endless.as_bytes()).await;
    for piece in [":a!b@c PRIV", "MSG quell :", "in pie", "ces\r", "\n:a!b@c PRIVMSG quell :\u{fffd}"] {
        script.says_bytes(piece.as_bytes()).await;
    }
    script.says_bytes(b"\xff\r\n:a!b@c PRIVMSG quell :half a line").await;
    script.writer.shutdown().await.unwrap();
    assert_eq!(script.lost().await, Lost::Connection("the server closed the connection".to_owned()));
    assert_eq!(script.ear.state().texts(), ["in pieces", "\u{fffd}\u{fffd}"]);
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_asked_and_then_left() {
    let mut script = Script::welcomed(ROOMY).await;
    let begin = Instant::now();
    script.reads("PING :irc.test").await;
    assert_eq!(begin.elapsed().as_secs(), 90);
    script.says(":irc.test PONG irc.test :irc.test").await;
    script.reads("PING :irc.test").await;
    assert_eq!(begin.elapsed().as_secs(), 180);
    let lost = script.lost().await;
    assert_eq!(begin.elapsed().as_secs(), 210);
    assert!(matches!(&lost, Lost::Connection(why) if why.contains("120 s")), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_welcome_is_left() {
    let mut script = Script::begin(irc("irc.test:6667", json!({}), None), ROOMY);
    let begin = Instant::now();
    let lost = script.lost().await;
    assert!(matches!(&lost, Lost::Connection(why) if why.contains("60 s")), "{lost:?}");
    assert_eq!(begin.elapsed().as_secs(), 60);
    assert!(script.ear.state().connected.is_empty());
}

#[tokio::test(start_paused = true)]
async fn lines_go_as_fast_as_the_server_takes_them_and_answers_at_once() {
    let mut script = Script::welcomed(ROOMY).await;
    let begin = Instant::now();
    let sending: Vec<_> = (0..8).map(|n| script.sends(&n.to_string())).collect();
    let mut times = Vec::new();
    for n in 0..7 {
        assert_eq!(script.read().await, format!("PRIVMSG #tea :{n}"));
        times.push(begin.elapsed().as_secs());
    }
    assert_eq!(times, [0, 0, 0, 0, 0, 2, 4]);
    script.says("PING :now").await;
    assert_eq!(script.read().await, "PONG :now");
    assert_eq!(begin.elapsed().as_secs(), 4, "an answer waits for no message");
    assert_eq!(script.read().await, "PRIVMSG #tea :7");
    assert_eq!(begin.elapsed().as_secs(), 8, "and costs as much as one");
    for sending in sending {
        assert!(fate(sending).await.is_ok());
    }
}

/// How much a small socket takes, and a text that makes a line of just that.
const SMALL: usize = 64;
const FILLS_IT: &str = "a text that fills the socket up to its last byte";

#[tokio::test(start_paused = true)]
async fn what_the_socket_has_not_begun_to_take_can_be_taken_back() {
    let mut script = Script::welcomed(SMALL).await;
    assert!(fate(script.sends(FILLS_IT)).await.is_ok(), "the socket has taken it, although nobody has read it");
    {
        let (irc, place, piece) = (Arc::clone(&script.irc), place("#tea"), piece("not to be said"));
        let mut stopped = pin!(irc.send(&place, &piece, "key"));
        assert!(poll!(&mut stopped).is_pending());
        // Once this is heard the connection has tried to send.
        script.writer.write_all(b":a!b@c PRIVMSG quell :x\r\n").await.unwrap();
        script.ear.wait_for("a line", |state| state.texts() == ["x"]).await;
        assert!(poll!(&mut stopped).is_pending());
    }
    let last = script.sends("last");
    assert_eq!(script.read().await, format!("PRIVMSG #tea :{FILLS_IT}"));
    assert_eq!(script.read().await, "PRIVMSG #tea :last");
    assert!(fate(last).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_message_of_many_lines_ends_where_it_is_stopped() {
    let mut script = Script::welcomed(ROOMY).await;
    let lines: Vec<String> = (0..7).map(|n| format!("line {n}")).collect();
    {
        let (irc, place, piece) = (Arc::clone(&script.irc), place("#tea"), piece(&lines.join("\n")));
        let mut stopped = pin!(irc.send(&place, &piece, "key"));
        assert!(poll!(&mut stopped).is_pending());
        for line in &lines[..5] {
            assert_eq!(script.read().await, format!("PRIVMSG #tea :{line}"));
        }
        assert!(poll!(&mut stopped).is_pending());
    }
    assert!(fate(script.sends("last")).await.is_ok());
    assert_eq!(script.read().await, "PRIVMSG #tea :last");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_off_tells_what_became_of_each_message() {
    let mut script = Script::welcomed(SMALL).await;
    let begun = script.sends(&"x".repeat(100));
    let mut first = [0; 8];
    script.said.get_mut().read_exact(&mut first).await.unwrap();
    let waits = script.sends("waits");
    let Script { said, writer, irc, mut tasks, .. } = script;
    drop((said, writer));
    assert!(matches!(tasks.join_next().await, Some(Ok(Lost::Connection(_)))));
    let begun = fate(begun).await;
    assert!(matches!(begun, Err(NotSent::Unknown { repeatable: false, .. })), "{begun:?}");
    let waits = fate(waits).await;
    assert!(matches!(waits, Err(NotSent::Undelivered { after: Some(_), .. })), "{waits:?}");
    let late = irc.send(&place("#tea"), &piece("late"), "key").await;
    assert!(matches!(late, Err(NotSent::Undelivered { after: Some(_), .. })), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_message_of_which_a_part_has_gone_is_neither_sent_nor_unsent() {
    let mut script = Script::welcomed(ROOMY).await;
    let partly = script.sends("0\n1\n2\n3\n4\n5\n6");
    script.reads("PRIVMSG #tea :4").await;
    let not_at_all = script.sends("waits");
    script.says("ERROR :Closing Link: enough").await;
    assert!(matches!(script.lost().await, Lost::Connection(why) if why.contains("enough")));
    let partly = fate(partly).await;
    assert!(matches!(partly, Err(NotSent::Unknown { repeatable: false, .. })), "{partly:?}");
    let not_at_all = fate(not_at_all).await;
    assert!(matches!(not_at_all, Err(NotSent::Undelivered { .. })), "{not_at_all:?}");
}

#[tokio::test(start_paused = true)]
async fn who_stops_to_listen_lets_nobody_wait() {
    let mut script = Script::welcomed(ROOMY).await;
    let sent: Vec<_> = (0..5).map(|n| script.sends(&n.to_string())).collect();
    script.reads("PRIVMSG #tea :4").await;
    let waits = script.sends("waits");
    for sent in sent {
        assert!(fate(sent).await.is_ok());
    }
    script.tasks.shutdown().await;
    let waits = fate(waits).await;
    assert!(matches!(waits, Err(NotSent::Undelivered { .. })), "{waits:?}");
    assert!(script.said.next_line().await.unwrap().is_none(), "the connection is closed");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_read_is_left() {
    let mut script = Script::welcomed(SMALL).await;
    let begin = Instant::now();
    let stuck = script.sends(&"x".repeat(100));
    let lost = script.lost().await;
    assert!(matches!(&lost, Lost::Connection(why) if why.contains("does not read")), "{lost:?}");
    assert_eq!(begin.elapsed().as_secs(), 60);
    assert!(matches!(fate(stuck).await, Err(NotSent::Unknown { repeatable: false, .. })));

    let mut script = Script::welcomed(SMALL).await;
    for _ in 0..200 {
        // It ends in the middle of this.
        if script.writer.write_all(b"PING :flood\r\n").await.is_err() {
            break;
        }
    }
    let lost = script.lost().await;
    assert!(matches!(&lost, Lost::Connection(why) if why.contains("asks")), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn too_many_messages_are_not_kept() {
    let script = Script::welcomed(ROOMY).await;
    let mut waiting: Vec<_> = (0..300).map(|n| script.sends(&n.to_string())).collect();
    let last = fate(waiting.remove(299)).await;
    assert!(matches!(&last, Err(NotSent::Undelivered { why, after: Some(_) }) if why.contains("too many")), "{last:?}");
    assert!(fate(waiting.remove(9)).await.is_ok(), "who came before is not left out");
}
