//! Create, rotate and revoke API tokens, with audit entries.

use std::collections::HashMap;

use jiff::civil::Date;
use quell_kernel::daily_spend::{PricedUsage, SpendAmount};
use quell_protocol::api::{NewToken, TokenRestrictions, TokenRow, TokenUsage, TokenUsageSum};
use quell_protocol::audit::Action;
use quell_protocol::{Principal, Usage};
use quell_store::StoreError;

use super::{AuditAction, Caller, Engine};
use crate::access::{AccessError, RotationSpec, TokenSpec};

/// Days whose usage the list of tokens shows, with the current one.
const LISTED_DAYS: i64 = 30;

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
            let limits = describe_restrictions(&made.restrictions);
            engine.audit(&requester, action.with_detail(format!("scope: {words}{expiry}{limits}")));
            Ok(made)
        });
        created.await.ok_or(StoreError::Closed)?
    }

    /// The named tokens, ordered by name, with what their runs have used.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_tokens(&self) -> Result<Vec<TokenRow>, AccessError> {
        let (inner, mut tokens) = (self.inner(), self.access().list_tokens().await?);
        let today = inner.clock.day(inner.clock.now());
        let (first, yesterday) = (days_before(today, LISTED_DAYS - 1), days_before(today, 1));
        let stored = inner.store.spend().by_key(first.to_string(), yesterday.to_string()).await?;
        let earlier: HashMap<Principal, PricedUsage> = stored.into_iter().collect();
        for token in &mut tokens {
            let Ok(principal) = Principal::parse(token.name.as_str()) else { continue };
            let (_, today) = inner.runs.key_spent_today(&principal);
            let earlier = earlier.get(&principal).copied().unwrap_or_default();
            token.usage = Some(TokenUsage { today: usage_sum(today), last30_days: usage_sum(earlier.add(today)) });
        }
        Ok(tokens)
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
                    engine.delete_push_targets_of(principal).await;
                }
                engine.audit(&requester, AuditAction::on_target(Action::RevokeToken, "token", &name));
            }
            Ok(revoked)
        });
        revoked_token.await.ok_or(StoreError::Closed)?
    }
}

fn days_before(day: Date, days: i64) -> Date {
    day.checked_sub(jiff::Span::new().days(days)).unwrap_or(Date::MIN)
}

fn usage_sum(priced: PricedUsage) -> TokenUsageSum {
    let Usage { input_tokens, output_tokens, .. } = priced.usage;
    TokenUsageSum { input_tokens, output_tokens, cost: priced.cost() }
}

/// What the audit log says of the restrictions of a new token.
fn describe_restrictions(restrictions: &TokenRestrictions) -> String {
    let TokenRestrictions { apis, agents, models, daily_cost } = restrictions;
    let apis = apis.as_ref().map(|apis| apis.iter().map(|api| api.as_str()).collect::<Vec<_>>().join(","));
    let parts = [
        apis.map(|apis| format!("; apis: {apis}")),
        agents.as_ref().map(|agents| format!("; agents: {}", agents.join(","))),
        models.as_ref().map(|models| format!("; models: {}", models.join(","))),
        daily_cost.map(|cost| format!("; daily cost: {cost}")),
    ];
    parts.into_iter().flatten().collect()
}
