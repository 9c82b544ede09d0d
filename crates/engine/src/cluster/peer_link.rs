//! Requests between nodes, with answers in parts. Frames travel in letters; how letters travel is decided in
//! `letter_exchange`.
//!
//! Both ends give up a call when the membership of the other one ends, so nothing waits for a dead node longer than its
//! lease.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use quell_kernel::lease::Epoch;
use quell_store::Membership;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::frame::{Frame, FrameHead, MAX_PART_BYTES, join_parts, split_parts};

/// Frames of each priority that may wait to be sent. Beyond that a call fails instead of being queued.
const MAX_WAITING_FRAMES: usize = 16_384;
/// Parts of an answer that may wait for their reader. A reader that is slower loses the call.
const MAX_WAITING_PARTS: usize = 1024;
/// A request that is being received in parts, at most: the largest body of the API and its head.
const MAX_REQUEST_BYTES: usize = 64 * 1024 * 1024;

/// Why an answer of another node is not complete.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerCallError {
    #[error("the node has left the cluster, or does not answer any more")]
    Gone,
    /// Probably nobody has received the request.
    #[error("the request could not be delivered")]
    NotDelivered,
    #[error("a part of the answer was lost on the way")]
    Lost,
    #[error("the answer was read too slowly")]
    TooSlow,
    #[error("{0}")]
    Failed(String),
}

/// A frame on its way to another node.
#[derive(Debug)]
pub(super) struct OutgoingPeerFrame {
    pub(super) to: Membership,
    pub(super) frame: Frame,
    priority: FramePriority,
}

/// The order in which frames are sent. All frames of a call have the same, but for the reason of an early end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FramePriority {
    /// Requests, which may be stops, and answers to stops.
    Urgent,
    /// Events, and answers that may be long.
    Other,
}

/// Frames that wait to be sent.
#[derive(Debug)]
pub struct OutgoingFrames {
    urgent: mpsc::Receiver<OutgoingPeerFrame>,
    others: mpsc::Receiver<OutgoingPeerFrame>,
}

#[derive(Debug)]
pub(super) struct FrameSender {
    urgent: mpsc::Sender<OutgoingPeerFrame>,
    others: mpsc::Sender<OutgoingPeerFrame>,
}

/// A queue that holds this many frames of each priority.
pub(super) fn frame_queue(capacity: usize) -> (FrameSender, OutgoingFrames) {
    let ((urgent, urgent_frames), (others, other_frames)) = (mpsc::channel(capacity), mpsc::channel(capacity));
    (FrameSender { urgent, others }, OutgoingFrames { urgent: urgent_frames, others: other_frames })
}

impl FrameSender {
    /// False if too many frames wait.
    pub(super) fn try_send(&self, outgoing: OutgoingPeerFrame) -> bool {
        let queue = match outgoing.priority {
            FramePriority::Urgent => &self.urgent,
            FramePriority::Other => &self.others,
        };
        queue.try_send(outgoing).is_ok()
    }
}

impl OutgoingFrames {
    /// The next frame to send; `None` when the link is gone.
    ///
    /// # Cancel safety
    /// Safe: no frame is lost.
    pub(super) async fn next(&mut self) -> Option<OutgoingPeerFrame> {
        tokio::select! {
            biased;
            Some(frame) = self.urgent.recv() => Some(frame),
            Some(frame) = self.others.recv() => Some(frame),
            else => None,
        }
    }

    /// The next frames to send, without waiting for more than the first; none when the link is gone.
    ///
    /// # Cancel safety
    /// Safe: no frame is lost.
    pub(super) async fn next_batch(&mut self, limit: usize) -> Vec<OutgoingPeerFrame> {
        let mut batch: Vec<OutgoingPeerFrame> = self.next().await.into_iter().collect();
        while !batch.is_empty()
            && batch.len() < limit
            && let Ok(frame) = self.urgent.try_recv().or_else(|_| self.others.try_recv())
        {
            batch.push(frame);
        }
        batch
    }
}

/// What the engine does with the frames of other nodes. Called in the order in which they arrive, so it must not wait.
pub trait PeerHandler: Send + Sync {
    /// Answers a request: its head as JSON, and its body.
    fn answer_request(&self, from: &Membership, head: &[u8], body: Vec<u8>, answer: PeerAnswer);

    fn receive_events(&self, from: &Membership, events: &[u8]);

    /// Events of another node may have been lost.
    fn note_lost_events(&self, from: &Membership);
}

/// Clones share one link.
#[derive(Clone)]
pub struct PeerLink(Arc<PeerLinkInner>);

struct PeerLinkInner {
    outgoing: FrameSender,
    state: Mutex<LinkState>,
    handler: OnceLock<Box<dyn PeerHandler>>,
}

#[derive(Default)]
struct LinkState {
    /// The number of the next call.
    next_call: u64,
    calls: HashMap<u64, PendingPeerCall>,
    /// Requests of which parts are missing.
    requests: HashMap<(Epoch, u64), PartialRequest>,
    /// Requests of others that are being answered.
    answering: HashMap<(Epoch, u64), CancellationToken>,
    /// Requests with lower numbers were given up by the node that has sent them. They can still arrive, on another way.
    given_up_before: HashMap<Epoch, u64>,
}

struct PendingPeerCall {
    peer: Membership,
    next_number: u32,
    parts: mpsc::Sender<Result<Vec<u8>, PeerCallError>>,
}

#[derive(Default)]
struct PartialRequest {
    next_number: u32,
    bytes: Vec<u8>,
}

impl PeerLink {
    /// A link, and the frames that it wants to send.
    pub fn new() -> (Self, OutgoingFrames) {
        let (outgoing, frames) = frame_queue(MAX_WAITING_FRAMES);
        let inner = PeerLinkInner { outgoing, state: Mutex::default(), handler: OnceLock::new() };
        (Self(Arc::new(inner)), frames)
    }

    /// Sets who answers requests. Frames that arrive earlier are dropped.
    pub fn set_handler(&self, handler: Box<dyn PeerHandler>) {
        let _ = self.0.handler.set(handler);
    }

    /// Sends a request. Not async: when it returns, the request is on its way.
    pub fn call(&self, peer: &Membership, head: &[u8], body: &[u8]) -> PeerCall {
        // One place is kept for the reason of an early end.
        let (sender, parts) = mpsc::channel(MAX_WAITING_PARTS + 1);
        let open = PendingPeerCall { peer: peer.clone(), next_number: 0, parts: sender };
        let call = {
            // Numbered and open at the same moment, for `give_up`.
            let mut state = self.lock();
            state.next_call += 1;
            let call = state.next_call - 1;
            state.calls.insert(call, open);
            call
        };
        let request = join_parts(head, body);
        let count = request.chunks(MAX_PART_BYTES).count();
        let frames = (0..).zip(request.chunks(MAX_PART_BYTES)).map(|(number, part)| {
            let last = usize::try_from(number).is_ok_and(|number| number + 1 == count);
            Frame::new(FrameHead::Request { call, number, last }, part.to_vec())
        });
        for frame in frames {
            if !self.send(peer, frame, FramePriority::Urgent) {
                self.end_call(call, PeerCallError::NotDelivered);
                self.send(peer, Frame::new(FrameHead::Cancel { call }, Vec::new()), FramePriority::Urgent);
                break;
            }
        }
        PeerCall { link: self.clone(), peer: peer.clone(), call, parts, received: Vec::new(), is_ended: false }
    }

    /// Sends events to the clients of another node.
    pub fn send_events(&self, peer: &Membership, events: Vec<u8>) -> bool {
        self.send(peer, Frame::new(FrameHead::Events, events), FramePriority::Other)
    }

    /// False if too many frames wait.
    fn send(&self, peer: &Membership, frame: Frame, priority: FramePriority) -> bool {
        self.0.outgoing.try_send(OutgoingPeerFrame { to: peer.clone(), frame, priority })
    }

    /// Processes a frame of another node.
    pub(super) fn receive(&self, from: &Membership, frame: Frame) {
        let Frame { head, part } = frame;
        match head {
            FrameHead::Request { call, number, last } => self.receive_request(from, call, (number, last), part),
            FrameHead::Answer { call, number } => self.receive_part(from, call, number, part),
            FrameHead::End { call, number, error } => {
                let error = error.map(PeerCallError::Failed);
                let mut state = self.lock();
                let Some(open) = state.calls.get(&call).filter(|open| open.peer == *from) else { return };
                let lost = (open.next_number != number).then_some(PeerCallError::Lost);
                if let (Some(error), Some(open)) = (error.or(lost), state.calls.remove(&call)) {
                    let _ = open.parts.try_send(Err(error));
                }
                state.calls.remove(&call);
            }
            FrameHead::Cancel { call } => {
                let mut state = self.lock();
                state.requests.remove(&(from.epoch, call));
                if let Some(cancelled) = state.answering.remove(&(from.epoch, call)) {
                    cancelled.cancel();
                }
            }
            FrameHead::Interrupt { before } => {
                self.give_up(from);
                self.lock().given_up_before.insert(from.epoch, before);
                self.with_handler(|handler| handler.note_lost_events(from));
            }
            FrameHead::EventsLost => self.with_handler(|handler| handler.note_lost_events(from)),
            FrameHead::Events => self.with_handler(|handler| handler.receive_events(from, &part)),
        }
    }

    fn with_handler(&self, act: impl FnOnce(&dyn PeerHandler)) {
        if let Some(handler) = self.0.handler.get() {
            act(&**handler);
        }
    }

    fn receive_request(&self, from: &Membership, call: u64, (number, last): (u32, bool), part: Vec<u8>) {
        let key = (from.epoch, call);
        let mut state = self.lock();
        if state.given_up_before.get(&from.epoch).is_some_and(|before| call < *before) {
            return;
        }
        let request = state.requests.entry(key).or_default();
        if request.next_number != number || request.bytes.len() + part.len() > MAX_REQUEST_BYTES {
            state.requests.remove(&key);
            drop(state);
            let error = Some("a part of the request was lost on the way, or it is too long".to_owned());
            self.send(from, Frame::new(FrameHead::End { call, number: 0, error }, Vec::new()), FramePriority::Urgent);
            return;
        }
        request.next_number += 1;
        request.bytes.extend_from_slice(&part);
        if !last {
            return;
        }
        let bytes = state.requests.remove(&key).map(|request| request.bytes).unwrap_or_default();
        let cancelled = CancellationToken::new();
        state.answering.insert(key, cancelled.clone());
        drop(state);
        let answer = PeerAnswer {
            link: Arc::downgrade(&self.0),
            to: from.clone(),
            call,
            next_number: 0,
            priority: FramePriority::Other,
            cancelled,
            is_ended: false,
        };
        let Some((head, body)) = split_parts(&bytes) else { return };
        self.with_handler(|handler| handler.answer_request(from, head, body.to_vec(), answer));
    }

    fn receive_part(&self, from: &Membership, call: u64, number: u32, part: Vec<u8>) {
        let mut state = self.lock();
        let Some(open) = state.calls.get_mut(&call).filter(|open| open.peer == *from) else { return };
        let problem = if open.next_number == number {
            open.next_number += 1;
            let has_room = open.parts.capacity() > 1;
            if has_room && open.parts.try_send(Ok(part)).is_ok() { None } else { Some(PeerCallError::TooSlow) }
        } else {
            Some(PeerCallError::Lost)
        };
        drop(state);
        if let Some(problem) = problem {
            self.end_call(call, problem);
            self.send(from, Frame::new(FrameHead::Cancel { call }, Vec::new()), FramePriority::Urgent);
        }
    }

    fn end_call(&self, call: u64, error: PeerCallError) {
        if let Some(open) = self.lock().calls.remove(&call) {
            let _ = open.parts.try_send(Err(error));
        }
    }

    /// Ends the calls to nodes that are not at work any more, and what is being answered for them.
    pub fn drop_calls_of_gone_nodes(&self, is_at_work: impl Fn(Epoch) -> bool) {
        let mut state = self.lock();
        let gone: Vec<u64> =
            state.calls.iter().filter(|(_, open)| !is_at_work(open.peer.epoch)).map(|(call, _)| *call).collect();
        state.requests.retain(|(epoch, _), _| is_at_work(*epoch));
        state.given_up_before.retain(|epoch, _| is_at_work(*epoch));
        state.answering.retain(|(epoch, _), cancelled| {
            if !is_at_work(*epoch) {
                cancelled.cancel();
            }
            is_at_work(*epoch)
        });
        drop(state);
        gone.into_iter().for_each(|call| self.end_call(call, PeerCallError::Gone));
    }

    /// Gives up what is open with another node, because something was lost, and tells it so: what was lost may be the
    /// end of an answer, of which nothing is known here any more.
    pub(super) fn interrupt(&self, peer: &Membership) {
        let before = self.give_up(peer);
        self.send(peer, Frame::new(FrameHead::Interrupt { before }, Vec::new()), FramePriority::Urgent);
    }

    /// As [`PeerLink::interrupt`], and events of the other node are among what was lost.
    pub(super) fn note_gap(&self, peer: &Membership) {
        self.interrupt(peer);
        self.with_handler(|handler| handler.note_lost_events(peer));
    }

    /// Tells another node that events for its clients were lost. False if too many frames wait.
    pub fn send_lost_events(&self, peer: &Membership) -> bool {
        self.send(peer, Frame::new(FrameHead::EventsLost, Vec::new()), FramePriority::Other)
    }

    /// Returns the number of the first call that was not given up.
    fn give_up(&self, peer: &Membership) -> u64 {
        let mut state = self.lock();
        let before = state.next_call;
        let of_peer = state.calls.iter().filter(|(_, open)| open.peer == *peer);
        let calls: Vec<(u64, u32)> = of_peer.map(|(call, open)| (*call, open.next_number)).collect();
        state.requests.retain(|(epoch, _), _| *epoch != peer.epoch);
        state.answering.retain(|(epoch, _), cancelled| {
            if *epoch == peer.epoch {
                cancelled.cancel();
            }
            *epoch != peer.epoch
        });
        drop(state);
        for (call, next_number) in calls {
            let error = if next_number == 0 { PeerCallError::NotDelivered } else { PeerCallError::Lost };
            self.end_call(call, error);
        }
        before
    }

    fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for PeerLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerLink")
    }
}

/// A request to another node, and the parts of its answer. Dropped, it tells the other node.
#[derive(Debug)]
pub struct PeerCall {
    link: PeerLink,
    peer: Membership,
    call: u64,
    parts: mpsc::Receiver<Result<Vec<u8>, PeerCallError>>,
    /// The beginning of the next message.
    received: Vec<u8>,
    is_ended: bool,
}

impl PeerCall {
    pub fn peer(&self) -> &Membership {
        &self.peer
    }

    /// The next message of the answer; `None` after the last one.
    ///
    /// # Cancel safety
    /// Safe: what was received of a message is kept.
    pub async fn next(&mut self) -> Option<Result<Vec<u8>, PeerCallError>> {
        loop {
            if let Some((message, rest)) = split_parts(&self.received) {
                let (message, rest) = (message.to_vec(), rest.to_vec());
                self.received = rest;
                return Some(Ok(message));
            }
            if self.is_ended {
                return None;
            }
            match self.parts.recv().await {
                Some(Ok(part)) => self.received.extend_from_slice(&part),
                Some(Err(error)) => {
                    self.is_ended = true;
                    return Some(Err(error));
                }
                None => self.is_ended = true,
            }
        }
    }
}

impl Drop for PeerCall {
    fn drop(&mut self) {
        if self.link.lock().calls.remove(&self.call).is_some() {
            self.link.send(
                &self.peer,
                Frame::new(FrameHead::Cancel { call: self.call }, Vec::new()),
                FramePriority::Urgent,
            );
        }
    }
}

/// The answer to a request of another node. Dropped before its end, it fails.
#[derive(Debug)]
pub struct PeerAnswer {
    link: Weak<PeerLinkInner>,
    to: Membership,
    call: u64,
    next_number: u32,
    priority: FramePriority,
    cancelled: CancellationToken,
    is_ended: bool,
}

impl PeerAnswer {
    /// This answer, sent before those that are not urgent. To be called before anything of it was sent.
    #[must_use]
    pub fn urgent(mut self) -> Self {
        self.priority = FramePriority::Urgent;
        self
    }

    /// Cancelled when the other node does not want the rest, or is gone.
    pub fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }

    /// Sends a message of the answer. False if it could not be sent; the answer has then failed.
    pub fn send(&mut self, message: &[u8]) -> bool {
        for part in join_parts(message, &[]).chunks(MAX_PART_BYTES) {
            let number = self.next_number;
            self.next_number += 1;
            if !self.send_frame(FrameHead::Answer { call: self.call, number }, part.to_vec()) {
                self.cancelled.cancel();
                return false;
            }
        }
        true
    }

    /// Completes the answer.
    pub fn end(mut self) {
        self.send_end(None);
    }

    pub fn fail(mut self, error: String) {
        self.send_end(Some(error));
    }

    fn send_end(&mut self, error: Option<String>) {
        if self.is_ended {
            return;
        }
        self.is_ended = true;
        if error.is_some() {
            // It may have failed because too many frames wait.
            self.priority = FramePriority::Urgent;
        }
        self.send_frame(FrameHead::End { call: self.call, number: self.next_number, error }, Vec::new());
        if let Some(link) = self.link.upgrade() {
            PeerLink(link).lock().answering.remove(&(self.to.epoch, self.call));
        }
    }

    fn send_frame(&self, head: FrameHead, part: Vec<u8>) -> bool {
        self.link.upgrade().is_some_and(|link| PeerLink(link).send(&self.to, Frame::new(head, part), self.priority))
    }
}

impl Drop for PeerAnswer {
    fn drop(&mut self) {
        self.send_end(Some("the node has given up the request".to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::FutureExt as _;
    use quell_protocol::NodeName;

    use super::*;

    /// Keeps what it is asked.
    struct KeepingHandler(mpsc::Sender<(Vec<u8>, PeerAnswer)>);

    impl PeerHandler for KeepingHandler {
        fn answer_request(&self, _: &Membership, head: &[u8], _: Vec<u8>, answer: PeerAnswer) {
            self.0.send((head.to_vec(), answer)).unwrap();
        }

        fn receive_events(&self, _: &Membership, _: &[u8]) {}

        fn note_lost_events(&self, _: &Membership) {}
    }

    struct TestNode {
        membership: Membership,
        link: PeerLink,
        frames: OutgoingFrames,
        asked: mpsc::Receiver<(Vec<u8>, PeerAnswer)>,
    }

    impl TestNode {
        fn new(name: &str, epoch: Epoch) -> Self {
            let (link, frames) = PeerLink::new();
            let (requests, asked) = mpsc::channel();
            link.set_handler(Box::new(KeepingHandler(requests)));
            Self { membership: Membership { node: NodeName::parse(name).unwrap(), epoch }, link, frames, asked }
        }

        /// Takes the frames that wait to be sent.
        async fn take_frames(&mut self) -> Vec<Frame> {
            self.frames.next_batch(usize::MAX).await.into_iter().map(|outgoing| outgoing.frame).collect()
        }
    }

    fn deliver(frames: Vec<Frame>, from: &Membership, to: &PeerLink) {
        frames.into_iter().for_each(|frame| to.receive(from, frame));
    }

    #[tokio::test]
    async fn calls_to_a_node_that_is_gone_end() {
        let (a, b, c) = (TestNode::new("a", 1), TestNode::new("b", 2), TestNode::new("c", 3));
        let mut to_gone = a.link.call(&b.membership, b"question", b"");
        let mut to_other = a.link.call(&c.membership, b"question", b"");
        a.link.drop_calls_of_gone_nodes(|epoch| epoch != b.membership.epoch);
        assert_eq!(to_gone.next().await, Some(Err(PeerCallError::Gone)));
        assert!(to_other.next().now_or_never().is_none());
    }

    #[tokio::test]
    async fn an_answer_that_is_read_too_slowly_does_not_look_complete() {
        let (mut a, mut b) = (TestNode::new("a", 1), TestNode::new("b", 2));
        let mut call = a.link.call(&b.membership, b"question", b"");
        deliver(a.take_frames().await, &a.membership, &b.link);
        let (question, mut answer) = b.asked.recv().unwrap();
        assert_eq!(question, b"question");
        for _ in 0..MAX_WAITING_PARTS + 2 {
            assert!(answer.send(b"part"));
        }
        answer.end();
        deliver(b.take_frames().await, &b.membership, &a.link);
        for _ in 0..MAX_WAITING_PARTS {
            assert_eq!(call.next().await, Some(Ok(b"part".to_vec())));
        }
        assert_eq!(call.next().await, Some(Err(PeerCallError::TooSlow)));
        assert_eq!(call.next().await, None);
    }

    #[tokio::test]
    async fn a_request_that_was_given_up_is_not_carried_out_when_it_arrives_later() {
        let (mut a, b) = (TestNode::new("a", 1), TestNode::new("b", 2));
        let mut call = a.link.call(&b.membership, b"late", b"");
        let late = a.take_frames().await;
        a.link.interrupt(&b.membership);
        assert_eq!(call.next().await, Some(Err(PeerCallError::NotDelivered)));
        let _next = a.link.call(&b.membership, b"next", b"");
        deliver(a.take_frames().await, &a.membership, &b.link);
        deliver(late, &a.membership, &b.link);
        let asked: Vec<Vec<u8>> = b.asked.try_iter().map(|(head, _)| head).collect();
        assert_eq!(asked, [b"next"]);
    }

    #[tokio::test]
    async fn requests_are_sent_before_events_and_answers_that_are_not_urgent() {
        let (mut a, mut b) = (TestNode::new("a", 1), TestNode::new("b", 2));
        let _calls = [a.link.call(&b.membership, b"list", b""), a.link.call(&b.membership, b"stop", b"")];
        deliver(a.take_frames().await, &a.membership, &b.link);
        b.link.send_events(&a.membership, b"[]".to_vec());
        for (head, answer) in b.asked.try_iter() {
            let mut answer = if head == b"stop" { answer.urgent() } else { answer };
            answer.send(&head);
            answer.end();
        }
        let _call = b.link.call(&a.membership, b"question", b"");
        let heads: Vec<FrameHead> = b.take_frames().await.into_iter().map(|frame| frame.head).collect();
        let expected = [
            FrameHead::Answer { call: 1, number: 0 },
            FrameHead::End { call: 1, number: 1, error: None },
            FrameHead::Request { call: 0, number: 0, last: true },
            FrameHead::Events,
            FrameHead::Answer { call: 0, number: 0 },
            FrameHead::End { call: 0, number: 1, error: None },
        ];
        assert_eq!(heads, expected);
    }
}
