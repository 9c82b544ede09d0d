//! How many messages three nodes accept beside one, each with a third of a core.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use quell_testkit::daemon::{TestApiClient, TestDaemon};
use quell_testkit::model::{ScriptedModel, ScriptedResponse};
use quell_testkit::nats::TestNats;
use quell_testkit::postgres::TestPostgres;
use serde_json::json;

use crate::cluster::{Setup, start_daemons};
use crate::report::{BenchReport, FigureTarget};

const NODES: usize = 3;
/// Three nodes accept at least so many times the messages of one.
const TARGET: f64 = 2.0;
/// Each sends a message to its own session, and the next one when the run has ended.
const CLIENTS: usize = 48;
const WARM_UP: Duration = Duration::from_secs(2);
const TIME: Duration = Duration::from_secs(10);
/// Of the time of one core, in microseconds.
const CPU_PERIOD: u32 = 100_000;
const CPU_QUOTA: u32 = CPU_PERIOD / 3;

pub(crate) async fn measure(report: &BenchReport) {
    let (Some(one), Some(three)) = (accepted_per_second(1).await, accepted_per_second(NODES).await) else {
        eprintln!(
            "the load of three nodes is not measured: no quota of a core can be set here, or a server is missing"
        );
        return;
    };
    let note = "PostgreSQL and NATS without a quota; the messages come to each node in turn";
    report.add("messages accepted, one node with a third of a core", (one, "/s"), FigureTarget::Free, note);
    report.add("messages accepted, three nodes with a third each", (three, "/s"), FigureTarget::Free, note);
    report.add("three nodes beside one", (three / one, "x"), FigureTarget::AtLeast(TARGET), "");
}

/// `None` if no quota can be set.
async fn accepted_per_second(nodes: usize) -> Option<f64> {
    let (server, nats) = TestPostgres::start().zip(TestNats::start())?;
    let model = ScriptedModel::start().await;
    model.respond_by_prompt(|_, _| ScriptedResponse::text("an answer"));
    let daemons = start_daemons(Setup::ClusterOverNats, nodes, (&server, &nats), &model.base_url()).await;
    let quotas: Vec<CpuQuota> = daemons.iter().map(TestDaemon::pid).map(CpuQuota::set).collect::<Option<_>>()?;
    let (accepted, begin) = (AtomicU64::new(0), Instant::now());
    let clients = (0..CLIENTS).map(|client| {
        let api = daemons[client % nodes].api();
        send_messages(api, format!("session {client}"), begin, &accepted)
    });
    join_all(clients).await;
    for daemon in daemons {
        daemon.stop().await;
    }
    drop(quotas);
    #[expect(clippy::cast_precision_loss, reason = "a count of messages")]
    let accepted = accepted.load(Ordering::Relaxed) as f64;
    Some(accepted / TIME.as_secs_f64())
}

async fn send_messages(api: TestApiClient, session: String, begin: Instant, accepted: &AtomicU64) {
    while begin.elapsed() < WARM_UP + TIME {
        let run = api.start_run(&session, &json!({"text": "hello"})).await;
        if (WARM_UP..WARM_UP + TIME).contains(&begin.elapsed()) {
            accepted.fetch_add(1, Ordering::Relaxed);
        }
        api.run_events(&run, 0).await.read_to_end().await;
    }
}

/// A cgroup in which a process has its share of a core. Dropped after the process has ended, it is removed.
struct CpuQuota(PathBuf);

impl CpuQuota {
    /// `None` where cgroups cannot be made, or have no controller for the time of a core.
    fn set(pid: u32) -> Option<Self> {
        let (version_1, version_2) = (Path::new("/sys/fs/cgroup/cpu"), Path::new("/sys/fs/cgroup"));
        let root = if version_1.is_dir() { version_1 } else { version_2 };
        let group = Self(root.join(format!("quell-bench-{pid}")));
        fs::create_dir(&group.0).ok()?;
        let settings = if version_1.is_dir() {
            vec![("cpu.cfs_period_us", CPU_PERIOD.to_string()), ("cpu.cfs_quota_us", CPU_QUOTA.to_string())]
        } else {
            vec![("cpu.max", format!("{CPU_QUOTA} {CPU_PERIOD}"))]
        };
        for (name, value) in settings {
            fs::write(group.0.join(name), value).ok()?;
        }
        fs::write(group.0.join("cgroup.procs"), pid.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for CpuQuota {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            eprintln!("{} was not removed: {error}", self.0.display());
        }
    }
}
