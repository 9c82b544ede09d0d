//! A stop ends every tool soon, and a half-done change did not happen.

use std::io::Read as _;

use rstest::rstest;

use super::*;
use crate::file_tool::{READ_CHUNK_BYTES, StoppableReader};

const PATTERN: &str = "(abc|def)+ghi";

/// Files for work that would take hours; each kind of tool is slow in another way.
fn write_endless_files(fixture: &ToolFixture) {
    let big = fixture.write_file("tree/big", "a line that matches nothing that is looked for\n".repeat(400_000));
    for n in 0..2000 {
        std::fs::hard_link(&big, fixture.path(&format!("tree/{n}"))).unwrap();
    }
    let sparse = std::fs::File::create(fixture.path("sparse")).unwrap();
    sparse.set_len(1 << 42).unwrap();
    let mut text = std::fs::OpenOptions::new().write(true).open(fixture.path("sparse")).unwrap();
    std::io::Write::write_all(&mut text, &b"x".repeat(100_000)).unwrap();
}

/// How many bytes this process has read so far.
fn bytes_read() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

#[rstest]
#[case::search("search_files", json!({"path": "tree", "pattern": PATTERN}))]
#[case::read("read_file", json!({"path": "sparse", "offset": 2}))]
#[tokio::test]
async fn a_stop_ends_work_on_files(#[case] tool: &str, #[case] endless: Value) {
    let fixture = ToolFixture::new();
    write_endless_files(&fixture);
    let before = bytes_read();
    let call = fixture.try_call(tool, endless);
    let stop = async {
        // After so many bytes the thread is in the middle of its work.
        while bytes_read() < before + 4_000_000 {
            tokio::task::yield_now().await;
        }
        fixture.scope.cancel();
    };
    let (output, ()) = tokio::join!(call, stop);
    assert_eq!(output, Err(Cancelled));
    tokio::time::timeout(TEST_TIMEOUT, fixture.scope.close()).await.expect("the thread ends");
    let rows = fixture.scope.ledger().rows();
    assert_eq!((rows.len(), rows[0].release()), (1, Some(Release::Cancelled)));
    assert!(rows[0].label.starts_with(tool), "{}", rows[0].label);
}

#[test]
fn a_large_file_is_read_in_chunks_and_a_stop_ends_it_between_two() {
    let fixture = ToolFixture::new();
    let file = std::fs::File::open(fixture.write_file("large", "x".repeat(2 * READ_CHUNK_BYTES))).unwrap();
    let flag = AtomicBool::new(false);
    let mut reader = StoppableReader { source: &file, stop: &StopFlag(&flag) };
    let mut buffer = vec![0; 2 * READ_CHUNK_BYTES];
    assert_eq!(reader.read(&mut buffer).unwrap(), READ_CHUNK_BYTES);
    flag.store(true, Ordering::Relaxed);
    assert!(reader.read(&mut buffer).is_err());
}

#[tokio::test]
async fn nothing_begins_after_a_stop() {
    let fixture = ToolFixture::new();
    fixture.scope.cancel();
    for spec in specs(600) {
        let text = fixture.valid_arguments(&spec.name);
        assert_eq!(fixture.try_call(&spec.name, text).await, Err(Cancelled), "{}", spec.name);
    }
    assert_eq!(fixture.file_names(), [""; 0]);
    assert_eq!(fixture.scope.ledger().rows(), []);
}

impl ToolFixture {
    fn valid_arguments(&self, tool: &str) -> Value {
        match tool {
            "write_file" => json!({"path": "new/file", "content": "x"}),
            "edit_file" => json!({"path": "f", "old": "a", "new": "b"}),
            "apply_patch" => json!({"input": "*** Begin Patch\n*** Add File: new/file\n+x\n*** End Patch"}),
            "todo" => json!({"items": [{"text": "Test", "status": "pending"}]}),
            "search_files" => json!({"pattern": "x"}),
            "list_files" => json!({}),
            "process" => json!({"action": "list"}),
            "shell" => json!({"command": "true"}),
            "fetch_url" => json!({"url": "https://example.invalid/"}),
            _ => json!({"path": "f"}),
        }
    }
}

#[test]
fn a_stopped_write_leaves_the_old_state() {
    let fixture = ToolFixture::new();
    fixture.write_file("old", "old");
    let raised = AtomicBool::new(true);
    let target = |path: &str| {
        let root = confined_fs::WorkdirRoot::open(&fixture.file_context()).unwrap();
        atomic_write::AtomicWriteTarget::resolve(&root, Path::new(path)).unwrap()
    };
    for path in ["old", "new", "a/b/new"] {
        assert_eq!(
            target(path).replace_content(b"content", &StopFlag(&raised)),
            Err(FileToolError::Cancelled),
            "{path}"
        );
    }
    assert_eq!(fixture.file_names(), ["old"]);
    assert_eq!(fixture.read_file("old"), "old");
}

#[test]
fn a_write_that_is_stopped_at_any_time_happened_or_did_not() {
    let fixture = ToolFixture::new();
    let new = "n".repeat(4 * 1024 * 1024);
    let (mut stopped, mut done) = (0, 0);
    for spins in [0, 1, 100, 1_000, 10_000, 100_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000, u64::MAX] {
        fixture.write_file("f", "old");
        let flag = AtomicBool::new(false);
        let tool: write::WriteFile = parse_arguments(&json!({"path": "f", "content": new})).unwrap();
        let result = std::thread::scope(|scope| {
            if spins < u64::MAX {
                scope.spawn(|| {
                    (0..spins).for_each(|_| std::hint::spin_loop());
                    flag.store(true, Ordering::Relaxed);
                });
            }
            execute_without_backup(tool, &fixture.file_context(), &StopFlag(&flag))
        });
        match result {
            Ok(_) => {
                assert!(fixture.read_file("f") == new);
                done += 1;
            }
            Err(fault) => {
                assert_eq!((fault, fixture.read_file("f").as_str()), (FileToolError::Cancelled, "old"));
                stopped += 1;
            }
        }
        assert_eq!(fixture.file_names(), ["f"], "no draft is left");
    }
    assert!(stopped > 0 && done > 0, "{stopped} stopped, {done} done");
}
