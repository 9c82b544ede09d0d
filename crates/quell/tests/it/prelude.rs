//! What most integration tests use: the scripted model, an engine, a server or a daemon under test, and their callers.

pub(crate) use std::path::{Path, PathBuf};
pub(crate) use std::sync::Arc;
pub(crate) use std::time::Duration;

pub(crate) use quell_engine::EngineConfig;
pub(crate) use quell_engine::agent::AgentConfig;
pub(crate) use quell_engine::engine::Submission;
pub(crate) use quell_engine::live_run::RunProgress;
pub(crate) use quell_kernel::StopLevel;
pub(crate) use quell_kernel::registry::StopScope;
pub(crate) use quell_protocol::api::RunView;
pub(crate) use quell_protocol::{AgentId, CallEnd, EventKind, ResourceKind, RunId, Rung, StopReason, Verdict};
pub(crate) use quell_scope::{Point, Release};
pub(crate) use quell_store::test_support::OtherProgram;
pub(crate) use quell_testkit::commands::{self, ProcessMarker};
pub(crate) use quell_testkit::daemon::{DaemonHome, TestApiClient, TestApiResponse, TestDaemon, poll_until};
pub(crate) use quell_testkit::machine_speed::scaled_limit;
pub(crate) use quell_testkit::model::{ModelRequestHandle, ScriptedStream};
pub(crate) use quell_testkit::{ScriptedModel, ScriptedResponse, hostile, leaks};
pub(crate) use reqwest::Method;
pub(crate) use rstest::rstest;
pub(crate) use serde_json::{Value, json};

pub(crate) use crate::test_daemon::{
    QuellCliOutput, config_toml, provider_toml, quell_exe, run_cli, run_to_exit, start_daemon, write_shell_program,
};
pub(crate) use crate::test_engine::{
    NoticeRecorder, ProcessLock, TestDataDir, TestDir, TestEngine, WAIT_TIMEOUT, abort_reason, add_anthropic_provider,
    alice, bob, copy_data_dir, failure_of, messages_as_text, parse_agent_id, parse_run_id, parse_session_key,
    receipt_of, root, run_stop_scope, stop_ask, submission, submission_as, without_cache_marks,
};
pub(crate) use crate::test_engine::{background_call, list_files_call, shell_call, without_time};
pub(crate) use crate::test_server::{TestServer, assert_problem, percent_encode};
pub(crate) use crate::test_server::{assert_fields, gated_response, send_text};
pub(crate) use crate::test_store::{StoreKind, TestDatabase};
