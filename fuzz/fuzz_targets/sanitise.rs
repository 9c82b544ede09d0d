//! What holds for every reply, looked for in replies that nobody wrote. The same check runs over mutated golden replies in the
//! tests of `quell-kernel`.

#![no_main]

#[path = "../../crates/kernel/tests/sanitise/holds.rs"]
mod holds;

libfuzzer_sys::fuzz_target!(|reply: &str| {
    if let Err(broken) = holds::check(reply) {
        panic!("{broken}");
    }
});
