//! A cluster in discrete events: nodes that pause, crash and are cut off, messages that are late or lost, clocks that run
//! at different speeds. Every decision is one of [`super`]; the rest is the world around it.
//!
//! Real time is that of the database. A node's clock has an offset and a rate of its own.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use rstest::rstest;

use super::{Epoch, HeldLease, LeaseDuty, LeaseRow, LeaseTiming, RenewOutcome, RenewalTerms, TakeOutcome};
use crate::Moment;

const LEASE: Duration = Duration::from_millis(10_000);
/// How long a node takes to end everything by force, and a warden to end its processes: a generous bound.
const ENDING_MS: u64 = 200;
/// The longest way of a message that is not lost.
const MAX_DELAY_MS: u64 = 300;
/// A stop is settled at the latest this long after the lease of a silent owner has ended.
const SETTLED_AFTER_LEASE_MS: u64 = 1_000;
/// How often a node looks at its leases, and for sessions whose owner is dead.
const TICK_MS: u64 = 100;

type NodeId = usize;
type SessionId = usize;

/// A pseudo-random sequence (SplitMix64), so that a seed tells the whole run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn happens(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Tick {
        node: NodeId,
        start: u64,
    },
    /// A message for a session arrives at some node, which takes the session if it is free.
    Message {
        session: SessionId,
    },
    /// A renewal arrives at the database, and its answer at the node.
    RenewalArrives {
        node: NodeId,
        start: u64,
        session: SessionId,
        epoch: Epoch,
        sent: u64,
    },
    RenewalAnswered {
        node: NodeId,
        start: u64,
        session: SessionId,
        epoch: Epoch,
        sent: u64,
        outcome: RenewOutcome,
    },
    WriteArrives {
        session: SessionId,
        epoch: Epoch,
    },
    StopRequested {
        session: SessionId,
    },
    ProcessesEnd {
        session: SessionId,
        epoch: Epoch,
    },
    Disturb,
    Restored {
        node: NodeId,
        start: u64,
    },
}

struct SimulatedNode {
    /// Its clock: an offset, and a rate in parts per million.
    clock_offset_ms: u64,
    clock_ppm: u64,
    /// Counts starts, so that events of an earlier one are ignored.
    start: u64,
    is_alive: bool,
    is_paused: bool,
    /// Cut off from the database and the bus.
    is_cut_off: bool,
    leases: HashMap<SessionId, HeldLease>,
}

impl SimulatedNode {
    fn clock(&self, real_ms: u64) -> Moment {
        Moment(Duration::from_micros(self.clock_offset_ms * 1_000 + real_ms * (1_000_000 + self.clock_ppm) / 1_000))
    }

    /// The real time at which its clock shows this.
    fn real_ms(&self, moment: Moment) -> u64 {
        let micros = u64::try_from(moment.0.as_micros()).unwrap().saturating_sub(self.clock_offset_ms * 1_000);
        micros.saturating_mul(1_000) / (1_000_000 + self.clock_ppm)
    }
}

/// Processes of a session on the node that owned it with this epoch.
struct Processes {
    node: NodeId,
    /// When their warden ends them, by the clock of the node.
    end_at: Moment,
}

struct SimulatedCluster {
    now: u64,
    random: Random,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    queued: u64,
    timing: LeaseTiming,
    nodes: Vec<SimulatedNode>,
    rows: HashMap<SessionId, LeaseRow<NodeId>>,
    /// Alive ones.
    processes: HashMap<(SessionId, Epoch), Processes>,
    /// Stops that are stored and not settled, with the time since when the settlement could not be later than the lease.
    stops: HashMap<SessionId, u64>,
    longest_stop_ms: u64,
    settled: u64,
    takeovers: u64,
    refused_writes: u64,
}

impl SimulatedCluster {
    fn new(seed: u64, nodes: usize, sessions: usize) -> Self {
        let mut random = Random(seed);
        let new_node = |random: &mut Random| SimulatedNode {
            clock_offset_ms: random.below(1_200_000),
            clock_ppm: random.below(1_000),
            start: 0,
            is_alive: true,
            is_paused: false,
            is_cut_off: false,
            leases: HashMap::new(),
        };
        let nodes: Vec<SimulatedNode> = (0..nodes).map(|_| new_node(&mut random)).collect();
        let mut cluster = Self {
            now: 0,
            random,
            queue: BinaryHeap::new(),
            queued: 0,
            timing: LeaseTiming::new(LEASE),
            nodes,
            rows: HashMap::new(),
            processes: HashMap::new(),
            stops: HashMap::new(),
            longest_stop_ms: 0,
            settled: 0,
            takeovers: 0,
            refused_writes: 0,
        };
        for node in 0..cluster.nodes.len() {
            let first = cluster.random.below(TICK_MS);
            cluster.schedule(first, Event::Tick { node, start: 0 });
        }
        for session in 0..sessions {
            let first = cluster.random.below(2_000);
            cluster.schedule(first, Event::Message { session });
        }
        cluster.schedule(1, Event::Disturb);
        cluster
    }

    fn schedule(&mut self, after_ms: u64, event: Event) {
        self.queued += 1;
        self.queue.push(Reverse((self.now + after_ms, self.queued, event)));
    }

    fn run_until(&mut self, end_ms: u64) {
        while let Some(Reverse((at, _, event))) = self.queue.pop() {
            if at > end_ms {
                return;
            }
            self.now = at;
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Tick { node, start } => self.tick(node, start),
            Event::Message { session } => self.message(session),
            Event::RenewalArrives { node, start, session, epoch, sent } => {
                let (now, timing) = (self.moment(), self.timing);
                let terms = RenewalTerms { timing, has_waiting_stop: self.stops.contains_key(&session) };
                let outcome = self.rows.get_mut(&session).unwrap().renew(&node, epoch, now, terms);
                if !self.nodes[node].is_cut_off && !self.random.happens(1) {
                    let delay = self.random.below(MAX_DELAY_MS);
                    self.schedule(delay, Event::RenewalAnswered { node, start, session, epoch, sent, outcome });
                }
            }
            Event::RenewalAnswered { node, start, session, epoch, sent, outcome } => {
                self.renewal_answered(node, start, session, (epoch, sent, outcome));
            }
            Event::WriteArrives { session, epoch } => {
                let row = &self.rows[&session];
                if row.permits_write(epoch) {
                    // Nobody else has been the owner since.
                    assert_eq!(row.epoch, epoch);
                } else {
                    self.refused_writes += 1;
                }
            }
            Event::StopRequested { session } => self.request_stop(session),
            Event::ProcessesEnd { session, epoch } => self.end_processes_if_due(session, epoch),
            Event::Disturb => self.disturb(),
            Event::Restored { node, start } => self.restore(node, start),
        }
    }

    fn moment(&self) -> Moment {
        Moment(Duration::from_millis(self.now))
    }

    /// A node that can do something looks at what it holds, and settles what dead owners have left.
    fn tick(&mut self, node: NodeId, start: u64) {
        let state = &self.nodes[node];
        if !state.is_alive || state.start != start {
            return;
        }
        let jitter = self.random.below(20);
        self.schedule(TICK_MS + jitter, Event::Tick { node, start });
        let state = &self.nodes[node];
        if state.is_paused {
            return;
        }
        let now = state.clock(self.now);
        let mut sessions: Vec<SessionId> = state.leases.keys().copied().collect();
        sessions.sort_unstable();
        for session in sessions {
            let lease = self.nodes[node].leases.get_mut(&session).unwrap();
            match lease.duty(now, self.timing) {
                LeaseDuty::WaitUntil(_) => {}
                LeaseDuty::EndEverything => self.give_up(node, session),
                LeaseDuty::Renew => {
                    lease.request_sent(now);
                    let epoch = lease.epoch();
                    if !self.nodes[node].is_cut_off && !self.random.happens(1) {
                        let delay = self.random.below(MAX_DELAY_MS);
                        let sent = self.now;
                        self.schedule(delay, Event::RenewalArrives { node, start, session, epoch, sent });
                        let delay = self.random.below(MAX_DELAY_MS);
                        self.schedule(delay, Event::WriteArrives { session, epoch });
                    }
                }
            }
        }
        if !self.nodes[node].is_cut_off {
            self.settle_for_dead_owners(node);
        }
    }

    /// Takes the sessions whose lease has ended and for which a stop waits.
    fn settle_for_dead_owners(&mut self, node: NodeId) {
        let now = self.moment();
        let mut due: Vec<SessionId> =
            self.stops.keys().copied().filter(|session| now >= self.rows[session].expires_at).collect();
        due.sort_unstable();
        for session in due {
            self.take(session, node);
            self.give_up(node, session);
        }
    }

    fn message(&mut self, session: SessionId) {
        let node = usize::try_from(self.random.below(self.nodes.len() as u64)).unwrap();
        let is_able = self.nodes[node].is_alive && !self.nodes[node].is_paused && !self.nodes[node].is_cut_off;
        if is_able {
            self.take(session, node);
        }
        let next = 500 + self.random.below(5_000);
        self.schedule(next, Event::Message { session });
        if self.random.happens(10) {
            let after = self.random.below(3_000);
            self.schedule(after, Event::StopRequested { session });
        }
    }

    fn take(&mut self, session: SessionId, node: NodeId) {
        let taken = LeaseRow::take(self.rows.get(&session), node, self.moment(), self.timing);
        let TakeOutcome::Taken(row) = taken else { return };
        // What this is all about: whoever held the session before has nothing alive.
        let survivors: Vec<_> = self.processes.keys().filter(|(of, _)| *of == session).collect();
        assert!(survivors.is_empty(), "at {} ms processes outlive their lease: {survivors:?}", self.now);
        self.takeovers += u64::from(row.epoch > 1);
        // The new owner first settles what the last one has left.
        self.settle(session);
        let now = self.nodes[node].clock(self.now);
        let lease = HeldLease::granted(row.epoch, now);
        let end_at = lease.processes_end_at(self.timing);
        self.processes.insert((session, row.epoch), Processes { node, end_at });
        self.watch_processes(session, row.epoch);
        self.nodes[node].leases.insert(session, lease);
        self.rows.insert(session, row);
    }

    fn renewal_answered(
        &mut self,
        node: NodeId,
        start: u64,
        session: SessionId,
        (epoch, sent, outcome): (Epoch, u64, RenewOutcome),
    ) {
        let state = &mut self.nodes[node];
        if !state.is_alive || state.start != start {
            return;
        }
        if state.is_paused {
            // It is read when the node goes on.
            let event = Event::RenewalAnswered { node, start, session, epoch, sent, outcome };
            return self.schedule(TICK_MS, event);
        }
        let (sent, now) = (state.clock(sent), state.clock(self.now));
        let Some(lease) = state.leases.get_mut(&session).filter(|lease| lease.epoch() == epoch) else { return };
        match outcome {
            RenewOutcome::Renewed => {
                lease.renewed(sent, now, self.timing);
                let end_at = lease.processes_end_at(self.timing);
                if let Some(processes) = self.processes.get_mut(&(session, epoch)) {
                    processes.end_at = end_at;
                }
            }
            RenewOutcome::StopFirst => {
                self.settle(session);
                self.give_up(node, session);
            }
            RenewOutcome::Lost => self.give_up(node, session),
        }
    }

    /// The node ends everything of the session by force.
    fn give_up(&mut self, node: NodeId, session: SessionId) {
        let Some(lease) = self.nodes[node].leases.remove(&session) else { return };
        let now = self.nodes[node].clock(self.now);
        if let Some(processes) = self.processes.get_mut(&(session, lease.epoch())) {
            processes.end_at = processes.end_at.min(now);
            self.watch_processes(session, lease.epoch());
        }
    }

    fn watch_processes(&mut self, session: SessionId, epoch: Epoch) {
        let processes = &self.processes[&(session, epoch)];
        let end = self.nodes[processes.node].real_ms(processes.end_at).max(self.now) + self.random.below(ENDING_MS);
        self.schedule(end - self.now, Event::ProcessesEnd { session, epoch });
    }

    /// A warden ends its processes unless it was given a later moment meanwhile. It runs also while the daemon is paused.
    fn end_processes_if_due(&mut self, session: SessionId, epoch: Epoch) {
        let Some(processes) = self.processes.get(&(session, epoch)) else { return };
        if self.nodes[processes.node].clock(self.now) >= processes.end_at {
            self.processes.remove(&(session, epoch));
        } else {
            self.watch_processes(session, epoch);
        }
    }

    /// Stored in the database at once. The owner hears of it by the bus, or with the answer to its next renewal.
    fn request_stop(&mut self, session: SessionId) {
        let Some(row) = self.rows.get(&session) else { return };
        if self.stops.contains_key(&session) {
            return;
        }
        let (owner, epoch) = (row.owner, row.epoch);
        self.stops.insert(session, self.now);
        let state = &self.nodes[owner];
        let hears = state.is_alive && !state.is_paused && !state.is_cut_off && !self.random.happens(20);
        if hears && self.nodes[owner].leases.get(&session).is_some_and(|lease| lease.epoch() == epoch) {
            self.settle(session);
            self.give_up(owner, session);
        }
    }

    fn settle(&mut self, session: SessionId) {
        if let Some(asked) = self.stops.remove(&session) {
            self.longest_stop_ms = self.longest_stop_ms.max(self.now - asked);
            self.settled += 1;
        }
    }

    /// Something happens to a node. One node in two is always left alone, so that somebody settles.
    fn disturb(&mut self) {
        let next = 1 + self.random.below(40_000 / self.nodes.len() as u64 + 1);
        self.schedule(next, Event::Disturb);
        let node = usize::try_from(self.random.below(self.nodes.len() as u64 / 2)).unwrap();
        let (kind, state) = (self.random.below(3), &mut self.nodes[node]);
        if !state.is_alive || state.is_paused || state.is_cut_off {
            return;
        }
        match kind {
            0 => {
                // A crash: its wardens notice the end of their sockets at once.
                state.is_alive = false;
                let mut sessions: Vec<SessionId> = state.leases.keys().copied().collect();
                sessions.sort_unstable();
                sessions.into_iter().for_each(|session| self.give_up(node, session));
            }
            1 => state.is_paused = true,
            _ => state.is_cut_off = true,
        }
        let (start, duration) = (self.nodes[node].start, 100 + self.random.below(40_000));
        self.schedule(duration, Event::Restored { node, start });
    }

    fn restore(&mut self, node: NodeId, start: u64) {
        let state = &mut self.nodes[node];
        if state.start != start {
            return;
        }
        (state.is_paused, state.is_cut_off) = (false, false);
        if !state.is_alive {
            state.is_alive = true;
            state.start += 1;
            let start = state.start;
            self.schedule(0, Event::Tick { node, start });
        }
    }
}

#[rstest]
#[case::three_nodes(3, 200, 600_000, 4)]
#[case::thousand_nodes(1_000, 2_000, 30_000, 1)]
fn one_owner_writes_stops_are_settled_and_nothing_survives_its_lease(
    #[case] nodes: usize,
    #[case] sessions: usize,
    #[case] duration_ms: u64,
    #[case] seeds: u64,
) {
    let lease_ms = u64::try_from(LEASE.as_millis()).unwrap();
    for seed in 0..seeds {
        let mut cluster = SimulatedCluster::new(seed, nodes, sessions);
        cluster.run_until(duration_ms);
        // The simulation has met what it is for.
        assert!(cluster.takeovers > 10 && cluster.settled > 100, "seed {seed}");
        let bound = lease_ms + SETTLED_AFTER_LEASE_MS;
        assert!(cluster.longest_stop_ms <= bound, "seed {seed}: a stop took {} ms", cluster.longest_stop_ms);
        let oldest = cluster.stops.values().map(|asked| cluster.now - asked).max().unwrap_or_default();
        assert!(oldest <= bound, "seed {seed}: a stop waits for {oldest} ms");
    }
}
