//! Rules of the chat networks: by which keys a conversation is known, what is heard and in which order it is taken, what a
//! message asks of Quell itself, how long an answer may take, and what of it is shown.

pub mod budget;
pub mod commands;
pub mod inbox;
pub mod keys;
pub mod sanitise;
