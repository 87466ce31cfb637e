//! Tells the program which commit it is built from: what `git archive` wrote into `commit.txt`, or else what git says. Without either
//! the version is all that is known.
//!
//! Invariants: nothing of the machine or of the time of building gets in, so that the same sources give the same program; it runs
//! again only when another commit is checked out.

#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Digits of the commit's name that are shown.
const NAME_LEN: usize = 12;
/// What git changes when another commit is checked out, or made.
const CHANGED_BY_COMMITS: [&str; 3] = ["HEAD", "logs/HEAD", "packed-refs"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=commit.txt");
    let version = env!("CARGO_PKG_VERSION");
    let (version, date) = match archived().or_else(checked_out) {
        Some((name, date)) => (format!("{version} ({name} {date})"), date),
        None => (version.to_owned(), String::new()),
    };
    println!("cargo::rustc-env=LEANDISK_VERSION={version}");
    println!("cargo::rustc-env=LEANDISK_DATE={date}");
}

/// Name and date of the commit from which an archive was made.
fn archived() -> Option<(String, String)> {
    parsed(&std::fs::read_to_string("commit.txt").ok()?)
}

/// Name and date of the commit that is checked out. A folder around the sources may belong to another repository.
fn checked_out() -> Option<(String, String)> {
    let root = Path::new("../..").canonicalize().ok()?;
    let top = PathBuf::from(git(&root, &["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != root {
        return None;
    }
    let branch = git(&root, &["symbolic-ref", "-q", "HEAD"]);
    for name in CHANGED_BY_COMMITS.into_iter().chain(branch.as_deref()) {
        let path = root.join(git(&root, &["rev-parse", "--git-path", name])?);
        // What is not there would have this script run every time.
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    parsed(&git(&root, &["log", "-1", "--no-show-signature", "--format=%H %cs"])?)
}

fn git(root: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// From `%H %cs` of git's formats.
fn parsed(text: &str) -> Option<(String, String)> {
    let (name, date) = text.trim().split_once(' ')?;
    let is_name = name.len() >= NAME_LEN && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_name.then(|| (name[..NAME_LEN].to_owned(), date.to_owned()))
}
