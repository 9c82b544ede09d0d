//! The calls about the page and about which model a session works with.

use quell_protocol::SessionKey;
use quell_protocol::page::{SessionPatch, SignInLink};
use quell_protocol::session::SessionView;
use reqwest::Method;
use url::Url;

use super::calls::Effort;
use super::{Link, LinkError, Span};

impl Link {
    /// A one-time link that opens the page signed in, at the address by which this link reaches the daemon.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it may leave a link that nobody has; it ends by itself.
    pub async fn sign_in_link(&self) -> Result<Url, LinkError> {
        let made: SignInLink = self.post(&["api", "sign-in-link"], &[], &(), Effort::ONCE).await?;
        let parts: Vec<&str> = made.path.trim_start_matches('/').split('/').collect();
        self.url(&parts, &[])
    }

    /// Gives a session another model or agent from its next run on.
    ///
    /// # Errors
    /// Every [`LinkError`]; refused when the model cannot be used, and then nothing has changed.
    ///
    /// # Cancel safety
    /// Dropping it may or may not leave the session changed.
    pub async fn patch_session(&self, session: &SessionKey, patch: &SessionPatch) -> Result<SessionView, LinkError> {
        let request = self.request(Method::PATCH, &["api", "sessions", session.as_str()], &[])?;
        self.ask(request.json(patch), Span::Ordinary).await
    }
}
