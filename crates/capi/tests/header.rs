//! The header that is shipped must be the one that the crate makes.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

/// What Rust wants to be said of every function that takes pointers.
const SAFETY: &str = "//\n// # Safety\n// The pointers are null or lead to what the header says.\n";

#[test]
fn the_header_is_that_of_the_code() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = crate_dir.join("include/leandisk.h");
    let config = cbindgen::Config::from_file(crate_dir.join("cbindgen.toml")).unwrap();
    let mut sources: Vec<_> =
        fs::read_dir(crate_dir.join("src")).unwrap().map(|entry| entry.unwrap().path()).collect();
    sources.sort();
    let builder =
        sources.into_iter().fold(cbindgen::Builder::new().with_config(config), cbindgen::Builder::with_src);
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    // What must hold of pointers is said of each argument in C, where nothing else is usual.
    let made = String::from_utf8(made).unwrap().replace(SAFETY, "");
    if std::env::var_os("LEANDISK_WRITE_HEADER").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert!(
        made == fs::read_to_string(&path).unwrap_or_default(),
        "{} is an old one: see cbindgen.toml",
        path.display()
    );
}
