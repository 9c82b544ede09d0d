//! The tools as the agent loop uses them: called through the tool set, in a scope, on a real file system.

mod confinement;
mod editing;
mod fetching;
mod files;
mod listing;
mod new_tool;
mod stopping;

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quell_kernel::network_access::NetworkAccess;
use quell_kernel::{StopTimeouts, ToolSpec};
use quell_process::{Isolate, OutputSink, WardenExe, Wardens};
use quell_protocol::{CallEnd, Principal, RunId, SessionKey, ToolOutputStream};
use quell_scope::clock::Clock;
use quell_scope::{Cancelled, Point, PointProbe, Release, Scope};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::background::{BackgroundWork, RunIdentity};
use crate::file_edit::execute_without_backup;
use crate::file_tool::{FileTool as _, FileToolContext, FileToolError, StopFlag};

/// Long enough for the slowest machine; no passing test waits that long.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A workdir with a file outside of it, a toolbox, and a scope.
struct ToolFixture {
    dir: TempDir,
    toolbox: Toolbox,
    scope: Scope,
    limit: usize,
    backup: RecordingBackup,
}

/// What was kept before it was changed.
#[derive(Default)]
struct RecordingBackup {
    files: Mutex<Vec<ChangedFile>>,
    problem: Option<String>,
    /// Called instead.
    other: Option<Box<dyn FileBackup>>,
}

impl FileBackup for RecordingBackup {
    fn keep_files(&self, files: Vec<ChangedFile>) -> BackupFuture<'_> {
        if let Some(other) = &self.other {
            return other.keep_files(files);
        }
        Box::pin(async move {
            self.files.lock().unwrap().extend(files);
            self.problem.clone().map_or(Ok(()), Err)
        })
    }
}

struct NoOutput;

impl OutputSink for NoOutput {
    fn output(&mut self, _: ToolOutputStream, text: &str) {
        panic!("these tools print nothing, got {text:?}");
    }
}

impl ToolFixture {
    fn new() -> Self {
        Self::with(ToolSettings::default())
    }

    fn with(settings: ToolSettings) -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::create_dir(dir.path().join("work")).unwrap();
        std::fs::write(dir.path().join("secret"), "outside").unwrap();
        let scope = Scope::new(Clock::start(), PointProbe::default());
        Self { dir, toolbox: Toolbox::new(settings), scope, limit: 10_000, backup: RecordingBackup::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("work").join(name)
    }

    fn write_file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    fn read_file(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    async fn try_call(&self, tool: &str, given: Value) -> Result<ToolOutput, Cancelled> {
        let tool = BUILT_IN_TOOLS.iter().find(|known| known.definition().name == tool).unwrap();
        self.try_call_of(*tool, given).await
    }

    async fn try_call_of(&self, tool: &dyn Tool, given: Value) -> Result<ToolOutput, Cancelled> {
        let wardens = Wardens::new(WardenExe::ThisProcess, StopTimeouts::default()).unwrap();
        let owner = RunIdentity {
            session: SessionKey::parse("session").unwrap(),
            run: RunId::parse("run").unwrap(),
            principal: Principal::parse("alice").unwrap(),
        };
        let background = BackgroundWork::new(Clock::start(), 1, |_| {});
        let workdir = self.path("");
        let mut cx = ToolContext {
            scope: &self.scope,
            owner: &owner,
            toolbox: &self.toolbox,
            background: &background,
            workdir: &workdir,
            wardens: &wardens,
            environment: &[],
            output_limit: self.limit,
            shell_timeout_s: 600,
            isolate: Isolate::default(),
            sandbox: None,
            session_network: None,
            may_escalate: false,
            is_let_out: false,
            network: &NetworkAccess::On,
            file_backup: &self.backup,
            sink: &mut NoOutput,
        };
        // As a trait object the future must be `Send`, which the agent loop needs.
        let call: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(call_tool(tool, &given, &mut cx));
        let output = tokio::time::timeout(TEST_TIMEOUT, call).await.expect("the call ends")?;
        assert!(output.text.len() <= self.limit, "{} bytes", output.text.len());
        Ok(output)
    }

    /// The text of a call that succeeds.
    async fn call_ok(&self, tool: &str, given: Value) -> String {
        let output = self.try_call(tool, given).await.unwrap();
        assert_eq!(output.end, CallEnd::Ok, "{}", output.text);
        output.text
    }

    /// The text of a call that fails.
    async fn call_error(&self, tool: &str, given: Value) -> String {
        let output = self.try_call(tool, given).await.unwrap();
        assert_eq!(output.end, CallEnd::Error, "{}", output.text);
        output.text
    }

    fn file_context(&self) -> FileToolContext {
        FileToolContext {
            workdir: self.path(""),
            unconfined: self.toolbox.settings.unconfined,
            follows_links: true,
            owner: None,
            is_read_only: false,
            output_limit: self.limit,
            protected: self.toolbox.settings.protected.clone(),
        }
    }

    /// The entries of the workdir, by name.
    fn file_names(&self) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(self.path(""))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn make_fifo(path: &Path) {
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(std::fs::metadata(path).unwrap().file_type().is_fifo());
}

#[tokio::test]
async fn bad_arguments_are_explained_and_nothing_happens() {
    let fixture = ToolFixture::new();
    let text = fixture.call_error("write_file", json!({"path": "a", "content": "x", "mode": 7})).await;
    assert!(text.contains(r#"there is no field "mode"; the fields are `content`, `path`"#), "{text}");
    assert_eq!(fixture.file_names(), [""; 0]);
    assert_eq!(fixture.scope.ledger().rows(), []);
}

/// The descriptions of all tools for an agent whose commands may take so many seconds.
fn specs(shell_timeout_s: u64) -> Vec<ToolSpec> {
    let agent = AgentFacts { shell_timeout_s, ..AgentFacts::default() };
    BUILT_IN_TOOLS.iter().filter_map(|tool| (tool.definition().spec_for)(&agent)).collect()
}

#[test]
fn the_model_is_told_how_long_a_command_may_take() {
    let described =
        |seconds| specs(seconds).into_iter().find(|spec| spec.name == "shell").map(|spec| spec.description).unwrap();
    assert!(described(600).contains("longer than 600 s is ended: give `timeout_s`"), "{}", described(600));
    assert!(described(7).contains("longer than 7 s"), "{}", described(7));
}

#[test]
fn every_tool_describes_its_arguments() {
    for spec in specs(600) {
        assert!(BUILT_IN_TOOLS.iter().any(|tool| tool.definition().name == spec.name), "{}", spec.name);
        assert!(!spec.description.is_empty() && !spec.description.contains("  "), "{}", spec.description);
        assert_eq!(spec.parameters["type"], "object", "{}", spec.name);
        assert_eq!(spec.parameters["additionalProperties"], false, "{}", spec.name);
        for (name, property) in spec.parameters["properties"].as_object().unwrap() {
            assert!(property["type"].is_string() && property["description"].is_string(), "{} {name}", spec.name);
        }
    }
}

#[tokio::test]
async fn examples_in_errors_are_right() {
    let fixture = ToolFixture::new();
    for spec in specs(600) {
        let text = fixture.call_error(&spec.name, json!([])).await;
        let Some((_, example)) = text.split_once("A right call looks like this: ") else { panic!("{text}") };
        let example: Value = serde_json::from_str(example).unwrap();
        for name in example.as_object().unwrap().keys() {
            assert!(spec.parameters["properties"].get(name).is_some(), "{} {name}", spec.name);
        }
        for name in spec.parameters["required"].as_array().into_iter().flatten() {
            assert!(example.get(name.as_str().unwrap()).is_some(), "{} {name}", spec.name);
        }
    }
}
