//! The kernel's NTFS driver shows what ntfs-3g wrote, and refuses what is broken.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::panic::catch_unwind;

use testkit::kernel::tree_by_ntfs3;
use testkit::mounted::Mounted;
use testkit::{run, scratch};

#[test]
#[ignore = "boots a Debian kernel three times, for which it takes a minute and Debian's packages: make ntfs3"]
fn ntfs3_shows_each_file_and_each_change() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    File::create(&volume).unwrap().set_len(8 << 20).unwrap();
    run("mkntfs", &["-qQF", volume.to_str().unwrap()]);
    {
        let mounted = Mounted::ntfs(&volume, "");
        fs::write(mounted.path().join("file"), vec![7; 100_000]).unwrap();
        fs::create_dir(mounted.path().join("dir")).unwrap();
        fs::write(mounted.path().join("dir/a name"), "small").unwrap();
    }
    let before = fs::read(&volume).unwrap();
    let lines = tree_by_ntfs3(&volume);
    assert!(lines.iter().any(|line| line.starts_with("./file ") && line.contains(" 100000 ")), "{lines:?}");
    assert!(
        lines.iter().any(|line| line.starts_with("./dir/a\\x20name ") && line.contains(" 5 ")),
        "{lines:?}"
    );
    assert!(fs::read(&volume).unwrap() == before, "the volume is as it was");

    // One byte of the file's contents.
    let at = before.windows(512).position(|window| window == [7; 512]).unwrap() as u64;
    let file = fs::OpenOptions::new().write(true).open(&volume).unwrap();
    file.write_all_at(&[8], at + 512).unwrap();
    let changed = tree_by_ntfs3(&volume);
    let differing: Vec<_> = lines.iter().zip(&changed).filter(|(one, other)| one != other).collect();
    assert!(differing.len() == 1 && differing[0].0.starts_with("./file "), "{differing:?}");

    // No boot sector.
    file.write_all_at(&[0; 512], 0).unwrap();
    drop(file);
    let error = catch_unwind(|| tree_by_ntfs3(&volume)).expect_err("not a volume");
    let text = error.downcast_ref::<String>().unwrap();
    assert!(text.contains("FAILED mount"), "{text}");
}
