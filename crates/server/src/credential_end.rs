//! The end of the credential of an open request: whatever outlives the authentication ends with it.

use quell_engine::access::CredentialRefusal;
use tokio_util::sync::ReusableBoxFuture;

use crate::http::ApiCall;

/// Waits for the end of a credential. Kept from one event of a stream to the next.
#[derive(Debug)]
pub(crate) enum CredentialEnd {
    Watched(ReusableBoxFuture<'static, CredentialRefusal>),
    Ended(CredentialRefusal),
}

impl CredentialEnd {
    /// Without a credential, as for a stop at the Unix socket, nothing may outlive the authentication.
    pub(crate) fn watch(call: &ApiCall) -> Self {
        let engine = call.engine().clone();
        // waits: for the end of the credential; dropped with what watches it.
        let end = |credential| async move { engine.access().wait_credential_end(&credential).await };
        Self::of(call.credential.map(end))
    }

    fn of(end: Option<impl Future<Output = CredentialRefusal> + Send + 'static>) -> Self {
        end.map_or(Self::Ended(CredentialRefusal::Unknown), |end| Self::Watched(ReusableBoxFuture::new(end)))
    }

    /// Returns why the credential is not accepted any more, also when it is called again.
    ///
    /// # Cancel safety
    /// Safe: the next call waits on.
    pub(crate) async fn wait(&mut self) -> CredentialRefusal {
        let refusal = match self {
            Self::Watched(end) => end.await,
            Self::Ended(refusal) => return refusal.clone(),
        };
        *self = Self::Ended(refusal.clone());
        refusal
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn without_a_credential_everything_ends_at_once() {
        let mut end = CredentialEnd::of(None::<std::future::Ready<CredentialRefusal>>);
        assert_eq!(end.wait().now_or_never(), Some(CredentialRefusal::Unknown));
    }

    #[test]
    fn an_end_stays_one_for_whoever_asks_again() {
        let mut end = CredentialEnd::of(Some(ready(CredentialRefusal::Unknown)));
        for _ in 0..2 {
            assert_eq!(end.wait().now_or_never(), Some(CredentialRefusal::Unknown));
        }
        assert_eq!(CredentialEnd::of(Some(pending())).wait().now_or_never(), None);
    }
}
