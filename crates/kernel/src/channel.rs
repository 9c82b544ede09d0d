//! Rules of the chat networks: what is heard and in which order it is taken, how it is keyed, what of an answer is shown.

pub mod inbox;
