//! Disks of running Windows guests: an NTFS volume whose log is open is whole, and with `--ntfs-log join` taken by what its bitmap and its log name.

use std::fs::{self, File};

use serde_json::Value;
use testkit::ntfs_log::{Entry, Log, place, place_of};
use testkit::{run, scratch};

use crate::common::{arg, document, fail, number, succeed};
use crate::serving::Serving;

const MIB: usize = 1 << 20;
const STALE: u8 = 0xa5;

#[test]
fn a_volume_whose_log_is_open_is_taken_by_what_that_names_if_it_is_asked_for() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let disk = path("disk.raw");
    File::create(&disk).unwrap().set_len(16 << 20).unwrap();
    run("mkntfs", &["-qQF", "-c", "4096", "-p", "0", "-H", "0", "-S", "0", arg(&disk)]);
    // What a deleted file leaves: one part of it is to be there again after recovery.
    let mut bytes = fs::read(&disk).unwrap();
    bytes[9 * MIB..11 * MIB].fill(STALE);
    let clean_free = {
        fs::write(&disk, &bytes).unwrap();
        number(&document("leandisk.info/1", &["info", arg(&disk)]), "/volumes/0/free_bytes")
    };
    let first = u32::try_from(10 * MIB / 4096).unwrap();
    let range = [first.to_le_bytes(), 8u32.to_le_bytes()].concat();
    let bitmap_lcn = place_of(&bytes, 6).0 as u64 / 4096;
    let mut log = Log::new((2, 0), place(&bytes).1);
    log.entry(&Entry { lcns: vec![bitmap_lcn], ..Entry::new(0x16, &range, 0x15, &range) });
    log.restart_record();
    log.write(&mut bytes);
    fs::write(&disk, &bytes).unwrap();
    let expected_used = 16 * MIB as u64 - 4096 - clean_free + 8 * 4096;
    let volume = |document: &Value| document["volumes"][0].clone();

    let info = volume(&document("leandisk.info/1", &["info", arg(&disk)]));
    assert_eq!((&info["state"], &info["mode"]), (&"dirty".into(), &"whole".into()), "{info}");
    let used = info["log_join"]["used_bytes"].as_u64().unwrap();
    assert!(used.abs_diff(expected_used) <= 4096, "{info}");
    let said = succeed(&["info", arg(&disk)]);
    assert!(said.contains("with --ntfs-log join:"), "{said}");
    let joined = volume(&document("leandisk.info/1", &["info", arg(&disk), "--ntfs-log", "join"]));
    assert_eq!((&joined["state"], &joined["mode"]), (&"needs-recovery".into(), &"used-only".into()));
    assert_eq!(joined["used_bytes"].as_u64(), Some(used));
    assert_eq!(joined["log_join"], Value::Null);

    let copy = path("copy.raw");
    let whole = volume(&document("leandisk.copy/1", &["copy", arg(&disk), arg(&copy)]));
    assert_eq!(whole["mode"], "whole", "{whole}");
    assert!(fs::read(&copy).unwrap() == bytes);
    let lean = ["copy", "--ntfs-log", "join", "--force", "--verify", arg(&disk), arg(&copy)];
    let copied = document("leandisk.copy/1", &lean);
    assert_eq!(volume(&copied)["mode"], "used-only", "{copied}");
    let found = fs::read(&copy).unwrap();
    let stale = found.chunks(4096).filter(|block| block.iter().all(|byte| *byte == STALE)).count();
    assert_eq!(stale, 8, "blocks of what was there before");
    assert!(found[10 * MIB..10 * MIB + 8 * 4096].iter().all(|byte| *byte == STALE), "named by the log");
    let (log_at, log_bytes) = place(&bytes);
    assert!(found[log_at..log_at + log_bytes] == bytes[log_at..log_at + log_bytes], "the log is all there");
    assert!(fs::read(&disk).unwrap() == bytes, "nothing was written");

    let analyzed = document("leandisk.analyze/1", &["analyze", arg(&disk), "--ntfs-log", "join"]);
    assert_eq!(volume(&analyzed)["state"], "needs-recovery", "{analyzed}");
    assert!(number(&analyzed, "/reclaimable_bytes") > MIB as u64, "{analyzed}");
    let served = path("served.raw");
    let serving = Serving::start_with(&disk, &["--read-only", "--lean", "--ntfs-log", "join"]);
    run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &serving.address, arg(&served)]);
    serving.stop();
    assert!(fs::read(&served).unwrap() == found, "a client reads what copy makes");
    for change in [&["compact", arg(&disk)][..], &["defrag", arg(&disk)]] {
        fail(3, change);
    }
    assert!(fs::read(&disk).unwrap() == bytes, "nothing was written");

    // A log that is not understood.
    let broken = path("broken.raw");
    log.entry(&Entry::new(0x17, &[], 0, &[]));
    log.restart_record();
    log.write(&mut bytes);
    fs::write(&broken, &bytes).unwrap();
    let info = volume(&document("leandisk.info/1", &["info", arg(&broken)]));
    assert!(info["log_join"]["reason"].as_str().unwrap().contains("operation is 0x17"), "{info}");
    let copied =
        document("leandisk.copy/1", &["copy", "--ntfs-log", "join", "--force", arg(&broken), arg(&copy)]);
    assert_eq!(volume(&copied)["mode"], "whole");
    assert!(volume(&copied)["reason"].as_str().unwrap().contains("operation is 0x17"), "{copied}");
}
