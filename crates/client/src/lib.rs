//! The visitor: the connection to a daemon and the command line verbs that talk to it.
//!
//! It knows the protocol and nothing else of the house: whatever it does, any other program can do over HTTP. It reads no
//! environment and no configuration; the roof hands in where the daemon may be ([`Target`]) and where to print ([`Io`]).
//! The roof must have installed a TLS provider before the first [`Link`] is made.

mod chat;
pub mod link;
pub mod receipt_line;
pub mod receipt_picture;
pub mod term;
pub mod verbs;
pub mod words;

#[cfg(test)]
mod fake;

pub use link::{Link, LinkError, Patience, Target};
pub use receipt_line::receipt_line;
pub use receipt_picture::receipt_picture;
pub use term::{Interrupts, Io, Pane, Screen};
pub use verbs::{Exit, Verb, run};
