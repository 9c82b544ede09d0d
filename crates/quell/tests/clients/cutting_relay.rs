//! Test support: a relay before the daemon, whose connections a test cuts.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Passes connections on to the daemon, and can cut all of them.
pub(crate) struct CuttingRelay {
    pub(crate) url: String,
    cuts: watch::Sender<u32>,
}

impl CuttingRelay {
    pub(crate) async fn start(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (cuts, watched) = watch::channel(0);
        #[expect(clippy::disallowed_methods, reason = "the test's own relay, which ends with its runtime")]
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (target, mut watched) = (target.clone(), watched.clone());
                watched.mark_unchanged();
                tokio::spawn(async move {
                    let mut daemon = TcpStream::connect(target).await.unwrap();
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut daemon) => {}
                        _ = watched.changed() => {}
                    }
                });
            }
        });
        Self { url, cuts }
    }

    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}
