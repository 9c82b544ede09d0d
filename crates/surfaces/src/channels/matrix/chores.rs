//! What is done beside listening and never holds it up: joining rooms, saying that an encrypted room cannot be read, and keeping
//! where to go on after a restart.

use std::collections::VecDeque;
use std::future::pending;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use serde_json::json;

use super::fault::Fault;
use super::speaking::transaction;
use super::{Matrix, locked};
use crate::channels::seam::Ear;

/// So many are done at a time.
const MOST_AT_A_TIME: usize = 4;
/// So many may wait: anybody may invite, as often as they like.
const MOST_WAITING: usize = 1_000;
/// So often a room is asked again that wants to be left alone for a while.
const MOST_TRIES: usize = 5;
/// So many rooms are remembered that were told that they cannot be read.
const MOST_TOLD: usize = 10_000;

/// Something to do beside listening.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Chore {
    /// Join a room, by id or alias.
    Join(String),
    /// Say in a room that it cannot be read.
    TellEncrypted(String),
}

/// The chores of one connection. They are dropped with it: the next one finds the same to do.
pub(super) struct Chores<'a> {
    matrix: &'a Matrix,
    doing: FuturesUnordered<BoxFuture<'a, ()>>,
    waiting: VecDeque<Chore>,
}

impl<'a> Chores<'a> {
    pub(super) fn new(matrix: &'a Matrix) -> Self {
        Self { matrix, doing: FuturesUnordered::new(), waiting: VecDeque::new() }
    }

    /// Adds one, unless there are too many.
    pub(super) fn add(&mut self, chore: Chore) {
        if self.waiting.len() >= MOST_WAITING {
            tracing::warn!(channel = self.matrix.channel, "too many invitations at once: one was not accepted");
        } else if !self.waiting.contains(&chore) {
            self.waiting.push_back(chore);
        }
    }

    /// Goes on until one is done; for ever where there is none.
    ///
    /// # Cancel safety
    /// Safe: what was begun goes on at the next call.
    pub(super) async fn progress(&mut self) {
        while self.doing.len() < MOST_AT_A_TIME
            && let Some(chore) = self.waiting.pop_front()
        {
            self.doing.push(act(self.matrix, chore).boxed());
        }
        if self.doing.next().await.is_none() {
            pending::<()>().await;
        }
    }
}

async fn act(matrix: &Matrix, chore: Chore) {
    match chore {
        Chore::Join(room) => match join(matrix, &room).await {
            Ok(()) => tracing::info!(channel = matrix.channel, room, "joined"),
            Err(error) => {
                tracing::warn!(channel = matrix.channel, room, %error, "the room cannot be joined; invite the account there");
            }
        },
        Chore::TellEncrypted(room) => tell_encrypted(matrix, &room).await,
    }
}

async fn join(matrix: &Matrix, room: &str) -> Result<(), Fault> {
    for _ in 1..MOST_TRIES {
        match matrix.api.join(room).await {
            Err(Fault::Busy(after)) => tokio::time::sleep(after).await,
            answer => return answer,
        }
    }
    matrix.api.join(room).await
}

/// Says once in a room that it cannot be read. The transaction is the same after a restart, so that a homeserver that remembers it
/// shows it once even then.
async fn tell_encrypted(matrix: &Matrix, room: &str) {
    {
        let mut told = locked(&matrix.told_encrypted);
        if told.len() >= MOST_TOLD || !told.insert(room.to_owned()) {
            return;
        }
    }
    tracing::warn!(channel = matrix.channel, room, "the room is encrypted: what is written there cannot be read");
    let text =
        "This room is encrypted, which Quell cannot read. Please make a room without encryption and invite me there.";
    let notice = json!({"msgtype": "m.notice", "body": text, "m.mentions": {}});
    let key = transaction(&format!("encrypted {room}"));
    if let Err(error) = matrix.api.send(room, "m.room.message", &key, &notice).await {
        tracing::debug!(channel = matrix.channel, room, %error, "the room was not told that it cannot be read");
    }
}

/// Keeps where to go on, each time when all that was heard until there is in the database. What is newer takes the place of what
/// waits to be kept.
pub(super) struct Keeper<'a> {
    ear: &'a dyn Ear,
    keeping: Option<BoxFuture<'a, ()>>,
    next: Option<String>,
}

impl<'a> Keeper<'a> {
    pub(super) fn new(ear: &'a dyn Ear) -> Self {
        Self { ear, keeping: None, next: None }
    }

    /// Where to go on from now on. Everything before it must have been heard.
    pub(super) fn keep(&mut self, cursor: &str) {
        self.next = Some(cursor.to_owned());
    }

    /// Goes on until one is kept; for ever where there is nothing to keep.
    ///
    /// # Cancel safety
    /// Safe: what was begun goes on at the next call.
    pub(super) async fn progress(&mut self) {
        let ear = self.ear;
        let keeping = match (&mut self.keeping, self.next.take()) {
            (Some(keeping), newer) => {
                self.next = newer;
                keeping
            }
            (none, Some(cursor)) => {
                none.insert(async move { ear.settled().then(|()| ear.keep_cursor(cursor)).await }.boxed())
            }
            (None, None) => return pending().await,
        };
        keeping.await;
        self.keeping = None;
    }
}
