//! Real tools and real disks.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;

/// A fresh folder that goes away with the value. Under `LEANDISK_TEST_DIR` if that is set.
pub fn scratch() -> TempDir {
    match std::env::var_os("LEANDISK_TEST_DIR") {
        Some(dir) => tempfile::tempdir_in(dir).unwrap(),
        None => tempfile::tempdir().unwrap(),
    }
}

/// Runs a real tool and returns its standard output. Panics with all that it said if it fails or is missing:
/// a test without its oracle shows nothing.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; `make test` installs what the tests need"));
    said(&format!("{program} {args:?}"), &output)
}

/// Runs `mke2fs`. Revision 0 is `-E revision=0` in these arguments, as since e2fsprogs 1.47.1; older ones take `-r 0` for it.
pub fn mke2fs(args: &[&str]) {
    static HAS_OPTION_R: OnceLock<bool> = OnceLock::new();
    let Some(at) = args.iter().position(|arg| *arg == "revision=0") else {
        run("mke2fs", args);
        return;
    };
    let has_option = *HAS_OPTION_R.get_or_init(|| {
        let asked = Command::new("mke2fs").args(["-r", "0"]).output().unwrap();
        !String::from_utf8_lossy(&asked.stderr).contains("has been removed")
    });
    let mut args = args.to_vec();
    if has_option {
        args.splice(at - 1..=at, ["-r", "0"]);
    }
    run("mke2fs", &args);
}

/// The standard output of a program that succeeded. Panics with all that it said if it did not.
pub(crate) fn said(command: &str, output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {}\n{stdout}{stderr}", output.status);
    stdout
}

/// A QCOW2 image of `size` (as qemu-img takes it) at `path`, encrypted with LUKS.
///
/// qemu-img measures how much work one second of key derivation is by the CPU time of its thread, and gives up
/// where a coarse clock of the machine shows none; so it is asked until it has seen some.
pub fn make_luks_image(path: &Path, size: &str) {
    let options = "encrypt.format=luks,encrypt.key-secret=key,encrypt.iter-time=10";
    let create = ["create", "-q", "-f", "qcow2", "--object", "secret,id=key,data=secret", "-o", options];
    for _ in 0..50 {
        let output = Command::new("qemu-img").args(create).arg(path).arg(size).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            return;
        }
        assert!(stderr.contains("accurate CPU usage"), "qemu-img {create:?}: {stderr}");
    }
    panic!("qemu-img found no CPU time in 50 attempts");
}

/// A disk that a real program wrote, decompressed into `dir`; `None`, with a line that says so, where the
/// collection is absent. It is looked for in `LEANDISK_REAL_IMAGES`, else in `shared/real-images` beside the
/// project.
pub fn real_image(name: &str, dir: &Path) -> Option<PathBuf> {
    let packed = in_collection(&format!("{name}.zst"))?;
    let unpacked = dir.join(name);
    run("zstd", &["-qdf", packed.to_str().unwrap(), "-o", unpacked.to_str().unwrap()]);
    Some(unpacked)
}

/// A file of an archive of the same collection, unpacked into `dir`; `None`, with a line that says so, where it is absent.
pub fn real_image_in_zip(archive: &str, name: &str, dir: &Path) -> Option<PathBuf> {
    let packed = in_collection(archive)?;
    run("python3", &["-m", "zipfile", "-e", packed.to_str().unwrap(), dir.to_str().unwrap()]);
    Some(dir.join(name))
}

fn in_collection(name: &str) -> Option<PathBuf> {
    let collection = std::env::var_os("LEANDISK_REAL_IMAGES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/real-images"),
        PathBuf::from,
    );
    let path = collection.join(name);
    if path.exists() {
        return Some(path);
    }
    println!("SKIPPED: {name} is not in {}", collection.display());
    None
}
