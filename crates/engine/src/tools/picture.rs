//! A picture that a message names, read for a model that sees it.
//!
//! The border is that of the file tools and always stands: the path is what somebody wrote into a message.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use quell_kernel::picture::{LARGEST, Picture, Unseen};
use quell_protocol::SessionKey;
use rustix::io::Errno;

use super::attachment::{is_of, is_of_another};
use super::confine::Root;
use super::read::CHUNK;
use super::{Ground, Protected, Stop};

/// Which files of a workdir a picture may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Within {
    /// All.
    Workdir,
    /// Those that came with messages of the session.
    Attachments,
}

/// Reads the picture at this absolute path for a session, if it is below the workdir and did not come into another session. Told
/// to stop, it answers anything at once.
pub(crate) fn picture(
    (workdir, within): (&Path, Within),
    session: &SessionKey,
    path: &str,
    stop: &AtomicBool,
) -> Result<Picture, Unseen> {
    let ground =
        Ground { workdir: workdir.to_path_buf(), unconfined: false, output_limit: 0, protected: Protected::default() };
    let root = Root::open(&ground).map_err(|_| Unseen::Gone)?;
    let path = root.relative(path).map_err(|_| Unseen::Gone)?;
    match root.look(&path) {
        Ok(_) => {}
        Err(Errno::XDEV | Errno::LOOP) => return Err(Unseen::Elsewhere),
        Err(_) => return Err(Unseen::Gone),
    }
    let mut source = root.file(&path).map_err(|_| Unseen::Gone)?;
    if is_of_another(session, &root, &source) || (within == Within::Attachments && !is_of(session, &root, &source)) {
        return Err(Unseen::Elsewhere);
    }
    let (stop, mut bytes, mut chunk) = (Stop(stop), Vec::new(), vec![0; CHUNK]);
    loop {
        if stop.is_raised() {
            return Err(Unseen::Gone);
        }
        match source.file.read(&mut chunk) {
            Ok(0) => return Picture::of(&bytes),
            Ok(count) => bytes.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return Err(Unseen::Gone),
        }
        // What is no picture need not be read to its end, however large it is.
        if bytes.len() > LARGEST {
            return Picture::of(&bytes);
        }
    }
}
