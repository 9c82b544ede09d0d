//! Runs, their journals and the history of their sessions.

use quell_kernel::daily_spend::{PricedUsage, SpendAmount};
use quell_protocol::api::Hold;
use quell_protocol::{AgentId, Amendment, RunId, SessionKey};

use super::sessions::is_visible_to;
use super::{Data, EntryItem, HistoryEntry, MemoryStore, RunEntry, newest_rows};
use crate::amendments::{add_amendment, merge_amendments};
use crate::cursor::PagedList;
use crate::{
    AcceptRunOutcome, HistoryItem, HistoryStore, JournalRow, JournalStore, NoteScope, RunListFilter, RunRow, RunSpend,
    RunStore, SealedRun, SealedTurn, StoreError, StoreFuture, StorePage, StoredRunState,
};

impl RunRow {
    fn is_open(&self) -> bool {
        matches!(self.state, StoredRunState::Accepted | StoredRunState::Started)
    }
}

impl Data {
    pub(super) fn run_mut(&mut self, id: &RunId) -> Result<&mut RunEntry, StoreError> {
        self.runs.iter_mut().find(|run| run.row.id == *id).ok_or_else(|| StoreError::NoSuchRun(id.clone()))
    }

    pub(super) fn find_run(&self, id: &RunId) -> Option<&RunRow> {
        let receipt = self.receipts.iter().map(|receipt| &receipt.row).find(|row| row.id == *id);
        receipt.or_else(|| self.runs.iter().map(|run| &run.row).find(|row| row.id == *id))
    }

    pub(super) fn insert_run(&mut self, row: RunRow) {
        let number = self.next_number();
        self.runs.push(RunEntry { number, row, counted: PricedUsage::default() });
    }

    /// Ids of the runs of a session that have not ended.
    pub(super) fn open_runs(&self, session: &SessionKey) -> Vec<RunId> {
        let open = self.runs.iter().filter(|run| run.row.session == *session && run.row.is_open());
        open.map(|run| run.row.id.clone()).collect()
    }

    fn delete_journal(&mut self, run: &RunId) {
        self.journal.retain(|(id, _), _| id != run.as_str());
    }

    fn append_turn(&mut self, sealed: SealedTurn) -> Result<(), StoreError> {
        let SealedTurn { session, run, turn, view } = sealed;
        let recorded =
            self.history.iter().any(|entry| matches!(&entry.item, EntryItem::Turn { run: of, .. } if *of == run));
        let entry = self.run_mut(&run)?;
        if entry.row.session != session {
            return Err(StoreError::NoSuchRun(run));
        }
        if recorded {
            return Ok(());
        }
        if entry.row.is_open() {
            entry.row.view = view;
        }
        self.delete_journal(&run);
        let number = self.next_number();
        if let Some(entry) = self.session_mut(&session) {
            entry.session.turns += 1;
        }
        self.history.push(HistoryEntry { number, session, item: EntryItem::Turn { run, turn } });
        Ok(())
    }

    fn count_spend(&mut self, run: &RunId, spent: &RunSpend) {
        let entry = self.runs.iter_mut().find(|entry| entry.row.id == *run);
        let counted = entry.as_ref().map_or(spent.counted_before(), |entry| entry.counted);
        let new = spent.total().subtract(counted);
        if let Some(entry) = entry {
            entry.counted = counted.add(new);
        }
        self.add_spend(&spent.agent, &spent.day, new.usage);
        if let Some(key) = &spent.key {
            self.add_key_spend(key, &spent.day, new);
        }
    }

    fn seal(&mut self, sealed: SealedRun) {
        let SealedRun { session, run, turn, view, spent } = sealed;
        if let Some(turn) = turn {
            // A run that was deleted leaves no turn.
            let _ = self.append_turn(SealedTurn { session, run: run.clone(), turn, view: view.clone() });
        }
        if let Ok(entry) = self.run_mut(&run)
            && entry.row.is_open()
        {
            (entry.row.state, entry.row.view) = (StoredRunState::Ended, view);
        }
        self.count_spend(&run, &spent);
        self.delete_journal(&run);
    }

    /// The turns of a session after its last reset, with their numbers.
    fn current_turns(&self, session: &SessionKey) -> Vec<(i64, String)> {
        let mut turns = Vec::new();
        for entry in self.history.iter().filter(|entry| entry.session == *session) {
            match &entry.item {
                EntryItem::Turn { turn, .. } => turns.push((entry.number, turn.clone())),
                EntryItem::Reset { .. } => turns.clear(),
            }
        }
        turns
    }

    fn history_item(&self, item: &EntryItem) -> Option<HistoryItem> {
        match item {
            EntryItem::Reset { at } => Some(HistoryItem::Reset { at: at.clone() }),
            EntryItem::Turn { run, turn } => {
                let row = &self.runs.iter().find(|entry| entry.row.id == *run)?.row;
                let (agent, principal) = (row.agent.clone(), row.principal.clone());
                Some(HistoryItem::Turn { turn: turn.clone(), agent, principal })
            }
        }
    }

    pub(super) fn accept_run(&mut self, row: RunRow) -> AcceptRunOutcome {
        if let Some(existing) = self.find_run(&row.id) {
            return AcceptRunOutcome::Existing(existing.clone());
        }
        self.record_use(&row.session, &row.agent, &row.principal, &row.accepted_at);
        self.insert_run(row);
        AcceptRunOutcome::New
    }

    fn reset(&mut self, session: &SessionKey, at: String) -> bool {
        self.notes.retain(|entry| entry.scope != NoteScope::Session(session.clone()));
        let Some(entry) = self.session_mut(session) else { return false };
        if std::mem::take(&mut entry.session.turns) > 0 {
            let number = self.next_number();
            self.history.push(HistoryEntry { number, session: session.clone(), item: EntryItem::Reset { at } });
        }
        true
    }
}

impl RunStore for MemoryStore {
    fn accept(&self, row: RunRow) -> StoreFuture<'_, AcceptRunOutcome> {
        self.write(move |data| Ok(data.accept_run(row)))
    }

    fn insert_with_turn(&self, row: RunRow, turn: String) -> StoreFuture<'_, ()> {
        self.write(move |data| {
            let (session, run, view) = (row.session.clone(), row.id.clone(), row.view.clone());
            match data.accept_run(row) {
                AcceptRunOutcome::New => data.append_turn(SealedTurn { session, run, turn, view }),
                AcceptRunOutcome::Existing(_) | AcceptRunOutcome::NotDue => Ok(()),
            }
        })
    }

    fn record_start(&self, id: RunId, view: String) -> StoreFuture<'_, ()> {
        self.write(move |data| {
            let entry = data.run_mut(&id)?;
            if entry.row.state == StoredRunState::Accepted {
                (entry.row.state, entry.row.view) = (StoredRunState::Started, view);
            }
            Ok(())
        })
    }

    fn record_end(&self, id: RunId, view: String, spent: RunSpend) -> StoreFuture<'_, ()> {
        self.write(move |data| {
            data.delete_journal(&id);
            data.count_spend(&id, &spent);
            let entry = data.run_mut(&id)?;
            if matches!(entry.row.state, StoredRunState::Steered { .. }) {
                return Ok(());
            }
            entry.row.view = if entry.row.state == StoredRunState::Ended {
                merge_amendments(&entry.row.view, &view).map_err(|error| StoreError::Corrupt(error.to_string()))?
            } else {
                view
            };
            entry.row.state = StoredRunState::Ended;
            Ok(())
        })
    }

    fn record_steered(&self, id: RunId, into: RunId) -> StoreFuture<'_, ()> {
        self.write(move |data| {
            let entry = data.run_mut(&id)?;
            if entry.row.state == StoredRunState::Accepted {
                entry.row.state = StoredRunState::Steered { into };
            }
            Ok(())
        })
    }

    fn amend(&self, run: RunId, amendment: Amendment) -> StoreFuture<'_, (SessionKey, Amendment)> {
        self.write(move |data| {
            let entry = data.run_mut(&run)?;
            if entry.row.state != StoredRunState::Ended {
                return Err(StoreError::NoSuchRun(run));
            }
            let amended = add_amendment(&entry.row.view, amendment);
            let amended = amended.map_err(|error| StoreError::Corrupt(error.to_string()))?;
            let (view, amendment) = amended.ok_or(StoreError::NoSuchRun(run))?;
            entry.row.view = view;
            Ok((entry.row.session.clone(), amendment))
        })
    }

    fn seal(&self, runs: Vec<SealedRun>) -> StoreFuture<'_, ()> {
        self.change(move |data| runs.into_iter().for_each(|sealed| data.seal(sealed)))
    }

    fn find(&self, id: RunId) -> StoreFuture<'_, Option<RunRow>> {
        self.read(move |data| Ok(data.find_run(&id).cloned()))
    }

    fn list_with_cursors(&self, filter: RunListFilter) -> StoreFuture<'_, StorePage<(RunRow, String)>> {
        self.read(move |data| {
            let RunListFilter { session, principal, visible_to, limit, cursor } = filter;
            let before = PagedList::Runs.parse_cursor(cursor.as_deref())?;
            let wanted = data.runs.iter().filter(|entry| {
                session.as_ref().is_none_or(|session| entry.row.session == *session)
                    && principal.as_ref().is_none_or(|principal| entry.row.principal == *principal)
                    && visible_to.as_ref().is_none_or(|viewer| {
                        let mut sessions = data.sessions.iter().map(|entry| &entry.session);
                        let session = sessions.find(|session| session.key == entry.row.session);
                        entry.row.principal == *viewer || session.is_some_and(|session| is_visible_to(session, viewer))
                    })
            });
            let rows = wanted.map(|entry| (entry.number, entry.row.clone())).collect();
            Ok(PagedList::Runs.split_page_with_cursors(newest_rows(rows, before, limit), limit))
        })
    }

    fn list_open(&self) -> StoreFuture<'_, Vec<RunRow>> {
        self.read(|data| Ok(data.runs.iter().map(|entry| &entry.row).filter(|row| row.is_open()).cloned().collect()))
    }

    fn delete_receipts_before(&self, before: String) -> StoreFuture<'_, ()> {
        self.change(move |data| data.receipts.retain(|receipt| receipt.deleted_at >= before))
    }

    fn delete_oldest_receipts(&self, limit: u32) -> StoreFuture<'_, usize> {
        self.write(move |data| {
            data.receipts.sort_by(|one, other| one.deleted_at.cmp(&other.deleted_at));
            Ok(data.receipts.drain(..data.receipts.len().min(limit as usize)).count())
        })
    }

    fn delete_runs_of_agent_before(&self, agent: AgentId, before: String) -> StoreFuture<'_, ()> {
        self.change(move |data| {
            let is_old = |row: &RunRow| {
                row.agent == agent && row.accepted_at < before && row.state == StoredRunState::Ended
            };
            let (old, kept) = std::mem::take(&mut data.runs).into_iter().partition(|entry| is_old(&entry.row));
            let old: Vec<_> = old;
            data.runs = kept;
            data.delete_push_targets(&old.iter().map(|entry| entry.row.id.to_string()).collect::<Vec<_>>());
            let was_of_old = |item: &EntryItem| {
                matches!(item, EntryItem::Turn { run, .. } if old.iter().any(|entry| entry.row.id == *run))
            };
            for entry in std::mem::take(&mut data.history) {
                if !was_of_old(&entry.item) {
                    data.history.push(entry);
                } else if let Some(session) = data.session_mut(&entry.session) {
                    session.session.turns = session.session.turns.saturating_sub(1);
                }
            }
        })
    }

    fn set_hold(&self, hold: &Hold, after: Option<u64>) -> StoreFuture<'_, Option<u64>> {
        let hold = hold.clone();
        self.write(move |data| {
            if after.is_some_and(|after| after != data.hold.revision) {
                return Ok(None);
            }
            data.hold = Hold { revision: data.hold.revision + 1, unstored: false, ..hold };
            Ok(Some(data.hold.revision))
        })
    }

    fn hold(&self) -> StoreFuture<'_, Hold> {
        self.read(|data| Ok(data.hold.clone()))
    }
}

impl JournalStore for MemoryStore {
    fn write(&self, rows: Vec<JournalRow>) -> StoreFuture<'_, ()> {
        MemoryStore::write(self, move |data| {
            for JournalRow { run, number, line } in rows {
                if data.run_mut(&run).is_ok_and(|entry| entry.row.is_open()) {
                    data.journal.insert((run.to_string(), number), line);
                }
            }
            Ok(())
        })
    }

    fn read(&self, run: RunId) -> StoreFuture<'_, (Vec<String>, Option<String>)> {
        MemoryStore::read(self, move |data| {
            let lines = data.journal.iter().filter(|((id, _), _)| id == run.as_str());
            let turn = data.history.iter().find_map(|entry| match &entry.item {
                EntryItem::Turn { run: of, turn } if *of == run => Some(turn.clone()),
                EntryItem::Turn { .. } | EntryItem::Reset { .. } => None,
            });
            Ok((lines.map(|(_, line)| line.clone()).collect(), turn))
        })
    }
}

impl HistoryStore for MemoryStore {
    fn append_turn(&self, sealed: SealedTurn) -> StoreFuture<'_, ()> {
        self.write(move |data| data.append_turn(sealed))
    }

    fn turns(&self, session: SessionKey) -> StoreFuture<'_, Vec<String>> {
        self.read(move |data| Ok(data.current_turns(&session).into_iter().map(|(_, turn)| turn).collect()))
    }

    fn page(
        &self,
        session: SessionKey,
        limit: usize,
        cursor: Option<String>,
    ) -> StoreFuture<'_, StorePage<HistoryItem>> {
        self.read(move |data| {
            let before = PagedList::History.parse_cursor(cursor.as_deref())?;
            let items = data.history.iter().filter(|entry| entry.session == session);
            let items = items.filter_map(|entry| Some((entry.number, data.history_item(&entry.item)?))).collect();
            let (mut page, next) = PagedList::History.split_page(newest_rows(items, before, limit), limit);
            page.reverse();
            Ok((page, next))
        })
    }

    fn newest_turns(&self, session: SessionKey, before: i64, limit: usize) -> StoreFuture<'_, Vec<(i64, String)>> {
        self.read(move |data| {
            let mut turns = newest_rows(data.current_turns(&session), before, limit);
            turns.truncate(limit);
            Ok(turns)
        })
    }

    fn first_turn(&self, session: SessionKey) -> StoreFuture<'_, Option<String>> {
        self.read(move |data| Ok(data.current_turns(&session).into_iter().next().map(|(_, turn)| turn)))
    }

    fn reset(&self, session: SessionKey, at: String) -> StoreFuture<'_, bool> {
        self.write(move |data| Ok(data.reset(&session, at)))
    }
}
