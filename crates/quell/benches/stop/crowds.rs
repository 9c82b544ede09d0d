//! A stop among crowds: connections that bring no request to its end, readers that never read, a full disk. Each stop comes on a
//! connection of its own, once over TCP and once through the Unix socket, and is timed until its receipt is there.

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quell_testkit::daemon::{Daemon, Home};
use quell_testkit::model::{Behaviour, ScriptedModel};
use reqwest::Client;
use serde_json::json;

use crate::report::{Report, Target};
use crate::times::Times;
use crate::{config, quell};

/// Stops of each kind in front of each crowd.
const SAMPLES: usize = 20;
/// What no stop may take longer than.
const MOST: Target = Target(50.0, "ms");

const HEADERS: &str = "POST /api/stop HTTP/1.1\r\nhost: quell\r\nx-slow: ";
const BODIES: &str =
    "POST /api/sign-in HTTP/1.1\r\nhost: quell\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{";
const SOCKETS: &str = "GET /ws HTTP/1.1\r\nhost: quell\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                       sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

pub(crate) async fn measure(report: &mut Report) {
    quell_surfaces::serve::raise_open_files().unwrap();
    among(report, "nobody", 0, "").await;
    among(report, "1,100 idle connections", 1100, "").await;
    among(report, "3,000 slow headers", 3000, HEADERS).await;
    among(report, "2,000 slow bodies", 2000, BODIES).await;
    among(report, "10,000 unauthenticated WebSockets", 10_000, SOCKETS).await;
    readers(report).await;
    full_disk(report).await;
}

/// A daemon under the usual soft limit, whose model never comes to an end.
struct Site {
    model: ScriptedModel,
    daemon: Daemon,
    tcp: Client,
    local: Client,
}

impl Site {
    async fn open(home: impl FnOnce(&Home) -> PathBuf) -> Self {
        let model = ScriptedModel::start().await;
        model.by_prompt(|_, _| Behaviour::tokens_forever(Duration::from_millis(20)));
        let place = Home::new(&config(&model.base_url()));
        let daemon = place.start(&home(&place)).await;
        let socket = place.data().join("quell.sock");
        let local = Client::builder().no_proxy().pool_max_idle_per_host(0).unix_socket(socket).build().unwrap();
        Self { model, daemon, tcp: quell_testkit::daemon::client(), local }
    }

    async fn under_the_usual_limit() -> Self {
        Self::open(|home| script(home, &format!("ulimit -Sn 1024; exec '{}' \"$@\"", quell().display()))).await
    }

    async fn begin(&self, run: &str) {
        let body = json!({"text": format!("marker:{run}"), "idempotencyKey": run});
        let _ = self.daemon.http().post(&format!("/api/sessions/{run}/runs"), &body).await.expect_status(202);
        self.model.marked(run).await.streaming().await;
    }

    /// The time of one stop, until the receipt of its run has come.
    async fn stop(&self, client: &Client, run: &str) -> Duration {
        let url = format!("{}/api/runs/{run}/stop?wait=1", self.daemon.url());
        let request = client.post(url).bearer_auth(self.daemon.token()).json(&json!({}));
        let begun = Instant::now();
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        drop(answer.bytes().await.unwrap());
        begun.elapsed()
    }

    /// Stops over TCP and through the socket, in turns. What they stop was begun before, by somebody who got in.
    async fn stops(&self, report: &mut Report, crowd: &str, runs: Vec<String>) {
        let (mut tcp, mut local) = <(Times, Times)>::default();
        for (n, run) in runs.iter().enumerate() {
            if n % 2 == 0 {
                tcp.add(self.stop(&self.tcp, run).await);
            } else {
                local.add(self.stop(&self.local, run).await);
            }
        }
        let note = |times: &Times| format!("median {:.2}, n {}", times.median(), times.len());
        report.target(&format!("stop among {crowd}, TCP, longest"), tcp.max(), MOST, note(&tcp));
        report.target(&format!("stop among {crowd}, socket, longest"), local.max(), MOST, note(&local));
    }

    async fn runs(&self, name: &str) -> Vec<String> {
        let runs: Vec<String> = (0..2 * SAMPLES).map(|n| format!("crowd-{name}-{n}")).collect();
        for run in &runs {
            self.begin(run).await;
        }
        runs
    }
}

/// Stops beside so many connections that have said this much.
async fn among(report: &mut Report, crowd: &str, count: usize, said: &str) {
    let site = Site::under_the_usual_limit().await;
    let runs = site.runs("quiet").await;
    let standing = stand(&site, count, said).await;
    site.stops(report, crowd, runs).await;
    drop(standing);
    site.daemon.stop().await;
}

async fn stand(site: &Site, count: usize, said: &str) -> Vec<TcpStream> {
    let mut standing = Vec::with_capacity(count);
    for n in 0..count {
        let mut stream = TcpStream::connect(site.daemon.address()).unwrap();
        // Closed in this moment, it may refuse.
        let _ = stream.write_all(said.as_bytes());
        standing.push(stream);
        if n % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    standing
}

/// A thousand readers of events that read nothing, of runs that say much.
async fn readers(report: &mut Report) {
    let site = Site::under_the_usual_limit().await;
    let runs = site.runs("read").await;
    let token = site.daemon.token();
    let mut standing = Vec::new();
    for n in 0..1000 {
        let run = &runs[n % runs.len()];
        let said =
            format!("GET /api/runs/{run}/events HTTP/1.1\r\nhost: quell\r\nauthorization: Bearer {token}\r\n\r\n");
        standing.extend(stand(&site, 1, &said).await);
    }
    site.stops(report, "1,000 readers that never read", runs).await;
    drop(standing);
    site.daemon.stop().await;
}

/// A database on a disk without a byte left.
async fn full_disk(report: &mut Report) {
    let mut disk = PathBuf::new();
    let site = Site::open(|home| {
        disk = home.data().join("disk");
        std::fs::create_dir(&disk).unwrap();
        std::os::unix::fs::symlink("disk/quell.db", home.data().join("quell.db")).unwrap();
        let place = disk.display();
        let first = format!("mount -t tmpfs -o size=12m small \"{place}\" && : > \"{place}/quell.db\"");
        let wrapped = format!("exec unshare --user --map-root-user --mount sh -c '{first} && exec \"$0\" \"$@\"'");
        script(home, &format!("{wrapped} '{}' \"$@\"", quell().display()))
    })
    .await;
    let runs = site.runs("disk").await;
    let root = Path::new("/proc").join(site.daemon.pid().to_string()).join("root");
    let mut filler = std::fs::File::create(root.join(disk.strip_prefix("/").unwrap()).join("filler")).unwrap();
    while filler.write(&[0; 512]).is_ok() {}
    site.stops(report, "nobody with a full disk", runs).await;
    site.daemon.stop().await;
}

fn script(home: &Home, text: &str) -> PathBuf {
    let path = home.data().join("wrapper");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}
