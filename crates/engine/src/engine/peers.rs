//! What nodes of a cluster ask of each other: stops, the events of runs, and requests that transports forward.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use quell_kernel::registry::{StopRequest, StopRequester, StopScope};
use quell_protocol::api::RunView;
use quell_protocol::{RunId, SessionKey};
use quell_store::{ClusterStore, Membership, StoreError};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::event_bridge::PeerEvents;
use super::{Engine, EngineInner, StopResult, build_stop_answer};
use crate::access::{AccessError, BrowserSignIn, LinkIssuer, LoginCodeDigest};
use crate::cluster::{Cluster, PeerAnswer, PeerCall, PeerHandler, PeerStopAnswer, PeerStops, StoredStop};
use crate::schedules::ScheduleStopOrigin;

/// A stop that arrives again within this time, on another way, is not carried out again: it covers nothing that was
/// accepted since.
const REPEATED_STOP_TIME: Duration = Duration::from_secs(120);

/// Longest wait of an answer to a stop for the pauses of schedules. The asking node waits 1 s for the answer.
const PEER_PAUSES_TIMEOUT: Duration = Duration::from_millis(400);
/// How long the view of a run waits for its node.
const VIEW_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a sign-in waits for a node that may have issued its code.
const LOGIN_CODE_TIMEOUT: Duration = Duration::from_secs(2);

/// A stop that another node asks for. Its caller was authenticated there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PeerStop {
    /// The same on all ways that the stop takes.
    id: String,
    scope: StopScope,
    requester: StopRequester,
    request: StopRequest,
    /// Hold new runs first.
    hold: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub(super) enum PeerRequest {
    Stop {
        stop: PeerStop,
        wait: bool,
    },
    FindRun {
        run: RunId,
    },
    /// Whether clients of the node that asks want the events of the other one. The answer is empty.
    SendEvents {
        wanted: bool,
        number: u64,
    },
    FollowRun {
        run: RunId,
        after: u64,
    },
    /// Uses up a code of a sign-in link. The answer is empty if the node has not issued it.
    RedeemLoginCode {
        code: LoginCodeDigest,
    },
    /// Give a session back, unless something of it is in use.
    ReleaseSession {
        session: SessionKey,
    },
    /// A request that a transport understands: its head. The body belongs to the frame.
    Forwarded {
        head: String,
    },
}

/// Answers the requests that the transports of other nodes have forwarded, in messages. Dropping the stream ends the
/// request, as the end of a client's connection does.
pub trait PeerService: Send + Sync {
    fn serve(&self, head: &str, body: Vec<u8>) -> PeerMessages;
}

pub type PeerMessages = Pin<Box<dyn Stream<Item = Vec<u8>> + Send>>;

/// The stops that other nodes have asked for lately, so that none is carried out twice.
#[derive(Default)]
pub(super) struct CarriedOutStops(Mutex<HashMap<String, (Instant, Arc<StopResult>)>>);

impl CarriedOutStops {
    /// Carries out a stop for the first time, or returns what it did then.
    fn once(&self, id: &str, stop: impl FnOnce() -> StopResult) -> Arc<StopResult> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (at, _)| at.elapsed() < REPEATED_STOP_TIME);
        if let Some((_, stopped)) = known.get(id) {
            return Arc::clone(stopped);
        }
        let stopped = Arc::new(stop());
        known.insert(id.to_owned(), (Instant::now(), Arc::clone(&stopped)));
        stopped
    }
}

impl Engine {
    /// Sets who answers the requests that transports of other nodes forward to this one.
    pub fn set_peer_service(&self, service: Arc<dyn PeerService>) {
        if let Some(node) = &self.inner().node {
            *node.service.lock().unwrap_or_else(PoisonError::into_inner) = Some(service);
        }
    }

    /// Forgets who answers the requests of other nodes: the answers hold the engine.
    pub(super) fn drop_peer_service(&self) {
        if let Some(node) = &self.inner().node {
            *node.service.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Sends a request of a transport to another node.
    pub fn forward(&self, peer: &Membership, head: &str, body: &[u8]) -> Option<PeerCall> {
        self.call_peer(peer, &PeerRequest::Forwarded { head: head.to_owned() }, body)
    }

    pub(super) fn call_peer(&self, peer: &Membership, request: &PeerRequest, body: &[u8]) -> Option<PeerCall> {
        let head = serde_json::to_vec(request).unwrap_or_default();
        Some(self.inner().node.as_ref()?.link.call(peer, &head, body))
    }

    /// Asks the other nodes for a stop, unless it concerns this one alone, and stores it for them. Not async: when this
    /// returns, the stop is on its way.
    pub(super) fn ask_peers_to_stop(
        &self,
        scope: &StopScope,
        requester: StopRequester,
        request: &StopRequest,
    ) -> PeerStops {
        let Some(cluster) = self.cluster().filter(|cluster| !self.concerns_this_node_alone(cluster, scope)) else {
            return PeerStops::default();
        };
        let hold = *scope == StopScope::Everything && self.is_held();
        let id = uuid::Uuid::now_v7().to_string();
        let stop = PeerStop { id, scope: scope.clone(), requester, request: request.clone(), hold };
        let Some(node) = &self.inner().node else { return PeerStops::default() };
        let peer_request = serde_json::to_vec(&PeerRequest::Stop { stop: stop.clone(), wait: true });
        let (sender, stored) = oneshot::channel();
        let store = Arc::clone(cluster.store());
        let epochs = cluster.nodes().iter().map(|row| row.membership.epoch).collect();
        let own = cluster.membership().clone();
        self.inner().runs.spawn(async move {
            // The caller may have left; the stop is stored all the same.
            let _ = sender.send(store_stop(&*store, &own, epochs, &stop).await);
        });
        let has_one_owner =
            matches!(scope, StopScope::Run { .. } | StopScope::Session { .. } | StopScope::Conversation { .. });
        let link = node.link.clone();
        PeerStops::send(cluster.clone(), link, peer_request.unwrap_or_default(), stored, has_one_owner)
    }

    /// True if everything that a stop covers is on this node.
    fn concerns_this_node_alone(&self, cluster: &Cluster, scope: &StopScope) -> bool {
        match scope {
            StopScope::Run { id, .. } => self.live_run(id).is_some(),
            StopScope::Session { key, .. } | StopScope::Conversation { session: key, .. } => cluster.owns_session(key),
            StopScope::Agent { .. } | StopScope::Agents { .. } | StopScope::Channel { .. } | StopScope::Everything => {
                false
            }
        }
    }

    /// Carries out a stop of another node, unless it was carried out before. Not async, as [`Engine::stop`].
    pub(super) fn carry_out_peer_stop(&self, stop: &PeerStop) -> Arc<StopResult> {
        let Some(node) = &self.inner().node else { return Arc::default() };
        node.carried_out_stops.once(&stop.id, || {
            if stop.hold {
                self.hold_now();
            }
            let mut stop_result = self.stop_work(&stop.scope, &stop.requester, &stop.request);
            let origin = ScheduleStopOrigin::OtherNode;
            self.stop_schedules(&stop.scope, &stop.requester, &stop.request, origin, &mut stop_result);
            tracing::info!(
                principal = %stop.requester.principal, surface = ?stop.request.surface, scope = ?stop.scope, stop_level = ?stop.request.level,
                stopped = stop_result.aborted.len(), processes = stop_result.newly_ended_processes(), "stop of another node carried out"
            );
            stop_result
        })
    }

    fn answer_peer(&self, from: &Membership, head: &[u8], body: Vec<u8>, answer: PeerAnswer) {
        let request = match serde_json::from_slice::<PeerRequest>(head) {
            Ok(request) => request,
            Err(error) => {
                tracing::warn!(node = %from.node, %error, "a request of another node cannot be read; is it of another version?");
                return answer.fail("the request cannot be read; nodes may differ by one version only".to_owned());
            }
        };
        match request {
            PeerRequest::Stop { stop, wait } => {
                let stopped = self.carry_out_peer_stop(&stop);
                self.inner().runs.spawn(answer_stop(stopped, wait, answer.urgent()));
            }
            PeerRequest::SendEvents { wanted, number } => {
                self.note_interest(from, wanted, number);
                if wanted {
                    self.send_agent_activity(from);
                }
                self.inner().runs.spawn(confirm_interest(self.clone(), from.clone(), answer));
            }
            PeerRequest::FindRun { run } => self.inner().runs.spawn(answer_run_view(self.clone(), run, answer)),
            PeerRequest::FollowRun { run, after } => {
                self.inner().runs.spawn(answer_with_events(self.clone(), run, after, answer));
            }
            PeerRequest::RedeemLoginCode { code } => {
                let mut answer = answer;
                if let Some(issuer) = self.inner().access.redeem_login_code(&code) {
                    answer.send(&serde_json::to_vec(&issuer).unwrap_or_default());
                }
                answer.end();
            }
            PeerRequest::ReleaseSession { session } => {
                self.inner().runs.spawn(answer_with_release(self.clone(), session, answer));
            }
            PeerRequest::Forwarded { head } => {
                let node = self.inner().node.as_ref();
                let service = node.and_then(|node| node.service.lock().unwrap_or_else(PoisonError::into_inner).clone());
                match service {
                    Some(service) => self.inner().runs.spawn(answer_with_messages(service.serve(&head, body), answer)),
                    None => answer.fail("the node is starting".to_owned()),
                }
            }
        }
    }

    /// The view of a run that is at work on another node.
    pub(super) async fn find_run_of_peer(&self, run: &RunId) -> Result<Option<RunView>, StoreError> {
        let Some(cluster) = self.cluster() else { return Ok(None) };
        let owner = cluster.store().open_run_node(run.clone()).await?;
        let Some(owner) = owner.filter(|owner| cluster.is_live_peer(owner)) else { return Ok(None) };
        let Some(mut call) = self.call_peer(&owner, &PeerRequest::FindRun { run: run.clone() }, &[]) else {
            return Ok(None);
        };
        match timeout(VIEW_TIMEOUT, call.next()).await {
            Ok(Some(Ok(message))) => Ok(serde_json::from_slice(&message).ok()),
            // It has ended meanwhile, or its node, or it does not answer: the database has what is known.
            Ok(Some(Err(_)) | None) | Err(_) => Ok(None),
        }
    }

    /// Signs a browser in with the code of a link, whichever node has issued it. Returns `None` if the code is invalid.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// If dropped, the code may be used up without a sign-in; a new link is needed then.
    pub async fn sign_in_with_code(&self, code: &str) -> Result<Option<BrowserSignIn>, AccessError> {
        let access = &self.inner().access;
        let signed_in = access.sign_in_with_code(code).await?;
        if signed_in.is_some() {
            return Ok(signed_in);
        }
        let code = LoginCodeDigest::of(code);
        let peers = self.cluster().map(Cluster::live_peers).unwrap_or_default();
        let request = PeerRequest::RedeemLoginCode { code };
        let calls = peers.iter().filter_map(|row| self.call_peer(&row.membership, &request, &[]));
        for mut call in calls.collect::<Vec<_>>() {
            if let Ok(Some(Ok(issuer))) = timeout(LOGIN_CODE_TIMEOUT, call.next()).await
                && let Ok(issuer) = serde_json::from_slice::<LinkIssuer>(&issuer)
            {
                return access.sign_in_by_link(issuer).await.map(Some);
            }
        }
        Ok(None)
    }

    /// The events of a run from the node that it is on.
    pub(super) fn follow_on_peer(&self, owner: &Membership, run: &RunId, after: u64) -> Option<PeerCall> {
        self.call_peer(owner, &PeerRequest::FollowRun { run: run.clone(), after }, &[])
    }
}

async fn store_stop(store: &dyn ClusterStore, own: &Membership, mut epochs: Vec<u64>, stop: &PeerStop) -> StoredStop {
    // waits: in a task of the engine; the stop is on its way.
    let owner = match &stop.scope {
        // An ended run may have background work. A run that nobody knows may be accepted soon, anywhere.
        StopScope::Run { id, .. } => store.run_node(id.clone()).await.ok().filter(Option::is_some),
        StopScope::Session { key, .. } | StopScope::Conversation { session: key, .. } => {
            store.session_node(key.clone()).await.ok()
        }
        StopScope::Agent { .. } | StopScope::Agents { .. } | StopScope::Channel { .. } | StopScope::Everything => None,
    };
    if let Some(owner) = &owner {
        epochs = owner.iter().map(|owner| owner.epoch).collect();
    } else if let Ok(nodes) = store.list_nodes().await {
        // Some may have joined since the last renewal.
        epochs = nodes.iter().map(|row| row.membership.epoch).collect();
    }
    epochs.retain(|epoch| *epoch != own.epoch);
    if epochs.is_empty() {
        return StoredStop { owner, requested: Ok(Vec::new()) };
    }
    let requested = store.request_stop(epochs, serde_json::to_string(stop).unwrap_or_default()).await;
    if let Err(error) = &requested {
        tracing::warn!(%error, "a stop could not be stored for other nodes; those that it has reached carry it out");
    }
    StoredStop { owner, requested: requested.map_err(|error| error.to_string()) }
}

async fn answer_stop(stopped: Arc<StopResult>, wait: bool, mut answer: PeerAnswer) {
    let build = || {
        let covered = !stopped.tickets.is_empty() || stopped.has_processes();
        serde_json::to_vec(&PeerStopAnswer { answer: build_stop_answer(&stopped), covered }).unwrap_or_default()
    };
    // waits: the stop has been carried out; a firing of a schedule must not follow its answer. The asking node stores the
    // same pauses, so an owner without its database still answers in time.
    stopped.schedules.wait_stored_within(PEER_PAUSES_TIMEOUT).await;
    if answer.send(&build()) && wait {
        let cancelled = answer.cancelled().clone();
        tokio::select! {
            () = stopped.wait_settled() => {}
            () = cancelled.cancelled() => return,
        }
        answer.send(&build());
    }
    answer.end();
}

/// Events go to known nodes only.
async fn confirm_interest(engine: Engine, from: Membership, answer: PeerAnswer) {
    let Some(cluster) = engine.cluster() else { return };
    let cancelled = answer.cancelled().clone();
    tokio::select! {
        () = cluster.wait_until_known(&from) => answer.end(),
        () = cancelled.cancelled() => {}
        () = engine.inner().closing.cancelled() => {}
    }
}

async fn answer_run_view(engine: Engine, run: RunId, mut answer: PeerAnswer) {
    match engine.live_run(&run) {
        Some(live_run) => {
            answer.send(&serde_json::to_vec(&live_run.detailed_view()).unwrap_or_default());
            answer.end();
        }
        None => answer.fail("the run is not here".to_owned()),
    }
}

/// Not raced against the caller: a session that is being given back must be given back.
async fn answer_with_release(engine: Engine, session: SessionKey, mut answer: PeerAnswer) {
    let is_released = engine.give_back_session(&session).await;
    if answer.send(&serde_json::to_vec(&is_released).unwrap_or_default()) {
        answer.end();
    }
}

async fn answer_with_events(engine: Engine, run: RunId, after: u64, mut answer: PeerAnswer) {
    let live_run = engine.live_run(&run).filter(|live_run| !live_run.is_steered());
    let Some(live_run) = live_run else { return answer.fail("the run is not here".to_owned()) };
    let mut follower = live_run.follow(after);
    let cancelled = answer.cancelled().clone();
    // Tells the reader that its request has arrived.
    answer.send(&[]);
    loop {
        let event = tokio::select! {
            event = follower.next() => event,
            () = cancelled.cancelled() => return,
        };
        let Some(event) = event else { return answer.end() };
        if !answer.send(&serde_json::to_vec(&*event).unwrap_or_default()) {
            return;
        }
    }
}

async fn answer_with_messages(mut messages: PeerMessages, mut answer: PeerAnswer) {
    let cancelled = answer.cancelled().clone();
    loop {
        let message = tokio::select! {
            message = messages.next() => message,
            () = cancelled.cancelled() => return,
        };
        match message {
            Some(message) if answer.send(&message) => {}
            Some(_) => return,
            None => return answer.end(),
        }
    }
}

/// Gives the frames of other nodes to the engine as long as it exists.
pub(super) struct EnginePeerHandler(pub(super) Weak<EngineInner>);

impl EnginePeerHandler {
    fn engine(&self) -> Option<Engine> {
        self.0.upgrade().map(Engine)
    }
}

impl PeerHandler for EnginePeerHandler {
    fn answer_request(&self, from: &Membership, head: &[u8], body: Vec<u8>, answer: PeerAnswer) {
        match self.engine() {
            Some(engine) => engine.answer_peer(from, head, body, answer),
            None => answer.fail("the node is closing".to_owned()),
        }
    }

    fn receive_events(&self, from: &Membership, events: &[u8]) {
        let engine = self.engine();
        if let Some(node) = engine.as_ref().and_then(|engine| engine.inner().node.as_ref())
            && node.foreign_events.try_send(PeerEvents { sender: from.epoch, events: events.to_vec() }).is_err()
        {
            tracing::warn!(node = %from.node, "events of another node were dropped: too many wait");
            self.note_lost_events(from);
        }
    }

    fn note_lost_events(&self, from: &Membership) {
        if let Some(engine) = self.engine() {
            engine.forget_peer_activity(|epoch| epoch != from.epoch);
            engine.inner().hub.overrun_readers();
        }
    }
}
