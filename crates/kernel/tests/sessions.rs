//! Shuttle model check of the session table under concurrent use.
//!
//! Callers, a stop, the sweeper, a deletion and the shutdown use the same keys in thousands of schedules. Shuttle finds
//! deadlocks by itself; everything else is asserted where it happens. The simulated callers lock, look up, wait and
//! clean up in the same order as the engine, but do no work.

#![expect(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quell_kernel::Moment;
use quell_kernel::session::{CreateToken, SessionCleanup, SessionLookup, SessionTable, SessionUse};
use quell_protocol::SessionKey;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};
use shuttle::thread;

const KEYS: [&str; 2] = ["s", "t"];

#[derive(Default)]
struct SessionSimulation {
    state: Mutex<SimulationState>,
    changed: Condvar,
}

#[derive(Default)]
struct SimulationState {
    table: SessionTable<u32>,
    /// Resources that were created and not released, with their session.
    alive: BTreeMap<u32, &'static str>,
    cleaned: BTreeSet<u32>,
    last_resource_id: u32,
    /// Number of active or waiting runs per session, as in the registry.
    runs: BTreeMap<&'static str, u32>,
    /// Sessions whose actor executes a run: one run at a time.
    busy: BTreeSet<&'static str>,
    /// Whether a shutdown refuses new runs, as the registry's gate does.
    refuses_runs: bool,
    now: Duration,
}

impl SimulationState {
    fn now(&mut self) -> Moment {
        self.now += Duration::from_secs(1);
        Moment(self.now)
    }

    fn is_at_work(&self, key: &str) -> bool {
        self.runs.get(key).is_some_and(|runs| *runs > 0)
    }
}

fn session(key: &str) -> SessionKey {
    SessionKey::parse(key).unwrap()
}

impl SessionSimulation {
    fn lock(&self) -> MutexGuard<'_, SimulationState> {
        self.state.lock().unwrap()
    }

    /// Releases a session's resources in a task of its own, as the engine spawn_user.
    fn spawn_cleanup(self: &Arc<Self>, cleanup: SessionCleanup<u32>) -> thread::JoinHandle<()> {
        let simulation = Arc::clone(self);
        thread::spawn(move || {
            let mut cleanup = cleanup;
            let now = simulation.lock().now();
            assert!(cleanup.begin_cleanup(now), "a clean-up that began twice");
            thread::yield_now();
            let mut state = simulation.lock();
            assert!(state.alive.remove(&cleanup.resources).is_some(), "released twice");
            assert!(state.cleaned.insert(cleanup.resources));
            state.table.finish_cleanup(&cleanup.key);
            drop(state);
            simulation.changed.notify_all();
        })
    }

    /// Simulates a run: waits for its turn, gets or creates its session, uses and releases it. Does nothing once a
    /// shutdown has begun.
    fn run(self: &Arc<Self>, key: &'static str) {
        let mut state = self.lock();
        if state.refuses_runs {
            return;
        }
        *state.runs.entry(key).or_default() += 1;
        while !state.busy.insert(key) {
            state = self.changed.wait(state).unwrap();
        }
        drop(state);
        let tasks = self.enter(key, |state, body| {
            assert!(state.alive.contains_key(&body), "a session was released while it was in use");
        });
        let mut state = self.lock();
        let now = state.now();
        state.busy.remove(key);
        *state.runs.get_mut(key).unwrap() -= 1;
        if !state.is_at_work(key) {
            state.table.release(&session(key), now);
        }
        drop(state);
        self.changed.notify_all();
        tasks.into_iter().for_each(|task| task.join().unwrap());
    }

    /// Uses a session without a run, so that nothing but its last use keeps it.
    fn open_session(self: &Arc<Self>, key: &'static str) {
        let tasks = self.enter(key, |_, _| {});
        tasks.into_iter().for_each(|task| task.join().unwrap());
    }

    fn enter(
        self: &Arc<Self>,
        key: &'static str,
        using: impl Fn(&SimulationState, u32),
    ) -> Vec<thread::JoinHandle<()>> {
        let mut tasks = Vec::new();
        let mut state = self.lock();
        loop {
            let now = state.now();
            match state.table.lookup(&session(key), now, |_| SessionUse::Idle { idle: Duration::from_secs(4) }) {
                SessionLookup::Live(body) => {
                    drop(state);
                    thread::yield_now();
                    using(&self.lock(), body);
                    return tasks;
                }
                SessionLookup::Create(token) => {
                    drop(state);
                    tasks.extend(self.create_session(key, token));
                    self.changed.notify_all();
                    state = self.lock();
                }
                SessionLookup::Wait => state = self.changed.wait(state).unwrap(),
                SessionLookup::CleanUp(cleanup) => {
                    drop(state);
                    tasks.push(self.spawn_cleanup(cleanup));
                    state = self.lock();
                }
                SessionLookup::Closed => return tasks,
            }
        }
    }

    /// Creates a session. In one of four cases a stage fails, in another a stop comes first, with or without resources.
    fn create_session(self: &Arc<Self>, key: &'static str, token: CreateToken) -> Option<thread::JoinHandle<()>> {
        let outcome = thread_rng().gen_range(0..4);
        thread::yield_now();
        let mut state = self.lock();
        let body = (outcome < 3).then(|| {
            state.last_resource_id += 1;
            let body = state.last_resource_id;
            assert!(!state.alive.values().any(|of| *of == key), "two sessions of one key are alive");
            state.alive.insert(body, key);
            body
        });
        drop(state);
        thread::yield_now();
        let mut state = self.lock();
        let now = state.now();
        let cleanup = match body {
            Some(body) if outcome < 2 => state.table.finish_create(&session(key), token, body, now).err(),
            rest => state.table.fail_create(&session(key), token, rest),
        };
        drop(state);
        cleanup.map(|cleanup| self.spawn_cleanup(cleanup))
    }

    fn sweep(self: &Arc<Self>) {
        let mut state = self.lock();
        let now = state.now();
        let at_work: BTreeSet<SessionKey> = KEYS.into_iter().filter(|key| state.is_at_work(key)).map(session).collect();
        let need = |key: &SessionKey, _: &u32| match at_work.contains(key) {
            true => SessionUse::InUse,
            false => SessionUse::Idle { idle: Duration::ZERO },
        };
        let gone = state.table.remove_expired(now, need);
        drop(state);
        let tasks: Vec<_> = gone.into_iter().map(|cleanup| self.spawn_cleanup(cleanup)).collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
    }

    /// Deletes an idle session. Its successor must not be created before all of it is gone.
    fn delete(self: &Arc<Self>, key: &'static str) {
        let mut tasks = Vec::new();
        let mut state = self.lock();
        state.table.block_creation(&session(key));
        while !state.busy.contains(key) {
            if let Some(cleanup) = state.table.remove(&session(key)) {
                tasks.push(self.spawn_cleanup(cleanup));
            }
            if !state.table.is_gone(&session(key)) {
                state = self.changed.wait(state).unwrap();
                continue;
            }
            drop(state);
            thread::yield_now();
            state = self.lock();
            assert!(!state.alive.values().any(|of| *of == key), "a successor exists before the session is gone");
            break;
        }
        state.table.unblock_creation(&session(key));
        drop(state);
        self.changed.notify_all();
        tasks.into_iter().for_each(|task| task.join().unwrap());
    }

    fn shut_down(self: &Arc<Self>) {
        let gone = self.lock().table.close();
        self.changed.notify_all();
        let tasks: Vec<_> = gone.into_iter().map(|cleanup| self.spawn_cleanup(cleanup)).collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        // The engine waits for this condition too.
        let mut state = self.lock();
        while state.table.has_cleanups() {
            state = self.changed.wait(state).unwrap();
        }
    }
}

#[derive(Clone, Copy)]
enum ShutdownTiming {
    /// After all callers are done.
    AfterUsers,
    /// Refuses further runs, waits for those that have begun, and closes while other callers are still at work.
    DuringUse,
}

fn run_all_users(closing: ShutdownTiming) {
    let simulation = Arc::new(SessionSimulation::default());
    let spawn_user = |action: fn(&Arc<SessionSimulation>)| {
        let simulation = Arc::clone(&simulation);
        thread::spawn(move || action(&simulation))
    };
    let mut users = vec![
        spawn_user(|simulation| simulation.run("s")),
        spawn_user(|simulation| simulation.run("s")),
        spawn_user(|simulation| simulation.run("t")),
        spawn_user(SessionSimulation::sweep),
        spawn_user(|simulation| simulation.open_session("s")),
        spawn_user(|simulation| simulation.delete("s")),
        spawn_user(SessionSimulation::sweep),
    ];
    if let ShutdownTiming::DuringUse = closing {
        users.push(spawn_user(|simulation| {
            let mut state = simulation.lock();
            state.refuses_runs = true;
            while KEYS.into_iter().any(|key| state.is_at_work(key)) {
                state = simulation.changed.wait(state).unwrap();
            }
            drop(state);
            simulation.shut_down();
        }));
    }
    users.into_iter().for_each(|user| user.join().unwrap());
    if let ShutdownTiming::AfterUsers = closing {
        simulation.shut_down();
    }
    let state = simulation.lock();
    assert!(state.alive.is_empty(), "leaked: {:?}", state.alive);
    assert!(state.table.is_empty() && !state.table.has_cleanups());
    assert_eq!(state.cleaned.len(), state.last_resource_id as usize);
}

#[test]
fn callers_the_sweeper_a_deletion_and_the_shutdown_leak_nothing_and_never_deadlock() {
    shuttle::check_random(|| run_all_users(ShutdownTiming::DuringUse), 3_000);
}

#[test]
fn the_same_with_few_and_badly_placed_preemptions() {
    shuttle::check_pct(|| run_all_users(ShutdownTiming::AfterUsers), 2_000, 4);
}
