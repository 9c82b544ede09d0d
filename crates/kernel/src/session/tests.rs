//! The life of a session, every state with every input; the book, held against what it promises under random use.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use quell_protocol::SessionKey;

use super::*;

const IDLE: Duration = Duration::from_secs(1800);

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

/// Every state that differs from another one in what can happen next.
fn lives() -> [Life; 5] {
    [Life::Uninitialised, Life::Ready { used: at(10) }, Life::Active { used: at(10) }, Life::Expired, Life::Terminated]
}

fn inputs() -> [LifeInput; 5] {
    let unneeded = LifeInput::Unneeded { idle: IDLE };
    [LifeInput::Initialised, LifeInput::Touch, LifeInput::Released, unneeded, LifeInput::CleanUp]
}

#[test]
fn every_state_answers_every_input_as_row_c6_says() {
    use LifeEffect as E;
    let (now, ready, active) = (at(10 + 1801), Life::Ready { used: at(1811) }, Life::Active { used: at(1811) });
    let (old_ready, old_active) = (Life::Ready { used: at(10) }, Life::Active { used: at(10) });
    let gone = (Life::Terminated, Some(E::CleanUp));
    let nothing = |life| (life, None);
    let row = |life: Life| match life {
        Life::Uninitialised => [nothing(ready), nothing(life), nothing(life), nothing(life), gone],
        Life::Ready { .. } => {
            [nothing(old_ready), (active, Some(E::Activated)), nothing(life), (Life::Expired, Some(E::Expired)), gone]
        }
        Life::Active { .. } => {
            [nothing(old_active), (active, Some(E::Activated)), nothing(ready), (Life::Expired, Some(E::Expired)), gone]
        }
        Life::Expired => [nothing(ready), nothing(life), nothing(life), nothing(life), gone],
        Life::Terminated => [nothing(life); 5],
    };
    for life in lives() {
        for (input, wanted) in inputs().into_iter().zip(row(life)) {
            assert_eq!(life.step(input, now), wanted, "{life:?} at {input:?}");
        }
    }
}

#[test]
fn exactly_the_limit_is_not_too_long() {
    for life in [Life::Ready { used: at(10) }, Life::Active { used: at(10) }] {
        assert_eq!(life.step(LifeInput::Unneeded { idle: IDLE }, at(10 + 1800)), (life, None));
        let (next, effect) =
            life.step(LifeInput::Unneeded { idle: IDLE }, Moment(at(1810).0 + Duration::from_nanos(1)));
        assert_eq!((next, effect), (Life::Expired, Some(LifeEffect::Expired)));
    }
}

/// Walks all sequences of five inputs from the beginning.
#[test]
fn on_every_path_what_a_session_has_is_given_back_at_most_once_and_nothing_follows() {
    let mut paths = vec![(Life::Uninitialised, 0)];
    let mut walked = 0;
    for step in 0..5 {
        let now = at(step * 1801);
        let next = |&(life, cleaned): &(Life, i32)| {
            inputs().map(|input| {
                let (next, effect) = life.step(input, now);
                assert!(life != Life::Terminated || (next == life && effect.is_none()));
                (next, cleaned + i32::from(effect == Some(LifeEffect::CleanUp)))
            })
        };
        paths = paths.iter().flat_map(next).collect();
        walked += paths.len();
        assert!(paths.iter().all(|(life, cleaned)| *cleaned == i32::from(*life == Life::Terminated)));
    }
    println!("{walked} transitions");
}

#[derive(Debug, Clone)]
enum Op {
    Enter(u8),
    Change(u8),
    /// The maker with this place in the list is done.
    Settle(usize),
    Fail(usize),
    Touch(u8),
    Released(u8),
    Later(u16),
    /// The sweep, with these sessions needed.
    Sweep(BTreeSet<u8>),
    Take(u8),
    /// The clean-up with this place in the list is over.
    Left(usize),
    TakeAll,
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0..4_u8;
    prop_oneof![
        6 => key().prop_map(Op::Enter),
        2 => key().prop_map(Op::Change),
        4 => (0..4_usize).prop_map(Op::Settle),
        2 => (0..4_usize).prop_map(Op::Fail),
        2 => key().prop_map(Op::Touch),
        2 => key().prop_map(Op::Released),
        2 => (0..2000_u16).prop_map(Op::Later),
        2 => proptest::collection::btree_set(key(), 0..3).prop_map(Op::Sweep),
        2 => key().prop_map(Op::Take),
        5 => (0..4_usize).prop_map(Op::Left),
        1 => Just(Op::TakeAll),
    ]
}

fn key(number: u8) -> SessionKey {
    SessionKey::parse(format!("s{number}")).unwrap()
}

/// What the users of a book hold.
#[derive(Default)]
struct Users {
    now: Moment,
    bodies: u32,
    /// With what a session had that is being changed.
    makers: Vec<(u8, Birth, Option<u32>)>,
    departures: Vec<Departure<u32>>,
    cleaned: BTreeMap<u32, u32>,
    replaced: BTreeSet<u32>,
    made: BTreeSet<u32>,
    closed: bool,
}

impl Users {
    fn number(key: &SessionKey) -> u8 {
        key.as_str()[1..].parse().unwrap()
    }

    fn see_off(&mut self, mut departure: Departure<u32>) {
        assert!(departure.begin(self.now), "a clean-up that began twice");
        assert!(!departure.begin(self.now));
        *self.cleaned.entry(departure.body).or_default() += 1;
        self.departures.push(departure);
    }

    fn settle(&mut self, book: &mut Book<u32>, place: usize) {
        if self.makers.is_empty() {
            return;
        }
        let (number, birth, before) = self.makers.remove(place % self.makers.len());
        self.bodies += 1;
        let body = self.bodies;
        self.made.insert(body);
        self.replaced.extend(before);
        let outcome = match before {
            Some(_) => book.changed(&key(number), birth, body, self.now).map(|found| assert_eq!(found, before)),
            None => book.made(&key(number), birth, body, self.now),
        };
        if let Err(departure) = outcome {
            assert_eq!(departure.body, body);
            self.see_off(departure);
        }
    }

    fn fail(&mut self, book: &mut Book<u32>, place: usize) {
        if self.makers.is_empty() {
            return;
        }
        let (number, birth, before) = self.makers.remove(place % self.makers.len());
        // Every other one had got somewhere.
        let rest = (before.is_none() && place.is_multiple_of(2)).then(|| {
            self.bodies += 1;
            self.made.insert(self.bodies);
            self.bodies
        });
        if let Some(departure) = book.failed(&key(number), birth, rest) {
            assert!(rest.is_none_or(|rest| departure.body == rest));
            self.see_off(departure);
        }
    }

    fn do_one(&mut self, book: &mut Book<u32>, op: Op) {
        let now = self.now;
        match op {
            Op::Enter(number) => match book.enter(&key(number), now, |_| Need::Unneeded { idle: IDLE }) {
                Enter::In(body) => {
                    assert!(!self.cleaned.contains_key(&body), "a session that is being cleaned up was handed out");
                    assert!(matches!(book.life(&key(number)), Some(Life::Active { .. })));
                }
                Enter::Make(birth) => {
                    assert!(!self.makers.iter().any(|maker| maker.0 == number), "two make one session");
                    assert!(!self.departures.iter().any(|gone| Self::number(&gone.key) == number));
                    self.makers.push((number, birth, None));
                }
                Enter::Wait => {
                    let someone = self.makers.iter().any(|maker| maker.0 == number)
                        || self.departures.iter().any(|gone| Self::number(&gone.key) == number);
                    assert!(someone, "it waits for nobody");
                }
                Enter::Clean(departure) => self.see_off(departure),
                Enter::Closed => assert!(self.closed),
            },
            Op::Change(number) => {
                if let Change::Yours(birth, body) = book.change(&key(number)) {
                    assert!(!self.makers.iter().any(|maker| maker.0 == number), "two change one session");
                    self.makers.push((number, birth, Some(body)));
                }
            }
            Op::Settle(place) => self.settle(book, place),
            Op::Fail(place) => self.fail(book, place),
            Op::Touch(number) => book.touch(&key(number), now),
            Op::Released(number) => book.released(&key(number), now),
            Op::Later(seconds) => self.now = now.plus(Duration::from_secs(seconds.into())),
            Op::Sweep(needed) => {
                let need = |key: &SessionKey, _: &u32| match needed.contains(&Self::number(key)) {
                    true => Need::Kept,
                    false => Need::Unneeded { idle: IDLE },
                };
                for departure in book.sweep(now, need) {
                    assert!(!needed.contains(&Self::number(&departure.key)), "a session that is needed expired");
                    self.see_off(departure);
                }
            }
            Op::Take(number) => book.take(&key(number)).into_iter().for_each(|gone| self.see_off(gone)),
            Op::Left(place) if !self.departures.is_empty() => {
                let departure = self.departures.remove(place % self.departures.len());
                book.left(&departure.key);
            }
            Op::Left(_) => {}
            Op::TakeAll => {
                self.closed = true;
                book.take_all().into_iter().for_each(|gone| self.see_off(gone));
            }
        }
    }
}

proptest! {
    #[test]
    fn whatever_happens_nothing_leaks_and_nothing_is_cleaned_up_twice(ops in proptest::collection::vec(op(), 0..120)) {
        let (mut book, mut users) = (Book::default(), Users::default());
        for op in ops {
            users.do_one(&mut book, op);
        }
        users.do_one(&mut book, Op::TakeAll);
        while !users.makers.is_empty() {
            users.settle(&mut book, 0);
        }
        while !users.departures.is_empty() {
            users.do_one(&mut book, Op::Left(0));
        }
        prop_assert!(book.is_empty() && !book.is_leaving());
        prop_assert!(users.cleaned.values().all(|times| *times == 1));
        // What was replaced lives on in what replaced it.
        let gone: BTreeSet<u32> = users.cleaned.keys().copied().chain(users.replaced.iter().copied()).collect();
        prop_assert_eq!(gone, users.made);
        prop_assert!(users.replaced.iter().all(|body| !users.cleaned.contains_key(body)));
    }
}
