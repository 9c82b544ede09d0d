//! Stops and messages on PostgreSQL, and stops from another node of a cluster, over NATS and through the database.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use quell_testkit::daemon::{DaemonHome, TestApiClient, TestDaemon, poll_until};
use quell_testkit::model::{ScriptedModel, ScriptedResponse};
use quell_testkit::nats::TestNats;
use quell_testkit::postgres::TestPostgres;
use serde_json::json;

use crate::report::{BenchReport, FigureTarget, Quantile};
use crate::times::Times;
use crate::{baseline, config, quell};

/// The target of a stop from another node, beside two round trips over loopback, in milliseconds.
const FOREIGN_STOP_MS: f64 = 2.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setup {
    /// One daemon with SQLite.
    Sqlite,
    /// One daemon that has the database for itself.
    Postgres,
    /// Two nodes; the stop comes to the other one.
    ClusterOverNats,
    ClusterThroughDatabase,
}

pub(crate) async fn measure(report: &BenchReport, samples: usize) {
    for setup in [Setup::Sqlite, Setup::Postgres, Setup::ClusterOverNats, Setup::ClusterThroughDatabase] {
        measure_setup(report, setup, samples).await;
    }
}

async fn measure_setup(report: &BenchReport, setup: Setup, samples: usize) {
    let (name, is_cluster) = match setup {
        Setup::Sqlite => ("SQLite", false),
        Setup::Postgres => ("PostgreSQL", false),
        Setup::ClusterOverNats => ("other node, NATS", true),
        Setup::ClusterThroughDatabase => ("other node, database", true),
    };
    let Some(server) = TestPostgres::start() else { return };
    let Some(nats) = TestNats::start() else { return };
    let model = ScriptedModel::start().await;
    model.respond_by_prompt(|_, _| ScriptedResponse::tokens_forever(Duration::from_millis(20)));
    let count = if is_cluster { 2 } else { 1 };
    let daemons = start_daemons(setup, count, (&server, &nats), &model.base_url()).await;
    let (owner, asked) = (daemons[0].api(), daemons.last().map(TestDaemon::api).unwrap());
    let (mut bare, mut socket, mut accepted, mut answered) = <(Times, Times, Times, Times)>::default();
    for sample in 0..samples {
        let marker = format!("{}-{sample}", name.replace([' ', ','], "-"));
        bare.add(baseline::time_disconnect(&model, &format!("bare-{marker}")).await);
        let begun = Instant::now();
        let run = owner.start_run(&marker, &json!({"text": format!("marker:{marker}")})).await;
        accepted.add(begun.elapsed());
        let request = model.wait_for_marked_request(&marker).await;
        request.wait_streaming().await;
        let begun = Instant::now();
        let stopped = stop(&asked, &run).await;
        answered.add(stopped.saturating_duration_since(begun));
        socket.add(request.wait_client_left().await.saturating_duration_since(begun));
    }
    let target = match setup {
        Setup::ClusterOverNats => FigureTarget::AtMost(FOREIGN_STOP_MS + 2.0 * loopback_round_trip_ms()),
        Setup::Sqlite | Setup::Postgres | Setup::ClusterThroughDatabase => FigureTarget::Free,
    };
    let note = format!("baseline {bare}");
    report.add_times(format!("HTTP stop ({name}) -> model socket closed"), (&socket, Quantile::Median), target, &note);
    let what = format!("HTTP stop ({name}) -> answered");
    report.add_times(what, (&answered, Quantile::Median), FigureTarget::Free, "");
    if !is_cluster {
        let what = format!("message ({name}) -> accepted");
        report.add_times(what, (&accepted, Quantile::Median), FigureTarget::Free, "durable");
    }
    for daemon in daemons {
        daemon.stop().await;
    }
}

/// Starts the daemons of a setup, which know each other then.
pub(crate) async fn start_daemons(
    setup: Setup,
    count: usize,
    (server, nats): (&TestPostgres, &TestNats),
    model: &str,
) -> Vec<TestDaemon> {
    let mut daemons = Vec::new();
    for node in 0..count {
        let home = DaemonHome::new(&format!("{}{}", sections(setup, server, nats, node), config(model)));
        std::fs::write(home.root_dir().join("secret"), "a secret of this cluster, for the bench only\n").unwrap();
        std::fs::write(home.root_dir().join("nats"), TestNats::PASSWORD).unwrap();
        daemons.push(home.start(quell()).await);
    }
    if setup == Setup::ClusterOverNats {
        wait_for_bus(server, count).await;
    }
    daemons
}

/// Returns when the stop was answered.
async fn stop(api: &TestApiClient, run: &str) -> Instant {
    api.post(&format!("/api/runs/{run}/stop"), &json!({})).await;
    Instant::now()
}

fn sections(setup: Setup, server: &TestPostgres, nats: &TestNats, node: usize) -> String {
    let store = format!("[store]\nurl = \"{}\"\n", server.url());
    let cluster = format!("[cluster]\nnode = \"node-{node}\"\nsecret_file = \"secret\"\n");
    let (url, user) = (nats.url(), TestNats::USER);
    match setup {
        Setup::Sqlite => String::new(),
        Setup::Postgres => store,
        Setup::ClusterThroughDatabase => format!("{store}{cluster}"),
        Setup::ClusterOverNats => {
            let bus = format!("nats_urls = [\"{url}\"]\nnats_user = \"{user}\"\nnats_password_file = \"nats\"\n");
            format!("{store}{cluster}{bus}")
        }
    }
}

/// Waits until each node knows that all are on the bus.
async fn wait_for_bus(server: &TestPostgres, nodes: usize) {
    let holds =
        |condition: String| server.sql(&format!("SELECT count(*) FROM nodes WHERE {condition}")) == nodes.to_string();
    poll_until("all nodes are on the bus", async || holds("report LIKE '%\"on_bus\":true%'".to_owned()).then_some(()))
        .await;
    let now = server.sql("SELECT clock_timestamp()");
    poll_until("all have read it", async || holds(format!("renewed_at > '{now}'")).then_some(())).await;
}

/// The median of 200 round trips of one byte over a TCP connection on loopback.
fn loopback_round_trip_ms() -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let echo = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let mut byte = [0];
        while stream.read(&mut byte).unwrap_or(0) > 0 {
            stream.write_all(&byte).unwrap();
        }
    });
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut times = Times::default();
    for _ in 0..200 {
        let begun = Instant::now();
        stream.write_all(&[1]).unwrap();
        stream.read_exact(&mut [0]).unwrap();
        times.add(begun.elapsed());
    }
    drop(stream);
    echo.join().unwrap();
    times.median()
}
