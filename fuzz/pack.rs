//! Packs files into inputs: `pack FOLDER FILE...`. Inputs that would be too long to mutate are left out. Built by
//! `scripts/fuzz` with `rustc` alone, because a program with coverage needs libFuzzer around it.

#![allow(dead_code)]

#[path = "src/sparse.rs"]
mod sparse;

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Longer seeds slow fuzzing down more than they help it.
const SEED_BYTES_MAX: usize = 1 << 20;

fn main() -> io::Result<()> {
    let mut args = env::args_os().skip(1).map(PathBuf::from);
    let folder = args.next().ok_or(io::ErrorKind::InvalidInput)?;
    for file in args {
        let input = sparse::pack(&fs::read(&file)?);
        if input.len() <= SEED_BYTES_MAX {
            fs::write(folder.join(file.file_name().unwrap_or(Path::new("seed").as_os_str())), input)?;
        }
    }
    Ok(())
}
