//! The bus from the networks to the runs: what was heard and is not yet a run. Bounded, fair between senders, in order within a
//! conversation, and a stop covers all of it in one step.
//!
//! A letter *waits* until its sender's turn has come, then is *in flight* while somebody makes a run of it; letters of a
//! conversation that is to be collected stand in its *bucket* in between. Nobody is held up by another's flood: when there is no
//! room, the newest letter of whoever has the most gives way.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use quell_protocol::{ChannelMessage, InterruptionScope, RunId, SessionKey};

use super::commands::Command;
use crate::time::Moment;

/// How much an inbox holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InboxBounds {
    /// Letters that wait, those in buckets included: also the most that are collected into one.
    pub waiting: usize,
    /// Letters that runs are being made of at the same time.
    pub in_flight: usize,
    /// Message ids of each channel that are remembered, so that a repeat is known.
    pub remembered: usize,
}

impl Default for InboxBounds {
    /// Row D1; a network repeats what it told during a reconnect, which is far less than is remembered.
    fn default() -> Self {
        Self { waiting: 100, in_flight: 64, remembered: 4096 }
    }
}

/// A message on its way to becoming a run; `X` is what its channel needs besides.
#[derive(Debug, Clone, PartialEq)]
pub struct Letter<X> {
    /// The message.
    pub message: ChannelMessage,
    /// Its conversation: letters of one are taken one after the other.
    pub conversation: SessionKey,
    /// The id of the run that becomes of it.
    pub run: RunId,
    /// How long it waits for others of its conversation, to become one with them. With zero it waits for none.
    pub patience: Duration,
    /// What its channel needs besides.
    pub extra: X,
}

/// What became of a letter that was heard.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard<X> {
    /// It waits for its turn.
    Taken,
    /// It was heard before.
    Repeat,
    /// There was no room: this letter, perhaps another one, is not answered.
    Crowded(Box<Letter<X>>),
}

/// What is to be done now.
#[derive(Debug, Clone, PartialEq)]
pub enum Next<X> {
    /// Make a run of these, which belong together; then say [`Inbox::done`].
    Take(Vec<Letter<X>>),
    /// Nothing before this moment, unless something is heard.
    Wait(Moment),
    /// Nothing, until something is heard or done.
    Nothing,
}

/// What a stop found.
#[derive(Debug, Clone, PartialEq)]
pub struct Withdrawn<X> {
    /// Letters that no run will be made of.
    pub letters: Vec<Letter<X>>,
    /// Runs that are being made of letters, with who wrote them: they are to be stopped by their ids, which may not be known yet.
    pub in_flight: Vec<(RunId, String)>,
    /// What their channels need of commands that are being done: they are to be told, and end by themselves.
    pub commands: Vec<X>,
}

/// How many times its patience a conversation is collected for at the most.
const LONGEST_COLLECTING: u32 = 5;

/// Whoever writes: names are a channel's own.
type Sender = (String, String);

/// What was heard and is not yet a run.
#[derive(Debug)]
pub struct Inbox<X> {
    bounds: InboxBounds,
    /// Senders that have a letter waiting; whose turn is next stands first.
    turns: VecDeque<Sender>,
    waiting: HashMap<Sender, VecDeque<Marked<X>>>,
    buckets: HashMap<SessionKey, Bucket<X>>,
    in_flight: HashMap<SessionKey, InFlight<X>>,
    seen: HashMap<String, Seen>,
    count: usize,
    marks: u64,
}

#[derive(Debug)]
struct Marked<X> {
    mark: u64,
    letter: Letter<X>,
}

#[derive(Debug)]
struct Bucket<X> {
    letters: Vec<Marked<X>>,
    due: Moment,
    /// Who keeps writing is answered in between.
    latest: Moment,
}

#[derive(Debug)]
struct InFlight<X> {
    channel: String,
    scope: InterruptionScope,
    becomes: Becomes<X>,
    mark: u64,
}

/// What somebody is making of letters.
#[derive(Debug)]
enum Becomes<X> {
    Run(RunId),
    /// Nothing: it is a command, with what its channel needs of it.
    Command(X),
}

/// The newest message ids of a channel.
#[derive(Debug, Default)]
struct Seen {
    order: VecDeque<String>,
    ids: HashSet<String>,
}

impl<X: Clone> Inbox<X> {
    /// An empty one.
    #[must_use]
    pub fn new(bounds: InboxBounds) -> Self {
        Self {
            bounds,
            turns: VecDeque::new(),
            waiting: HashMap::new(),
            buckets: HashMap::new(),
            in_flight: HashMap::new(),
            seen: HashMap::new(),
            count: 0,
            marks: 0,
        }
    }

    /// Notes that a message was heard. False when it was before: it counts once.
    pub fn is_new(&mut self, channel: &str, id: &str) -> bool {
        let seen = self.seen.entry(channel.to_owned()).or_default();
        if !seen.ids.insert(id.to_owned()) {
            return false;
        }
        seen.order.push_back(id.to_owned());
        if seen.order.len() > self.bounds.remembered
            && let Some(oldest) = seen.order.pop_front()
        {
            seen.ids.remove(&oldest);
        }
        true
    }

    /// A letter came.
    pub fn hear(&mut self, letter: Letter<X>) -> Heard<X> {
        if !self.is_new(&letter.message.channel, &letter.message.id) {
            return Heard::Repeat;
        }
        let sender = sender_of(&letter);
        self.marks += 1;
        let marked = Marked { mark: self.marks, letter };
        let queue = self.waiting.entry(sender.clone()).or_default();
        if queue.is_empty() {
            self.turns.push_back(sender);
        }
        queue.push_back(marked);
        self.count += 1;
        if self.count <= self.bounds.waiting { Heard::Taken } else { self.make_way() }
    }

    /// The next thing to do.
    pub fn next(&mut self, now: Moment) -> Next<X> {
        loop {
            if self.in_flight.len() >= self.bounds.in_flight {
                return Next::Nothing;
            }
            if let Some(letters) = self.due_bucket(now) {
                return Next::Take(letters);
            }
            let Some(letter) = self.take_in_turn() else { break };
            match self.collect(letter, now) {
                Some(letters) => return Next::Take(letters),
                None => continue,
            }
        }
        let free = |(key, bucket): (&SessionKey, &Bucket<X>)| (!self.in_flight.contains_key(key)).then_some(bucket.due);
        self.buckets.iter().filter_map(free).min().map_or(Next::Nothing, Next::Wait)
    }

    /// The run of a conversation's letters is made, or could not be.
    pub fn done(&mut self, conversation: &SessionKey) {
        self.in_flight.remove(conversation);
    }

    /// Takes back everything that `covered` says, in one step.
    pub fn stop(&mut self, covered: impl Fn(&InterruptionScope) -> bool) -> Withdrawn<X> {
        let of = |message: &ChannelMessage| covered(&message.interruption_scope());
        let mut letters = Vec::new();
        for queue in self.waiting.values_mut() {
            let (out, kept): (Vec<_>, Vec<_>) =
                std::mem::take(queue).into_iter().partition(|it| of(&it.letter.message));
            queue.extend(kept);
            letters.extend(out.into_iter().map(|marked| (marked.mark, marked.letter)));
        }
        self.waiting.retain(|_, queue| !queue.is_empty());
        self.turns.retain(|sender| self.waiting.contains_key(sender));
        for bucket in self.buckets.values_mut() {
            let (out, kept): (Vec<_>, Vec<_>) =
                std::mem::take(&mut bucket.letters).into_iter().partition(|it| of(&it.letter.message));
            bucket.letters = kept;
            letters.extend(out.into_iter().map(|marked| (marked.mark, marked.letter)));
        }
        self.buckets.retain(|_, bucket| !bucket.letters.is_empty());
        letters.sort_by_key(|(mark, _)| *mark);
        self.count -= letters.len();
        let (mut in_flight, mut commands) = (Vec::new(), Vec::new());
        for flying in self.in_flight.values().filter(|it| covered(&it.scope)) {
            match &flying.becomes {
                Becomes::Run(run) => in_flight.push((run.clone(), flying.scope.sender.clone())),
                Becomes::Command(extra) => commands.push(extra.clone()),
            }
        }
        Withdrawn { letters: letters.into_iter().map(|(_, letter)| letter).collect(), in_flight, commands }
    }

    /// A number by which [`Inbox::is_settled`] knows what was heard until now.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.marks
    }

    /// True when nothing that a channel heard until this mark waits, is collected or is in flight.
    #[must_use]
    pub fn is_settled(&self, channel: &str, mark: u64) -> bool {
        let waits = |it: &Marked<X>| it.letter.message.channel == channel && it.mark <= mark;
        let flies = |it: &InFlight<X>| it.channel == channel && it.mark <= mark;
        let collected = self.buckets.values().flat_map(|bucket| &bucket.letters);
        !self.waiting.values().flatten().chain(collected).any(waits) && !self.in_flight.values().any(flies)
    }

    /// Letters that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.count
    }

    /// The newest letter of whoever has the most gives way.
    fn make_way(&mut self) -> Heard<X> {
        // Names are borrowed: this is done for each message of a flood, while others wait for the inbox.
        let mut weights: HashMap<(&str, &str), (usize, u64)> = HashMap::new();
        for ((channel, sender), queue) in &self.waiting {
            // Of those with as much as each other the one who wrote last: the others were here before.
            let newest = queue.back().map_or(0, |marked| marked.mark);
            weights.insert((channel, sender), (queue.len(), newest));
        }
        for marked in self.buckets.values().flat_map(|bucket| &bucket.letters) {
            let message = &marked.letter.message;
            weights.entry((&message.channel, &message.sender)).or_default().0 += 1;
        }
        let heaviest = weights.into_iter().max_by_key(|(_, weight)| *weight);
        let heaviest = heaviest.map(|((channel, sender), _)| (channel.to_owned(), sender.to_owned()));
        let Some(heaviest) = heaviest else { return Heard::Taken };
        let letter = match self.waiting.get_mut(&heaviest).and_then(VecDeque::pop_back) {
            Some(marked) => marked.letter,
            None => match self.pop_collected(&heaviest) {
                Some(letter) => letter,
                None => return Heard::Taken,
            },
        };
        if self.waiting.get(&heaviest).is_some_and(VecDeque::is_empty) {
            self.waiting.remove(&heaviest);
            self.turns.retain(|other| *other != heaviest);
        }
        self.count -= 1;
        Heard::Crowded(Box::new(letter))
    }

    fn pop_collected(&mut self, sender: &Sender) -> Option<Letter<X>> {
        let of_sender = |bucket: &Bucket<X>| bucket.letters.last().is_some_and(|it| sender_of(&it.letter) == *sender);
        let key = self.buckets.iter().find(|(_, bucket)| of_sender(bucket)).map(|(key, _)| key.clone())?;
        let bucket = self.buckets.get_mut(&key)?;
        let letter = bucket.letters.pop()?.letter;
        if bucket.letters.is_empty() {
            self.buckets.remove(&key);
        }
        Some(letter)
    }

    /// The oldest letter of the next sender whose conversation is free.
    fn take_in_turn(&mut self) -> Option<Marked<X>> {
        let (place, at) = self.turns.iter().enumerate().find_map(|(place, sender)| {
            // A conversation whose first letter cannot be taken keeps its others back by the same test.
            let free = |it: &Marked<X>| !self.in_flight.contains_key(&it.letter.conversation);
            Some((place, self.waiting.get(sender)?.iter().position(free)?))
        })?;
        let sender = self.turns.remove(place)?;
        let queue = self.waiting.get_mut(&sender)?;
        let marked = queue.remove(at);
        if queue.is_empty() {
            self.waiting.remove(&sender);
        } else {
            self.turns.push_back(sender);
        }
        marked
    }

    /// A letter whose turn has come becomes a run, or stands in its bucket; what stood there before goes first.
    fn collect(&mut self, marked: Marked<X>, now: Moment) -> Option<Vec<Letter<X>>> {
        let key = marked.letter.conversation.clone();
        let patience = marked.letter.patience;
        let scope = marked.letter.message.interruption_scope();
        let stands = self.buckets.get(&key).and_then(|bucket| bucket.letters.first());
        // What is stopped apart does not become one.
        let apart = stands.is_some_and(|first| first.letter.message.interruption_scope() != scope);
        if patience.is_zero() || apart {
            let Some(bucket) = self.buckets.remove(&key) else {
                return Some(self.fly(vec![marked]));
            };
            let sender = sender_of(&marked.letter);
            let queue = self.waiting.entry(sender.clone()).or_default();
            if queue.is_empty() {
                self.turns.push_front(sender);
            }
            queue.push_front(marked);
            return Some(self.fly(bucket.letters));
        }
        let (due, latest) = (now.plus(patience), now.plus(patience * LONGEST_COLLECTING));
        let bucket = self.buckets.entry(key).or_insert_with(|| Bucket { letters: Vec::new(), due, latest });
        bucket.letters.push(marked);
        bucket.due = due.min(bucket.latest);
        None
    }

    fn due_bucket(&mut self, now: Moment) -> Option<Vec<Letter<X>>> {
        let is_due =
            |(key, bucket): &(&SessionKey, &Bucket<X>)| bucket.due <= now && !self.in_flight.contains_key(*key);
        let key = self.buckets.iter().filter(is_due).min_by_key(|(_, bucket)| bucket.due)?.0.clone();
        let bucket = self.buckets.remove(&key)?;
        Some(self.fly(bucket.letters))
    }

    fn fly(&mut self, letters: Vec<Marked<X>>) -> Vec<Letter<X>> {
        self.count -= letters.len();
        let mark = letters.iter().map(|marked| marked.mark).max().unwrap_or_default();
        if let Some(Marked { letter: first, .. }) = letters.first() {
            let (channel, scope) = (first.message.channel.clone(), first.message.interruption_scope());
            let becomes = match Command::of(&first.message.content) {
                Some(_) => Becomes::Command(first.extra.clone()),
                None => Becomes::Run(first.run.clone()),
            };
            let flying = InFlight { channel, scope, becomes, mark };
            self.in_flight.insert(first.conversation.clone(), flying);
        }
        letters.into_iter().map(|marked| marked.letter).collect()
    }
}

fn sender_of<X>(letter: &Letter<X>) -> Sender {
    (letter.message.channel.clone(), letter.message.sender.clone())
}

#[cfg(test)]
mod tests;
