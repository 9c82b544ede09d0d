//! A changed configuration file comes into force while the daemon works (row D5).
//!
//! The file's folder is watched, and whoever is about to use what may have changed looks at the file itself. A file that is
//! wrong changes nothing and is named in the log; one that is right is taken as a whole. Runs keep what they have started with.

mod keys;
mod sections;
mod watched;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher};
use quell_engine::Engine;
use quell_engine::agent::BadSociety;
use quell_engine::dispatch::{ReloadError, Reloaded};
use quell_surfaces::channels::settings::LiveSettings;
use tokio::sync::Notify;

use crate::config::{self, Config, Loaded, Source, Stamp};
use keys::Keys;
use sections::waiting_for_a_restart;
use watched::{Look, Now, QUIET, Watched};

/// 1 while the file cannot be taken and the configuration before it stays in force.
const STALE: &str = "quell_config_stale";

/// The file is looked at so often even when nothing tells of a change: some file systems never do.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Who looks again sooner gets the answer of the last look.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The configuration in force and the file that it comes from. Clones are the same.
#[derive(Clone)]
pub(crate) struct Reload(Arc<Inner>);

struct Inner {
    engine: Engine,
    /// As the daemon was started.
    started: Config,
    /// Where the demo model listens, if it runs.
    demo: Option<String>,
    live: LiveSettings,
    keys: Mutex<Keys>,
    /// None without a file: there is nothing that could change.
    file: Option<ConfigFile>,
}

struct ConfigFile {
    path: PathBuf,
    watched: Mutex<Watched>,
    looked: Mutex<Option<Instant>>,
    nudge: Arc<Notify>,
}

/// What became of a file that is right.
enum Taken {
    /// It is in force.
    Now,
    /// Somebody makes or deletes an agent at this moment: the next look tries again.
    Later,
}

impl Reload {
    /// Of an engine that was started with this configuration.
    pub(crate) fn new(engine: &Engine, loaded: &Loaded, demo: Option<String>) -> Self {
        let file = match &loaded.source {
            Source::File { path, stamp } => Some(ConfigFile {
                path: path.clone(),
                watched: Mutex::new(Watched::new(*stamp)),
                looked: Mutex::default(),
                nudge: Arc::default(),
            }),
            Source::Environment => None,
        };
        metrics::gauge!(STALE).set(0.0);
        let (engine, started, live) = (engine.clone(), loaded.config.clone(), LiveSettings::new(loaded.flow()));
        let keys = Mutex::new(Keys::new(&started));
        Self(Arc::new(Inner { engine, started, demo, live, keys, file }))
    }

    /// What the message flow works by, always as it is in force.
    pub(crate) fn settings(&self) -> LiveSettings {
        self.0.live.clone()
    }

    /// For who looks before each message without knowing this type.
    pub(crate) fn looker(&self) -> Arc<dyn Fn() + Send + Sync> {
        let reload = self.clone();
        Arc::new(move || reload.look())
    }

    /// Looks at the file, unless somebody just did, and takes it when it has changed and is whole. Costs one question to the
    /// file system in 100 ms at the most, as long as nothing has changed.
    pub(crate) fn look(&self) {
        let Some(file) = &self.0.file else { return };
        if file.may_look(Instant::now()) && self.take_change(file) == Look::Changing {
            file.nudge.notify_one();
        }
    }

    /// Watches the file and takes it whenever it has changed.
    ///
    /// # Cancel safety
    /// Safe: a change that was not taken is seen by the next look.
    pub(crate) async fn watch(&self) -> Infallible {
        let Some(file) = &self.0.file else { return std::future::pending().await };
        let _watcher = file.watcher();
        loop {
            tokio::select! {
                () = file.nudge.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            // Changes come in swarms, and a folder may have other busy files.
            tokio::time::sleep(QUIET).await;
            while self.take_change(file) == Look::Changing {
                tokio::time::sleep(QUIET).await;
            }
        }
    }

    /// One look and what follows from it, as one step: who looks meanwhile waits, and then has what is in force.
    fn take_change(&self, file: &ConfigFile) -> Look {
        let mut watched = file.watched();
        let now = Now { steady: Instant::now(), wall: SystemTime::now() };
        let look = watched.look(Stamp::of(&file.path), now);
        let Look::Changed(stamp) = look else { return look };
        match self.take(&file.path) {
            Ok(Taken::Later) => {
                tracing::debug!("the configuration is taken later: an agent is being made or deleted");
                return look;
            }
            Ok(Taken::Now) => metrics::gauge!(STALE).set(0.0),
            Err(error) => {
                metrics::gauge!(STALE).set(1.0);
                // The lines behind the first one show the place in the file.
                let problem = format!("{error:#}").lines().next().unwrap_or_default().to_owned();
                tracing::warn!(
                    problem,
                    "the configuration file is not taken; the configuration before it stays in force"
                );
            }
        }
        watched.was_read(stamp);
        look
    }

    fn take(&self, path: &Path) -> anyhow::Result<Taken> {
        let mut loaded = config::load_file(path.to_owned())?;
        loaded.check_channels()?;
        loaded.check_workdirs(&config::data_dir()?)?;
        if loaded.config.asks_for_demo_model() {
            let demo = self.0.demo.as_deref();
            let demo = demo.context("the demo model starts with the daemon alone; start the daemon again")?;
            loaded.config.point_to_demo_model(demo);
        }
        let config = &loaded.config;
        let mut keys = self.0.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(moved) = keys.check(config) {
            bail!("{}", config::blame(path, &moved.key, &moved.problem));
        }
        let waiting = waiting_for_a_restart(&self.0.started, config);
        let reloaded = match self.0.engine.reload(&config.providers, &config.agents) {
            Ok(reloaded) => reloaded,
            Err(ReloadError::NotNow(_)) => return Ok(Taken::Later),
            Err(error) => return Err(blamed(&loaded, path, &error, &waiting)),
        };
        keys.learn(config);
        drop(keys);
        self.0.live.replace(loaded.flow());
        let Reloaded { added, leaving, shadowed } = reloaded;
        tracing::info!(?added, ?leaving, ?shadowed, "configuration reloaded: {}", loaded.summary());
        if !waiting.is_empty() {
            tracing::warn!("needs a restart: {}", waiting.join(", "));
        }
        Ok(Taken::Now)
    }
}

impl ConfigFile {
    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn may_look(&self, now: Instant) -> bool {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let may = looked.is_none_or(|before| now.saturating_duration_since(before) >= LOOK_AGAIN);
        if may {
            *looked = Some(now);
        }
        may
    }

    /// Tells of everything that happens in the file's folder: editors put another file in the place of the one that they
    /// change. None where that cannot be watched; then the file is only looked at.
    fn watcher(&self) -> Option<RecommendedWatcher> {
        let nudge = Arc::clone(&self.nudge);
        let tell = move |event: notify::Result<Event>| {
            // Reading is no change; a queue that ran over may hide one.
            if !event.is_ok_and(|event| event.kind.is_access()) {
                nudge.notify_one();
            }
        };
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let watching = notify::recommended_watcher(tell).and_then(|mut watcher| {
            watcher.watch(folder, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        watching
            .inspect_err(|error| {
                tracing::warn!(%error, "the folder of the configuration file cannot be watched; the file is looked at every 2 s");
            })
            .ok()
    }
}

/// What the engine refuses, with its place in the file.
fn blamed(loaded: &Loaded, path: &Path, error: &ReloadError, waiting: &[String]) -> anyhow::Error {
    let (key, mut problem) = match error {
        ReloadError::Provider(bad) => (Some(format!("providers.{}", bad.provider)), bad.problem.clone()),
        ReloadError::Society(BadSociety::Agent(bad)) if loaded.config.agents.contains_key(&bad.agent) => {
            (Some(format!("agents.{}", bad.agent)), bad.problem.clone())
        }
        ReloadError::Society(_) | ReloadError::NotNow(_) => (None, error.to_string()),
    };
    if !waiting.is_empty() {
        problem.push_str(&format!(" ({} is only read when the daemon starts)", waiting.join(", ")));
    }
    anyhow::Error::msg(match key {
        Some(key) => config::blame(path, &key, &problem),
        None => problem,
    })
}

#[cfg(test)]
mod tests;
