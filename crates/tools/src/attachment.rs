//! Read, write and remove files that came with chat messages, below the agent's workdir and only for their own session.
//!
//! These files are confined to the workdir as those of the file tools are, and no setting turns that off.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use quell_protocol::{RunId, SessionKey};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::atomic_write::AtomicWriteTarget;
use crate::confined_fs::{OpenedFile, WorkdirRoot};
use crate::file_tool::{FileToolContext, FileToolError, StopFlag, read_at_most};
use crate::tree_deletion::delete_tree_in;

/// The folder below an agent's workdir for the files that a session received. Other sessions cannot read it.
pub fn attachment_folder(session: &SessionKey) -> String {
    format!("{ATTACHMENTS_FOLDER}/{}", session_hash(session))
}

/// The path of a file that came with the message of a run, relative to the workdir.
pub fn message_file_path(session: &SessionKey, run: &RunId, number: usize, name: Option<&str>) -> String {
    format!("{}/{}/{number}-{}", attachment_folder(session), run_folder_name(run), safe_file_name(name))
}

/// Makes a file name that cannot leave its folder and has no line break, 80 characters at most.
fn safe_file_name(name: Option<&str>) -> String {
    const MAX_CHARS: usize = 80;
    let legal = |c: char| if c.is_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' };
    let name: String = name.unwrap_or("file").chars().map(legal).collect();
    let name = name.trim_matches('.');
    let over = name.chars().count().saturating_sub(MAX_CHARS);
    // Keep the end: it has the extension.
    name.chars().skip(over).collect()
}

fn run_folder_name(run: &RunId) -> String {
    run.as_str().chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

fn session_hash(session: &SessionKey) -> String {
    let hash = Sha256::digest(session.as_str().as_bytes());
    hash.iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

/// True when the opened file came into another session, whatever path was used to name it. A message must not give
/// access to the files of another session. A file whose real path is unknown counts as one of another session.
pub(super) fn belongs_to_other_session(session: &SessionKey, root: &WorkdirRoot, opened: &OpenedFile) -> bool {
    root.real_path_of(&opened.file).map_or(true, |real| is_path_of_other_session(&real, session))
}

/// True when the opened file came into this session.
pub(super) fn belongs_to_session(session: &SessionKey, root: &WorkdirRoot, opened: &OpenedFile) -> bool {
    root.real_path_of(&opened.file).is_ok_and(|real| real.starts_with(attachment_folder(session)))
}

/// `real` is a path without symlinks. Workdirs can be nested, so the attachments folder can be at any depth.
fn is_path_of_other_session(real: &Path, session: &SessionKey) -> bool {
    let own = session_hash(session);
    let parts: Vec<&OsStr> = real.iter().collect();
    let is_hash = |part: &OsStr| {
        part.len() == 2 * HASH_BYTES && part.as_encoded_bytes().iter().all(|byte| byte.is_ascii_hexdigit())
    };
    parts.iter().enumerate().filter(|(_, part)| **part == ATTACHMENTS_FOLDER).any(|(place, _)| {
        match parts.get(place + 1) {
            Some(next) => *next != own.as_str() && (place == 0 || is_hash(next)),
            None => false,
        }
    })
}

/// Reads a file of at most `max_bytes` bytes for a session. A stop is an error, too.
///
/// # Errors
/// A description of the problem for people; also when the file came into another session.
pub fn read_attachment(
    workdir: &Path,
    session: &SessionKey,
    path: &str,
    max_bytes: u64,
    stop: &AtomicBool,
) -> Result<Vec<u8>, String> {
    let stop = StopFlag(stop);
    let read = || -> Result<Vec<u8>, FileToolError> {
        let root = WorkdirRoot::open(&FileToolContext::confined(workdir))?;
        let source = root.open_file(&root.relative_path(path)?)?;
        if belongs_to_other_session(session, &root, &source) {
            return Err(FileToolError::Failed(format!("{path} is not of this conversation")));
        }
        let read = read_at_most(&source.file, max_bytes, &stop);
        stop.check()?;
        let bytes = read.map_err(|error| FileToolError::Failed(format!("{path}: {error}")))?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > max_bytes {
            return Err(FileToolError::Failed(format!("{path} is larger than {max_bytes} bytes")));
        }
        Ok(bytes)
    };
    read().map_err(error_text)
}

/// Writes a file below the workdir and creates its folders. Returns the full path.
///
/// # Errors
/// A description of the problem for people; the file does not exist then.
pub fn write_attachment(workdir: &Path, path: &str, bytes: &[u8], stop: &AtomicBool) -> Result<PathBuf, String> {
    let write = || -> Result<PathBuf, FileToolError> {
        let root = WorkdirRoot::open(&FileToolContext::confined(workdir))?;
        let path = root.relative_path(path)?;
        AtomicWriteTarget::resolve(&root, &path)?.replace_content(bytes, &StopFlag(stop))?;
        Ok(workdir.join(path))
    };
    write().map_err(error_text)
}

/// Removes all files that a session received. It is no error if there are none.
///
/// # Errors
/// Those of [`crate::delete_tree`].
pub fn remove_attachments(workdir: &Path, session: &SessionKey, stop: &AtomicBool) -> std::io::Result<()> {
    // Opened, and not through a symlink, so nothing outside is removed.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(workdir.join(ATTACHMENTS_FOLDER), flags, Mode::empty()) {
        Ok(all) => delete_tree_in(all.as_fd(), Path::new(&session_hash(session)), stop),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Length of the hash in the name of a session's folder, in bytes.
const HASH_BYTES: usize = 16;

const ATTACHMENTS_FOLDER: &str = "attachments";

fn error_text(error: FileToolError) -> String {
    error.failure_or("the request was stopped".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    static NOT_STOPPED: AtomicBool = AtomicBool::new(false);

    #[test]
    fn files_come_and_go_below_the_workdir_alone() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let ann = SessionKey::parse("ann").unwrap();
        let file = format!("{}/r1/0-cat.png", attachment_folder(&ann));
        let path = write_attachment(dir.path(), &file, b"cat", &NOT_STOPPED).unwrap();
        assert_eq!(path, dir.path().join(&file));
        let read = |path: &str, most| read_attachment(dir.path(), &ann, path, most, &NOT_STOPPED);
        assert_eq!(read(path.to_str().unwrap(), 3).unwrap(), b"cat");
        assert!(read(&file, 2).unwrap_err().contains("larger than 2"));
        assert!(read("../secret", 10).is_err());
        std::fs::write(outside.path().join("key"), "secret").unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("way-out")).unwrap();
        assert!(read("way-out/key", 10).is_err());
        assert!(write_attachment(dir.path(), "way-out/planted", b"x", &NOT_STOPPED).is_err());
        assert!(!outside.path().join("planted").exists());
    }

    /// Paths were once compared as they were written, so the real path of a linked workdir, or a link in it, gave
    /// access.
    #[test]
    fn no_spelling_of_a_path_reads_another_sessions_files() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (ann, bob) = (SessionKey::parse("ann").unwrap(), SessionKey::parse("bob").unwrap());
        let real = dir.path().canonicalize().unwrap();
        let linked = elsewhere.path().join("linked");
        std::os::unix::fs::symlink(&real, &linked).unwrap();
        let folder = attachment_folder(&ann);
        let file = format!("{folder}/r1/0-cat.png");
        write_attachment(&real, &file, b"cat", &NOT_STOPPED).unwrap();
        std::os::unix::fs::symlink(ATTACHMENTS_FOLDER, real.join("all")).unwrap();
        std::os::unix::fs::symlink(&file, real.join("cat.png")).unwrap();
        // `..` above the root stays at the root.
        let up = "../".repeat(64);
        let below_here = PathBuf::from(format!("{up}{}", real.strip_prefix("/").unwrap().display()));
        let through = folder.replacen(ATTACHMENTS_FOLDER, "all", 1);
        let spelled = [
            file.clone(),
            format!("./{file}"),
            format!("{ATTACHMENTS_FOLDER}/../{file}"),
            "cat.png".to_owned(),
            format!("{through}/r1/0-cat.png"),
            real.join(&file).display().to_string(),
            real.join("cat.png").display().to_string(),
        ];
        for workdir in [&real, &linked, &below_here] {
            for path in &spelled {
                let read = |session| read_attachment(workdir, session, path, 10, &NOT_STOPPED);
                assert_eq!(read(&ann).unwrap(), b"cat", "{path} in {}", workdir.display());
                let problem = read(&bob).unwrap_err();
                assert!(problem.contains("not of this conversation"), "{path} in {}: {problem}", workdir.display());
            }
        }
        let above = real.parent().unwrap();
        let below = format!("{}/{file}", real.file_name().unwrap().to_str().unwrap());
        assert!(
            read_attachment(above, &bob, &below, 10, &NOT_STOPPED).is_err(),
            "the workdir of one agent lies in another's"
        );
    }

    #[test]
    fn only_folders_of_sessions_are_another_sessions() {
        let ann = SessionKey::parse("ann").unwrap();
        for path in ["notes/cat.png", "mail/attachments/invoice.pdf", "attachments", "mail/attachments"] {
            assert!(!is_path_of_other_session(Path::new(path), &ann), "{path}");
        }
        assert!(is_path_of_other_session(Path::new("attachments/r1/cat.png"), &ann));
    }

    #[test]
    fn the_files_of_a_session_go_and_no_others() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (ann, bob) = (SessionKey::parse("ann").unwrap(), SessionKey::parse("bob").unwrap());
        let file = |session: &SessionKey| format!("{}/r1/0-cat.png", attachment_folder(session));
        remove_attachments(dir.path(), &ann, &NOT_STOPPED).unwrap();
        for session in [&ann, &bob] {
            write_attachment(dir.path(), &file(session), b"cat", &NOT_STOPPED).unwrap();
        }
        remove_attachments(dir.path(), &ann, &NOT_STOPPED).unwrap();
        assert!(!dir.path().join(attachment_folder(&ann)).exists() && dir.path().join(file(&bob)).exists());
        let linked = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(outside.path().join(attachment_folder(&ann))).unwrap();
        std::os::unix::fs::symlink(outside.path().join(ATTACHMENTS_FOLDER), linked.path().join(ATTACHMENTS_FOLDER))
            .unwrap();
        remove_attachments(linked.path(), &ann, &NOT_STOPPED).unwrap();
        assert!(outside.path().join(attachment_folder(&ann)).exists(), "a link leads nowhere");
    }

    #[test]
    fn a_stop_ends_both() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "x").unwrap();
        let stop = AtomicBool::new(true);
        let ann = SessionKey::parse("ann").unwrap();
        assert_eq!(read_attachment(dir.path(), &ann, "f", 10, &stop).unwrap_err(), "the request was stopped");
        assert!(write_attachment(dir.path(), "g", b"x", &stop).is_err() && !dir.path().join("g").exists());
    }
}
