//! What most integration tests use: the scripted model, an engine, a server or a daemon under test, and their callers.

pub use std::path::{Path, PathBuf};
pub use std::sync::Arc;
pub use std::time::Duration;

pub use quell_engine::EngineConfig;
pub use quell_engine::agent::AgentConfig;
pub use quell_engine::engine::Submission;
pub use quell_engine::live_run::RunProgress;
pub use quell_kernel::StopLevel;
pub use quell_kernel::registry::StopScope;
pub use quell_protocol::api::RunView;
pub use quell_protocol::{AgentId, CallEnd, EventKind, ResourceKind, RunId, Rung, StopReason, Verdict};
pub use quell_scope::{Point, Release};
pub use quell_store::test_support::OtherProgram;
pub use quell_testkit::commands::{self, ProcessMarker};
pub use quell_testkit::daemon::{DaemonHome, TestApiClient, TestApiResponse, TestDaemon, poll_until};
pub use quell_testkit::model::{ModelRequestHandle, ScriptedStream};
pub use quell_testkit::timing::report_time;
pub use quell_testkit::{ScriptedModel, ScriptedResponse, hostile, leaks};
pub use reqwest::Method;
pub use rstest::rstest;
pub use serde_json::{Value, json};

pub use crate::test_daemon::{
    QuellCliOutput, config_toml, provider_toml, quell_exe, run_cli, run_to_exit, start_daemon, write_shell_program,
};
pub use crate::test_engine::{
    NoticeRecorder, ProcessLock, TestDataDir, TestDir, TestEngine, WAIT_TIMEOUT, abort_reason, add_anthropic_provider,
    alice, bob, copy_data_dir, failure_of, messages_as_text, parse_agent_id, parse_run_id, parse_session_key,
    receipt_of, root, run_stop_scope, stop_ask, submission, submission_as, without_cache_marks,
};
pub use crate::test_engine::{background_call, list_files_call, shell_call, without_time};
pub use crate::test_server::{TestServer, assert_problem, percent_encode};
pub use crate::test_server::{assert_fields, gated_response, send_text};
pub use crate::test_store::{StoreKind, TestDatabase};
