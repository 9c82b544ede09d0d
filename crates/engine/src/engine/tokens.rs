//! Create and revoke API tokens, with audit entries.

use quell_protocol::Principal;
use quell_protocol::api::TokenScopes;
use quell_protocol::audit::Action;
use quell_store::StoreError;
use secrecy::SecretString;

use super::{AuditAction, Caller, Engine};
use crate::access::AccessError;

impl Engine {
    /// Creates a token and returns its secret, which cannot be read again.
    ///
    /// # Cancel safety
    /// Safe: if dropped, the token may exist although nobody has its secret; it is listed and can be revoked.
    pub async fn create_token(
        &self,
        caller: &Caller,
        name: &str,
        scopes: impl Into<TokenScopes>,
    ) -> Result<SecretString, AccessError> {
        let (engine, requester, name, scopes) = (self.clone(), caller.clone(), name.to_owned(), scopes.into());
        let created = self.run_detached(async move {
            let words = scopes.as_slice().iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(" ");
            let secret = engine.access().create_token(&name, scopes).await?;
            engine.audit(
                &requester,
                AuditAction::on_target(Action::CreateToken, "token", &name).with_detail(format!("scope: {words}")),
            );
            Ok(secret)
        });
        created.await.ok_or(StoreError::Closed)?
    }

    /// Revokes a token. False when there is none of that name.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn revoke_token(&self, caller: &Caller, name: &str) -> Result<bool, AccessError> {
        let (engine, requester, name) = (self.clone(), caller.clone(), name.to_owned());
        let revoked_token = self.run_detached(async move {
            let revoked = engine.access().revoke_token(&name).await?;
            if revoked {
                // The name of a token is its principal.
                if let Ok(principal) = Principal::parse(name.as_str()) {
                    engine.inner().services.approvals.forget_rules_by(&principal);
                }
                engine.audit(&requester, AuditAction::on_target(Action::RevokeToken, "token", &name));
            }
            Ok(revoked)
        });
        revoked_token.await.ok_or(StoreError::Closed)?
    }
}
