//! One connection to a NATS server: the login, the subscriptions, and its end.

use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr, ServerError, Subscriber};
use futures_util::StreamExt as _;
use secrecy::ExposeSecret as _;
use tokio::sync::watch;
use tokio::time::timeout;

use super::settings::{NatsCredentials, NatsSettings, SettingsError};
use super::subjects::{letter_subject, reply_filter, reply_subject};
use super::{INCOMING_EVENTS, NatsConnectError, OUTGOING_LETTERS};
use crate::NodeAddress;

/// For the connection to one IP address with its TLS handshake, and again for the subscriptions.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// For all IP addresses of a server and the name lookup.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that is silent for three intervals is given up.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// What is needed for each connection.
pub(super) struct NatsConnector {
    settings: NatsSettings,
    servers: Vec<ServerAddr>,
    pub(super) own: NodeAddress,
}

/// A connection whose subscriptions are active.
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) letters: Subscriber,
    pub(super) replies: Subscriber,
    pub(super) status: watch::Receiver<ConnectionStatus>,
}

/// What a client reports about itself.
#[derive(Debug, Clone, Default)]
pub(super) struct ConnectionStatus {
    pub(super) is_lost: bool,
    /// Messages that were dropped because a subscription was full. A lower bound.
    pub(super) dropped: u64,
    /// The last error that the server sent.
    pub(super) error: Option<String>,
}

/// Why an attempt to connect failed.
#[derive(Debug)]
pub(super) struct AttemptError {
    pub(super) url: String,
    pub(super) reason: String,
    /// For a server that was reached and refuses this node.
    pub(super) refused: Option<&'static str>,
}

const CHECK_CREDENTIALS: &str = "check its user and password, token, nkey or credentials file";
const CHECK_PERMISSIONS: &str = "permit its user to publish and subscribe to all subjects below the prefix";

impl NatsConnector {
    pub(super) fn new(settings: NatsSettings, own: NodeAddress) -> Result<Self, SettingsError> {
        let servers = settings.check()?;
        let connector = Self { settings, servers, own };
        connector.authenticated_options()?;
        Ok(connector)
    }

    pub(super) fn prefix(&self) -> &str {
        &self.settings.prefix
    }

    /// `None` if no server was reached.
    pub(super) async fn connect_first(&self) -> Result<Option<Connection>, NatsConnectError> {
        match self.connect_any().await {
            Ok(connection) => Ok(Some(connection)),
            Err(AttemptError { url, reason, refused: Some(advice) }) => {
                Err(NatsConnectError::Refused { url, reason, advice })
            }
            Err(AttemptError { url, reason, refused: None }) => {
                tracing::warn!(url, reason, "no connection to NATS yet");
                Ok(None)
            }
        }
    }

    /// Tries each server once. A refusal is returned before another error.
    pub(super) async fn connect_any(&self) -> Result<Connection, AttemptError> {
        let mut last_error = None;
        for server in &self.servers {
            match self.connect(server).await {
                Ok(connection) => return Ok(connection),
                Err(error) if error.refused.is_some() => last_error = Some(error),
                Err(error) => {
                    last_error.get_or_insert(error);
                }
            }
        }
        Err(last_error.unwrap_or_else(|| AttemptError {
            url: String::new(),
            reason: "no server".into(),
            refused: None,
        }))
    }

    async fn connect(&self, server: &ServerAddr) -> Result<Connection, AttemptError> {
        let url = || server.as_url_str().to_owned();
        let (status_sender, status) = watch::channel(ConnectionStatus::default());
        let options = self.authenticated_options();
        let options = options.map_err(|error| AttemptError { url: url(), reason: error.to_string(), refused: None })?;
        let options = self.complete_options(options, status_sender);
        let client = match timeout(ATTEMPT_TIMEOUT, options.connect(server.clone())).await {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => {
                let is_refused =
                    matches!(error.kind(), ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication);
                let refused = is_refused.then_some(CHECK_CREDENTIALS);
                return Err(AttemptError { url: url(), reason: error_text(&error), refused });
            }
            Err(_) => return Err(AttemptError { url: url(), reason: "timed out".into(), refused: None }),
        };
        if !client.server_info().auth_required {
            tracing::warn!(
                url = url(),
                "this NATS server accepts anybody, and everybody can read letters between nodes"
            );
        }
        match timeout(CONNECT_TIMEOUT, self.subscribe(&client)).await {
            Ok(Some((letters, replies))) => Ok(Connection { client, letters, replies, status }),
            Ok(None) | Err(_) => {
                let error = status.borrow().error.clone();
                let refused = error.is_some().then_some(CHECK_PERMISSIONS);
                let reason = error.unwrap_or_else(|| "it did not answer in time".into());
                Err(AttemptError { url: url(), reason, refused })
            }
        }
    }

    /// Subscribes, and waits until the server has processed it: a message to the last subscription has arrived. `None` if
    /// the connection was lost.
    async fn subscribe(&self, client: &Client) -> Option<(Subscriber, Subscriber)> {
        let letters = client.subscribe(letter_subject(self.prefix(), &self.own)).await.ok()?;
        let mut replies = client.subscribe(reply_filter(self.prefix(), &self.own)).await.ok()?;
        client.publish(reply_subject(self.prefix(), &self.own, &self.own), Vec::new().into()).await.ok()?;
        replies.next().await?;
        Some((letters, replies))
    }

    fn authenticated_options(&self) -> Result<ConnectOptions, SettingsError> {
        let options = ConnectOptions::new();
        Ok(match &self.settings.credentials {
            NatsCredentials::None => return Err(SettingsError::NoCredentials),
            NatsCredentials::Password { user, password } => {
                options.user_and_password(user.clone(), password.expose_secret().to_owned())
            }
            NatsCredentials::Token(token) => options.token(token.expose_secret().to_owned()),
            NatsCredentials::NkeySeed(seed) => options.nkey(seed.expose_secret().trim().to_owned()),
            NatsCredentials::CredsFile(content) => options
                .credentials(content.expose_secret())
                .map_err(|error| SettingsError::BadCredsFile(error.to_string()))?,
        })
    }

    fn complete_options(&self, options: ConnectOptions, status: watch::Sender<ConnectionStatus>) -> ConnectOptions {
        let options = options
            .name(format!("quell {}", self.own))
            .connection_timeout(CONNECT_TIMEOUT)
            .ping_interval(PING_INTERVAL)
            // What the client keeps when the connection ends. It makes one attempt to connect again, then it ends.
            .client_capacity(OUTGOING_LETTERS)
            .max_reconnects(1)
            .ignore_discovered_servers()
            .subscription_capacity(INCOMING_EVENTS)
            .event_callback(move |event| {
                status.send_modify(|status| status.apply(event));
                std::future::ready(())
            });
        match &self.settings.tls_ca_file {
            Some(path) => options.add_root_certificates(path.clone()).require_tls(true),
            None => options,
        }
    }
}

impl ConnectionStatus {
    fn apply(&mut self, event: Event) {
        match event {
            Event::Disconnected | Event::Closed => self.is_lost = true,
            Event::SlowConsumer(_) => self.dropped += 1,
            Event::ServerError(ServerError::Other(text)) => self.error = Some(text),
            Event::ServerError(error) => self.error = Some(error.to_string()),
            Event::Connected | Event::LameDuckMode | Event::Draining | Event::ClientError(_) => {}
        }
    }
}

/// The error with its causes.
fn error_text(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}
