//! Lists of sessions, runs, agents and models to choose from, with a filter.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use quell_client::text_format::one_line;
use quell_protocol::api::{AgentRow, RunView, SessionRow};
use quell_protocol::mcp::{McpListKind, McpListedItem};

use crate::effects::{ChatEffect, DaemonQuery};
use crate::state::{ChatState, Menu, Picker, PickerItem, PickerList, PickerSelection};
use crate::transcript::NoticeLevel;

/// Names from outside are cut to this length; the screen may cut them further.
const MAX_NAME_CHARS: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PickerRow {
    pub(crate) item: PickerItem,
    pub(crate) name: String,
    /// Details beside the name.
    pub(crate) about: String,
    /// True when a run is active in it.
    pub(crate) live: bool,
}

impl ChatState {
    pub(crate) fn open_picker(&mut self, list: PickerList) {
        let question = match list {
            PickerList::Sessions(_) => DaemonQuery::Sessions,
            PickerList::Runs(_) => DaemonQuery::ActiveRuns,
            PickerList::Agents | PickerList::Models => DaemonQuery::Agents,
            PickerList::Mcp(kind, _) => DaemonQuery::McpList { kind, agent: self.effective_agent().cloned() },
        };
        self.menu = Some(Menu::Picker(Picker::new(list)));
        self.query(question);
    }

    /// Rows that match the filter; none while they are not loaded.
    pub(crate) fn picker_rows(&self, picker: &Picker) -> Option<Vec<PickerRow>> {
        let rows = match &picker.list {
            PickerList::Sessions(rows) => self.session_rows(rows.as_ref()?),
            PickerList::Runs(rows) => self.run_rows(rows.as_ref()?),
            PickerList::Agents => self.agent_rows(),
            PickerList::Models => self.model_rows(),
            PickerList::Mcp(kind, rows) => mcp_rows(*kind, rows.as_ref()?),
        };
        let wanted = picker.filter.to_lowercase();
        let fits = |row: &PickerRow| format!("{} {}", row.name, row.about).to_lowercase().contains(&wanted);
        Some(rows.into_iter().filter(fits).collect())
    }

    fn session_rows(&self, sessions: &[SessionRow]) -> Vec<PickerRow> {
        let mut sessions: Vec<_> = sessions.iter().collect();
        sessions.sort_by(|a, b| b.last_used_at.cmp(&a.last_used_at));
        let row = |session: &SessionRow| {
            let age = self.age_text(&session.last_used_at);
            let agent = session.agent.as_ref().map(|agent| format!(" · {}", one_line(agent.as_str(), MAX_NAME_CHARS)));
            let agent = agent.unwrap_or_default();
            let runs = match session.active_runs.len() {
                0 => String::new(),
                runs => format!(" · {}", self.texts.plural("term.count.run.one", "term.count.run.many", runs)),
            };
            PickerRow {
                item: PickerItem::Session(session.key.clone()),
                name: one_line(session.key.as_str(), MAX_NAME_CHARS),
                about: format!("{age}{agent}{runs}"),
                live: !session.active_runs.is_empty(),
            }
        };
        sessions.into_iter().map(row).collect()
    }

    fn run_rows(&self, runs: &[RunView]) -> Vec<PickerRow> {
        let row = |run: &RunView| {
            let age = self.age_text(run.started_at.as_deref().unwrap_or(&run.accepted_at));
            let agent = one_line(run.agent.as_str(), MAX_NAME_CHARS);
            let session = one_line(run.session_key.as_str(), MAX_NAME_CHARS);
            PickerRow {
                item: PickerItem::Run(run.run_id.clone(), run.session_key.clone()),
                name: one_line(&run.text, 60),
                about: format!("{agent} · {age} · {} · {session}", self.run_state_text(run)),
                live: true,
            }
        };
        runs.iter().map(row).collect()
    }

    fn agent_rows(&self) -> Vec<PickerRow> {
        use quell_protocol::api::ComputeStatus::{Idle, Processing, Stopping, WaitingLlm};
        let row = |(depth, agent): (usize, &AgentRow)| {
            let doing = match agent.compute_status {
                Idle => String::new(),
                WaitingLlm => format!(" · {}", self.texts.get("term.doing.waiting")),
                Processing => format!(" · {}", self.texts.get("term.doing.working")),
                Stopping => format!(" · {}", self.texts.get("term.doing.stopping")),
            };
            PickerRow {
                item: PickerItem::Agent(agent.id.clone()),
                name: format!("{}{}", "  ".repeat(depth.min(8)), one_line(agent.id.as_str(), MAX_NAME_CHARS)),
                about: format!("{}{doing}", one_line(&agent.model, MAX_NAME_CHARS)),
                live: agent.compute_status != Idle,
            }
        };
        self.agent_tree().into_iter().map(row).collect()
    }

    /// Models of the configured agents, each with its agents.
    fn model_rows(&self) -> Vec<PickerRow> {
        let mut rows: Vec<PickerRow> = Vec::new();
        for agent in &self.agents {
            let id = one_line(agent.id.as_str(), MAX_NAME_CHARS);
            match rows.iter_mut().find(|row| row.item == PickerItem::Model(agent.model.clone())) {
                Some(row) => row.about = format!("{}, {id}", row.about),
                None => {
                    let (item, name) = (PickerItem::Model(agent.model.clone()), one_line(&agent.model, MAX_NAME_CHARS));
                    rows.push(PickerRow { item, name, about: id, live: false });
                }
            }
        }
        rows
    }

    fn age_text(&self, at: &str) -> String {
        let now = i64::try_from(self.now.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        now.map_or_else(String::new, |now| quell_client::text_format::relative_age(at, now))
    }

    pub(crate) fn handle_picker_key(&mut self, key: KeyEvent) {
        let Some(Menu::Picker(picker)) = &self.menu else { return };
        let rows = self.picker_rows(picker).unwrap_or_default();
        let chosen = picker.chosen_index(&rows).and_then(|at| rows.get(at)).map(|row| row.item.clone());
        let Some(Menu::Picker(picker)) = &mut self.menu else { return };
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Esc => self.menu = None,
            KeyCode::Up => picker.move_selection(-1, &rows),
            KeyCode::Down => picker.move_selection(1, &rows),
            KeyCode::PageUp => picker.move_selection(-10, &rows),
            KeyCode::PageDown => picker.move_selection(10, &rows),
            KeyCode::Enter => chosen.into_iter().for_each(|pick| self.choose_item(pick)),
            KeyCode::Delete => self.stop_chosen_run(chosen),
            KeyCode::Char('x') if control => self.stop_chosen_run(chosen),
            KeyCode::Backspace => {
                picker.filter.pop();
            }
            KeyCode::Char(c) if !control => {
                picker.filter.push(c);
                picker.chosen = PickerSelection::First;
            }
            _ => {}
        }
    }

    /// Selects the first row of a list that has just arrived; the selection then follows this row wherever it moves.
    pub(crate) fn select_first_row(&mut self) {
        let Some(Menu::Picker(picker)) = &self.menu else { return };
        if !matches!(picker.chosen, PickerSelection::First) {
            return;
        }
        let first = self.picker_rows(picker).and_then(|rows| rows.into_iter().next());
        if let (Some(row), Some(Menu::Picker(picker))) = (first, &mut self.menu) {
            picker.chosen = PickerSelection::Item(row.item, 0);
        }
    }

    fn choose_item(&mut self, pick: PickerItem) {
        self.menu = None;
        match pick {
            PickerItem::Session(key) | PickerItem::Run(_, key) => self.switch_session(key),
            PickerItem::Model(model) => self.set_model(model),
            PickerItem::Mcp(kind, item) => self.choose_mcp_item(kind, &item),
            PickerItem::Agent(agent) => {
                let name = agent.as_str().to_owned();
                self.agent = Some(agent);
                self.show_notice(NoticeLevel::Info, self.texts.format("term.notice.agent", &[("agent", &name)]));
            }
        }
    }

    /// Stops the selected run without switching to its session; a run that is already being stopped is forced.
    fn stop_chosen_run(&mut self, pick: Option<PickerItem>) {
        let (Some(PickerItem::Run(run, _)), Some(Menu::Picker(picker))) = (pick, &mut self.menu) else { return };
        let covered = self.stop.as_ref().is_some_and(|stop| stop.stopping_runs.contains_key(&run));
        let force = covered || picker.stop_requested_runs.contains(&run);
        picker.stop_requested_runs.push(run.clone());
        self.cover_runs(std::slice::from_ref(&run));
        let key = if force { "term.state.forcing" } else { "term.notice.stop_asked" };
        self.show_notice(NoticeLevel::Info, self.texts.get(key));
        if self.run_mut(&run).is_none() {
            self.effects.push(ChatEffect::StopRun { run, force });
        } else {
            self.request_run_stop(run, force);
            // Mark the whole stop as forced only if it covers just this run.
            self.stop.iter_mut().filter(|stop| stop.stopping_runs.len() == 1).for_each(|stop| stop.force |= force);
        }
    }
}

fn mcp_rows(kind: McpListKind, items: &[McpListedItem]) -> Vec<PickerRow> {
    let row = |item: &McpListedItem| PickerRow {
        item: PickerItem::Mcp(kind, Box::new(item.clone())),
        name: one_line(&item.command_form(), MAX_NAME_CHARS),
        about: format!("{} · {}", one_line(&item.server, MAX_NAME_CHARS), one_line(&item.description, MAX_NAME_CHARS)),
        live: false,
    };
    items.iter().map(row).collect()
}

impl Picker {
    pub(crate) fn new(list: PickerList) -> Self {
        Self { list, chosen: PickerSelection::First, stop_requested_runs: Vec::new(), filter: String::new() }
    }

    /// Current index of the selected row; none when it is gone.
    pub(crate) fn chosen_index(&self, rows: &[PickerRow]) -> Option<usize> {
        match &self.chosen {
            PickerSelection::First => (!rows.is_empty()).then_some(0),
            PickerSelection::Item(pick, _) => rows.iter().position(|row| row.item == *pick),
        }
    }

    fn move_selection(&mut self, lines: isize, rows: &[PickerRow]) {
        let (from, gone) = match (self.chosen_index(rows), &self.chosen) {
            (Some(at), _) => (at, false),
            (None, PickerSelection::Item(_, at)) => (*at, true),
            (None, PickerSelection::First) => (0, true),
        };
        // When the selected row has gone, the next one has moved to its index, so moving down needs one step less.
        let steps = if gone && lines > 0 { lines - 1 } else { lines };
        let at = from.saturating_add_signed(steps).min(rows.len().saturating_sub(1));
        if let Some(row) = rows.get(at) {
            self.chosen = PickerSelection::Item(row.item.clone(), at);
        }
    }
}
