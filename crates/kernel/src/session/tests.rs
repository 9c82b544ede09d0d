//! Transition table of sessions, and random operations on the session table.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use quell_protocol::SessionKey;

use super::*;

const IDLE: Duration = Duration::from_secs(1800);

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

fn all_states() -> [SessionState; 5] {
    [
        SessionState::Uninitialised,
        SessionState::Ready { used: at(10) },
        SessionState::Active { used: at(10) },
        SessionState::Expired,
        SessionState::Terminated,
    ]
}

fn inputs() -> [SessionInput; 5] {
    let unneeded = SessionInput::ExpireIfIdle { idle: IDLE };
    [SessionInput::Initialised, SessionInput::Touched, SessionInput::Released, unneeded, SessionInput::CleanUp]
}

#[test]
fn every_state_answers_every_input_as_row_c6_says() {
    use SessionEffect as E;
    let (now, ready, active) =
        (at(10 + 1801), SessionState::Ready { used: at(1811) }, SessionState::Active { used: at(1811) });
    let (old_ready, old_active) = (SessionState::Ready { used: at(10) }, SessionState::Active { used: at(10) });
    let gone = (SessionState::Terminated, Some(E::CleanUp));
    let nothing = |state| (state, None);
    let row = |state: SessionState| match state {
        SessionState::Uninitialised => [nothing(ready), nothing(state), nothing(state), nothing(state), gone],
        SessionState::Ready { .. } => [
            nothing(old_ready),
            (active, Some(E::Activated)),
            nothing(state),
            (SessionState::Expired, Some(E::Expired)),
            gone,
        ],
        SessionState::Active { .. } => [
            nothing(old_active),
            (active, Some(E::Activated)),
            nothing(ready),
            (SessionState::Expired, Some(E::Expired)),
            gone,
        ],
        SessionState::Expired => [nothing(ready), nothing(state), nothing(state), nothing(state), gone],
        SessionState::Terminated => [nothing(state); 5],
    };
    for state in all_states() {
        for (input, expected) in inputs().into_iter().zip(row(state)) {
            assert_eq!(state.step(input, now), expected, "{state:?} at {input:?}");
        }
    }
}

#[test]
fn exactly_the_limit_is_not_too_long() {
    for state in [SessionState::Ready { used: at(10) }, SessionState::Active { used: at(10) }] {
        assert_eq!(state.step(SessionInput::ExpireIfIdle { idle: IDLE }, at(10 + 1800)), (state, None));
        let (next, effect) =
            state.step(SessionInput::ExpireIfIdle { idle: IDLE }, Moment(at(1810).0 + Duration::from_nanos(1)));
        assert_eq!((next, effect), (SessionState::Expired, Some(SessionEffect::Expired)));
    }
}

/// Walks all sequences of five inputs from the initial state.
#[test]
fn on_every_path_what_a_session_has_is_given_back_at_most_once_and_nothing_follows() {
    let mut paths = vec![(SessionState::Uninitialised, 0)];
    let mut walked = 0;
    for step in 0..5 {
        let now = at(step * 1801);
        let next = |&(state, cleaned): &(SessionState, i32)| {
            inputs().map(|input| {
                let (next, effect) = state.step(input, now);
                assert!(state != SessionState::Terminated || (next == state && effect.is_none()));
                (next, cleaned + i32::from(effect == Some(SessionEffect::CleanUp)))
            })
        };
        paths = paths.iter().flat_map(next).collect();
        walked += paths.len();
        assert!(paths.iter().all(|(state, cleaned)| *cleaned == i32::from(*state == SessionState::Terminated)));
    }
    println!("{walked} transitions");
}

#[derive(Debug, Clone)]
enum SessionTableOp {
    Enter(u8),
    Change(u8),
    /// The creator at this index of the list succeeds.
    Settle(usize),
    Fail(usize),
    Touch(u8),
    Released(u8),
    Later(u16),
    /// A sweep during which these sessions are in use.
    Sweep(BTreeSet<u8>),
    Take(u8),
    /// The clean-up at this index of the list ends.
    Left(usize),
    TakeAll,
}

fn op() -> impl Strategy<Value = SessionTableOp> {
    let key = || 0..4_u8;
    prop_oneof![
        6 => key().prop_map(SessionTableOp::Enter),
        2 => key().prop_map(SessionTableOp::Change),
        4 => (0..4_usize).prop_map(SessionTableOp::Settle),
        2 => (0..4_usize).prop_map(SessionTableOp::Fail),
        2 => key().prop_map(SessionTableOp::Touch),
        2 => key().prop_map(SessionTableOp::Released),
        2 => (0..2000_u16).prop_map(SessionTableOp::Later),
        2 => proptest::collection::btree_set(key(), 0..3).prop_map(SessionTableOp::Sweep),
        2 => key().prop_map(SessionTableOp::Take),
        5 => (0..4_usize).prop_map(SessionTableOp::Left),
        1 => Just(SessionTableOp::TakeAll),
    ]
}

fn key(number: u8) -> SessionKey {
    SessionKey::parse(format!("s{number}")).unwrap()
}

/// State of the callers of a session table.
#[derive(Default)]
struct SessionTableUsers {
    now: Moment,
    last_resource_id: u32,
    /// With the previous resources of a session that is being changed.
    creators: Vec<(u8, CreateToken, Option<u32>)>,
    cleanups: Vec<SessionCleanup<u32>>,
    cleaned: BTreeMap<u32, u32>,
    replaced: BTreeSet<u32>,
    made: BTreeSet<u32>,
    closed: bool,
}

impl SessionTableUsers {
    fn number(key: &SessionKey) -> u8 {
        key.as_str()[1..].parse().unwrap()
    }

    fn begin_cleanup(&mut self, mut cleanup: SessionCleanup<u32>) {
        assert!(cleanup.begin_cleanup(self.now), "a clean-up that began twice");
        assert!(!cleanup.begin_cleanup(self.now));
        *self.cleaned.entry(cleanup.resources).or_default() += 1;
        self.cleanups.push(cleanup);
    }

    fn finish_one(&mut self, table: &mut SessionTable<u32>, place: usize) {
        if self.creators.is_empty() {
            return;
        }
        let (number, token, before) = self.creators.remove(place % self.creators.len());
        self.last_resource_id += 1;
        let body = self.last_resource_id;
        self.made.insert(body);
        self.replaced.extend(before);
        let outcome = match before {
            Some(_) => table.finish_change(&key(number), token, body, self.now).map(|found| assert_eq!(found, before)),
            None => table.finish_create(&key(number), token, body, self.now),
        };
        if let Err(cleanup) = outcome {
            assert_eq!(cleanup.resources, body);
            self.begin_cleanup(cleanup);
        }
    }

    fn fail_one(&mut self, table: &mut SessionTable<u32>, place: usize) {
        if self.creators.is_empty() {
            return;
        }
        let (number, token, before) = self.creators.remove(place % self.creators.len());
        // Every other failed creation leaves resources behind.
        let rest = (before.is_none() && place.is_multiple_of(2)).then(|| {
            self.last_resource_id += 1;
            self.made.insert(self.last_resource_id);
            self.last_resource_id
        });
        if let Some(cleanup) = table.fail_create(&key(number), token, rest) {
            assert!(rest.is_none_or(|rest| cleanup.resources == rest));
            self.begin_cleanup(cleanup);
        }
    }

    fn apply_op(&mut self, table: &mut SessionTable<u32>, op: SessionTableOp) {
        let now = self.now;
        match op {
            SessionTableOp::Enter(number) => {
                match table.lookup(&key(number), now, |_| SessionUse::Idle { idle: IDLE }) {
                    SessionLookup::Live(body) => {
                        assert!(!self.cleaned.contains_key(&body), "a session that is being cleaned up was handed out");
                        assert!(matches!(table.state(&key(number)), Some(SessionState::Active { .. })));
                    }
                    SessionLookup::Create(token) => {
                        assert!(
                            !self.creators.iter().any(|creator| creator.0 == number),
                            "two callers create one session"
                        );
                        assert!(!self.cleanups.iter().any(|gone| Self::number(&gone.key) == number));
                        self.creators.push((number, token, None));
                    }
                    SessionLookup::Wait => {
                        let someone = self.creators.iter().any(|creator| creator.0 == number)
                            || self.cleanups.iter().any(|gone| Self::number(&gone.key) == number);
                        assert!(someone, "there is nothing to wait for");
                    }
                    SessionLookup::CleanUp(cleanup) => self.begin_cleanup(cleanup),
                    SessionLookup::Closed => assert!(self.closed),
                }
            }
            SessionTableOp::Change(number) => {
                if let ChangeLookup::Change(token, body) = table.begin_change(&key(number)) {
                    assert!(!self.creators.iter().any(|creator| creator.0 == number), "two callers change one session");
                    self.creators.push((number, token, Some(body)));
                }
            }
            SessionTableOp::Settle(place) => self.finish_one(table, place),
            SessionTableOp::Fail(place) => self.fail_one(table, place),
            SessionTableOp::Touch(number) => table.touch(&key(number), now),
            SessionTableOp::Released(number) => table.release(&key(number), now),
            SessionTableOp::Later(seconds) => self.now = now.plus(Duration::from_secs(seconds.into())),
            SessionTableOp::Sweep(needed) => {
                let need = |key: &SessionKey, _: &u32| match needed.contains(&Self::number(key)) {
                    true => SessionUse::InUse,
                    false => SessionUse::Idle { idle: IDLE },
                };
                for cleanup in table.remove_expired(now, need) {
                    assert!(!needed.contains(&Self::number(&cleanup.key)), "a session that is needed expired");
                    self.begin_cleanup(cleanup);
                }
            }
            SessionTableOp::Take(number) => {
                table.remove(&key(number)).into_iter().for_each(|gone| self.begin_cleanup(gone))
            }
            SessionTableOp::Left(place) if !self.cleanups.is_empty() => {
                let cleanup = self.cleanups.remove(place % self.cleanups.len());
                table.finish_cleanup(&cleanup.key);
            }
            SessionTableOp::Left(_) => {}
            SessionTableOp::TakeAll => {
                self.closed = true;
                table.close().into_iter().for_each(|gone| self.begin_cleanup(gone));
            }
        }
    }
}

proptest! {
    #[test]
    fn sessions_never_leak_and_are_cleaned_up_once(ops in proptest::collection::vec(op(), 0..120)) {
        let (mut table, mut users) = (SessionTable::default(), SessionTableUsers::default());
        for op in ops {
            users.apply_op(&mut table, op);
        }
        users.apply_op(&mut table, SessionTableOp::TakeAll);
        while !users.creators.is_empty() {
            users.finish_one(&mut table, 0);
        }
        while !users.cleanups.is_empty() {
            users.apply_op(&mut table, SessionTableOp::Left(0));
        }
        prop_assert!(table.is_empty() && !table.has_cleanups());
        prop_assert!(users.cleaned.values().all(|times| *times == 1));
        // Replaced resources are part of those that replaced them.
        let gone: BTreeSet<u32> = users.cleaned.keys().copied().chain(users.replaced.iter().copied()).collect();
        prop_assert_eq!(gone, users.made);
        prop_assert!(users.replaced.iter().all(|body| !users.cleaned.contains_key(body)));
    }
}
