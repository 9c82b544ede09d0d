//! Each problem that the doctor finds, in a temporary home. Checks that need the built binary are tested in `tests/`.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use quell_protocol::Principal;
use quell_protocol::api::Hold;
use quell_store::Store;
use quell_testkit::postgres::TestPostgres;
use rstest::rstest;
use tempfile::TempDir;

use super::finding::FindingStatus;
use super::report::ReportStyle;
use super::*;

/// A home with this configuration, as input for checks.
struct DoctorFixture {
    home: TempDir,
    input: CheckInput,
}

impl DoctorFixture {
    fn new(toml: &str) -> Self {
        // As in `main`. A second installation fails, which does not matter here.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let home = TempDir::with_prefix("quell-doctor-").unwrap();
        let file = home.path().join("quell.toml");
        fs::write(&file, toml).unwrap();
        let data = home.path().join("data");
        fs::create_dir(&data).unwrap();
        fs::set_permissions(&data, Permissions::from_mode(0o700)).unwrap();
        let input = CheckInput {
            loaded: config::load(Some(&file)),
            data_dir: Ok(data),
            environment: quell_process::base_environment(std::env::vars_os()),
            now: SystemTime::now(),
            warden: WardenExe::ThisProcess,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
        };
        Self { home, input }
    }

    /// A home with this provider and an agent with this model of it.
    fn with_provider(kind: &str, base_url: &str, model: &str) -> Self {
        Self::new(&format!(
            "[providers.a]\nkind = \"{kind}\"\nbase_url = \"{base_url}\"\n[agents.main]\nmodel = \"a/{model}\"\n"
        ))
    }

    fn data_dir(&self) -> &Path {
        self.input.data_dir.as_deref().unwrap()
    }

    fn work_dir(&self) -> PathBuf {
        config::work_dir(self.data_dir())
    }

    fn check(&self, name: &str) -> Vec<DoctorFinding> {
        match CHECKS.iter().find(|(known, _)| *known == name) {
            Some((_, DoctorCheck::System(check))) => check(&self.input),
            Some((_, DoctorCheck::Configured(check))) => check(&ConfiguredInput::from_input(&self.input).unwrap()),
            None => panic!("no check is called {name}"),
        }
    }

    /// Asserts that a check has one finding, with this state and text, and a remedy of one line if it is not ok.
    fn assert_check(&self, name: &str, state: FindingStatus, says: &str) {
        let findings = self.check(name);
        let [finding] = &findings[..] else { panic!("not one finding: {findings:#?}") };
        assert_finding(finding, state, says);
    }

    fn open_store(&self) -> Store {
        Store::open(self.data_dir(), "quell.db").unwrap()
    }
}

fn assert_finding(finding: &DoctorFinding, state: FindingStatus, says: &str) {
    assert_eq!(finding.state, state, "{finding:#?}");
    let all = format!("{}\n{}", finding.says, finding.remedy.as_deref().unwrap_or_default());
    assert!(all.contains(says), "{says} is not in {finding:#?}");
    match (&finding.remedy, state) {
        (None, FindingStatus::Ok) => {}
        (Some(remedy), FindingStatus::Warn | FindingStatus::Fail) => {
            assert!(!remedy.is_empty() && !remedy.contains('\n'), "{remedy}")
        }
        _ => panic!("a remedy is due where something is to be done, and only there: {finding:#?}"),
    }
}

#[test]
fn a_broken_configuration_is_shown_with_its_place_and_replaced_by_nothing() {
    let fixture = DoctorFixture::new("[server]\nlistn = 1\n");
    fixture.assert_check("configuration", FindingStatus::Fail, "quell.toml:2:1");
    assert!(ConfiguredInput::from_input(&fixture.input).is_none());
}

#[test]
fn a_missing_configuration_file_is_named() {
    let mut fixture = DoctorFixture::new("");
    fixture.input.loaded = config::load(Some(&fixture.home.path().join("absent.toml")));
    fixture.assert_check("configuration", FindingStatus::Fail, "absent.toml cannot be read");
}

#[test]
fn the_data_directory_is_there_private_and_a_directory() {
    let mut fixture = DoctorFixture::new("");
    fixture.assert_check("data directory", FindingStatus::Ok, "writable and private");
    fs::set_permissions(fixture.data_dir(), Permissions::from_mode(0o755)).unwrap();
    fixture.assert_check("data directory", FindingStatus::Warn, "chmod 700");
    fixture.input.data_dir = Ok(fixture.home.path().join("new/below"));
    fixture.assert_check("data directory", FindingStatus::Ok, "will be made");
    fixture.input.data_dir = Ok(fixture.home.path().join("quell.toml"));
    fixture.assert_check("data directory", FindingStatus::Fail, "is a file");
    fixture.input.data_dir = Ok(fixture.home.path().join("quell.toml/below"));
    fixture.assert_check("data directory", FindingStatus::Fail, "QUELL_HOME");
    fixture.input.data_dir = Err(anyhow::anyhow!("there is no home directory"));
    fixture.assert_check("data directory", FindingStatus::Fail, "QUELL_HOME");
}

#[rstest]
#[case(0, FindingStatus::Fail)]
#[case(100 << 20, FindingStatus::Warn)]
#[case(10 << 30, FindingStatus::Ok)]
fn little_space_is_told(#[case] free: u64, #[case] state: FindingStatus) {
    assert_finding(&files::check_free_space(free, Path::new("/data")), state, &format!("{} MiB", free >> 20));
}

#[rstest]
#[case(0, FindingStatus::Fail, "before 2025")]
#[case(1_735_689_600, FindingStatus::Ok, "plausible")]
fn a_clock_that_stands_in_the_past_fails(#[case] seconds: u64, #[case] state: FindingStatus, #[case] says: &str) {
    let mut fixture = DoctorFixture::new("");
    fixture.input.now = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    fixture.assert_check("clock", state, says);
}

#[test]
fn a_missing_shell_fails() {
    let mut fixture = DoctorFixture::new("");
    let bin = fixture.home.path().join("bin");
    fs::create_dir(&bin).unwrap();
    fixture.input.environment = vec![("PATH".into(), bin.clone().into())];
    fixture.assert_check("shell", FindingStatus::Fail, "no `sh` in PATH");
    fs::write(bin.join("sh"), "").unwrap();
    fs::set_permissions(bin.join("sh"), Permissions::from_mode(0o600)).unwrap();
    fixture.assert_check("shell", FindingStatus::Fail, "no `sh` in PATH");
    fs::set_permissions(bin.join("sh"), Permissions::from_mode(0o700)).unwrap();
    fixture.assert_check("shell", FindingStatus::Ok, "bin/sh");
}

#[test]
fn the_database_is_looked_at_and_left_alone() {
    let fixture = DoctorFixture::new("");
    fixture.assert_check("database", FindingStatus::Ok, "will be made");
    assert_eq!(fs::read_dir(fixture.data_dir()).unwrap().count(), 0, "a look made files");
    fixture.input.runtime.block_on(fixture.open_store().close());
    fixture.assert_check("database", FindingStatus::Ok, "is whole");
    fs::write(fixture.data_dir().join("quell.db"), "this is no database, and was none before either").unwrap();
    fixture.assert_check("database", FindingStatus::Fail, "damaged");
}

#[test]
#[ignore = "full: PostgreSQL"]
fn a_database_on_a_server_is_looked_at_and_left_alone() {
    let Some(mut server) = TestPostgres::start() else { return };
    let fixture = DoctorFixture::new(&format!("[store]\nurl = \"{}\"\n", server.url()));
    fixture.assert_check("database", FindingStatus::Ok, "the tables will be made at the first start");
    fixture.assert_check("hold", FindingStatus::Ok, "off");
    assert_eq!(server.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"), "0", "a look made tables");
    let location = fixture.input.loaded.as_ref().unwrap().config.store.location();
    let store = location.open(fixture.data_dir()).unwrap();
    let hold = Hold { held: true, ..Hold::default() };
    fixture.input.runtime.block_on(store.runs().set_hold(&hold, None)).unwrap();
    fixture.assert_check("database", FindingStatus::Ok, "PostgreSQL 1");
    fixture.assert_check("database", FindingStatus::Ok, "the schema is known");
    fixture.assert_check("hold", FindingStatus::Warn, "quell hold off");
    fixture.input.runtime.block_on(store.close());
    server.sql("UPDATE quell_schema SET version = 99");
    fixture.assert_check("database", FindingStatus::Fail, "upgrade quell");
    server.kill();
    fixture.assert_check("database", FindingStatus::Fail, "psql");
}

/// A node of a cluster on this server, and the folder with its secret.
fn cluster_fixture(url: &str, secret: &str) -> (DoctorFixture, TempDir) {
    let folder = TempDir::with_prefix("quell-secret-").unwrap();
    let file = folder.path().join("secret");
    fs::write(&file, secret).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let toml = format!("[store]\nurl = \"{url}\"\n[cluster]\nnode = \"a\"\nsecret_file = {file:?}\n");
    (DoctorFixture::new(&toml), folder)
}

const UNREACHABLE: &str = "postgres://quell@127.0.0.1:1/quell";

#[test]
fn the_secret_of_a_cluster_is_long_and_private() {
    DoctorFixture::new("").assert_check("cluster", FindingStatus::Ok, "not a node of one");
    let (too_short, _folder) = cluster_fixture(UNREACHABLE, "short\n");
    too_short.assert_check("cluster", FindingStatus::Fail, "at least 32");
    let (fixture, folder) = cluster_fixture(UNREACHABLE, &format!("{}\n", "k".repeat(32)));
    fixture.assert_check("cluster", FindingStatus::Ok, "is private");
    let file = folder.path().join("secret");
    fs::set_permissions(&file, Permissions::from_mode(0o440)).unwrap();
    fixture.assert_check("cluster", FindingStatus::Ok, "is private");
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    fixture.assert_check("cluster", FindingStatus::Fail, "chmod 600");
    assert!(!format!("{:?}", fixture.check("cluster")).contains("kkkk"));
}

#[test]
#[ignore = "full: PostgreSQL"]
fn the_nodes_of_a_cluster_are_looked_at_and_left_alone() {
    let Some(server) = TestPostgres::start() else { return };
    let (fixture, _folder) = cluster_fixture(&server.url(), &"k".repeat(32));
    let says = |fixture: &DoctorFixture| format!("{:#?}", fixture.check("cluster"));
    assert!(says(&fixture).contains("the name a is free for this daemon"), "{}", says(&fixture));
    let location = fixture.input.loaded.as_ref().unwrap().config.store.location();
    fixture.input.runtime.block_on(location.open(fixture.data_dir()).unwrap().close());
    server.sql(
        "INSERT INTO nodes (epoch, name, directory, version, expires_at, report)
         VALUES (90, 'a', 'd', '0.1.0', clock_timestamp() + interval '1 hour', '{}'),
                (91, 'b', 'e', '0.1.0', clock_timestamp() + interval '1 hour', '{\"lease_ms\": 5000}'),
                (92, 'c', 'f', '0.9.0', clock_timestamp() + interval '1 hour', '{}'),
                (93, 'dead', 'g', '0.1.0', clock_timestamp(), '{}')",
    );
    let text = says(&fixture);
    for part in [
        "the clock of the database agrees",
        "the node a is at work, and no daemon runs on this data directory",
        "other nodes: b (0.1.0), c (0.9.0)",
        "the node c has version 0.9.0",
        "lease_ms is 5000 on the node b, and 10000 here",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert_eq!(server.sql("SELECT count(*) FROM nodes"), "4");
}

#[rstest]
#[case(0, FindingStatus::Ok, "agrees")]
#[case(-2000, FindingStatus::Ok, "agrees")]
#[case(2500, FindingStatus::Warn, "2.5 s ahead of")]
#[case(-90_000, FindingStatus::Warn, "90.0 s behind")]
fn a_clock_of_the_database_that_goes_wrong_is_told(
    #[case] skew_ms: i64,
    #[case] state: FindingStatus,
    #[case] says: &str,
) {
    assert_finding(&cluster::check_clock(skew_ms), state, says);
}

#[rstest]
#[case("0.4.2", "0.5.0", true)]
#[case("0.4.2", "0.4.9", true)]
#[case("0.4.2", "0.6.0", false)]
#[case("1.0.0", "0.9.0", false)]
#[case("1.0.0", "unknown", false)]
fn neighbouring_versions_work_together(#[case] version: &str, #[case] other: &str, #[case] together: bool) {
    assert_eq!(cluster::are_neighbours(version, other), together);
}

#[test]
fn a_hold_that_was_forgotten_is_told() {
    let fixture = DoctorFixture::new("");
    let store = fixture.open_store();
    let hold = Hold {
        held: true,
        reason: Some("upgrade".into()),
        since: Some("2026-11-20T10:00:00.000000Z".into()),
        by: Some(Principal::parse("alice").unwrap()),
        ..Hold::default()
    };
    fixture.input.runtime.block_on(store.runs().set_hold(&hold, None)).unwrap();
    // Also while another process has the database open.
    fixture.assert_check("hold", FindingStatus::Warn, "quell hold off");
    fixture.assert_check("hold", FindingStatus::Warn, "by alice (upgrade)");
    fixture.input.runtime.block_on(store.runs().set_hold(&Hold::default(), None)).unwrap();
    fixture.assert_check("hold", FindingStatus::Ok, "off");
}

#[test]
fn a_token_for_everybody_fails() {
    let fixture = DoctorFixture::new("");
    let token = fixture.data_dir().join("token");
    fixture.assert_check("admin token", FindingStatus::Ok, "will be made");
    fs::write(&token, "").unwrap();
    fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    fixture.assert_check("admin token", FindingStatus::Fail, "is empty");
    fs::write(&token, "secret-token\n").unwrap();
    fixture.assert_check("admin token", FindingStatus::Ok, "private");
    fs::set_permissions(&token, Permissions::from_mode(0o644)).unwrap();
    fixture.assert_check("admin token", FindingStatus::Fail, "chmod 600");
    assert!(!format!("{:?}", fixture.check("admin token")).contains("secret-token"));
}

#[test]
fn workdirs_have_to_be_directories() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    for (workdir, state, says) in [
        (home.path(), FindingStatus::Ok, "agent main is writable"),
        (&file, FindingStatus::Fail, "is a file"),
        (&home.path().join("none"), FindingStatus::Warn, "does not exist"),
    ] {
        DoctorFixture::new(&format!("[agents.main]\nworkdir = {workdir:?}\n")).assert_check("workdirs", state, says);
    }
    DoctorFixture::new("").assert_check("workdirs", FindingStatus::Ok, "work");
}

#[test]
fn skills_are_named_and_so_is_what_is_left_out() {
    DoctorFixture::new("").assert_check("skills", FindingStatus::Ok, "no agent has any");
    let fixture = DoctorFixture::new("[agents.main]\nskills = \"skills\"\n");
    fixture.assert_check("skills", FindingStatus::Warn, "agent main has none");
    let folder = fixture.work_dir().join("main/skills");
    fs::create_dir_all(folder.join("a")).unwrap();
    fixture.assert_check("skills", FindingStatus::Warn, "\"skills/a/SKILL.md\" does not exist");
    fs::write(folder.join("a/SKILL.md"), "---\nname: a\ndescription: d\n---\n").unwrap();
    fixture.assert_check("skills", FindingStatus::Ok, "agent main: a");
    fs::create_dir_all(folder.join("b")).unwrap();
    let found = fixture.check("skills");
    let [one, other] = &found[..] else { panic!("{found:#?}") };
    assert_finding(one, FindingStatus::Ok, "agent main: a");
    assert_finding(other, FindingStatus::Warn, "\"skills/b/SKILL.md\" does not exist");
}

#[test]
fn an_mcp_server_that_an_agent_can_replace_is_warned_of_and_not_started() {
    let places = TempDir::with_prefix("quell-doctor-writable-").unwrap();
    let (writable, started) = (places.path().join("writable"), places.path().join("started"));
    fs::create_dir(&writable).unwrap();
    let program = writable.join("server");
    fs::write(&program, format!("#!/bin/sh\ntouch {}\n", started.display())).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let toml = format!("[agents.main]\nwritable = [{writable:?}]\n[mcp.files]\ncommand = {program:?}\n");
    DoctorFixture::new(&toml).assert_check("MCP servers", FindingStatus::Warn, "it was not started");
    assert!(!started.exists());
}

#[test]
fn a_port_that_is_taken_and_doors_open_to_others_are_told() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    assert_finding(&daemon::check_listen_address(address), FindingStatus::Fail, "taken by another program");
    drop(taken);
    assert_finding(&daemon::check_listen_address(address), FindingStatus::Ok, "free");
    // TEST-NET-1 is no address of this machine.
    let elsewhere = daemon::check_listen_address("192.0.2.1:7171".parse().unwrap());
    assert_finding(&elsewhere, FindingStatus::Fail, "cannot listen");
    assert!(daemon::check_exposure(address).is_none());
    let open = daemon::check_exposure("0.0.0.0:7171".parse().unwrap()).unwrap();
    assert_finding(&open, FindingStatus::Warn, "in the clear");
}

#[test]
fn a_daemon_that_holds_the_directory_and_does_not_answer_is_named_by_its_pid() {
    let fixture = DoctorFixture::new("[server]\nlisten = \"127.0.0.1:0\"\n");
    let _held = fixture.open_store();
    let pid = format!("pid {}", std::process::id());
    fixture.assert_check("daemon", FindingStatus::Warn, &pid);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    fs::write(fixture.data_dir().join(crate::daemon::ADDRESS_FILE), format!("{closed}\n")).unwrap();
    fixture.assert_check("daemon", FindingStatus::Fail, "does not answer");
}

#[test]
fn without_a_provider_the_demo_model_is_announced() {
    let fixture = DoctorFixture::new("[agents.main]\nmodel = \"demo/demo\"\n[providers.demo]\nkind = \"demo\"\n");
    fixture.assert_check("providers", FindingStatus::Warn, "demo model answers");
}

#[test]
fn a_key_that_is_named_but_not_there_fails_without_asking_anybody() {
    let fixture = DoctorFixture::new(
        "[providers.a]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:1/v1\"\napi_key_env = \"QUELL_TEST_NO_SUCH_KEY\"\n",
    );
    fixture.assert_check("providers", FindingStatus::Fail, "QUELL_TEST_NO_SUCH_KEY, which is not set or empty");
}

/// A model server that answers every request with this status and body.
fn model_server(status: &'static str, body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let mut byte = [0];
        while !request.ends_with(b"\r\n\r\n") && io::Read::read(&mut socket, &mut byte).unwrap() == 1 {
            request.push(byte[0]);
        }
        let length = body.len();
        write!(socket, "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}").unwrap();
    });
    address.to_string()
}

#[rstest]
#[case::served("200 OK", r#"{"data":[{"id":"m:latest"},{"id":"n"}]}"#, "/v1", FindingStatus::Ok, "lists 2 models")]
#[case::bad_key("401 Unauthorized", r#"{"error":{"message":"bad key"}}"#, "/v1", FindingStatus::Fail, "check the key")]
#[case::no_v1("404 Not Found", "404 page not found", "", FindingStatus::Fail, "lacks its /v1")]
#[case::web_page("200 OK", "<html>welcome</html>", "", FindingStatus::Fail, "lacks its /v1")]
#[case::no_list("404 Not Found", "{}", "/v1", FindingStatus::Warn, "no list of models")]
#[case::ill("500 Internal Server Error", "oops", "/v1", FindingStatus::Warn, "oops")]
fn a_provider_is_asked(
    #[case] status: &'static str,
    #[case] body: &'static str,
    #[case] path: &str,
    #[case] state: FindingStatus,
    #[case] says: &str,
) {
    let address = model_server(status, body);
    let base_url = format!("http://{address}{path}");
    DoctorFixture::with_provider("openai", &base_url, "m").assert_check("providers", state, says);
}

#[test]
fn a_name_without_its_date_is_served_in_the_anthropic_dialect_too() {
    let list = r#"{"data":[{"type":"model","id":"m-20250929"},{"id":"m-mini-20250929"}],"has_more":false}"#;
    let address = model_server("200 OK", list);
    let fixture = DoctorFixture::with_provider("anthropic", &format!("http://{address}/v1"), "m");
    fixture.assert_check("providers", FindingStatus::Ok, "lists 2 models");
}

#[test]
fn a_model_that_is_not_served_is_told_with_those_that_are() {
    let address = model_server("200 OK", r#"{"data":[{"id":"x"},{"id":"y"}]}"#);
    let fixture = DoctorFixture::with_provider("openai", &format!("http://{address}/v1"), "z");
    let findings = fixture.check("providers");
    assert_eq!(findings.len(), 2, "{findings:#?}");
    assert_finding(&findings[0], FindingStatus::Ok, "lists 2 models");
    assert_finding(&findings[1], FindingStatus::Warn, "x, y");
}

#[test]
fn a_provider_that_cannot_be_reached_fails() {
    let fixture = DoctorFixture::with_provider("openai", "http://127.0.0.1:1/v1", "m");
    fixture.assert_check("providers", FindingStatus::Fail, "start the server");
}

fn render_report(style: ReportStyle, findings: Vec<DoctorFinding>) -> (String, bool) {
    let mut text = Vec::new();
    let mut report = DoctorReport::new(style, &mut text);
    report.start_check("hold").unwrap();
    report.add_findings("hold", findings).unwrap();
    report.skip_check("daemon");
    let healthy = report.finish().unwrap();
    (String::from_utf8(text).unwrap(), healthy)
}

#[test]
fn a_warning_is_no_failure_and_a_pipe_gets_neither_colour_nor_progress() {
    let (text, healthy) = render_report(
        ReportStyle::Plain,
        vec![DoctorFinding::ok("fine\nsecond line"), DoctorFinding::warn("odd", "do this")],
    );
    assert!(healthy);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "✓ ok    hold            fine");
    assert_eq!(lines[1].trim_start(), "second line");
    assert_eq!(lines[2], "! warn  hold            odd");
    assert_eq!(lines[3].trim_start(), "→ do this");
    assert!(text.contains("Not checked, because of the above: daemon.") && !text.contains('\x1b'), "{text}");
}

#[test]
fn a_failure_is_counted_and_coloured_only_where_wanted() {
    let (plain, healthy) =
        render_report(ReportStyle::Terminal { color: false }, vec![DoctorFinding::fail("broken", "mend it")]);
    assert!(!healthy && plain.contains("… hold") && plain.contains("1 to mend.") && !plain.contains("\x1b[1;33m"));
    let (colored, _) =
        render_report(ReportStyle::Terminal { color: true }, vec![DoctorFinding::fail("broken", "mend it")]);
    assert!(colored.contains("\x1b[1;33m✗ fail\x1b[0m"), "{colored}");
}

#[test]
fn programs_get_one_json_value() {
    let (text, healthy) =
        render_report(ReportStyle::Json, vec![DoctorFinding::ok("fine"), DoctorFinding::fail("broken", "mend it")]);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(!healthy);
    assert_eq!(value["ok"], false);
    assert_eq!(value["notMade"], serde_json::json!(["daemon"]));
    assert_eq!(
        value["findings"][1],
        serde_json::json!({"check": "hold", "state": "fail", "says": "broken", "remedy": "mend it"})
    );
}
