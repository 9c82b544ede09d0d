//! The `shell` tool: the text that the model gets.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod fixture;

use quell_protocol::CallEnd;
use quell_scope::{Cancelled, StopLevel};
use quell_tools::ToolOutput;
use rstest::rstest;
use serde_json::{Value, json};

use fixture::ShellFixture;

fn args(command: &str) -> Value {
    json!({"command": command})
}

fn with_argument(mut args: Value, name: &str, value: impl Into<Value>) -> Value {
    args[name] = value.into();
    args
}

#[rstest]
#[case::success("printf done", Some(0), "done\n[exit code 0]")]
#[case::silent("true", Some(0), "[exit code 0]")]
#[case::failure("echo no >&2; exit 2", Some(2), "no\n[exit code 2]")]
#[case::signal("kill -SEGV $$", None, "[ended by signal 11]")]
#[case::invalid_utf8(r"printf '\377'", Some(0), "\u{fffd}\n[exit code 0]")]
#[case::colours(r"printf '\033[32mgreen\033[0m \033]0;title\007plain'", Some(0), "green plain\n[exit code 0]")]
#[case::progress(r"printf '10%%\r50%%\r100%%\ndone\r\n'", Some(0), "100%\ndone\n[exit code 0]")]
#[case::nobody_there("echo $TERM$COLORTERM $PAGER $EDITOR", Some(0), "dumb cat true\n[exit code 0]")]
#[case::run_id("test -n \"$QUELL_RUN_ID\" && test -z \"$HOME\"", Some(0), "[exit code 0]")]
#[tokio::test]
async fn the_model_reads_output_and_end(#[case] command: &str, #[case] code: Option<i32>, #[case] text: &str) {
    let fixture = ShellFixture::new();
    let output = fixture.call(args(command)).await;
    let end = if code == Some(0) { CallEnd::Ok } else { CallEnd::Error };
    assert_eq!(output, ToolOutput { end, code, ..ToolOutput::ok(text.to_owned()) });
}

#[tokio::test]
async fn too_much_output_is_counted() {
    let fixture = ShellFixture::new();
    let output = fixture.call(args("yes | head -c 3000")).await;
    let kept = output.text.matches('y').count() * 2;
    let dropped = output.text.split_once("[... ").and_then(|(_, rest)| rest.split_once(" bytes of output dropped"));
    let dropped: usize = dropped.unwrap().0.parse().unwrap();
    assert!(kept.abs_diff(3000 - dropped) <= 2, "{}", output.text);
    assert!(output.text.len() <= 1000 && kept > 800, "{}", output.text);
}

#[tokio::test]
async fn the_end_of_a_command_outlives_a_flood_of_output() {
    let fixture = ShellFixture::new();
    let output = fixture.call(args("seq 1 4000; exit 3")).await;
    assert!(output.text.ends_with("\n4000\n[exit code 3]"), "{}", output.text);
}

#[tokio::test]
async fn a_server_left_behind_is_told_with_the_remedy() {
    let fixture = ShellFixture::new();
    let output = fixture.call(args("sleep 1000 & sleep 1000 & echo started")).await;
    assert_eq!(output.end, CallEnd::Ok);
    let expected = "started\n[exit code 0; 2 processes it left running were ended: nothing stays alive when a call returns, \
                    unless it was started with `background: true`]";
    assert_eq!(output.text, expected);
}

#[tokio::test]
async fn escapes_and_progress_may_be_cut_between_two_reads() {
    let fixture = ShellFixture::new();
    let mut printed = fixture.seen.subscribe();
    let wait = |file: &str| format!("while [ ! -e {file} ]; do sleep 0.01; done");
    let command = format!(
        r"printf 'one\033[3'; {}; printf '2mtwo\033[0m\n10%%'; {}; printf '\r99%%\r'; {}; printf '\n'",
        wait("first"),
        wait("second"),
        wait("third")
    );
    let drive = async {
        for (text, file) in [("one", "first"), ("two\n10%", "second"), ("\r99%", "third")] {
            printed.wait_for(|seen| seen.ends_with(text)).await.unwrap();
            std::fs::write(fixture.workdir.join(file), "").unwrap();
        }
    };
    let called = fixture.call(with_argument(args(&command), "timeout_s", 60.0));
    let (output, ()) = tokio::join!(called, drive);
    assert_eq!(output.text, "onetwo\n99%\n[exit code 0]");
    assert_eq!(*printed.borrow(), "onetwo\n10%\r99%\n");
}

#[tokio::test]
async fn progress_of_one_stream_takes_nothing_from_the_other() {
    let fixture = ShellFixture::new();
    let body = r"printf '10%%\r' >&2; printf body; printf '\r100%%\n' >&2";
    let output = fixture.call(args(body)).await;
    assert!(output.text.contains("body") && output.text.contains("100%"), "{}", output.text);
}

#[rstest]
#[case::vim("vim", "vim x")]
#[case::vi("vi", "vi x")]
#[case::line_editor("ed", "ed x")]
#[case::git(
    "git",
    "git init -q . && git config user.email a@b && git config user.name n && echo x > x && git add x && git commit -qm one && git commit --amend"
)]
#[case::pager("git", "git init -q . && git -c core.pager=less branch -a && git help -g")]
#[tokio::test]
async fn programs_that_wait_for_a_key_end_at_once(#[case] program: &str, #[case] command: &str) {
    let fixture = ShellFixture::new();
    if fixture.call(args(&format!("command -v {program}"))).await.end != CallEnd::Ok {
        eprintln!("skipped: {program} is not installed");
        return;
    }
    let output = fixture.call(with_argument(args(command), "timeout_s", 60.0)).await;
    assert!(!output.text.contains("timed out"), "{}", output.text);
}

#[tokio::test]
async fn a_command_has_a_limit_that_nobody_asked_for() {
    let mut fixture = ShellFixture::new();
    fixture.shell_timeout_s = 1;
    let output = fixture.call(args("sleep 1000")).await;
    let expected = "[timed out after 1 s, the limit of a call without `timeout_s`; give `timeout_s` to what takes longer, and \
                    start what is to go on with `background: true`, ended by SIGTERM; it may have had effects already]";
    assert_eq!((output.end, output.text.as_str()), (CallEnd::Error, expected));
    let longer = with_argument(args("sleep 1.5; echo late"), "timeout_s", 600.0);
    assert_eq!(fixture.call(longer).await.text, "late\n[exit code 0]");
}

#[tokio::test]
async fn a_timeout_names_its_seconds() {
    let fixture = ShellFixture::new();
    let output = fixture.call(with_argument(args("echo begun; sleep 1000"), "timeout_s", 0.2)).await;
    let expected = "begun\n[timed out after 0.2 s, ended by SIGTERM; it may have had effects already]";
    assert_eq!(output, ToolOutput { code: output.code, ..ToolOutput::error(expected.to_owned()) });
}

#[rstest]
#[case(StopLevel::Gentle, "begun\n[stopped by request, ended by SIGTERM; it may have had effects already]")]
#[case(StopLevel::Forced, "begun\n[stopped by request, ended by SIGKILL; it may have had effects already]")]
#[tokio::test]
async fn a_stopped_command_keeps_its_output(#[case] level: StopLevel, #[case] expected: &str) {
    let fixture = ShellFixture::new();
    let mut printed = fixture.seen.subscribe();
    let stop = async {
        printed.wait_for(|text| text == "begun\n").await.unwrap();
        fixture.scope.stop(level);
    };
    let called = fixture.call(args("echo begun; sleep 1000"));
    let (output, ()) = tokio::join!(called, stop);
    assert_eq!(output, ToolOutput { end: CallEnd::Stopped, code: output.code, ..ToolOutput::ok(expected.to_owned()) });
}

#[tokio::test]
async fn a_call_of_a_stopped_run_does_not_start() {
    let fixture = ShellFixture::new();
    fixture.scope.cancel();
    assert_eq!(fixture.try_call(args("touch mark")).await, Err(Cancelled));
    assert!(!fixture.workdir.join("mark").exists());
}

#[tokio::test]
async fn it_starts_inside_the_workdir_only() {
    let mut fixture = ShellFixture::new();
    let outside = fixture.workdir.clone();
    let root = outside.join("root");
    fixture.workdir.clone_from(&root);
    std::fs::create_dir_all(root.join("sub")).unwrap();
    std::fs::create_dir(outside.join("root-of-another")).unwrap();
    std::fs::write(root.join("file"), "").unwrap();
    std::os::unix::fs::symlink("/", root.join("link")).unwrap();
    let inside = fixture.call(with_argument(args("pwd"), "cwd", "sub")).await;
    assert_eq!((inside.end, inside.text.ends_with("/root/sub\n[exit code 0]")), (CallEnd::Ok, true), "{}", inside.text);
    for (cwd, word) in [
        ("..", "outside"),
        ("../root-of-another", "outside"),
        ("/", "outside"),
        ("link", "outside"),
        ("file", "not a directory"),
        ("nowhere", "No such file"),
    ] {
        let output = fixture.call(with_argument(args("pwd"), "cwd", cwd)).await;
        assert!(output.end == CallEnd::Error && output.text.contains(word), "{cwd}: {output:?}");
    }
}

#[tokio::test]
async fn invalid_arguments_are_refused_before_the_start() {
    let fixture = ShellFixture::new();
    for (args, word) in [
        (with_argument(args("touch mark"), "timeout_s", -1.0), "positive"),
        (with_argument(args("touch mark"), "timeout_s", 0.0), "positive"),
        (args("touch mark\0"), "NUL"),
    ] {
        let output = fixture.call(args).await;
        assert!(output.end == CallEnd::Error && output.text.contains(word), "{output:?}");
    }
    assert!(!fixture.workdir.join("mark").exists());
    assert_eq!(fixture.scope.ledger().rows(), Vec::new());
}
