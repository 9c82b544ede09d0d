//! One IRC connection: register, read messages, write queued lines.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::time::{Instant, sleep_until, timeout};

use super::account::IrcAccount;
use super::line_reader::IrcLineReader;
use super::message::{IrcMessage, OutgoingIrcLine};
use super::outbox::{IrcOutbox, NextWrite, OpenOutbox};
use super::registration::{IrcRegistration, IrcWelcome, RegistrationStep};
use super::session::{IrcEffect, IrcSession, pong_line};
use crate::network::{InboundSink, ListenError};
use crate::wire::byte_stream::ByteStream;

/// Time limit from the first line to the welcome. Servers look up host names in this time.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(60);
/// After this time without a line, send a `PING`.
const PING_AFTER: Duration = Duration::from_secs(90);
/// Time limit of the response to `PING`.
const PONG_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit of writing one line.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// After a probe, how long to wait for the server to close the connection.
const QUIT_TIMEOUT: Duration = Duration::from_secs(2);
/// What a line costs, and how much may be owed.
const LINE_COST: Duration = Duration::from_secs(2);
const MAX_DEBT: Duration = Duration::from_secs(10);

type Reader = IrcLineReader<ReadHalf<ByteStream>>;
type Writer = WriteHalf<ByteStream>;

struct RegisteredConnection<'a> {
    reader: Reader,
    writer: Writer,
    session: IrcSession<'a>,
}

/// Registers on a stream and listens until it is lost. Meanwhile it sends the lines in `outbox`.
pub(super) async fn listen(
    account: &IrcAccount,
    outbox: &IrcOutbox,
    stream: ByteStream,
    sink: &dyn InboundSink,
) -> Result<Infallible, ListenError> {
    let RegisteredConnection { mut reader, writer, mut session } = connect_and_register(account, stream).await?;
    let open_outbox = outbox.open(session.send_limits().clone());
    session.join_lines().into_iter().try_for_each(|line| open_outbox.queue_reply_to_server(line))?;
    sink.on_connected(session.own_account());
    // Either future may be dropped: the connection ends with the first. The reader goes first, because an `ERROR` line
    // of the server explains more than a failed write.
    tokio::select! {
        biased;
        lost = read_messages(&mut reader, &mut session, &open_outbox, sink) => lost,
        lost = write_queued_lines(writer, &open_outbox) => lost,
    }
}

/// Registers on a stream, waits for the end of the message of the day, and quits. Returns a description of the account
/// for people.
pub(super) async fn probe_account(account: &IrcAccount, stream: ByteStream) -> Result<String, ListenError> {
    let RegisteredConnection { mut reader, mut writer, mut session } = connect_and_register(account, stream).await?;
    let motd_end = timeout(REGISTRATION_TIMEOUT, async {
        loop {
            match session.handle_message(&next_message(&mut reader).await?) {
                Some(IrcEffect::MotdEnded) => return Ok(()),
                Some(IrcEffect::Disconnected(lost)) => return Err(lost),
                Some(IrcEffect::SendLine(line)) => write_lines(&mut writer, &[line]).await?,
                Some(IrcEffect::Receive(_)) | None => {}
            }
        }
    });
    motd_end.await.unwrap_or_else(|_| Err(server_silent(REGISTRATION_TIMEOUT)))?;
    let server = session.server_info();
    let network = server.network.as_ref().map(|name| format!(" (network {name})")).unwrap_or_default();
    let nick_taken = session
        .reclaim_nick_line()
        .map(|_| format!("; the nick {} is taken, maybe by Quell itself", account.configured_nick))
        .unwrap_or_default();
    let description = format!("nick {} on {}{network}{nick_taken}", session.own_account().name, server.name);
    // The description is complete; errors while quitting do not matter.
    let _ = timeout(QUIT_TIMEOUT, async {
        write_lines(&mut writer, &[OutgoingIrcLine::from_words(&["QUIT"])]).await?;
        while next_message(&mut reader).await.is_ok() {}
        Ok::<(), ListenError>(())
    })
    .await;
    Ok(description)
}

async fn connect_and_register(
    account: &IrcAccount,
    stream: ByteStream,
) -> Result<RegisteredConnection<'_>, ListenError> {
    let (reader, mut writer) = split(stream);
    let mut reader = IrcLineReader::new(reader);
    let registered = timeout(REGISTRATION_TIMEOUT, register(account, &mut reader, &mut writer));
    let welcome = registered.await.unwrap_or_else(|_| Err(server_silent(REGISTRATION_TIMEOUT)))?;
    Ok(RegisteredConnection { reader, writer, session: IrcSession::new(account, welcome) })
}

async fn register(account: &IrcAccount, reader: &mut Reader, writer: &mut Writer) -> Result<IrcWelcome, ListenError> {
    let mut registration = IrcRegistration::new(account);
    write_lines(writer, &registration.initial_lines()).await?;
    loop {
        let message = next_message(reader).await?;
        if message.command == "PING" {
            write_lines(writer, &[pong_line(&message)]).await?;
            continue;
        }
        match registration.handle_message(&message) {
            RegistrationStep::SendLines(lines) => write_lines(writer, &lines).await?,
            RegistrationStep::Welcome(welcome) => return Ok(welcome),
            RegistrationStep::Failed(lost) => return Err(lost),
        }
    }
}

/// Reads until the connection is lost.
async fn read_messages(
    reader: &mut Reader,
    session: &mut IrcSession<'_>,
    open_outbox: &OpenOutbox<'_>,
    sink: &dyn InboundSink,
) -> Result<Infallible, ListenError> {
    let mut account = session.own_account();
    let mut ping_sent = false;
    loop {
        let read_timeout = if ping_sent { PONG_TIMEOUT } else { PING_AFTER };
        let message = match timeout(read_timeout, next_message(reader)).await {
            Ok(message) => message?,
            Err(_) if ping_sent => return Err(server_silent(PING_AFTER + PONG_TIMEOUT)),
            Err(_) => {
                ping_sent = true;
                let ping = OutgoingIrcLine::from_words_and_text(&["PING"], &session.server_info().name);
                let mut lines = [ping].into_iter().chain(session.reclaim_nick_line());
                lines.try_for_each(|line| open_outbox.queue_reply_to_server(line))?;
                continue;
            }
        };
        ping_sent = false;
        let effect = session.handle_message(&message);
        open_outbox.set_send_limits(session.send_limits());
        if session.own_account() != account {
            account = session.own_account();
            sink.on_connected(account.clone());
        }
        match effect {
            Some(IrcEffect::Receive(inbound)) => sink.on_message(inbound),
            Some(IrcEffect::SendLine(line)) => open_outbox.queue_reply_to_server(line)?,
            Some(IrcEffect::Disconnected(lost)) => return Err(lost),
            Some(IrcEffect::MotdEnded) | None => {}
        }
    }
}

/// Writes queued lines until the connection is lost, within the flood limit of the server.
async fn write_queued_lines(mut writer: Writer, open_outbox: &OpenOutbox<'_>) -> Result<Infallible, ListenError> {
    let mut flood_control = FloodControl::new(Instant::now());
    loop {
        let next_send_at = flood_control.next_send_at();
        match open_outbox.next_write() {
            NextWrite::Nothing => open_outbox.wait_for_change().await,
            NextWrite::Message if next_send_at > Instant::now() => {
                // A change that is missed here is seen by `next_write`; the send time stays the same.
                tokio::select! {
                    () = open_outbox.wait_for_change() => {}
                    () = sleep_until(next_send_at) => {}
                }
            }
            NextWrite::ServerReply | NextWrite::Message => {
                let written = timeout(WRITE_TIMEOUT, write_next_line(&mut writer, open_outbox)).await;
                written
                    .map_err(|_| ListenError::Connection("the server does not read what it is sent".to_owned()))?
                    .map_err(connection_broken)?;
                flood_control.record_line(Instant::now());
            }
        }
    }
}

async fn write_next_line(writer: &mut Writer, open_outbox: &OpenOutbox<'_>) -> io::Result<()> {
    let Some(partial_line) = poll_fn(|cx| open_outbox.poll_write_next(cx, writer)).await? else {
        return Ok(());
    };
    writer.write_all(&partial_line.remaining).await?;
    writer.flush().await?;
    partial_line.complete();
    Ok(())
}

async fn next_message(reader: &mut Reader) -> Result<IrcMessage, ListenError> {
    match reader.next_message().await {
        Ok(Some(message)) => Ok(message),
        Ok(None) => Err(ListenError::Connection("the server closed the connection".to_owned())),
        Err(error) => Err(connection_broken(error)),
    }
}

async fn write_lines(writer: &mut Writer, lines: &[OutgoingIrcLine]) -> Result<(), ListenError> {
    for line in lines {
        writer.write_all(line.bytes()).await.map_err(connection_broken)?;
    }
    writer.flush().await.map_err(connection_broken)
}

fn connection_broken(error: io::Error) -> ListenError {
    ListenError::Connection(format!("the connection broke off: {error}"))
}

fn server_silent(time: Duration) -> ListenError {
    ListenError::Connection(format!("the server said nothing for {} s", time.as_secs()))
}

/// Rate limit for outgoing lines (RFC 2813 5.8): each line costs two seconds, and ten seconds may be owed.
#[derive(Debug, Clone, Copy)]
struct FloodControl {
    /// When the debt will be zero.
    debt_free_at: Instant,
}

impl FloodControl {
    fn new(now: Instant) -> Self {
        Self { debt_free_at: now }
    }

    /// When the next line may be sent.
    fn next_send_at(&self) -> Instant {
        let after = self.debt_free_at + LINE_COST;
        after.checked_sub(MAX_DEBT).unwrap_or(after)
    }

    /// Records that a line was sent.
    fn record_line(&mut self, now: Instant) {
        self.debt_free_at = self.debt_free_at.max(now) + LINE_COST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_lines_go_at_once_and_then_one_in_two_seconds() {
        let begin = Instant::now();
        let (mut flood, mut now, mut sent) = (FloodControl::new(begin), begin, Vec::new());
        for _ in 0..8 {
            now = now.max(flood.next_send_at());
            flood.record_line(now);
            sent.push((now - begin).as_secs());
        }
        assert_eq!(sent, [0, 0, 0, 0, 0, 2, 4, 6]);
        now += Duration::from_secs(100);
        for _ in 0..5 {
            assert!(flood.next_send_at() <= now, "after a pause five go at once again");
            flood.record_line(now);
        }
        assert!(flood.next_send_at() > now);
    }
}
