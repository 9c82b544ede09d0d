//! Which files below `web/` a browser may fetch. The build script uses this, too.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The paths of the files below this folder, in order.
pub(crate) fn list(folder: &Path) -> io::Result<Vec<String>> {
    let (mut files, mut folders) = (Vec::new(), vec![PathBuf::from(folder)]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Some(path) = path.strip_prefix(folder).ok().and_then(Path::to_str) {
                files.push(path.to_owned());
            }
        }
    }
    files.retain(|path| !path.starts_with("test/") && path != "package.json");
    files.sort();
    Ok(files)
}
