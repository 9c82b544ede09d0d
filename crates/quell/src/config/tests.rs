//! Errors of the configuration: their place and text, and that they show no secrets.

mod channels;

use std::fs;
use std::path::Path;

use quell_store::StoreLocation;
use rstest::rstest;

use super::{Config, LoadedConfig, load, parse_config};

const EXAMPLE: &str = include_str!("../../../../quell.example.toml");

fn parse_error(text: &str) -> String {
    parse_config(Path::new("quell.toml"), text).unwrap_err().to_string()
}

/// Asserts that a file is refused at this place, with this text.
#[track_caller]
fn assert_refused(text: &str, place: &str, says: &str) {
    let error = parse_error(text);
    assert!(error.starts_with(place) && error.contains(says), "{error}");
}

#[rstest]
#[case::unknown_key("[server]\nlistn = \"127.0.0.1:1\"\n", "quell.toml:2:1:", "did you mean `listen`?")]
#[case::unknown_section("\n[limit]\nmax_steps = 3\n", "quell.toml:2:2:", "did you mean `limits`?")]
#[case::unknown_key_of_a_provider(
    "[providers.a]\nkind = \"openai\"\nbase_ur = \"http://h/v1\"\n",
    "quell.toml:3:1:",
    "did you mean `base_url`?"
)]
#[case::unknown_key_of_an_agent(
    "[agents.main]\nmodel = \"demo/demo\"\npromt = \"x\"\n",
    "quell.toml:3:1:",
    "did you mean `prompt`?"
)]
#[case::nothing_near("[server]\nzebra = 1\n", "quell.toml:2:1:", "expected one of `listen`")]
#[case::wrong_type(
    "[limits]\nmax_steps = \"many\"\n",
    "quell.toml:2:13:",
    "invalid type: string \"many\", expected u32"
)]
#[case::negative("[limits]\n\nqueued_per_session = -1\n", "quell.toml:3:22:", "-1")]
#[case::bad_address("[server]\nlisten = \"localhost\"\n", "quell.toml:2:10:", "invalid socket address")]
#[case::date("[server]\nlisten = 2026-11-20\n", "quell.toml:2:10:", "listen")]
#[case::broken_syntax("[server\nlisten = 1\n", "quell.toml:1:", "1 | [server")]
#[case::twice("[stop]\nterm_ms = 1\nterm_ms = 2\n", "quell.toml:3:1:", "duplicate key")]
#[case::bad_enum("[agents.main]\nisolate = \"vm\"\n", "quell.toml:2:11:", "unknown variant `vm`")]
#[case::after_umlauts("[agents.main]\nrole = \"äöü\" # é\nisolate = \"vm\"\n", "quell.toml:3:11:", "vm")]
fn a_mistake_is_named_with_its_place(#[case] text: &str, #[case] place: &str, #[case] says: &str) {
    assert_refused(text, place, says);
}

#[rstest]
#[case(
    "[server]\nallowed_hosts = [\"quell.lan\", \"https://h.org\"]\n",
    "quell.toml:2:17:",
    "\"https://h.org\" is no host name"
)]
#[case("[server]\nallowed_hosts = [\"*.example.org\"]\n", "quell.toml:2:17:", "\"*.example.org\" is no host name")]
#[case(
    "[server]\nallowed_hosts = [\"example.org/chat\"]\n",
    "quell.toml:2:17:",
    "\"example.org/chat\" is no host name"
)]
#[case("[server]\nallowed_hosts = [\"\"]\n", "quell.toml:2:17:", "\"\" is no host name")]
#[case("[store]\nurl = \"mysql://h\"\n", "quell.toml:2:7:", "sqlite:FILE, or postgres://")]
#[case("[store]\nurl = \"postgres://h:x/q\"\n", "quell.toml:2:7:", "cannot be read")]
#[case("[store]\nurl = \"postgres://u:secret@h/q\"\n", "quell.toml:2:7:", "password_file")]
#[case("[store]\npassword_env = \"X\"\n", "quell.toml:2:16:", "is of no use for SQLite")]
#[case(
    "[store]\nurl = \"postgres://u@h/q\"\npassword_env = \"X\"\npassword_file = \"/y\"\n",
    "quell.toml:4:17:",
    "there is one password"
)]
#[case("[store]\nurl = \"postgres://u@h/q\"\npasword_file = \"/y\"\n", "quell.toml:3:1:", "password_file")]
#[case("[stop]\nterm_ms = 5000\ngrace_ms = 5500\n", "quell.toml:3:12:", "more than term_ms + 500 = 5500")]
#[case("[stop]\nhard_ms = 0\n", "quell.toml:2:11:", "the default is 5000")]
#[case("[limits]\nin_flight_runs = 0\n", "quell.toml:2:18:", "leave the key out")]
#[case("[memory]\nmin_relevance_score = 40.0\n", "quell.toml:2:23:", "40 must be from 0 to 1")]
#[case("[memory]\nmin_relevance_score = nan\n", "quell.toml:2:23:", "NaN must be from 0 to 1")]
#[case("[schedules]\ntimezone = \"Mars/Base\"\n", "quell.toml:2:12:", "there is no time zone \"Mars/Base\"")]
#[case("[schedules]\nmin_interval_s = 0\n", "quell.toml:2:18:", "0 must be at least 1")]
#[case("[memory]\nrecall_limit = 0\n", "quell.toml:2:16:", "0 must be from 1 to 50")]
#[case("[agents.main]\nmodel = \"gpt\"\n", "quell.toml:2:9:", "PROVIDER/MODEL")]
#[case("[agents.main]\nmodel = \"nobody/gpt\"\n", "quell.toml:2:9:", "there is no [providers.nobody]")]
#[case("[agents.main]\nparent = \"ghost\"\n", "quell.toml:2:10:", "there is no [agents.ghost]")]
#[case("[agents.a]\nparent = \"b\"\n[agents.b]\nparent = \"a\"\n", "quell.toml:2:10:", "form a circle: a -> b -> a")]
#[case("[agents.main]\n[agents.tree]\n", "quell.toml:2:", "\"tree\" has a meaning of its own")]
#[case("[agents.main]\ntools = [\"shel\"]\n", "quell.toml:2:9:", "shel")]
#[case("[agents.main]\ndaily_tokens = 0\n", "quell.toml:2:16:", "0 would let nothing through")]
#[case("[agents.main]\ndaily_cost = 2.5\n", "quell.toml:2:14:", "needs price")]
#[case("[agents.main]\nskills = \"/etc/skills\"\n", "quell.toml:2:10:", "name it as from there, such as \"skills\"")]
#[case("[agents.main]\nskills = \"a/../../b\"\n", "quell.toml:2:10:", "is no folder below the workdir")]
#[case("[agents.main]\nskills = \"\"\n", "quell.toml:2:10:", "is no folder below the workdir")]
#[case("[agents.main]\nskills = \".\"\n", "quell.toml:2:10:", "is no folder below the workdir")]
#[case("[agents.main]\nskills = \"a\\nb\"\n", "quell.toml:2:10:", "is no folder below the workdir")]
#[case("[agents.main]\nskills = \"s\"\ntools = [\"list_files\"]\n", "quell.toml:2:10:", "read_file, or shell")]
#[case(
    "[agents.main]\nskills = \"s\"\ntools = [\"read_file\"]\napprovals = { \"*\" = \"deny\" }\n",
    "quell.toml:2:10:",
    "read_file, or shell"
)]
fn a_value_that_cannot_work_is_named_with_its_place(#[case] text: &str, #[case] place: &str, #[case] says: &str) {
    assert_refused(text, place, says);
}

#[test]
fn the_password_of_the_database_comes_from_its_file_and_is_never_shown() {
    let home = tempfile::tempdir().unwrap();
    let (file, password) = (home.path().join("quell.toml"), home.path().join("password"));
    let toml = format!("[store]\nurl = \"postgres://quell@db/quell\"\npassword_file = {password:?}\n");
    fs::write(&file, toml).unwrap();
    let unread = load(Some(&file)).unwrap_err();
    assert!(format!("{unread:#}").contains("password_file of [store]"), "{unread:#}");
    fs::write(&password, "\n").unwrap();
    let empty = load(Some(&file)).unwrap().check_start(home.path()).unwrap_err().to_string();
    assert!(empty.contains("quell.toml:3:") && empty.contains("is empty"), "{empty}");
    fs::write(&password, "a-secret\n").unwrap();
    let loaded = load(Some(&file)).unwrap();
    let StoreLocation::Postgres(settings) = loaded.config.store.location() else { panic!("not PostgreSQL") };
    assert_eq!(settings.password.as_deref(), Some("a-secret"));
    assert!(loaded.protected(home.path()).files.contains(&password), "agents must not read it");
    let shown = toml::to_string_pretty(&loaded.config).unwrap();
    assert!(!shown.contains("a-secret") && !format!("{loaded:?}").contains("a-secret"));
    let variable = fs::read_to_string(&file).unwrap().replace("password_file", "password_env = \"QUELL_NO_SUCH\" #");
    fs::write(&file, variable).unwrap();
    let unset = load(Some(&file)).unwrap().check_start(home.path()).unwrap_err().to_string();
    assert!(unset.contains("QUELL_NO_SUCH is not set or empty"), "{unset}");
}

#[test]
fn skills_need_a_folder_below_the_workdir_and_a_tool_that_reads() {
    for right in ["skills = \"skills\"", "skills = \"./deep/skills/\"", "skills = \"s\"\ntools = [\"shell\"]"] {
        parse_config(Path::new("q.toml"), &format!("[agents.main]\n{right}\n")).unwrap();
    }
}

#[test]
fn a_default_that_another_key_makes_impossible_is_blamed_on_its_section() {
    assert_refused("[server]\nmax_connections = 5\n\n[stop]\nterm_ms = 4000\n", "quell.toml:4:2:", "stop.grace_ms");
}

#[rstest]
#[case::too_few("thinking_tokens = 1000", "the least is 1024")]
#[case::no_room("max_tokens = 2000\nthinking_tokens = 2000", "less than max_tokens = 2000")]
#[case::warm("temperature = 0.7\nthinking_tokens = 2000", "no temperature but 1")]
#[case::warm_adaptive("temperature = 0.7\nthinking = \"adaptive\"", "no temperature but 1")]
#[case::both("thinking = \"adaptive\"\nthinking_tokens = 2000", "leave one of them out")]
fn thinking_is_held_to_the_rules_of_the_api(#[case] keys: &str, #[case] says: &str) {
    let agent =
        |keys: &str| format!("[providers.claude]\nkind = \"anthropic\"\n[agents.main]\nmodel = \"claude/m\"\n{keys}\n");
    let error = parse_error(&agent(keys));
    let line = 4 + keys.lines().count();
    assert!(error.starts_with(&format!("quell.toml:{line}:")), "{error}");
    assert!(error.contains(says), "{error}");
    let right = agent("max_tokens = 8000\ntemperature = 1\nthinking_tokens = 2000");
    assert!(parse_config(Path::new("quell.toml"), &right).is_ok());
}

#[test]
fn a_dialect_without_thinking_in_tokens_is_not_asked_for_it() {
    assert_refused(
        "[agents.main]\nmodel = \"a/m\"\nthinking_tokens = 2000\n[providers.a]\nkind = \"openai\"\n",
        "quell.toml:3:",
        "only providers of kind",
    );
}

#[rstest]
#[case::first("\"a/m\"", false)]
#[case::demo("\"demo/demo\"", false)]
#[case::first_of_two("[\"a/m\", \"b/m\"]", false)]
#[case::second("[\"b/m\", \"a/m\"]", true)]
#[case::gemini("\"c/m\"", true)]
fn web_search_needs_a_first_model_whose_provider_has_it(#[case] model: &str, #[case] is_right: bool) {
    let kinds = [("a", "openai"), ("b", "openai-responses"), ("c", "gemini")];
    let providers = kinds.map(|(name, kind)| format!("[providers.{name}]\nkind = \"{kind}\"\n")).concat();
    let config = format!("[agents.main]\nmodel = {model}\nweb_search = true\n{providers}");
    match is_right {
        true => assert!(parse_config(Path::new("quell.toml"), &config).is_ok()),
        false => assert_refused(&config, "quell.toml:3:", "\"openai-responses\" or \"gemini\" search the web"),
    }
}

/// What a start refuses, `quell config check` refuses, with its place.
#[rstest]
#[case::misspelt_approval("[agents.main.approvals]\nshel = \"ask\"\n", "quell.toml:1:", "there is no tool \"shel\"")]
#[case::address(
    "[providers.a]\nkind = \"openai\"\nbase_url = \"127.0.0.1:8000/v1\"\n",
    "quell.toml:3:12:",
    "https://host/v1"
)]
#[case::header(
    "[providers.a]\nkind = \"openai\"\nheaders = { \"a b\" = \"c\" }\n",
    "quell.toml:3:11:",
    "is no header name"
)]
#[case::time("[providers.a]\nkind = \"openai\"\nidle_timeout_s = 0.0\n", "quell.toml:3:18:", "must be more than 0")]
#[case::sandbox("[agents.main]\nwritable = [\"relative\"]\n", "quell.toml:2:12:", "is no absolute path")]
#[case::run_as("[agents.main]\nrun_as = 1000\nisolate = \"none\"\n", "quell.toml:2:10:", "contradicts isolate")]
fn what_a_start_refuses_is_found_beforehand(#[case] text: &str, #[case] place: &str, #[case] says: &str) {
    assert_refused(text, place, says);
}

#[test]
fn limits_that_would_throw_away_everything_are_taken_for_mistakes() {
    for (line, place) in [
        ("max_age_days = 0", "retention.max_age_days"),
        ("max_sessions = 0", "retention.max_sessions"),
        ("max_mib = 15", "retention.max_mib"),
        ("responses_mib = 0", "retention.responses_mib"),
        ("audit_days = 0", "retention.audit_days"),
    ] {
        let error = parse_error(&format!("[retention]\n{line}\n"));
        assert!(error.contains(place) && error.contains("the least is"), "{error}");
    }
    parse_config(Path::new("q.toml"), "[retention]\nmax_age_days = 1\nmax_sessions = 1\nmax_mib = 16\n").unwrap();
}

#[test]
fn a_huge_time_does_not_overflow_its_own_check() {
    let error = parse_error(&format!("[stop]\nterm_ms = {}\n", i64::MAX));
    assert!(error.contains("stop.grace_ms"), "{error}");
}

#[test]
fn the_example_is_valid_and_its_plain_values_are_the_defaults() {
    let example = parse_config(Path::new("quell.example.toml"), EXAMPLE).unwrap();
    let default = Config::default();
    assert_eq!(example.server, default.server);
    assert_eq!(example.store.location(), default.store.location());
    assert_eq!(example.stop, default.stop);
    assert_eq!(example.limits, default.limits);
    assert_eq!(example.sessions, default.sessions);
    assert_eq!(example.tools, default.tools);
    assert_eq!(example.retention, default.retention);
    assert_eq!(example.messages, default.messages);
}

/// The commented-out lines of the example are documentation, too, and must stay valid.
#[test]
fn the_example_is_valid_with_its_comments_taken_off() {
    let is_key = |line: &str| {
        line.split_once(" = ").is_some_and(|(key, _)| key.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
    };
    let bare = |line: &str| match line.strip_prefix("# ") {
        Some(rest) if is_key(rest) || rest.starts_with('[') => rest.to_owned(),
        _ => line.to_owned(),
    };
    let text: Vec<String> = EXAMPLE.lines().map(bare).collect();
    let config = parse_config(Path::new("quell.example.toml"), &text.join("\n")).unwrap();
    assert_eq!(config.limits.max_run_tokens, Some(200_000));
    assert_eq!((config.retention.max_age_days, config.retention.max_sessions), (Some(90), Some(10_000)));
    assert_eq!(config.providers["openai"].api_key_env.as_deref(), Some("OPENAI_API_KEY"));
    assert_eq!(config.agents["thinker"].thinking_tokens, Some(4000));
    assert_eq!(config.providers["local"].headers.len(), 1);
    assert_eq!(config.mcp.len(), 2);
    assert_eq!(config.channels.keys().collect::<Vec<_>>(), ["irc", "telegram"]);
    assert_eq!(config.routing.rules().model_for("please refactor").as_deref(), Some("anthropic/claude-sonnet-4-5"));
}

#[rstest]
#[case::of_a_wrong_kind("[hooks]\non_create = 5\n", "quell.toml:2:13:", "a command or URL, or a list of them")]
#[case::of_a_wrong_kind_within("[hooks]\non_create = [\"a\", 5]\n", "quell.toml:2:19:", "expected a string")]
#[case::unknown("[hooks]\non_created = \"true\"\n", "quell.toml:2:1:", "did you mean `on_create`?")]
#[case::empty("[hooks]\ntimeout_ms = 9\non_start = \"\"\n", "quell.toml:3:12:", "hooks.on_start: is empty")]
#[case::unsigned("[hooks]\non_run_end = [\n\"http://h/\"]\n", "quell.toml:2:14:", "needs a secret to sign with")]
#[case::no_url("[hooks]\non_start = \"https://\"\nsecret_env = \"S\"\n", "quell.toml:2:12:", "is no URL")]
#[case::no_time("[hooks]\ntimeout_ms = 0\n", "quell.toml:2:14:", "must be from 1 to 600000")]
#[case::two_secrets("[hooks]\nsecret_env = \"S\"\nsecret_file = \"f\"\n", "quell.toml:3:15:", "excludes")]
fn a_hook_that_cannot_work_is_named_with_its_place(#[case] text: &str, #[case] place: &str, #[case] says: &str) {
    assert_refused(text, place, says);
}

#[test]
fn a_password_in_the_url_of_a_hook_is_refused_and_not_shown() {
    let error = parse_error("[hooks]\nsecret_env = \"S\"\non_start = \"https://me:hush-hush@host/\"\n");
    assert!(error.starts_with("quell.toml:3:12:") && error.contains("must not hold a user"), "{error}");
    assert!(!error.contains("hush-hush"), "{error}");
}

#[test]
fn the_secret_of_webhooks_is_not_in_the_configuration_as_shown() {
    let text = "[hooks]\non_create = \"true\"\non_run_end = [\"date\", \"http://h/\"]\nsecret_env = \"S\"\n";
    let mut config = parse_config(Path::new("quell.toml"), text).unwrap();
    config.hooks.secret = Some("hush-hush".to_owned().into());
    let shown = toml::to_string_pretty(&config).unwrap();
    assert!(!shown.contains("hush-hush") && shown.contains("secret_env = \"S\""), "{shown}");
    let again = parse_config(Path::new("shown.toml"), &shown).unwrap();
    assert_eq!((again.hooks.on_create, again.hooks.on_run_end), (config.hooks.on_create, config.hooks.on_run_end));
}

#[test]
fn the_configuration_as_shown_holds_no_secret_and_can_be_read_again() {
    let text = "[providers.a]\nkind = \"openai\"\nbase_url = \"http://h/v1\"\napi_key_env = \"A_KEY\"\n\
                headers = { Authorization = \"hush-hush\" }\n[agents.main]\nmodel = \"a/m\"\n";
    let mut config = parse_config(Path::new("quell.toml"), text).unwrap();
    config.providers.get_mut("a").unwrap().api_key = Some("sk-very-secret".to_owned().into());
    let loaded = LoadedConfig { config, file: None };
    for shown in [toml::to_string_pretty(&loaded.config).unwrap(), loaded.summary(), format!("{loaded:?}")] {
        assert!(!shown.contains("hush-hush") && !shown.contains("sk-very-secret"), "{shown}");
    }
    let shown = toml::to_string_pretty(&loaded.config).unwrap();
    assert!(shown.contains("Authorization = \"***\"") && shown.contains("api_key_env = \"A_KEY\""), "{shown}");
    let again = parse_config(Path::new("shown.toml"), &shown).unwrap();
    assert_eq!((again.server, again.limits), (loaded.config.server, loaded.config.limits));
}

#[rstest]
#[case::key("[providers.a]\nkind = \"openai\"\napi_key = \"sk-very-secret\"\n", "quell.toml:3:1:", "api_key_env")]
#[case::headers_as_text(
    "[providers.a]\nkind = \"openai\"\nheaders = \"sk-very-secret\"\n",
    "quell.toml:3:11:",
    "expected a map"
)]
#[case::broken_line(
    "[providers.a]\nheaders = { Authorization = \"Bearer sk-very-secret }\n",
    "quell.toml:2:",
    "headers = ***"
)]
#[case::in_place_of_a_variable(
    "[providers.a]\nkind = \"openai\"\napi_key_env = \"sk-very-secret\"\n",
    "quell.toml:3:15:",
    "this looks like the secret itself"
)]
#[case::also_of_a_channel(
    "[channels.a]\nkind = \"telegram\"\ntoken_env = \"123:very-secret\"\n",
    "quell.toml:3:13:",
    "this looks like the secret itself"
)]
#[case::in_a_table("[providers.a.headers]\nX-Auth = \"sk-very-secret\nx = 1\n", "quell.toml:2:", "X-Auth = ***")]
fn a_secret_in_a_wrong_line_is_not_echoed(#[case] text: &str, #[case] place: &str, #[case] says: &str) {
    let error = parse_error(text);
    assert!(error.starts_with(place) && error.contains(says), "{error}");
    assert!(!error.contains("very-secret"), "{error}");
}

/// Every key of the example is in the schema, and every object of the schema refuses unknown keys.
#[test]
fn the_schema_knows_every_key_of_the_example() {
    let schema = serde_json::to_value(schemars::schema_for!(Config)).unwrap();
    let example: toml::Value = toml::from_str(EXAMPLE).unwrap();
    let mut unknown = Vec::new();
    collect_unknown_keys(&schema, &schema, &example, "", &mut unknown);
    assert_eq!(unknown, Vec::<String>::new());
    let strict = |schema: &serde_json::Value| schema["additionalProperties"] == false;
    assert!(
        strict(&schema)
            && schema["$defs"].as_object().unwrap().values().filter(|def| def["type"] == "object").all(strict)
    );
}

fn collect_unknown_keys(
    root: &serde_json::Value,
    schema: &serde_json::Value,
    value: &toml::Value,
    at: &str,
    unknown: &mut Vec<String>,
) {
    let toml::Value::Table(table) = value else { return };
    let schema = match schema["$ref"].as_str() {
        Some(reference) => root.pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema,
    };
    for (key, value) in table {
        let at = format!("{at}.{key}");
        let known = schema["properties"]
            .get(key)
            .or_else(|| schema["additionalProperties"].is_object().then(|| &schema["additionalProperties"]));
        match known {
            Some(known) => collect_unknown_keys(root, known, value, &at, unknown),
            None => unknown.push(at),
        }
    }
}

#[rstest]
#[case("[mcp.x]\ncommand = \"server\"\nurl = \"http://127.0.0.1:1/mcp\"\n", "quell.toml:3:7:", "excludes `command`")]
#[case("[mcp.x]\nshared = true\n", "quell.toml:1:1:", "needs `command`")]
#[case("[mcp.x]\nurl = \"nowhere\"\n", "quell.toml:2:7:", "no URL")]
#[case("[mcp.x]\ncommand = \"server\"\ngrace_ms = 2000\n", "quell.toml:3:12:", "less than [stop] grace_ms = 2000")]
#[case("[mcp.x__y]\ncommand = \"server\"\n", "quell.toml:1:1:", "names of its tools begin with it")]
#[case("[agents.main]\nmcp = [\"x\"]\n", "quell.toml:2:7:", "there is no [mcp.x]")]
#[case("[agents.main]\ntools = [\"x__echo\"]\n", "quell.toml:2:9:", "there is no tool \"x__echo\"")]
fn a_wrong_mcp_section_is_refused_at_its_place(#[case] text: &str, #[case] place: &str, #[case] says: &str) {
    assert_refused(text, place, says);
}

#[test]
fn a_right_mcp_section_is_taken_and_its_secrets_are_not_shown() {
    let text = "[mcp.x]\ncommand = \"server\"\nargs = [\"-v\"]\nenv = { TOKEN = \"hush\" }\n\n\
                [mcp.y]\nurl = \"https://example.org/mcp\"\nheaders = { X-Key = \"hush\" }\napi_key_env = \"KEY\"\n\n\
                [agents.main]\ntools = [\"x__echo\"]\nmcp = [\"x\"]\n";
    let config = parse_config(Path::new("quell.toml"), text).unwrap();
    assert_eq!(config.mcp.keys().collect::<Vec<_>>(), ["x", "y"]);
    let shown = toml::to_string(&config).unwrap();
    assert!(shown.contains("TOKEN") && shown.contains("X-Key") && !shown.contains("hush"), "{shown}");
}
