//! Fixture for the shell tool: the workdir, wardens, scope and run id of one test, and calls of the tool.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use quell_kernel::StopTimeouts;
use quell_kernel::network_access::NetworkAccess;
use quell_process::{Isolate, OutputSink, RUN_ID_VARIABLE, WardenExe, Wardens};
use quell_protocol::{Principal, RunId, SessionKey, ToolOutputStream};
use quell_scope::clock::Clock;
use quell_scope::{Cancelled, PointProbe, Scope};
use quell_tools::background::{BackgroundWork, RunIdentity};
use quell_tools::{
    BUILT_IN_TOOLS, BackupFuture, ChangedFile, FileBackup, ToolContext, ToolOutput, ToolSettings, Toolbox, call_tool,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::watch;

pub(crate) struct ShellFixture {
    wardens: Wardens,
    pub(crate) scope: Scope,
    run_id: String,
    _directory: TempDir,
    pub(crate) workdir: PathBuf,
    /// The timeout of a call that gives none.
    pub(crate) shell_timeout_s: u64,
    /// The output as it arrived.
    pub(crate) seen: watch::Sender<String>,
}

struct SeenOutput<'a>(&'a watch::Sender<String>);

impl OutputSink for SeenOutput<'_> {
    fn output(&mut self, _: ToolOutputStream, text: &str) {
        self.0.send_modify(|seen| seen.push_str(text));
    }
}

impl ShellFixture {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let warden = WardenExe::Path(env!("CARGO_BIN_EXE_tools-test-warden").into());
        let directory = tempfile::tempdir().unwrap();
        Self {
            wardens: Wardens::new(warden, StopTimeouts::default()).unwrap(),
            scope: Scope::new(Clock::start(), PointProbe::default()),
            run_id: format!("shell-test-{}-{number}", std::process::id()),
            workdir: directory.path().to_owned(),
            _directory: directory,
            shell_timeout_s: 600,
            seen: watch::Sender::default(),
        }
    }

    pub(crate) async fn call(&self, args: Value) -> ToolOutput {
        self.try_call(args).await.unwrap()
    }

    pub(crate) async fn try_call(&self, args: Value) -> Result<ToolOutput, Cancelled> {
        let path = std::env::var_os("PATH").unwrap();
        let environment =
            [("PATH".into(), path), ("TERM".into(), "xterm".into()), ("COLORTERM".into(), "truecolor".into())];
        let owner = RunIdentity {
            session: SessionKey::parse("session").unwrap(),
            run: RunId::parse(self.run_id.clone()).unwrap(),
            principal: Principal::parse("alice").unwrap(),
        };
        let background = BackgroundWork::new(Clock::start(), 1, |_| {});
        let toolbox = Toolbox::new(ToolSettings::default());
        let mut cx = ToolContext {
            scope: &self.scope,
            owner: &owner,
            toolbox: &toolbox,
            background: &background,
            workdir: &self.workdir,
            wardens: &self.wardens,
            environment: &environment,
            output_limit: 1000,
            shell_timeout_s: self.shell_timeout_s,
            isolate: Isolate::None,
            sandbox: None,
            session_network: None,
            may_escalate: false,
            is_let_out: false,
            network: &NetworkAccess::On,
            file_backup: &NoBackup,
            sink: &mut SeenOutput(&self.seen),
        };
        let shell = BUILT_IN_TOOLS.iter().find(|tool| tool.definition().name == "shell").unwrap();
        let output = call_tool(*shell, &args, &mut cx).await;
        self.assert_gone();
        output
    }

    /// Asserts that no process has the run's id in its environment and that the ledger is empty.
    fn assert_gone(&self) {
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

/// These tests change no files with file tools.
struct NoBackup;

impl FileBackup for NoBackup {
    fn keep_files(&self, _: Vec<ChangedFile>) -> BackupFuture<'_> {
        Box::pin(async { Err("these tests keep no files".to_owned()) })
    }
}
