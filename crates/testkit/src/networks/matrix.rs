//! A real Matrix homeserver, Synapse, on a loopback port, and people who are in its rooms.
//!
//! It keeps its data in a folder of its own, so that it can be restarted in the middle of everything. It knows no other server.

mod person;
mod process;
#[cfg(test)]
mod tests;
mod view;

pub use person::MatrixPerson;
pub use process::Synapse;
pub use view::{Room, Shown, View};

/// What a machine needs for these tests.
pub const NEEDS: &str = "tests of the Matrix channel need Synapse below target/tools: `cargo xtask test` installs it, or leave them \
    out with QUELL_SKIP_SYNAPSE=1";

/// True when tests that need a homeserver are to be left out.
#[must_use]
#[expect(clippy::print_stdout, reason = "a test that is left out says so")]
pub fn is_skipped() -> bool {
    #[expect(clippy::disallowed_methods, reason = "the one switch of tests that need a homeserver")]
    let skipped = std::env::var("QUELL_SKIP_SYNAPSE").is_ok();
    if skipped {
        println!("skipped: QUELL_SKIP_SYNAPSE is set");
    }
    skipped
}
