//! Export and import, audit log, backup, retention, disconnected callers.

mod audit;
mod backup;
mod caller_disconnect;
mod export_import;
mod retention;

pub(crate) use audit::wait_audit_entries;
