//! Push notifications: tell the receiver that a client has named what happens to a run, with signed POST requests.
//!
//! A target is a row of the database, encrypted, until its run is deleted. A task of this module's own scope sends to
//! it: no run and no stop waits for a receiver. What happens before the end of a run is sent as well as possible, in
//! order; the end is sent until the receiver has it or is given up, also after a restart. What a notification says is up
//! to a [`PushTranslator`]: this module knows neither runs nor the protocols of clients.

mod delivery;
mod shares;
mod signer;
mod target;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, OnceLock};

use quell_net::{AddressPolicy, HttpClients};
use quell_protocol::api::RunView;
use quell_protocol::approval::ApprovalRow;
use quell_protocol::{Principal, RunEvent, RunId};
use quell_scope::clock::Clock;
use quell_scope::{PointProbe, Scope};
use quell_store::{PushTargetKey, Store, StoreError, StoredPushTarget};
use ring::aead::LessSafeKey;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use crate::sealing::{open_for, seal_for};
pub use delivery::{PushDelivery, PushNotice, PushOutcome};
pub use shares::PushPlace;
use shares::{MAX_DELIVERIES_OF_CLIENT, PushShares};
pub use signer::PushSigner;
pub use target::{InvalidPushTarget, PushAuthentication, PushTarget};

/// The most targets that one client may have for one run.
pub const MAX_PUSH_TARGETS: u32 = 10;
/// The most targets that a daemon sends to. Further ones are refused, or wait in the database.
const MAX_DELIVERIES: usize = 4096;
/// The most requests at the same time.
const MAX_REQUESTS: usize = 64;
/// The public key lets everybody test guesses of the secret, so a short one would not stay one.
const MIN_SECRET_BYTES: usize = 32;

/// Says in the words of a protocol what happened to a run.
pub trait PushTranslator: Send + Sync {
    /// The body of the notification that tells of `event`; `None` if clients need not know of it. `run` is the run as it
    /// is now, which may be after later events. `waiting` are the calls of the run, and of the runs below it, that wait
    /// for a person now and that the client may see, oldest first.
    fn notification(&self, run: &RunView, event: &RunEvent, waiting: &[ApprovalRow]) -> Option<Value>;

    /// The `Content-Type` of the bodies.
    fn media_type(&self) -> &'static str;

    /// The name of the header that carries the token of a target, in lower case.
    fn token_header(&self) -> &'static str;
}

/// Why a push target cannot be stored, read or deleted.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    #[error(
        "push notifications are off, because there is no secret of at least {MIN_SECRET_BYTES} bytes to sign them with; \
         the operator names one with secret_env or secret_file in [hooks]"
    )]
    NotAvailable,
    #[error("there is no run {0}")]
    RunNotFound(RunId),
    #[error("there is no push target {0:?} for this run")]
    TargetNotFound(String),
    #[error(transparent)]
    InvalidTarget(#[from] InvalidPushTarget),
    #[error("a run has at most {MAX_PUSH_TARGETS} push targets of a client; delete one of them first")]
    TooManyTargets,
    #[error("too many notifications wait for their receivers; try again later")]
    Overloaded,
    #[error(
        "{MAX_DELIVERIES_OF_CLIENT} push targets of this token wait for the ends of their runs or for their receivers, \
         which is the limit; try again when some runs have ended"
    )]
    TooManyDeliveries,
    #[error("the run {0} is on another node of the cluster; ask that one")]
    OtherNode(RunId),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A target as the database holds it, with the rights of the client that registered it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushRegistration {
    pub target: PushTarget,
    /// The client may read the runs of everybody.
    pub reads_all: bool,
}

/// Sends the notifications of all runs. Clones share one state.
#[derive(Clone)]
pub struct PushNotifier(Arc<PushNotifierInner>);

#[derive(Debug)]
pub struct PushDeps {
    /// The secret of `[hooks]`.
    pub secret: Option<SecretString>,
    /// Which addresses receivers may have.
    pub address_policy: AddressPolicy,
    pub store: Store,
    pub clock: Clock,
}

struct PushNotifierInner {
    keys: Option<PushKeys>,
    address_policy: AddressPolicy,
    clients: HttpClients,
    store: Store,
    requests: Semaphore,
    shares: PushShares,
    tasks: Scope,
    translator: OnceLock<Arc<dyn PushTranslator>>,
    load: watch::Sender<PushLoad>,
    /// Changes when runs of another daemon were sealed, so that their targets are to be taken over.
    sealed_runs: watch::Sender<()>,
}

struct PushKeys {
    signer: PushSigner,
    storage: LessSafeKey,
}

/// What is at work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct PushLoad {
    deliveries: usize,
    /// Those that have not tried to send the end of their run yet.
    untried: usize,
}

impl PushNotifier {
    /// Nothing is started and nothing is sent before [`PushNotifier::set_translator`].
    pub fn new(deps: PushDeps) -> Self {
        let PushDeps { secret, address_policy, store, clock } = deps;
        let secret = secret.filter(|secret| secret.expose_secret().len() >= MIN_SECRET_BYTES);
        let keys = secret.and_then(|secret| {
            Some(PushKeys { signer: PushSigner::new(&secret)?, storage: signer::storage_key(&secret)? })
        });
        Self(Arc::new(PushNotifierInner {
            keys,
            address_policy,
            clients: HttpClients::default(),
            store,
            requests: Semaphore::new(MAX_REQUESTS),
            shares: PushShares::default(),
            tasks: Scope::new(clock, PointProbe::default()),
            translator: OnceLock::new(),
            load: watch::Sender::default(),
            sealed_runs: watch::Sender::default(),
        }))
    }

    /// Sets who says what notifications say. False if there is one already, or nothing can be signed.
    pub fn set_translator(&self, translator: Arc<dyn PushTranslator>) -> bool {
        self.0.translator.set(translator).is_ok() && self.0.keys.is_some()
    }

    pub fn translator(&self) -> Option<&Arc<dyn PushTranslator>> {
        self.0.translator.get().filter(|_| self.0.keys.is_some())
    }

    /// The Ed25519 key that receivers verify with; `None` if nothing can be signed.
    #[must_use]
    pub fn public_key(&self) -> Option<[u8; 32]> {
        self.0.keys.as_ref()?.signer.public_key()
    }

    /// Checks all that is known of a target of a client before there is a run for it.
    ///
    /// # Errors
    /// [`PushError::NotAvailable`], [`PushError::InvalidTarget`], [`PushError::Overloaded`],
    /// [`PushError::TooManyDeliveries`].
    pub fn check_target(&self, client: &Principal, target: &PushTarget) -> Result<(), PushError> {
        if self.0.keys.is_none() || self.translator().is_none() {
            return Err(PushError::NotAvailable);
        }
        target.check(self.0.address_policy)?;
        if self.room() == 0 {
            return Err(PushError::Overloaded);
        }
        if self.0.shares.is_full(client) { Err(PushError::TooManyDeliveries) } else { Ok(()) }
    }

    /// The place of a new target of a client.
    ///
    /// # Errors
    /// [`PushError::TooManyDeliveries`].
    pub fn take_place(&self, client: &Principal) -> Result<PushPlace, PushError> {
        self.0.shares.take_place(client).ok_or(PushError::TooManyDeliveries)
    }

    /// The place of a target that an earlier daemon has left: its end is sent in any case.
    pub fn take_place_of_left(&self, client: &Principal) -> PushPlace {
        self.0.shares.take_place_beyond_limit(client)
    }

    /// Encrypts a checked target for the database.
    ///
    /// # Errors
    /// [`PushError::NotAvailable`], [`PushError::InvalidTarget`].
    pub fn seal_target(&self, key: &PushTargetKey, registration: &PushRegistration) -> Result<Vec<u8>, PushError> {
        let keys = self.0.keys.as_ref().ok_or(PushError::NotAvailable)?;
        let plain = serde_json::to_vec(registration).unwrap_or_default();
        seal_for(&sealed_owner(key), &keys.storage, &plain).map_err(|why| InvalidPushTarget::new(why).into())
    }

    /// Decrypts a target; `None` if it was encrypted with another secret.
    pub fn open_target(&self, stored: &StoredPushTarget) -> Option<PushRegistration> {
        let plain = open_for(&sealed_owner(&stored.key), &self.0.keys.as_ref()?.storage, &stored.sealed)?;
        serde_json::from_slice(&plain).ok()
    }

    /// How many more targets can be sent to.
    pub fn room(&self) -> usize {
        MAX_DELIVERIES.saturating_sub(self.0.load.borrow().deliveries)
    }

    /// Runs a task that sends, until the daemon ends.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let tasks = self.0.tasks.clone();
        self.0.tasks.spawn(async move {
            // waits: in a task of the notifier, which its scope ends. What was not sent is still in the database.
            tokio::select! {
                () = tasks.cancelled() => {}
                () = task => {}
            }
        });
    }

    /// Tells that runs of another daemon were sealed.
    pub fn note_sealed_runs(&self) {
        self.0.sealed_runs.send_replace(());
    }

    /// Changes after [`PushNotifier::note_sealed_runs`].
    pub fn subscribe_sealed_runs(&self) -> watch::Receiver<()> {
        self.0.sealed_runs.subscribe()
    }

    /// Ends everything: waits until the end of each run was tried once, until `stop_at`, then drops what is at work. The
    /// rest is sent by the next daemon.
    ///
    /// # Cancel safety
    /// Safe: it waits for conditions; call it again.
    pub async fn wait_closed(&self, stop_at: Instant, give_up_at: Instant) {
        let all_tried = async {
            // waits: at the end of the daemon, until its deadline; the sender lives in `self`.
            let _ = self.0.load.subscribe().wait_for(|load| load.untried == 0).await;
        };
        // waits: until the daemon's deadline.
        let _ = timeout_at(stop_at, all_tried).await;
        self.0.tasks.cancel();
        // waits: until the daemon's deadline, for tasks that end at their next wait.
        let _ = timeout_at(give_up_at, self.0.tasks.close()).await;
    }

    /// Drops everything that is at work, without waiting.
    pub fn kill_all(&self) {
        self.0.tasks.kill();
    }

    async fn settle(&self, number: i64, run: &RunId) {
        // waits: for the database, in a task of the notifier. The next daemon sends the end again if this is lost.
        if let Err(error) = self.0.store.push_targets().settle(number).await {
            tracing::warn!(%run, %error, "a delivered notification could not be marked; it will be sent again");
        }
    }

    /// Gives a target up that cannot be sent to.
    pub async fn drop_target(&self, stored: &StoredPushTarget, why: &str) {
        tracing::warn!(run = %stored.key.run, why, "the receiver of a run's notifications is given up");
        // waits: for the database, in a task of the notifier.
        self.settle(stored.number, &stored.key.run).await;
    }
}

/// Ties an encrypted target to its key: it cannot be moved to another owner or run.
fn sealed_owner(key: &PushTargetKey) -> String {
    format!("{}\n{}\n{}", key.run, key.owner, key.id)
}

impl fmt::Debug for PushNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PushNotifier")
    }
}
