//! Create, rotate and revoke API tokens, with audit entries.

use quell_protocol::Principal;
use quell_protocol::api::NewToken;
use quell_protocol::audit::Action;
use quell_store::StoreError;

use super::{AuditAction, Caller, Engine};
use crate::access::{AccessError, RotationSpec, TokenSpec};

impl Engine {
    /// Creates a token. Its secret is only in the result.
    ///
    /// # Cancel safety
    /// Safe: if dropped, the token may exist although nobody has its secret; it is listed and can be revoked.
    pub async fn create_token(&self, caller: &Caller, spec: TokenSpec) -> Result<NewToken, AccessError> {
        let (engine, requester) = (self.clone(), caller.clone());
        let created = self.run_detached(async move {
            let made = engine.access().create_token(spec).await?;
            let words = made.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(" ");
            let expiry = made.expires_at.as_ref().map(|at| format!("; expires: {at}")).unwrap_or_default();
            let action = AuditAction::on_target(Action::CreateToken, "token", &made.name);
            engine.audit(&requester, action.with_detail(format!("scope: {words}{expiry}")));
            Ok(made)
        });
        created.await.ok_or(StoreError::Closed)?
    }

    /// Gives a token a new secret, which is only in the result. `None` when there is no token of that name.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine. If dropped, nobody has the new secret; rotate it again.
    pub async fn rotate_token(
        &self,
        caller: &Caller,
        name: &str,
        spec: RotationSpec,
    ) -> Result<Option<NewToken>, AccessError> {
        let (engine, requester, name) = (self.clone(), caller.clone(), name.to_owned());
        let rotated = self.run_detached(async move {
            let rotated = engine.access().rotate_token(&name, spec).await?;
            if let Some(made) = &rotated {
                let expiry = made.expires_at.as_ref().map(|at| format!("; expires: {at}")).unwrap_or_default();
                let detail = format!("the old secret ends after {} s{expiry}", spec.overlap.as_secs());
                let action = AuditAction::on_target(Action::RotateToken, "token", &name);
                engine.audit(&requester, action.with_detail(detail));
            }
            Ok(rotated)
        });
        rotated.await.ok_or(StoreError::Closed)?
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
