//! Methods about what another node of the cluster has: they are answered there, as if they had come there. The HTTP side
//! is `http/forward.rs`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use quell_engine::access::{Caller, Credential};
use quell_engine::engine::{Placement, PlacementError};
use quell_kernel::stop_text;
use quell_protocol::SessionKey;
use quell_protocol::api::AccessLevel;
use quell_store::Membership;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::frame::RpcError;
use super::methods::{STOP_METHODS, WsClient, WsSubscriptions};
use super::outbox::{ClientOutbox, DropPolicy, QueuedEvent};
use super::peer::{WsPeer, WsRole};
use crate::cluster_routes::{ClusterRoute, merge_lists, route_of_method, session_of_params};
use crate::http::{ANSWER_TIMEOUT, ForwardedHead, REPEATS};
use crate::state::ServerState;

/// Methods that have the same effect when they are carried out twice.
const REPEATABLE_METHODS: &[&str] = &["chat.send", "sessions.describe", "sessions.resolve", "sessions.share"];
/// For the answers of all nodes to a method about what they have.
const GATHER_TIMEOUT: Duration = Duration::from_secs(2);

/// A method of a client of another node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ForwardedMethod {
    method: String,
    params: Value,
    caller: Caller,
    credential: Credential,
    granted: Option<AccessLevel>,
}

/// Where a method is answered.
pub(super) enum MethodRoute {
    Here,
    /// Here, after the owner of the session was read from the database.
    HereInSession(SessionKey),
    AtOwnerOf(SessionKey, Placement),
    EveryNode,
    AnyNode,
}

impl MethodRoute {
    pub(super) fn of(client: &WsClient, method: &str, params: &Value) -> Self {
        let Some(cluster) = client.engine().cluster().filter(|_| !client.is_forwarded) else { return Self::Here };
        let at_owner = |key: SessionKey, placement| match cluster.owns_session(&key) {
            true => Self::Here,
            false => Self::AtOwnerOf(key, placement),
        };
        match route_of_method(method, params) {
            ClusterRoute::Message(_) if is_stop_text(params) => Self::Here,
            ClusterRoute::Message(key) | ClusterRoute::ChangeSession(key) => at_owner(key, Placement::Place),
            ClusterRoute::Session(key) => at_owner(key, Placement::WhereItIs),
            ClusterRoute::EveryNode => Self::EveryNode,
            ClusterRoute::AnyNode => Self::AnyNode,
            ClusterRoute::Here if !STOP_METHODS.contains(&method) => {
                session_of_params(params).map_or(Self::Here, Self::HereInSession)
            }
            ClusterRoute::OpenSession
            | ClusterRoute::Duty(_)
            | ClusterRoute::SendToChannel
            | ClusterRoute::Channels
            | ClusterRoute::ChangeRun(_)
            | ClusterRoute::Here => Self::Here,
        }
    }
}

fn is_stop_text(params: &Value) -> bool {
    params.get("message").and_then(Value::as_str).is_some_and(stop_text::is_stop_phrase)
}

impl From<PlacementError> for RpcError {
    fn from(error: PlacementError) -> Self {
        Self::unavailable(error.to_string())
    }
}

impl WsClient {
    /// Answers a method on the node that it concerns.
    pub(super) async fn answer_on_route(
        self: Arc<Self>,
        method: String,
        params: Value,
        route: MethodRoute,
    ) -> Result<Value, RpcError> {
        match route {
            MethodRoute::Here => self.answer_here(&method, params).await,
            MethodRoute::HereInSession(key) => {
                self.engine().refresh_owner(&key).await?;
                self.answer_here(&method, params).await
            }
            MethodRoute::AtOwnerOf(key, placement) => self.answer_at_owner(&method, params, &key, placement).await,
            MethodRoute::EveryNode => {
                let mut merged = Arc::clone(&self).answer_here(&method, params.clone()).await?;
                for answer in self.ask_others(&method, &params).await.into_iter().flatten() {
                    merge_lists(&mut merged, answer);
                }
                Ok(merged)
            }
            MethodRoute::AnyNode => {
                let here = Arc::clone(&self).answer_here(&method, params.clone()).await;
                let Err(error) = &here else { return here };
                if !error.is_about_unknown() {
                    return here;
                }
                let others = self.ask_others(&method, &params).await;
                others
                    .into_iter()
                    .find(|answer| !answer.as_ref().is_err_and(RpcError::is_about_unknown))
                    .unwrap_or(here)
            }
        }
    }

    /// Calls a method at the node that has the session, or gets it now; `None` if it is this one.
    pub(super) async fn call_session_owner(
        self: &Arc<Self>,
        method: &str,
        params: Value,
        key: &SessionKey,
    ) -> Option<Result<Value, RpcError>> {
        let cluster = self.engine().cluster().filter(|_| !self.is_forwarded)?;
        if cluster.owns_session(key) {
            return None;
        }
        match self.engine().find_node_for(key, Placement::Place).await {
            Ok(None) => None,
            Ok(Some(owner)) => Some(self.ask_node(&owner, method, &params).await),
            Err(error) => Some(Err(error.into())),
        }
    }

    async fn answer_at_owner(
        self: Arc<Self>,
        method: &str,
        params: Value,
        key: &SessionKey,
        placement: Placement,
    ) -> Result<Value, RpcError> {
        let mut repeats = if REPEATABLE_METHODS.contains(&method) { REPEATS } else { 0 };
        loop {
            let Some(owner) = self.engine().find_node_for(key, placement).await? else {
                return self.answer_here(method, params).await;
            };
            match self.ask_node(&owner, method, &params).await {
                // The request or its answer was lost. The session may have moved meanwhile.
                Err(error) if repeats > 0 && error.is_from_silent_node() => repeats -= 1,
                answer => return answer,
            }
        }
    }

    async fn ask_others(&self, method: &str, params: &Value) -> Vec<Result<Value, RpcError>> {
        let peers = self.engine().cluster().map(quell_engine::cluster::Cluster::live_peers).unwrap_or_default();
        let ask = |node: Membership| async move {
            let answer = tokio::time::timeout(GATHER_TIMEOUT, self.ask_node(&node, method, params)).await;
            // The node is silent: others are asked, and what only it knows is not found.
            answer.unwrap_or_else(|_| Err(RpcError::unknown_approval()))
        };
        join_all(peers.into_iter().map(|row| ask(row.membership))).await
    }

    async fn ask_node(&self, node: &Membership, method: &str, params: &Value) -> Result<Value, RpcError> {
        let forwarded = ForwardedMethod {
            method: method.to_owned(),
            params: params.clone(),
            caller: self.peer.caller.clone(),
            credential: self.peer.credential,
            granted: self.peer.granted,
        };
        let head = serde_json::to_string(&ForwardedHead::Method(Box::new(forwarded))).unwrap_or_default();
        let silent = |problem: &str| {
            let text = format!(
                "the node {} does not answer: {problem}. It is not known whether the request was carried out; send it again \
                 with the same idempotency key",
                node.node
            );
            RpcError::silent_node(text)
        };
        let mut call = self.engine().forward(node, &head, &[]).ok_or_else(|| silent("there is no cluster"))?;
        let answer = match tokio::time::timeout(ANSWER_TIMEOUT, call.next()).await {
            Ok(answer) => answer,
            Err(_) => return Err(silent("it has not answered in time")),
        };
        match answer {
            Some(Ok(answer)) => {
                let ForwardedAnswer { events, result } =
                    serde_json::from_slice(&answer).map_err(|error| silent(&error.to_string()))?;
                for QueuedEvent { event, payload } in events {
                    self.outbox.push_event(&event, &payload, DropPolicy::MustDeliver);
                }
                match result {
                    ForwardedResult::Payload(payload) => Ok(payload),
                    ForwardedResult::Refused(error) => Err(error),
                }
            }
            Some(Err(error)) => Err(silent(&error.to_string())),
            None => Err(silent("its answer is empty")),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct ForwardedAnswer {
    /// What the method has sent to the client before its answer.
    events: Vec<QueuedEvent>,
    result: ForwardedResult,
}

#[derive(Debug, Serialize, Deserialize)]
enum ForwardedResult {
    Payload(Value),
    Refused(RpcError),
}

/// Answers a method of a client of another node.
pub(crate) async fn answer_forwarded_method(server: ServerState, forwarded: ForwardedMethod) -> Vec<u8> {
    let ForwardedMethod { method, params, caller, credential, granted } = forwarded;
    let peer = WsPeer { caller, credential, granted, role: WsRole::Operator, tool_events: false, run_events: true };
    // Only what the method itself sends: the events of runs come from the node that the client is connected to.
    let outbox = Arc::new(ClientOutbox::new(&server.budgets().send));
    let subscriptions = WsSubscriptions::default();
    let client = Arc::new(WsClient { server, peer, subscriptions, outbox: Arc::clone(&outbox), is_forwarded: true });
    let result = match client.answer_here(&method, params).await {
        Ok(payload) => ForwardedResult::Payload(payload),
        Err(error) => ForwardedResult::Refused(error),
    };
    serde_json::to_vec(&ForwardedAnswer { events: outbox.take_events(), result }).unwrap_or_default()
}
