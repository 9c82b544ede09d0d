//! How long the secret of a token is accepted: until it expires, or until a rotation replaces it.

/// Longest lifetime of a secret, and longest overlap of a rotation, in milliseconds: ten years of 365 days.
pub const MAX_LIFETIME_MS: i64 = 10 * 365 * 24 * 60 * 60 * 1000;

/// The ends of a secret that are known beforehand, as wall clock in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SecretLifetime {
    /// `None`: it never expires.
    pub expires_at: Option<i64>,
    /// When a rotation ends it. `None`: it was not replaced.
    pub replaced_at: Option<i64>,
}

/// Why a secret is not accepted any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretEnd {
    Expired { at: i64 },
    Replaced { at: i64 },
}

impl SecretLifetime {
    /// Checks a secret at `now`. It is not accepted at the millisecond of its end itself.
    ///
    /// # Errors
    /// The end that has come; of two the earlier one, and of two at the same time the rotation.
    pub fn check(&self, now: i64) -> Result<(), SecretEnd> {
        match self.next_end() {
            Some(end) if end.at() <= now => Err(end),
            Some(_) | None => Ok(()),
        }
    }

    /// The end that comes first, past or future.
    #[must_use]
    pub fn next_end(&self) -> Option<SecretEnd> {
        let replaced = self.replaced_at.map(|at| SecretEnd::Replaced { at });
        let expired = self.expires_at.map(|at| SecretEnd::Expired { at });
        [replaced, expired].into_iter().flatten().min_by_key(SecretEnd::at)
    }
}

impl SecretEnd {
    #[must_use]
    pub fn at(&self) -> i64 {
        match self {
            Self::Expired { at } | Self::Replaced { at } => *at,
        }
    }
}

/// What the caller of a rotation asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RotationRequest {
    /// Milliseconds for which the old secret stays valid; 0 ends it at once.
    pub overlap_ms: i64,
    /// Lifetime of the new secret in milliseconds. `None`: the new secret ends when the old one would have ended.
    pub lifetime_ms: Option<i64>,
}

/// The lifetimes after a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    pub old: SecretLifetime,
    pub new: SecretLifetime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LifetimeError {
    #[error("a lifetime or an overlap lasts at most ten years, and a lifetime at least a millisecond")]
    OutOfRange,
    /// The new secret would be expired from its beginning.
    #[error("the token has expired; say how long its new secret is valid: `quell token rotate NAME --expires 30d`")]
    NewSecretExpired,
}

/// The end of a secret that lives for `lifetime_ms` from `now` on.
///
/// # Errors
/// [`LifetimeError::OutOfRange`]: not within 1 and [`MAX_LIFETIME_MS`].
pub fn lifetime_end(lifetime_ms: i64, now: i64) -> Result<i64, LifetimeError> {
    let is_in_range = (1..=MAX_LIFETIME_MS).contains(&lifetime_ms);
    is_in_range.then(|| now.saturating_add(lifetime_ms)).ok_or(LifetimeError::OutOfRange)
}

/// Replaces a secret at `now`. An overlap never makes the old secret live longer than before.
///
/// # Errors
/// [`LifetimeError`]: a time is out of range, or the new secret would be expired.
pub fn rotate(old: SecretLifetime, request: RotationRequest, now: i64) -> Result<Rotation, LifetimeError> {
    if !(0..=MAX_LIFETIME_MS).contains(&request.overlap_ms) {
        return Err(LifetimeError::OutOfRange);
    }
    let expires_at = match request.lifetime_ms {
        Some(lifetime) => Some(lifetime_end(lifetime, now)?),
        None => old.expires_at,
    };
    let new = SecretLifetime { expires_at, replaced_at: None };
    new.check(now).map_err(|_| LifetimeError::NewSecretExpired)?;
    let replaced_at = Some(now.saturating_add(request.overlap_ms));
    Ok(Rotation { old: SecretLifetime { replaced_at, ..old }, new })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn lifetime(expires_at: impl Into<Option<i64>>, replaced_at: impl Into<Option<i64>>) -> SecretLifetime {
        SecretLifetime { expires_at: expires_at.into(), replaced_at: replaced_at.into() }
    }

    #[rstest]
    #[case::never(lifetime(None, None), i64::MAX, Ok(()))]
    #[case::just_before(lifetime(100, None), 99, Ok(()))]
    #[case::at_its_end(lifetime(100, None), 100, Err(SecretEnd::Expired { at: 100 }))]
    #[case::in_the_overlap(lifetime(100, 50), 49, Ok(()))]
    #[case::after_the_overlap(lifetime(100, 50), 50, Err(SecretEnd::Replaced { at: 50 }))]
    #[case::the_earlier_end(lifetime(50, 100), 200, Err(SecretEnd::Expired { at: 50 }))]
    #[case::both_at_once(lifetime(50, 50), 50, Err(SecretEnd::Replaced { at: 50 }))]
    fn a_secret_ends_at_the_first_of_its_ends(
        #[case] secret: SecretLifetime,
        #[case] now: i64,
        #[case] expected: Result<(), SecretEnd>,
    ) {
        assert_eq!(secret.check(now), expected);
    }

    #[test]
    fn a_rotation_ends_the_old_secret_and_never_makes_it_live_longer() {
        let rotated = |old, overlap_ms, lifetime_ms| rotate(old, RotationRequest { overlap_ms, lifetime_ms }, 1000);
        let at_once = rotated(lifetime(None, None), 0, None).unwrap();
        assert_eq!(at_once, Rotation { old: lifetime(None, 1000), new: lifetime(None, None) });
        assert!(at_once.old.check(1000).is_err() && at_once.new.check(i64::MAX).is_ok());
        let overlap = rotated(lifetime(1200, None), 500, Some(9000)).unwrap();
        assert_eq!(overlap, Rotation { old: lifetime(1200, 1500), new: lifetime(10_000, None) });
        assert_eq!(overlap.old.check(1200), Err(SecretEnd::Expired { at: 1200 }));
        assert_eq!(rotated(lifetime(1200, None), 0, None).unwrap().new, lifetime(1200, None));
        assert_eq!(rotated(lifetime(1000, None), 0, None), Err(LifetimeError::NewSecretExpired));
        assert!(rotated(lifetime(1000, None), 0, Some(1)).is_ok(), "an expired token comes back with a new lifetime");
        for (overlap_ms, lifetime_ms) in [(-1, None), (MAX_LIFETIME_MS + 1, None), (0, Some(0)), (0, Some(i64::MAX))] {
            let refused = rotated(lifetime(None, None), overlap_ms, lifetime_ms);
            assert_eq!(refused, Err(LifetimeError::OutOfRange), "{overlap_ms} {lifetime_ms:?}");
        }
    }
}
