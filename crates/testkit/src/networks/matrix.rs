//! A real Matrix homeserver, Synapse, on a loopback port, and test users in its rooms.
//!
//! It keeps its data in its own directory, so that it can be restarted at any time. It federates with no other server.

mod room_view;
mod synapse;
mod test_user;

pub use room_view::{MatrixMessageView, MatrixRoomView, MatrixUserView};
pub use synapse::Synapse;
pub use test_user::MatrixTestUser;

/// Help text for a missing Synapse.
pub const MISSING_SYNAPSE_HELP: &str = "tests of the Matrix channel need Synapse below target/tools: `cargo xtask test --full` installs it, or leave them \
    out with QUELL_SKIP_SYNAPSE=1";

/// True when homeserver tests are switched off; says so.
#[must_use]
pub fn is_skipped() -> bool {
    crate::skip::is_switched_off("QUELL_SKIP_SYNAPSE")
}
