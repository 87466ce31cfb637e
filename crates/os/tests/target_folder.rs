//! The host's folder in which targets are made.

#![allow(clippy::unwrap_used)]

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use block::{ErrorKind, FolderFile, TargetFolder, TargetName};
use extent::Offset;
use os::{FolderOptions, HostFolder, StoragePromise};

fn folder(target: &Path, replace: bool) -> HostFolder {
    let options = FolderOptions { replace, mode: 0o640, kept: StoragePromise::Nothing, direct: false };
    HostFolder::new(target, options).unwrap()
}

fn identity(file: &dyn FolderFile) -> String {
    file.identity().unwrap().unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_is_told_from_each_that_had_its_name() {
    let dir = testkit::scratch();
    let folder = folder(&dir.path().join("target"), false);
    let mut seen = Vec::new();
    for _ in 0..20 {
        let file = folder.create(TargetName::Partial).unwrap();
        let made = identity(&*file);
        assert!(!seen.contains(&made), "{made} again");
        drop(file);
        let found = folder.open(TargetName::Partial).unwrap().unwrap();
        assert_eq!(identity(&*found), made);
        seen.push(made);
        assert!(folder.remove(TargetName::Partial).unwrap());
    }
    assert!(!folder.remove(TargetName::Partial).unwrap());
    assert!(folder.open(TargetName::Partial).unwrap().is_none());
}

/// As a program has it for a moment that another thread starts.
fn copy_of_descriptor(path: &Path) -> OwnedFd {
    let mut opened = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
    let found = opened.find(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to == path)).unwrap();
    let number: RawFd = found.file_name().to_str().unwrap().parse().unwrap();
    // SAFETY: the caller holds the file open during the call.
    #[allow(unsafe_code)]
    let held = unsafe { BorrowedFd::borrow_raw(number) };
    held.try_clone_to_owned().unwrap()
}

#[test]
fn a_copy_of_the_descriptor_holds_no_file_that_was_let_go() {
    let dir = testkit::scratch();
    let folder = folder(&dir.path().join("target"), false);
    let path = folder.path(TargetName::Partial);
    let made = folder.create(TargetName::Partial).unwrap();
    let copy = copy_of_descriptor(&path);
    assert_eq!(folder.open(TargetName::Partial).err().unwrap().kind(), ErrorKind::Refused);
    drop(made);
    let found = folder.open(TargetName::Partial).unwrap().unwrap();
    let second_copy = copy_of_descriptor(&path);
    drop((copy, found));
    assert!(folder.open(TargetName::Partial).unwrap().is_some());
    drop(second_copy);
}

#[test]
fn who_holds_a_file_holds_it_alone() {
    let dir = testkit::scratch();
    let path = dir.path().join("target");
    let (one, other) = (folder(&path, false), folder(&path, false));
    let file = one.create(TargetName::Partial).unwrap();
    assert_eq!(other.open(TargetName::Partial).err().unwrap().kind(), ErrorKind::Refused);
    assert_eq!(other.create(TargetName::Partial).err().unwrap().kind(), ErrorKind::Refused);
    // What was removed and made anew meanwhile is another file, held by who made it.
    one.remove(TargetName::Partial).unwrap();
    let new = one.create(TargetName::Partial).unwrap();
    drop(file);
    assert_eq!(other.open(TargetName::Partial).err().unwrap().kind(), ErrorKind::Refused);
    drop(new);
    assert!(other.open(TargetName::Partial).unwrap().is_some());
}

#[test]
fn a_target_is_private_until_it_is_complete() {
    let dir = testkit::scratch();
    let path = dir.path().join("target");
    let folder = folder(&path, false);
    let file = folder.create(TargetName::Partial).unwrap();
    let partial = folder.path(TargetName::Partial);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&partial), 0o600);
    file.write_at(Offset::ZERO, b"whole").unwrap();
    file.complete().unwrap();
    folder.rename(TargetName::Partial, TargetName::Target).unwrap();
    folder.sync().unwrap();
    assert_eq!(mode(&path) & !0o640, 0);
    assert_eq!(names(dir.path()), ["target"]);
    let marks = testkit::run("getfattr", &["-d", path.to_str().unwrap()]);
    assert!(!marks.contains("leandisk"), "{marks}");
}

#[test]
fn a_name_that_appeared_meanwhile_is_not_replaced() {
    let dir = testkit::scratch();
    let path = dir.path().join("target");
    let folder = folder(&path, false);
    folder.create(TargetName::Partial).unwrap();
    std::fs::write(&path, "somebody else's").unwrap();
    let error = folder.rename(TargetName::Partial, TargetName::Target).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert_eq!(std::fs::read(&path).unwrap(), b"somebody else's");
}

#[test]
fn asking_for_room_makes_no_name() {
    let dir = testkit::scratch();
    let before = std::fs::metadata(dir.path()).unwrap();
    let folder = folder(&dir.path().join("target"), false);
    let room = folder.check_room(1 << 30).unwrap();
    assert!(room.free_bytes > 0);
    assert_eq!(names(dir.path()), Vec::<String>::new());
    let after = std::fs::metadata(dir.path()).unwrap();
    assert_eq!((before.mtime(), before.mtime_nsec()), (after.mtime(), after.mtime_nsec()));
}
