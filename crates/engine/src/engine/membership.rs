//! What this daemon does as a node of a cluster: renews its lease, carries out stops of other nodes, ends everything when
//! it loses its lease, and settles what dead nodes have left.
//!
//! The rules are `quell_kernel::lease`.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_bus::{KeyFingerprints, NatsTransport, NodeAddress};
use quell_kernel::Moment;
use quell_kernel::StopLevel;
use quell_kernel::clock_skew::clock_skew_ms;
use quell_kernel::lease::{Epoch, LeaseDuty, RenewOutcome};
use quell_kernel::registry::AdmissionGate;
use quell_protocol::{NodeName, StopReason};
use quell_store::{ChangeCount, Membership, NodeRow, RenewalAnswer, RenewalRequest, StoreError, WaitingStop};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::drain::release_unused_sessions;
use super::event_bridge::{
    ConfirmedInterest, InterestedPeers, PeerEvents, announce_interest, bridge_events, publish_foreign_events,
};
use super::peer_agents::PeerAgents;
use super::peers::{CarriedOutStops, EnginePeerHandler, PeerService, PeerStop};
use super::recovery::Recovery;
use super::session_transfer::PendingSessions;
use super::{Engine, NodeSettings, StartError};
use crate::cluster::{Cluster, ExchangeTasks, LetterExchange, NodeReport, PeerLink, RenewalFacts};
use crate::runs::DaySums;

/// How long a node tries to fence another one before it looks again.
const FENCE_TIME: Duration = Duration::from_secs(1);

/// The shortest pause between two looks at nodes whose leases have ended.
const MIN_LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Batches of events of other nodes that may wait to be published.
const MAX_FOREIGN_BATCHES: usize = 4096;

/// This daemon as a node.
pub(super) struct Node {
    pub(super) cluster: Cluster,
    pub(super) link: PeerLink,
    /// Until the engine closes.
    pub(super) service: Mutex<Option<Arc<dyn PeerService>>>,
    /// True while it takes no new sessions.
    pub(super) draining: watch::Sender<bool>,
    /// How often unused sessions were given back.
    pub(super) release_passes: watch::Sender<u64>,
    pub(super) carried_out_stops: CarriedOutStops,
    pub(super) interested_peers: InterestedPeers,
    pub(super) confirmed_interest: ConfirmedInterest,
    pub(super) foreign_events: mpsc::Sender<PeerEvents>,
    pub(super) peer_agents: PeerAgents,
    pub(super) pending_sessions: PendingSessions,
    keys: KeyFingerprints,
    /// Nodes with another secret that were warned of.
    warned_of: Mutex<HashSet<Epoch>>,
    recovery: Recovery,
    /// Memberships that a task of this node settles.
    settling: Mutex<HashSet<Epoch>>,
    /// The last known number of changes of each topic.
    changes: Mutex<HashMap<String, i64>>,
    reloading: tokio::sync::Mutex<()>,
}

/// What the tasks of a node work on.
pub(super) struct NodeTasks {
    exchange: LetterExchange,
    exchange_tasks: ExchangeTasks,
    foreign_events: mpsc::Receiver<PeerEvents>,
}

impl Node {
    pub(super) async fn new(
        cluster: Cluster,
        recovery: Recovery,
        settings: &NodeSettings,
    ) -> Result<(Self, NodeTasks), StartError> {
        let secret = settings.secret.clone().ok_or(StartError::NoClusterSecret)?;
        let keys = KeyFingerprints::of(&secret);
        let peers = cluster.store().list_nodes().await?;
        let is_at_work = |row: &&NodeRow| !row.fenced && !row.expires_in.is_zero();
        let mut peers = peers.iter().filter(is_at_work);
        if let Some(stranger) = peers.find(|row| !keys.agree_with(&NodeReport::of(row).keys)) {
            return Err(StartError::OtherClusterSecret(stranger.membership.node.clone()));
        }
        let own = NodeAddress { node: cluster.node().clone(), epoch: cluster.membership().epoch };
        let nats = match &settings.nats {
            Some(nats) => Some(NatsTransport::connect(nats.clone(), own).await?),
            None => None,
        };
        let (link, frames) = PeerLink::new();
        let (foreign_events, events) = mpsc::channel(MAX_FOREIGN_BATCHES);
        let exchange = LetterExchange::new(cluster.clone(), link.clone(), secret);
        let node = Self {
            cluster,
            link,
            service: Mutex::default(),
            draining: watch::Sender::new(false),
            release_passes: watch::Sender::new(0),
            carried_out_stops: CarriedOutStops::default(),
            interested_peers: InterestedPeers::default(),
            confirmed_interest: ConfirmedInterest::default(),
            foreign_events,
            peer_agents: PeerAgents::default(),
            pending_sessions: PendingSessions::default(),
            keys,
            warned_of: Mutex::default(),
            recovery,
            settling: Mutex::default(),
            changes: Mutex::default(),
            reloading: tokio::sync::Mutex::default(),
        };
        let exchange_tasks = ExchangeTasks { frames, nats };
        Ok((node, NodeTasks { exchange, exchange_tasks, foreign_events: events }))
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Warns once of each node whose letters this one cannot read, or the reverse: both have started at the same time.
    fn warn_of_other_secrets(&self) {
        let peers = self.cluster.live_peers();
        let mut warned_of = self.warned_of.lock().unwrap_or_else(PoisonError::into_inner);
        for row in peers.iter().filter(|row| !self.keys.agree_with(&NodeReport::of(row).keys)) {
            if warned_of.insert(row.membership.epoch) {
                tracing::error!(node = %row.membership.node, "this node has another secret, so neither hears stops and requests of the other at once; write the same secret on all nodes, and restart them");
            }
        }
    }

    fn settling(&self) -> MutexGuard<'_, HashSet<Epoch>> {
        self.settling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget_change(&self, topic: &str) {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).remove(topic);
    }

    /// The topics that have changed since the last call.
    fn note_changes(&self, counts: Vec<ChangeCount>) -> Vec<String> {
        let mut known = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = |count: &ChangeCount| known.insert(count.topic.clone(), count.number) != Some(count.number);
        counts.into_iter().filter(is_new).map(|count| count.topic).collect()
    }
}

/// A renewal that was sent.
struct SentRenewal {
    at: Moment,
    /// The same moment by the clock that the wardens compare.
    at_boot_time: Duration,
}

impl Engine {
    /// Gets the first lease, and keeps it from then on. Does nothing without a cluster.
    ///
    /// # Errors
    /// The store's error.
    pub(super) async fn join_cluster(&self, tasks: Option<NodeTasks>) -> Result<(), StoreError> {
        let (Some(node), Some(tasks)) = (&self.inner().node, tasks) else { return Ok(()) };
        let (sent, answer) = self.renew_first(node).await?;
        if answer.outcome == RenewOutcome::Lost {
            return Err(StoreError::Fenced);
        }
        node.cluster.begin_lease(sent.at);
        // All topics count as changed: what was loaded at the start may be older than this answer.
        let carried_out = self.apply_renewal(node, &sent, answer);
        node.link.set_handler(Box::new(EnginePeerHandler(Arc::downgrade(&self.0))));
        let runs = &self.inner().runs;
        runs.spawn(keep_lease(self.clone(), carried_out));
        runs.spawn(release_unused_sessions(self.clone()));
        runs.spawn(tasks.exchange.run(tasks.exchange_tasks, self.inner().closing.clone()));
        runs.spawn(publish_foreign_events(self.clone(), tasks.foreign_events));
        runs.spawn(bridge_events(self.clone()));
        runs.spawn(announce_interest(self.clone()));
        tracing::info!(node = %node.cluster.node(), epoch = node.cluster.membership().epoch, "joined the cluster");
        Ok(())
    }

    /// The first renewal, tried again while the lease that the node has joined with lasts.
    async fn renew_first(&self, node: &Node) -> Result<(SentRenewal, RenewalAnswer), StoreError> {
        let deadline = Instant::now() + node.cluster.timing().lease();
        let mut carried_out = Vec::new();
        loop {
            let sent = self.sent_renewal();
            let request = self.renewal_request(carried_out.clone(), DrainNews::default());
            match node.cluster.store().renew(request).await {
                Ok(answer) if answer.outcome == RenewOutcome::StopFirst => {
                    answer.stops.iter().for_each(|stop| self.carry_out_waiting_stop(stop));
                    carried_out = answer.stops.iter().map(|stop| stop.number).collect();
                }
                Ok(answer) => return Ok((sent, answer)),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(error) => tracing::warn!(%error, "the lease could not be renewed yet"),
            }
        }
    }

    fn sent_renewal(&self) -> SentRenewal {
        SentRenewal { at: self.inner().clock.now(), at_boot_time: quell_process::boot_time_now() }
    }

    /// What the other nodes hear of this one.
    pub(super) fn node_report(&self) -> NodeReport {
        let (day, uncounted) = self.inner().runs.uncounted_spending();
        let lease = self.cluster().map(|cluster| cluster.timing().lease()).unwrap_or_default();
        NodeReport {
            keys: self.inner().node.as_ref().map(|node| node.keys.clone()).unwrap_or_default(),
            on_bus: self.cluster().is_some_and(Cluster::is_on_bus),
            day,
            spending: uncounted.agents.into_iter().collect(),
            key_spending: uncounted.keys.into_iter().collect(),
            active_runs: self.inner().runs.active_runs().len(),
            max_in_flight: self.inner().config.limits.in_flight_runs,
            processes: self.count_live_processes(),
            draining: self.is_draining(),
            lease_ms: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
        }
    }

    fn renewal_request(&self, carried_out: Vec<i64>, drain: DrainNews) -> RenewalRequest {
        let report = NodeReport { draining: drain.now, ..self.node_report() };
        let wake_others = drain.now != drain.known;
        RenewalRequest { report: serde_json::to_string(&report).unwrap_or_default(), carried_out, wake_others }
    }

    /// Takes note of an answer. Returns the stops that were carried out because of it.
    fn apply_renewal(&self, node: &Node, sent: &SentRenewal, answer: RenewalAnswer) -> Vec<i64> {
        let wall_ms = |moment| self.inner().clock.timestamp(moment).as_millisecond();
        let received = self.inner().clock.now();
        node.cluster.note_renewal_facts(RenewalFacts {
            round_trip: received.since(sent.at),
            clock_skew_ms: clock_skew_ms(wall_ms(sent.at), wall_ms(received), answer.database_clock_ms),
        });
        if answer.outcome == RenewOutcome::Renewed {
            let lifetime = node.cluster.note_renewal(sent.at);
            self.inner().services.wardens.lifetime_limit().extend(sent.at_boot_time + lifetime);
        }
        let carried_out: Vec<i64> = answer.stops.iter().map(|stop| stop.number).collect();
        for stop in &answer.stops {
            self.carry_out_waiting_stop(stop);
        }
        self.inner().runs.spawn(reload_topics(self.clone(), node.note_changes(answer.changes)));
        let own = node.cluster.membership();
        for dead in answer.nodes.iter().filter(|row| row.membership != *own && is_to_be_settled(row, &own.node)) {
            self.settle(node, dead.membership.clone());
        }
        let is_member = |epoch| answer.nodes.iter().any(|row| row.membership.epoch == epoch);
        self.retain_interested_peers(is_member);
        self.forget_peer_activity(is_member);
        let known = node.cluster.nodes();
        if known.iter().any(|row| !is_member(row.membership.epoch)) {
            // The ends of its runs may not have been told.
            self.inner().hub.overrun_readers();
        }
        node.cluster.set_nodes(answer.nodes);
        node.link.drop_calls_of_gone_nodes(|epoch| node.cluster.may_be_at_work(epoch));
        node.warn_of_other_secrets();
        carried_out
    }

    fn carry_out_waiting_stop(&self, waiting: &WaitingStop) {
        match serde_json::from_str::<PeerStop>(&waiting.stop) {
            Ok(stop) => drop(self.carry_out_peer_stop(&stop)),
            Err(error) => {
                tracing::error!(%error, "a stop of another node cannot be read, so everything on this node is stopped");
                let runs = &self.inner().runs;
                let ids = runs.active_runs().iter().map(|live_run| live_run.run.id.clone()).collect();
                drop(runs.abort_runs(ids, StopLevel::Forced, &StopReason::from_text("a stop of another version")));
                self.inner().services.background.stop(StopLevel::Forced, |_| true);
                self.inner().services.mcp.stop_browsing();
                self.inner().services.mcp.end_programs(None, None, StopLevel::Forced);
            }
        }
    }

    async fn reload_topic(&self, topic: &str) -> bool {
        let reloaded = match topic {
            "tokens" => self.inner().access.reload().await.map_err(|error| error.to_string()),
            "agents" => self.reload_created_agents().await.map_err(|error| error.to_string()),
            "sharing" => {
                self.inner().sessions.owners().reload(&self.inner().store).await.map_err(|error| error.to_string())
            }
            "hold" => self.reload_hold().await.map_err(|error| error.to_string()),
            _ => Ok(()),
        };
        if let Err(problem) = &reloaded {
            tracing::warn!(topic, problem, "a change of another node could not be read; it is tried again");
        }
        reloaded.is_ok()
    }

    /// Settles a dead membership in a task, unless one does so already.
    fn settle(&self, node: &Node, dead: Membership) {
        if !node.settling().insert(dead.epoch) {
            return;
        }
        let engine = self.clone();
        self.inner().runs.spawn(async move {
            let Some(node) = &engine.inner().node else { return };
            match settle_membership(node, &dead).await {
                Ok(true) => {
                    tracing::info!(node = %dead.node, epoch = dead.epoch, "the runs of a dead node are sealed, its sessions are free");
                    engine.inner().push.note_sealed_runs();
                }
                Ok(false) => {}
                Err(error) => tracing::warn!(node = %dead.node, %error, "a dead node could not be settled; it is tried again"),
            }
            node.settling().remove(&dead.epoch);
        });
    }

    /// Ends everything that this node holds, by force: another one may take it over soon.
    fn give_up_lease(&self, node: &Node) {
        tracing::error!(node = %node.cluster.node(), "the lease of this node is lost: everything that it holds ends now");
        self.inner().runs.set_gate(AdmissionGate::Closing);
        self.inner().services.wardens.lifetime_limit().end_now();
        self.force_shut_down();
        node.cluster.lost().cancel();
    }
}

/// Whether the node drains, and what the other nodes know of it.
#[derive(Debug, Clone, Copy, Default)]
struct DrainNews {
    now: bool,
    known: bool,
}

/// True for a membership whose lease has ended. One that was fenced earlier is settled by the next start of its node, as
/// long as the lease lasts.
fn is_to_be_settled(row: &NodeRow, own: &NodeName) -> bool {
    row.expires_in.is_zero() || (row.fenced && row.membership.node == *own)
}

/// Returns false if another node does it, or the lease was renewed after all.
async fn settle_membership(node: &Node, dead: &Membership) -> Result<bool, StoreError> {
    let store = node.cluster.store();
    let deadline = Instant::now() + FENCE_TIME;
    // A transaction of the dead node may take a moment to end.
    while !store.fence(dead.epoch).await? {
        if Instant::now() >= deadline {
            return Ok(false);
        }
        tokio::time::sleep(MIN_LOOK_INTERVAL).await;
    }
    if !store.begin_settling(dead.epoch).await? {
        return Ok(false);
    }
    node.recovery.of_membership(dead.clone()).seal_open_runs().await?;
    store.finish_settling(dead.epoch).await?;
    Ok(true)
}

/// Reads again what other nodes have changed, and what they have spent. In a task of its own, so that no slow query delays
/// a renewal.
async fn reload_topics(engine: Engine, topics: Vec<String>) {
    let Some(node) = &engine.inner().node else { return };
    // One after the other, so that no older state replaces a newer one.
    let _reloading = node.reloading.lock().await;
    for topic in topics {
        let is_reloaded = tokio::select! {
            is_reloaded = engine.reload_topic(&topic) => is_reloaded,
            () = engine.inner().closing.cancelled() => return,
        };
        if !is_reloaded {
            // The next renewal tries again.
            node.forget_change(&topic);
        }
    }
    let day = engine.inner().clock.day(engine.inner().clock.now()).to_string();
    match DaySums::load(&engine.inner().store, day.clone()).await {
        Ok(stored) => {
            let reports = node.cluster.live_peers().into_iter();
            let reports = reports.map(|row| NodeReport::of(&row));
            let mut uncounted = DaySums::default();
            for report in reports.filter(|report| report.day == day) {
                uncounted.agents.extend(report.spending);
                uncounted.keys.extend(report.key_spending);
            }
            engine.inner().runs.note_foreign_spend(&day, stored, uncounted);
        }
        Err(error) => tracing::debug!(%error, "what other nodes have spent could not be read"),
    }
}

/// Renews the lease until it is lost or the engine closes.
async fn keep_lease(engine: Engine, mut carried_out: Vec<i64>) {
    let Some(node) = &engine.inner().node else { return };
    let mut wakeups = node.cluster.store().wakeups();
    let mut draining = node.draining.subscribe();
    let mut drain = DrainNews::default();
    let mut looks = DeadNodeLooks::default();
    loop {
        if engine.inner().closing.is_cancelled() {
            return;
        }
        let duty = node.cluster.duty();
        match duty {
            LeaseDuty::EndEverything => return engine.give_up_lease(node),
            LeaseDuty::WaitUntil(_) if carried_out.is_empty() => {
                if wait_for_work(&engine, duty, (&mut wakeups, &mut draining), looks.next_at()).await {
                    return;
                }
            }
            LeaseDuty::Renew | LeaseDuty::WaitUntil(_) => {}
        }
        if node.cluster.duty() == LeaseDuty::EndEverything {
            continue;
        }
        let sent = engine.sent_renewal();
        node.cluster.note_request(sent.at);
        drain.now = *draining.borrow_and_update();
        let request = engine.renewal_request(carried_out.clone(), drain);
        let renewed = tokio::select! {
            renewed = node.cluster.store().renew(request) => renewed,
            () = engine.inner().store.fenced().cancelled() => return engine.give_up_lease(node),
            () = wait_for_lease_end(&engine, node) => continue,
            () = engine.inner().closing.cancelled() => return,
        };
        match renewed {
            Ok(answer) if answer.outcome == RenewOutcome::Lost => return engine.give_up_lease(node),
            Ok(answer) => {
                looks.note(&answer.nodes, node.cluster.membership());
                if answer.outcome == RenewOutcome::Renewed {
                    drain.known = drain.now;
                }
                carried_out = engine.apply_renewal(node, &sent, answer);
            }
            Err(StoreError::Closed) => return,
            Err(error) => {
                tracing::warn!(%error, "the lease could not be renewed");
                // The next one is due at its time; what was carried out is told then.
                if wait_for_work(&engine, node.cluster.duty(), (&mut wakeups, &mut draining), None).await {
                    return;
                }
            }
        }
    }
}

/// When to look for nodes whose leases may have ended.
#[derive(Default)]
struct DeadNodeLooks {
    next: Option<Instant>,
}

impl DeadNodeLooks {
    fn note(&mut self, nodes: &[NodeRow], own: &Membership) {
        // Those whose leases have ended are being settled; each renewal tries again.
        let others = nodes.iter().filter(|row| row.membership != *own && !row.expires_in.is_zero());
        let ends = others.map(|row| row.expires_in).min();
        self.next = ends.map(|ends| Instant::now() + ends.max(MIN_LOOK_INTERVAL));
    }

    fn next_at(&self) -> Option<Instant> {
        self.next
    }
}

/// Waits until the next renewal is due, another node has something for this one, a drain begins or ends, or a lease may
/// have ended. True once the engine closes.
async fn wait_for_work(
    engine: &Engine,
    duty: LeaseDuty,
    (wakeups, draining): (&mut watch::Receiver<u64>, &mut watch::Receiver<bool>),
    look_at: Option<Instant>,
) -> bool {
    let due = match duty {
        LeaseDuty::WaitUntil(moment) => engine.inner().clock.instant(moment),
        LeaseDuty::Renew | LeaseDuty::EndEverything => Instant::now() + MIN_LOOK_INTERVAL,
    };
    let until = look_at.map_or(due, |look| look.min(due));
    tokio::select! {
        () = engine.inner().closing.cancelled() => true,
        // The renewal says that the lease is lost.
        () = engine.inner().store.fenced().cancelled() => false,
        () = tokio::time::sleep_until(until) => false,
        // The sender lives as long as the store.
        _ = wakeups.changed() => false,
        _ = draining.changed() => false,
    }
}

/// Waits until the time for work without a renewal is over.
async fn wait_for_lease_end(engine: &Engine, node: &Node) {
    loop {
        match node.cluster.duty() {
            LeaseDuty::EndEverything => return,
            LeaseDuty::Renew | LeaseDuty::WaitUntil(_) => {
                let now = Instant::now();
                let until = engine.inner().clock.instant(node.cluster.work_ends_at());
                tokio::time::sleep_until(until.max(now + Duration::from_millis(1))).await;
            }
        }
    }
}
