//! The kernel's own NTFS driver judges volumes that were rearranged: it mounts them and shows what it did before.

use std::fs;

use crate::common::{arg, succeed};
use crate::defrag_common::ntfs;
use testkit::kernel::tree_by_ntfs3;
use testkit::{run, scratch};

#[test]
#[ignore = "boots a Debian kernel five times, for which it takes minutes and Debian's packages: make ntfs3"]
fn ntfs3_shows_the_same_files_after_each_goal_and_in_a_packed_copy() {
    let volume = ntfs().raw;
    let before = tree_by_ntfs3(&volume);
    assert!(before.len() > 100, "{} paths", before.len());
    let dir = scratch();
    for goal in ["files", "free", "pack"] {
        let disk = dir.path().join(format!("{goal}.raw"));
        run("cp", &["--sparse=never", arg(&volume), arg(&disk)]);
        succeed(&["defrag", arg(&disk), "-f", "raw", "--goal", goal]);
        assert!(fs::read(&disk).unwrap() != fs::read(&volume).unwrap(), "{goal}: something moved");
        assert_same(&before, &tree_by_ntfs3(&disk), goal);
    }
    let packed = dir.path().join("packed.raw");
    succeed(&["copy", arg(&volume), arg(&packed), "-f", "raw", "-O", "raw", "--layout", "packed"]);
    assert_same(&before, &tree_by_ntfs3(&packed), "packed copy");
}

fn assert_same(before: &[String], after: &[String], what: &str) {
    let differing: Vec<_> =
        before.iter().zip(after).filter(|(before, after)| before != after).take(5).collect();
    assert!(differing.is_empty() && before.len() == after.len(), "{what}: {differing:?}");
}
