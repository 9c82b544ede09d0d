//! The life of one connection: challenge, `connect`, then requests and events until either side closes.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, SplitSink, SplitStream};
use futures_util::{FutureExt, SinkExt, StreamExt};
use quell_engine::dispatch::{Notice, Subscription};
use quell_protocol::RunEvent;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{self, Message, Utf8Bytes};
use uuid::Uuid;

use super::chat::Chats;
use super::follows::Follows;
use super::frame::{Refusal, Request};
use super::handshake::{self, Peer};
use super::intake::Intake;
use super::methods::{Begun, Call, Subscriptions, Work};
use super::outbox::{Outbox, Outgoing, Weight};
use super::transport::Socket;
use super::{BURST, CLOSE_GRACE, HANDSHAKE, MAX_BEFORE_AUTH, PING, TICK, Visit, close};
use crate::budget::Reservation;
use crate::door::{Door, StreamPlace};

/// Serves one socket to its end, or until it has to give way.
pub(super) async fn serve(opened: (Socket, Intake), door: Door, place: StreamPlace, visit: Visit) {
    let connection = visit.connection.clone();
    let evicted = async {
        match &connection {
            Some(connection) => connection.evicted().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = attend(opened, door, place, visit) => {}
        () = evicted => {}
    }
}

async fn attend((socket, intake): (Socket, Intake), door: Door, _place: StreamPlace, visit: Visit) {
    let (mut sink, stream) = socket.split();
    let mut frames = Frames { stream, intake: &intake, last: None };
    let outbox = Arc::new(Outbox::new(door.waiting()));
    let talk = async {
        let hall = Hall { door: &door, visit: &visit, intake: &intake };
        if let Some(peer) = shake_hands(&mut frames, &outbox, &hall).await {
            talk(&mut frames, &outbox, &door, &peer).await;
        }
        // Whoever got here without a close code of their own is done.
        outbox.close(close::NORMAL, "");
        std::future::pending::<()>().await;
    };
    tokio::select! {
        // The writer ends when a close frame was written or the client is gone; then nobody is there to talk to.
        () = write(&mut sink, &outbox) => {}
        () = talk => {}
    }
    if let Ok(socket) = sink.reunite(frames.stream) {
        // A client that stays gets the grace, not more.
        let _ = timeout(CLOSE_GRACE, linger(socket, &intake)).await;
    }
}

/// Reads on until the client has closed: a socket that is closed with something unread in it is reset, and the client would
/// lose the close frame that says why.
async fn linger(mut socket: Socket, intake: &Intake) {
    intake.wind_up();
    while let Some(Ok(frame)) = socket.next().await {
        if frame.is_close() {
            break;
        }
    }
    // After a bad frame there are no frames any more, only bytes.
    intake.discard();
    let raw = socket.get_mut();
    if raw.shutdown().await.is_ok() {
        let mut unread = vec![0; 16 * 1024];
        while raw.read(&mut unread).await.is_ok_and(|bytes| bytes > 0) {}
    }
}

async fn write(sink: &mut SplitSink<Socket, Message>, outbox: &Outbox) {
    loop {
        let next = outbox.next().await;
        let last = matches!(next, Outgoing::Close(..));
        let sent = async {
            match next {
                Outgoing::Text(text) => {
                    sink.feed(Message::text(text)).await?;
                    // What follows at once goes into the same write.
                    if outbox.is_empty() { sink.flush().await } else { Ok(()) }
                }
                Outgoing::Ping => sink.send(Message::Ping(bytes::Bytes::new())).await,
                Outgoing::Close(code, why) => {
                    let frame = CloseFrame { code: CloseCode::from(code), reason: why.into() };
                    // Fails when the client closed first; its frame was answered then, and closing flushes the answer.
                    let _ = sink.send(Message::Close(Some(frame))).await;
                    sink.close().await
                }
            }
        };
        let going_on = tokio::select! {
            sent = sent => sent.is_ok(),
            // A client that does not read, found out when the connection is to end. Half a frame is lost with it.
            () = no_longer(outbox) => false,
        };
        if last || !going_on {
            return;
        }
    }
}

/// Waits until the connection is to end, and its grace.
async fn no_longer(outbox: &Outbox) {
    outbox.closing().await;
    tokio::time::sleep(CLOSE_GRACE).await;
}

/// What the client sends.
struct Frames<'a> {
    stream: SplitStream<Socket>,
    intake: &'a Intake,
    /// The last message. The decoder goes on in the same memory, large as it may be, unless somebody else has a part in it
    /// when it looks for room.
    last: Option<Utf8Bytes>,
}

impl Frames<'_> {
    /// The next frame, with what its message has taken of the budget.
    async fn next(&mut self) -> Option<tungstenite::Result<(Message, Option<Reservation>)>> {
        let Self { stream, intake, last } = self;
        let next = poll_fn(|cx| {
            let next = stream.poll_next_unpin(cx);
            *last = None;
            next
        });
        let message = match next.await? {
            Ok(message) => message,
            Err(error) => return Some(Err(error)),
        };
        let held = match &message {
            Message::Text(text) => {
                *last = Some(text.clone());
                intake.message()
            }
            Message::Binary(_) => intake.message(),
            Message::Ping(payload) | Message::Pong(payload) => {
                intake.control(payload.len());
                None
            }
            Message::Close(_) | Message::Frame(_) => None,
        };
        Some(Ok((message, held)))
    }
}

/// Where the handshake takes place.
struct Hall<'a> {
    door: &'a Door,
    visit: &'a Visit,
    intake: &'a Intake,
}

async fn shake_hands(frames: &mut Frames<'_>, outbox: &Outbox, hall: &Hall<'_>) -> Option<Peer> {
    let Hall { door, visit, intake } = hall;
    let connection = Uuid::now_v7().to_string();
    let clock = door.engine().clock();
    let challenge = json!({"nonce": Uuid::now_v7().simple().to_string(), "ts": super::shapes::now_ms(clock)});
    outbox.unnumbered("connect.challenge", &challenge);
    let text = tokio::select! {
        first = timeout(HANDSHAKE, first_text(frames)) => match first {
            Ok(Ok(text)) => text,
            Ok(Err(Some((code, why)))) => {
                outbox.close(code, why);
                return None;
            }
            Ok(Err(None)) | Err(_) => return None,
        },
        () = door.engine().closing() => {
            outbox.close(close::RESTART, "service restart");
            return None;
        }
    };
    // What is no JSON at all gets no answer (research: openclaw.md 1.3).
    if serde_json::from_str::<serde_json::Value>(&text).is_err() {
        return None;
    }
    match first_request(&text, hall, &connection) {
        Ok((id, mut peer, hello)) => {
            peer.caller.origin = visit.origin.clone();
            if let Some(connection) = &visit.connection {
                connection.authenticated();
            }
            intake.admit(peer.largest_message(), door.intake());
            tracing::info!(principal = %peer.caller.principal, scope = ?peer.granted, "client connected");
            outbox.answer(&id, &Ok(hello));
            Some(peer)
        }
        Err((id, failed)) => {
            outbox.answer(&id, &Err(failed.refusal));
            outbox.close(failed.code, failed.why);
            None
        }
    }
}

fn first_request(
    text: &str,
    hall: &Hall<'_>,
    connection: &str,
) -> Result<(String, Peer, serde_json::Value), (String, Box<handshake::Failed>)> {
    let wrong = |refusal| Box::new(handshake::Failed::policy(refusal, "invalid handshake"));
    let request = Request::parse(text).map_err(|refusal| (Request::id_of(text), wrong(refusal)))?;
    if request.method != "connect" {
        let refusal = Refusal::invalid("invalid handshake: the first request must be connect");
        return Err((request.id, wrong(refusal)));
    }
    match handshake::connect(hall.door, hall.visit.browser.as_ref(), request.params, connection) {
        Ok((peer, hello)) => Ok((request.id, peer, hello)),
        Err(failed) => {
            if failed.is_bad_token {
                // It is told; the connection ends in any case.
                let _ = hall.door.attempts().failed(hall.visit.peer);
            }
            Err((request.id, Box::new(failed)))
        }
    }
}

/// The first text frame; else the close code that its absence deserves, if any.
async fn first_text(frames: &mut Frames<'_>) -> Result<String, Option<(u16, &'static str)>> {
    loop {
        match frames.next().await {
            Some(Ok((Message::Text(text), _))) if text.len() > MAX_BEFORE_AUTH => return Err(Some(too_big())),
            Some(Ok((Message::Text(text), _))) => return Ok(text.as_str().to_owned()),
            Some(Ok((Message::Ping(_) | Message::Pong(_), _))) => {}
            Some(Err(error)) => return Err(close_code(&error)),
            Some(Ok((Message::Binary(_) | Message::Close(_) | Message::Frame(_), _))) | None => return Err(None),
        }
    }
}

async fn talk(frames: &mut Frames<'_>, outbox: &Arc<Outbox>, door: &Door, peer: &Peer) {
    let subscriptions = Arc::new(Subscriptions::default());
    let access = door.engine().access();
    let mut withdrawals = access.withdrawals();
    let is_welcome = || access.owner(&peer.credential).is_some();
    let mut notices = door.engine().subscribe();
    let mut chats = Chats::new(door.engine().clone(), Arc::clone(outbox), peer.clone(), Arc::clone(&subscriptions));
    let mut follows = Follows::default();
    let mut calls = FuturesUnordered::new();
    let mut tick = interval_at(Instant::now() + TICK, TICK);
    let mut ping = interval_at(Instant::now() + PING, PING);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = Instant::now();
    loop {
        tokio::select! {
            biased;
            message = frames.next() => {
                heard = Instant::now();
                let line = Line { door, peer, subscriptions: &subscriptions, outbox };
                if line.hear(message, &mut calls, &mut follows).is_break() {
                    return;
                }
            }
            // The sender lives as long as the engine. The wait is for a turn, and each turn asks anew.
            _ = withdrawals.changed() => if !is_welcome() {
                outbox.close(close::POLICY, SIGNED_OUT);
                return;
            },
            notice = next_notice(&mut notices, peer) => match notice {
                Some(notice) => {
                    chats.show(&notice);
                    show_some(&mut notices, &mut chats, peer);
                }
                None => {
                    outbox.close(close::POLICY, "slow consumer");
                    return;
                }
            },
            () = chats.due() => chats.flush_due(),
            Some(followed) = calls.next() => if let Some(followed) = followed {
                follows.add(followed);
            },
            event = followed_event(&mut follows, outbox) => outbox.event("run.event", &*event, Weight::Fact),
            _ = tick.tick() => outbox.event("tick", &json!({"ts": super::shapes::now_ms(door.engine().clock())}), Weight::Fact),
            _ = ping.tick() => {
                if !is_welcome() {
                    outbox.close(close::POLICY, SIGNED_OUT);
                    return;
                }
                if heard.elapsed() > PING * 2 {
                    return;
                }
                if frames.intake.is_stuck() {
                    outbox.close(close::POLICY, "unfinished message");
                    return;
                }
                outbox.ping();
            }
            () = door.engine().closing() => {
                // What the engine said last is handed out before the end.
                while show_some(&mut notices, &mut chats, peer) {}
                outbox.close(close::RESTART, "service restart");
                return;
            }
        }
    }
}

/// Why a connection ends whose token was revoked, or whose browser signed out.
const SIGNED_OUT: &str = "signed out";

/// What a frame of the client is about.
struct Line<'a> {
    door: &'a Door,
    peer: &'a Peer,
    subscriptions: &'a Arc<Subscriptions>,
    outbox: &'a Arc<Outbox>,
}

impl Line<'_> {
    /// Takes what the client said, or that it is gone.
    fn hear(
        &self,
        message: Option<tungstenite::Result<(Message, Option<Reservation>)>>,
        calls: &mut FuturesUnordered<Work>,
        follows: &mut Follows,
    ) -> ControlFlow<()> {
        let Self { door, peer, subscriptions, outbox } = *self;
        match message {
            Some(Ok((Message::Text(text), held))) => {
                let (pending, followed) = (calls.len(), follows.len());
                match (Call { door, peer, subscriptions, outbox, pending, followed }).begin(&text, held) {
                    Begun::Done => {}
                    Begun::Later(work) => calls.push(work),
                    Begun::Follow(run, lookup) => calls.push(follows.expect(run, lookup)),
                    Begun::Unfollow(run) => follows.remove(&run),
                }
                // A client that asks faster than it can be answered is read all the same: the answers must not wait for that.
                while let Some(Some(followed)) = calls.next().now_or_never() {
                    if let Some(followed) = followed {
                        follows.add(followed);
                    }
                }
            }
            Some(Ok((Message::Binary(_), _))) => {
                let problem = "binary frames are not part of the protocol; send JSON text";
                outbox.answer("", &Err(Refusal::invalid(problem)));
            }
            Some(Ok((Message::Ping(_) | Message::Pong(_) | Message::Frame(_), _))) => {}
            Some(Err(error)) => {
                if let Some((code, why)) = close_code(&error) {
                    outbox.close(code, why);
                }
                return ControlFlow::Break(());
            }
            Some(Ok((Message::Close(_), _))) | None => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }
}

/// The next event of a run that the client follows, once there is room for it.
async fn followed_event(follows: &mut Follows, outbox: &Outbox) -> Arc<RunEvent> {
    outbox.room().await;
    follows.next().await
}

/// The next notice that is for this peer; `None` when the connection was too slow for the facts.
async fn next_notice(notices: &mut Subscription, peer: &Peer) -> Option<Notice> {
    loop {
        match notices.next().await {
            Ok(notice) if peer.may_see(&notice) => return Some(notice),
            Ok(_) => {}
            Err(_overrun) => return None,
        }
    }
}

/// Shows what waits, but not so much that a client that speaks would have to wait. True when there may be more.
fn show_some(notices: &mut Subscription, chats: &mut Chats, peer: &Peer) -> bool {
    for _ in 0..BURST {
        match notices.take() {
            Ok(Some(notice)) if peer.may_see(&notice) => chats.show(&notice),
            Ok(Some(_)) => {}
            // An overrun is for whoever waits for the next notice.
            Ok(None) | Err(_) => return false,
        }
    }
    true
}

fn close_code(error: &tungstenite::Error) -> Option<(u16, &'static str)> {
    match error {
        tungstenite::Error::Capacity(_) => Some(too_big()),
        tungstenite::Error::Io(error) if error.kind() == std::io::ErrorKind::FileTooLarge => Some(too_big()),
        tungstenite::Error::Io(error) if error.kind() == std::io::ErrorKind::OutOfMemory => {
            Some((close::TRY_AGAIN, "too much is being received at the same time"))
        }
        tungstenite::Error::Protocol(_) | tungstenite::Error::Utf8(_) => Some((close::PROTOCOL, "invalid frame")),
        _ => None,
    }
}

fn too_big() -> (u16, &'static str) {
    (close::TOO_BIG, "message too big")
}
