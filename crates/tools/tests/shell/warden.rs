//! The executable from which the tests of the shell tool start wardens. Not part of the product.

use std::process::ExitCode;

fn main() -> ExitCode {
    quell_process::warden_main().unwrap_or(ExitCode::from(2))
}
