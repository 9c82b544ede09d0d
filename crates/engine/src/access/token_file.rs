//! The admin token of a data directory: one line in a file that only its owner can read, for the commands of the CLI on
//! the same machine.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};

use super::AccessError;

/// A longer file is no token file.
const MAX_TOKEN_FILE_BYTES: u64 = 4096;

/// Loads the token from the file. Creates the file with the token that `new_token` makes if it does not exist.
pub(super) fn load_or_create(
    path: &Path,
    new_token: impl FnOnce() -> Result<SecretString, AccessError>,
) -> Result<SecretString, AccessError> {
    match File::open(path) {
        Ok(file) => load_token(file, path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => create_token_file(path, new_token()?),
        Err(error) => Err(token_file_error(path, &error)),
    }
}

fn load_token(file: File, path: &Path) -> Result<SecretString, AccessError> {
    let invalid = |problem: &str| AccessError::TokenFile { path: path.into(), problem: problem.into() };
    let mode = file.metadata().map_err(|error| token_file_error(path, &error))?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let path = path.display();
        tracing::warn!(%path, "the admin token can be read by other users of this machine; run: chmod 600 {path}");
    }
    let mut text = String::new();
    file.take(MAX_TOKEN_FILE_BYTES + 1).read_to_string(&mut text).map_err(|error| token_file_error(path, &error))?;
    let token = text.trim();
    if text.len() as u64 > MAX_TOKEN_FILE_BYTES {
        return Err(invalid("is too long for a token; it must contain only the token, on one line"));
    }
    if token.is_empty() {
        return Err(invalid("is empty; remove it, and the next start makes a new token"));
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(invalid("contains more than a token, which is one line of printable ASCII without spaces"));
    }
    Ok(token.into())
}

/// Writes the file under another name first, so that nobody reads an incomplete token.
fn create_token_file(path: &Path, token: SecretString) -> Result<SecretString, AccessError> {
    let temporary = temporary_path(path);
    let written =
        write_private(&temporary, &token).and_then(|()| fs::rename(&temporary, path)).and_then(|()| sync_parent(path));
    written.map_err(|error| token_file_error(path, &error))?;
    Ok(token)
}

fn write_private(path: &Path, token: &SecretString) -> io::Result<()> {
    // A file left by a crash may have other permissions.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{}", token.expose_secret())?;
    file.sync_all()
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => File::open(parent)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn token_file_error(path: &Path, error: &io::Error) -> AccessError {
    AccessError::TokenFile { path: path.into(), problem: error.to_string() }
}
