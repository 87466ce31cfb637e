//! QCOW2 images with persistent bitmaps: what `defrag` and `compact` change is noted, as QEMU tells it.

use std::fs;
use std::io::Write;
use std::path::Path;

use serde_json::Value;
use testkit::mounted::Mounted;
use testkit::{run, scratch};

use crate::common::{arg, document, number};

const NAME: &str = "since-the-backup";
const GRANULARITY: usize = 64 << 10;

/// A volume of ext4 with files that grew in turns, and free space that is not zeros.
fn make_volume(path: &Path) {
    fs::File::create(path).unwrap().set_len(64 << 20).unwrap();
    run("mkfs.ext4", &["-qF", arg(path)]);
    let mounted = Mounted::ext(path, "");
    let create = |name: String| fs::File::create(mounted.path().join(name)).unwrap();
    let mut files: Vec<_> = (0..8).map(|number| create(format!("file {number}"))).collect();
    for round in 0..24u8 {
        for file in &mut files {
            file.write_all(&[round + 1; 64 << 10]).unwrap();
            file.sync_all().unwrap();
        }
    }
    create("gone".into()).write_all(&vec![0xaa; 16 << 20]).unwrap();
    run("sync", &["-f", arg(mounted.path())]);
    fs::remove_file(mounted.path().join("gone")).unwrap();
}

/// The parts of the disk that QEMU calls changed.
fn changed_by_qemu(image: &Path) -> Vec<bool> {
    let socket = image.with_extension("socket");
    run("qemu-nbd", &["--fork", "-r", "-f", "qcow2", "-B", NAME, "-k", arg(&socket), arg(image)]);
    let map = format!("--map=qemu:dirty-bitmap:{NAME}");
    let told = run("nbdinfo", &["--json", &map, &format!("nbd+unix:///?socket={}", arg(&socket))]);
    let extents: Vec<Value> = serde_json::from_str(&told).unwrap();
    let parts = |extent: &Value| {
        let count = usize::try_from(number(extent, "/length")).unwrap().div_ceil(GRANULARITY);
        vec![number(extent, "/type") == 1; count]
    };
    extents.iter().flat_map(parts).collect()
}

fn raw(image: &Path) -> Vec<u8> {
    let raw = image.with_extension("raw-now");
    run("qemu-img", &["convert", "-f", "qcow2", "-O", "raw", arg(image), arg(&raw)]);
    fs::read(raw).unwrap()
}

#[test]
fn what_is_moved_and_given_back_is_noted() {
    for preallocation in ["off", "full"] {
        let dir = scratch();
        let (volume, image) = (dir.path().join("volume"), dir.path().join("disk.qcow2"));
        make_volume(&volume);
        let options = format!("preallocation={preallocation}");
        run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", "-o", &options, arg(&volume), arg(&image)]);
        run("qemu-img", &["bitmap", "--add", arg(&image), NAME]);
        let before = raw(&image);
        let commands: [(&str, &[&str]); 2] = [
            ("leandisk.defrag/1", &["defrag", arg(&image)]),
            ("leandisk.compact/1", &["compact", arg(&image)]),
        ];
        for (schema, args) in commands {
            document(schema, args);
            run("qemu-img", &["check", "-q", "-f", "qcow2", arg(&image)]);
            let (after, noted) = (raw(&image), changed_by_qemu(&image));
            let pairs = before.chunks(GRANULARITY).zip(after.chunks(GRANULARITY)).zip(&noted).enumerate();
            let mut changed = 0;
            for (part, ((before, after), is_noted)) in pairs {
                changed += usize::from(before != after);
                assert!(before == after || *is_noted, "{preallocation} {args:?}: part {part} is not noted");
            }
            let noted = noted.iter().filter(|is_noted| **is_noted).count();
            assert!(changed > 50 && noted < before.len() / GRANULARITY, "{changed} changed, {noted} noted");
        }
    }
}
