//! The admin token of a data directory: one line in a file that only its owner can read, for the verbs on the same machine.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};

use super::{AccessError, secret};

/// Longer is a wrong file.
const MOST_BYTES: u64 = 4096;

/// The token in the file; a new one in a new file when there is none.
pub(super) fn load_or_create(path: &Path) -> Result<SecretString, AccessError> {
    match File::open(path) {
        Ok(file) => load(file, path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => create(path),
        Err(error) => Err(refused(path, &error)),
    }
}

fn load(file: File, path: &Path) -> Result<SecretString, AccessError> {
    let useless = |problem: &str| AccessError::TokenFile { path: path.into(), problem: problem.into() };
    let mode = file.metadata().map_err(|error| refused(path, &error))?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let path = path.display();
        tracing::warn!(%path, "the admin token can be read by other users of this machine; run: chmod 600 {path}");
    }
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(|error| refused(path, &error))?;
    let token = text.trim();
    if text.len() as u64 > MOST_BYTES {
        return Err(useless("is too long for a token; it holds the token alone on one line"));
    }
    if token.is_empty() {
        return Err(useless("is empty; remove it, and the next start makes a new token"));
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(useless("holds more than a token, which is one line of printable ASCII without spaces"));
    }
    Ok(token.into())
}

/// Complete under another name first, so that nobody ever reads half a token.
fn create(path: &Path) -> Result<SecretString, AccessError> {
    let token = secret::token()?;
    let draft = draft_name(path);
    let written =
        write_private(&draft, &token).and_then(|()| fs::rename(&draft, path)).and_then(|()| sync_parent(path));
    written.map_err(|error| refused(path, &error))?;
    Ok(token)
}

fn write_private(draft: &Path, token: &SecretString) -> io::Result<()> {
    // What a crash left there may have other rights.
    match fs::remove_file(draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft)?;
    writeln!(file, "{}", token.expose_secret())?;
    file.sync_all()
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => File::open(parent)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

fn draft_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn refused(path: &Path, error: &io::Error) -> AccessError {
    AccessError::TokenFile { path: path.into(), problem: error.to_string() }
}
