//! What programs in C, and in Python by way of C, get of the library: as it is installed, linked in both ways, and watched by valgrind.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use leandisk::{Unwatched, copy};
use testkit::{Guest, Inside, ntfs_volume, run, scratch};

fn crate_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn arg(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Where the library is installed: by the script that installs it, from where cargo put it for these tests.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let built = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libleandisk");
        run(arg(&crate_file("../../scripts/install-library")), &[arg(&built), arg(&prefix)]);
        prefix
    })
}

/// What pkg-config says of the library.
fn flags(more: &[&str]) -> Vec<String> {
    let output = Command::new("pkg-config")
        .env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"))
        .args(["--cflags", "--libs", "leandisk"])
        .args(more)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

const WARNINGS: [&str; 6] = ["-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];

fn compile(source: &str, program: &Path, flags: &[String]) {
    let source = crate_file(source);
    let mut args: Vec<&str> = [&WARNINGS[..], &["-g", "-o", arg(program), arg(&source)]].concat();
    args.extend(flags.iter().map(String::as_str));
    run("cc", &args);
}

/// The program linked with the shared library.
fn shared(source: &str, program: &Path) {
    compile(source, program, &flags(&[]));
}

/// The program with all of the static library in it.
fn linked_statically(source: &str, program: &Path) {
    let library = prefix().join("lib/libleandisk.a");
    let flag = |flag: String| if flag == "-lleandisk" { arg(&library).to_owned() } else { flag };
    compile(source, program, &flags(&["--static"]).into_iter().map(flag).collect::<Vec<_>>());
}

/// Runs what is found as the shared library is, where it was installed.
fn with_library(program: impl AsRef<OsStr>, args: &[&str]) -> Output {
    let library = prefix().join("lib");
    Command::new(program.as_ref())
        .env("LD_LIBRARY_PATH", &library)
        .env("LEANDISK_LIBRARY", library.join("libleandisk.so.0"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("{:?}: {error}", program.as_ref()))
}

/// Panics unless that went well; answers what it printed.
fn printed(output: Output) -> String {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    stdout.into_owned()
}

/// Runs a program with every access of memory watched, and panics unless all was right and all was freed.
fn watched(program: &Path, args: &[&str]) -> String {
    let known = format!("--suppressions={}", crate_file("tests/c/valgrind.supp").display());
    let leaks = ["--leak-check=full", "--show-leak-kinds=all", "--errors-for-leak-kinds=all"];
    let how = ["--quiet", "--error-exitcode=99", "--fair-sched=yes", &known];
    let options = [&how[..], &leaks, &[arg(program)], args];
    printed(with_library("valgrind", &options.concat()))
}

/// The raw disk `target` as the library for Rust copies it.
fn copied_by_us(source: &Path, target: &Path) {
    let options =
        copy::Options { source: source.to_owned(), target: target.to_owned(), ..copy::Options::default() };
    copy::run(&options, &Unwatched).unwrap();
}

#[test]
fn leancopy_copies_as_the_program_does() {
    let (dir, guest) = (scratch(), Guest::get(Inside::Ntfs));
    let path = |name| dir.path().join(name);
    let (ours, by_shared, by_static) = (path("ours.raw"), path("shared.qcow2"), path("static.raw"));
    copied_by_us(&guest.disk, &ours);

    shared("examples/leancopy.c", &path("leancopy"));
    let output = with_library(path("leancopy"), &[arg(&guest.disk), arg(&by_shared)]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("copy: "), "{stderr}");
    assert!(printed(output).contains("\"schema\": \"leandisk.copy/1\""));
    run("qemu-img", &["check", "-q", arg(&by_shared)]);
    run("qemu-img", &["compare", "-q", "-f", "qcow2", "-F", "raw", arg(&by_shared), arg(&ours)]);

    linked_statically("examples/leancopy.c", &path("static"));
    printed(Command::new(path("static")).args([&guest.disk, &by_static]).arg("/Fast").output().unwrap());
    run("cmp", &[arg(&by_static), arg(&ours)]);
    guest.check(&by_static);
}

#[test]
fn leancopy_ends_as_the_program_does() {
    let (dir, guest) = (scratch(), Guest::get(Inside::Ntfs));
    let path = |name| dir.path().join(name);
    shared("examples/leancopy.c", &path("leancopy"));
    std::fs::write(path("there.qcow2"), "").unwrap();
    let ends = |args: &[&str]| {
        let output = with_library(path("leancopy"), args);
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(ends(&[]).0, 2);
    assert_eq!(ends(&["/nowhere.raw", "target.raw"]).0, 5);
    let (status, message) = ends(&[arg(&guest.disk), arg(&path("there.qcow2"))]);
    assert!(status == 3 && message.contains("--force"), "{status}: {message}");
    let (status, message) = ends(&[arg(&guest.disk), arg(&path("target.unknown"))]);
    assert!(status == 2 && message.contains("target.unknown"), "{status}: {message}");
}

#[test]
fn nothing_leaks() {
    let (dir, guest) = (scratch(), Guest::get(Inside::Ntfs));
    let path = |name| dir.path().join(name);
    shared("examples/leancopy.c", &path("leancopy"));
    watched(&path("leancopy"), &[arg(&guest.disk), arg(&path("target.vhdx"))]);
    run("qemu-img", &["check", "-q", arg(&path("target.vhdx"))]);
}

#[test]
fn misuse_is_an_error() {
    let (dir, guest) = (scratch(), Guest::get(Inside::Ntfs));
    let path = |name| dir.path().join(name);
    let target = path("target.raw");
    shared("tests/c/misuse.c", &path("misuse"));
    printed(with_library(path("misuse"), &[arg(&guest.disk), arg(&target)]));
    std::fs::remove_file(&target).unwrap_or_default();
    watched(&path("misuse"), &[arg(&guest.disk), arg(&target)]);
}

#[test]
fn every_use_case_and_map_is_there_for_all_threads() {
    let (dir, guest) = (scratch(), Guest::get(Inside::Ntfs));
    let path = |name| dir.path().join(name);
    shared("tests/c/uses.c", &path("uses"));
    printed(with_library(path("uses"), &[arg(&guest.disk), arg(dir.path())]));
    run("qemu-img", &["check", "-q", arg(&path("copied.qcow2"))]);
    let raw = path("copied.raw");
    run("qemu-img", &["convert", "-O", "raw", arg(&path("copied.qcow2")), arg(&raw)]);
    guest.check(&raw);
    let again = path("again");
    std::fs::create_dir(&again).unwrap();
    watched(&path("uses"), &[arg(&guest.disk), arg(&again)]);
}

/// The header is one for C++, too.
#[test]
fn the_header_is_for_cpp_as_well() {
    let dir = scratch();
    let source = dir.path().join("program.cpp");
    let program = "#include <leandisk.h>\nint main() { leandisk_copy_options it; leandisk_copy_options_init(&it); \
                   return leandisk_version()[0] == 0 || it.force; }\n";
    std::fs::write(&source, program).unwrap();
    let (program, flags) = (dir.path().join("program"), flags(&[]));
    let args = ["-Wall", "-Wextra", "-Werror", "-o", arg(&program), arg(&source)];
    run("c++", &args.into_iter().chain(flags.iter().map(String::as_str)).collect::<Vec<_>>());
    printed(with_library(&program, &[]));
}

#[test]
fn python_reads_files_as_a_mount_shows_them() {
    let dir = scratch();
    let (volume, mount) = (dir.path().join("volume.raw"), dir.path().join("mnt"));
    ntfs_volume::make(&volume, 4096, 3);
    let listed =
        printed(with_library("python3", &[arg(&crate_file("examples/list_files.py")), arg(&volume)]));
    let mounted = ntfs_volume::Mounted::new(&volume, &mount, "ro");
    let lines = || listed.lines().map(|line| line.rsplit_once("  /").unwrap());
    let paths: Vec<_> =
        lines().filter(|(digest, _)| !digest.starts_with('(')).map(|(_, path)| path).collect();
    let all: Vec<_> = paths.iter().map(|path| mounted.dir.join(path)).collect();
    let seen = run("sha256sum", &all.iter().map(|path| arg(path)).collect::<Vec<_>>());
    let digests = lines().map(|(digest, _)| digest).filter(|digest| !digest.starts_with('('));
    let seen: Vec<_> =
        seen.lines().map(|line| line.trim_start_matches('\\').split_once(' ').unwrap().0).collect();
    assert!(paths.len() > 60, "{listed}");
    assert_eq!(digests.collect::<Vec<_>>(), seen);
    let unread: Vec<_> =
        lines().filter(|(digest, _)| digest.starts_with('(')).map(|(_, path)| path).collect();
    assert_eq!(unread, ["secret"]);
}

#[test]
fn python_is_told_what_is_wrong() {
    let output = with_library("python3", &[arg(&crate_file("examples/list_files.py")), "/nowhere.raw"]);
    assert_eq!(output.status.code(), Some(5), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8(output.stderr).unwrap().contains("/nowhere.raw"));
}
