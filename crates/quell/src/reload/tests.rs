//! What a changed file does to a running engine. Files are put in place as editors do it: whole, by a rename.

use std::fs::{self, File, FileTimes};
use std::path::PathBuf;

use metrics_exporter_prometheus::PrometheusBuilder;
use rstest::rstest;
use tempfile::TempDir;

use super::*;

const FIRST: &str = "[providers.p]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:9/v1\"\n\
                     [agents.main]\nmodel = \"p/m\"\n";

const CHANNEL: &str = "[channels.x]\nkind = \"irc\"\nserver = \"127.0.0.1:9\"\nnick = \"quell\"\n";

struct House {
    folder: TempDir,
    engine: Engine,
    reload: Reload,
}

impl House {
    /// An engine that was started with this file.
    async fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        put(&folder.path().join("quell.toml"), text);
        let loaded = config::load_file(folder.path().join("quell.toml")).unwrap();
        Self::of(folder, &loaded).await
    }

    async fn of(folder: TempDir, loaded: &Loaded) -> Self {
        let engine = Engine::start(loaded.engine(folder.path().join("data"))).await.unwrap();
        let reload = Reload::new(&engine, loaded, None);
        Self { folder, engine, reload }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("quell.toml")
    }

    /// The file holds this now, and somebody looks.
    fn look_at(&self, text: &str) -> Look {
        put(&self.path(), text);
        self.look()
    }

    fn look(&self) -> Look {
        self.reload.take_change(self.reload.0.file.as_ref().unwrap())
    }

    fn agents(&self) -> Vec<String> {
        self.engine.agents().into_iter().map(|row| format!("{} {}", row.id, row.model)).collect()
    }

    fn generation(&self) -> u64 {
        self.reload.settings().now().generation
    }
}

/// Puts a whole file there that was written a while ago.
fn put(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    let times = FileTimes::new().set_modified(SystemTime::now() - Duration::from_secs(5));
    File::options().write(true).open(&new).unwrap().set_times(times).unwrap();
    fs::rename(&new, path).unwrap();
}

#[tokio::test]
async fn a_file_that_is_right_comes_into_force_as_a_whole_and_once() {
    let house = House::new(FIRST).await;
    assert_eq!((house.look(), house.generation()), (Look::Same, 0));
    let changed = format!(
        "{FIRST}temperature = 0.5\n[agents.scout]\nmodel = \"q/m\"\n[providers.q]\nkind = \"anthropic\"\n\
         [messages]\nmessage_timeout_s = 7\n{CHANNEL}"
    );
    assert!(matches!(house.look_at(&changed), Look::Changed(Some(_))));
    assert_eq!(house.agents(), ["main p/m", "scout q/m"]);
    let now = house.reload.settings().now();
    assert_eq!((now.generation, now.settings.messages.message_timeout_s), (1, 7));
    assert!(now.settings.channels.contains_key("x"));
    assert_eq!((house.look(), house.generation()), (Look::Same, 1));
    house.look_at(FIRST);
    assert_eq!((house.agents(), house.generation()), (vec!["main p/m".to_owned()], 2), "an idle agent goes at once");
    house.engine.shut_down().await;
}

#[tokio::test]
async fn a_file_that_is_wrong_changes_nothing_until_it_is_right() {
    let house = House::new(FIRST).await;
    let recorder = PrometheusBuilder::new().build_recorder();
    let stale = |text: &str| {
        metrics::with_local_recorder(&recorder, || house.look_at(text));
        let shown = recorder.handle().render();
        shown.lines().find_map(|line| line.strip_prefix("quell_config_stale ")).map(str::to_owned)
    };
    let wrong = FIRST.replace("kind", "kid");
    assert_eq!(stale(&wrong).as_deref(), Some("1"));
    assert_eq!((house.agents(), house.generation()), (vec!["main p/m".to_owned()], 0));
    assert_eq!(house.look(), Look::Same, "it is named once");
    assert_eq!(stale(&FIRST.replace("p/m", "p/other")).as_deref(), Some("0"));
    assert_eq!((house.agents(), house.generation()), (vec!["main p/other".to_owned()], 1));
    fs::remove_file(house.path()).unwrap();
    while house.look() == Look::Changing {
        tokio::task::yield_now().await;
    }
    assert_eq!((house.agents(), house.generation()), (vec!["main p/other".to_owned()], 1));
    house.engine.shut_down().await;
}

#[rstest]
#[case::unknown_key(FIRST.replace("base_url", "base_ur"), "quell.toml:3:1: ", "did you mean `base_url`?")]
#[case::no_url(FIRST.replace("http://127.0.0.1:9/v1", "nowhere"), "quell.toml:1:1: providers.p: ", "is no URL")]
#[case::demo_model(FIRST.replace("p/m", "demo/demo"), "", "start the daemon again")]
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
async fn what_cannot_be_taken_is_named_with_its_place(#[case] text: String, #[case] place: &str, #[case] says: &str) {
    let house = House::new(FIRST).await;
    put(&house.path(), &text);
    let error = house.reload.take(&house.path()).err().unwrap().to_string();
    assert!(error.contains(place) && error.contains(says), "{error}");
    assert_eq!((house.agents(), house.generation()), (vec!["main p/m".to_owned()], 0));
    house.engine.shut_down().await;
}

#[tokio::test]
async fn a_secret_in_a_file_of_its_own_is_read_again_with_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    fs::write(&token, "1234567:AAFirstTokenOfNobody_0123456789ab").unwrap();
    let text = format!("{FIRST}[channels.x]\nkind = \"telegram\"\ntoken_file = {token:?}\n");
    let house = House::new(&text).await;
    let channel = || house.reload.settings().now().settings.channels["x"].clone();
    let first = channel();
    fs::write(&token, "1234567:AASecondTokenOfNobody_0123456789ab").unwrap();
    assert_eq!(house.look(), Look::Same, "only the configuration itself is looked at");
    house.look_at(&text);
    assert!(!channel().is_same_as(&first) && house.generation() == 1);
    fs::write(&token, "").unwrap();
    house.look_at(&text);
    assert_eq!(house.generation(), 1, "a channel without its token is not taken");
    house.engine.shut_down().await;
}

#[tokio::test]
async fn without_a_file_there_is_nothing_to_look_at() {
    let config = config::parse(Path::new("quell.toml"), FIRST).unwrap();
    let house = House::of(tempfile::tempdir().unwrap(), &Loaded { config, source: Source::Environment }).await;
    house.reload.looker()();
    assert_eq!(house.generation(), 0);
    let mut watching = std::pin::pin!(house.reload.watch());
    assert!(futures_util::poll!(&mut watching).is_pending());
    house.engine.shut_down().await;
}

#[tokio::test]
async fn who_looks_takes_what_has_changed_and_does_not_look_too_often() {
    let house = House::new(FIRST).await;
    let look = house.reload.looker();
    put(&house.path(), &FIRST.replace("p/m", "p/one"));
    look();
    assert_eq!(house.agents(), ["main p/one"]);
    let file = house.reload.0.file.as_ref().unwrap();
    let looked = file.looked.lock().unwrap().unwrap();
    assert!(!file.may_look(looked + LOOK_AGAIN - Duration::from_millis(1)));
    assert!(file.may_look(looked + LOOK_AGAIN));
    house.engine.shut_down().await;
}

#[tokio::test]
async fn a_watched_file_is_taken_when_nobody_looks() {
    let house = House::new(FIRST).await;
    let mut settings = house.reload.settings().subscribe();
    tokio::select! {
        never = house.reload.watch() => match never {},
        changed = async {
            fs::write(house.path(), FIRST.replace("p/m", "p/watched")).unwrap();
            settings.changed().await
        } => changed.unwrap(),
    }
    assert_eq!(house.agents(), ["main p/watched"]);
    house.engine.shut_down().await;
}
