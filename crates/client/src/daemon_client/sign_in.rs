//! Create sign-in links for the web page; change model or agent of a session.

use quell_protocol::SessionKey;
use quell_protocol::session::SessionView;
use quell_protocol::web_ui::{SessionPatch, SignInLink};
use reqwest::Method;
use url::Url;

use super::endpoints::ClientRequestOptions;
use super::{ClientError, ClientRequestTimeout, DaemonClient};

impl DaemonClient {
    /// Creates a one-time link that opens the page signed in, at the address that this client uses.
    ///
    /// # Cancel safety
    /// If dropped, an unused link may exist; it expires by itself.
    pub async fn sign_in_link(&self) -> Result<Url, ClientError> {
        let made: SignInLink = self.post_json(&["api", "sign-in-link"], &[], &(), ClientRequestOptions::ONCE).await?;
        let parts: Vec<&str> = made.path.trim_start_matches('/').split('/').collect();
        self.build_url(&parts, &[])
    }

    /// Sets another model or agent for a session, from its next run on. Refused, without any change, when the model
    /// cannot be used.
    ///
    /// # Cancel safety
    /// If dropped, the session may or may not have been changed.
    pub async fn patch_session(&self, session: &SessionKey, patch: &SessionPatch) -> Result<SessionView, ClientError> {
        let request = self.build_request(Method::PATCH, &["api", "sessions", session.as_str()], &[])?;
        self.fetch_json(request.json(patch), ClientRequestTimeout::Default).await
    }
}
