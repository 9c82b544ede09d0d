//! Running it for real: sessions carried elsewhere, the list of who did what, what is thrown away, copies of everything.

mod archive;
mod audit;
mod backup;
mod leaving;
mod retention;

pub(crate) use audit::entries;
