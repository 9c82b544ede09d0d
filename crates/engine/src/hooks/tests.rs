//! Hooks of embedding programs, and the queue of events that nobody waits for.
