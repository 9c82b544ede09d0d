//! Programs whose clock is minutes off, by libfaketime.

use std::fs;

use crate::skip::announce_skip;

/// libfaketime ends a program whose process id a killed one had before, unless its files are removed.
const REMOVE_FILES_OF_DEAD: &str = r#"for file in /dev/shm/*faketime_*_[0-9]*; do
    if [ "${file##*_}" = $$ ] || [ ! -e "/proc/${file##*_}" ]; then rm -f "$file"; fi
done"#;

/// Commands for `sh`. What it executes afterwards has a clock that is this many minutes ahead, or behind. Its monotonic
/// clock stays right, as on a machine whose clock is wrong. `None`: the test is skipped, because libfaketime is missing.
#[must_use]
pub fn clock_offset_script(minutes: i32) -> Option<String> {
    // Debian has a directory for each architecture.
    let dirs = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let library = dirs.map(|dir| dir.path().join("faketime/libfaketimeMT.so.1")).find(|library| library.exists());
    let Some(library) = library else {
        announce_skip("libfaketime is missing: `cargo xtask test --full` installs it");
        return None;
    };
    let library = library.display();
    let variables = format!("LD_PRELOAD={library} FAKETIME={minutes:+}m FAKETIME_DONT_FAKE_MONOTONIC=1");
    Some(format!("{REMOVE_FILES_OF_DEAD}\nexport {variables}\n"))
}
