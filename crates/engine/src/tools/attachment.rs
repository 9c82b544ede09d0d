//! Files that come with messages of chat networks and go with answers, below an agent's workdir and nowhere else: the border is
//! that of the file tools, and always stands.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use quell_protocol::SessionKey;
use sha2::{Digest, Sha256};

use super::confine::{Readable, Root};
use super::read::CHUNK;
use super::replace::Target;
use super::{Fault, Ground, Protected, Stop};

/// The folder, below an agent's workdir, of the files that came into a session. What is read for one session is of no other's.
#[must_use]
pub fn folder_of(session: &SessionKey) -> String {
    format!("{FOLDER}/{}", hash_of(session))
}

fn hash_of(session: &SessionKey) -> String {
    let hash = Sha256::digest(session.as_str().as_bytes());
    hash.iter().take(HASHED).map(|byte| format!("{byte:02x}")).collect()
}

/// True when what was opened came into another session, however its path was written: nobody's files go to somebody else because
/// of what a message says. One that cannot be told is taken for another's.
pub(super) fn is_of_another(session: &SessionKey, root: &Root, opened: &Readable) -> bool {
    root.path_of(&opened.file).map_or(true, |real| leads_to_another(&real, session))
}

/// True when what was opened came into this session.
pub(super) fn is_of(session: &SessionKey, root: &Root, opened: &Readable) -> bool {
    root.path_of(&opened.file).is_ok_and(|real| real.starts_with(folder_of(session)))
}

/// `real` is a path without symlinks. Workdirs may lie in each other, so the folder may be below any other.
fn leads_to_another(real: &Path, session: &SessionKey) -> bool {
    let own = hash_of(session);
    let parts: Vec<&OsStr> = real.iter().collect();
    let is_hash =
        |part: &OsStr| part.len() == 2 * HASHED && part.as_encoded_bytes().iter().all(|byte| byte.is_ascii_hexdigit());
    parts.iter().enumerate().filter(|(_, part)| **part == FOLDER).any(|(place, _)| match parts.get(place + 1) {
        Some(next) => *next != own.as_str() && (place == 0 || is_hash(next)),
        None => false,
    })
}

/// Reads a file of at most `most` bytes for a session. Told to stop, it says so.
///
/// # Errors
/// What is wrong with it, for people; also when it came into another session.
pub fn read_attachment(
    workdir: &Path,
    session: &SessionKey,
    path: &str,
    most: u64,
    stop: &AtomicBool,
) -> Result<Vec<u8>, String> {
    let stop = Stop(stop);
    let read = || -> Result<Vec<u8>, Fault> {
        let root = Root::open(&ground(workdir))?;
        let mut source = root.file(&root.relative(path)?)?;
        if is_of_another(session, &root, &source) {
            return Err(Fault::Told(format!("{path} is not of this conversation")));
        }
        let (mut bytes, mut chunk) = (Vec::new(), vec![0; CHUNK]);
        loop {
            stop.check()?;
            let count = source.file.read(&mut chunk).map_err(|error| Fault::Told(format!("{path}: {error}")))?;
            if count == 0 {
                return Ok(bytes);
            }
            bytes.extend_from_slice(chunk.get(..count).unwrap_or_default());
            if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > most {
                return Err(Fault::Told(format!("{path} is larger than {most} bytes")));
            }
        }
    };
    read().map_err(told)
}

/// Writes a file below the workdir, making its folders. Answers its full path.
///
/// # Errors
/// What is wrong with it, for people; then there is no such file.
pub fn write_attachment(workdir: &Path, path: &str, bytes: &[u8], stop: &AtomicBool) -> Result<PathBuf, String> {
    let write = || -> Result<PathBuf, Fault> {
        let root = Root::open(&ground(workdir))?;
        let path = root.relative(path)?;
        Target::find(&root, &path)?.fill(bytes, &Stop(stop))?;
        Ok(workdir.join(path))
    };
    write().map_err(told)
}

/// Removes all files that came into a session. That there are none is no error.
///
/// # Errors
/// What the file system says.
pub fn remove_attachments(workdir: &Path, session: &SessionKey) -> std::io::Result<()> {
    let is_folder = |path: &Path| path.symlink_metadata().is_ok_and(|it| it.is_dir());
    let (all, own) = (workdir.join(FOLDER), workdir.join(folder_of(session)));
    // Nothing is removed where a link leads.
    if is_folder(&all) && is_folder(&own) { std::fs::remove_dir_all(own) } else { Ok(()) }
}

/// Bytes of a session's hash that its folder is named after.
const HASHED: usize = 16;

/// Where files of messages are kept.
const FOLDER: &str = "attachments";

fn ground(workdir: &Path) -> Ground {
    Ground { workdir: workdir.to_path_buf(), unconfined: false, output_limit: 0, protected: Protected::default() }
}

fn told(fault: Fault) -> String {
    match fault {
        Fault::Stopped => "the request was stopped".to_owned(),
        Fault::Told(problem) => problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static GO: AtomicBool = AtomicBool::new(false);

    #[test]
    fn files_come_and_go_below_the_workdir_alone() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let ann = SessionKey::parse("ann").unwrap();
        let file = format!("{}/r1/0-cat.png", folder_of(&ann));
        let path = write_attachment(dir.path(), &file, b"cat", &GO).unwrap();
        assert_eq!(path, dir.path().join(&file));
        let read = |path: &str, most| read_attachment(dir.path(), &ann, path, most, &GO);
        assert_eq!(read(path.to_str().unwrap(), 3).unwrap(), b"cat");
        assert!(read(&file, 2).unwrap_err().contains("larger than 2"));
        assert!(read("../secret", 10).is_err());
        std::fs::write(outside.path().join("key"), "secret").unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("way-out")).unwrap();
        assert!(read("way-out/key", 10).is_err());
        assert!(write_attachment(dir.path(), "way-out/planted", b"x", &GO).is_err());
        assert!(!outside.path().join("planted").exists());
    }

    /// The path was compared as it was written, and the real name of a linked workdir, or a link in it, passed.
    #[test]
    fn no_spelling_of_a_path_reads_another_sessions_files() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (ann, bob) = (SessionKey::parse("ann").unwrap(), SessionKey::parse("bob").unwrap());
        let real = dir.path().canonicalize().unwrap();
        let linked = elsewhere.path().join("linked");
        std::os::unix::fs::symlink(&real, &linked).unwrap();
        let folder = folder_of(&ann);
        let file = format!("{folder}/r1/0-cat.png");
        write_attachment(&real, &file, b"cat", &GO).unwrap();
        std::os::unix::fs::symlink(FOLDER, real.join("all")).unwrap();
        std::os::unix::fs::symlink(&file, real.join("cat.png")).unwrap();
        // Above the root is the root.
        let up = "../".repeat(64);
        let below_here = PathBuf::from(format!("{up}{}", real.strip_prefix("/").unwrap().display()));
        let through = folder.replacen(FOLDER, "all", 1);
        let spelled = [
            file.clone(),
            format!("./{file}"),
            format!("{FOLDER}/../{file}"),
            "cat.png".to_owned(),
            format!("{through}/r1/0-cat.png"),
            real.join(&file).display().to_string(),
            real.join("cat.png").display().to_string(),
        ];
        for workdir in [&real, &linked, &below_here] {
            for path in &spelled {
                let read = |session| read_attachment(workdir, session, path, 10, &GO);
                assert_eq!(read(&ann).unwrap(), b"cat", "{path} in {}", workdir.display());
                let problem = read(&bob).unwrap_err();
                assert!(problem.contains("not of this conversation"), "{path} in {}: {problem}", workdir.display());
            }
        }
        let above = real.parent().unwrap();
        let below = format!("{}/{file}", real.file_name().unwrap().to_str().unwrap());
        assert!(read_attachment(above, &bob, &below, 10, &GO).is_err(), "the workdir of one agent lies in another's");
    }

    #[test]
    fn only_folders_of_sessions_are_another_sessions() {
        let ann = SessionKey::parse("ann").unwrap();
        for path in ["notes/cat.png", "mail/attachments/invoice.pdf", "attachments", "mail/attachments"] {
            assert!(!leads_to_another(Path::new(path), &ann), "{path}");
        }
        assert!(leads_to_another(Path::new("attachments/r1/cat.png"), &ann));
    }

    #[test]
    fn the_files_of_a_session_go_and_no_others() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (ann, bob) = (SessionKey::parse("ann").unwrap(), SessionKey::parse("bob").unwrap());
        let file = |session: &SessionKey| format!("{}/r1/0-cat.png", folder_of(session));
        remove_attachments(dir.path(), &ann).unwrap();
        for session in [&ann, &bob] {
            write_attachment(dir.path(), &file(session), b"cat", &GO).unwrap();
        }
        remove_attachments(dir.path(), &ann).unwrap();
        assert!(!dir.path().join(folder_of(&ann)).exists() && dir.path().join(file(&bob)).exists());
        let linked = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(outside.path().join(folder_of(&ann))).unwrap();
        std::os::unix::fs::symlink(outside.path().join(FOLDER), linked.path().join(FOLDER)).unwrap();
        remove_attachments(linked.path(), &ann).unwrap();
        assert!(outside.path().join(folder_of(&ann)).exists(), "a link leads nowhere");
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
