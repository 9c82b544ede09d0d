//! Reload the configuration file while the daemon runs (row D5 of docs/design/requirements.md).
//!
//! Active runs end on the configuration they began with, later runs use the new providers, and a wrong file changes
//! nothing and is reported with its line.

use std::fs;

use quell_engine::engine::ReloadSummary;

use crate::prelude::*;

/// Two model servers, and a daemon that was started with the first one.
struct ReloadDaemonFixture {
    daemon: TestDaemon,
    old_model: ScriptedModel,
    new_model: ScriptedModel,
    _process_lock: ProcessLock,
}

impl ReloadDaemonFixture {
    async fn start() -> Self {
        let process_lock = ProcessLock::shared().await;
        let (new_model, (old_model, daemon)) = (ScriptedModel::start().await, start_daemon("tools = []\n").await);
        old_model.respond_by_prompt(|_, _| ScriptedResponse::text("from the old one"));
        new_model.respond_by_prompt(|_, _| ScriptedResponse::text("from the new one"));
        Self { daemon, old_model, new_model, _process_lock: process_lock }
    }

    fn home(&self) -> &DaemonHome {
        self.daemon.home()
    }

    /// Overwrites the configuration file in place.
    fn write_config(&self, text: &str) {
        fs::write(self.home().config_file(), text).unwrap();
    }

    async fn send_message(&self, session: &str) -> String {
        self.daemon.api().send_message(session, "hello").await
    }

    /// Waits for the end of a run and returns its output.
    async fn answer_of(&self, id: &str) -> String {
        let log = self.daemon.api().run_events(id, 0).await.read_to_end().await;
        assert_eq!(log.verdict(), "completed", "{}", self.daemon.output());
        let view = self.daemon.api().run_view(id).await;
        view["output"].as_str().unwrap().to_owned()
    }

    async fn run_message(&self, session: &str) -> String {
        self.answer_of(&self.send_message(session).await).await
    }

    /// Waits until the log contains the line or the metrics have it. Both are polled over HTTP, since neither has an
    /// event.
    async fn wait_line(&self, line: &str) {
        poll_until(line, async || {
            let is_metric = self.metrics().await.lines().any(|shown| shown == line);
            (is_metric || self.daemon.output().contains(line)).then_some(())
        })
        .await;
    }

    async fn metrics(&self) -> String {
        self.daemon.api().get("/metrics").await.expect_status(200).as_str().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_run_ends_on_the_old_provider_and_the_next_one_has_the_new_one() {
    let fixture = ReloadDaemonFixture::start().await;
    let own = json!({"userId": "u", "chatId": "c", "provider": "scripted", "apiKey": "sk-own", "maxTokens": 9});
    let made = fixture.daemon.api().post("/api/sessions", &own).await.expect_status(201);
    let own_session = made["key"].as_str().unwrap().to_owned();
    assert_eq!(fixture.run_message(&own_session).await, "from the old one");
    fixture
        .old_model
        .script(ScriptedStream::new().text("begun and ").wait_for_gate("end").text("ended on the old one"));
    let running = fixture.send_message("busy").await;
    fixture.old_model.wait_for_requests(2).await;
    let changed = config_toml(&fixture.new_model, "[agents.scout]\nmodel = \"scripted/m\"\n[limits]\nmax_steps = 7\n");
    fixture.write_config(&changed);
    fixture.wait_line("configuration reloaded").await;
    fixture.wait_line("needs a restart: limits").await;
    assert_eq!(fixture.run_message("other").await, "from the new one");
    // The key was given for the old address, and a reload alone does not send it to another one.
    let kept_back = fixture.send_message(&own_session).await;
    assert_eq!(fixture.daemon.api().run_events(&kept_back, 0).await.read_to_end().await.verdict(), "failed");
    let scout = fixture.daemon.api().get("/api/agents/scout").await.expect_status(200);
    assert_eq!(scout["id"], "scout");
    fixture.old_model.open_gate("end");
    assert_eq!(fixture.answer_of(&running).await, "begun and ended on the old one");
    assert_eq!(fixture.run_message("busy").await, "from the new one");
    assert_eq!((fixture.old_model.request_count(), fixture.new_model.request_count()), (2, 2));
    assert!(fixture.daemon.stop().await.success(), "{}", fixture.daemon.output());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_file_keeps_the_old_configuration_and_is_named_and_a_mended_one_is_taken() {
    let fixture = ReloadDaemonFixture::start().await;
    fixture.wait_line("quell_config_stale 0").await;
    fixture.write_config(&config_toml(&fixture.new_model, "").replace("base_url", "base_ur"));
    fixture.wait_line("quell_config_stale 1").await;
    let output = fixture.daemon.output();
    let place = format!("{}:3:1: ", fixture.home().config_file().display());
    assert!(output.contains(&place) && output.contains("did you mean `base_url`?"), "{output}");
    assert_eq!(fixture.run_message("s").await, "from the old one");
    fixture.write_config(&config_toml(&fixture.new_model, ""));
    fixture.wait_line("quell_config_stale 0").await;
    assert_eq!(fixture.run_message("s").await, "from the new one");
    fixture.write_config(&config_toml(&fixture.old_model, "").replace("scripted/m", "demo/demo"));
    fixture.wait_line("quell_config_stale 1").await;
    assert_eq!(fixture.run_message("s").await, "from the new one");
    let looked =
        run_to_exit(fixture.home().command(quell_exe()).args(["doctor", "--config"]).arg(fixture.home().config_file()));
    assert!(looked.out.contains("does not take its configuration file"), "{looked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_vanishes_from_the_file_answers_what_it_has_and_goes_then() {
    let with_scout = |engine: &mut EngineConfig| {
        let main = engine.agents[&parse_agent_id("main")].clone();
        engine.agents.insert(parse_agent_id("scout"), main);
    };
    let test = TestEngine::start_with(ProcessLock::shared().await, with_scout).await;
    let without = test.engine.config().agents.iter().filter(|(id, _)| **id == parse_agent_id("main"));
    let without = without.map(|(id, config)| (id.clone(), config.clone())).collect();
    let providers = &test.engine.config().providers;
    test.model.script(ScriptedStream::new().text("begun ").wait_for_gate("end").text("and ended"));
    let busy = test.send(Submission { agent: Some(parse_agent_id("scout")), ..submission("s", "hello") }).await;
    test.model.wait_for_requests(1).await;
    let leaving = ReloadSummary { pending_removal: vec![parse_agent_id("scout")], ..ReloadSummary::default() };
    assert_eq!(test.engine.reload(providers, &without).unwrap(), leaving);
    assert!(test.engine.find_agent(&parse_agent_id("scout")).is_some());
    test.model.open_gate("end");
    let ended = test.wait_ended(&busy).await;
    assert_eq!((ended.verdict, ended.output.as_deref()), (Some(Verdict::Completed), Some("begun and ended")));
    assert_eq!(test.engine.reload(providers, &without).unwrap(), ReloadSummary::default());
    assert!(test.engine.find_agent(&parse_agent_id("scout")).is_none());
    let added = ReloadSummary { added: vec![parse_agent_id("scout")], ..ReloadSummary::default() };
    assert_eq!(test.engine.reload(providers, &test.engine.config().agents).unwrap(), added);
    test.model.script(ScriptedResponse::text("here again"));
    let again = test.send(Submission { agent: Some(parse_agent_id("scout")), ..submission("s", "hello") }).await;
    assert_eq!(test.wait_ended(&again).await.output.as_deref(), Some("here again"));
    test.engine.shut_down().await;
}
