//! Tokens, made and revoked by somebody.

use quell_protocol::api::TokenScopes;
use quell_protocol::audit::Action;
use secrecy::SecretString;

use super::{Caller, Deed, Engine};
use crate::access::AccessError;
use crate::store::StoreError;

impl Engine {
    /// Makes a token and answers its secret, which is shown this once.
    ///
    /// # Errors
    /// As [`Access::create_token`](crate::access::Access::create_token).
    ///
    /// # Cancel safety
    /// Safe: dropped, it leaves a token whose secret nobody knows, which is listed and can be revoked.
    pub async fn create_token(
        &self,
        caller: &Caller,
        name: &str,
        scopes: impl Into<TokenScopes>,
    ) -> Result<SecretString, AccessError> {
        let (engine, who, name, scopes) = (self.clone(), caller.clone(), name.to_owned(), scopes.into());
        let done = self.seen_through(async move {
            let words = scopes.list().iter().map(|scope| scope.word()).collect::<Vec<_>>().join(" ");
            let secret = engine.access().create_token(&name, scopes).await?;
            engine.audit(&who, Deed::to(Action::CreateToken, "token", &name).with(format!("scope: {words}")));
            Ok(secret)
        });
        done.await.ok_or(StoreError::Closed)?
    }

    /// Revokes a token. False when there is none of that name.
    ///
    /// # Errors
    /// As [`Access::revoke_token`](crate::access::Access::revoke_token).
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn revoke_token(&self, caller: &Caller, name: &str) -> Result<bool, AccessError> {
        let (engine, who, name) = (self.clone(), caller.clone(), name.to_owned());
        let done = self.seen_through(async move {
            let revoked = engine.access().revoke_token(&name).await?;
            if revoked {
                engine.audit(&who, Deed::to(Action::RevokeToken, "token", &name));
            }
            Ok(revoked)
        });
        done.await.ok_or(StoreError::Closed)?
    }
}
