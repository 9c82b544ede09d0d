//! How to reach a PostgreSQL server: the URL, the password, the certificates.

use std::collections::HashMap;
use std::error::Error as _;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Socket};

use super::connection::{Session, store_error};
use super::tls::TlsSettings;
use crate::{ClusterSettings, StoreError};

/// How often a connection for notifications is checked, and how long an answer may take.
const LISTEN_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Where the URL says nothing: after this time a server that does not answer counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Where the URL says nothing: a server that acknowledges nothing for this long is gone (`TCP_USER_TIMEOUT`). Otherwise a
/// partition would block a thread for a quarter of an hour.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// A transaction of a daemon that has gone without a word, or waits for a lock of one, must not block others forever.
#[cfg(not(test))]
const SESSION_SETTINGS: &str = "SET idle_in_transaction_session_timeout = '30s'; SET lock_timeout = '10s'";
#[cfg(test)]
const SESSION_SETTINGS: &str = "SET idle_in_transaction_session_timeout = '30s'; SET lock_timeout = '2s'";

/// The settings of a PostgreSQL database.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresSettings {
    /// `postgres://user@host:port/database?sslmode=require`, with the parameters of libpq.
    pub url: String,
    /// Replaces that of the URL.
    pub password: Option<String>,
    /// PEM file with the certificates of the authorities that may have signed that of the server; those of the system
    /// if `None`.
    pub tls_ca_file: Option<PathBuf>,
    /// The daemon is a node of a cluster.
    pub cluster: Option<ClusterSettings>,
}

impl PostgresSettings {
    /// Checks a URL from a configuration file, which must not contain a password.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn check_url(url: &str) -> Result<(), String> {
        let config: Config = url.parse().map_err(|error: tokio_postgres::Error| parse_error(&error))?;
        if config.get_password().is_some() {
            return Err(
                "a password does not belong into this file; name a file that contains it with `password_file`, or \
                        a variable with `password_env`"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

fn parse_error(error: &tokio_postgres::Error) -> String {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("the URL of the database cannot be read{cause}; write postgres://USER@HOST/DATABASE")
}

impl fmt::Debug for PostgresSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may contain a password.
        f.debug_struct("PostgresSettings").field("tls_ca_file", &self.tls_ca_file).finish_non_exhaustive()
    }
}

/// Makes connections.
pub(super) struct Connector {
    config: Config,
    tls: Option<TlsSettings>,
}

/// Asks the server whether it is there, after a while.
async fn check_listener(client: &Client) -> Result<Result<(), tokio_postgres::Error>, tokio::time::error::Elapsed> {
    tokio::time::sleep(LISTEN_CHECK_INTERVAL).await;
    timeout(LISTEN_CHECK_INTERVAL, client.batch_execute("")).await
}

impl Connector {
    pub(super) fn new(settings: &PostgresSettings) -> Result<Self, StoreError> {
        let parsed = settings.url.parse();
        let mut config: Config = parsed.map_err(|error| StoreError::Settings(parse_error(&error)))?;
        if let Some(password) = &settings.password {
            config.password(password);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(SILENCE_TIMEOUT);
        }
        // The last answer may be the one that does not arrive, when nothing waits for an acknowledgement.
        config.keepalives_idle(KEEPALIVE_INTERVAL).keepalives_interval(KEEPALIVE_INTERVAL);
        if config.get_application_name().is_none() {
            config.application_name("quell");
        }
        let tls = (config.get_ssl_mode() != SslMode::Disable).then(|| tls_config(settings)).transpose()?;
        Ok(Self { config, tls: tls.map(TlsSettings::new) })
    }

    /// The statements of the connection may take `answer_timeout` at most, and so may connecting. Must not be called on a
    /// thread of an async runtime.
    pub(super) fn connect(&self, answer_timeout: Duration) -> Result<Session, StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| StoreError::Unwritable(format!("no connection can be made: {error}")))?;
        let limit = self.config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT).min(answer_timeout);
        // The limit in the configuration is for the socket alone, and a server that hangs has one.
        let connected = runtime.block_on(async {
            timeout(limit, async {
                match &self.tls {
                    Some(tls) => self.connect_with(&runtime, tls.clone()).await,
                    None => self.connect_with(&runtime, NoTls).await,
                }
            })
            .await
        });
        let silent =
            || format!("PostgreSQL cannot be reached: the server has not answered for {} s", limit.as_secs_f64());
        let connected = connected.map_err(|_| StoreError::Unwritable(silent()))?;
        let client = connected.map_err(|error| connect_error(&error))?;
        Ok(Session { client, runtime, statements: HashMap::new(), answer_timeout })
    }

    /// Listens on a connection of its own until that is lost. Calls `notified` with the payload of each notification, and
    /// with `*` once it listens: something may have been missed before.
    pub(super) async fn listen(
        &self,
        statement: &str,
        notified: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), tokio_postgres::Error> {
        match &self.tls {
            Some(tls) => self.listen_with(tls.clone(), statement, notified).await,
            None => self.listen_with(NoTls, statement, notified).await,
        }
    }

    async fn listen_with<T>(
        &self,
        tls: T,
        statement: &str,
        notified: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), tokio_postgres::Error>
    where
        T: MakeTlsConnect<Socket>,
    {
        let Ok(connected) = timeout(CONNECT_TIMEOUT, self.config.connect(tls)).await else { return Ok(()) };
        let (client, mut connection) = connected?;
        let mut messages = futures_util::stream::poll_fn(|context| connection.poll_message(context));
        let mut listening = std::pin::pin!(client.batch_execute(statement));
        let mut listens = false;
        let mut check = std::pin::pin!(check_listener(&client));
        loop {
            tokio::select! {
                done = &mut listening, if !listens => {
                    done?;
                    listens = true;
                    notified("*");
                }
                // A server that hangs, or is gone without a word, must not silence the notifications for good.
                () = tokio::time::sleep(LISTEN_CHECK_INTERVAL), if !listens => return Ok(()),
                checked = &mut check, if listens => match checked {
                    Ok(Ok(())) => check.set(check_listener(&client)),
                    Ok(Err(error)) => return Err(error),
                    Err(_) => return Ok(()),
                },
                message = messages.next() => match message {
                    Some(message) => {
                        if let AsyncMessage::Notification(notification) = message? {
                            notified(notification.payload());
                        }
                    }
                    None => return Ok(()),
                },
            }
        }
    }

    async fn connect_with<T>(&self, runtime: &Runtime, tls: T) -> Result<Client, tokio_postgres::Error>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let (client, connection) = self.config.connect(tls).await?;
        // Ends with the client. Its error is that of the statement which waits.
        runtime.spawn(async { drop(connection.await) });
        client.batch_execute(SESSION_SETTINGS).await?;
        Ok(client)
    }
}

fn connect_error(error: &tokio_postgres::Error) -> StoreError {
    let remedy = match error.code().map(SqlState::code) {
        Some("28000" | "28P01") => "; check the user and the password in the settings of the store",
        Some("3D000") => "; create it on the server with `createdb`, or correct the URL of the store",
        None if error.to_string().contains("TLS") => {
            "; check the host in the URL of the store, and name the certificate of its authority in `tls_ca_file`"
        }
        _ => "",
    };
    match store_error(error) {
        StoreError::Bug(cause) | StoreError::Unwritable(cause) => StoreError::Unwritable(format!("{cause}{remedy}")),
        other => other,
    }
}

fn tls_config(settings: &PostgresSettings) -> Result<ClientConfig, StoreError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let failed = |error: String| StoreError::Settings(format!("TLS cannot be used: {error}"));
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.to_string()))?;
    let Some(file) = &settings.tls_ca_file else {
        let verified = builder.with_platform_verifier().map_err(|error| {
            failed(format!("{error}; install the certificates of authorities, or name a file with `tls_ca_file`"))
        })?;
        return Ok(verified.with_no_client_auth());
    };
    let failed = |error: String| failed(format!("{}: {error}", file.display()));
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| failed(error.to_string()))? {
        let certificate = certificate.map_err(|error| failed(error.to_string()))?;
        roots.add(certificate).map_err(|error| failed(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(failed("it contains no certificate".to_owned()));
    }
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
