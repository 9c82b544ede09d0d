//! Export and import of sessions.

use quell_protocol::SessionKey;

use super::{Data, EntryItem, HistoryEntry, MemoryStore, NoteEntry, SessionEntry};
use crate::archive::ArchiveWriter;
use crate::{
    ArchiveStore, ArchivedHistoryItem, ImportOutcome, NoteScope, RunRow, SessionArchive, StoreError, StoreFuture,
    TempFile,
};

impl Data {
    fn write_archive(&self, key: &SessionKey) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(entry) = self.sessions.iter().find(|entry| entry.session.key == *key) else { return Ok(None) };
        let mut lines = ArchiveWriter(Vec::new());
        lines.write_session(entry.session.clone())?;
        let open = self.open_runs(key);
        for entry in self.runs.iter().filter(|entry| entry.row.session == *key && !open.contains(&entry.row.id)) {
            lines.write_run(entry.row.clone())?;
        }
        for entry in self.history.iter().filter(|entry| entry.session == *key) {
            lines.write_history_item(match &entry.item {
                // The next archive has both, the run and its turn.
                EntryItem::Turn { run, .. } if open.contains(run) => continue,
                EntryItem::Turn { run, turn } => ArchivedHistoryItem::Turn { run: run.clone(), turn: turn.clone() },
                EntryItem::Reset { at } => ArchivedHistoryItem::Reset { at: at.clone() },
            })?;
        }
        for entry in self.notes.iter().filter(|entry| entry.scope == NoteScope::Session(key.clone())) {
            lines.write_note(entry.note.clone())?;
        }
        Ok(Some(lines.0))
    }

    fn import(&mut self, archive: SessionArchive, at: String) -> Result<ImportOutcome, StoreError> {
        if self.has_session(&archive.session.key) {
            return Ok(ImportOutcome::SessionExists);
        }
        let is_stored = |row: &&RunRow| self.runs.iter().any(|entry| entry.row.id == row.id);
        if let Some(known) = archive.runs.iter().find(is_stored) {
            return Ok(ImportOutcome::RunExists(known.id.clone()));
        }
        let turns = archive.count_turns() as u64;
        let SessionArchive { mut session, runs, history, notes } = archive;
        let without_run = history.iter().any(
            |item| matches!(item, ArchivedHistoryItem::Turn { run, .. } if !runs.iter().any(|row| row.id == *run)),
        );
        if without_run {
            return Err(StoreError::Bug("a turn of the archive has no run".to_owned()));
        }
        runs.into_iter().for_each(|row| self.insert_run(row));
        for item in history {
            let item = match item {
                ArchivedHistoryItem::Turn { run, turn } => EntryItem::Turn { run, turn },
                ArchivedHistoryItem::Reset { at } => EntryItem::Reset { at },
            };
            let number = self.next_number();
            self.history.push(HistoryEntry { number, session: session.key.clone(), item });
        }
        for note in notes {
            let number = self.next_number();
            self.notes.push(NoteEntry { number, scope: NoteScope::Session(session.key.clone()), note });
        }
        (session.turns, session.imported_at, session.secrets) = (turns, Some(at), None);
        let use_order = self.next_number();
        self.sessions.push(SessionEntry { use_order, session });
        Ok(ImportOutcome::Imported { turns })
    }
}

impl ArchiveStore for MemoryStore {
    fn export(&self, key: SessionKey) -> StoreFuture<'_, Option<TempFile>> {
        self.read(move |data| {
            let Some(lines) = data.write_archive(&key)? else { return Ok(None) };
            TempFile::in_memory(&lines).map(Some).map_err(|error| StoreError::Unwritable(error.to_string()))
        })
    }

    fn import(&self, archive: SessionArchive, at: String) -> StoreFuture<'_, ImportOutcome> {
        self.write(move |data| data.import(archive, at))
    }
}
