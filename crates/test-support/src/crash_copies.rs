//! Test support: a second engine on a copy of the data, as after the death of the first one.

use quell_kernel::turn::PartialPolicy;

use crate::prelude::*;

/// The leftovers of a receipt that certainly belong to this run. Tests run in parallel, so a receipt may also name what
/// another test's dead daemon left.
pub fn certain_leftovers(leftovers: &Value) -> Vec<&str> {
    let names = leftovers.as_array().unwrap().iter().map(|left| left["name"].as_str().unwrap());
    names.filter(|name| !name.contains("may be of this run")).collect()
}

/// Starts a second engine on a copy of the data directory: what a daemon that dies now would leave.
pub async fn start_on_copy(test: &TestEngine) -> TestEngine {
    start_on_changed_copy(test, |_| {}).await
}

/// As [`start_on_copy`], on a database that was changed before the start.
pub async fn start_on_changed_copy(test: &TestEngine, change: impl FnOnce(&OtherProgram)) -> TestEngine {
    let (data, database) = (copy_data_dir(test.test_dir.path()), test.database.copy());
    change(&database.connect(data.path()));
    let dir = TestDir::Temporary(data);
    TestEngine::start_on_database(dir, database, ProcessLock::shared().await, keep_partial_text).await
}

fn keep_partial_text(config: &mut EngineConfig) {
    config.agents.values_mut().for_each(|agent: &mut AgentConfig| agent.partial = PartialPolicy::Keep);
}
