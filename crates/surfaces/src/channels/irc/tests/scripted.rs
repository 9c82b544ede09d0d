//! Against servers by script.
