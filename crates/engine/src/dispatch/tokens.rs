//! Tokens, made and revoked by somebody.

use quell_protocol::api::Scope;
use quell_protocol::audit::Action;
use secrecy::SecretString;

use super::{Caller, Deed, Engine};
use crate::access::AccessError;

impl Engine {
    /// Makes a token and answers its secret, which is shown this once.
    ///
    /// # Errors
    /// As [`Access::create_token`](crate::access::Access::create_token).
    ///
    /// # Cancel safety
    /// Safe: dropped, it may leave a token whose secret nobody knows, which is listed and can be revoked.
    pub async fn create_token(&self, caller: &Caller, name: &str, scope: Scope) -> Result<SecretString, AccessError> {
        let secret = self.access().create_token(name, scope).await?;
        self.audit(caller, Deed::to(Action::CreateToken, "token", name).with(format!("scope: {}", word(scope))));
        Ok(secret)
    }

    /// Revokes a token. False when there is none of that name.
    ///
    /// # Errors
    /// As [`Access::revoke_token`](crate::access::Access::revoke_token).
    ///
    /// # Cancel safety
    /// Safe: dropped, the token has stopped working, and is forgotten as the store says.
    pub async fn revoke_token(&self, caller: &Caller, name: &str) -> Result<bool, AccessError> {
        let revoked = self.access().revoke_token(name).await?;
        if revoked {
            self.audit(caller, Deed::to(Action::RevokeToken, "token", name));
        }
        Ok(revoked)
    }
}

fn word(scope: Scope) -> &'static str {
    match scope {
        Scope::Read => "read",
        Scope::Write => "write",
        Scope::Admin => "admin",
    }
}
