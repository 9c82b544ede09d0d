//! The book of sessions under a model checker: callers, a stop, the sweeper, a deletion and the shutdown meet on the same keys in
//! thousands of schedules. Shuttle finds deadlocks by itself; everything else is asserted where it happens.
//!
//! The users here take the lock, ask the book, wait and clean up in the order in which the engine does; only their work is none.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quell_kernel::Moment;
use quell_kernel::session::{Birth, Book, Departure, Enter, Need};
use quell_protocol::SessionKey;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};
use shuttle::thread;

const KEYS: [&str; 2] = ["s", "t"];

#[derive(Default)]
struct House {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    book: Book<u32>,
    /// What is made and not given back, with whose it is.
    alive: BTreeMap<u32, &'static str>,
    cleaned: BTreeSet<u32>,
    bodies: u32,
    /// Runs at work or waiting, as the registry knows them.
    runs: BTreeMap<&'static str, u32>,
    /// Sessions whose actor has a run in its hands: one at a time.
    busy: BTreeSet<&'static str>,
    now: Duration,
}

impl State {
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

impl House {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Gives back what a session has, in a task of its own as the engine does it.
    fn see_off(self: &Arc<Self>, departure: Departure<u32>) -> thread::JoinHandle<()> {
        let house = Arc::clone(self);
        thread::spawn(move || {
            let mut departure = departure;
            let now = house.lock().now();
            assert!(departure.begin(now), "a clean-up that began twice");
            thread::yield_now();
            let mut state = house.lock();
            assert!(state.alive.remove(&departure.body).is_some(), "given back twice");
            assert!(state.cleaned.insert(departure.body));
            state.book.left(&departure.key);
            drop(state);
            house.changed.notify_all();
        })
    }

    /// One run: it waits for its turn, gets or makes its session, uses it and lets it go.
    fn run(self: &Arc<Self>, key: &'static str) {
        *self.lock().runs.entry(key).or_default() += 1;
        let mut state = self.lock();
        while !state.busy.insert(key) {
            state = self.changed.wait(state).unwrap();
        }
        drop(state);
        let tasks = self.enter(key, |state, body| {
            assert!(state.alive.contains_key(&body), "a session was given back while it was in use");
        });
        let mut state = self.lock();
        let now = state.now();
        state.busy.remove(key);
        *state.runs.get_mut(key).unwrap() -= 1;
        if !state.is_at_work(key) {
            state.book.released(&session(key), now);
        }
        drop(state);
        self.changed.notify_all();
        tasks.into_iter().for_each(|task| task.join().unwrap());
    }

    /// A request for the session without a run: nothing keeps it but its last use.
    fn open(self: &Arc<Self>, key: &'static str) {
        let tasks = self.enter(key, |_, _| {});
        tasks.into_iter().for_each(|task| task.join().unwrap());
    }

    fn enter(self: &Arc<Self>, key: &'static str, using: impl Fn(&State, u32)) -> Vec<thread::JoinHandle<()>> {
        let mut tasks = Vec::new();
        let mut state = self.lock();
        loop {
            let now = state.now();
            match state.book.enter(&session(key), now, |_| Need::Unneeded { idle: Duration::from_secs(4) }) {
                Enter::In(body) => {
                    drop(state);
                    thread::yield_now();
                    using(&self.lock(), body);
                    return tasks;
                }
                Enter::Make(birth) => {
                    drop(state);
                    tasks.extend(self.make(key, birth));
                    self.changed.notify_all();
                    state = self.lock();
                }
                Enter::Wait => state = self.changed.wait(state).unwrap(),
                Enter::Clean(departure) => {
                    drop(state);
                    tasks.push(self.see_off(departure));
                    state = self.lock();
                }
                Enter::Closed => return tasks,
            }
        }
    }

    /// Makes a session. One in four times a stage fails, and as often a stop comes first; something may be there by then.
    fn make(self: &Arc<Self>, key: &'static str, birth: Birth) -> Option<thread::JoinHandle<()>> {
        let fate = thread_rng().gen_range(0..4);
        thread::yield_now();
        let mut state = self.lock();
        let body = (fate < 3).then(|| {
            state.bodies += 1;
            let body = state.bodies;
            assert!(!state.alive.values().any(|of| *of == key), "two sessions of one key are alive");
            state.alive.insert(body, key);
            body
        });
        drop(state);
        thread::yield_now();
        let mut state = self.lock();
        let now = state.now();
        let departure = match body {
            Some(body) if fate < 2 => state.book.made(&session(key), birth, body, now).err(),
            rest => state.book.failed(&session(key), birth, rest),
        };
        drop(state);
        departure.map(|departure| self.see_off(departure))
    }

    fn sweep(self: &Arc<Self>) {
        let mut state = self.lock();
        let now = state.now();
        let at_work: BTreeSet<SessionKey> = KEYS.into_iter().filter(|key| state.is_at_work(key)).map(session).collect();
        let need = |key: &SessionKey, _: &u32| match at_work.contains(key) {
            true => Need::Kept,
            false => Need::Unneeded { idle: Duration::ZERO },
        };
        let gone = state.book.sweep(now, need);
        drop(state);
        let tasks: Vec<_> = gone.into_iter().map(|departure| self.see_off(departure)).collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
    }

    /// Deletes a session in which nothing is at work: nobody makes its successor before all of it is gone.
    fn delete(self: &Arc<Self>, key: &'static str) {
        let mut tasks = Vec::new();
        let mut state = self.lock();
        state.book.shut(&session(key));
        while !state.busy.contains(key) {
            if let Some(departure) = state.book.take(&session(key)) {
                tasks.push(self.see_off(departure));
            }
            if !state.book.is_gone(&session(key)) {
                state = self.changed.wait(state).unwrap();
                continue;
            }
            drop(state);
            thread::yield_now();
            state = self.lock();
            assert!(!state.alive.values().any(|of| *of == key), "a successor of what is not gone yet");
            break;
        }
        state.book.open(&session(key));
        drop(state);
        self.changed.notify_all();
        tasks.into_iter().for_each(|task| task.join().unwrap());
    }

    fn shut_down(self: &Arc<Self>) {
        let gone = self.lock().book.take_all();
        self.changed.notify_all();
        let tasks: Vec<_> = gone.into_iter().map(|departure| self.see_off(departure)).collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        // The engine waits for the condition, too.
        let mut state = self.lock();
        while state.book.is_leaving() {
            state = self.changed.wait(state).unwrap();
        }
    }
}

/// How the house closes.
#[derive(Clone, Copy)]
enum Closing {
    /// When everybody has gone.
    Behind,
    /// As soon as no run is at work, while others still come.
    Among,
}

fn everybody_at_once(closing: Closing) {
    let house = Arc::new(House::default());
    let does = |what: fn(&Arc<House>)| {
        let house = Arc::clone(&house);
        thread::spawn(move || what(&house))
    };
    let mut users = vec![
        does(|house| house.run("s")),
        does(|house| house.run("s")),
        does(|house| house.run("t")),
        does(House::sweep),
        does(|house| house.open("s")),
        does(|house| house.delete("s")),
        does(House::sweep),
    ];
    if let Closing::Among = closing {
        users.push(does(|house| {
            let mut state = house.lock();
            while KEYS.into_iter().any(|key| state.is_at_work(key)) {
                state = house.changed.wait(state).unwrap();
            }
            drop(state);
            house.shut_down();
        }));
    }
    users.into_iter().for_each(|user| user.join().unwrap());
    if let Closing::Behind = closing {
        house.shut_down();
    }
    let state = house.lock();
    assert!(state.alive.is_empty(), "leaked: {:?}", state.alive);
    assert!(state.book.is_empty() && !state.book.is_leaving());
    assert_eq!(state.cleaned.len(), state.bodies as usize);
}

#[test]
fn callers_the_sweeper_a_deletion_and_the_shutdown_leak_nothing_and_never_deadlock() {
    shuttle::check_random(|| everybody_at_once(Closing::Among), 3_000);
}

#[test]
fn the_same_with_few_and_badly_placed_preemptions() {
    shuttle::check_pct(|| everybody_at_once(Closing::Behind), 2_000, 4);
}
