//! Downloads and tools that outlive a clone: one directory in the user's cache for each tool and set of versions.

use std::env;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::workspace_root;

/// `$XDG_CACHE_HOME/quell-dev`, else `~/.cache/quell-dev`, else below `target/`.
pub(crate) fn cache_dir() -> PathBuf {
    let from_xdg = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let from_home = || env::var_os("HOME").filter(|home| !home.is_empty()).map(|home| Path::new(&home).join(".cache"));
    from_xdg.or_else(from_home).unwrap_or_else(|| workspace_root().join("target/cache")).join("quell-dev")
}

/// The directory of a tool. Other versions, which are the text `key`, have another one.
pub(crate) fn keyed_dir(name: &str, key: &str) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    cache_dir().join(format!("{name}-{:016x}", hasher.finish()))
}

/// Waits for its turn to install into this directory: clones share the cache. The file that is returned holds the turn.
pub(crate) fn take_turn(folder: &Path) -> anyhow::Result<File> {
    fs::create_dir_all(folder.parent().context("the directory has no parent")?)?;
    let turn = File::create(beside(folder, "turn"))?;
    turn.lock()?;
    Ok(turn)
}

/// The path with an ending more.
pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// Makes `target/tools/NAME` a link to a directory of the cache. Tests find their tools there.
pub(crate) fn link_into_target(name: &str, cached: &Path) -> anyhow::Result<()> {
    let link = workspace_root().join("target/tools").join(name);
    if fs::read_link(&link).is_ok_and(|now| now == cached) {
        return Ok(());
    }
    let folder = link.parent().context("the link has no folder")?;
    fs::create_dir_all(folder).with_context(|| format!("{} cannot be created", folder.display()))?;
    match fs::symlink_metadata(&link) {
        Ok(found) if found.is_symlink() => fs::remove_file(&link)?,
        // An installation by an older checkout.
        Ok(found) if found.is_dir() => fs::remove_dir_all(&link)?,
        Ok(_) => bail!("{} is in the way: remove it", link.display()),
        Err(_) => {}
    }
    symlink(cached, &link).with_context(|| format!("{} cannot be created", link.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_versions_have_another_directory() {
        let first = keyed_dir("tool", "1.0");
        assert_eq!(first, keyed_dir("tool", "1.0"));
        assert_ne!(first, keyed_dir("tool", "1.1"));
    }
}
