//! Commands that end by themselves, or do not begin.

use std::process::Command;
use std::time::Duration;

use quell_process::{CommandSpec, ProcessEndMethod, ProcessEndReason, SpawnError};
use quell_protocol::ResourceKind;
use quell_scope::{PointProbe, Release, Scope};
use rstest::rstest;

use crate::fixture::{CommandFixture, WARDEN_BINARY, skip_time};

#[tokio::test]
async fn a_plain_command_tells_its_end_and_its_output() {
    let fixture = CommandFixture::new().await;
    let end = fixture.run_script("echo out; echo err >&2; pwd; exit 7").await;
    assert_eq!((end.code, end.signal), (Some(7), None));
    assert_eq!(
        (end.how, end.reason, end.swept, end.left_behind),
        (ProcessEndMethod::Exited, ProcessEndReason::ByItself, 0, 0)
    );
    for part in ["out\n", "err\n", std::env::temp_dir().to_str().unwrap()] {
        assert!(end.output.text().contains(part), "{:?} lacks {part:?}", end.output);
    }
    assert_eq!(end.leftovers, Vec::<String>::new());
}

#[tokio::test]
async fn the_ledger_has_a_row_with_the_facts() {
    let fixture = CommandFixture::new().await;
    fixture.run_script("exit 7").await;
    let rows = fixture.scope.ledger().rows();
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!((row.kind, row.label.as_str(), row.release()), (ResourceKind::Process, "exit 7", Some(Release::Exited)));
    let facts = row.process.as_ref().unwrap();
    assert_ne!(facts.pid, 0);
    assert_eq!((facts.command.as_str(), facts.exit_code, facts.swept), ("exit 7", Some(7), 0));
}

#[rstest]
#[case::dead_of_a_signal("kill -SEGV $$", None, Some(11), "")]
#[case::closed_output("exec >&- 2>&-; sleep 0.05; exit 4", Some(4), None, "")]
#[case::invalid_utf8(r"printf 'a\377b\342\202'", Some(0), None, "a\u{fffd}b\u{fffd}")]
#[tokio::test]
async fn a_command_tells_how_it_ended(
    #[case] script: &str,
    #[case] code: Option<i32>,
    #[case] signal: Option<i32>,
    #[case] text: &str,
) {
    let end = CommandFixture::new().await.run_script(script).await;
    assert_eq!((end.code, end.signal, end.reason), (code, signal, ProcessEndReason::ByItself));
    assert_eq!(end.output.text(), text);
}

#[tokio::test]
async fn a_command_gets_the_given_environment_default_signals_and_no_input() {
    let fixture = CommandFixture::new().await;
    let end = fixture.run_script("env; cat; grep -E 'Sig(Ign|Blk)' /proc/self/status; ls /proc/self/fd | wc -l").await;
    let text = end.output.text();
    for name in text.lines().filter_map(|line| Some(line.split_once('=')?.0)) {
        assert!(["PATH", "QUELL_RUN_ID", "PWD", "OLDPWD", "SHLVL", "_"].contains(&name), "{name} in {text}");
    }
    assert!(text.contains(&format!("QUELL_RUN_ID={}\n", fixture.run_id)), "{text}");
    for line in text.lines().filter(|line| line.starts_with("Sig")) {
        let mask = u64::from_str_radix(line.rsplit_once('\t').unwrap().1, 16).unwrap();
        // The lower 31 only: libc reserves two real-time signals.
        assert_eq!(mask & 0x7fff_ffff, 0, "{line}");
    }
    // Standard input, output and error, and the directory that `ls` reads.
    assert_eq!(text.lines().last(), Some("4"), "descriptors leak into the command");
}

#[tokio::test]
async fn a_command_that_cannot_start_reports_the_reason() {
    let fixture = CommandFixture::new().await;
    let mut spec = fixture.spec("");
    spec.argv = vec!["no-such-program-here".into()];
    // Search only directories that every user can read: elsewhere the error would be "permission denied".
    spec.env[0].1 = "/usr/bin:/bin".into();
    let error = fixture.run_spec(&spec).await.unwrap_err();
    assert!(
        matches!(&error, SpawnError::Program { program, source }
        if program == "no-such-program-here" && source.kind() == std::io::ErrorKind::NotFound),
        "{error:?}"
    );
    for cwd in ["/no/such/directory", "/etc/passwd"] {
        let spec = CommandSpec { cwd: cwd.into(), ..fixture.spec("true") };
        let error = fixture.run_spec(&spec).await.unwrap_err();
        assert!(matches!(&error, SpawnError::Directory { .. }), "{error:?}");
    }
    let spec = CommandSpec { argv: Vec::new(), ..fixture.spec("true") };
    let error = fixture.run_spec(&spec).await.unwrap_err();
    assert!(matches!(&error, SpawnError::Program { .. }), "{error:?}");
    assert!(fixture.scope.ledger().rows().iter().all(|row| row.release() == Some(Release::Failed)));
}

#[tokio::test]
async fn nothing_starts_in_a_cancelled_scope() {
    let fixture = CommandFixture::new().await;
    let directory = tempfile::tempdir().unwrap();
    fixture.scope.cancel();
    let spec = fixture.spec(&format!("touch {}", directory.path().join("mark").display()));
    assert!(matches!(fixture.run_spec(&spec).await, Err(SpawnError::Cancelled(_))));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    assert_eq!(fixture.scope.ledger().rows(), Vec::new());
}

#[tokio::test]
async fn a_cancel_between_check_and_start_ends_the_command() {
    let mut fixture = CommandFixture::new().await;
    let cell: std::sync::Arc<std::sync::OnceLock<Scope>> = std::sync::Arc::default();
    let there = std::sync::Arc::clone(&cell);
    // The probe runs before the check returns, so only another thread can cancel just after the check.
    let probe = PointProbe::new(move |_| {
        let scope = there.get().unwrap().clone();
        std::thread::spawn(move || scope.cancel());
    });
    fixture.scope = Scope::new(quell_scope::clock::Clock::start(), probe);
    cell.set(fixture.scope.clone()).unwrap();
    match fixture.run_spec(&fixture.spec("sleep 1000")).await {
        Err(SpawnError::Cancelled(_)) => {}
        Ok(end) => assert_eq!(end.reason, ProcessEndReason::Stopped),
        Err(error) => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn a_server_left_behind_is_dead_when_the_call_returns() {
    let fixture = CommandFixture::new().await;
    let end = fixture.run_script("sleep 1000 & setsid sleep 1000 & exit 3").await;
    assert_eq!((end.code, end.reason, end.how), (Some(3), ProcessEndReason::ByItself, ProcessEndMethod::Term));
    assert_eq!((end.left_behind, end.swept), (2, 2));
}

#[tokio::test]
async fn a_left_behind_server_that_ignores_signals_is_dead_too() {
    let fixture = CommandFixture::new().await;
    let script = "trap 'exit 0' USR1; (trap '' TERM INT HUP; kill -USR1 $$; exec sleep 1000) & wait";
    let end = fixture.run_script(script).await;
    assert_eq!((end.code, end.left_behind, end.how), (Some(0), 1, ProcessEndMethod::Kill));
}

/// It has 50 ms, which may be too little on a busy machine, but not a hundred times.
#[tokio::test]
async fn the_last_part_of_a_pipeline_ends_by_itself_or_is_counted() {
    let fixture = CommandFixture::new().await;
    for _ in 0..100 {
        let end = fixture.run_script("(sleep 0.01; echo late) & exit 0").await;
        if (end.left_behind, end.how) == (0, ProcessEndMethod::Exited) {
            assert_eq!(end.output.text(), "late\n");
            return;
        }
        assert_eq!((end.left_behind, end.how), (1, ProcessEndMethod::Term), "{end:?}");
    }
    panic!("no last part had the time to end by itself");
}

#[tokio::test]
async fn a_flood_is_read_to_its_end_and_kept_at_both_ends() {
    let fixture = CommandFixture::new().await;
    let end = fixture.run_script("echo first; yes | head -c 5000000; echo last").await;
    assert_eq!(end.code, Some(0));
    let kept = end.output.head.len() + end.output.tail.len();
    assert_eq!(u64::try_from(kept).unwrap() + end.output.dropped, 5_000_011);
    assert!(kept <= 64 * 1024 && end.output.head.starts_with("first\ny\n") && end.output.tail.ends_with("y\nlast\n"));
}

#[tokio::test]
async fn a_timeout_ends_the_whole_tree() {
    let fixture = CommandFixture::new().await;
    let timeout = Duration::from_secs(3600);
    let spec = fixture.spec("setsid sleep 1000 & echo begun; sleep 1000");
    let mut running = fixture.start_spec(CommandSpec { timeout: Some(timeout), ..spec });
    // The time is over when the command has begun, however long that took.
    running.wait_for_output("begun").await;
    skip_time(timeout).await;
    let end = running.handle.await.unwrap().unwrap();
    fixture.assert_gone();
    assert_eq!(
        (end.reason, end.how, end.output.text().as_str()),
        (ProcessEndReason::TimedOut, ProcessEndMethod::Term, "begun\n")
    );
    assert_eq!((end.signal, end.left_behind), (Some(15), 0));
}

/// Counts in a separate process, where nothing else opens descriptors.
#[tokio::test]
async fn descriptors_are_back_to_where_they_were() {
    let fixture = CommandFixture::new().await;
    let scripts = [
        "true",
        "echo",
        "sleep 1000 & true",
        "exit 1",
        "kill -9 $$",
        "kill -9 $PPID; sleep 1000",
        "yes | head -c 1000000",
    ];
    let output = Command::new(WARDEN_BINARY)
        .arg("descriptors")
        .args(scripts)
        .env("QUELL_RUN_ID", &fixture.run_id)
        .output()
        .unwrap();
    let counts = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}{}",
        counts.lines().last().unwrap(),
        String::from_utf8_lossy(&output.stderr)
    );
    fixture.assert_gone();
}

#[test]
fn commands_get_the_allow_listed_environment_only() {
    let have =
        ["PATH", "LC_ALL", "LANG", "HOME", "OPENAI_API_KEY", "QUELL_TOKEN", "XLC_ALL", "LD_PRELOAD", "SSH_AUTH_SOCK"];
    let kept = quell_process::base_environment(have.into_iter().map(|name| (name.into(), "value".into())));
    let names: Vec<_> = kept.iter().filter_map(|(name, _)| name.to_str()).collect();
    assert_eq!(names, ["PATH", "LC_ALL", "LANG", "HOME"]);
}
