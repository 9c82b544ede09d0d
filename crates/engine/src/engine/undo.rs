//! Undo the file changes of a run.
//!
//! All files are checked before the first one is written. The undo holds the lock of each workdir meanwhile, as every
//! call does that changes files there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use quell_kernel::file_undo::{CurrentFile, FileUndo, HashedChange, UndoConflict, UndoForce, plan_file_undo};
use quell_kernel::turn::Turn;
use quell_mcp::server_of_tool;
use quell_protocol::api::RunView;
use quell_protocol::audit::Action;
use quell_protocol::undo::{UndoReport, UndoneChange, UndoneFile};
use quell_protocol::{CallEnd, ErrorCode, NodeName, RunId};
use quell_scope::{Point, Scope};
use quell_store::{StoreError, StoredFileChange};
use quell_tools::{RestoredFile, UndoPlace, WorkdirGuard};

use super::{AuditAction, Caller, Engine, SessionError};

/// Files that an error names.
const MAX_NAMED_FILES: usize = 20;
/// Steps from a sub-run to the root of its tree.
const MAX_DEPTH: usize = 64;

/// Tools with effects that no undo covers, and how a report calls them.
const NOT_COVERED_TOOLS: &[(&str, &str)] = &[
    ("shell", "commands (`shell`)"),
    ("process", "background commands (`process`)"),
    ("spawn_agent", "commands of sub-agents (`spawn_agent`)"),
    ("send_message", "commands of sub-agents (`send_message`)"),
];

/// Why nothing, or not everything, was undone.
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    #[error("there is no run {0:?}; `quell runs` lists them")]
    UnknownRun(RunId),
    #[error("the run {0} is still active; stop it first: `quell stop {0}`")]
    RunActive(RunId),
    #[error(
        "the run {0} is active in the same session or the same working directory; wait for its end, or stop it first: \
         `quell stop {0}`"
    )]
    OtherRunActive(RunId),
    #[error("the file changes of this run were undone already, at {0}")]
    AlreadyUndone(String),
    #[error(
        "nothing was undone, because these files are not what the run has written: {}; look at them, and force the undo \
         (`--force`) if their changes since may be lost",
        list_files(.0)
    )]
    FilesChanged(Vec<String>),
    #[error(
        "nothing was undone, because the files of the run {run} are on the node {node}, which is not in the cluster now; start \
         it again, and then repeat the undo"
    )]
    OtherNode { run: RunId, node: NodeName },
    #[error("the undo stopped at {path}: {problem}; {done} files were put back before; correct that and undo again")]
    Unfinished { path: String, problem: String, done: usize },
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl UndoError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownRun(_) => ErrorCode::RunNotFound,
            Self::RunActive(_) | Self::OtherRunActive(_) => ErrorCode::Busy,
            Self::AlreadyUndone(_) => ErrorCode::Conflict,
            Self::FilesChanged(_) => ErrorCode::FilesChanged,
            Self::OtherNode { .. } => ErrorCode::NodeUnreachable,
            Self::Unfinished { .. } => ErrorCode::Internal,
            Self::Session(_) => ErrorCode::Forbidden,
            Self::Store(_) => ErrorCode::StoreUnavailable,
        }
    }
}

fn list_files(files: &[String]) -> String {
    let more = files.len().saturating_sub(MAX_NAMED_FILES);
    let named = files.iter().take(MAX_NAMED_FILES).cloned().collect::<Vec<_>>().join(", ");
    if more == 0 { named } else { format!("{named}, and {more} more") }
}

/// The stored changes of one file, in order.
struct ChangedPlace {
    place: UndoPlace,
    changes: Vec<StoredFileChange>,
}

/// What is done with one file.
struct PlannedUndo {
    place: UndoPlace,
    current: CurrentFile,
    undo: FileUndo,
    /// The permission bits from before the run.
    mode: u32,
}

impl Engine {
    /// Puts the files back that the file tools of an ended run and its sub-runs have changed, all or none.
    ///
    /// # Errors
    /// [`UndoError`]: the caller may not do that, a run is active, or files were changed since.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn undo_run(&self, caller: &Caller, id: &RunId, force: UndoForce) -> Result<UndoReport, UndoError> {
        let run = self.find_run(id).await?.ok_or_else(|| UndoError::UnknownRun(id.clone()))?;
        self.refresh_owner(&run.session_key).await?;
        self.check_owner(caller, &run.session_key)?;
        let (engine, by) = (self.clone(), caller.clone());
        let done = self.run_detached(async move { engine.undo_run_as(&by, &run, force).await });
        done.await.unwrap_or(Err(StoreError::Closed.into()))
    }

    async fn undo_run_as(&self, caller: &Caller, run: &RunView, force: UndoForce) -> Result<UndoReport, UndoError> {
        let rows = self.changed_rows(run).await?;
        let node = node_of(&rows).cloned();
        let places = changed_places(rows)?;
        if let (Some(node), Some(cluster)) = (node, self.cluster())
            && node != *cluster.node()
        {
            return Err(UndoError::OtherNode { run: run.run_id.clone(), node });
        }
        let workdirs: BTreeSet<PathBuf> = places.iter().map(|place| place.place.workdir.clone()).collect();
        // Twice: an active run is not waited for, and one that began during the wait for the locks is seen, too.
        self.check_no_run_is_active(run, &workdirs)?;
        let _guards = self.lock_workdirs(&workdirs).await;
        self.check_no_run_is_active(run, &workdirs)?;
        let numbers: Vec<i64> = places.iter().flat_map(|place| place.changes.iter().map(|row| row.number)).collect();
        let planned = self.plan_undo(places, force).await.ok_or(StoreError::Closed)?;
        let conflicts: Vec<String> = planned.iter().filter_map(conflict_text).collect();
        if !conflicts.is_empty() {
            return Err(UndoError::FilesChanged(conflicts));
        }
        let mut report = UndoReport {
            run_id: run.run_id.clone(),
            files: Vec::new(),
            unchanged: Vec::new(),
            not_covered: self.uncovered_calls(&run.run_id).await?,
        };
        let finished = self.restore_files(planned, &mut report).await;
        if !report.files.is_empty() {
            let detail = format!("files: {}", report.files.len());
            self.audit(caller, AuditAction::on_target(Action::UndoRun, "run", run.run_id.as_str()).with_detail(detail));
            tracing::info!(run = %run.run_id, principal = %caller.principal, files = report.files.len(), "file changes undone");
        }
        finished?;
        if !numbers.is_empty() {
            let at = self.inner().clock.rfc3339(self.inner().clock.now());
            self.inner().store.file_changes().mark_undone(numbers, at).await?;
        }
        Ok(report)
    }

    /// The node of the cluster that has the files which the run has changed; `None` if no node was noted.
    ///
    /// # Errors
    /// The store's error.
    pub async fn find_node_of_changes(&self, run: &RunView) -> Result<Option<NodeName>, StoreError> {
        Ok(node_of(&self.changed_rows(run).await?).cloned())
    }

    /// All changes of the run and its sub-runs, in order.
    async fn changed_rows(&self, run: &RunView) -> Result<Vec<StoredFileChange>, StoreError> {
        let root = self.root_of(run).await?;
        let mut changes = self.inner().store.file_changes().list_tree(root).await?;
        changes.retain(|row| row.change.lineage.contains(&run.run_id));
        Ok(changes)
    }

    async fn root_of(&self, run: &RunView) -> Result<RunId, StoreError> {
        let (mut root, mut parent) = (run.run_id.clone(), run.parent.clone());
        for _ in 0..MAX_DEPTH {
            let Some(id) = parent else { break };
            parent = self.find_run(&id).await?.and_then(|above| above.parent);
            root = id;
        }
        Ok(root)
    }

    fn check_no_run_is_active(&self, run: &RunView, workdirs: &BTreeSet<PathBuf>) -> Result<(), UndoError> {
        let agents = self.inner().services.agents.snapshot();
        for live_run in self.inner().runs.active_runs() {
            let other = &live_run.run;
            if other.id == run.run_id {
                return Err(UndoError::RunActive(other.id.clone()));
            }
            let is_in_workdir = agents.get(&other.agent).is_some_and(|agent| workdirs.contains(&agent.workdir));
            if other.session == run.session_key || is_in_workdir {
                return Err(UndoError::OtherRunActive(other.id.clone()));
            }
        }
        Ok(())
    }

    /// In their order, so that two undos cannot wait for each other.
    async fn lock_workdirs(&self, workdirs: &BTreeSet<PathBuf>) -> Vec<WorkdirGuard> {
        let mut guards = Vec::new();
        for workdir in workdirs {
            guards.push(self.inner().services.toolbox.workdir_locks().lock(workdir).await);
        }
        guards
    }

    /// `None` if the daemon is closing.
    async fn plan_undo(&self, places: Vec<ChangedPlace>, force: UndoForce) -> Option<Vec<PlannedUndo>> {
        let protected = self.inner().services.toolbox.protected_paths().clone();
        let plan = move || {
            let plan_place = |ChangedPlace { place, changes }: ChangedPlace| {
                let current = place.current_file(&protected);
                let mode =
                    changes.first().and_then(|row| row.change.before.as_ref()).map_or(0o644, |before| before.mode);
                let hashed: Vec<HashedChange> = changes.iter().map(hashed_change).collect();
                let undo = plan_file_undo(&hashed, &current, force);
                PlannedUndo { place, current, undo, mode }
            };
            places.into_iter().map(plan_place).collect()
        };
        self.run_on_file_thread("files of an undo", plan).await
    }

    /// Puts the files back one after the other, and stops at the first that fails.
    async fn restore_files(&self, planned: Vec<PlannedUndo>, report: &mut UndoReport) -> Result<(), UndoError> {
        for PlannedUndo { place, current, undo, mode } in planned {
            let path = place.path.to_string_lossy().into_owned();
            let (restored, change) = match undo {
                FileUndo::AsBefore | FileUndo::Conflict(_) => {
                    report.unchanged.push(path);
                    continue;
                }
                FileUndo::NotKept => {
                    report.not_covered.push(format!("{path}: it was too large to be kept"));
                    continue;
                }
                FileUndo::Remove => (RestoredFile::Absent, UndoneChange::Removed),
                FileUndo::Restore(number) => match self.inner().store.file_changes().read_content(number).await? {
                    Some(content) => (RestoredFile::Present { content, mode }, UndoneChange::Restored),
                    None => {
                        report.not_covered.push(format!("{path}: its content is not kept"));
                        continue;
                    }
                },
            };
            let protected = self.inner().services.toolbox.protected_paths().clone();
            let restore = move || place.restore(&current, &restored, &protected);
            match self.run_on_file_thread("file of an undo", restore).await {
                Some(Ok(())) => report.files.push(UndoneFile { path, change }),
                Some(Err(problem)) => {
                    return Err(UndoError::Unfinished { path, problem, done: report.files.len() });
                }
                None => return Err(StoreError::Closed.into()),
            }
        }
        Ok(())
    }

    async fn run_on_file_thread<T: Send + 'static>(
        &self,
        label: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let scope = Scope::new(self.inner().clock, self.inner().config.probe.clone());
        // waits: no run waits here, and nothing cancels it.
        let done = scope.blocking(Point::Blocking, label, move |_| work()).await;
        scope.close().await;
        done.ok()
    }

    /// The calls of the run whose effects no undo covers.
    async fn uncovered_calls(&self, run: &RunId) -> Result<Vec<String>, StoreError> {
        let (_, turn) = self.inner().store.journal().read(run.clone()).await?;
        let Some(turn) = turn.and_then(|text| Turn::from_stored(&text).ok()) else { return Ok(Vec::new()) };
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for (_, tool, result) in turn.results() {
            let has_run = match result.end {
                CallEnd::Ok | CallEnd::Error | CallEnd::Stopped => true,
                CallEnd::NotStarted | CallEnd::Denied => false,
            };
            let known = NOT_COVERED_TOOLS.iter().find(|(name, _)| *name == tool).map(|(_, about)| (*about).to_owned());
            let about =
                known.or_else(|| server_of_tool(tool).map(|server| format!("calls of the MCP server {server}")));
            if let Some(about) = about.filter(|_| has_run) {
                *counts.entry(about).or_default() += 1;
            }
        }
        Ok(counts.into_iter().map(|(about, count)| format!("{about}: {count}")).collect())
    }
}

/// All files of a run are on one node: its session and its sub-runs do not move while it works.
fn node_of(changes: &[StoredFileChange]) -> Option<&NodeName> {
    changes.iter().find_map(|row| row.change.node.as_ref())
}

/// The changes that were not undone, by file.
fn changed_places(mut changes: Vec<StoredFileChange>) -> Result<Vec<ChangedPlace>, UndoError> {
    let undone_at = changes.iter().find_map(|row| row.undone_at.clone());
    changes.retain(|row| row.undone_at.is_none());
    if let Some(at) = undone_at.filter(|_| changes.is_empty()) {
        return Err(UndoError::AlreadyUndone(at));
    }
    let mut places: BTreeMap<(String, String), ChangedPlace> = BTreeMap::new();
    for row in changes {
        let key = (row.change.workdir.clone(), row.change.path.clone());
        let place = UndoPlace {
            workdir: row.change.workdir.clone().into(),
            path: row.change.path.clone().into(),
            owner: row.change.owner,
        };
        places.entry(key).or_insert(ChangedPlace { place, changes: Vec::new() }).changes.push(row);
    }
    Ok(places.into_values().collect())
}

fn hashed_change(row: &StoredFileChange) -> HashedChange {
    HashedChange {
        number: row.number,
        before: row.change.before.as_ref().map(|before| before.sha256.clone()),
        after: row.change.after_sha256.clone(),
        has_content: row.has_content,
    }
}

fn conflict_text(planned: &PlannedUndo) -> Option<String> {
    let FileUndo::Conflict(conflict) = &planned.undo else { return None };
    let path = planned.place.path.display();
    Some(match conflict {
        UndoConflict::ChangedSince => format!("{path} (changed since)"),
        UndoConflict::ChangedBetween => format!("{path} (changed between two writes of the run)"),
        UndoConflict::Unreadable(reason) => format!("{path} ({reason})"),
    })
}
