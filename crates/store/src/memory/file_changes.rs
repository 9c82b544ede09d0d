//! Files as they were before a run's file tools changed them.

use quell_protocol::RunId;

use super::{Data, MemoryStore};
use crate::{FileBefore, FileChange, FileChangeStore, StoreFuture, StoredFileChange};

#[derive(Debug)]
pub(super) struct ChangeEntry {
    run: RunId,
    change: FileChange,
    undone_at: Option<String>,
}

impl Data {
    pub(super) fn delete_file_changes(&mut self, runs: &[String]) {
        self.file_changes.retain(|_, entry| !runs.iter().any(|run| run == entry.run.as_str()));
    }
}

impl ChangeEntry {
    fn stored(&self, number: i64) -> StoredFileChange {
        let has_content = self.change.before.as_ref().is_some_and(|before| before.content.is_some());
        let mut change = self.change.clone();
        change.before = change.before.map(|before| FileBefore { content: None, ..before });
        StoredFileChange { number, change, has_content, undone_at: self.undone_at.clone() }
    }
}

impl FileChangeStore for MemoryStore {
    fn add(&self, run: RunId, changes: Vec<FileChange>) -> StoreFuture<'_, ()> {
        self.write(move |data| {
            data.run_mut(&run)?;
            for change in changes {
                let number = data.next_number();
                data.file_changes.insert(number, ChangeEntry { run: run.clone(), change, undone_at: None });
            }
            Ok(())
        })
    }

    fn list_tree(&self, root: RunId) -> StoreFuture<'_, Vec<StoredFileChange>> {
        self.read(move |data| {
            let of_tree = data
                .file_changes
                .iter()
                .filter(|(_, entry)| entry.change.lineage.first().unwrap_or(&entry.run) == &root);
            Ok(of_tree.map(|(number, entry)| entry.stored(*number)).collect())
        })
    }

    fn read_content(&self, number: i64) -> StoreFuture<'_, Option<Vec<u8>>> {
        self.read(move |data| {
            let entry = data.file_changes.get(&number);
            Ok(entry.and_then(|entry| entry.change.before.as_ref()?.content.clone()))
        })
    }

    fn mark_undone(&self, numbers: Vec<i64>, at: String) -> StoreFuture<'_, ()> {
        self.change(move |data| {
            for number in numbers {
                let Some(entry) = data.file_changes.get_mut(&number) else { continue };
                entry.undone_at = Some(at.clone());
                if let Some(before) = &mut entry.change.before {
                    before.content = None;
                }
            }
        })
    }
}
