//! Nothing outside the workdir can be reached, and nothing but regular files is opened.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use proptest::prelude::*;
use rstest::rstest;

use super::*;

/// Paths that lead out, in the workdir that [`hostile`] makes.
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

fn hostile() -> Bench {
    let bench = Bench::new();
    bench.put("a/b/file", "inside");
    symlink("..", bench.path("up")).unwrap();
    symlink("../..", bench.path("a/up2")).unwrap();
    symlink("../secret", bench.path("direct")).unwrap();
    symlink("direct", bench.path("chain")).unwrap();
    symlink(bench.dir.path().join("secret"), bench.path("absolute")).unwrap();
    symlink("/proc", bench.path("proc")).unwrap();
    symlink("a/b/file", bench.path("good")).unwrap();
    symlink("loop2", bench.path("loop1")).unwrap();
    symlink("loop1", bench.path("loop2")).unwrap();
    bench
}

#[tokio::test]
async fn what_leads_out_is_refused_by_every_tool() {
    let bench = hostile();
    for path in ESCAPES {
        for (tool, given) in [
            ("read_file", json!({"path": path})),
            ("write_file", json!({"path": path, "content": "gone"})),
            ("edit_file", json!({"path": path, "old": "outside", "new": "gone"})),
            ("list_files", json!({"path": path})),
            ("search_files", json!({"path": path, "pattern": "outside"})),
        ] {
            let text = bench.error(tool, given).await;
            assert!(text.contains("leads outside the working directory"), "{tool} {path}: {text}");
        }
    }
    assert_eq!(std::fs::read_to_string(bench.dir.path().join("secret")).unwrap(), "outside");
    assert_eq!(std::fs::read_dir(bench.dir.path()).unwrap().count(), 2);
}

#[tokio::test]
async fn new_files_are_not_made_outside() {
    let bench = hostile();
    for path in ["../new", "up/new", "a/up2/new/deep", "/tmp/quell-escape-new", "proc/new"] {
        let text = bench.error("write_file", json!({"path": path, "content": "x"})).await;
        assert!(text.contains("leads outside"), "{path}: {text}");
    }
    let text = bench.error("write_file", json!({"path": "x/../../new", "content": "x"})).await;
    assert!(text.contains("does not exist"), "{text}");
    assert_eq!(std::fs::read_dir(bench.dir.path()).unwrap().count(), 2);
    assert!(!Path::new("/tmp/quell-escape-new").exists());
    assert!(!bench.path("x").exists(), "a directory made on the way goes again");
}

#[tokio::test]
async fn what_stays_inside_is_followed() {
    let bench = hostile();
    let absolute = bench.path("a/b/file");
    for path in
        ["a/b/file", "./a/b/file", "a//b/file", "good", "a/../good", "a/b/../b/file", absolute.to_str().unwrap()]
    {
        assert_eq!(bench.ok("read_file", json!({"path": path})).await, "inside\n".trim_end(), "{path}");
    }
    bench.ok("write_file", json!({"path": "good", "content": "through the link"})).await;
    assert_eq!(bench.get("a/b/file"), "through the link");
    assert!(std::fs::symlink_metadata(bench.path("good")).unwrap().is_symlink());
    assert!(bench.error("read_file", json!({"path": "loop1"})).await.contains("too many symlinks"));
    assert!(bench.error("write_file", json!({"path": "loop1", "content": ""})).await.contains("too many symlinks"));
}

#[tokio::test]
async fn a_workdir_behind_a_symlink_is_no_obstacle() {
    let bench = hostile();
    symlink(bench.path(""), bench.dir.path().join("alias")).unwrap();
    let mut ground = bench.ground();
    ground.workdir = bench.dir.path().join("alias");
    let flag = AtomicBool::new(false);
    for path in [bench.dir.path().join("alias/a/b/file"), bench.path("a/b/file"), PathBuf::from("good")] {
        let tool: read::ReadFile = arguments::parse(&json!({"path": path})).unwrap();
        assert_eq!(tool.work(&ground, &Stop(&flag)), Ok("inside".into()), "{path:?}");
    }
    let tool: write::WriteFile = arguments::parse(&json!({"path": "good", "content": "new"})).unwrap();
    tool.work(&ground, &Stop(&flag)).unwrap();
    assert_eq!(bench.get("a/b/file"), "new");
}

#[tokio::test]
async fn only_regular_files_are_opened() {
    let bench = Bench::new();
    fifo(&bench.path("fifo"));
    let _socket = UnixListener::bind(bench.path("socket")).unwrap();
    std::fs::create_dir(bench.path("dir")).unwrap();
    for (name, what) in [("fifo", "is a named pipe"), ("socket", "is a socket"), ("dir", "is a directory")] {
        for (tool, given) in [
            ("read_file", json!({"path": name})),
            ("write_file", json!({"path": name, "content": "x"})),
            ("edit_file", json!({"path": name, "old": "x", "new": "y"})),
        ] {
            let text = bench.error(tool, given).await;
            assert!(text.contains(what), "{tool} {name}: {text}");
        }
    }
    let text = bench.error("search_files", json!({"path": "fifo", "pattern": "x"})).await;
    assert!(text.contains("is a named pipe"), "{text}");
}

#[tokio::test]
async fn devices_are_refused_also_when_nothing_is_confined() {
    let bench = Bench::with(ToolSettings { unconfined: true, ..ToolSettings::default() });
    for path in ["/dev/zero", "/dev/null", "/dev/tty"] {
        let text = bench.error("read_file", json!({"path": path})).await;
        assert!(text.contains("is a device"), "{text}");
    }
}

#[tokio::test]
async fn unconfined_tools_go_anywhere() {
    let bench = Bench::with(ToolSettings { unconfined: true, ..ToolSettings::default() });
    assert_eq!(bench.ok("read_file", json!({"path": "../secret"})).await, "outside");
    let other = bench.dir.path().join("other/file");
    bench.ok("write_file", json!({"path": other, "content": "hello"})).await;
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "hello");
    let text = bench.ok("search_files", json!({"path": "..", "pattern": "hello"})).await;
    assert_eq!(text, "../other/file:1:hello\n");
    let text = bench.ok("list_files", json!({"path": bench.dir.path().join("other")})).await;
    assert!(text.starts_with(other.to_str().unwrap()), "{text}");
}

#[rstest]
#[case("", "the path is empty")]
#[case("a\0b", "holds a NUL character")]
#[case("nothing", "does not exist")]
#[case("file/below", "is not a directory, or a part of that path is not")]
#[tokio::test]
async fn odd_paths_are_explained(#[case] path: &str, #[case] wanted: &str) {
    let bench = Bench::new();
    bench.put("file", "x");
    let text = bench.error("read_file", json!({"path": path})).await;
    assert!(text.contains(wanted), "{text}");
}

#[rstest]
#[case("x".repeat(300))]
#[case("d/".repeat(5000))]
#[case("../".repeat(100_000))]
#[tokio::test]
async fn very_long_paths_are_refused_in_few_words(#[case] path: String) {
    let bench = Bench::new();
    for tool in ["read_file", "list_files"] {
        let text = bench.error(tool, json!({"path": path})).await;
        assert!(text.len() < 500 && text.contains("too long"), "{text}");
    }
    bench.error("write_file", json!({"path": path, "content": ""})).await;
    assert_eq!(bench.names(), [""; 0]);
}

#[tokio::test]
async fn a_missing_workdir_is_named() {
    let bench = Bench::new();
    std::fs::remove_dir(bench.path("")).unwrap();
    let text = bench.error("list_files", json!({})).await;
    assert!(text.starts_with("the working directory ") && text.contains("cannot be opened"), "{text}");
}

fn part() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "..", ".", "", "a", "b", "file", "up", "up2", "direct", "chain", "absolute", "proc", "self", "root", "cwd",
        "good", "secret", "work", "etc", "passwd", "loop1",
    ])
    .prop_map(str::to_owned)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_path_reaches_what_is_outside(parts in prop::collection::vec(part(), 0..8), rooted in any::<bool>()) {
        let bench = hostile();
        let path = format!("{}{}", if rooted { "/" } else { "" }, parts.join("/"));
        let flag = AtomicBool::new(false);
        let (ground, stop) = (bench.ground(), Stop(&flag));
        let read: read::ReadFile = arguments::parse(&json!({"path": path})).unwrap();
        if let Ok(text) = read.work(&ground, &stop) { prop_assert_eq!(text, "inside"); }
        let search: search::SearchFiles = arguments::parse(&json!({"path": path, "pattern": "outside|root:"})).unwrap();
        if let Ok(text) = search.work(&ground, &stop) { prop_assert!(text.starts_with("[no match"), "{}", text); }
        let write: write::WriteFile = arguments::parse(&json!({"path": path, "content": "inside"})).unwrap();
        let _ = write.work(&ground, &stop);
        prop_assert_eq!(std::fs::read_to_string(bench.dir.path().join("secret")).unwrap(), "outside");
        prop_assert_eq!(std::fs::read_dir(bench.dir.path()).unwrap().count(), 2);
    }
}
