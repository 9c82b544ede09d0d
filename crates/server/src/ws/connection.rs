//! Run one WebSocket connection: handshake, requests, events, close.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, SplitSink, SplitStream};
use futures_util::{FutureExt, SinkExt, StreamExt};
use quell_engine::access::Caller;
use quell_engine::engine::{EngineNotice, Subscription};
use quell_protocol::{RunEvent, Surface};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{self, Message, Utf8Bytes};
use uuid::Uuid;

use super::event_forwarder::EventForwarder;
use super::followed_runs::{FollowLookupResult, FollowedRuns, PendingRequest};
use super::frame::{RequestFrame, RpcError};
use super::handshake;
use super::methods::{ConnectionLoad, RequestOutcome, WsClient, WsSubscriptions};
use super::outbox::{ClientOutbox, DropPolicy, OutgoingFrame};
use super::peer::WsPeer;
use super::receive_limits::ReceiveLimiter;
use super::upgrade::WsSocket;
use super::{
    CLOSE_GRACE, HANDSHAKE_TIMEOUT, MAX_PAYLOAD_BEFORE_AUTH, NOTICE_BURST, PING_INTERVAL, TICK_INTERVAL, UpgradeInfo,
    close,
};
use crate::budget::Reservation;
use crate::state::ServerState;
use crate::stream_end::StreamEnd;

/// Serves one socket until it ends or is evicted.
pub(super) async fn serve_socket(
    socket: WsSocket,
    receive_limiter: ReceiveLimiter,
    server: ServerState,
    permit: Reservation,
    upgrade_info: UpgradeInfo,
) {
    let connection = upgrade_info.connection.clone();
    let evicted = async {
        match &connection {
            Some(connection) => connection.evicted().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = run_connection(socket, receive_limiter, server, permit, upgrade_info) => {}
        () = evicted => {}
    }
}

async fn run_connection(
    socket: WsSocket,
    receive_limiter: ReceiveLimiter,
    server: ServerState,
    _permit: Reservation,
    upgrade_info: UpgradeInfo,
) {
    let (mut sink, stream) = socket.split();
    let mut frames = IncomingMessages { stream, receive_limiter: &receive_limiter, last_text: None };
    let outbox = Arc::new(ClientOutbox::new(&server.budgets().send));
    let processing = async {
        let deps = HandshakeDeps { server: &server, upgrade_info: &upgrade_info, receive_limiter: &receive_limiter };
        if let Some((peer, notices)) = perform_handshake(&mut frames, &outbox, &deps).await {
            let (server, outbox) = (server.clone(), Arc::clone(&outbox));
            let subscriptions = WsSubscriptions::default();
            let client = WsClient { server, peer, subscriptions, outbox, is_forwarded: false };
            process_messages(&mut frames, Arc::new(client), notices).await;
        }
        // Ends a connection that has no other close code yet.
        outbox.close(close::NORMAL, "");
        std::future::pending::<()>().await;
    };
    tokio::select! {
        // The writer ends when a close frame was written or the client is gone.
        () = write_outgoing(&mut sink, &outbox) => {}
        () = processing => {}
    }
    if let Ok(socket) = sink.reunite(frames.stream) {
        // Wait for the client's close, but not longer than the grace.
        let _ = timeout(CLOSE_GRACE, drain_until_closed(socket, &receive_limiter)).await;
    }
}

/// Reads until the client has closed. Closing a socket with unread data resets it, and the client would lose the close
/// frame.
async fn drain_until_closed(mut socket: WsSocket, receive_limiter: &ReceiveLimiter) {
    receive_limiter.limit_to_close_frame();
    while let Some(Ok(frame)) = socket.next().await {
        if frame.is_close() {
            break;
        }
    }
    // After an invalid frame there are no frames any more, only bytes.
    receive_limiter.ignore_remaining();
    let raw = socket.get_mut();
    if raw.shutdown().await.is_ok() {
        let mut unread = vec![0; 16 * 1024];
        while raw.read(&mut unread).await.is_ok_and(|bytes| bytes > 0) {}
    }
}

async fn write_outgoing(sink: &mut SplitSink<WsSocket, Message>, outbox: &ClientOutbox) {
    loop {
        let next = outbox.next().await;
        let last = matches!(next, OutgoingFrame::Close(..));
        let sent = async {
            match next {
                OutgoingFrame::Text(text) => {
                    sink.feed(Message::text(text)).await?;
                    // Write frames that follow at once together.
                    if outbox.is_empty() { sink.flush().await } else { Ok(()) }
                }
                OutgoingFrame::Ping => sink.send(Message::Ping(bytes::Bytes::new())).await,
                OutgoingFrame::Close(code, why) => {
                    let frame = CloseFrame { code: CloseCode::from(code), reason: why.into() };
                    // Fails if the client closed first; its close frame was answered then, and closing flushes that
                    // answer.
                    let _ = sink.send(Message::Close(Some(frame))).await;
                    sink.close().await
                }
            }
        };
        let can_continue = tokio::select! {
            sent = sent => sent.is_ok(),
            // A client that does not read is given up when the connection is to end; a half-written frame is lost.
            () = close_grace_elapsed(outbox) => false,
        };
        if last || !can_continue {
            return;
        }
    }
}

/// Waits until the connection is to end, and then for the grace.
async fn close_grace_elapsed(outbox: &ClientOutbox) {
    outbox.wait_closing().await;
    tokio::time::sleep(CLOSE_GRACE).await;
}

struct IncomingMessages<'a> {
    stream: SplitStream<WsSocket>,
    receive_limiter: &'a ReceiveLimiter,
    /// The last text message. Holding a clone makes the decoder allocate a new buffer instead of reusing one that may
    /// be large.
    last_text: Option<Utf8Bytes>,
}

impl IncomingMessages<'_> {
    /// The next frame, with the budget reservation of its message.
    async fn next(&mut self) -> Option<tungstenite::Result<(Message, Option<Reservation>)>> {
        let Self { stream, receive_limiter, last_text: last } = self;
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
                receive_limiter.finish_message()
            }
            Message::Binary(_) => receive_limiter.finish_message(),
            Message::Ping(payload) | Message::Pong(payload) => {
                receive_limiter.count_control_frame(payload.len());
                None
            }
            Message::Close(_) | Message::Frame(_) => None,
        };
        Some(Ok((message, held)))
    }
}

struct HandshakeDeps<'a> {
    server: &'a ServerState,
    upgrade_info: &'a UpgradeInfo,
    receive_limiter: &'a ReceiveLimiter,
}

/// Returns the client, and the events since before it was told that it is connected.
async fn perform_handshake(
    frames: &mut IncomingMessages<'_>,
    outbox: &ClientOutbox,
    deps: &HandshakeDeps<'_>,
) -> Option<(WsPeer, Subscription)> {
    let HandshakeDeps { server, upgrade_info, receive_limiter } = deps;
    let connection = Uuid::now_v7().to_string();
    let clock = server.engine().clock();
    let challenge = json!({"nonce": Uuid::now_v7().simple().to_string(), "ts": super::payloads::now_ms(clock)});
    outbox.push_unnumbered_event("connect.challenge", &challenge);
    let text = tokio::select! {
        first = timeout(HANDSHAKE_TIMEOUT, read_first_text(frames)) => match first {
            Ok(Ok(text)) => text,
            Ok(Err(Some((code, why)))) => {
                outbox.close(code, why);
                return None;
            }
            Ok(Err(None)) | Err(_) => return None,
        },
        () = server.engine().wait_for_close() => {
            outbox.close(close::RESTART, "service restart");
            return None;
        }
    };
    // A first frame that is not JSON gets no answer, as in OpenClaw's gateway.
    if serde_json::from_str::<serde_json::Value>(&text).is_err() {
        return None;
    }
    match parse_connect(&text, deps, &connection) {
        Ok((id, mut peer, hello)) => {
            peer.caller.origin = upgrade_info.origin.clone();
            peer.caller.verified_person |= upgrade_info.is_unix_peer;
            if let Some(connection) = &upgrade_info.connection {
                connection.mark_authenticated();
            }
            receive_limiter.set_authenticated(peer.largest_message(), &server.budgets().receive);
            server.engine().audit_token_use(&peer.caller);
            tracing::info!(principal = %peer.caller.principal, scope = ?peer.granted, "client connected");
            let notices = server.engine().subscribe();
            tokio::select! {
                () = server.engine().wait_for_peer_events() => {}
                () = server.engine().wait_for_close() => {}
            }
            outbox.push_response(&id, &Ok(hello));
            Some((peer, notices))
        }
        Err((id, failed)) => {
            outbox.push_response(&id, &Err(failed.refusal));
            outbox.close(failed.close_code, failed.close_reason);
            None
        }
    }
}

fn parse_connect(
    text: &str,
    deps: &HandshakeDeps<'_>,
    connection: &str,
) -> Result<(String, WsPeer, serde_json::Value), (String, Box<handshake::HandshakeError>)> {
    let handshake_error = |refusal| Box::new(handshake::HandshakeError::policy_violation(refusal, "invalid handshake"));
    let request =
        RequestFrame::parse(text).map_err(|refusal| (RequestFrame::parse_id(text), handshake_error(refusal)))?;
    if request.method != "connect" {
        let refusal = RpcError::invalid("invalid handshake: the first request must be connect");
        return Err((request.id, handshake_error(refusal)));
    }
    match handshake::accept_connect(
        deps.server,
        deps.upgrade_info.browser_cookie.as_deref(),
        request.params,
        connection,
    ) {
        Ok((peer, hello)) => Ok((request.id, peer, hello)),
        Err(failed) => {
            if let Some(refusal) = &failed.refused_credential {
                // The wait time is not used: the connection ends in any case.
                let _ = deps.server.auth_failures().record(deps.upgrade_info.peer);
                let origin = deps.upgrade_info.origin.clone();
                if let Some(caller) = Caller::refused(refusal, Surface::Ws, origin) {
                    deps.server.engine().audit_refusal(&caller, "connect", &refusal.to_string());
                }
            }
            Err((request.id, Box::new(failed)))
        }
    }
}

/// Reads the first text frame. The error is the close code and reason to send, if any.
async fn read_first_text(frames: &mut IncomingMessages<'_>) -> Result<String, Option<(u16, &'static str)>> {
    loop {
        match frames.next().await {
            Some(Ok((Message::Text(text), _))) if text.len() > MAX_PAYLOAD_BEFORE_AUTH => return Err(Some(too_big())),
            Some(Ok((Message::Text(text), _))) => return Ok(text.as_str().to_owned()),
            Some(Ok((Message::Ping(_) | Message::Pong(_), _))) => {}
            Some(Err(error)) => return Err(close_code(&error)),
            Some(Ok((Message::Binary(_) | Message::Close(_) | Message::Frame(_), _))) | None => return Err(None),
        }
    }
}

async fn process_messages(frames: &mut IncomingMessages<'_>, client: Arc<WsClient>, mut notices: Subscription) {
    let WsClient { server, peer, outbox, .. } = &*client;
    let access = server.engine().access();
    let mut credential_end = std::pin::pin!(access.wait_credential_end(&peer.credential));
    let mut withdrawals = server.engine().subscribe_withdrawals();
    let mut forwarder = EventForwarder::new(Arc::clone(&client));
    let mut followed_runs = FollowedRuns::default();
    let mut calls = FuturesUnordered::new();
    let mut tick = interval_at(Instant::now() + TICK_INTERVAL, TICK_INTERVAL);
    let mut ping = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_received = Instant::now();
    loop {
        tokio::select! {
            biased;
            // First, so that a client that sends without a pause does not keep its connection.
            refusal = &mut credential_end => {
                outbox.close(close::POLICY, StreamEnd::Credential(refusal).reason());
                return;
            }
            // The sender lives as long as the engine.
            _ = withdrawals.changed() => end_unreadable_streams(&client, &mut forwarder, &mut followed_runs),
            message = frames.next() => {
                last_received = Instant::now();
                if dispatch_message(&client, message, &mut calls, &mut followed_runs).is_break() {
                    return;
                }
            }
            notice = next_notice(&mut notices, peer) => match notice {
                Some(notice) => {
                    forwarder.forward_notice(&notice);
                    forward_ready_notices(&mut notices, &mut forwarder, peer);
                }
                None => {
                    outbox.close(close::POLICY, "slow consumer");
                    return;
                }
            },
            () = forwarder.wait_until_due() => forwarder.flush_due(),
            Some(lookup_result) = calls.next() => if let Some(lookup_result) = lookup_result {
                finish_lookup(&client, &mut followed_runs, lookup_result);
            },
            event = next_followed_event(&mut followed_runs, outbox) => {
                if let Some(event) = server.engine().visible_event(&peer.caller, event) {
                    outbox.push_event("run.event", &*event, DropPolicy::MustDeliver);
                }
            }
            _ = tick.tick() => outbox.push_event("tick", &json!({"ts": super::payloads::now_ms(server.engine().clock())}), DropPolicy::MustDeliver),
            _ = ping.tick() => {
                if last_received.elapsed() > PING_INTERVAL * 2 {
                    return;
                }
                if frames.receive_limiter.is_stuck() {
                    outbox.close(close::POLICY, "unfinished message");
                    return;
                }
                outbox.push_ping();
            }
            () = server.engine().wait_for_close() => {
                // Forward the engine's last notices before the end.
                while forward_ready_notices(&mut notices, &mut forwarder, peer) {}
                outbox.close(close::RESTART, "service restart");
                return;
            }
        }
    }
}

/// Ends what the client receives of runs that it may not read any more.
fn end_unreadable_streams(client: &WsClient, forwarder: &mut EventForwarder, followed_runs: &mut FollowedRuns) {
    forwarder.drop_unreadable_runs();
    let (engine, caller) = (client.engine(), &client.peer.caller);
    let reason = StreamEnd::SharingWithdrawn;
    for run in followed_runs.remove_where(|principal, session| !engine.may_read_run(caller, principal, session)) {
        let payload = json!({"runId": run, "code": reason.code(), "reason": reason.reason()});
        client.outbox.push_event("run.unfollowed", &payload, DropPolicy::MustDeliver);
    }
}

/// Begins to follow a run that was found. If the right to read it was lost meanwhile, that ends again at once.
fn finish_lookup(client: &WsClient, followed_runs: &mut FollowedRuns, lookup_result: FollowLookupResult) {
    let (engine, caller) = (client.engine(), &client.peer.caller);
    followed_runs.finish_lookup(lookup_result, |principal, session| engine.may_read_run(caller, principal, session));
}

/// Handles one message of the client, or the end of its stream.
fn dispatch_message(
    client: &Arc<WsClient>,
    message: Option<tungstenite::Result<(Message, Option<Reservation>)>>,
    calls: &mut FuturesUnordered<PendingRequest>,
    followed_runs: &mut FollowedRuns,
) -> ControlFlow<()> {
    match message {
        Some(Ok((Message::Text(text), held))) => {
            let load = ConnectionLoad { pending_requests: calls.len(), followed_runs: followed_runs.len() };
            match client.handle_request(&text, held, load) {
                RequestOutcome::Answered => {}
                RequestOutcome::Pending(work) => calls.push(work),
                RequestOutcome::Follow(run, lookup) => calls.push(followed_runs.start_lookup(run, lookup)),
                RequestOutcome::Unfollow(run) => followed_runs.remove(&run),
            }
            // Finish completed calls here, too: a client that sends faster than it is answered keeps the read arm of
            // the loop ready.
            while let Some(Some(lookup_result)) = calls.next().now_or_never() {
                if let Some(lookup_result) = lookup_result {
                    finish_lookup(client, followed_runs, lookup_result);
                }
            }
        }
        Some(Ok((Message::Binary(_), _))) => {
            let problem = "binary frames are not part of the protocol; send JSON text";
            client.outbox.push_response("", &Err(RpcError::invalid(problem)));
        }
        Some(Ok((Message::Ping(_) | Message::Pong(_) | Message::Frame(_), _))) => {}
        Some(Err(error)) => {
            if let Some((code, why)) = close_code(&error) {
                client.outbox.close(code, why);
            }
            return ControlFlow::Break(());
        }
        Some(Ok((Message::Close(_), _))) | None => return ControlFlow::Break(()),
    }
    ControlFlow::Continue(())
}

/// The next event of a followed run, once the outbox has room for it.
async fn next_followed_event(followed_runs: &mut FollowedRuns, outbox: &ClientOutbox) -> Arc<RunEvent> {
    outbox.wait_for_room().await;
    followed_runs.next().await
}

/// The next notice that this peer may receive; `None` if the connection was too slow and lost notices.
async fn next_notice(notices: &mut Subscription, peer: &WsPeer) -> Option<EngineNotice> {
    loop {
        match notices.next().await {
            Ok(notice) if peer.may_receive(&notice) => return Some(notice),
            Ok(_) => {}
            Err(_overrun) => return None,
        }
    }
}

/// Forwards waiting notices, at most [`NOTICE_BURST`], so that the client's messages do not have to wait. True if there
/// may be more.
fn forward_ready_notices(notices: &mut Subscription, forwarder: &mut EventForwarder, peer: &WsPeer) -> bool {
    for _ in 0..NOTICE_BURST {
        match notices.try_next() {
            Ok(Some(notice)) if peer.may_receive(&notice) => forwarder.forward_notice(&notice),
            Ok(Some(_)) => {}
            // `next_notice` reports an overrun.
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
