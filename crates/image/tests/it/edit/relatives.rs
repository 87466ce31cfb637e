//! Disks on which others stand.

use image::Relation;

use super::*;

fn create(dir: &Path, name: &str, format: &str, backing: Option<(&str, &str)>) -> PathBuf {
    let path = dir.join(name);
    let mut args = vec!["create", "-q", "-f", format];
    if let Some((backing, backing_format)) = backing {
        args.extend(["-b", backing, "-F", backing_format]);
    }
    args.push(text(&path));
    args.extend(backing.is_none().then_some("4M"));
    run("qemu-img", &args);
    path
}

fn related(path: &Path, relation: Relation) -> Vec<String> {
    let relatives = image::relatives(&chain(path), &Folder).unwrap();
    relatives
        .into_iter()
        .filter(|relative| relative.relation == relation)
        .map(|relative| relative.name)
        .collect()
}

fn children_of(path: &Path) -> Vec<String> {
    related(path, Relation::Parent)
}

#[test]
fn clones_are_found_by_the_name_of_their_parent() {
    let _alone = alone();
    let dir = scratch();
    for (format, extension) in [("qcow2", "qcow2"), ("raw", "raw"), ("vmdk", "vmdk")] {
        let base_name = format!("base.{extension}");
        let base = create(dir.path(), &base_name, format, None);
        let other = create(dir.path(), &format!("other.{extension}"), format, None);
        let before = folder_contents(dir.path());
        assert!(image::relatives(&chain(&base), &Folder).unwrap().is_empty());
        let child_format = if format == "raw" { "qcow2" } else { format };
        let child = create(dir.path(), "a clone", child_format, Some((&base_name, format)));
        // By another way to the same file.
        std::os::unix::fs::symlink(&base, dir.path().join("link")).unwrap();
        let absolute = base.canonicalize().unwrap();
        create(dir.path(), "by link.qcow2", "qcow2", Some(("link", format)));
        create(dir.path(), "by path.qcow2", "qcow2", Some((text(&absolute), format)));
        create(dir.path(), "of another.qcow2", "qcow2", Some((&format!("other.{extension}"), format)));
        let mut found = children_of(&base);
        // A child that exists under a link's name is the link's parent only by name.
        found.retain(|name| name != "link");
        assert_eq!(found, ["a clone", "by link.qcow2", "by path.qcow2"], "{format}");
        assert_eq!(children_of(&other), ["of another.qcow2"]);
        let is_same = before.iter().all(|(name, bytes)| fs::read(dir.path().join(name)).unwrap() == *bytes);
        assert!(is_same, "looking changes nothing");
        // Nothing that breaks when it is looked into keeps a disk from being changed.
        fs::write(&child, &fs::read(&child).unwrap()[..40]).unwrap();
        fs::create_dir(dir.path().join("folder.qcow2")).unwrap();
        fs::remove_file(dir.path().join("by link.qcow2")).unwrap();
        fs::remove_file(dir.path().join("by path.qcow2")).unwrap();
        assert!(children_of(&base).is_empty());
        fs::remove_dir(dir.path().join("folder.qcow2")).unwrap();
        for (name, _) in folder_contents(dir.path()) {
            fs::remove_file(dir.path().join(name)).unwrap();
        }
        fs::remove_file(dir.path().join("link")).unwrap();
    }
}

#[test]
fn names_that_lead_nowhere_are_compared() {
    let _alone = alone();
    let dir = scratch();
    let base = create(dir.path(), "base.qcow2", "qcow2", None);
    for (name, backing, is_child) in [
        ("elsewhere.qcow2", "/no/such/place/base.qcow2", true),
        (
            "protocol.qcow2",
            "json:{\"driver\":\"qcow2\",\"file\":{\"driver\":\"file\",\"filename\":\"base.qcow2\"}}",
            true,
        ),
        ("stranger.qcow2", "/no/such/place/other.qcow2", false),
    ] {
        let path = dir.path().join(name);
        run(
            "qemu-img",
            &["create", "-q", "-f", "qcow2", "-u", "-b", backing, "-F", "qcow2", text(&path), "4M"],
        );
        let expected: Vec<String> = is_child.then(|| name.to_owned()).into_iter().collect();
        assert_eq!(children_of(&base), expected, "{backing}");
        fs::remove_file(path).unwrap();
    }
    // A feature that we do not know may be one that its own program knows.
    let path = create(dir.path(), "newer.qcow2", "qcow2", Some(("base.qcow2", "qcow2")));
    let mut bytes = fs::read(&path).unwrap();
    bytes[72] = 0x80;
    fs::write(&path, bytes).unwrap();
    assert_eq!(children_of(&base), ["newer.qcow2"]);
}

#[test]
fn vdi_children_are_found_by_the_uuid() {
    let _alone = alone();
    let dir = scratch();
    let base = create(dir.path(), "base.vdi", "vdi", None);
    let mut child = fs::read(&base).unwrap();
    let own: Vec<u8> = child[0x188..0x198].to_vec();
    child[0x4c..0x50].copy_from_slice(&4u32.to_le_bytes());
    child[0x1a8..0x1b8].copy_from_slice(&own);
    child[0x188] ^= 1;
    fs::write(dir.path().join("{child}.vdi"), &child).unwrap();
    child[0x1a8] ^= 1;
    fs::write(dir.path().join("stranger.vdi"), &child).unwrap();
    assert_eq!(children_of(&base), ["{child}.vdi"]);
}

#[test]
fn vhd_and_vhdx_children_are_found_by_name_and_identity() {
    let _alone = alone();
    let dir = scratch();
    let base = create(dir.path(), "base.vhd", "vpc", None);
    let mut child = fs::read(&base).unwrap();
    let id: Vec<u8> = child[68..84].to_vec();
    let sum = |bytes: &mut [u8], at: usize| {
        bytes[at..at + 4].fill(0);
        let sum = !bytes.iter().fold(0u32, |sum, byte| sum.wrapping_add(u32::from(*byte)));
        bytes[at..at + 4].copy_from_slice(&sum.to_be_bytes());
    };
    let end = child.len() - 512;
    for at in [0, end] {
        let footer = &mut child[at..at + 512];
        footer[60..64].copy_from_slice(&4u32.to_be_bytes());
        footer[68] ^= 1;
        sum(footer, 64);
    }
    let header = &mut child[512..1536];
    header[40..56].copy_from_slice(&id);
    sum(header, 36);
    fs::write(dir.path().join("snapshot.avhd"), &child).unwrap();
    assert_eq!(children_of(&base), ["snapshot.avhd"]);
    child[512 + 40] ^= 1;
    sum(&mut child[512..1536], 36);
    fs::write(dir.path().join("snapshot.avhd"), &child).unwrap();
    assert!(children_of(&base).is_empty());
}

#[test]
fn images_of_which_a_disk_holds_the_data_are_found() {
    let _alone = alone();
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let create = |options: &str, name: &str| {
        run("qemu-img", &["create", "-q", "-f", "qcow2", "-o", options, text(&path(name)), "4M"]);
    };
    create(&format!("data_file={},data_file_raw=on", text(&path("data.raw"))), "image.qcow2");
    run("qemu-img", &["create", "-q", "-f", "raw", text(&path("other.raw")), "4M"]);
    assert_eq!(related(&path("data.raw"), Relation::Data), ["image.qcow2"]);
    assert!(related(&path("other.raw"), Relation::Data).is_empty());
    assert!(image::relatives(&chain(&path("image.qcow2")), &Folder).unwrap().is_empty(), "its own data");
    // What stands on the data alone would change with the image.
    run(
        "qemu-img",
        &["create", "-q", "-f", "qcow2", "-b", "data.raw", "-F", "raw", text(&path("child.qcow2"))],
    );
    assert_eq!(children_of(&path("image.qcow2")), ["child.qcow2"]);
    // Two images with one data file.
    fs::copy(path("image.qcow2"), path("twin.qcow2")).unwrap();
    assert_eq!(related(&path("image.qcow2"), Relation::Data), ["twin.qcow2"]);
    assert_eq!(related(&path("data.raw"), Relation::Data), ["image.qcow2", "twin.qcow2"]);
}

#[test]
fn descriptors_that_name_a_disk_as_their_extent_are_found() {
    let _alone = alone();
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let create = |subformat: &str, name: &str| {
        let option = format!("subformat={subformat}");
        run("qemu-img", &["create", "-q", "-f", "vmdk", "-o", &option, text(&path(name)), "4M"]);
    };
    create("monolithicFlat", "flat.vmdk");
    create("monolithicSparse", "sparse.vmdk");
    let raw = OpenOptions { format: Some(Format::Raw) };
    let extent = Chain::open(TestFile::open(path("flat-flat.vmdk")), raw, &Folder).unwrap();
    let relatives = image::relatives(&extent, &Folder).unwrap();
    assert_eq!(relatives.len(), 1, "{relatives:?}");
    assert_eq!((relatives[0].relation, &*relatives[0].name), (Relation::Data, "flat.vmdk"));
    assert!(image::relatives(&chain(&path("flat.vmdk")), &Folder).unwrap().is_empty());
    // A copy of a disk that holds its own data still names the file that it was copied from.
    fs::copy(path("sparse.vmdk"), path("copy of sparse.vmdk")).unwrap();
    assert!(image::relatives(&chain(&path("sparse.vmdk")), &Folder).unwrap().is_empty());
}

#[test]
fn children_in_qemu_s_former_formats_are_found() {
    let _alone = alone();
    let dir = scratch();
    let base = create(dir.path(), "base.raw", "raw", None);
    for format in ["qed", "qcow"] {
        let name = format!("child.{format}");
        create(dir.path(), &name, format, Some(("base.raw", "raw")));
        create(dir.path(), &format!("alone.{format}"), format, None);
        assert_eq!(children_of(&base), std::slice::from_ref(&name), "{format}");
        for name in [name, format!("alone.{format}")] {
            fs::remove_file(dir.path().join(name)).unwrap();
        }
    }
}

#[test]
fn names_that_are_no_text_are_no_hiding_place() {
    use std::os::unix::ffi::OsStrExt;
    let _alone = alone();
    let dir = scratch();
    let base = create(dir.path(), "base.raw", "raw", None);
    let child = create(dir.path(), "child.qcow2", "qcow2", Some(("base.raw", "raw")));
    let odd = dir.path().join(std::ffi::OsStr::from_bytes(b"child \xff.qcow2"));
    fs::rename(child, &odd).unwrap();
    assert_eq!(children_of(&base), ["child \u{fffd}.qcow2"]);
    // The other way round: the parent's name.
    let odd_base = dir.path().join(std::ffi::OsStr::from_bytes(b"base \xfe.raw"));
    fs::rename(&base, &odd_base).unwrap();
    let mut bytes = fs::read(&odd).unwrap();
    let at = bytes.windows(8).position(|window| window == b"base.raw").unwrap();
    // One byte shorter than the longest name that has room before the next thing of the header.
    bytes[16..20].copy_from_slice(&10u32.to_be_bytes());
    bytes[at..at + 10].copy_from_slice(b"base \xfe.raw");
    fs::write(&odd, bytes).unwrap();
    let chain = Chain::open(TestFile::open(&odd_base), OpenOptions::default(), &Folder).unwrap();
    let relatives = image::relatives(&chain, &Folder).unwrap();
    assert_eq!(relatives.len(), 1, "{relatives:?}");
}

/// A folder of which one file cannot be read.
struct Locked;

impl Resolver for Locked {
    fn open(&self, from: &dyn HostFile, name: &str, purpose: Purpose) -> Result<Arc<dyn HostFile>> {
        if name == "locked.qcow2" {
            let denied = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
            return Err(Error::io("open", denied).path(name));
        }
        Folder.open(from, name, purpose)
    }

    fn siblings(&self, from: &dyn HostFile) -> Result<Vec<std::ffi::OsString>> {
        Folder.siblings(from)
    }
}

#[test]
fn what_cannot_be_read_may_need_the_disk() {
    let _alone = alone();
    let dir = scratch();
    let base = create(dir.path(), "base.raw", "raw", None);
    assert!(image::relatives(&chain(&base), &Locked).unwrap().is_empty());
    fs::write(dir.path().join("locked.qcow2"), "secret").unwrap();
    let error = image::relatives(&chain(&base), &Locked).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Refused);
    let hint = error.hint_text().unwrap();
    assert!(
        error.to_string().contains("'locked.qcow2'") && hint.contains("folder of its own"),
        "{error}: {hint}"
    );
}
