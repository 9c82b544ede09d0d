//! Everything the chat knows: facts about the session, the page, the input, what is open, what is being stopped. It has no
//! hands; [`super::update`] changes it.

use std::collections::{BTreeMap, BTreeSet};

use quell_protocol::api::{AgentRow, Hold, OnBusy, RunView, SessionRow};
use quell_protocol::approval::ApprovalRow;
use quell_protocol::{AgentId, Resource, RunId, SessionKey};

use super::clock::Moment;
use super::composer::Composer;
use super::effects::Polls;
use super::pick::Pick;
use super::texts::Texts;
use super::transcript::{Tone, Transcript};

/// The chat.
pub(crate) struct Chat {
    pub(super) texts: Texts,
    pub(super) now: Moment,
    pub(super) names: Names,
    pub(super) session: SessionKey,
    /// The agent that was asked for; else the session's own decides.
    pub(super) agent: Option<AgentId>,
    pub(super) facts: Facts,
    pub(super) agents: Vec<AgentRow>,
    pub(super) composer: Composer,
    pub(super) transcript: Transcript,
    /// Runs of the session that are not over, in the order of their messages.
    pub(super) runs: Vec<Run>,
    /// Runs of the session that were started elsewhere and are being asked about.
    pub(super) looking: Vec<RunId>,
    /// Messages that may have arrived although their answer was lost; their texts are back in the input.
    pub(super) doubts: Vec<(RunId, String)>,
    /// Runs that are over and whose receipt may be amended, and until when they are asked about.
    pub(super) unsettled: Vec<(RunId, Moment)>,
    /// Messages that were on their way when their session was left.
    pub(super) left_behind: Vec<LeftBehind>,
    /// Withdrawn messages whose texts are back in the input already: two answers may name the same one.
    pub(super) returned: BTreeSet<RunId>,
    pub(super) policy: OnBusy,
    pub(super) stop: Option<Stop>,
    pub(super) leaving: Leaving,
    pub(super) menu: Option<Menu>,
    pub(super) completion: Completion,
    pub(super) approvals: Vec<Asked>,
    pub(super) shown: Option<Shown>,
    /// The approval that a command in the input is about: the one that was shown when its typing began.
    pub(super) meant: Option<String>,
    pub(super) connection: Connection,
    pub(super) hold: Hold,
    pub(super) notice: Option<Notice>,
    pub(super) details: Details,
    pub(super) pages: Pages,
    pub(super) polls: Polls,
}

/// Where new names come from: ids of runs and keys of sessions are made here, so that a message can be sent again, and its
/// run be stopped before the daemon has said that it took it.
#[derive(Debug)]
pub(crate) struct Names {
    /// Unique in the world; ids of runs begin with it.
    pub(crate) unique: String,
    /// Keys of new sessions begin with it.
    pub(crate) session: String,
    pub(crate) sessions: u32,
    pub(crate) runs: u32,
}

/// What the header says about the session.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) agent: Option<AgentId>,
    pub(super) model: Option<String>,
    /// False until the daemon knows the session.
    pub(super) exists: bool,
}

/// A run that is not over.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) id: RunId,
    pub(super) text: String,
    pub(super) state: RunState,
    pub(super) since: Moment,
    /// Number of the last event.
    pub(super) seq: u64,
    pub(super) followed: bool,
    /// True for what was sent from here.
    pub(super) own: bool,
}

/// A message that was on its way when its session was left.
#[derive(Debug)]
pub(super) struct LeftBehind {
    pub(super) run: RunId,
    pub(super) session: SessionKey,
    pub(super) text: String,
    /// True when its run was told to stop before.
    pub(super) stopped: bool,
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunState {
    /// The daemon has not answered yet.
    Sending,
    Queued,
    Running,
    Ending,
}

/// A stop that is not over.
#[derive(Debug)]
pub(super) struct Stop {
    pub(super) since: Moment,
    pub(super) force: bool,
    /// Runs that it covers and that are not over, with what they hold as far as it is known.
    pub(super) runs: BTreeMap<RunId, Holding>,
    /// Why the daemon could not be asked.
    pub(super) problem: Option<String>,
    /// What was asked for it and is not answered yet.
    pub(super) out: Vec<StopAsked>,
    /// Texts of messages that were withdrawn before the answer came, which brings them in their order.
    pub(super) unreturned: Vec<(RunId, String)>,
}

/// Something that was asked for a stop. Each travels on a connection of its own, so that one answer says nothing about another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StopAsked {
    Session,
    Run(RunId),
    /// A stop text, which travels as a message.
    Text(RunId),
}

impl StopAsked {
    /// True when the answer names the messages that were withdrawn.
    pub(super) fn brings_texts(&self) -> bool {
        !matches!(self, Self::Run(_))
    }
}

impl Stop {
    pub(super) fn new(since: Moment) -> Self {
        let (runs, out, unreturned) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { since, force: false, runs, problem: None, out, unreturned }
    }

    /// True while an answer may still bring the texts of withdrawn messages.
    pub(super) fn awaits_texts(&self) -> bool {
        self.out.iter().any(StopAsked::brings_texts)
    }

    /// True when nothing is left of it. Whether the daemon could be asked does not matter any more then.
    pub(super) fn is_over(&self) -> bool {
        self.runs.is_empty() && self.out.is_empty()
    }
}

/// What a run holds while it is stopped.
#[derive(Debug, Default)]
pub(super) struct Holding {
    pub(super) delivered: bool,
    pub(super) resources: Vec<Resource>,
}

/// Whether the program is about to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Leaving {
    #[default]
    No,
    /// As soon as everything that is being stopped is over.
    WhenStopped,
}

/// What is open above the input and takes the keys.
#[derive(Debug)]
pub(super) enum Menu {
    Help,
    /// Asked whether to leave.
    Leave,
    Picker(Picker),
}

/// A list to choose from.
#[derive(Debug)]
pub(super) struct Picker {
    pub(super) list: PickList,
    pub(super) chosen: Chosen,
    /// Runs that were told to stop from here.
    pub(super) stopped: Vec<RunId>,
    /// Typed letters narrow the list.
    pub(super) filter: String,
}

/// Which line of a picker is chosen: by what it is and not by its place, because a list changes under the hand.
#[derive(Debug)]
pub(super) enum Chosen {
    /// The first, as soon as there is one.
    First,
    /// This one, last seen at this place. Once it is gone nothing is chosen, until a key chooses again.
    Line(Pick, usize),
}

/// The lists.
#[derive(Debug)]
pub(super) enum PickList {
    Sessions(Option<Vec<SessionRow>>),
    Runs(Option<Vec<RunView>>),
    Agents,
    Models,
}

/// The menu of slash commands: follows from the input, but for these two.
#[derive(Debug, Default)]
pub(super) struct Completion {
    pub(super) chosen: usize,
    /// The input for which it was closed.
    pub(super) closed_for: Option<String>,
}

/// An approval that waits.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) row: ApprovalRow,
    pub(super) answered: bool,
}

/// The approval that is on the screen, which is not every one that waits: an answer is for what could be read.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) id: String,
    /// When it came to be seen: it may have waited behind another one, or under a menu.
    pub(super) since: Moment,
}

/// Whether the daemon answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Connection {
    /// Nothing has been heard yet.
    Connecting,
    Live,
    Lost {
        since: Moment,
        cause: String,
    },
}

/// A word about what was just done; it goes by itself.
#[derive(Debug)]
pub(super) struct Notice {
    pub(super) tone: Tone,
    pub(super) text: String,
    pub(super) until: Moment,
}

/// Whether output and thinking are unfolded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Details {
    #[default]
    Folded,
    Open,
}

/// How much of the history has been read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pages {
    /// Where the next older page begins.
    pub(super) next: Option<String>,
    pub(super) begun: bool,
    pub(super) asked: bool,
}

impl Chat {
    /// A chat with this session; nothing has been asked yet.
    pub(crate) fn new(texts: Texts, names: Names, session: SessionKey, agent: Option<AgentId>) -> Self {
        Self {
            texts,
            now: Moment::default(),
            names,
            session,
            agent,
            facts: Facts::default(),
            agents: Vec::new(),
            composer: Composer::default(),
            transcript: Transcript::default(),
            runs: Vec::new(),
            looking: Vec::new(),
            doubts: Vec::new(),
            unsettled: Vec::new(),
            left_behind: Vec::new(),
            returned: BTreeSet::new(),
            policy: OnBusy::Queue,
            stop: None,
            leaving: Leaving::No,
            menu: None,
            completion: Completion::default(),
            approvals: Vec::new(),
            shown: None,
            meant: None,
            connection: Connection::Connecting,
            hold: Hold::default(),
            notice: None,
            details: Details::default(),
            pages: Pages::default(),
            polls: Polls::default(),
        }
    }

    /// True while a run of the session is not over, a message on its way included.
    pub(crate) fn is_active(&self) -> bool {
        !self.runs.is_empty()
    }

    /// The session's key.
    pub(crate) fn session(&self) -> &SessionKey {
        &self.session
    }

    /// True once something was said in the session.
    pub(crate) fn has_session(&self) -> bool {
        self.facts.exists || self.is_active()
    }

    pub(crate) fn details(&self) -> Details {
        self.details
    }

    pub(super) fn run_mut(&mut self, id: &RunId) -> Option<&mut Run> {
        self.runs.iter_mut().find(|run| run.id == *id)
    }

    /// The agent that answers, as far as it is known.
    pub(super) fn agent_in_force(&self) -> Option<&AgentId> {
        let default = || self.agents.iter().find(|row| row.default).map(|row| &row.id);
        self.agent.as_ref().or(self.facts.agent.as_ref()).or_else(default)
    }

    /// The model that answers, as far as it is known.
    pub(super) fn model_in_force(&self) -> Option<&str> {
        let agent = self.agent_in_force();
        let of_agent = || self.agents.iter().find(|row| Some(&row.id) == agent).map(|row| row.model.as_str());
        match (&self.agent, &self.facts.model) {
            // The session's model belongs to the session's agent.
            (Some(chosen), _) if self.facts.agent.as_ref() != Some(chosen) => of_agent(),
            (_, model) => model.as_deref().or_else(of_agent),
        }
    }

    /// The first approval that waits for an answer.
    pub(super) fn approval(&self) -> Option<&Asked> {
        self.approvals.iter().find(|asked| !asked.answered)
    }
}

impl Names {
    pub(super) fn run(&mut self) -> Option<RunId> {
        self.runs += 1;
        RunId::parse(format!("{}.{}", self.unique, self.runs)).ok()
    }

    /// The key of the next new session.
    pub(crate) fn session(&mut self) -> Result<SessionKey, quell_protocol::BadId> {
        self.sessions += 1;
        match self.sessions {
            1 => SessionKey::parse(&self.session),
            nth => SessionKey::parse(format!("{}-{nth}", self.session)),
        }
    }
}
