//! The documents and summaries that scripts and people rely on.

use crate::common;
use crate::common::{
    SOURCES, TARGETS, arg, assert_only, document, fail, leandisk, names_in, number, output, succeed,
};
use serde_json::Value;
use testkit::{Guest, Inside, scratch};

const AVOIDED: [&str; 4] =
    ["/avoided/unallocated_bytes", "/avoided/free_bytes", "/avoided/swap_bytes", "/avoided/zero_bytes"];

#[test]
fn a_copy_document_holds_all_that_is_promised() {
    for guest in Guest::both() {
        let dir = scratch();
        let source = SOURCES[3].make(&guest.disk, dir.path());
        let target = dir.path().join("target.qcow2");
        let document = document("leandisk.copy/1", &["copy", arg(&source), arg(&target)]);
        assert_eq!(document["source"]["path"], arg(&source));
        assert_eq!(document["source"]["format"], "vhdx");
        assert_eq!(document["target"]["path"], arg(&target));
        assert_eq!(document["target"]["format"], "qcow2");
        assert_eq!(number(&document, "/source/virtual_bytes"), 64 << 20);
        assert!(number(&document, "/source/allocated_bytes") > 32 << 20);
        let on_host = number(&document, "/target/allocated_bytes");
        assert!((1 << 20..40 << 20).contains(&on_host), "{on_host}");
        assert!(document["elapsed_seconds"].as_f64().unwrap() > 0.0);

        let read = number(&document, "/read_bytes");
        let avoided: u64 =
            document["avoided"].as_object().unwrap().values().map(|it| it.as_u64().unwrap()).sum();
        assert_eq!(read + avoided, 64 << 20, "every byte is read or avoided: {document:#}");
        // Whole clusters are written, and tables.
        let written = number(&document, "/written_bytes");
        assert!(written <= on_host + (1 << 20), "{written} written for {on_host} on the host");
        assert!(number(&document, "/used_bytes") >= read);
        assert!(number(&document, "/avoided/swap_bytes") > 5 << 20, "{document:#}");

        let volumes = document["volumes"].as_array().unwrap();
        let filesystems: Vec<_> =
            volumes.iter().map(|volume| volume["filesystem"].as_str().unwrap()).collect();
        let expected: &[&str] = if guest.inside == Inside::Ntfs { &["ntfs"] } else { &["swap", "ext4"] };
        assert_eq!(filesystems, expected);
        for (index, volume) in volumes.iter().enumerate() {
            assert_eq!(number(volume, "/index"), index as u64 + 1);
            assert!(number(volume, "/size_bytes") > number(volume, "/used_bytes"));
            assert_eq!(volume["mode"], "used-only");
            assert_eq!(volume["reason"], Value::Null);
        }
    }
}

/// What each file of a folder takes on the host now, to tell a figure of ours from one that the host changed.
fn host_blocks(dir: &std::path::Path) -> String {
    let paths: Vec<_> = names_in(dir).iter().map(|name| dir.join(name)).collect();
    paths.iter().map(|path| testkit::run("stat", &["-c", "%n %s bytes %b blocks", arg(path)])).collect()
}

#[test]
fn a_dry_run_is_exact_and_makes_nothing() {
    for guest in Guest::both() {
        for source in &SOURCES {
            let from = scratch();
            let path = source.make(&guest.disk, from.path());
            // The host decides what a file takes when it writes the file back, and calls storage that was never written data as long as
            // a page of it is in its cache: neither changes between the two runs.
            for name in names_in(from.path()) {
                let part = from.path().join(name);
                testkit::run("sync", &[arg(&part)]);
                std::fs::read(&part).unwrap();
            }
            let dir = scratch();
            let target = dir.path().join("target.raw");
            let args = ["copy", arg(&path), arg(&target)];
            let planned = document("leandisk.copy/1", &[&args[..], &["--dry-run"]].concat());
            assert_only(dir.path(), &[]);
            let done = document("leandisk.copy/1", &args);
            // The host may still give the file a block of its own tables meanwhile, or take one back.
            let allocated = [&planned, &done].map(|it| number(it, "/source/allocated_bytes"));
            assert!(allocated[0].abs_diff(allocated[1]) <= 64 << 10, "{allocated:?} of {}", source.name);
            for field in AVOIDED.iter().chain(&["/read_bytes", "/used_bytes"]) {
                assert_eq!(
                    number(&planned, field),
                    number(&done, field),
                    "{field} of {}: {planned:#}\n{done:#}\n{}",
                    source.name,
                    host_blocks(from.path())
                );
            }
            assert_eq!(planned["volumes"], done["volumes"], "{}", source.name);
        }
    }
}

#[test]
fn an_info_document_shows_every_layer() {
    let guest = Guest::get(Inside::Ext4);
    let dir = scratch();
    for source in &SOURCES {
        let path = source.make(&guest.disk, dir.path());
        let info = document("leandisk.info/1", &["info", arg(&path)]);
        assert_eq!(info["format"], source.format, "{}", source.name);
        assert_eq!(number(&info, "/virtual_bytes"), 64 << 20, "{}", source.name);
        assert_eq!(info["partition_table"]["scheme"], "gpt");
        assert_eq!(info["volumes"][0]["filesystem"], "swap");
        let volume = &info["volumes"][1];
        assert_eq!(volume["filesystem"], "ext4");
        assert_eq!(volume["label"], "guest");
        assert_eq!(volume["state"], "clean");
        assert_eq!(volume["mode"], "used-only");
        assert_eq!(number(volume, "/start_bytes"), guest.volume_start);
        assert_eq!(number(volume, "/size_bytes"), 57 << 20);
        assert!(number(volume, "/used_bytes") + number(volume, "/free_bytes") <= 57 << 20);
    }
}

#[test]
fn info_tells_the_state_of_a_running_guest() {
    let guest = Guest::get(Inside::RunningExt4);
    let info = document("leandisk.info/1", &["info", arg(&guest.disk)]);
    assert_eq!(info["volumes"][1]["state"], "needs-recovery");
    assert_eq!(info["volumes"][1]["mode"], "used-only");
}

#[test]
fn the_tree_names_what_a_person_looks_for() {
    let guest = Guest::get(Inside::Ntfs);
    let dir = scratch();
    let path = SOURCES[2].make(&guest.disk, dir.path());
    let text = succeed(&["info", arg(&path)]);
    for word in ["vhd", "dynamic", "64", "MBR", "ntfs", "GUEST", "clean", "used", "free"] {
        assert!(text.contains(word), "'{word}' in\n{text}");
    }
}

#[test]
fn the_summary_says_what_was_avoided() {
    let guest = Guest::get(Inside::Ntfs);
    let dir = scratch();
    let source = SOURCES[10].make(&guest.disk, dir.path());
    let output = output(&["copy", arg(&source), arg(&dir.path().join("target.qcow2")), "--verify"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for word in [
        "used",
        "read",
        "written",
        "avoided",
        "not allocated in the image",
        "free",
        "swap",
        "zero",
        "/s",
        "verified",
        "volume 1",
    ] {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(word), "'{word}' in\n{text}");
    }
    assert!(!text.contains('\x1b'), "no colours where nobody sees them");
    assert!(output.stderr.is_empty(), "no bar where nobody sees it");
}

#[test]
fn colours_are_for_terminals_without_no_color() {
    let guest = Guest::get(Inside::Ntfs);
    // util-linux's `script` gives the program a terminal.
    let on_terminal = |no_color: &str| {
        let program = format!("{} info {}", common::program(), guest.disk.display());
        let output = std::process::Command::new("script")
            .args(["-qec", &program, "/dev/null"])
            .env("NO_COLOR", no_color)
            .env("TERM", "xterm")
            .output()
            .unwrap();
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(on_terminal("").contains('\x1b'), "an empty NO_COLOR asks for nothing");
    assert!(!on_terminal("1").contains('\x1b'));
}

#[test]
fn progress_for_programs_is_a_document_a_line() {
    let guest = Guest::get(Inside::Ext4);
    let dir = scratch();
    let target = dir.path().join("target.vhdx");
    let output = leandisk()
        .args(["copy", arg(&guest.disk), arg(&target), "--progress", "json", "--verify", "--json"])
        .output()
        .unwrap();
    assert!(output.status.success());
    serde_json::from_slice::<Value>(&output.stdout).unwrap();
    let lines: Vec<Value> = String::from_utf8(output.stderr)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}")))
        .collect();
    for phase in ["copy", "verify"] {
        let done: Vec<u64> = lines
            .iter()
            .filter(|line| line["phase"] == phase)
            .map(|line| number(line, "/done_bytes"))
            .collect();
        assert!(done.len() >= 2 && done.is_sorted(), "{phase}: {done:?}");
    }
    let last = lines.iter().rfind(|line| line["phase"] == "copy").unwrap();
    assert_eq!(last["done_bytes"], last["total_bytes"]);
}

#[test]
fn every_target_can_be_verified() {
    let guest = Guest::get(Inside::Ntfs);
    for target in &TARGETS {
        let dir = scratch();
        let path = dir.path().join(target.name);
        let args = [&["copy", arg(&guest.disk), arg(&path), "--verify"], target.args].concat();
        let document = document("leandisk.copy/1", &args);
        assert_eq!(document["verified"], true, "{}", target.name);
    }
}

#[test]
fn the_target_s_format_is_asked_for_or_follows() {
    let guest = Guest::get(Inside::Ntfs);
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let made = |args: &[&str], target: &std::path::Path| {
        let document =
            document("leandisk.copy/1", &[&["copy", arg(&guest.disk), arg(target)], args].concat());
        document["target"]["format"].as_str().unwrap().to_owned()
    };
    assert_eq!(made(&["-O", "vdi"], &path("a.qcow2")), "vdi", "-O decides");
    assert_eq!(made(&[], &path("b.vmdk")), "vmdk", "else the extension");
    assert_eq!(made(&[], &path("c")), "raw", "without one the source's format");
    assert!(
        fail(2, &["copy", arg(&guest.disk), arg(&path("c.unknown"))]).contains("-O raw"),
        "it is not guessed"
    );
    let name = path("d.vhdx");
    assert!(fail(2, &["copy", arg(&guest.disk), arg(&name), "-O", "floppy"]).contains("floppy"));
    assert!(!name.exists());
}

#[test]
fn a_hibernated_guest_is_copied_whole_with_the_reason() {
    let guest = Guest::get(Inside::Ntfs);
    let dir = scratch();
    let source = dir.path().join("hibernated.raw");
    testkit::run("cp", &["--sparse=never", arg(&guest.disk), arg(&source)]);
    // Where the file lies, by what ntfs-3g's tools say: the first run of its data.
    let volume = dir.path().join("volume");
    let skip = format!("skip={}", guest.volume_start >> 20);
    testkit::run(
        "dd",
        &[&format!("if={}", arg(&source)), &format!("of={}", arg(&volume)), "bs=1M", &skip, "status=none"],
    );
    let listing = testkit::run("ntfscluster", &["-f", "-F", "/hiberfil.sys", arg(&volume)]);
    let runs = listing.split("Length").nth(1).unwrap_or_else(|| panic!("{listing}"));
    let cluster: u64 = runs.split_whitespace().nth(1).unwrap().parse().unwrap();
    let at = guest.volume_start + cluster * 4096;
    let file = std::fs::OpenOptions::new().write(true).open(&source).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"HIBR", at).unwrap();
    drop(file);

    let target = dir.path().join("target.qcow2");
    let copied = document("leandisk.copy/1", &["copy", arg(&source), arg(&target)]);
    assert_eq!(copied["volumes"][0]["mode"], "whole");
    assert!(copied["volumes"][0]["reason"].as_str().unwrap().contains("hibernated"), "{copied:#}");
    for avoided in ["/avoided/free_bytes", "/avoided/swap_bytes"] {
        assert_eq!(number(&copied, avoided), 0);
    }
    testkit::run("qemu-img", &["compare", "-q", "-f", "raw", "-F", "qcow2", arg(&source), arg(&target)]);
    let info = document("leandisk.info/1", &["info", arg(&source)]);
    assert_eq!(info["volumes"][0]["state"], "hibernated");
    let analysis = document("leandisk.analyze/1", &["analyze", arg(&source)]);
    assert_eq!(analysis["volumes"][0]["state"], "hibernated");
    assert_eq!(number(&analysis, "/reclaimable_bytes"), 0);
    assert!(number(&analysis, "/volumes/0/files") > 100);
}
