//! One IRC connection: register, read messages, write queued lines.

use std::future::poll_fn;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, WriteHalf, split};
use tokio::time::{Instant, sleep_until, timeout};

use super::account::IrcAccount;
use super::flood_control::FloodControl;
use super::line_reader::IrcLineReader;
use super::message::{IrcMessage, OutgoingIrcLine};
use super::outbox::{IrcOutbox, NextWrite, OpenOutbox};
use super::registration::{IrcRegistration, IrcWelcome, RegistrationStep};
use super::session::{IrcEffect, IrcSession, pong_line};
use crate::network::{InboundSink, ListenError, NetworkError, OwnAccount};

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

/// A connection after its registration.
struct RegisteredConnection<'a, S> {
    line_reader: IrcLineReader<tokio::io::ReadHalf<S>>,
    writer: WriteHalf<S>,
    session: IrcSession<'a>,
}

/// Registers on a stream and listens until it is lost. Meanwhile it sends the lines in `outbox`.
pub(super) async fn listen<S>(
    account: &IrcAccount,
    outbox: &IrcOutbox,
    stream: S,
    sink: &dyn InboundSink,
) -> ListenError
where
    S: AsyncRead + AsyncWrite,
{
    let RegisteredConnection { mut line_reader, writer, mut session } =
        match connect_and_register(account, stream).await {
            Ok(connected) => connected,
            Err(lost) => return lost,
        };
    let open_outbox = outbox.open(session.send_limits().clone());
    if let Some(lost) = queue_replies_to_server(&open_outbox, session.join_lines()) {
        return lost;
    }
    sink.on_connected(session.own_account());
    // Either future may be dropped: the connection ends with the first. The reader goes first, because an `ERROR` line
    // of the server explains more than a failed write.
    tokio::select! {
        biased;
        lost = read_messages(&mut line_reader, &mut session, &open_outbox, sink) => lost,
        lost = write_queued_lines(writer, &open_outbox) => lost,
    }
}

/// Registers on a stream, waits for the end of the message of the day, and quits. Returns a description of the account
/// for people.
pub(super) async fn probe_account<S: AsyncRead + AsyncWrite>(
    account: &IrcAccount,
    stream: S,
) -> Result<String, NetworkError> {
    let to_network_error = |lost: ListenError| NetworkError(lost.to_string());
    let RegisteredConnection { mut line_reader, mut writer, mut session } =
        connect_and_register(account, stream).await.map_err(to_network_error)?;
    let motd_end = timeout(REGISTRATION_TIMEOUT, async {
        loop {
            for effect in session.handle_message(&next_message(&mut line_reader).await?) {
                match effect {
                    IrcEffect::MotdEnded => return Ok(()),
                    IrcEffect::Disconnected(lost) => return Err(lost),
                    IrcEffect::SendLine(line) => write_lines(&mut writer, &[line]).await?,
                    IrcEffect::Receive(_) | IrcEffect::AccountChanged(_) | IrcEffect::LimitsChanged(_) => {}
                }
            }
        }
    });
    motd_end.await.unwrap_or_else(|_| Err(server_silent(REGISTRATION_TIMEOUT))).map_err(to_network_error)?;
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
        while next_message(&mut line_reader).await.is_ok() {}
        Ok::<(), ListenError>(())
    })
    .await;
    Ok(description)
}

async fn connect_and_register<S: AsyncRead + AsyncWrite>(
    account: &IrcAccount,
    stream: S,
) -> Result<RegisteredConnection<'_, S>, ListenError> {
    let (reader, mut writer) = split(stream);
    let mut line_reader = IrcLineReader::new(reader);
    let registered = timeout(REGISTRATION_TIMEOUT, register(account, &mut line_reader, &mut writer));
    let welcome = registered.await.unwrap_or_else(|_| Err(server_silent(REGISTRATION_TIMEOUT)))?;
    Ok(RegisteredConnection { line_reader, writer, session: IrcSession::new(account, welcome) })
}

async fn register<R, W>(
    account: &IrcAccount,
    line_reader: &mut IrcLineReader<R>,
    writer: &mut W,
) -> Result<IrcWelcome, ListenError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut registration = IrcRegistration::new(account);
    write_lines(writer, &registration.initial_lines()).await?;
    loop {
        let message = next_message(line_reader).await?;
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
async fn read_messages<R>(
    line_reader: &mut IrcLineReader<R>,
    session: &mut IrcSession<'_>,
    open_outbox: &OpenOutbox<'_>,
    sink: &dyn InboundSink,
) -> ListenError
where
    R: AsyncRead + Unpin,
{
    let mut account = session.own_account();
    let mut ping_sent = false;
    loop {
        let read_timeout = if ping_sent { PONG_TIMEOUT } else { PING_AFTER };
        let message = match timeout(read_timeout, next_message(line_reader)).await {
            Ok(Ok(message)) => message,
            Ok(Err(lost)) => return lost,
            Err(_) if ping_sent => return server_silent(PING_AFTER + PONG_TIMEOUT),
            Err(_) => {
                ping_sent = true;
                let lines = [OutgoingIrcLine::from_words_and_text(&["PING"], &session.server_info().name)]
                    .into_iter()
                    .chain(session.reclaim_nick_line());
                match queue_replies_to_server(open_outbox, lines) {
                    Some(lost) => return lost,
                    None => continue,
                }
            }
        };
        ping_sent = false;
        for effect in session.handle_message(&message) {
            if let Some(lost) = apply_effect(effect, &mut account, open_outbox, sink) {
                return lost;
            }
        }
    }
}

fn apply_effect(
    effect: IrcEffect,
    account: &mut OwnAccount,
    open_outbox: &OpenOutbox<'_>,
    sink: &dyn InboundSink,
) -> Option<ListenError> {
    match effect {
        IrcEffect::Receive(inbound) => sink.on_message(inbound),
        IrcEffect::SendLine(line) => return queue_replies_to_server(open_outbox, [line]),
        IrcEffect::LimitsChanged(send_limits) => open_outbox.set_send_limits(send_limits),
        IrcEffect::AccountChanged(new_account) if new_account != *account => {
            *account = new_account.clone();
            sink.on_connected(new_account);
        }
        IrcEffect::AccountChanged(_) | IrcEffect::MotdEnded => {}
        IrcEffect::Disconnected(lost) => return Some(lost),
    }
    None
}

fn queue_replies_to_server(
    open_outbox: &OpenOutbox<'_>,
    lines: impl IntoIterator<Item = OutgoingIrcLine>,
) -> Option<ListenError> {
    let failed = lines.into_iter().try_for_each(|line| open_outbox.queue_reply_to_server(line)).is_err();
    failed.then(|| ListenError::Connection("the server sends requests and does not read the replies".to_owned()))
}

/// Writes queued lines until the connection is lost, within the flood limit of the server.
async fn write_queued_lines<W: AsyncWrite + Unpin>(mut writer: W, open_outbox: &OpenOutbox<'_>) -> ListenError {
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
                match timeout(WRITE_TIMEOUT, write_next_line(&mut writer, open_outbox)).await {
                    Ok(Ok(())) => flood_control.record_line(Instant::now()),
                    Ok(Err(error)) => return connection_broken(&error),
                    Err(_) => return ListenError::Connection("the server does not read what it is sent".to_owned()),
                }
            }
        }
    }
}

async fn write_next_line<W: AsyncWrite + Unpin>(writer: &mut W, open_outbox: &OpenOutbox<'_>) -> io::Result<()> {
    let Some(partial_line) = poll_fn(|cx| open_outbox.poll_write_next(cx, writer)).await? else {
        return Ok(());
    };
    writer.write_all(&partial_line.remaining).await?;
    writer.flush().await?;
    partial_line.complete();
    Ok(())
}

async fn next_message<R: AsyncRead + Unpin>(line_reader: &mut IrcLineReader<R>) -> Result<IrcMessage, ListenError> {
    match line_reader.next_message().await {
        Ok(Some(message)) => Ok(message),
        Ok(None) => Err(ListenError::Connection("the server closed the connection".to_owned())),
        Err(error) => Err(connection_broken(&error)),
    }
}

async fn write_lines<W: AsyncWrite + Unpin>(writer: &mut W, lines: &[OutgoingIrcLine]) -> Result<(), ListenError> {
    for line in lines {
        writer.write_all(line.bytes()).await.map_err(|error| connection_broken(&error))?;
    }
    writer.flush().await.map_err(|error| connection_broken(&error))
}

pub(super) fn connection_broken(error: &io::Error) -> ListenError {
    ListenError::Connection(format!("the connection broke off: {error}"))
}

fn server_silent(time: Duration) -> ListenError {
    ListenError::Connection(format!("the server said nothing for {} s", time.as_secs()))
}
