//! The section `[store]`: a file of SQLite, or a PostgreSQL server.

use std::fmt;
use std::path::PathBuf;

use quell_store::StoreLocation;
use quell_store::postgres::PostgresSettings;
use schemars::JsonSchema;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};

use super::validation::ConfigProblem;

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StoreSection {
    /// `sqlite:FILE`, relative to the data directory, or `postgres://USER@HOST:PORT/DATABASE`, without a password.
    pub(crate) url: String,
    /// The environment variable that holds the password of the PostgreSQL user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) password_env: Option<String>,
    /// The file that holds that password in its only line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) password_file: Option<PathBuf>,
    /// PEM file with the certificates of the authorities that may have signed that of the PostgreSQL server; those of
    /// the system if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_ca_file: Option<PathBuf>,
    /// The password, as read from the variable or the file.
    #[serde(skip)]
    pub(crate) password: Option<SecretString>,
}

impl Default for StoreSection {
    fn default() -> Self {
        let url = "sqlite:quell.db".to_owned();
        Self { url, password_env: None, password_file: None, tls_ca_file: None, password: None }
    }
}

impl fmt::Debug for StoreSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreSection").field("url", &self.url).finish_non_exhaustive()
    }
}

impl StoreSection {
    pub(crate) fn location(&self) -> StoreLocation {
        if let Some(file) = self.url.strip_prefix("sqlite:") {
            return StoreLocation::Sqlite { file: file.to_owned() };
        }
        StoreLocation::Postgres(PostgresSettings {
            url: self.url.clone(),
            password: self.password.as_ref().map(|password| password.expose_secret().to_owned()),
            tls_ca_file: self.tls_ca_file.clone(),
            cluster: None,
        })
    }

    pub(super) fn is_postgres(&self) -> bool {
        matches!(self.location(), StoreLocation::Postgres(_))
    }

    pub(super) fn problem(&self) -> Option<ConfigProblem> {
        let problem = |key: &str, text: String| Some(ConfigProblem { key: format!("store.{key}"), text });
        if self.url.starts_with("postgres://") || self.url.starts_with("postgresql://") {
            if self.password_env.is_some() && self.password_file.is_some() {
                return problem("password_file", "excludes `password_env`: there is one password".to_owned());
            }
            return PostgresSettings::check_url(&self.url).err().and_then(|text| problem("url", text));
        }
        if self.url.strip_prefix("sqlite:").is_none_or(str::is_empty) {
            // The URL is not shown: it may contain a password.
            return problem("url", "is not supported; write sqlite:FILE, or postgres://USER@HOST/DATABASE".to_owned());
        }
        let of_postgres = [
            ("password_env", self.password_env.is_some()),
            ("password_file", self.password_file.is_some()),
            ("tls_ca_file", self.tls_ca_file.is_some()),
        ];
        let (key, _) = of_postgres.into_iter().find(|(_, is_set)| *is_set)?;
        problem(
            key,
            "is of no use for SQLite; write url = \"postgres://USER@HOST/DATABASE\", or leave it out".to_owned(),
        )
    }

    /// The key that names a password, and the problem, if no password is there.
    pub(super) fn missing_password(&self) -> Option<(&'static str, String)> {
        match (&self.password, &self.password_env, &self.password_file) {
            (None, Some(variable), _) => {
                Some(("password_env", format!("the variable {variable} is not set or empty; it holds the password")))
            }
            (None, None, Some(file)) => {
                Some(("password_file", format!("{} is empty; it holds the password", file.display())))
            }
            _ => None,
        }
    }
}
