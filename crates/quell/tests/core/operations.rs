//! Export and import, audit log, backup, copies between databases, retention, disconnected callers.

mod audit;
mod backup;
mod caller_disconnect;
mod export_import;
mod retention;
mod store_copy;
