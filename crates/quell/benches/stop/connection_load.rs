//! Stop latency under connection load: slow headers, slow bodies, idle WebSockets, readers that never read, a full
//! disk.
//!
//! Each stop has a connection of its own, alternately over TCP and through the Unix socket. Its time ends when its
//! receipt has arrived.

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quell_testkit::daemon::{DaemonHome, TestDaemon};
use quell_testkit::model::{ScriptedModel, ScriptedResponse};
use reqwest::Client;
use serde_json::json;

use crate::report::{BenchReport, FigureTarget::AtMost, Quantile};
use crate::times::Times;
use crate::{config, quell};

/// Stops over each transport under each load.
const SAMPLES: usize = 20;
/// The limit for every stop.
const MAX_STOP_MS: f64 = 50.0;

const SLOW_HEADERS: &str = "POST /api/stop HTTP/1.1\r\nhost: quell\r\nx-slow: ";
const SLOW_BODY: &str =
    "POST /api/sign-in HTTP/1.1\r\nhost: quell\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{";
const WEBSOCKET_UPGRADE: &str = "GET /ws HTTP/1.1\r\nhost: quell\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                       sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

pub(crate) async fn measure(report: &BenchReport) {
    quell_server::serve::raise_open_files().unwrap();
    measure_among(report, "nobody", 0, "").await;
    measure_among(report, "1,100 idle connections", 1100, "").await;
    measure_among(report, "3,000 slow headers", 3000, SLOW_HEADERS).await;
    measure_among(report, "2,000 slow bodies", 2000, SLOW_BODY).await;
    measure_among(report, "10,000 unauthenticated WebSockets", 10_000, WEBSOCKET_UPGRADE).await;
    measure_among_readers(report).await;
    measure_on_full_disk(report).await;
}

/// A daemon with the usual soft limit of open files, and a model that never ends an answer.
struct LoadFixture {
    model: ScriptedModel,
    daemon: TestDaemon,
    tcp: Client,
    local: Client,
}

impl LoadFixture {
    async fn start(home: impl FnOnce(&DaemonHome) -> PathBuf) -> Self {
        let model = ScriptedModel::start().await;
        model.respond_by_prompt(|_, _| ScriptedResponse::tokens_forever(Duration::from_millis(20)));
        let place = DaemonHome::new(&config(&model.base_url()));
        let daemon = place.start(&home(&place)).await;
        let socket = place.data_dir().join("quell.sock");
        let local = Client::builder().no_proxy().pool_max_idle_per_host(0).unix_socket(socket).build().unwrap();
        Self { model, daemon, tcp: quell_testkit::daemon::http_client(), local }
    }

    async fn start_with_default_limit() -> Self {
        Self::start(|home| write_wrapper(home, &format!("ulimit -Sn 1024; exec '{}' \"$@\"", quell().display()))).await
    }

    async fn begin_run(&self, run: &str) {
        let body = json!({"text": format!("marker:{run}"), "idempotencyKey": run});
        self.daemon.api().start_run(run, &body).await;
        self.model.wait_for_marked_request(run).await.wait_streaming().await;
    }

    /// Returns the time of one stop until the receipt of its run has arrived.
    async fn time_stop(&self, client: &Client, run: &str) -> Duration {
        let url = format!("{}/api/runs/{run}/stop?wait=1", self.daemon.url());
        let request = client.post(url).bearer_auth(self.daemon.token()).json(&json!({}));
        let begun = Instant::now();
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        drop(answer.bytes().await.unwrap());
        begun.elapsed()
    }

    /// Stops runs over TCP and through the socket, in turns. The runs were started before the load.
    async fn measure_stops(&self, report: &BenchReport, crowd: &str, runs: Vec<String>) {
        let (mut tcp, mut local) = <(Times, Times)>::default();
        for (n, run) in runs.iter().enumerate() {
            if n % 2 == 0 {
                tcp.add(self.time_stop(&self.tcp, run).await);
            } else {
                local.add(self.time_stop(&self.local, run).await);
            }
        }
        for (transport, times) in [("TCP", &tcp), ("socket", &local)] {
            let what = format!("stop among {crowd}, {transport}");
            report.add_times(what, (times, Quantile::Max), AtMost(MAX_STOP_MS), "");
        }
    }

    async fn begin_runs(&self, name: &str) -> Vec<String> {
        let runs: Vec<String> = (0..2 * SAMPLES).map(|n| format!("crowd-{name}-{n}")).collect();
        for run in &runs {
            self.begin_run(run).await;
        }
        runs
    }
}

/// Measures stops beside this many connections, each of which has sent `sent`.
async fn measure_among(report: &BenchReport, crowd: &str, count: usize, sent: &str) {
    let fixture = LoadFixture::start_with_default_limit().await;
    let runs = fixture.begin_runs("quiet").await;
    let connections = open_connections(&fixture, count, sent).await;
    fixture.measure_stops(report, crowd, runs).await;
    drop(connections);
    fixture.daemon.stop().await;
}

async fn open_connections(fixture: &LoadFixture, count: usize, sent: &str) -> Vec<TcpStream> {
    let mut connections = Vec::with_capacity(count);
    for n in 0..count {
        let mut stream = TcpStream::connect(fixture.daemon.address()).unwrap();
        // Fails if the daemon has just closed the connection.
        let _ = stream.write_all(sent.as_bytes());
        connections.push(stream);
        if n % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    connections
}

/// Measures stops beside a thousand clients that request the events of busy runs and never read them.
async fn measure_among_readers(report: &BenchReport) {
    let fixture = LoadFixture::start_with_default_limit().await;
    let runs = fixture.begin_runs("read").await;
    let token = fixture.daemon.token();
    let mut connections = Vec::new();
    for n in 0..1000 {
        let run = &runs[n % runs.len()];
        let request =
            format!("GET /api/runs/{run}/events HTTP/1.1\r\nhost: quell\r\nauthorization: Bearer {token}\r\n\r\n");
        connections.extend(open_connections(&fixture, 1, &request).await);
    }
    fixture.measure_stops(report, "1,000 readers that never read", runs).await;
    drop(connections);
    fixture.daemon.stop().await;
}

/// Measures stops with the database on a full disk.
async fn measure_on_full_disk(report: &BenchReport) {
    let mut disk = PathBuf::new();
    let fixture = LoadFixture::start(|home| {
        disk = home.data_dir().join("disk");
        std::fs::create_dir(&disk).unwrap();
        std::os::unix::fs::symlink("disk/quell.db", home.data_dir().join("quell.db")).unwrap();
        let place = disk.display();
        let first = format!("mount -t tmpfs -o size=12m small \"{place}\" && : > \"{place}/quell.db\"");
        let wrapped = format!("exec unshare --user --map-root-user --mount sh -c '{first} && exec \"$0\" \"$@\"'");
        write_wrapper(home, &format!("{wrapped} '{}' \"$@\"", quell().display()))
    })
    .await;
    let runs = fixture.begin_runs("disk").await;
    let root = Path::new("/proc").join(fixture.daemon.pid().to_string()).join("root");
    let mut filler = std::fs::File::create(root.join(disk.strip_prefix("/").unwrap()).join("filler")).unwrap();
    while filler.write(&[0; 512]).is_ok() {}
    fixture.measure_stops(report, "nobody with a full disk", runs).await;
    fixture.daemon.stop().await;
}

fn write_wrapper(home: &DaemonHome, text: &str) -> PathBuf {
    let path = home.data_dir().join("wrapper");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}
