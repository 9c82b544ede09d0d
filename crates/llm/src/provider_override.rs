//! A session's own API key or base URL, applied to a configured provider. Configured keys never go to another base URL.

use std::collections::BTreeMap;

use quell_net::AddressPolicy;
use secrecy::SecretString;

use super::config::{ProviderConfig, ProviderConfigError};
use super::provider_kind::ProviderKind;

/// The settings that a session brings along. Without either, the configured provider is used unchanged.
#[derive(Debug, Clone, Default)]
pub struct ProviderOverride {
    pub api_key: Option<SecretString>,
    pub base_url: Option<String>,
    /// The addresses that `base_url` may lead to.
    pub address_policy: AddressPolicy,
}

impl ProviderOverride {
    /// True when neither is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.api_key.is_none() && self.base_url.is_none()
    }

    /// Applies the override to the provider's section. The configured key and headers never go to another base URL:
    /// permission to send messages must not be enough to collect keys.
    pub(super) fn apply_to(
        &self,
        name: &str,
        configured: Option<&ProviderConfig>,
    ) -> Result<ProviderConfig, ProviderConfigError> {
        let mut config =
            configured.cloned().or_else(|| self.default_config(name)).ok_or_else(|| ProviderConfigError {
                provider: name.to_owned(),
                problem: format!(
                    "is not configured; add [providers.{name}], or give baseUrl and apiKey with the session"
                ),
            })?;
        if let Some(base_url) = self.base_url.as_ref().filter(|place| config.base_url.as_ref() != Some(*place)) {
            config.base_url = Some(base_url.clone());
            (config.api_key, config.headers) = (None, BTreeMap::new());
            config.address_policy = self.address_policy;
        }
        if let Some(key) = &self.api_key {
            config.api_key = Some(key.clone());
        }
        Ok(config)
    }

    /// A provider that is not configured: a public one with a key, or any other with a base URL.
    fn default_config(&self, name: &str) -> Option<ProviderConfig> {
        let public = ProviderKind::all().find(|kind| kind.name() == name && kind.0.default_base_url().is_ok());
        match (public, &self.base_url, &self.api_key) {
            (Some(kind), Some(_), _) | (Some(kind), _, Some(_)) => Some(ProviderConfig::new(kind)),
            (None, Some(_), _) => Some(ProviderConfig::new(ProviderKind::OPENAI)),
            (_, None, None) | (None, None, Some(_)) => None,
        }
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
            ..ProviderConfig::new(ProviderKind::OPENAI)
        }
    }

    fn override_of(key: Option<&str>, place: Option<&str>) -> ProviderOverride {
        ProviderOverride {
            api_key: key.map(SecretString::from),
            base_url: place.map(str::to_owned),
            address_policy: AddressPolicy::Any,
        }
    }

    fn key_of(config: &ProviderConfig) -> Option<&str> {
        config.api_key.as_ref().map(|key| key.expose_secret())
    }

    #[test]
    fn the_configured_key_stays_at_the_configured_place() {
        let own = configured();
        let moved = override_of(None, Some("http://there/v1")).apply_to("p", Some(&own)).unwrap();
        assert_eq!((key_of(&moved), moved.headers.len()), (None, 0));
        let same = override_of(None, Some("http://here/v1")).apply_to("p", Some(&own)).unwrap();
        assert_eq!((key_of(&same), same.headers.len()), (Some("configured"), 1));
        let keyed = override_of(Some("own"), None).apply_to("p", Some(&own)).unwrap();
        assert_eq!((key_of(&keyed), keyed.headers.len()), (Some("own"), 1));
    }

    #[test]
    fn a_provider_that_is_not_configured_needs_a_place_or_a_known_name() {
        assert_eq!(override_of(Some("own"), None).apply_to("anthropic", None).unwrap().kind, ProviderKind::ANTHROPIC);
        assert_eq!(
            override_of(None, Some("http://there/v1")).apply_to("mine", None).unwrap().kind,
            ProviderKind::OPENAI
        );
        assert!(
            override_of(Some("own"), None).apply_to("mine", None).unwrap_err().problem.contains("[providers.mine]")
        );
        assert!(override_of(None, None).apply_to("openai", None).is_err());
    }
}
