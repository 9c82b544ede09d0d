//! Letters between the nodes of a cluster: their signatures, and their transport over NATS.
//!
//! A letter is signed with the secret of the cluster, so a transport need not be trusted: it can lose, repeat, delay and
//! read letters, but neither change nor invent them. Nothing depends on a letter: what must not be lost is in the
//! database. A receiver has to allow for a letter that comes late, after what replaced it.

mod address;
mod letter;
mod nats;
mod secret;

pub use address::NodeAddress;
pub use letter::{
    LetterOpener, LetterSealer, LetterTransport, MAX_LETTER_OVERHEAD, OpenError, OpenedLetter, SealError,
};
pub use nats::{
    NatsConnectError, NatsConnection, NatsCredentials, NatsDriver, NatsEvent, NatsSendError, NatsSettings,
    NatsTransport, SettingsError,
};
pub use secret::{ClusterSecret, KeyFingerprints, SecretError};
