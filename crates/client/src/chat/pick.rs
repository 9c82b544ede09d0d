//! Pickers: lists of sessions, runs, agents and models to choose from; typed letters narrow them.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use quell_protocol::{AgentId, RunId, SessionKey};

use super::effects::{Effect, Question};
use super::state::{Chat, Chosen, Menu, PickList, Picker};
use super::transcript::Tone;
use crate::words::one_line;

/// Foreign names in a list are cut here; the screen cuts again.
const MOST: usize = 200;

/// A line of a picker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) what: Pick,
    /// What it is called.
    pub(super) name: String,
    /// What else is to be said about it.
    pub(super) about: String,
    /// True when something of it runs.
    pub(super) live: bool,
}

/// What choosing a line means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pick {
    Session(SessionKey),
    Run(RunId, SessionKey),
    Agent(AgentId),
    Model(String),
}

impl Chat {
    pub(super) fn pick(&mut self, list: PickList) -> Vec<Effect> {
        let question = match list {
            PickList::Sessions(_) => Question::Sessions,
            PickList::Runs(_) => Question::Active,
            PickList::Agents | PickList::Models => Question::Agents,
        };
        self.menu = Some(Menu::Picker(Picker::new(list)));
        vec![Effect::Ask(question)]
    }

    /// The lines of a picker that its filter leaves; nothing while they are not known yet.
    pub(super) fn picks(&self, picker: &Picker) -> Option<Vec<Row>> {
        let rows = match &picker.list {
            PickList::Sessions(rows) => self.session_rows(rows.as_ref()?),
            PickList::Runs(rows) => self.run_rows(rows.as_ref()?),
            PickList::Agents => self.agent_rows(),
            PickList::Models => self.model_rows(),
        };
        let wanted = picker.filter.to_lowercase();
        let fits = |row: &Row| format!("{} {}", row.name, row.about).to_lowercase().contains(&wanted);
        Some(rows.into_iter().filter(fits).collect())
    }

    fn session_rows(&self, sessions: &[quell_protocol::api::SessionRow]) -> Vec<Row> {
        let mut sessions: Vec<_> = sessions.iter().collect();
        sessions.sort_by(|a, b| b.last_used_at.cmp(&a.last_used_at));
        let row = |session: &quell_protocol::api::SessionRow| {
            let age = self.age_of(&session.last_used_at);
            let agent = session
                .agent
                .as_ref()
                .map(|agent| format!(" · {}", one_line(agent.as_str(), MOST)))
                .unwrap_or_default();
            let runs = match session.active_runs.len() {
                0 => String::new(),
                runs => format!(" · {}", self.texts.count("term.count.run.one", "term.count.run.many", runs)),
            };
            Row {
                what: Pick::Session(session.key.clone()),
                name: one_line(session.key.as_str(), MOST),
                about: format!("{age}{agent}{runs}"),
                live: !session.active_runs.is_empty(),
            }
        };
        sessions.into_iter().map(row).collect()
    }

    fn run_rows(&self, runs: &[quell_protocol::api::RunView]) -> Vec<Row> {
        let row = |run: &quell_protocol::api::RunView| {
            let age = self.age_of(run.started_at.as_deref().unwrap_or(&run.accepted_at));
            let agent = one_line(run.agent.as_str(), MOST);
            Row {
                what: Pick::Run(run.run_id.clone(), run.session_key.clone()),
                name: one_line(&run.text, 60),
                about: format!(
                    "{agent} · {age} · {} · {}",
                    self.state_words(run),
                    one_line(run.session_key.as_str(), MOST)
                ),
                live: true,
            }
        };
        runs.iter().map(row).collect()
    }

    fn agent_rows(&self) -> Vec<Row> {
        use quell_protocol::api::ComputeStatus::{Idle, Processing, Stopping, WaitingLlm};
        let row = |(depth, agent): (usize, &quell_protocol::api::AgentRow)| {
            let doing = match agent.compute_status {
                Idle => String::new(),
                WaitingLlm => format!(" · {}", self.texts.say("term.doing.waiting")),
                Processing => format!(" · {}", self.texts.say("term.doing.working")),
                Stopping => format!(" · {}", self.texts.say("term.doing.stopping")),
            };
            Row {
                what: Pick::Agent(agent.id.clone()),
                name: format!("{}{}", "  ".repeat(depth.min(8)), one_line(agent.id.as_str(), MOST)),
                about: format!("{}{doing}", one_line(&agent.model, MOST)),
                live: agent.compute_status != Idle,
            }
        };
        self.agent_tree().into_iter().map(row).collect()
    }

    /// The models that configured agents use.
    fn model_rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for agent in &self.agents {
            let id = one_line(agent.id.as_str(), MOST);
            match rows.iter_mut().find(|row| row.what == Pick::Model(agent.model.clone())) {
                Some(row) => row.about = format!("{}, {id}", row.about),
                None => {
                    let (what, name) = (Pick::Model(agent.model.clone()), one_line(&agent.model, MOST));
                    rows.push(Row { what, name, about: id, live: false });
                }
            }
        }
        rows
    }

    fn age_of(&self, at: &str) -> String {
        let now = i64::try_from(self.now.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        now.map_or_else(String::new, |now| crate::words::ago(at, now))
    }

    pub(super) fn picker_key(&mut self, key: KeyEvent) -> Vec<Effect> {
        let Some(Menu::Picker(picker)) = &self.menu else { return Vec::new() };
        let rows = self.picks(picker).unwrap_or_default();
        let chosen = picker.place(&rows).and_then(|at| rows.get(at)).map(|row| row.what.clone());
        let Some(Menu::Picker(picker)) = &mut self.menu else { return Vec::new() };
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Esc => self.menu = None,
            KeyCode::Up => picker.move_by(-1, &rows),
            KeyCode::Down => picker.move_by(1, &rows),
            KeyCode::PageUp => picker.move_by(-10, &rows),
            KeyCode::PageDown => picker.move_by(10, &rows),
            KeyCode::Enter => return chosen.map(|pick| self.choose(pick)).unwrap_or_default(),
            KeyCode::Delete => return self.stop_chosen(chosen),
            KeyCode::Char('x') if control => return self.stop_chosen(chosen),
            KeyCode::Backspace => {
                picker.filter.pop();
            }
            KeyCode::Char(c) if !control => {
                picker.filter.push(c);
                picker.chosen = Chosen::First;
            }
            _ => {}
        }
        Vec::new()
    }

    /// Chooses the first line of a list that has just come: from now on the choice is that line, wherever it moves.
    pub(super) fn settle_choice(&mut self) {
        let Some(Menu::Picker(picker)) = &self.menu else { return };
        if !matches!(picker.chosen, Chosen::First) {
            return;
        }
        let first = self.picks(picker).and_then(|rows| rows.into_iter().next());
        if let (Some(row), Some(Menu::Picker(picker))) = (first, &mut self.menu) {
            picker.chosen = Chosen::Line(row.what, 0);
        }
    }

    fn choose(&mut self, pick: Pick) -> Vec<Effect> {
        self.menu = None;
        match pick {
            Pick::Session(key) | Pick::Run(_, key) => self.open(key),
            Pick::Model(model) => self.set_model(model),
            Pick::Agent(agent) => {
                let name = agent.as_str().to_owned();
                self.agent = Some(agent);
                self.say(Tone::Quiet, self.texts.fill("term.notice.agent", &[("agent", &name)]));
                Vec::new()
            }
        }
    }

    /// Stops the chosen run where it is, without going there; a run that is being stopped already is forced.
    fn stop_chosen(&mut self, pick: Option<Pick>) -> Vec<Effect> {
        let (Some(Pick::Run(run, _)), Some(Menu::Picker(picker))) = (pick, &mut self.menu) else { return Vec::new() };
        let covered = self.stop.as_ref().is_some_and(|stop| stop.runs.contains_key(&run));
        let force = covered || picker.stopped.contains(&run);
        picker.stopped.push(run.clone());
        self.cover(std::slice::from_ref(&run));
        let words = if force { "term.state.forcing" } else { "term.notice.stop_asked" };
        self.say(Tone::Quiet, self.texts.say(words));
        let ours = self.run_mut(&run).is_some();
        let effects = vec![Effect::StopRun { run, force }];
        if ours {
            self.note_asked(&effects);
            // One run is forced here, and not the others of its stop.
            self.stop.iter_mut().filter(|stop| stop.runs.len() == 1).for_each(|stop| stop.force |= force);
        }
        effects
    }
}

impl Picker {
    pub(super) fn new(list: PickList) -> Self {
        Self { list, chosen: Chosen::First, stopped: Vec::new(), filter: String::new() }
    }

    /// Where the chosen line stands now; nothing when it is gone.
    pub(super) fn place(&self, rows: &[Row]) -> Option<usize> {
        match &self.chosen {
            Chosen::First => (!rows.is_empty()).then_some(0),
            Chosen::Line(pick, _) => rows.iter().position(|row| row.what == *pick),
        }
    }

    fn move_by(&mut self, lines: isize, rows: &[Row]) {
        let (from, gone) = match (self.place(rows), &self.chosen) {
            (Some(at), _) => (at, false),
            (None, Chosen::Line(_, at)) => (*at, true),
            (None, Chosen::First) => (0, true),
        };
        // Where a line has gone the next one has moved into its place: one step down is there already.
        let steps = if gone && lines > 0 { lines - 1 } else { lines };
        let at = from.saturating_add_signed(steps).min(rows.len().saturating_sub(1));
        if let Some(row) = rows.get(at) {
            self.chosen = Chosen::Line(row.what.clone(), at);
        }
    }
}
