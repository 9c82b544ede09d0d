//! Tokens of servers that ask for a sign-in by OAuth: read from a file, refreshed before they expire, given to requests.
//!
//! A person signs in with `quell mcp login` ([`super::sign_in`]). The daemon reads the file at the next connection. Each
//! change of the file holds its lock, across tasks and processes: a refresh replaces the refresh token at the
//! authorization server, so what it brings must be stored, and nothing else may happen in between.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quell_scope::Scope;
use rmcp::transport::auth::{AuthError, AuthorizationManager, CredentialStore, OAuthClientConfig, StoredCredentials};
use secrecy::ExposeSecret;
use serde::Deserialize;
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::config::McpConfig;
use super::connect_problem::ConnectProblem;

/// The directory of the token files, below the data directory.
const TOKENS_DIRECTORY: &str = "mcp-tokens";
/// A token is refreshed when it is valid for less than this, in seconds.
const REFRESH_BUFFER_S: u64 = 30;
/// How long a refresh may take, with the wait for the lock of the file.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a lock is tried that another process has.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// A program without a browser is given no redirect; the library needs one all the same.
const NO_REDIRECT: &str = "http://127.0.0.1/callback";

/// The file with the tokens of one server. Clones share the lock of changes in this process.
#[derive(Debug, Clone)]
pub(super) struct TokenFile {
    path: PathBuf,
    changing: Arc<Mutex<()>>,
}

/// The right to change a file of tokens; the file beside it carries the lock for other processes.
#[derive(Debug)]
pub(super) struct TokenFileLock {
    _file: File,
    _task: OwnedMutexGuard<()>,
}

/// The part of the stored credentials that a request needs.
#[derive(Deserialize)]
struct StoredSignIn {
    token_response: Option<StoredSignInToken>,
    /// Seconds since 1970.
    token_received_at: Option<u64>,
    /// The authorization server that gave the token, if it names itself.
    issuer: Option<String>,
}

#[derive(Deserialize)]
struct StoredSignInToken {
    access_token: String,
    /// The lifetime, in seconds.
    expires_in: Option<u64>,
}

impl StoredSignIn {
    /// False for a token that has expired or is about to. One without a known lifetime is used until it is refused.
    fn is_valid(&self) -> bool {
        let lifetime = self.token_response.as_ref().and_then(|token| token.expires_in);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        match (lifetime, self.token_received_at) {
            (Some(lifetime), Some(received_at)) => {
                lifetime.saturating_sub(now.saturating_sub(received_at)) >= REFRESH_BUFFER_S
            }
            _ => true,
        }
    }
}

impl TokenFile {
    /// The file of the server `name`, whose characters are legal in file names.
    pub(super) fn of_server(data_dir: &Path, name: &str) -> Self {
        Self { path: data_dir.join(TOKENS_DIRECTORY).join(format!("{name}.json")), changing: Arc::default() }
    }

    /// Waits for the right to change the file.
    ///
    /// # Errors
    /// The lock file cannot be created or locked.
    ///
    /// # Cancel safety
    /// Safe: nothing is locked then.
    pub(super) async fn lock(&self) -> Result<TokenFileLock, AuthError> {
        // waits: for another change in this process, each of which is bounded; so does the wait below.
        let task = Arc::clone(&self.changing).lock_owned().await;
        self.create_directory().map_err(|error| self.store_error(&error))?;
        let path = self.path.with_extension("lock");
        let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
        let file = opened.map_err(|error| self.store_error(&error))?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(TokenFileLock { _file: file, _task: task }),
                // Another process tells nobody when it is done.
                // waits: for a change of another process; the callers bound it.
                Err(TryLockError::WouldBlock) => sleep(LOCK_POLL_INTERVAL).await,
                Err(TryLockError::Error(error)) => return Err(self.store_error(&error)),
            }
        }
    }

    fn create_directory(&self) -> io::Result<()> {
        match self.path.parent() {
            Some(directory) => fs::DirBuilder::new().recursive(true).mode(0o700).create(directory),
            None => Ok(()),
        }
    }

    /// The token in the file, if it is valid and not the one that was refused.
    fn valid_token(&self, refused: Option<&str>) -> Result<Option<String>, AuthError> {
        let stored: StoredSignIn = self.read()?.ok_or(AuthError::AuthorizationRequired)?;
        let is_valid = stored.is_valid();
        let token = stored.token_response.ok_or(AuthError::AuthorizationRequired)?.access_token;
        Ok(Some(token).filter(|token| is_valid && Some(token.as_str()) != refused))
    }

    fn read<T: serde::de::DeserializeOwned>(&self) -> Result<Option<T>, AuthError> {
        match fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| self.store_error(&error)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.store_error(&error)),
        }
    }

    /// Replaces the file in one step, readable for its owner alone.
    fn write(&self, credentials: &StoredCredentials) -> Result<(), AuthError> {
        let bytes = serde_json::to_vec(credentials).map_err(|error| self.store_error(&error))?;
        let write = || -> io::Result<()> {
            self.create_directory()?;
            let new = self.path.with_extension(format!("new-{}", uuid::Uuid::now_v7()));
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&new, &self.path)
        };
        write().map_err(|error| self.store_error(&error))
    }

    /// When the file was last written; `None` if there is none.
    pub(super) fn changed_at(&self) -> Option<SystemTime> {
        fs::metadata(&self.path).and_then(|file| file.modified()).ok()
    }

    /// Deletes the file. Returns whether there was one. Call it with the lock.
    ///
    /// # Errors
    /// The file cannot be deleted.
    pub(super) fn delete(&self) -> Result<bool, String> {
        match fs::remove_file(&self.path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(format!("{} cannot be deleted: {error}", self.path.display())),
        }
    }

    fn store_error(&self, error: &dyn std::error::Error) -> AuthError {
        AuthError::CredentialStoreError(format!("{}: {error}", self.path.display()))
    }
}

type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, AuthError>> + Send + 'a>>;

/// The signatures are those that the library's macro makes.
impl CredentialStore for TokenFile {
    fn load<'s, 'a>(&'s self) -> StoreFuture<'a, Option<StoredCredentials>>
    where
        's: 'a,
        Self: 'a,
    {
        Box::pin(async { self.read() })
    }

    fn save<'s, 'a>(&'s self, credentials: StoredCredentials) -> StoreFuture<'a, ()>
    where
        's: 'a,
        Self: 'a,
    {
        Box::pin(async move { self.write(&credentials) })
    }

    fn clear<'s, 'a>(&'s self) -> StoreFuture<'a, ()>
    where
        's: 'a,
        Self: 'a,
    {
        Box::pin(async { self.delete().map(drop).map_err(AuthError::CredentialStoreError) })
    }
}

/// Where the tokens of a server come from: its file, its authorization server, and the client that is configured there.
#[derive(Debug, Clone)]
pub(super) struct TokenSource {
    pub(super) url: Arc<str>,
    pub(super) file: TokenFile,
    pub(super) config: McpConfig,
}

impl TokenSource {
    /// A manager for a sign-in. Hosts that the server names may have a private or loopback address only if `url` names one
    /// of the same kind, or the operator permits it.
    pub(super) async fn new_manager(&self) -> Result<AuthorizationManager, AuthError> {
        let mut manager = if self.config.oauth_private_addresses {
            // waits: not in practice; nothing is sent yet.
            AuthorizationManager::new_allowing_private_addresses(&*self.url).await?
        } else {
            // waits: not in practice, as above.
            AuthorizationManager::new(&*self.url).await?
        };
        manager.set_credential_store(self.file.clone());
        Ok(manager)
    }

    /// A manager with the stored tokens and the data of the authorization server. Call it with the lock of the file: tokens
    /// of another authorization server are deleted.
    async fn open_manager(&self) -> Result<AuthorizationManager, AuthError> {
        // waits: not in practice.
        let mut manager = self.new_manager().await?;
        let stored: StoredSignIn = self.file.read()?.ok_or(AuthError::AuthorizationRequired)?;
        if stored.issuer.is_some() {
            // waits: for the authorization server; the callers bound it.
            let metadata = manager.resolve_metadata().await?.metadata;
            // The library then takes endpoints of the server itself, compares no issuer, and would send the tokens there.
            if metadata.issuer.is_none() {
                return Err(AuthError::MetadataError("the authorization server of the tokens is not named".to_owned()));
            }
            manager.set_metadata(metadata);
        }
        // waits: for the authorization server, as above.
        if !manager.initialize_from_store().await? {
            return Err(AuthError::AuthorizationRequired);
        }
        if let Some(client_id) = &self.config.oauth_client_id {
            let mut client = OAuthClientConfig::new(client_id, NO_REDIRECT);
            if let Some(secret) = &self.config.oauth_client_secret {
                client = client.with_client_secret(secret.expose_secret());
            }
            manager.configure_client(client)?;
        }
        Ok(manager)
    }

    /// A valid token: the one in the file if somebody else has refreshed it, otherwise a new one.
    async fn refresh(&self, refused: Option<&str>) -> Result<String, AuthError> {
        // waits: in a task of the pool, within `REFRESH_TIMEOUT`; so do all waits here.
        let _lock = self.file.lock().await?;
        if let Some(token) = self.file.valid_token(refused)? {
            return Ok(token);
        }
        // waits: as above, within `REFRESH_TIMEOUT`.
        let manager = self.open_manager().await?;
        // waits: as above, within `REFRESH_TIMEOUT`.
        manager.refresh_token().await?;
        let stored: StoredSignIn = self.file.read()?.ok_or(AuthError::AuthorizationRequired)?;
        stored.token_response.map(|token| token.access_token).ok_or(AuthError::AuthorizationRequired)
    }
}

/// Runs refreshes to their end, even if the requests that need them are stopped: a refresh token that was replaced at the
/// authorization server and not stored would be lost.
#[derive(Debug, Clone)]
pub(super) struct TokenRefresher {
    tasks: Scope,
    pending: Arc<watch::Sender<usize>>,
}

impl TokenRefresher {
    /// The refreshes are tasks of this scope.
    pub(super) fn new(tasks: Scope) -> Self {
        Self { tasks, pending: Arc::default() }
    }

    /// The number of refreshes at work.
    pub(super) fn watch_pending(&self) -> watch::Receiver<usize> {
        self.pending.subscribe()
    }

    /// # Cancel safety
    /// Safe: the refresh goes on, and its tokens are stored.
    async fn refresh(&self, source: &TokenSource, refused: Option<String>) -> Result<String, AuthError> {
        let (sender, receiver) = oneshot::channel();
        let (source, pending) = (source.clone(), Arc::clone(&self.pending));
        pending.send_modify(|count| *count += 1);
        self.tasks.spawn(async move {
            let _pending = PendingRefresh(pending);
            // waits: at most `REFRESH_TIMEOUT`, in a task that no run waits for.
            let refreshed = timeout(REFRESH_TIMEOUT, source.refresh(refused.as_deref())).await;
            let late = || Err(AuthError::TokenRefreshFailed("it took too long".to_owned()));
            // The request may have been stopped; the tokens are stored all the same.
            let _ = sender.send(refreshed.unwrap_or_else(|_| late()));
        });
        let ended = || Err(AuthError::TokenRefreshFailed("the daemon ends".to_owned()));
        // waits: raced with the scope in `spawn_request`.
        receiver.await.unwrap_or_else(|_| ended())
    }
}

/// Counts a refresh as at work until it is dropped.
struct PendingRefresh(Arc<watch::Sender<usize>>);

impl Drop for PendingRefresh {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// The tokens of one connection.
#[derive(Debug)]
pub(super) struct ConnectionTokens {
    source: TokenSource,
    refresher: TokenRefresher,
}

impl ConnectionTokens {
    /// Reads the tokens, finds the authorization server, and checks that it is the one that gave them.
    ///
    /// # Errors
    /// Nobody has signed in, or the authorization server cannot be found.
    pub(super) async fn open(source: TokenSource, refresher: TokenRefresher) -> Result<Self, ConnectProblem> {
        if source.file.changed_at().is_none() {
            return Err(ConnectProblem::sign_in_needed("it asks for a sign-in by OAuth, and nobody has signed in"));
        }
        let checked = async {
            // waits: within the start timeout, in the supervisor; so does the wait below.
            let _lock = source.file.lock().await?;
            // waits: as above, in the supervisor.
            source.open_manager().await.map(drop)
        };
        // waits: within the start timeout, in the supervisor.
        checked.await.map_err(|error| ConnectProblem::from_auth_error(&error))?;
        Ok(Self { source, refresher })
    }

    /// A token that is valid for some time, refreshed if needed.
    ///
    /// # Cancel safety
    /// Safe: a refresh goes on, and its tokens are stored.
    pub(super) async fn access_token(&self) -> Result<String, AuthError> {
        match self.source.file.valid_token(None)? {
            Some(token) => Ok(token),
            // waits: raced with the scope in `spawn_request`.
            None => self.refresher.refresh(&self.source, None).await,
        }
    }

    /// The token that was stored last, for a request that nothing depends on. It is not refreshed.
    pub(super) fn stored_token(&self) -> Option<String> {
        self.source.file.valid_token(None).ok().flatten()
    }

    /// Another token than this one, which the server has refused.
    ///
    /// # Cancel safety
    /// Safe: a refresh goes on, and its tokens are stored.
    pub(super) async fn replace_token(&self, refused: String) -> Result<String, AuthError> {
        // waits: raced with the scope in `spawn_request`.
        self.refresher.refresh(&self.source, Some(refused)).await
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn tokens_are_kept_in_a_file_for_their_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = TokenFile::of_server(dir.path(), "far");
        assert!(file.load().await.unwrap().is_none());
        let credentials: StoredCredentials = serde_json::from_value(json!({
            "client_id": "c", "token_response": {"access_token": "hush", "token_type": "bearer"},
        }))
        .unwrap();
        file.save(credentials.clone()).await.unwrap();
        file.save(credentials).await.unwrap();
        assert_eq!(file.load().await.unwrap().unwrap().client_id, "c");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file.path), mode(file.path.parent().unwrap())), (0o600, 0o700));
        assert_eq!(fs::read_dir(file.path.parent().unwrap()).unwrap().count(), 1, "a temporary file was left");
        assert_eq!((file.delete(), file.delete()), (Ok(true), Ok(false)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_waits_for_another_task_and_another_process() {
        let dir = tempfile::tempdir().unwrap();
        // Two daemons: they share the file and no memory.
        let (file, elsewhere) = (TokenFile::of_server(dir.path(), "far"), TokenFile::of_server(dir.path(), "far"));
        for other in [&file, &elsewhere] {
            let lock = file.lock().await.unwrap();
            assert!(timeout(REFRESH_TIMEOUT, other.lock()).await.is_err(), "two changes at the same time");
            drop(lock);
            drop(other.lock().await.unwrap());
        }
    }

    #[tokio::test]
    async fn a_token_is_used_until_shortly_before_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let file = TokenFile::of_server(dir.path(), "far");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let store = |expires_in: u64| {
            let response = json!({"access_token": "hush", "token_type": "bearer", "expires_in": expires_in});
            let stored = json!({"client_id": "c", "token_response": response, "token_received_at": now});
            file.write(&serde_json::from_value(stored).unwrap()).unwrap();
        };
        store(REFRESH_BUFFER_S + 60);
        assert_eq!(file.valid_token(None).unwrap().as_deref(), Some("hush"));
        assert_eq!(file.valid_token(Some("hush")).unwrap(), None, "it was refused");
        store(REFRESH_BUFFER_S - 1);
        assert_eq!(file.valid_token(None).unwrap(), None);
        file.delete().unwrap();
        assert!(matches!(file.valid_token(None), Err(AuthError::AuthorizationRequired)));
    }
}
