//! Unmap code that only the start of the program has run.

use std::fs;
use std::io;
use std::ops::Range;

use rustix::mm::{Advice, madvise};

/// Unmaps the code of this program. What runs again is mapped again, from the page cache, which keeps the file: RSS and
/// PSS fall, and the pages are the first that the kernel can take for others.
///
/// At each place that runs the kernel maps 64 KiB (`fault_around_bytes`), so the start, which runs 2 MiB of code in 250
/// places, leaves 16 MiB in memory. To map one place again takes about a microsecond.
///
/// # Errors
/// [`io::Error`] when /proc cannot be read or the kernel refuses; then all stays as it was.
#[expect(unsafe_code, reason = "madvise can discard data")]
pub fn unmap_unused_code() -> io::Result<()> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let here = (unmap_unused_code as *const ()).addr();
    let Some(code) = find_code(&maps, here) else { return Ok(()) };
    let start = std::ptr::with_exposed_provenance_mut(code.start);
    // SAFETY: the range is one mapping of a file that cannot be written through it, so no data is lost: the kernel reads
    // the same bytes again.
    unsafe { madvise(start, code.len(), Advice::LinuxDontNeed) }?;
    Ok(())
}

/// The mapping of code that holds this address, in the format of /proc/PID/maps (proc_pid_maps(5)).
fn find_code(maps: &str, address: usize) -> Option<Range<usize>> {
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
        (range.contains(&address) && rest.starts_with("r-xp ")).then_some(range)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// KiB of this program's code in memory.
    fn code_kib() -> u64 {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let here = (unmap_unused_code as *const ()).addr();
        let code = find_code(&smaps, here).unwrap();
        let own = smaps.lines().skip_while(|line| !line.starts_with(&format!("{:x}-", code.start)));
        let rss = own.into_iter().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        rss.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn code_leaves_the_memory_and_runs_again() {
        let before = code_kib();
        unmap_unused_code().unwrap();
        let after = code_kib();
        assert!(after < before, "{before} KiB before, {after} KiB after");
    }

    #[test]
    fn only_a_mapping_of_code_is_found() {
        let maps = "1000-3000 r--p 00000000 fe:00 1 /usr/bin/quell\n3000-5000 r-xp 00002000 fe:00 1 /usr/bin/quell\n\
                    5000-6000 rwxp 00000000 00:00 0\n";
        assert_eq!(find_code(maps, 0x3000), Some(0x3000..0x5000));
        for address in [0x1000, 0x5000, 0x6000] {
            assert_eq!(find_code(maps, address), None, "{address:x}");
        }
    }
}
