//! Effects of a changed file on a running engine. The tests replace the file as editors do: whole, by a rename.

use std::fs::{self, File, FileTimes};
use std::path::PathBuf;

use quell_server::MetricsRegistry;
use rstest::rstest;
use tempfile::TempDir;

use super::*;

const FIRST: &str = "[providers.p]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:9/v1\"\n\
                     [agents.main]\nmodel = \"p/m\"\n";

const CHANNEL: &str = "[channels.x]\nkind = \"irc\"\nserver = \"127.0.0.1:9\"\nnick = \"quell\"\n";

struct ConfigReloadFixture {
    folder: TempDir,
    engine: Engine,
    reloader: ConfigReloader,
}

impl ConfigReloadFixture {
    /// An engine that was started with this file.
    async fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_old_file(&folder.path().join("quell.toml"), text);
        let loaded = config::load_file(folder.path().join("quell.toml")).unwrap();
        Self::with_config(folder, &loaded).await
    }

    async fn with_config(folder: TempDir, loaded: &LoadedConfig) -> Self {
        let engine = Engine::start(loaded.engine_config(folder.path().join("data"))).await.unwrap();
        let reload = ConfigReloader::new(&engine, loaded, None);
        Self { folder, engine, reloader: reload }
    }

    fn config_path(&self) -> PathBuf {
        self.folder.path().join("quell.toml")
    }

    fn write_and_check(&self, text: &str) -> FileCheck {
        write_old_file(&self.config_path(), text);
        self.check()
    }

    fn check(&self) -> FileCheck {
        self.reloader.check_and_apply(self.reloader.0.file.as_ref().unwrap())
    }

    fn agents(&self) -> Vec<String> {
        self.engine.list_agents().into_iter().map(|row| format!("{} {}", row.id, row.model)).collect()
    }

    fn generation(&self) -> u64 {
        self.reloader.live_settings().current().generation
    }
}

/// Replaces the file by one with an older modification time.
fn write_old_file(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    let times = FileTimes::new().set_modified(SystemTime::now() - Duration::from_secs(5));
    File::options().write(true).open(&new).unwrap().set_times(times).unwrap();
    fs::rename(&new, path).unwrap();
}

#[tokio::test]
async fn a_file_that_is_right_comes_into_force_as_a_whole_and_once() {
    let fixture = ConfigReloadFixture::new(FIRST).await;
    assert_eq!((fixture.check(), fixture.generation()), (FileCheck::Unchanged, 0));
    let changed = format!(
        "{FIRST}temperature = 0.5\n[agents.scout]\nmodel = \"q/m\"\n[providers.q]\nkind = \"anthropic\"\n\
         [messages]\nmessage_timeout_s = 7\n{CHANNEL}"
    );
    assert!(matches!(fixture.write_and_check(&changed), FileCheck::Changed(Some(_))));
    assert_eq!(fixture.agents(), ["main p/m", "scout q/m"]);
    let now = fixture.reloader.live_settings().current();
    assert_eq!((now.generation, now.settings.messages.message_timeout_s), (1, 7));
    assert!(now.settings.channels.contains_key("x"));
    assert_eq!((fixture.check(), fixture.generation()), (FileCheck::Unchanged, 1));
    fixture.write_and_check(FIRST);
    assert_eq!(
        (fixture.agents(), fixture.generation()),
        (vec!["main p/m".to_owned()], 2),
        "an idle agent goes at once"
    );
    fixture.engine.shut_down().await;
}

#[tokio::test]
async fn a_file_that_is_wrong_changes_nothing_until_it_is_right() {
    let fixture = ConfigReloadFixture::new(FIRST).await;
    let recorder = MetricsRegistry::default();
    let stale = |text: &str| {
        metrics::with_local_recorder(&recorder, || fixture.write_and_check(text));
        let shown = recorder.render();
        shown.lines().find_map(|line| line.strip_prefix("quell_config_stale ")).map(str::to_owned)
    };
    let wrong = FIRST.replace("kind", "kid");
    assert_eq!(stale(&wrong).as_deref(), Some("1"));
    assert_eq!((fixture.agents(), fixture.generation()), (vec!["main p/m".to_owned()], 0));
    assert_eq!(fixture.check(), FileCheck::Unchanged, "it is named once");
    assert_eq!(stale(&FIRST.replace("p/m", "p/other")).as_deref(), Some("0"));
    assert_eq!((fixture.agents(), fixture.generation()), (vec!["main p/other".to_owned()], 1));
    fs::remove_file(fixture.config_path()).unwrap();
    while fixture.check() == FileCheck::Settling {
        tokio::task::yield_now().await;
    }
    assert_eq!((fixture.agents(), fixture.generation()), (vec!["main p/other".to_owned()], 1));
    fixture.engine.shut_down().await;
}

#[rstest]
#[case::unknown_key(FIRST.replace("base_url", "base_ur"), "quell.toml:3:1: ", "did you mean `base_url`?")]
#[case::no_url(FIRST.replace("http://127.0.0.1:9/v1", "nowhere"), "quell.toml:3:12: providers.p.base_url: ", "is no URL")]
#[case::demo_model(FIRST.replace("p/m", "demo/demo"), "", "restart the daemon")]
#[case::new_server(
    format!("{FIRST}mcp = [\"x\"]\n[mcp.x]\nurl = \"http://127.0.0.1:9/\"\n"),
    "quell.toml:4:1: agents.main: ",
    "(mcp is only read when the daemon starts)"
)]
#[case::no_workdir(format!("{FIRST}workdir = \"/dev/null/x\"\n"), "quell.toml:4:1: agents.main: ", "cannot be made")]
#[case::no_agent(format!("{FIRST}{CHANNEL}agent = \"ghost\"\n"), "quell.toml:10:9: ", "there is no [agents.ghost]")]
#[case::no_server(
    format!("{FIRST}{}", CHANNEL.replace("server = \"127.0.0.1:9\"\n", "")),
    "quell.toml:6:11: channels.x.server: ",
    "say `server = \"HOST:PORT\"`"
)]
#[case::bad_address(
    format!("{FIRST}{}", CHANNEL.replace(":9", "")),
    "quell.toml:8:10: channels.x.server: ",
    "is not HOST:PORT"
)]
#[case::no_token(
    format!("{FIRST}[channels.x]\nkind = \"telegram\"\ntoken_env = \"QUELL_TEST_IS_NEVER_SET\"\n"),
    "quell.toml:8:13: channels.x.token_env: ",
    "export QUELL_TEST_IS_NEVER_SET=..."
)]
#[tokio::test]
async fn an_invalid_configuration_is_refused_with_the_place(
    #[case] text: String,
    #[case] place: &str,
    #[case] says: &str,
) {
    let fixture = ConfigReloadFixture::new(FIRST).await;
    write_old_file(&fixture.config_path(), &text);
    let error = fixture.reloader.apply_file(&fixture.config_path()).err().unwrap().to_string();
    assert!(error.contains(place) && error.contains(says), "{error}");
    assert_eq!((fixture.agents(), fixture.generation()), (vec!["main p/m".to_owned()], 0));
    fixture.engine.shut_down().await;
}

#[tokio::test]
async fn a_secret_in_a_file_of_its_own_is_read_again_with_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    fs::write(&token, "1234567:AAFirstTokenOfNobody_0123456789ab").unwrap();
    let text = format!("{FIRST}[channels.x]\nkind = \"telegram\"\ntoken_file = {token:?}\n");
    let fixture = ConfigReloadFixture::new(&text).await;
    let channel = || fixture.reloader.live_settings().current().settings.channels["x"].clone();
    let first = channel();
    fs::write(&token, "1234567:AASecondTokenOfNobody_0123456789ab").unwrap();
    assert_eq!(fixture.check(), FileCheck::Unchanged, "only the configuration file itself is checked");
    fixture.write_and_check(&text);
    assert!(!channel().has_same_settings(&first) && fixture.generation() == 1);
    fs::write(&token, "").unwrap();
    fixture.write_and_check(&text);
    assert_eq!(fixture.generation(), 1, "a channel without its token is not taken");
    fixture.engine.shut_down().await;
}

#[tokio::test]
async fn without_a_file_there_is_nothing_to_look_at() {
    let config = config::parse_config(Path::new("quell.toml"), FIRST).unwrap();
    let fixture =
        ConfigReloadFixture::with_config(tempfile::tempdir().unwrap(), &LoadedConfig { config, file: None }).await;
    fixture.reloader.check_callback()();
    assert_eq!(fixture.generation(), 0);
    let mut watching = std::pin::pin!(fixture.reloader.watch());
    assert!(futures_util::poll!(&mut watching).is_pending());
    fixture.engine.shut_down().await;
}

#[tokio::test]
async fn the_check_applies_changes_and_is_limited_in_frequency() {
    let fixture = ConfigReloadFixture::new(FIRST).await;
    let look = fixture.reloader.check_callback();
    write_old_file(&fixture.config_path(), &FIRST.replace("p/m", "p/one"));
    look();
    assert_eq!(fixture.agents(), ["main p/one"]);
    let audited = fixture.engine.list_audit(0, 10).await.unwrap().items;
    let columns: Vec<_> = audited.iter().map(|row| (row.principal.as_str(), row.action.as_str())).collect();
    assert_eq!(columns, [("quell", "reload_config")]);
    assert!(audited[0].detail.as_deref().is_some_and(|detail| detail.contains("main (p/one)")), "{audited:?}");
    let file = fixture.reloader.0.file.as_ref().unwrap();
    let last_checked = file.last_checked.lock().unwrap().unwrap();
    assert!(!file.may_check(last_checked + MIN_CHECK_INTERVAL - Duration::from_millis(1)));
    assert!(file.may_check(last_checked + MIN_CHECK_INTERVAL));
    fixture.engine.shut_down().await;
}

#[tokio::test]
async fn a_watched_file_is_taken_when_nobody_looks() {
    let fixture = ConfigReloadFixture::new(FIRST).await;
    let mut settings = fixture.reloader.live_settings().subscribe();
    tokio::select! {
        never = fixture.reloader.watch() => match never {},
        changed = async {
            fs::write(fixture.config_path(), FIRST.replace("p/m", "p/watched")).unwrap();
            settings.changed().await
        } => changed.unwrap(),
    }
    assert_eq!(fixture.agents(), ["main p/watched"]);
    fixture.engine.shut_down().await;
}
