//! Access to a provider that a session brings along: a key, a place, or both.

use std::collections::BTreeMap;

use secrecy::SecretString;

use super::config::{BadProvider, ProviderConfig, ProviderKind};
use crate::address::AddressPolicy;

/// What a caller brings along. Without either, the configured provider is used as it is.
#[derive(Debug, Clone, Default)]
pub struct OwnAccess {
    /// Its key.
    pub api_key: Option<SecretString>,
    /// Where the API begins.
    pub base_url: Option<String>,
    /// Where that may be.
    pub reach: AddressPolicy,
}

impl OwnAccess {
    /// True when it brings nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.api_key.is_none() && self.base_url.is_none()
    }

    /// The provider's section with this access in the place of its own. The configured key and headers never go to another
    /// place than the configured one: who may send messages may not collect keys with them.
    pub(super) fn over(&self, name: &str, configured: Option<&ProviderConfig>) -> Result<ProviderConfig, BadProvider> {
        let mut config = configured.cloned().or_else(|| self.unconfigured(name)).ok_or_else(|| BadProvider {
            provider: name.to_owned(),
            problem: format!("is not configured; add [providers.{name}], or give baseUrl and apiKey with the session"),
        })?;
        if let Some(place) = self.base_url.as_ref().filter(|place| config.base_url.as_ref() != Some(*place)) {
            config.base_url = Some(place.clone());
            (config.api_key, config.headers) = (None, BTreeMap::new());
            config.reach = self.reach;
        }
        if let Some(key) = &self.api_key {
            config.api_key = Some(key.clone());
        }
        Ok(config)
    }

    /// A provider that the configuration does not name: the two public ones with a key, any other with a place.
    fn unconfigured(&self, name: &str) -> Option<ProviderConfig> {
        let kind = match name {
            "anthropic" => ProviderKind::Anthropic,
            "openai" => ProviderKind::Openai,
            _ if self.base_url.is_some() => ProviderKind::Openai,
            _ => return None,
        };
        let is_reachable = self.base_url.is_some() || self.api_key.is_some();
        is_reachable.then(|| ProviderConfig::new(kind))
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn configured() -> ProviderConfig {
        ProviderConfig {
            base_url: Some("http://here/v1".to_owned()),
            api_key: Some("configured".into()),
            headers: BTreeMap::from([("x-key".to_owned(), "configured".to_owned())]),
            ..ProviderConfig::new(ProviderKind::Openai)
        }
    }

    fn access(key: Option<&str>, place: Option<&str>) -> OwnAccess {
        OwnAccess {
            api_key: key.map(SecretString::from),
            base_url: place.map(str::to_owned),
            reach: AddressPolicy::Any,
        }
    }

    fn key_of(config: &ProviderConfig) -> Option<&str> {
        config.api_key.as_ref().map(|key| key.expose_secret())
    }

    #[test]
    fn the_configured_key_stays_at_the_configured_place() {
        let own = configured();
        let moved = access(None, Some("http://there/v1")).over("p", Some(&own)).unwrap();
        assert_eq!((key_of(&moved), moved.headers.len()), (None, 0));
        let same = access(None, Some("http://here/v1")).over("p", Some(&own)).unwrap();
        assert_eq!((key_of(&same), same.headers.len()), (Some("configured"), 1));
        let keyed = access(Some("own"), None).over("p", Some(&own)).unwrap();
        assert_eq!((key_of(&keyed), keyed.headers.len()), (Some("own"), 1));
    }

    #[test]
    fn a_provider_that_is_not_configured_needs_a_place_or_a_known_name() {
        assert_eq!(access(Some("own"), None).over("anthropic", None).unwrap().kind, ProviderKind::Anthropic);
        assert_eq!(access(None, Some("http://there/v1")).over("mine", None).unwrap().kind, ProviderKind::Openai);
        assert!(access(Some("own"), None).over("mine", None).unwrap_err().problem.contains("[providers.mine]"));
        assert!(access(None, None).over("openai", None).is_err());
    }
}
