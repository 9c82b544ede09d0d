//! Compress what the program contains: the OpenAPI document, and the files of the page.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

#[path = "src/page_files.rs"]
mod page_files;

const PAGE_FOLDER: &str = "../../web";
const OPENAPI_FILE: &str = "../../docs/openapi.json";

fn main() -> io::Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    println!("cargo::rerun-if-changed={OPENAPI_FILE}");
    fs::write(out.join("openapi.json.gz"), gzip(&fs::read(OPENAPI_FILE)?)?)?;
    println!("cargo::rustc-check-cfg=cfg(page_in_program)");
    // A debug build reads the page from the disk at each request, so that an edit shows at once and compiles nothing.
    if env::var_os("OPT_LEVEL").is_none_or(|level| level != "0") {
        println!("cargo::rustc-cfg=page_in_program\ncargo::rerun-if-changed={PAGE_FOLDER}");
        fs::write(out.join("page_files.rs"), compress_page(&out)?)?;
    }
    Ok(())
}

/// Returns the source of a table of the compressed files.
fn compress_page(out: &Path) -> io::Result<String> {
    let mut table = String::from("&[\n");
    for (number, path) in page_files::list(Path::new(PAGE_FOLDER))?.iter().enumerate() {
        let name = format!("page-{number}.gz");
        fs::write(out.join(&name), gzip(&fs::read(Path::new(PAGE_FOLDER).join(path))?)?)?;
        writeln!(table, "({path:?}, include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}\"))),")
            .map_err(io::Error::other)?;
    }
    Ok(table + "]\n")
}

fn gzip(data: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(data)?;
    encoder.finish()
}
