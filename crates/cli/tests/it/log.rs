//! The log (`-v`, `RUST_LOG`) and the silence (`--quiet`): what standard error holds, and that nothing depends on it.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::{arg, fail, leandisk, program, signal, succeed, wait_until};
use serde_json::Value;
use testkit::{Guest, Inside, run, scratch};

fn stderr(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// What the program says on standard error with this in `RUST_LOG`.
fn logged(wanted: &str, args: &[&str]) -> String {
    stderr(&leandisk().env("RUST_LOG", wanted).args(args).output().unwrap())
}

/// The value of a field of a line.
fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let start = line.find(&format!(" {name}=")).unwrap_or_else(|| panic!("no {name} in {line}"));
    line[start..].split('=').nth(1).unwrap().split(' ').next().unwrap()
}

fn overlay_in(dir: &Path) -> String {
    let (base, overlay) = (dir.join("base.raw"), dir.join("overlay.qcow2"));
    run("qemu-img", &["create", "-q", "-f", "raw", arg(&base), "8M"]);
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "base.raw", "-F", "raw", arg(&overlay)]);
    arg(&overlay).to_owned()
}

#[test]
fn each_image_of_a_chain_is_logged_as_it_is_opened() {
    let dir = scratch();
    let disk = overlay_in(dir.path());
    assert_eq!(stderr(&leandisk().args(["info", &disk]).output().unwrap()), "");
    assert_eq!(logged("", &["info", &disk]), "", "as if it were not set");
    for (wanted, args) in [("image=debug", &["info"][..]), ("", &["-vv", "info"]), ("", &["info", "-vv"])] {
        let told = logged(wanted, &[args, &[&disk]].concat());
        let opened: Vec<&str> = told.lines().filter(|line| line.contains("image opened")).collect();
        assert!(opened.len() >= 2, "{told}");
        assert!(opened[0].contains("overlay.qcow2") && field(opened[0], "format") == "qcow2", "{told}");
        assert!(opened[1].contains("base.raw") && field(opened[1], "depth") == "1", "{told}");
        assert!(opened[0].starts_with("20") && opened[0].contains("DEBUG image::chain: "), "{told}");
    }
    assert!(!logged("", &["-v", "info", &disk]).contains("DEBUG"));
    // It goes before -v, and what is none is told and left.
    assert_eq!(logged("off", &["-vvv", "info", &disk]), "");
    let told = logged("image=loud", &["info", &disk]);
    assert!(told.starts_with("leandisk: RUST_LOG is not understood") && told.lines().count() == 1, "{told}");
}

#[test]
fn a_connection_is_logged_when_it_comes_and_when_it_goes() {
    let dir = scratch();
    let disk = dir.path().join("disk.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", arg(&disk), "8M"]);
    let (socket, said) = (dir.path().join("s"), dir.path().join("said"));
    let mut command = leandisk();
    command.args(["serve", arg(&disk), "-v", "--listen", "127.0.0.1:0", "--socket"]).arg(&socket);
    let mut server = command.stdin(Stdio::null()).stderr(File::create(&said).unwrap()).spawn().unwrap();
    let told = || fs::read_to_string(&said).unwrap();
    let ends = |count| told().matches("client disconnected").count() == count;
    assert!(wait_until(&mut server, || told().contains("leandisk: serving")), "{}", told());
    let address = format!("nbd+unix:///disk.qcow2?socket={}", arg(&socket));
    let commands = ["-c", "write 0 64k", "-c", "read 0 4k", "-c", "flush"];
    run("qemu-io", &[&["-f", "raw", "-t", "none"], &commands[..], &[&address]].concat());
    assert!(wait_until(&mut server, || ends(1)), "{}", told());
    let over_tcp = told().split_whitespace().find(|word| word.starts_with("nbd://")).unwrap().to_owned();
    run("nbdcopy", &[&over_tcp, "null:"]);
    let others = Command::new("nbdinfo").arg(address.replace("disk.qcow2", "other")).output().unwrap();
    assert!(!others.status.success());
    // One that is still there in the end.
    let mut staying = Command::new("qemu-io");
    staying.args(["-f", "raw", &address]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut staying = staying.spawn().unwrap();
    let who = format!("client=pid {} ", staying.id());
    let is_there = || told().lines().any(|line| line.contains("client connected") && line.contains(&who));
    assert!(wait_until(&mut server, is_there), "{}", told());
    signal(&server, "TERM");
    assert!(server.wait().unwrap().success());

    let told = told();
    let line = |what: &str| {
        told.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}: {told}"))
    };
    assert!(line("disk taken into use").contains("INFO leandisk::serve: "), "{told}");
    let first = line("client connected");
    assert!(first.contains("client=pid ") && first.contains("export=\"disk.qcow2\" tls=false"), "{first}");
    let ended = line("client disconnected");
    assert_eq!((field(ended, "written_bytes"), field(ended, "number")), ("65536", field(first, "number")));
    assert!(field(ended, "read_bytes").parse::<u64>().unwrap() >= 4096, "{ended}");
    assert!(
        field(ended, "requests").parse::<u64>().unwrap() >= 3 && ended.contains("said goodbye"),
        "{ended}"
    );
    assert!(field(ended, "seconds").parse::<f64>().unwrap() < 60.0, "{ended}");
    let copied = |line: &str| line.contains("client=127.0.0.1:") && !line.contains("read_bytes=0");
    assert!(told.lines().any(copied), "{told}");
    assert!(line("without an export").contains("asked=\"other\""), "{told}");
    let _ = staying.kill();
    staying.wait().unwrap();
    assert!(line("reason=\"the server stops\"").contains(&who), "{told}");
    assert!(line("disk closed").contains("disk.qcow2"), "{told}");
}

#[test]
fn copies_tell_what_they_found_and_when_they_are_whole() {
    let dir = scratch();
    let disk = overlay_in(dir.path());
    let target = dir.path().join("target.qcow2");
    let told = logged("engine=debug", &["copy", &disk, arg(&target)]);
    for what in ["looked for what an earlier copy left resumes=false found=\"nothing\"", "gets its name"] {
        assert!(told.contains(what), "{what}: {told}");
    }
}

#[test]
fn each_batch_of_a_change_in_place_is_logged() {
    let dir = scratch();
    let disk = dir.path().join("disk.raw");
    run("cp", &["--sparse=always", arg(&Guest::get(Inside::Ext4).disk), arg(&disk)]);
    let args = ["defrag", arg(&disk), "--goal", "pack", "--json"];
    let output = leandisk().env("RUST_LOG", "engine=debug").args(args).output().unwrap();
    let told = stderr(&output);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let moved = document["volumes"].as_array().unwrap().iter();
    let moved: u64 = moved.map(|volume| volume["moved_bytes"].as_u64().unwrap_or(0)).sum();
    let batches = told.lines().filter(|line| line.contains("batch moved"));
    let logged: u64 = batches.map(|line| field(line, "moved_bytes").parse::<u64>().unwrap()).sum();
    assert!(moved > 0 && logged == moved, "{logged} of {moved}: {told}");
}

#[test]
fn the_journal_has_times_of_its_own() {
    let dir = scratch();
    let disk = overlay_in(dir.path());
    let path = dir.path().join("journal");
    let into = |stream: &str| {
        let file = File::create(&path).unwrap();
        let mut command = leandisk();
        command.env("JOURNAL_STREAM", stream).args(["-vv", "info", &disk]).stderr(file).stdout(Stdio::null());
        assert!(command.status().unwrap().success());
        fs::read_to_string(&path).unwrap()
    };
    File::create(&path).unwrap();
    let metadata = path.metadata().unwrap();
    let here = into(&format!("{}:{}", metadata.dev(), metadata.ino()));
    assert!(here.starts_with("DEBUG image::chain: "), "{here}");
    assert!(!here.contains('\u{1b}'));
    // Standard error was led elsewhere.
    assert!(into("1:2").starts_with("20"));
}

#[test]
fn quiet_leaves_nothing_but_errors() {
    let dir = scratch();
    let disk = overlay_in(dir.path());
    let target = dir.path().join("target.qcow2");
    let copy = |more: &[&str]| {
        let _ = fs::remove_file(&target);
        stderr(
            &leandisk().args([&["copy", &disk, arg(&target), "--resume"], more].concat()).output().unwrap(),
        )
    };
    assert!(copy(&[]).contains("nothing was kept"));
    assert_eq!(copy(&["-q"]), "");
    assert_eq!(copy(&["--quiet", "--progress", "json"]), "");
    assert_eq!(logged("trace", &["-q", "info", &disk]), "");
    let message = fail(5, &["-q", "info", arg(&dir.path().join("missing"))]);
    assert!(message.starts_with("leandisk: "), "{message}");
    assert!(fail(2, &["-q", "-v", "info", &disk]).contains("cannot be used with"));
    // On a terminal, too.
    fs::remove_file(&target).unwrap();
    let on_terminal = format!("{} -q copy {disk} {} > /dev/null", program(), arg(&target));
    assert_eq!(run("script", &["-qec", &on_terminal, "/dev/null"]), "");
}

#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    let dir = scratch();
    let disk = overlay_in(dir.path());
    let silent = succeed(&["info", &disk]);
    for ending in ["2>&-", "2>/dev/full"] {
        let script = format!("RUST_LOG=trace exec {} info {disk} {ending}", program());
        assert_eq!(run("bash", &["-c", &script]), silent, "{ending}");
    }
    // Names of files are no control sequences.
    let hostile = dir.path().join("a\u{1b}[31m\nred.raw");
    fs::copy(dir.path().join("base.raw"), &hostile).unwrap();
    let told = logged("debug", &["info", arg(&hostile)]);
    assert!(told.contains("image opened") && !told.contains('\u{1b}'), "{told}");
    assert!(told.lines().all(|line| line.starts_with("20")), "a line is one event: {told}");
}
