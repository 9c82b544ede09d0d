//! Notes. The search reads every note of a scope.

use quell_kernel::memory::{SearchWord, WordWeights, parse_query_words};
use quell_protocol::memory::SenderRow;

use super::{Data, MemoryStore, NoteEntry, newest_rows};
use crate::cursor::PagedList;
use crate::note_words::QueryMatch;
use crate::{FoundNote, Note, NoteScope, NoteStore, NoteWriteCheck, SaveNoteOutcome, StoreFuture, StorePage};

impl Data {
    fn save_note(&mut self, scope: NoteScope, note: Note) -> SaveNoteOutcome {
        if matches!(&scope, NoteScope::Session(key) if !self.has_session(key)) {
            return SaveNoteOutcome::NoSession;
        }
        let replaced = self.forget_note(&scope, &note.key);
        let number = self.next_number();
        self.notes.push(NoteEntry { number, scope, note });
        if replaced { SaveNoteOutcome::Replaced } else { SaveNoteOutcome::New }
    }

    fn forget_note(&mut self, scope: &NoteScope, key: &str) -> bool {
        self.notes.extract_if(.., |entry| entry.scope == *scope && entry.note.key == key).count() > 0
    }

    fn notes_of<'a>(&'a self, scope: &'a NoteScope) -> impl Iterator<Item = &'a NoteEntry> {
        self.notes.iter().filter(move |entry| entry.scope == *scope)
    }

    fn search_scope(&self, scope: &NoteScope, words: &[SearchWord], limit: usize) -> Vec<FoundNote> {
        let notes: Vec<IndexedNote<'_>> = self.notes_of(scope).map(|entry| IndexedNote::new(entry, words)).collect();
        let found_in = |word: usize| notes.iter().filter(|note| note.found.words.contains(&word)).count();
        let found_in: Vec<u32> =
            (0..words.len()).map(|word| u32::try_from(found_in(word)).unwrap_or(u32::MAX)).collect();
        let weights = WordWeights::new(&found_in, u32::try_from(notes.len()).unwrap_or(u32::MAX));
        let found = notes.iter().filter(|note| !note.found.words.is_empty());
        let mut found: Vec<(f64, &IndexedNote<'_>)> =
            found.map(|note| (weights.score(note.found.words.iter().copied()), note)).collect();
        found.sort_by(|(score, note), (other_score, other)| {
            other_score
                .total_cmp(score)
                .then(other.found.density.total_cmp(&note.found.density))
                .then(other.entry.number.cmp(&note.entry.number))
        });
        let best = found.into_iter().take(limit);
        best.map(|(score, note)| FoundNote { note: note.entry.note.clone(), score }).collect()
    }
}

struct IndexedNote<'a> {
    entry: &'a NoteEntry,
    found: QueryMatch,
}

impl<'a> IndexedNote<'a> {
    fn new(entry: &'a NoteEntry, query: &[SearchWord]) -> Self {
        Self { entry, found: QueryMatch::new(&entry.note.searchable_text(), query) }
    }
}

impl NoteStore for MemoryStore {
    fn save(&self, scope: NoteScope, note: Note) -> StoreFuture<'_, SaveNoteOutcome> {
        self.write(move |data| Ok(data.save_note(scope, note)))
    }

    fn save_if(&self, scope: NoteScope, note: Note, wanted: NoteWriteCheck) -> StoreFuture<'_, SaveNoteOutcome> {
        self.write(move |data| {
            Ok(if wanted(&scope) { data.save_note(scope, note) } else { SaveNoteOutcome::Cancelled })
        })
    }

    fn search(&self, scopes: Vec<NoteScope>, query: &str, limit: usize) -> StoreFuture<'_, Vec<Vec<FoundNote>>> {
        let words = parse_query_words(query);
        self.read(move |data| Ok(scopes.iter().map(|scope| data.search_scope(scope, &words, limit)).collect()))
    }

    fn list(&self, scope: NoteScope, limit: usize, cursor: Option<String>) -> StoreFuture<'_, StorePage<Note>> {
        self.read(move |data| {
            let before = PagedList::Notes.parse_cursor(cursor.as_deref())?;
            let rows = data.notes_of(&scope).map(|entry| (entry.number, entry.note.clone())).collect();
            Ok(PagedList::Notes.split_page(newest_rows(rows, before, limit), limit))
        })
    }

    fn forget(&self, scope: NoteScope, key: String) -> StoreFuture<'_, bool> {
        self.write(move |data| Ok(data.forget_note(&scope, &key)))
    }

    fn list_senders(&self, limit: usize, cursor: Option<String>) -> StoreFuture<'_, StorePage<SenderRow>> {
        self.read(move |data| {
            let before = PagedList::Senders.parse_cursor(cursor.as_deref())?;
            let mut senders: Vec<(i64, SenderRow)> = Vec::new();
            for entry in &data.notes {
                let NoteScope::Sender(sender) = &entry.scope else { continue };
                let known = senders.iter_mut().find(|(_, row)| row.sender == *sender);
                let newest_at = entry.note.at.clone();
                match known {
                    Some((newest, row)) => {
                        (*newest, row.notes, row.newest_at) = (entry.number, row.notes + 1, newest_at);
                    }
                    None => senders.push((entry.number, SenderRow { sender: sender.clone(), notes: 1, newest_at })),
                }
            }
            Ok(PagedList::Senders.split_page(newest_rows(senders, before, limit), limit))
        })
    }

    fn forget_sender(&self, sender: String) -> StoreFuture<'_, u64> {
        let sender = NoteScope::Sender(sender);
        self.write(move |data| Ok(data.notes.extract_if(.., |entry| entry.scope == sender).count() as u64))
    }
}
