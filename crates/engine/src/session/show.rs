//! Sessions as they are shown: where one stands, when it was used last, what its next run works with.

use std::sync::Arc;

use quell_protocol::SessionKey;
use quell_protocol::session::SessionConfig;

use super::own::{Own, shown};
use super::{NotMade, Sessions};
use crate::store::StoredSession;

/// Where a session stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The word of row C6. A session that is stored and not in memory is `expired`: its next use revives it.
    pub state: &'static str,
    /// RFC 3339: when it was used last, if that is known to the memory.
    pub used: Option<String>,
}

impl Sessions {
    /// Where a session stands that is stored.
    #[must_use]
    pub fn standing(&self, key: &SessionKey) -> Standing {
        let clock = self.0.runs.clock();
        let book = self.book();
        let life = book.lives.life(key);
        let state = match life {
            Some(life) => life.word(),
            // Its actor has something to do and has not come to it.
            None if book.desks.get(key).is_some_and(|desk| desk.working) => "uninitialised",
            None => "expired",
        };
        Standing { state, used: life.and_then(|life| life.used()).map(|used| clock.rfc3339(used)) }
    }

    /// How many callers wait for a session that somebody else makes or cleans up.
    #[must_use]
    pub fn awaited(&self) -> usize {
        self.book().waits.values().map(tokio::sync::watch::Sender::receiver_count).sum()
    }

    /// What the next run of a stored session works with.
    ///
    /// # Errors
    /// Why that run would fail.
    pub fn config_of(&self, stored: &StoredSession) -> Result<SessionConfig, NotMade> {
        let wrong = NotMade::Configuration;
        let live = self.book().lives.body(&stored.key).map(Arc::clone);
        let own = match &live {
            Some(body) => body.own.clone(),
            None => Own::stored(stored, &self.0.vault).map_err(wrong)?,
        };
        let society = &self.0.runs.workshop().society;
        // The one that it was set up for, or the one that a later message named.
        let named = &stored.agent;
        let base = society.get(named).or_else(|| society.get(&society.default_agent()));
        let base = base.ok_or_else(|| wrong(format!("there is no agent {named:?}")))?;
        let config = match &own {
            Some(own) => own.over(&base.config).map_err(wrong)?,
            None => base.config.clone(),
        };
        self.ready(own.as_ref(), &base.id).map_err(wrong)?;
        let idle = self.idle_of(&base).as_secs();
        Ok(shown(own.as_ref(), (&base.id, &config), &base.config, idle))
    }
}
