//! What agents spend: the book of the day, with the cells of the runs that stand in it, and the limit that it is held against.
//!
//! Its lock is taken behind the registry's and before a cell's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::civil::Date;
use quell_kernel::queue::Refusal;
use quell_kernel::spend::{Book, DailyLimit};
use quell_protocol::{AgentId, RunId, Usage};

use super::Runs;
use crate::cell::Cell;
use crate::clock::Clock;
use crate::store::{Spent, StoreError};

/// What all agents have spent today.
#[derive(Debug)]
pub(super) struct Spending {
    clock: Clock,
    page: Mutex<Page>,
}

#[derive(Debug)]
struct Page {
    day: Date,
    book: Book,
    cells: HashMap<RunId, Arc<Cell>>,
}

/// What an agent has spent on a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Today {
    /// The day, in UTC.
    pub day: Date,
    /// Tokens of its runs, of those at work too.
    pub usage: Usage,
}

impl Spending {
    pub(super) fn new(clock: Clock) -> Self {
        let page = Page { day: clock.day(clock.now()), book: Book::default(), cells: HashMap::new() };
        Self { clock, page: Mutex::new(page) }
    }

    /// What this run uses from now on is its agent's.
    pub(super) fn open(&self, cell: &Arc<Cell>) {
        let mut page = self.page();
        page.book.open(cell.run.agent.clone(), cell.run.id.clone());
        page.cells.insert(cell.run.id.clone(), Arc::clone(cell));
    }

    /// This run is forgotten.
    pub(super) fn close(&self, run: &RunId) {
        let mut page = self.page();
        if let Some(cell) = page.cells.remove(run) {
            page.book.close(&cell.run.agent, run, cell.usage());
        }
    }

    /// What is to be stored with the end of a run.
    pub(super) fn of_run(&self, cell: &Cell) -> Spent {
        let page = self.page();
        let agent = cell.run.agent.clone();
        let counted = page.book.counted(&agent, cell.id());
        Spent { agent, day: page.day.to_string(), usage: cell.usage(), counted }
    }

    /// It is stored.
    pub(super) fn count(&self, run: &RunId, spent: &Spent) {
        self.page().book.count(&spent.agent, run, spent.usage);
    }

    fn today(&self, agent: &AgentId) -> Today {
        let page = self.page();
        let used = |run: &RunId| page.cells.get(run).map(|cell| cell.usage()).unwrap_or_default();
        Today { day: page.day, usage: page.book.spent(agent, used) }
    }

    /// The page of the day that is. A clock that is set back turns none.
    fn page(&self) -> MutexGuard<'_, Page> {
        let mut page = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        let day = self.clock.day(self.clock.now());
        if day > page.day {
            page.day = day;
            page.book.turn_page();
        }
        page
    }
}

impl Runs {
    /// What an agent has spent today, by the runs at work, too.
    #[must_use]
    pub fn spent(&self, agent: &AgentId) -> Today {
        self.spending().today(agent)
    }

    /// Counts what an agent has used outside of its runs, at once; what is stored of that follows.
    pub(super) async fn charge(&self, agent: &AgentId, usage: Usage) -> Result<(), StoreError> {
        let day = {
            let mut page = self.spending().page();
            page.book.bring_forward(agent.clone(), usage);
            page.day.to_string()
        };
        // waits: behind the run, in a task of the engine.
        self.store().spend(agent.clone(), day, usage).await
    }

    /// What the database knows of a day: it counts when that is today.
    pub fn bring_forward(&self, day: Date, spent: Vec<(AgentId, Usage)>) {
        let mut page = self.spending().page();
        if page.day == day {
            spent.into_iter().for_each(|(agent, usage)| page.book.bring_forward(agent, usage));
        }
    }

    /// Refuses a new run of an agent that may spend nothing more today.
    pub(super) fn may_spend(&self, agent: &AgentId) -> Result<(), Refusal> {
        let limit = self.workshop().society.get(agent).map(|agent| agent.config.daily_limit()).unwrap_or_default();
        if limit == DailyLimit::default() {
            return Ok(());
        }
        let today = self.spent(agent);
        if !limit.is_reached(today.usage) {
            return Ok(());
        }
        let opens = today.day.tomorrow().unwrap_or(Date::MAX);
        Err(Refusal::SpendLimit { agent: agent.clone(), opens: format!("{opens}T00:00:00Z") })
    }
}

#[cfg(test)]
mod tests;
