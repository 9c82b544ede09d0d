//! Which files a run has kept before it changed them, and how much that is.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use quell_protocol::{NodeName, RunId};
use quell_store::{FileBefore, FileChange};
use quell_tools::ChangedFile;

/// Bytes of contents that are kept for one run.
const MAX_KEPT_BYTES: usize = 16 * 1024 * 1024;

/// Which run changes files, where and when.
#[derive(Debug)]
pub struct ChangeOrigin<'a> {
    /// The run and those above it; the root comes first.
    pub lineage: &'a [RunId],
    /// This node, in a cluster.
    pub node: Option<&'a NodeName>,
    /// RFC 3339.
    pub at: String,
}

/// The files of one run whose contents are stored.
#[derive(Debug, Default)]
pub struct KeptFiles(Mutex<KeptFilesState>);

#[derive(Debug, Default)]
struct KeptFilesState {
    bytes: usize,
    places: HashSet<(PathBuf, PathBuf)>,
}

impl KeptFiles {
    /// The rows to store. The content of a file is kept once, as long as there is room.
    pub fn rows(&self, files: Vec<ChangedFile>, origin: &ChangeOrigin<'_>) -> Vec<FileChange> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = state.bytes;
        let row = |file: ChangedFile| {
            let is_first = !state.places.contains(&(file.workdir.clone(), file.path.clone()));
            let before = file.before.map(|before| {
                let has_room = |content: &Vec<u8>| is_first && bytes + content.len() <= MAX_KEPT_BYTES;
                let content = before.content.filter(has_room);
                bytes += content.as_ref().map_or(0, Vec::len);
                FileBefore { sha256: before.sha256, mode: before.mode, content }
            });
            FileChange {
                lineage: origin.lineage.to_vec(),
                workdir: file.workdir.to_string_lossy().into_owned(),
                path: file.path.to_string_lossy().into_owned(),
                owner: file.owner,
                node: origin.node.cloned(),
                at: origin.at.clone(),
                before,
                after_sha256: file.after_sha256,
            }
        };
        files.into_iter().map(row).collect()
    }

    /// Remembers rows that were stored.
    pub fn mark_stored(&self, rows: &[FileChange]) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for row in rows {
            let content = row.before.as_ref().and_then(|before| before.content.as_ref());
            state.bytes += content.map_or(0, Vec::len);
            state.places.insert((row.workdir.clone().into(), row.path.clone().into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_tools::ReplacedFile;

    use super::*;

    fn file(path: &str, content: Option<usize>) -> ChangedFile {
        let before = |bytes: usize| ReplacedFile { sha256: "ab".into(), mode: 0o644, content: Some(vec![0; bytes]) };
        ChangedFile {
            workdir: "/work".into(),
            path: path.into(),
            owner: None,
            before: content.map(before),
            after_sha256: Some("cd".into()),
        }
    }

    fn kept(rows: &[FileChange]) -> Vec<Option<usize>> {
        rows.iter().map(|row| Some(row.before.as_ref()?.content.as_ref()?.len())).collect()
    }

    #[test]
    fn the_first_content_of_a_file_is_kept_within_the_limit() {
        let (files, lineage) = (KeptFiles::default(), [RunId::parse("r").unwrap()]);
        let origin = ChangeOrigin { lineage: &lineage, node: None, at: "2026".into() };
        let store = |changed: Vec<ChangedFile>| {
            let rows = files.rows(changed, &origin);
            files.mark_stored(&rows);
            kept(&rows)
        };
        assert_eq!(store(vec![file("a", Some(10)), file("new", None)]), [Some(10), None]);
        assert_eq!(store(vec![file("a", Some(20)), file("new", Some(5))]), [None, None], "they are known");
        assert_eq!(kept(&files.rows(vec![file("b", Some(7))], &origin)), [Some(7)]);
        assert_eq!(store(vec![file("b", Some(7))]), [Some(7)], "what was not stored is kept the next time");
        let most = MAX_KEPT_BYTES - 17;
        assert_eq!(
            store(vec![file("c", Some(most + 1)), file("d", Some(most)), file("e", Some(1))]),
            [None, Some(most), None]
        );
    }
}
