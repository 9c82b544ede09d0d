//! Settings of the connection to NATS.

use std::path::PathBuf;

use secrecy::SecretString;

use super::subjects::is_prefix;

#[derive(Debug, Clone)]
pub struct NatsSettings {
    /// Such as `nats://10.0.0.5:4222`, or `tls://` for TLS even if the server does not ask for it. Servers that these
    /// name are not used by themselves.
    pub urls: Vec<String>,
    pub credentials: NatsCredentials,
    /// PEM. With it TLS is demanded, and only certificates that these authorities have signed are accepted. Without it
    /// the authorities of the system are.
    pub tls_ca_file: Option<PathBuf>,
    /// The first part of all subjects, such as `quell`. Clusters on the same server need different ones. The user must be
    /// permitted to publish and subscribe below it.
    pub prefix: String,
}

/// How this node logs in.
#[derive(Debug, Clone)]
pub enum NatsCredentials {
    /// Refused: NATS is used only with credentials.
    None,
    Password {
        user: String,
        password: SecretString,
    },
    Token(SecretString),
    /// The seed of a user's nkey, beginning with `SU`.
    NkeySeed(SecretString),
    /// The content of a `.creds` file: a user's JWT and the seed of its nkey.
    CredsFile(SecretString),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("NATS is used only with credentials: set a user with a password, a token, an nkey or a credentials file")]
    NoCredentials,
    #[error("there is no address of a NATS server: set one, such as nats://10.0.0.5:4222")]
    NoServers,
    /// Not the address itself, which may contain a password.
    #[error("address {number} of the NATS servers is invalid: {reason}")]
    BadUrl { number: usize, reason: String },
    #[error(
        "the prefix {0:?} of NATS subjects is invalid: use letters, digits, `-` and `_`, in parts separated by dots"
    )]
    BadPrefix(String),
    #[error("the NATS credentials file is invalid: {0}; create it anew, for example by `nsc generate creds`")]
    BadCredsFile(String),
    #[error("the CA file {} of NATS cannot be used: {reason}", .path.display())]
    BadCaFile { path: PathBuf, reason: String },
}

impl NatsSettings {
    /// Checks what can be checked without a connection, and returns the addresses of the servers.
    pub(super) fn check(&self) -> Result<Vec<async_nats::ServerAddr>, SettingsError> {
        if matches!(self.credentials, NatsCredentials::None) {
            return Err(SettingsError::NoCredentials);
        }
        if !is_prefix(&self.prefix) {
            return Err(SettingsError::BadPrefix(self.prefix.clone()));
        }
        if self.urls.is_empty() {
            return Err(SettingsError::NoServers);
        }
        if let Some(path) = &self.tls_ca_file
            && let Err(error) = std::fs::File::open(path)
        {
            return Err(SettingsError::BadCaFile { path: path.clone(), reason: error.to_string() });
        }
        (1..).zip(&self.urls).map(|(number, url)| parse_url(number, url)).collect()
    }
}

fn parse_url(number: usize, url: &str) -> Result<async_nats::ServerAddr, SettingsError> {
    let bad_url = |reason: String| SettingsError::BadUrl { number, reason };
    let address: async_nats::ServerAddr = url.parse().map_err(|error: std::io::Error| bad_url(error.to_string()))?;
    if address.username().is_some_and(|user| !user.is_empty()) || address.password().is_some() {
        return Err(bad_url("it contains a user or a password, which belongs into the credentials".into()));
    }
    if !matches!(address.scheme(), "nats" | "tls") {
        return Err(bad_url(format!("it begins with {}://, not with nats:// or tls://", address.scheme())));
    }
    Ok(address)
}
