//! Matrix: rooms of a homeserver that are not encrypted, by the client-server API over plain HTTP calls.
//!
//! It is an adapter of its own: the SDK of Matrix owns tasks and a database, and what is needed here is some ten calls. Listening is
//! one long poll of `/sync` after the other; where that says that it has left something out, what is missing is fetched.

mod api;
mod attachments;
mod chores;
mod events;
mod fault;
mod few;
mod gaps;
mod hearing;
mod keeper;
mod listening;
mod reactions;
mod rooms;
mod settings;
mod speaking;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::config::{BadChannel, ChannelConfig};
use super::format::{Form, Markup, Measure, Piece};
use super::seam::{
    Drafts, Ear, Files, Lost, Manners, MessageId, Network, NotSent, Own, Place, Reactions, Trouble, Typing,
};
use api::Api;
use fault::Fault;
use reactions::Remembered;
use settings::Settings;

/// An event may have 65,536 bytes (Matrix specification: size limits). An edit holds the text twice, with markup and without, and
/// JSON may double both; the rest is what the server adds.
const LONGEST: usize = 15_000;
/// Between two edits of one message: they are events for good, and each is sent to everybody in the room.
const EDIT_EVERY: Duration = Duration::from_secs(1);
/// Between two signs of typing, which last for ten seconds.
const TYPING_EVERY: Duration = Duration::from_secs(4);

/// One account on a homeserver.
#[derive(Debug)]
pub struct Matrix {
    channel: String,
    settings: Settings,
    api: Api,
    /// Who the server says this is.
    own: Mutex<Option<Own>>,
    /// Rooms that were told that they cannot be read.
    told_encrypted: Mutex<HashSet<String>>,
    reactions: Mutex<Remembered>,
}

impl Matrix {
    /// Takes a channel's configuration.
    ///
    /// # Errors
    /// [`BadChannel`], with the key that is wrong and what would be right.
    pub fn new(name: &str, config: &ChannelConfig) -> Result<Self, BadChannel> {
        let settings = Settings::of(name, config)?;
        let api = Api::new(&settings).map_err(|trouble| BadChannel {
            channel: name.to_owned(),
            key: "api_base",
            problem: trouble.0,
        })?;
        Ok(Self {
            channel: name.to_owned(),
            settings,
            api,
            own: Mutex::default(),
            told_encrypted: Mutex::default(),
            reactions: Mutex::default(),
        })
    }

    /// Asks the server who this is.
    async fn introduce(&self) -> Result<Own, Fault> {
        let id = self.api.whoami().await?;
        let name = self.api.display_name(&id).await?.unwrap_or_else(|| settings::local_part(&id).to_owned());
        let own = Own { id, name };
        *locked(&self.own) = Some(own.clone());
        Ok(own)
    }

    /// The account's id, asked for once.
    async fn own_id(&self) -> Result<String, Fault> {
        let known = locked(&self.own).as_ref().map(|own| own.id.clone());
        match known {
            Some(id) => Ok(id),
            None => Ok(self.introduce().await?.id),
        }
    }
}

impl Network for Matrix {
    fn manners(&self) -> Manners {
        let form = Form { markup: Markup::MatrixHtml, longest: LONGEST, measure: Measure::Bytes };
        Manners { form, edit_every: EDIT_EVERY, typing_every: TYPING_EVERY }
    }

    fn listen<'a>(&'a self, ear: &'a dyn Ear) -> BoxFuture<'a, Lost> {
        listening::listen(self, ear).boxed()
    }

    fn send<'a>(
        &'a self,
        place: &'a Place,
        piece: &'a Piece,
        key: &'a str,
    ) -> BoxFuture<'a, Result<MessageId, NotSent>> {
        speaking::say(&self.api, place, piece, key).boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Trouble>> {
        async {
            let id = self.api.whoami().await?;
            let rooms = match self.api.joined_rooms().await? {
                0 => "in no room; invite it into one".to_owned(),
                1 => "in 1 room".to_owned(),
                many => format!("in {many} rooms"),
            };
            Ok(format!("{id}, {rooms}"))
        }
        .map(|answer: Result<String, Fault>| answer.map_err(|fault| Trouble(fault.to_string())))
        .boxed()
    }

    fn drafts(&self) -> Option<&dyn Drafts> {
        Some(self)
    }

    fn typing(&self) -> Option<&dyn Typing> {
        Some(self)
    }

    fn reactions(&self) -> Option<&dyn Reactions> {
        Some(self)
    }

    fn files(&self) -> Option<&dyn Files> {
        Some(self)
    }
}

/// What a lock protects is whole whenever it is free, so that a panic elsewhere does not matter.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
