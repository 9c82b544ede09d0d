//! Rules of the chat networks: what is heard and in which order it is taken, how it is keyed, what of an answer is shown.

pub mod inbox;
//! The rules of chat networks: by which keys a conversation is known, what a message asks of Quell itself, and how long an
//! answer may take.

pub mod budget;
pub mod commands;
pub mod keys;
