//! Apply a changed configuration file to the running daemon (row D5 of `docs/design/requirements.md`).
//!
//! The file's directory is watched, and the file is also checked just before its settings are used. An invalid file
//! changes nothing and gives a warning in the log; a valid one is applied as a whole. Runs keep the settings that
//! they started with.

mod directory_watch;
mod file_watch;
mod key_destinations;
mod restart_sections;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use quell_channels::settings::LiveSettings;
use quell_engine::Engine;
use quell_engine::agent::AgentRegistryError;
use quell_engine::engine::{ReloadError, ReloadSummary};
use tokio::sync::Notify;

use crate::config::{self, Config, FileStamp, LoadedConfig};
use directory_watch::DirectoryWatch;
use file_watch::{CheckTime, FileCheck, FileWatch, SETTLE_TIME};
use key_destinations::KeyDestinations;
use restart_sections::sections_needing_restart;

/// 1 while the file is refused and the previous configuration stays in force.
const STALE_GAUGE: &str = "quell_config_stale";

/// Interval of checks without any notification: some file systems never send one.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Within this time after a check, the file is not checked again.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The configuration in force and its file. Clones share one state.
#[derive(Clone)]
pub(crate) struct ConfigReloader(Arc<ConfigReloaderInner>);

struct ConfigReloaderInner {
    engine: Engine,
    /// The configuration that the daemon was started with.
    started_with: Config,
    /// Address of the demo model, if it runs.
    demo_url: Option<String>,
    live_settings: LiveSettings,
    key_destinations: Mutex<KeyDestinations>,
    /// `None` without a file: then nothing can change.
    file: Option<WatchedConfigFile>,
}

struct WatchedConfigFile {
    path: PathBuf,
    watch_state: Mutex<FileWatch>,
    last_checked: Mutex<Option<Instant>>,
    check_requested: Notify,
}

enum ReloadOutcome {
    Applied,
    /// An agent is being created or deleted: the next check tries again.
    Deferred,
}

impl ConfigReloader {
    /// For an engine that was started with this configuration.
    pub(crate) fn new(engine: &Engine, loaded: &LoadedConfig, demo_url: Option<String>) -> Self {
        metrics::gauge!(STALE_GAUGE).set(0.0);
        Self(Arc::new(ConfigReloaderInner {
            engine: engine.clone(),
            started_with: loaded.config.clone(),
            demo_url,
            live_settings: LiveSettings::new(loaded.flow_settings()),
            key_destinations: Mutex::new(KeyDestinations::new(&loaded.config)),
            file: loaded.file.as_ref().map(|file| WatchedConfigFile {
                path: file.path.clone(),
                watch_state: Mutex::new(FileWatch::new(file.stamp)),
                last_checked: Mutex::default(),
                check_requested: Notify::new(),
            }),
        }))
    }

    /// Returns the settings of the message flow, which follow the configuration in force.
    pub(crate) fn live_settings(&self) -> LiveSettings {
        self.0.live_settings.clone()
    }

    /// Returns a function that checks the file, for callers that do not know this type.
    pub(crate) fn check_callback(&self) -> Arc<dyn Fn() + Send + Sync> {
        let reloader = self.clone();
        Arc::new(move || reloader.reload_if_changed())
    }

    /// Checks the file, and applies it if it has changed and is complete. Checks at most once in
    /// [`MIN_CHECK_INTERVAL`]; without a change that costs one `stat` call.
    pub(crate) fn reload_if_changed(&self) {
        let Some(file) = &self.0.file else { return };
        if file.may_check(Instant::now()) && self.check_and_apply(file) == FileCheck::Settling {
            file.check_requested.notify_one();
        }
    }

    /// Watches the file and applies every change.
    ///
    /// # Cancel safety
    /// Safe: the next check finds a change that was not applied.
    pub(crate) async fn watch(&self) -> Infallible {
        let Some(file) = &self.0.file else { return std::future::pending().await };
        let directory = file.watch_directory();
        loop {
            tokio::select! {
                () = file.check_requested.notified() => {}
                () = wait_for_change(directory.as_ref()) => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
            // Changes come in bursts, and the directory can have other busy files.
            tokio::time::sleep(SETTLE_TIME).await;
            while self.check_and_apply(file) == FileCheck::Settling {
                tokio::time::sleep(SETTLE_TIME).await;
            }
        }
    }

    /// Checks the file and applies a change under one lock: a concurrent caller waits, and then finds the result in
    /// force.
    fn check_and_apply(&self, file: &WatchedConfigFile) -> FileCheck {
        let mut watched = file.lock_watch_state();
        let now = CheckTime { monotonic: Instant::now(), wall: SystemTime::now() };
        let outcome = watched.check(FileStamp::of(&file.path), now);
        let FileCheck::Changed(stamp) = outcome else { return outcome };
        match self.apply_file(&file.path) {
            Ok(ReloadOutcome::Deferred) => {
                tracing::debug!("configuration reload deferred: an agent is being created or deleted");
                return outcome;
            }
            Ok(ReloadOutcome::Applied) => metrics::gauge!(STALE_GAUGE).set(0.0),
            Err(error) => {
                metrics::gauge!(STALE_GAUGE).set(1.0);
                // The further lines show the place in the file.
                let problem = format!("{error:#}").lines().next().unwrap_or_default().to_owned();
                tracing::warn!(
                    problem,
                    "the configuration file is not taken; the previous configuration stays in force"
                );
            }
        }
        watched.mark_read(stamp);
        outcome
    }

    fn apply_file(&self, path: &Path) -> anyhow::Result<ReloadOutcome> {
        let mut loaded = config::load_file(path.to_owned())?;
        loaded.check_start(&config::data_dir()?)?;
        if loaded.config.needs_demo_model() {
            let demo = self.0.demo_url.as_deref();
            let demo =
                demo.context("the demo model can only be started together with the daemon; restart the daemon")?;
            loaded.config.set_demo_model_url(demo);
        }
        let config = &loaded.config;
        let mut keys = self.0.key_destinations.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(moved) = keys.check_unmoved(config) {
            bail!("{}", config::locate_problem(path, &moved.config_key, &moved.problem));
        }
        let waiting = sections_needing_restart(&self.0.started_with, config);
        let reloaded = match self.0.engine.reload(&config.providers, &config.agents) {
            Ok(reloaded) => reloaded,
            Err(ReloadError::Conflict(_)) => return Ok(ReloadOutcome::Deferred),
            Err(error) => return Err(locate_reload_error(&loaded, path, &error, &waiting)),
        };
        keys.record(config);
        drop(keys);
        self.0.live_settings.replace(loaded.flow_settings());
        let ReloadSummary { added, pending_removal: leaving, shadowed } = reloaded;
        tracing::info!(?added, ?leaving, ?shadowed, "configuration reloaded: {}", loaded.summary());
        let mut detail = loaded.summary();
        if !waiting.is_empty() {
            tracing::warn!("needs a restart: {}", waiting.join(", "));
            detail.push_str(&format!("; needs a restart: {}", waiting.join(", ")));
        }
        self.0.engine.audit_config_change(&path.display().to_string(), detail);
        Ok(ReloadOutcome::Applied)
    }
}

impl WatchedConfigFile {
    fn lock_watch_state(&self) -> MutexGuard<'_, FileWatch> {
        self.watch_state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn may_check(&self, now: Instant) -> bool {
        let mut last_checked = self.last_checked.lock().unwrap_or_else(PoisonError::into_inner);
        let may = last_checked.is_none_or(|before| now.saturating_duration_since(before) >= MIN_CHECK_INTERVAL);
        if may {
            *last_checked = Some(now);
        }
        may
    }

    /// Watches the file's directory, because editors replace the file instead of changing it. Returns `None` where
    /// the directory cannot be watched; the file is then checked by the interval only.
    fn watch_directory(&self) -> Option<DirectoryWatch> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        DirectoryWatch::new(folder)
            .inspect_err(|error| {
                tracing::warn!(%error, "the folder of the configuration file cannot be watched; the file is checked every 2 s");
            })
            .ok()
    }
}

/// Never returns without a watch.
async fn wait_for_change(directory: Option<&DirectoryWatch>) {
    match directory {
        Some(watch) => watch.wait_for_change().await,
        None => std::future::pending().await,
    }
}

/// Formats an error of the engine with its place in the file.
fn locate_reload_error(loaded: &LoadedConfig, path: &Path, error: &ReloadError, waiting: &[String]) -> anyhow::Error {
    let (key, mut problem) = match error {
        ReloadError::Provider(bad) => (Some(format!("providers.{}", bad.provider)), bad.problem.clone()),
        ReloadError::Agents(AgentRegistryError::InvalidAgent(bad)) if loaded.config.agents.contains_key(&bad.agent) => {
            (Some(format!("agents.{}", bad.agent)), bad.problem.clone())
        }
        ReloadError::Agents(_) | ReloadError::Conflict(_) => (None, error.to_string()),
    };
    if !waiting.is_empty() {
        problem.push_str(&format!(" ({} is only read when the daemon starts)", waiting.join(", ")));
    }
    anyhow::Error::msg(match key {
        Some(key) => config::locate_problem(path, &key, &problem),
        None => problem,
    })
}

#[cfg(test)]
mod tests;
