//! One connection from its first line to its last: what the server says goes to the ear, what waits goes to the server.

use std::future::poll_fn;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, WriteHalf, split};
use tokio::time::{Instant, sleep_until, timeout};

use super::account::Account;
use super::flood::Flood;
use super::incoming::Incoming;
use super::live::{Effect, Live, pong};
use super::message::{Line, Message};
use super::outbox::{Next, Open, Outbox};
use super::registration::{Progress, Registration, Welcome};
use crate::channels::seam::{Ear, Lost, Own, Trouble};

/// From the first line to the welcome. Servers look up names of hosts in this time.
const REGISTRATION: Duration = Duration::from_secs(60);
/// After so long without a line the server is asked whether it is there.
const SILENCE: Duration = Duration::from_secs(90);
/// How long it may take to answer that.
const ANSWER: Duration = Duration::from_secs(30);
/// How long it may take to take in one line.
const STALLED: Duration = Duration::from_secs(60);
/// How long an account that was only looked at waits for the server to let it go.
const PARTING: Duration = Duration::from_secs(2);

/// Connected and registered.
struct Connected<'a, S> {
    incoming: Incoming<tokio::io::ReadHalf<S>>,
    writer: WriteHalf<S>,
    live: Live<'a>,
}

/// Registers on a stream and listens until it is lost. Meanwhile what waits in `outbox` is sent.
pub(super) async fn listen<S>(account: &Account, outbox: &Outbox, stream: S, ear: &dyn Ear) -> Lost
where
    S: AsyncRead + AsyncWrite,
{
    let Connected { mut incoming, writer, mut live } = match connect(account, stream).await {
        Ok(connected) => connected,
        Err(lost) => return lost,
    };
    let open = outbox.open(live.reach().clone());
    if let Some(lost) = answer(&open, live.begin()) {
        return lost;
    }
    ear.connected(live.own());
    // Either may be dropped: the connection ends with the first. What the server said for a farewell counts more than that its
    // socket takes nothing any more.
    tokio::select! {
        biased;
        lost = hear(&mut incoming, &mut live, &open, ear) => lost,
        lost = say(writer, &open) => lost,
    }
}

/// Registers on a stream, asks what it is, and leaves.
pub(super) async fn look<S: AsyncRead + AsyncWrite>(account: &Account, stream: S) -> Result<String, Trouble> {
    let trouble = |lost: Lost| Trouble(lost.to_string());
    let Connected { mut incoming, mut writer, mut live } = connect(account, stream).await.map_err(trouble)?;
    let introduced = timeout(REGISTRATION, async {
        loop {
            for effect in live.take(&next(&mut incoming).await?) {
                match effect {
                    Effect::Introduced => return Ok(()),
                    Effect::Lost(lost) => return Err(lost),
                    Effect::Say(line) => write(&mut writer, &[line]).await?,
                    Effect::Hear(_) | Effect::Called(_) | Effect::Reaches(_) => {}
                }
            }
        }
    });
    introduced.await.unwrap_or_else(|_| Err(silent(REGISTRATION))).map_err(trouble)?;
    let server = live.server();
    let network = server.network.as_ref().map(|name| format!(" (network {name})")).unwrap_or_default();
    let taken = live
        .quiet()
        .map(|_| format!("; the nick {} is taken, maybe by Quell itself", account.nick))
        .unwrap_or_default();
    let answer = format!("nick {} on {}{network}{taken}", live.own().name, server.name);
    // The answer is known, whatever becomes of the parting.
    let _ = timeout(PARTING, async {
        write(&mut writer, &[Line::of(&["QUIT"])]).await?;
        while next(&mut incoming).await.is_ok() {}
        Ok::<(), Lost>(())
    })
    .await;
    Ok(answer)
}

async fn connect<S: AsyncRead + AsyncWrite>(account: &Account, stream: S) -> Result<Connected<'_, S>, Lost> {
    let (reader, mut writer) = split(stream);
    let mut incoming = Incoming::new(reader);
    let registered = timeout(REGISTRATION, register(account, &mut incoming, &mut writer));
    let welcome = registered.await.unwrap_or_else(|_| Err(silent(REGISTRATION)))?;
    Ok(Connected { incoming, writer, live: Live::new(account, welcome) })
}

async fn register<R, W>(account: &Account, incoming: &mut Incoming<R>, writer: &mut W) -> Result<Welcome, Lost>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut registration = Registration::new(account);
    write(writer, &registration.begin()).await?;
    loop {
        let message = next(incoming).await?;
        if message.command == "PING" {
            write(writer, &[pong(&message)]).await?;
            continue;
        }
        match registration.take(&message) {
            Progress::Say(lines) => write(writer, &lines).await?,
            Progress::Welcome(welcome) => return Ok(welcome),
            Progress::Lost(lost) => return Err(lost),
        }
    }
}

/// Reads until the connection is lost.
async fn hear<R>(incoming: &mut Incoming<R>, live: &mut Live<'_>, open: &Open<'_>, ear: &dyn Ear) -> Lost
where
    R: AsyncRead + Unpin,
{
    let mut own = live.own();
    let mut asked = false;
    loop {
        let patience = if asked { ANSWER } else { SILENCE };
        let message = match timeout(patience, next(incoming)).await {
            Ok(Ok(message)) => message,
            Ok(Err(lost)) => return lost,
            Err(_) if asked => return silent(SILENCE + ANSWER),
            Err(_) => {
                asked = true;
                let lines = [Line::with_text(&["PING"], &live.server().name)].into_iter().chain(live.quiet());
                match answer(open, lines) {
                    Some(lost) => return lost,
                    None => continue,
                }
            }
        };
        asked = false;
        for effect in live.take(&message) {
            if let Some(lost) = act(effect, &mut own, open, ear) {
                return lost;
            }
        }
    }
}

fn act(effect: Effect, own: &mut Own, open: &Open<'_>, ear: &dyn Ear) -> Option<Lost> {
    match effect {
        Effect::Hear(heard) => ear.hear(heard),
        Effect::Say(line) => return answer(open, [line]),
        Effect::Reaches(reach) => open.reaches(reach),
        Effect::Called(now) if now != *own => {
            *own = now.clone();
            ear.connected(now);
        }
        Effect::Called(_) | Effect::Introduced => {}
        Effect::Lost(lost) => return Some(lost),
    }
    None
}

fn answer(open: &Open<'_>, lines: impl IntoIterator<Item = Line>) -> Option<Lost> {
    let failed = lines.into_iter().try_for_each(|line| open.answer(line)).is_err();
    failed.then(|| Lost::Connection("the server asks and does not read the answers".to_owned()))
}

/// Writes what waits until the connection is lost, as fast as the server wants it.
async fn say<W: AsyncWrite + Unpin>(mut writer: W, open: &Open<'_>) -> Lost {
    let mut flood = Flood::new(Instant::now());
    loop {
        let ready = flood.ready();
        match open.next() {
            Next::Nothing => open.changed().await,
            Next::Message if ready > Instant::now() => {
                // A change that is dropped with its wait is looked for anew; the time stands.
                tokio::select! {
                    () = open.changed() => {}
                    () = sleep_until(ready) => {}
                }
            }
            Next::Answer | Next::Message => match timeout(STALLED, say_next(&mut writer, open)).await {
                Ok(Ok(())) => flood.charge(Instant::now()),
                Ok(Err(error)) => return broken(&error),
                Err(_) => return Lost::Connection("the server does not read what it is sent".to_owned()),
            },
        }
    }
}

async fn say_next<W: AsyncWrite + Unpin>(writer: &mut W, open: &Open<'_>) -> io::Result<()> {
    let Some(begun) = poll_fn(|waking| open.poll_begin(waking, writer)).await? else { return Ok(()) };
    writer.write_all(&begun.rest).await?;
    writer.flush().await?;
    begun.written();
    Ok(())
}

async fn next<R: AsyncRead + Unpin>(incoming: &mut Incoming<R>) -> Result<Message, Lost> {
    match incoming.next().await {
        Ok(Some(message)) => Ok(message),
        Ok(None) => Err(Lost::Connection("the server closed the connection".to_owned())),
        Err(error) => Err(broken(&error)),
    }
}

async fn write<W: AsyncWrite + Unpin>(writer: &mut W, lines: &[Line]) -> Result<(), Lost> {
    for line in lines {
        writer.write_all(line.bytes()).await.map_err(|error| broken(&error))?;
    }
    writer.flush().await.map_err(|error| broken(&error))
}

pub(super) fn broken(error: &io::Error) -> Lost {
    Lost::Connection(format!("the connection broke off: {error}"))
}

fn silent(time: Duration) -> Lost {
    Lost::Connection(format!("the server said nothing for {} s", time.as_secs()))
}
