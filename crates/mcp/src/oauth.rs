//! Tokens of servers that ask for a sign-in by OAuth: read from a file, refreshed before they expire, given to requests.
//!
//! A person signs in with `quell mcp login` ([`super::sign_in`]). The daemon reads the file at the next connection.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use rmcp::transport::auth::{
    AuthError, AuthorizationManager, CredentialRefreshGuard, CredentialStore, StoredCredentials,
};
use tokio::sync::Mutex;

use super::connect_problem::ConnectProblem;

/// The directory of the token files, below the data directory.
const TOKENS_DIRECTORY: &str = "mcp-tokens";

/// The file with the tokens of one server. Clones share the lock of refreshes.
#[derive(Debug, Clone)]
pub(super) struct TokenFile {
    path: PathBuf,
    refreshing: Arc<Mutex<()>>,
}

impl TokenFile {
    /// The file of the server `name`, whose characters are legal in file names.
    pub(super) fn of_server(data_dir: &Path, name: &str) -> Self {
        Self { path: data_dir.join(TOKENS_DIRECTORY).join(format!("{name}.json")), refreshing: Arc::default() }
    }

    fn read(&self) -> Result<Option<StoredCredentials>, AuthError> {
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
            if let Some(directory) = self.path.parent() {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            }
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

    /// Deletes the file. Returns whether there was one.
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

    /// A refresh may replace the refresh token, so only one of several sessions refreshes at a time.
    fn acquire_refresh_guard<'s, 'a>(&'s self) -> StoreFuture<'a, Option<CredentialRefreshGuard>>
    where
        's: 'a,
        Self: 'a,
    {
        // waits: for another refresh, in a task of a server that its scope ends.
        Box::pin(async { Ok(Some(CredentialRefreshGuard::new(Arc::clone(&self.refreshing).lock_owned().await))) })
    }
}

/// The tokens of one connection.
pub(super) struct ConnectionTokens(AuthorizationManager);

impl ConnectionTokens {
    /// Reads the tokens and finds the authorization server.
    ///
    /// # Errors
    /// Nobody has signed in, or the authorization server cannot be found.
    pub(super) async fn open(url: &str, file: &TokenFile) -> Result<Self, ConnectProblem> {
        let mut manager = new_manager(url, file).await?;
        // waits: within the start timeout, in the supervisor.
        match manager.initialize_from_store().await {
            Ok(true) => Ok(Self(manager)),
            Ok(false) => {
                Err(ConnectProblem::sign_in_needed("it asks for a sign-in by OAuth, and nobody has signed in"))
            }
            Err(error) => Err(ConnectProblem::from_auth_error(&error)),
        }
    }

    /// A token that is valid for some time, refreshed if needed.
    ///
    /// # Cancel safety
    /// A refresh that is dropped may have replaced the refresh token; then a person has to sign in again.
    pub(super) async fn access_token(&self) -> Result<String, AuthError> {
        // waits: raced with the scope in `spawn_request`.
        self.0.get_access_token().await
    }
}

impl std::fmt::Debug for ConnectionTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConnectionTokens")
    }
}

/// A manager that reads and writes this file. The operator configures the URL, so its authorization server may have a
/// private address.
pub(super) async fn new_manager(url: &str, file: &TokenFile) -> Result<AuthorizationManager, ConnectProblem> {
    // waits: not in practice; nothing is sent yet.
    let manager = AuthorizationManager::new_allowing_private_addresses(url).await;
    let mut manager = manager.map_err(|error| ConnectProblem::from_auth_error(&error))?;
    manager.set_credential_store(file.clone());
    Ok(manager)
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
}
