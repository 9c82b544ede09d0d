//! The book of live sessions: who makes one, who waits for it, which leave. A plain value behind one lock of the engine, so
//! that each question that could race is one method, and so one locked step.
//!
//! `B` is what a live session has. It is handed out to be cleaned up exactly once: by the sweep, by a deletion, by the
//! shutdown, or by the maker whose session was taken from it while it was being made. A session leaves the book before its
//! clean-up begins, and until that is over nobody makes its successor.

use std::collections::HashMap;

use quell_protocol::SessionKey;

use super::{Life, LifeInput, Need};
use crate::time::Moment;

/// All live sessions.
#[derive(Debug)]
pub struct Book<B> {
    entries: HashMap<SessionKey, Entry<B>>,
    /// Clean-ups that are not over.
    leaving: HashMap<SessionKey, usize>,
    /// Keys of which nobody makes a session, with how many say so.
    shut: HashMap<SessionKey, usize>,
    births: u64,
    closed: bool,
}

#[derive(Debug)]
struct Entry<B> {
    life: Life,
    /// None while it is being made for the first time.
    body: Option<B>,
    /// Who makes or changes it.
    maker: Option<Birth>,
    /// It was taken away while it was being made.
    doomed: bool,
}

/// The claim of the one caller who makes or changes a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Birth(u64);

/// What a caller who needs a session is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Enter<B> {
    /// Use it: it lives, and was touched.
    In(B),
    /// Make it, and say what came of that with [`Book::made`] or [`Book::failed`].
    Make(Birth),
    /// Look again when told: somebody makes it, or its predecessor is being cleaned up.
    Wait,
    /// Clean this one up, which has expired, and look again.
    Clean(Departure<B>),
    /// Give up: the daemon closes.
    Closed,
}

/// What a caller who changes a session is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Change<B> {
    /// Change it, and say what came of that with [`Book::changed`] or [`Book::failed`].
    Yours(Birth, B),
    /// There is none in memory: what is stored is all there is.
    Absent,
    /// Look again when told.
    Wait,
    /// Give up: the daemon closes.
    Closed,
}

/// A session on its way out: it is in the book no more.
#[derive(Debug, PartialEq, Eq)]
pub struct Departure<B> {
    /// Whose.
    pub key: SessionKey,
    /// What it had.
    pub body: B,
    /// Where it stood.
    pub life: Life,
}

impl<B> Departure<B> {
    /// True the first time: what it has is to be given back now.
    pub fn begin(&mut self, now: Moment) -> bool {
        let (life, effect) = self.life.step(LifeInput::CleanUp, now);
        self.life = life;
        effect.is_some()
    }
}

impl<B> Default for Book<B> {
    fn default() -> Self {
        Self { entries: HashMap::new(), leaving: HashMap::new(), shut: HashMap::new(), births: 0, closed: false }
    }
}

impl<B: Clone> Book<B> {
    /// A caller needs this session; `need` says of one that lives whether it may have expired.
    pub fn enter(&mut self, key: &SessionKey, now: Moment, need: impl FnOnce(&B) -> Need) -> Enter<B> {
        if self.closed {
            return Enter::Closed;
        }
        let Some(entry) = self.entries.get_mut(key) else {
            if self.is_vacant(key) {
                return Enter::Make(self.insert(key));
            }
            return Enter::Wait;
        };
        let Some(body) = entry.body.as_ref().filter(|_| entry.maker.is_none()) else { return Enter::Wait };
        if has_expired(&mut entry.life, need(body), now) {
            return self.depart(key).map_or(Enter::Wait, Enter::Clean);
        }
        entry.life = entry.life.step(LifeInput::Touch, now).0;
        Enter::In(body.clone())
    }

    /// A caller changes what this session has.
    pub fn change(&mut self, key: &SessionKey) -> Change<B> {
        if self.closed {
            return Change::Closed;
        }
        let is_vacant = self.is_vacant(key);
        let births = &mut self.births;
        match self.entries.get_mut(key) {
            None if is_vacant => Change::Absent,
            None => Change::Wait,
            Some(Entry { body: Some(body), maker: maker @ None, .. }) => {
                let birth = next(births);
                *maker = Some(birth);
                Change::Yours(birth, body.clone())
            }
            Some(_) => Change::Wait,
        }
    }

    /// The session is made: it is ready.
    ///
    /// # Errors
    /// What it has, to be cleaned up by the caller: it was taken away meanwhile. The clean-up counts as under way.
    pub fn made(&mut self, key: &SessionKey, birth: Birth, body: B, now: Moment) -> Result<(), Departure<B>> {
        self.settle(key, birth, body, now).map(drop)
    }

    /// The session is changed. Answers what it had before.
    ///
    /// # Errors
    /// As [`Book::made`].
    pub fn changed(&mut self, key: &SessionKey, birth: Birth, body: B, now: Moment) -> Result<Option<B>, Departure<B>> {
        self.settle(key, birth, body, now)
    }

    /// The session could not be made or changed. What there is of a new one by then, `rest`, is to be cleaned up by the caller;
    /// one that lived goes on as it was, or is to be cleaned up when it was taken away meanwhile.
    pub fn failed(&mut self, key: &SessionKey, birth: Birth, rest: Option<B>) -> Option<Departure<B>> {
        let entry = self.entries.get_mut(key).filter(|entry| entry.maker == Some(birth))?;
        entry.maker = None;
        if entry.body.is_none() {
            entry.body = rest;
            if entry.body.is_none() {
                self.entries.remove(key);
                return None;
            }
            return self.depart(key);
        }
        if entry.doomed { self.depart(key) } else { None }
    }

    fn settle(&mut self, key: &SessionKey, birth: Birth, body: B, now: Moment) -> Result<Option<B>, Departure<B>> {
        let Some(entry) = self.entries.get_mut(key).filter(|entry| entry.maker == Some(birth)) else {
            *self.leaving.entry(key.clone()).or_default() += 1;
            return Err(Departure { key: key.clone(), body, life: Life::Uninitialised });
        };
        entry.maker = None;
        entry.life = entry.life.step(LifeInput::Initialised, now).0;
        let before = entry.body.replace(body);
        if !entry.doomed {
            return Ok(before);
        }
        // What it had before is no use of its own: the new one has all of it.
        Err(self.depart(key).unwrap_or_else(|| unreachable!("it has just got a body")))
    }

    /// Work comes to a session and may have to wait: if it has expired by now, its next use cleans it up; else that work
    /// keeps it, however long it waits.
    pub fn work_comes(&mut self, key: &SessionKey, now: Moment, need: impl FnOnce(&B) -> Need) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let Some(body) = entry.body.as_ref().filter(|_| entry.maker.is_none()) else { return };
        has_expired(&mut entry.life, need(body), now);
    }

    /// Something puts a session to use that lives.
    pub fn touch(&mut self, key: &SessionKey, now: Moment) {
        self.step(key, LifeInput::Touch, now);
    }

    /// Nothing is at work in a session any more.
    pub fn released(&mut self, key: &SessionKey, now: Moment) {
        self.step(key, LifeInput::Released, now);
    }

    /// Takes out what has expired. Each is to be cleaned up by the caller.
    pub fn sweep(&mut self, now: Moment, need: impl Fn(&SessionKey, &B) -> Need) -> Vec<Departure<B>> {
        let mut expired = Vec::new();
        for (key, entry) in &mut self.entries {
            let Some(body) = entry.body.as_ref().filter(|_| entry.maker.is_none()) else { continue };
            if has_expired(&mut entry.life, need(key, body), now) {
                expired.push(key.clone());
            }
        }
        expired.iter().filter_map(|key| self.depart(key)).collect()
    }

    /// Takes out one session, to be cleaned up by the caller. One that is being made is cleaned up by its maker.
    pub fn take(&mut self, key: &SessionKey) -> Option<Departure<B>> {
        let entry = self.entries.get_mut(key)?;
        if entry.maker.is_some() {
            entry.doomed = true;
            return None;
        }
        self.depart(key)
    }

    /// Takes out all sessions, to be cleaned up by the caller, and lets nobody in any more.
    pub fn take_all(&mut self) -> Vec<Departure<B>> {
        self.closed = true;
        let keys: Vec<SessionKey> = self.entries.keys().cloned().collect();
        keys.iter().filter_map(|key| self.take(key)).collect()
    }

    /// Nobody makes a session of this key until it is opened as often. One that lives is not touched by this.
    pub fn shut(&mut self, key: &SessionKey) {
        *self.shut.entry(key.clone()).or_default() += 1;
    }

    /// Takes one [`Book::shut`] back.
    pub fn open(&mut self, key: &SessionKey) {
        one_less(&mut self.shut, key);
    }

    /// The clean-up of a session is over.
    pub fn left(&mut self, key: &SessionKey) {
        one_less(&mut self.leaving, key);
    }

    /// Where a session stands that is in memory.
    #[must_use]
    pub fn life(&self, key: &SessionKey) -> Option<Life> {
        self.entries.get(key).map(|entry| entry.life)
    }

    /// What a session has that lives.
    #[must_use]
    pub fn body(&self, key: &SessionKey) -> Option<&B> {
        self.entries.get(key)?.body.as_ref()
    }

    /// Sessions that live or are being made.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// True while some session is being cleaned up.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// True when no session of this key lives, is being made, or is being cleaned up.
    #[must_use]
    pub fn is_gone(&self, key: &SessionKey) -> bool {
        !self.entries.contains_key(key) && !self.leaving.contains_key(key)
    }

    fn is_vacant(&self, key: &SessionKey) -> bool {
        self.is_gone(key) && !self.shut.contains_key(key)
    }

    fn insert(&mut self, key: &SessionKey) -> Birth {
        let birth = next(&mut self.births);
        let entry = Entry { life: Life::Uninitialised, body: None, maker: Some(birth), doomed: false };
        self.entries.insert(key.clone(), entry);
        birth
    }

    fn depart(&mut self, key: &SessionKey) -> Option<Departure<B>> {
        let Entry { life, body, .. } = self.entries.remove(key)?;
        *self.leaving.entry(key.clone()).or_default() += 1;
        Some(Departure { key: key.clone(), body: body?, life })
    }

    fn step(&mut self, key: &SessionKey, input: LifeInput, now: Moment) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.life = entry.life.step(input, now).0;
        }
    }
}

fn has_expired(life: &mut Life, need: Need, now: Moment) -> bool {
    if let Need::Unneeded { idle } = need {
        *life = life.step(LifeInput::Unneeded { idle }, now).0;
    }
    *life == Life::Expired
}

fn one_less(counts: &mut HashMap<SessionKey, usize>, key: &SessionKey) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

fn next(births: &mut u64) -> Birth {
    *births += 1;
    Birth(*births)
}
