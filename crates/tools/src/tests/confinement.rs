//! Nothing outside the workdir can be reached, and only regular files are opened.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use proptest::prelude::*;
use rstest::rstest;

use super::*;

/// Paths that lead outside, in the workdir of [`hostile_workdir`].
const ESCAPES: [&str; 16] = [
    "..",
    "../secret",
    "./../secret",
    "a/../../secret",
    "a/b/../../../secret",
    "/etc/passwd",
    "/proc/self/environ",
    "/dev/zero",
    "up/secret",
    "up/work/../secret",
    "a/up2/secret",
    "direct",
    "chain",
    "absolute",
    "proc/self/cmdline",
    "a/../direct",
];

fn hostile_workdir() -> ToolFixture {
    let fixture = ToolFixture::new();
    fixture.write_file("a/b/file", "inside");
    symlink("..", fixture.path("up")).unwrap();
    symlink("../..", fixture.path("a/up2")).unwrap();
    symlink("../secret", fixture.path("direct")).unwrap();
    symlink("direct", fixture.path("chain")).unwrap();
    symlink(fixture.dir.path().join("secret"), fixture.path("absolute")).unwrap();
    symlink("/proc", fixture.path("proc")).unwrap();
    symlink("a/b/file", fixture.path("good")).unwrap();
    symlink("loop2", fixture.path("loop1")).unwrap();
    symlink("loop1", fixture.path("loop2")).unwrap();
    fixture
}

#[tokio::test]
async fn paths_that_lead_outside_are_refused_by_every_tool() {
    let fixture = hostile_workdir();
    for path in ESCAPES {
        for (tool, given) in [
            ("read_file", json!({"path": path})),
            ("write_file", json!({"path": path, "content": "gone"})),
            ("edit_file", json!({"path": path, "old": "outside", "new": "gone"})),
            ("list_files", json!({"path": path})),
            ("search_files", json!({"path": path, "pattern": "outside"})),
        ] {
            let text = fixture.call_error(tool, given).await;
            assert!(text.contains("leads outside the working directory"), "{tool} {path}: {text}");
        }
    }
    assert_eq!(std::fs::read_to_string(fixture.dir.path().join("secret")).unwrap(), "outside");
    assert_eq!(std::fs::read_dir(fixture.dir.path()).unwrap().count(), 2);
}

#[tokio::test]
async fn new_files_are_not_made_outside() {
    let fixture = hostile_workdir();
    for path in ["../new", "up/new", "a/up2/new/deep", "/tmp/quell-escape-new", "proc/new"] {
        let text = fixture.call_error("write_file", json!({"path": path, "content": "x"})).await;
        assert!(text.contains("leads outside"), "{path}: {text}");
    }
    let text = fixture.call_error("write_file", json!({"path": "x/../../new", "content": "x"})).await;
    assert!(text.contains("does not exist"), "{text}");
    assert_eq!(std::fs::read_dir(fixture.dir.path()).unwrap().count(), 2);
    assert!(!Path::new("/tmp/quell-escape-new").exists());
    assert!(!fixture.path("x").exists(), "a directory made on the way goes again");
}

#[tokio::test]
async fn paths_that_stay_inside_are_followed() {
    let fixture = hostile_workdir();
    let absolute = fixture.path("a/b/file");
    for path in
        ["a/b/file", "./a/b/file", "a//b/file", "good", "a/../good", "a/b/../b/file", absolute.to_str().unwrap()]
    {
        assert_eq!(fixture.call_ok("read_file", json!({"path": path})).await, "inside\n".trim_end(), "{path}");
    }
    fixture.call_ok("write_file", json!({"path": "good", "content": "through the link"})).await;
    assert_eq!(fixture.read_file("a/b/file"), "through the link");
    assert!(std::fs::symlink_metadata(fixture.path("good")).unwrap().is_symlink());
    assert!(fixture.call_error("read_file", json!({"path": "loop1"})).await.contains("too many symlinks"));
    assert!(
        fixture.call_error("write_file", json!({"path": "loop1", "content": ""})).await.contains("too many symlinks")
    );
}

#[tokio::test]
async fn a_workdir_behind_a_symlink_is_no_obstacle() {
    let fixture = hostile_workdir();
    symlink(fixture.path(""), fixture.dir.path().join("alias")).unwrap();
    let mut context = fixture.file_context();
    context.workdir = fixture.dir.path().join("alias");
    let flag = AtomicBool::new(false);
    for path in [fixture.dir.path().join("alias/a/b/file"), fixture.path("a/b/file"), PathBuf::from("good")] {
        let tool: read::ReadFile = parse_arguments(&json!({"path": path})).unwrap();
        assert_eq!(tool.execute(&context, &StopFlag(&flag)), Ok("inside".into()), "{path:?}");
    }
    let tool: write::WriteFile = parse_arguments(&json!({"path": "good", "content": "new"})).unwrap();
    execute_without_backup(tool, &context, &StopFlag(&flag)).unwrap();
    assert_eq!(fixture.read_file("a/b/file"), "new");
}

#[tokio::test]
async fn only_regular_files_are_opened() {
    let fixture = ToolFixture::new();
    make_fifo(&fixture.path("fifo"));
    let _socket = UnixListener::bind(fixture.path("socket")).unwrap();
    std::fs::create_dir(fixture.path("dir")).unwrap();
    for (name, what) in [("fifo", "is a named pipe"), ("socket", "is a socket"), ("dir", "is a directory")] {
        for (tool, given) in [
            ("read_file", json!({"path": name})),
            ("write_file", json!({"path": name, "content": "x"})),
            ("edit_file", json!({"path": name, "old": "x", "new": "y"})),
        ] {
            let text = fixture.call_error(tool, given).await;
            assert!(text.contains(what), "{tool} {name}: {text}");
        }
    }
    let text = fixture.call_error("search_files", json!({"path": "fifo", "pattern": "x"})).await;
    assert!(text.contains("is a named pipe"), "{text}");
}

#[tokio::test]
async fn devices_are_refused_also_when_nothing_is_confined() {
    let fixture = ToolFixture::with(ToolSettings { unconfined: true, ..ToolSettings::default() });
    for path in ["/dev/zero", "/dev/null", "/dev/tty"] {
        let text = fixture.call_error("read_file", json!({"path": path})).await;
        assert!(text.contains("is a device"), "{text}");
    }
}

#[tokio::test]
async fn unconfined_tools_go_anywhere() {
    let fixture = ToolFixture::with(ToolSettings { unconfined: true, ..ToolSettings::default() });
    assert_eq!(fixture.call_ok("read_file", json!({"path": "../secret"})).await, "outside");
    let other = fixture.dir.path().join("other/file");
    fixture.call_ok("write_file", json!({"path": other, "content": "hello"})).await;
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "hello");
    let text = fixture.call_ok("search_files", json!({"path": "..", "pattern": "hello"})).await;
    assert_eq!(text, "../other/file:1:hello\n");
    let text = fixture.call_ok("list_files", json!({"path": fixture.dir.path().join("other")})).await;
    assert!(text.starts_with(other.to_str().unwrap()), "{text}");
}

#[rstest]
#[case("", "the path is empty")]
#[case("a\0b", "holds a NUL character")]
#[case("nothing", "does not exist")]
#[case("file/below", "is not a directory, or a part of that path is not")]
#[tokio::test]
async fn odd_paths_are_explained(#[case] path: &str, #[case] wanted: &str) {
    let fixture = ToolFixture::new();
    fixture.write_file("file", "x");
    let text = fixture.call_error("read_file", json!({"path": path})).await;
    assert!(text.contains(wanted), "{text}");
}

#[rstest]
#[case("x".repeat(300))]
#[case("d/".repeat(5000))]
#[case("../".repeat(100_000))]
#[tokio::test]
async fn very_long_paths_are_refused_in_few_words(#[case] path: String) {
    let fixture = ToolFixture::new();
    for tool in ["read_file", "list_files"] {
        let text = fixture.call_error(tool, json!({"path": path})).await;
        assert!(text.len() < 500 && text.contains("too long"), "{text}");
    }
    fixture.call_error("write_file", json!({"path": path, "content": ""})).await;
    assert_eq!(fixture.file_names(), [""; 0]);
}

#[tokio::test]
async fn a_missing_workdir_is_named() {
    let fixture = ToolFixture::new();
    std::fs::remove_dir(fixture.path("")).unwrap();
    let text = fixture.call_error("list_files", json!({})).await;
    assert!(text.starts_with("the working directory ") && text.contains("cannot be opened"), "{text}");
}

fn path_part() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "..", ".", "", "a", "b", "file", "up", "up2", "direct", "chain", "absolute", "proc", "self", "root", "cwd",
        "good", "secret", "work", "etc", "passwd", "loop1",
    ])
    .prop_map(str::to_owned)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_path_reaches_what_is_outside(parts in prop::collection::vec(path_part(), 0..8), rooted in any::<bool>()) {
        let fixture = hostile_workdir();
        let path = format!("{}{}", if rooted { "/" } else { "" }, parts.join("/"));
        let flag = AtomicBool::new(false);
        let (context, stop) = (fixture.file_context(), StopFlag(&flag));
        let read: read::ReadFile = parse_arguments(&json!({"path": path})).unwrap();
        if let Ok(text) = read.execute(&context, &stop) { prop_assert_eq!(text, "inside"); }
        let search: search::SearchFiles = parse_arguments(&json!({"path": path, "pattern": "outside|root:"})).unwrap();
        if let Ok(text) = search.execute(&context, &stop) { prop_assert!(text.starts_with("[no match"), "{}", text); }
        let write: write::WriteFile = parse_arguments(&json!({"path": path, "content": "inside"})).unwrap();
        let _ = execute_without_backup(write, &context, &stop);
        prop_assert_eq!(std::fs::read_to_string(fixture.dir.path().join("secret")).unwrap(), "outside");
        prop_assert_eq!(std::fs::read_dir(fixture.dir.path()).unwrap().count(), 2);
    }
}
