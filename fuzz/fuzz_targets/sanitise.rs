//! Fuzzes the invariants of the reply sanitiser. A test of `quell-kernel` runs the same check on mutated golden replies.

#![no_main]

#[path = "../../crates/kernel/tests/sanitise/holds.rs"]
mod holds;

libfuzzer_sys::fuzz_target!(|reply: &str| {
    if let Err(broken) = holds::check(reply) {
        panic!("{broken}");
    }
});
