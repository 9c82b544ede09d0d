//! Fixture for the shell tool: wardens, a scope and a run id for the commands of one test.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use quell_kernel::StopTimeouts;
use quell_process::{RUN_ID_VARIABLE, WardenExe, Wardens};
use quell_scope::clock::Clock;
use quell_scope::{PointProbe, Scope, StopLevel};

pub(crate) struct ShellFixture {
    pub(crate) wardens: Wardens,
    pub(crate) scope: Scope,
    pub(crate) run_id: String,
}

impl ShellFixture {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let warden = WardenExe::Path(env!("CARGO_BIN_EXE_tools-test-warden").into());
        Self {
            wardens: Wardens::new(warden, StopTimeouts::default()).unwrap(),
            scope: Scope::new(Clock::start(), PointProbe::default()),
            run_id: format!("shell-test-{}-{number}", std::process::id()),
        }
    }

    pub(crate) fn stop_scope(&self, level: StopLevel) {
        match level {
            StopLevel::Gentle => self.scope.cancel(),
            StopLevel::Forced => self.scope.kill(),
        }
    }

    /// Asserts that no process has the run's id in its environment and that the ledger is empty.
    pub(crate) fn assert_gone(&self) {
        let entry = format!("{RUN_ID_VARIABLE}={}", self.run_id);
        let environments = fs::read_dir("/proc").unwrap().flatten().filter_map(|found| {
            let environment = fs::read(found.path().join("environ")).ok()?;
            environment.split(|byte| *byte == 0).any(|part| part == entry.as_bytes()).then(|| found.path())
        });
        assert_eq!(
            environments.collect::<Vec<_>>(),
            Vec::<std::path::PathBuf>::new(),
            "processes of the run are alive"
        );
        assert_eq!(self.scope.ledger().open_count(), 0, "the ledger still holds something");
    }
}
