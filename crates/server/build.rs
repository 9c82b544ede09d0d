//! Compress what the program contains: the files of the page, and the OpenAPI document.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

const WEB_FOLDER: &str = "../../web";
const OPENAPI_FILE: &str = "../../docs/openapi.json";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed={WEB_FOLDER}\ncargo::rerun-if-changed={OPENAPI_FILE}");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    fs::write(out.join("openapi.json.gz"), gzip(&fs::read(OPENAPI_FILE)?)?)?;
    let mut list =
        String::from("/// Path below `web/`, and the file in gzip.\npub(crate) const FILES: &[(&str, &[u8])] = &[\n");
    for (number, path) in page_files()?.iter().enumerate() {
        let name = format!("page-{number}.gz");
        fs::write(out.join(&name), gzip(&fs::read(Path::new(WEB_FOLDER).join(path))?)?)?;
        writeln!(list, "({path:?}, include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}\"))),")
            .map_err(io::Error::other)?;
    }
    fs::write(out.join("web_files.rs"), list + "];\n")
}

/// The files that browsers fetch, by path, in order.
fn page_files() -> io::Result<Vec<String>> {
    let (mut files, mut folders) = (Vec::new(), vec![PathBuf::from(WEB_FOLDER)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Some(path) = path.strip_prefix(WEB_FOLDER).ok().and_then(Path::to_str) {
                files.push(path.to_owned());
            }
        }
    }
    files.retain(|path| !path.starts_with("test/") && path != "package.json");
    files.sort();
    Ok(files)
}

fn gzip(data: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(data)?;
    encoder.finish()
}
