//! A stop as the other nodes of the cluster answer it.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use quell_protocol::NodeName;
use quell_protocol::api::{StopAnswer, UnreachedNode};
use quell_store::{Membership, RequestedStop};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};

use super::{Cluster, PeerCall, PeerLink};

/// How long the answer to a stop waits for nodes that do not answer, unless it waits for the end.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// A stop that ends by force and gives up takes this long by default: `grace_ms` and `hard_ms`.
const LONGEST_STOP: Duration = Duration::from_secs(7);
/// Until a stop is sent again whose answer was lost.
const REPEAT_DELAY: Duration = Duration::from_millis(20);
/// After the lease of a node: the time until others have settled it.
const SETTLE_MARGIN: Duration = Duration::from_secs(1);

/// Until when the answer to a stop waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerStopWait {
    /// Until each node has carried out the stop, or is silent for a second.
    CarriedOut,
    /// Until what the stop covers has ended. For a silent node, until its lease has ended and its runs are sealed.
    Ended,
}

/// The answer of one node: first when it has carried out the stop, and again when all has ended, if that is wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerStopAnswer {
    pub answer: StopAnswer,
    /// The stop covers something on this node, although it may have been ending before.
    pub covered: bool,
}

/// What the database says of a stop.
#[derive(Debug)]
pub struct StoredStop {
    /// The only node that can hold what the stop covers, if there is only one; `Some(None)` if there is none.
    pub owner: Option<Option<Membership>>,
    /// Why the stop could not be stored, or the nodes for which it is.
    pub requested: Result<Vec<RequestedStop>, String>,
}

/// The part of a stop that concerns other nodes. Empty without a cluster, and where this node alone is concerned.
#[derive(Debug, Default)]
pub struct PeerStops(Option<Box<AskedPeers>>);

#[derive(Debug)]
struct AskedPeers {
    cluster: Cluster,
    link: PeerLink,
    /// What the calls ask for. It can be asked for again: a node carries out a stop once, and answers each time.
    request: Vec<u8>,
    calls: Vec<PeerCall>,
    /// The nodes that the calls ask.
    asked: Vec<Membership>,
    /// Memberships that have ended and that nobody has settled yet.
    unsettled: Vec<Membership>,
    stored: Option<oneshot::Receiver<StoredStop>>,
    /// Everything that the stop covers belongs to one node.
    has_one_owner: bool,
    answers: Vec<PeerStopAnswer>,
    /// The calls that have answered that the stop is carried out, and the indexes of their answers.
    answered: Vec<(PeerCall, usize)>,
    unreached: Vec<UnreachedNode>,
    /// Nodes that ended before they answered, and whose runs are sealed.
    settled: Vec<NodeName>,
}

impl PeerStops {
    /// Sends the stop to the other nodes that are at work. It is being stored for them, too.
    pub fn send(
        cluster: Cluster,
        link: PeerLink,
        request: Vec<u8>,
        stored: oneshot::Receiver<StoredStop>,
        has_one_owner: bool,
    ) -> Self {
        let asked: Vec<Membership> = cluster.live_peers().into_iter().map(|row| row.membership).collect();
        let calls = asked.iter().map(|peer| link.call(peer, &request, &[])).collect();
        let (answers, answered, unreached, settled) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let unsettled = cluster.unsettled_memberships();
        let stored = Some(stored);
        Self(Some(Box::new(AskedPeers {
            cluster,
            link,
            request,
            calls,
            asked,
            unsettled,
            stored,
            has_one_owner,
            answers,
            answered,
            unreached,
            settled,
        })))
    }

    /// True if the stop concerns no other node.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Waits for the other nodes. After [`PeerStopWait::CarriedOut`] it may wait for [`PeerStopWait::Ended`], too;
    /// otherwise it does nothing when called again.
    ///
    /// # Cancel safety
    /// Safe for the stop, which is on its way; the answers that have arrived are lost.
    pub async fn wait(&mut self, wait: PeerStopWait) {
        if let Some(asked) = &mut self.0 {
            asked.wait(wait).await;
        }
    }

    /// True if the stop was the first to end something on another node.
    pub fn stopped_anything(&self) -> bool {
        self.0.as_ref().is_some_and(|asked| asked.answers.iter().any(|peer| peer.answer.aborted))
    }

    /// Adds what the other nodes have answered.
    pub fn add_to(&self, answer: &mut StopAnswer) {
        let Some(asked) = &self.0 else { return };
        for PeerStopAnswer { answer: peer, .. } in asked.answers.iter().cloned() {
            answer.aborted |= peer.aborted;
            answer.run_ids.extend(peer.run_ids);
            answer.ending.extend(peer.ending);
            answer.withdrawn.extend(peer.withdrawn);
            answer.processes.extend(peer.processes);
            answer.unstored_pauses |= peer.unstored_pauses;
            for schedule in peer.paused_schedules {
                if !answer.paused_schedules.contains(&schedule) {
                    answer.paused_schedules.push(schedule);
                }
            }
        }
        answer.unreached.extend(asked.unreached.iter().cloned());
        answer.settled_nodes.extend(asked.settled.iter().cloned());
    }
}

impl AskedPeers {
    async fn wait(&mut self, wait: PeerStopWait) {
        let timeout = match wait {
            PeerStopWait::CarriedOut => ANSWER_TIMEOUT,
            PeerStopWait::Ended => self.cluster.timing().lease().max(LONGEST_STOP) + SETTLE_MARGIN,
        };
        let deadline = Instant::now() + timeout;
        if wait == PeerStopWait::Ended {
            for (mut call, index) in std::mem::take(&mut self.answered) {
                if let PeerOutcome::Answered(answer) = self.wait_for_answer(&mut call, wait, deadline).await {
                    self.answers[index] = answer;
                }
            }
        }
        let mut silent = std::mem::take(&mut self.unsettled);
        if wait == PeerStopWait::Ended {
            for membership in std::mem::take(&mut silent) {
                match timeout_at(deadline, self.cluster.wait_until_settled(&membership)).await {
                    Ok(()) => self.settled.push(membership.node),
                    Err(_) => silent.push(membership),
                }
            }
        }
        let calls = std::mem::take(&mut self.calls);
        self.collect_answers(calls, wait, deadline, &mut silent).await;
        let Some(stored) = self.stored.take() else { return };
        if silent.is_empty() && self.has_one_owner {
            return;
        }
        let stored = timeout_at(deadline.max(Instant::now() + ANSWER_TIMEOUT), stored).await;
        let stored = stored.ok().and_then(Result::ok);
        if !self.has_one_owner {
            // Nodes that have joined since this one has read the list.
            let requested = stored.iter().filter_map(|stored| stored.requested.as_ref().ok()).flatten();
            let missed = requested.map(|requested| &requested.membership).filter(|peer| !self.asked.contains(peer));
            let calls = missed.map(|peer| self.link.call(peer, &self.request, &[])).collect();
            self.collect_answers(calls, wait, deadline, &mut silent).await;
        }
        self.unreached = silent.into_iter().filter_map(|peer| self.unreached_node(peer, stored.as_ref())).collect();
    }

    async fn collect_answers(
        &mut self,
        calls: Vec<PeerCall>,
        wait: PeerStopWait,
        deadline: Instant,
        silent: &mut Vec<Membership>,
    ) {
        let asked = &*self;
        let ask = |mut call: PeerCall| async move {
            let answer = asked.wait_for_answer(&mut call, wait, deadline).await;
            (call, answer)
        };
        let (mut answers, mut answered) = (Vec::new(), Vec::new());
        let mut settled = self.settled.clone();
        let mut pending: FuturesUnordered<_> = calls.into_iter().map(ask).collect();
        while let Some((call, answer)) = pending.next().await {
            match answer {
                PeerOutcome::Answered(answer) => {
                    let is_done = self.has_one_owner && answer.covered;
                    answers.push(answer);
                    if wait == PeerStopWait::CarriedOut {
                        answered.push((call, asked.answers.len() + answers.len() - 1));
                    }
                    if is_done {
                        silent.clear();
                        settled.clear();
                        break;
                    }
                }
                PeerOutcome::Settled => settled.push(call.peer().node.clone()),
                PeerOutcome::Silent => silent.push(call.peer().clone()),
            }
        }
        drop(pending);
        self.answers.extend(answers);
        self.answered.extend(answered);
        self.settled = settled;
    }

    /// `None` for a node that holds nothing that the stop covers.
    fn unreached_node(&self, peer: Membership, stored: Option<&StoredStop>) -> Option<UnreachedNode> {
        if let Some(StoredStop { owner: Some(owner), .. }) = stored
            && owner.as_ref() != Some(&peer)
        {
            return None;
        }
        let requested = stored.and_then(|stored| stored.requested.as_ref().ok()).into_iter().flatten();
        let requested = requested.clone().find(|requested| requested.membership == peer);
        let known = self.cluster.nodes().into_iter().find(|row| row.membership == peer);
        let expires_in = requested.map(|requested| requested.expires_in).or(known.map(|row| row.expires_in))?;
        Some(UnreachedNode {
            node: peer.node,
            stored: requested.is_some(),
            lease_ends_in_ms: u64::try_from(expires_in.as_millis()).unwrap_or(u64::MAX),
            lease_ends_by: self.cluster.wall_time_in(expires_in),
        })
    }

    /// Waits for the answer of one node. One that was lost on the way is asked for again.
    async fn wait_for_answer(&self, call: &mut PeerCall, wait: PeerStopWait, deadline: Instant) -> PeerOutcome {
        let mut answered = None;
        loop {
            match timeout_at(deadline, call.next()).await {
                Ok(Some(Ok(message))) => {
                    answered = serde_json::from_slice(&message).ok().or(answered);
                    if wait == PeerStopWait::CarriedOut && answered.is_some() {
                        break;
                    }
                }
                Ok(None) if answered.is_some() => break,
                Ok(None | Some(Err(_))) if self.cluster.is_live_peer(call.peer()) => {
                    if timeout_at(deadline, sleep(REPEAT_DELAY)).await.is_err() {
                        break;
                    }
                    *call = self.link.call(call.peer(), &self.request, &[]);
                }
                Ok(None | Some(Err(_))) if wait == PeerStopWait::CarriedOut => break,
                // The node has carried out the stop, or not, and does not say any more whether all has ended.
                Ok(None | Some(Err(_))) => {
                    let settled = timeout_at(deadline, self.cluster.wait_until_settled(call.peer())).await;
                    return match (settled, answered) {
                        (Ok(()), Some(answer)) => PeerOutcome::Answered(answer),
                        (Ok(()), None) => PeerOutcome::Settled,
                        (Err(_), _) => PeerOutcome::Silent,
                    };
                }
                Err(_) if wait == PeerStopWait::Ended => return PeerOutcome::Silent,
                Err(_) => break,
            }
        }
        answered.map_or(PeerOutcome::Silent, PeerOutcome::Answered)
    }
}

enum PeerOutcome {
    Answered(PeerStopAnswer),
    /// The node was dead; others have sealed its runs.
    Settled,
    Silent,
}
