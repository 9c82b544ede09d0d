//! The grants of Landlock around hidden places.
//!
//! Landlock only grants, and a grant holds for everything below. So what surrounds a hidden place is granted entry by
//! entry. An entry that appears there later is not granted.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::paths::PlaceAccess;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GrantAccess {
    /// List a directory and those below it. Names of hidden files can be seen.
    List,
    Read,
    /// Everything but making device files.
    Full,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) path: PathBuf,
    pub(super) access: GrantAccess,
}

/// The grants that show everything below `/` with the access `base`, but the hidden places.
pub(super) fn grants(places: &BTreeMap<PathBuf, PlaceAccess>, base: GrantAccess) -> Vec<Grant> {
    let mut grants = Vec::new();
    collect(Path::new("/"), base, places, &mut grants);
    for (path, access) in places {
        match access {
            PlaceAccess::Hidden | PlaceAccess::Private => {}
            PlaceAccess::ReadOnly | PlaceAccess::Shown => collect(path, GrantAccess::Read, places, &mut grants),
            PlaceAccess::ReadWrite => collect(path, GrantAccess::Full, places, &mut grants),
            PlaceAccess::Replaced(source) => collect(source, GrantAccess::Full, places, &mut grants),
        }
    }
    grants
}

/// Grants a directory as a whole, or, when another place is below it, entry by entry.
fn collect(path: &Path, access: GrantAccess, places: &BTreeMap<PathBuf, PlaceAccess>, grants: &mut Vec<Grant>) {
    let mut pending = vec![path.to_owned()];
    while let Some(path) = pending.pop() {
        let has_place_below = places.keys().any(|place| *place != path && place.starts_with(&path));
        if !has_place_below {
            grants.push(Grant { path, access });
            continue;
        }
        grants.push(Grant { path: path.clone(), access: GrantAccess::List });
        let Ok(entries) = fs::read_dir(&path) else { continue };
        for entry in entries.filter_map(Result::ok) {
            let below = path.join(entry.file_name());
            // A link needs no grant, and a grant would be one for its target.
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            if !is_link && !places.contains_key(&below) {
                pending.push(below);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn everything_is_granted_but_the_hidden_and_what_leads_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in ["home/.ssh", "home/data/open", "home/music", "work"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        symlink(root.join("home/.ssh"), root.join("home/link")).unwrap();
        let places = BTreeMap::from([
            (root.join("home/.ssh"), PlaceAccess::Hidden),
            (root.join("home/data"), PlaceAccess::Hidden),
            (root.join("home/data/open"), PlaceAccess::ReadWrite),
        ]);
        let granted = grants(&places, GrantAccess::Read);
        let access_of = |name: &str| {
            let path = root.join(name);
            let found =
                granted.iter().filter(|grant| path.starts_with(&grant.path) && grant.access != GrantAccess::List);
            found.map(|grant| grant.access).collect::<Vec<_>>()
        };
        assert_eq!(access_of("home/music/song"), [GrantAccess::Read]);
        assert_eq!(access_of("work"), [GrantAccess::Read]);
        assert_eq!(access_of("home/data/open/file"), [GrantAccess::Full]);
        for hidden in ["home/.ssh", "home/.ssh/id", "home/data", "home/data/other", "home/link"] {
            assert_eq!(access_of(hidden), [], "{hidden}");
        }
    }

    #[test]
    fn without_places_the_root_is_granted() {
        let whole = Grant { path: "/".into(), access: GrantAccess::Full };
        assert_eq!(grants(&BTreeMap::new(), GrantAccess::Full), [whole]);
    }
}
