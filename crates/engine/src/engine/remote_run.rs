//! Follow a run that is on another node, across the end of that node: the events have the same numbers, and there is one
//! end.

use std::sync::Arc;
use std::time::Duration;

use quell_protocol::{EventKind, RunEvent, RunId};
use quell_store::StoreError;
use tokio::time::timeout;

use super::{Engine, Follower, RunFollow};
use crate::cluster::PeerCall;

/// Until the next attempt when nobody can say where the run is.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// How long a node may take to begin.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the events of a run from the node that it is on, and from the database when that node is dead.
#[derive(Debug)]
pub struct RemoteFollower {
    engine: Engine,
    run: RunId,
    last_seen_seq: u64,
    source: RemoteSource,
}

#[derive(Debug)]
enum RemoteSource {
    Unknown,
    Peer(PeerCall),
    Here(Follower),
    Stored(std::vec::IntoIter<RunEvent>),
    Finished,
}

impl RemoteFollower {
    pub(super) fn new(engine: Engine, run: RunId, after: u64) -> Self {
        Self { engine, run, last_seen_seq: after, source: RemoteSource::Unknown }
    }

    /// The next event; `None` after the terminal one, and if another run took the message over. While the node of the
    /// run is silent, this waits until it answers or its runs are sealed.
    ///
    /// # Cancel safety
    /// Safe: the cursor moves only when an event is returned.
    pub async fn next(&mut self) -> Option<Arc<RunEvent>> {
        loop {
            let event = match &mut self.source {
                RemoteSource::Finished => return None,
                RemoteSource::Unknown => {
                    self.source = self.find_source().await;
                    continue;
                }
                RemoteSource::Stored(events) => match events.next() {
                    Some(event) => Arc::new(event),
                    None => return None,
                },
                RemoteSource::Here(follower) => follower.next().await?,
                RemoteSource::Peer(call) => match call.next().await {
                    Some(Ok(message)) => match serde_json::from_slice::<RunEvent>(&message) {
                        Ok(event) => Arc::new(event),
                        Err(error) => {
                            tracing::warn!(run = %self.run, %error, "an event of another node cannot be read");
                            continue;
                        }
                    },
                    Some(Err(_)) => {
                        self.source = RemoteSource::Unknown;
                        // The node may not have stored yet what it knows.
                        tokio::time::sleep(RETRY_DELAY).await;
                        continue;
                    }
                    None => {
                        self.source = RemoteSource::Finished;
                        return None;
                    }
                },
            };
            self.last_seen_seq = self.last_seen_seq.max(event.seq);
            if matches!(event.kind, EventKind::Ended { .. }) {
                self.source = RemoteSource::Finished;
            }
            return Some(event);
        }
    }

    async fn find_source(&self) -> RemoteSource {
        loop {
            match self.try_find_source().await {
                Ok(Some(source)) => return source,
                // Its node is silent: it is settled when its lease has ended.
                Ok(None) => {}
                Err(error) => tracing::debug!(run = %self.run, %error, "it is not known where a run is"),
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// `None` while nobody can answer.
    async fn try_find_source(&self) -> Result<Option<RemoteSource>, StoreError> {
        let Some(cluster) = self.engine.cluster() else { return Ok(Some(RemoteSource::Finished)) };
        if let Some(owner) = cluster.store().open_run_node(self.run.clone()).await? {
            if !cluster.is_live_peer(&owner) {
                return Ok(None);
            }
            let Some(mut call) = self.engine.follow_on_peer(&owner, &self.run, self.last_seen_seq) else {
                return Ok(None);
            };
            // The first message is empty. Without it, the request may have been lost.
            let has_begun = matches!(timeout(BEGIN_TIMEOUT, call.next()).await, Ok(Some(Ok(_))));
            return Ok(has_begun.then_some(RemoteSource::Peer(call)));
        }
        Ok(Some(match self.engine.follow_run_here(&self.run, self.last_seen_seq).await? {
            Some(RunFollow::Live(follower)) => RemoteSource::Here(follower),
            Some(RunFollow::Ended(events)) => RemoteSource::Stored(events.into_iter()),
            Some(RunFollow::Remote(_)) | None => RemoteSource::Finished,
        }))
    }
}
