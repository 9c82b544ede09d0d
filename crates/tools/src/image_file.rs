//! Read an image that a message names, for models with vision, within the workdir and the session's own attachments.
//!
//! The path comes from a message, so the read is always confined to the workdir, as those of the file tools are.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use quell_kernel::image::{Image, ImageUnavailable, MAX_IMAGE_BYTES};
use quell_protocol::SessionKey;
use rustix::io::Errno;

use crate::attachment::{belongs_to_other_session, belongs_to_session};
use crate::confined_fs::WorkdirRoot;
use crate::file_tool::{FileToolContext, StopFlag, read_at_most};

/// Which files of a workdir may be read as images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedImages {
    /// All files.
    Workdir,
    /// Only files that came with messages of the session.
    Attachments,
}

/// Reads the image at this absolute path for a session. It must be below the workdir and must not have come into
/// another session. At a stop it returns at once, and the caller discards the result.
pub fn read_image(
    workdir: &Path,
    allowed: AllowedImages,
    session: &SessionKey,
    path: &str,
    stop: &AtomicBool,
) -> Result<Image, ImageUnavailable> {
    let root = WorkdirRoot::open(&FileToolContext::confined(workdir)).map_err(|_| ImageUnavailable::Unreadable)?;
    let path = root.relative_path(path).map_err(|_| ImageUnavailable::Unreadable)?;
    match root.find_path(&path) {
        Ok(_) => {}
        Err(Errno::XDEV | Errno::LOOP) => return Err(ImageUnavailable::OutsideImageFolders),
        Err(_) => return Err(ImageUnavailable::Unreadable),
    }
    let source = root.open_file(&path).map_err(|_| ImageUnavailable::Unreadable)?;
    if belongs_to_other_session(session, &root, &source)
        || (allowed == AllowedImages::Attachments && !belongs_to_session(session, &root, &source))
    {
        return Err(ImageUnavailable::OutsideImageFolders);
    }
    // A file that is no image need not be read to its end, however large it is.
    match read_at_most(&source.file, MAX_IMAGE_BYTES as u64, &StopFlag(stop)) {
        Ok(bytes) => Image::from_bytes(&bytes),
        Err(_) => Err(ImageUnavailable::Unreadable),
    }
}
