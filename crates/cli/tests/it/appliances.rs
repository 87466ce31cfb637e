//! Appliances: copied from, and made.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testkit::{run, scratch};

use crate::common::{Untouched, arg, assert_only, document, fail, number, output, succeed};
use crate::copy_all::{ALL, disk, same};

const APPLIANCE: &str = "leandisk.appliance/1";

/// A folder with two disks, an OVA of them, and what is in that.
struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { dir: scratch() };
        disk(&scene.at("a.qcow2"), "qcow2", 1);
        disk(&scene.at("b.raw"), "raw", 2);
        scene.copy_to_ova();
        fs::create_dir(scene.at("unpacked")).unwrap();
        run("tar", &["-xf", arg(&scene.at("vm.ova")), "-C", arg(&scene.at("unpacked"))]);
        scene
    }

    fn copy_to_ova(&self) {
        let (a, b, ova) = (self.at("a.qcow2"), self.at("b.raw"), self.at("vm.ova"));
        succeed(&["copy", arg(&a), arg(&b), "--into", arg(&ova), "--verify"]);
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn inside(&self, name: &str) -> PathBuf {
        self.at("unpacked").join(name)
    }

    /// Packs what is unpacked, descriptor first, with a manifest that fits unless it is to stay as it is.
    fn pack(&self, names: &[&str], with_manifest: bool) -> PathBuf {
        if with_manifest {
            let mut lines = String::new();
            for name in names.iter().filter(|name| !name.ends_with(".mf")) {
                let digest = run("sha256sum", &[arg(&self.inside(name))]);
                lines += &format!("SHA256({name})= {}\n", digest.split_whitespace().next().unwrap());
            }
            fs::write(self.inside("vm.mf"), lines).unwrap();
        }
        let packed = self.at("packed.ova");
        let folder = self.at("unpacked");
        run("tar", &[&["--format=ustar", "-cf", arg(&packed), "-C", arg(&folder)], names].concat());
        packed
    }

    /// Nothing comes into a folder, and nothing of the sources changes.
    #[track_caller]
    fn refuses(&self, source: &Path, status: &[i32], why: &str) {
        let into = self.at("refused");
        fs::create_dir_all(&into).unwrap();
        let before = Untouched::all_in(&self.at("unpacked"));
        for more in [&[][..], &["--dry-run"]] {
            let args = ["copy", arg(source), "--into", arg(&into), "-O", "qcow2", "--json"];
            let output = output(&[&args, more].concat());
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code().is_some_and(|code| status.contains(&code)), "{why}: {output:?}");
            assert!(message.contains(why), "{why}: {message}");
        }
        assert_only(&into, &[]);
        before.check(&self.at("unpacked"));
    }
}

const MEMBERS: [&str; 4] = ["vm.ovf", "vm.mf", "vm-disk1.vmdk", "vm-disk2.vmdk"];

#[test]
fn an_ova_is_what_its_rules_say() {
    let scene = Scene::new();
    let listed = run("tar", &["-tf", arg(&scene.at("vm.ova"))]);
    assert_eq!(listed.lines().collect::<Vec<_>>(), MEMBERS);
    let header = fs::read(scene.at("vm.ova")).unwrap();
    assert_eq!(&header[257..265], b"ustar\x0000");
    assert_eq!(fs::metadata(scene.at("vm.ova")).unwrap().len() % 10240, 0);
    // The manifest, by sha256sum.
    let manifest = fs::read_to_string(scene.inside("vm.mf")).unwrap();
    let lines = manifest.lines().map(|line| {
        let (name, digest) = line.strip_prefix("SHA256(").unwrap().split_once(")= ").unwrap();
        format!("{digest}  {name}\n")
    });
    fs::write(scene.inside("sums"), lines.collect::<String>()).unwrap();
    let checked = Command::new("sha256sum").args(["-c", "sums"]).current_dir(scene.at("unpacked")).output();
    let checked = String::from_utf8(checked.unwrap().stdout).unwrap();
    assert_eq!(checked.matches(": OK").count(), 3, "{checked}");
    // The descriptor, by xmllint.
    let value = |path: &str| run("xmllint", &["--xpath", path, arg(&scene.inside("vm.ovf"))]);
    for (number, name) in [(1, "vm-disk1.vmdk"), (2, "vm-disk2.vmdk")] {
        let of = |element: &str, attribute: &str| {
            let path =
                format!("string((//*[local-name()='{element}'])[{number}]/@*[local-name()='{attribute}'])");
            value(&path).trim().to_owned()
        };
        let len_bytes = fs::metadata(scene.inside(name)).unwrap().len();
        assert_eq!((of("File", "href").as_str(), of("File", "size")), (name, len_bytes.to_string()));
        assert_eq!(of("Disk", "fileRef"), of("File", "id"));
        assert_eq!(of("Disk", "capacity"), (16 << 20).to_string());
        assert_eq!(of("Disk", "populatedSize"), (364 << 10).to_string());
        assert!(of("Disk", "format").ends_with("vmdk.html#streamOptimized"));
        let resources = format!("string((//*[local-name()='HostResource'])[{number}])");
        assert_eq!(value(&resources).trim(), format!("ovf:/disk/vmdisk{number}"));
    }
    assert_eq!(value("count(//*[local-name()='Item'])").trim(), "5");
    // The disks, by qemu-img.
    for (name, source) in [("vm-disk1.vmdk", "a.qcow2"), ("vm-disk2.vmdk", "b.raw")] {
        same(&scene.inside(name), &scene.at(source));
        let info = run("qemu-img", &["info", arg(&scene.inside(name))]);
        assert!(info.contains("streamOptimized"), "{info}");
    }
}

#[test]
fn appliances_of_every_kind_are_copied() {
    let scene = Scene::new();
    let ova = scene.at("vm.ova");
    let listed = document(APPLIANCE, &["info", arg(&ova)]);
    assert_eq!(listed["kind"], "ova");
    assert_eq!(listed["disks"][1]["file"], "vm-disk2.vmdk", "{listed}");
    assert_eq!(number(&listed, "/disks/0/virtual_bytes"), 16 << 20);
    assert!(succeed(&["info", arg(&ova)]).contains("vm-disk1.vmdk: vmdk, 16"));
    for source in [ova.clone(), scene.inside("vm.ovf")] {
        let into = scene.at("new");
        let args = ["copy", arg(&source), "--into", arg(&into), "-O", "qcow2", "--verify"];
        let done = document(ALL, &args);
        assert_eq!(done["notes"], Value::Array(Vec::new()), "{done}");
        assert_only(&into, &["vm-disk1.qcow2", "vm-disk2.qcow2"]);
        same(&into.join("vm-disk1.qcow2"), &scene.at("a.qcow2"));
        same(&into.join("vm-disk2.qcow2"), &scene.at("b.raw"));
        fs::remove_dir_all(&into).unwrap();
    }
    // With another disk beside it, and not confined.
    let other = disk(&scene.at("other.vdi"), "vdi", 9);
    let into = scene.at("three");
    let args = ["copy", arg(&other), arg(&ova), "--into", arg(&into), "-O", "raw", "--confine", "never"];
    succeed(&args);
    assert_only(&into, &["other.raw", "vm-disk1.raw", "vm-disk2.raw"]);
    // One disk of two is not meant by the name.
    let message = fail(3, &["analyze", arg(&ova)]);
    assert!(message.contains("2 disks"), "{message}");
    // A single one is.
    let single = scene.at("single.ova");
    succeed(&["copy", arg(&other), "--into", arg(&single)]);
    document("leandisk.analyze/1", &["analyze", arg(&single)]);
    let target = scene.at("single.vhdx");
    succeed(&["copy", arg(&single), arg(&target)]);
    same(&target, &other);
    let mut bytes = fs::read(&single).unwrap();
    let at = bytes.len() - 20_000;
    bytes[at] ^= 1;
    let broken = scene.at("broken.ova");
    fs::write(&broken, bytes).unwrap();
    document(APPLIANCE, &["info", arg(&broken)]);
    let message = fail(4, &["copy", arg(&broken), arg(&scene.at("new.raw"))]);
    assert!(message.contains("manifest"), "{message}");
    // Nothing changes one in place.
    let before = fs::read(&single).unwrap();
    for command in [&["compact"][..], &["defrag"]] {
        fail(3, &[command, &[arg(&single)]].concat());
    }
    assert!(fs::read(&single).unwrap() == before);
}

/// Cuts a file into chunks as `split` names them, and removes it.
fn split(file: &Path, chunk_bytes: u64) {
    let args = ["-a", "9", "-d", "-b", &chunk_bytes.to_string(), arg(file), &format!("{}.", arg(file))];
    run("split", &args);
    fs::remove_file(file).unwrap();
}

#[test]
fn files_in_chunks_and_compressed_ones_are_copied() {
    let scene = Scene::new();
    let descriptor = fs::read_to_string(scene.inside("vm.ovf")).unwrap();
    let size = |name: &str| fs::metadata(scene.inside(name)).unwrap().len();
    let (first, second) = (scene.inside("vm-disk1.vmdk"), scene.inside("vm-disk2.vmdk"));
    let stated = |name: &str| format!("ovf:size=\"{}\"", size(name));
    let (plain1, plain2) = (stated("vm-disk1.vmdk"), stated("vm-disk2.vmdk"));
    let whole = run("sha256sum", &[arg(&second)]);
    run("gzip", &[arg(&first)]);
    fs::rename(scene.inside("vm-disk1.vmdk.gz"), &first).unwrap();
    let (packed1, packed2) = (size("vm-disk1.vmdk"), size("vm-disk2.vmdk"));
    let (chunk1, chunk2) = (packed1 / 3 + 1, packed2.div_ceil(2));
    let packed = descriptor
        .replacen(
            &plain1,
            &format!("ovf:size=\"{packed1}\" ovf:compression=\"gzip\" ovf:chunkSize=\"{chunk1}\""),
            1,
        )
        .replacen(&plain2, &format!("{plain2} ovf:chunkSize=\"{chunk2}\""), 1);
    assert_eq!(packed.matches("chunkSize").count(), 2, "{packed}");
    fs::write(scene.inside("vm.ovf"), &packed).unwrap();
    split(&first, chunk1);
    split(&second, chunk2);
    let chunks =
        ["1.vmdk.000000000", "1.vmdk.000000001", "1.vmdk.000000002", "2.vmdk.000000000", "2.vmdk.000000001"];
    let chunks: Vec<_> = chunks.iter().map(|name| format!("vm-disk{name}")).collect();
    let members: Vec<&str> =
        ["vm.ovf", "vm.mf"].into_iter().chain(chunks.iter().map(String::as_str)).collect();
    let ova = scene.pack(&members, true);
    // A manifest may have a digest of the whole file, too.
    let digest = format!("SHA256(vm-disk2.vmdk)= {}\n", whole.split_whitespace().next().unwrap());
    let manifest = fs::read_to_string(scene.inside("vm.mf")).unwrap();
    fs::write(scene.inside("vm.mf"), format!("{manifest}{digest}")).unwrap();
    let digests_of_chunks = scene.at("chunks.ova");
    fs::rename(&ova, &digests_of_chunks).unwrap();
    for source in [&digests_of_chunks, &scene.pack(&members, false), &scene.inside("vm.ovf")] {
        let listed = document(APPLIANCE, &["info", arg(source)]);
        assert_eq!(listed["disks"][0]["file"], "vm-disk1.vmdk", "{listed}");
        assert_eq!(number(&listed, "/disks/0/virtual_bytes"), 16 << 20);
        let into = scene.at("new");
        let args = ["copy", arg(source), "--into", arg(&into), "-O", "qcow2", "--verify"];
        let done = document(ALL, &args);
        assert_eq!(done["notes"], Value::Array(Vec::new()), "{done}");
        assert_only(&into, &["vm-disk1.qcow2", "vm-disk2.qcow2"]);
        same(&into.join("vm-disk1.qcow2"), &scene.at("a.qcow2"));
        same(&into.join("vm-disk2.qcow2"), &scene.at("b.raw"));
        fs::remove_dir_all(&into).unwrap();
    }
    // A digest of the whole that is another.
    let other = format!("SHA256(vm-disk2.vmdk)= {}\n", "0".repeat(64));
    fs::write(scene.inside("vm.mf"), format!("{manifest}{other}")).unwrap();
    scene.refuses(&scene.inside("vm.ovf"), &[4], "not what the manifest says");
    scene.refuses(&scene.pack(&members, false), &[4], "not what the manifest says");
    // A chunk that is gone, or shorter.
    fs::remove_file(scene.inside("vm.mf")).unwrap();
    let last = scene.inside("vm-disk2.vmdk.000000001");
    let bytes = fs::read(&last).unwrap();
    fs::write(&last, &bytes[1..]).unwrap();
    let members: Vec<&str> = members.into_iter().filter(|name| *name != "vm.mf").collect();
    scene.refuses(&scene.inside("vm.ovf"), &[4], "by the description");
    scene.refuses(&scene.pack(&members, false), &[4], "by the description");
    fs::remove_file(&last).unwrap();
    scene.refuses(&scene.inside("vm.ovf"), &[3, 4, 5], "vm-disk2.vmdk.000000001");
    scene.refuses(&scene.pack(&members[..members.len() - 1], false), &[4], "vm-disk2.vmdk.000000001");
    fs::write(&last, &bytes).unwrap();
    // A compressed file that is broken in its midst.
    let middle = scene.inside("vm-disk1.vmdk.000000001");
    let whole = fs::read(&middle).unwrap();
    let mut broken = whole.clone();
    let at = broken.len() / 2;
    broken[at] ^= 0x10;
    fs::write(&middle, broken).unwrap();
    scene.refuses(&scene.inside("vm.ovf"), &[4], "gzip: ");
    fs::write(&middle, whole).unwrap();
    // One that unpacks to more than a disk of that size.
    for chunk in 0..3 {
        fs::remove_file(scene.inside(&format!("vm-disk1.vmdk.{chunk:09}"))).unwrap();
    }
    run("sh", &["-c", &format!("head -c 200M /dev/zero | gzip -1 > '{}'", arg(&first))]);
    let bomb = format!("ovf:size=\"{}\" ovf:compression=\"gzip\"", size("vm-disk1.vmdk"));
    let bomb = descriptor.replacen(&plain1, &bomb, 1).replacen(
        &plain2,
        &format!("{plain2} ovf:chunkSize=\"{chunk2}\""),
        1,
    );
    fs::write(scene.inside("vm.ovf"), bomb).unwrap();
    scene.refuses(&scene.inside("vm.ovf"), &[4], "which is more than such a disk has");
}

/// Whatever holds the bytes of the source is not replaced.
#[test]
fn a_chunk_of_the_source_is_no_target() {
    let scene = Scene { dir: scratch() };
    disk(&scene.at("b.raw"), "raw", 2);
    succeed(&["copy", arg(&scene.at("b.raw")), "--into", arg(&scene.at("vm.ova"))]);
    fs::create_dir(scene.at("unpacked")).unwrap();
    run("tar", &["-xf", arg(&scene.at("vm.ova")), "-C", arg(&scene.at("unpacked"))]);
    fs::remove_file(scene.inside("vm.mf")).unwrap();
    let archive = fs::read(scene.at("vm.ova")).unwrap();
    let ova = scene.at("vm.ova");
    let message = fail(3, &["copy", arg(&ova), arg(&ova), "-O", "raw", "--force"]);
    assert!(message.contains("source"), "{message}");
    let message = fail(3, &["analyze", arg(&ova), "--html", arg(&ova), "--force"]);
    assert!(message.contains("a part of the disk"), "{message}");
    assert!(fs::read(&ova).unwrap() == archive);
    let descriptor = fs::read_to_string(scene.inside("vm.ovf")).unwrap();
    fs::write(scene.inside("vm.ovf"), descriptor.replacen("ovf:size", "ovf:chunkSize=\"8192\" ovf:size", 1))
        .unwrap();
    split(&scene.inside("vm-disk1.vmdk"), 8192);
    let source = scene.inside("vm.ovf");
    succeed(&["copy", arg(&source), arg(&scene.at("new.raw"))]);
    same(&scene.at("new.raw"), &scene.at("b.raw"));
    let before = Untouched::all_in(&scene.at("unpacked"));
    for chunk in ["vm-disk1.vmdk.000000000", "vm-disk1.vmdk.000000001"] {
        let message = fail(3, &["copy", arg(&source), arg(&scene.inside(chunk)), "-O", "raw", "--force"]);
        assert!(message.contains("source"), "{message}");
    }
    before.check(&scene.at("unpacked"));
}

#[test]
fn machines_of_vmware_and_libvirt_are_copied() {
    let scene = Scene::new();
    let vmx = scene.inside("vm.vmx");
    let overlay = scene.inside("snapshot.vmdk");
    let base = scene.inside("base.vmdk");
    disk(&base, "vmdk", 5);
    let parent = ["-b", "base.vmdk", "-F", "vmdk"];
    run("qemu-img", &[&["create", "-q", "-f", "vmdk"], &parent[..], &[arg(&overlay)]].concat());
    run("qemu-io", &["-f", "vmdk", "-c", "write -P 6 2M 64K", arg(&overlay)]);
    let text = "scsi0:0.present = \"TRUE\"\nscsi0:0.fileName = \"snapshot.vmdk\"\n\
        ide1:0.present = \"TRUE\"\nide1:0.fileName = \"dvd.iso\"\nide1:0.deviceType = \"cdrom-image\"\n";
    fs::write(&vmx, text).unwrap();
    let into = scene.at("new");
    succeed(&["copy", arg(&vmx), "--into", arg(&into), "-O", "qcow2"]);
    assert_only(&into, &["snapshot.qcow2"]);
    same(&into.join("snapshot.qcow2"), &overlay);
    // libvirt: a raw disk that looks like an image is raw, because the domain says so.
    let lies = scene.at("lies.img");
    fs::copy(scene.at("a.qcow2"), &lies).unwrap();
    run("truncate", &["-s", "16M", arg(&lies)]);
    let xml = scene.at("domain.xml");
    let (a, seen) = (scene.at("a.qcow2"), scene.at("lies.img"));
    let domain = format!(
        "<domain type='kvm'><devices>\
         <disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='{}'/><target dev='vda'/></disk>\
         <disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{}'/><target dev='vdb'/></disk>\
         <disk type='file' device='cdrom'><source file='/no/such.iso'/><target dev='sda'/></disk>\
         </devices></domain>",
        arg(&a),
        arg(&seen)
    );
    fs::write(&xml, &domain).unwrap();
    let listed = document(APPLIANCE, &["info", arg(&xml)]);
    assert_eq!(
        (&listed["disks"][0]["format"], &listed["disks"][1]["format"]),
        (&"qcow2".into(), &"raw".into())
    );
    let into = scene.at("domain");
    succeed(&["copy", arg(&xml), "--into", arg(&into), "-O", "raw"]);
    assert_only(&into, &["a.raw", "lies.raw"]);
    run("cmp", &[arg(&into.join("lies.raw")), arg(&lies)]);
    // Elsewhere only if that is granted.
    let elsewhere = scene.inside("domain.xml");
    fs::write(&elsewhere, &domain).unwrap();
    scene.refuses(&elsewhere, &[3], "--allow-path");
    let granted = scene.at("granted");
    let allow = ["--allow-path", arg(scene.dir.path())];
    succeed(&[&["copy", arg(&elsewhere), "--into", arg(&granted), "-O", "raw"], &allow[..]].concat());
    let network = domain.replace(
        "type='file' device='disk'><driver name='qemu' type='qcow2'",
        "type='network'><driver type='raw'",
    );
    fs::write(&elsewhere, network).unwrap();
    scene.refuses(&elsewhere, &[3], "'network'");
}

#[test]
fn hostile_appliances_write_nothing() {
    let scene = Scene::new();
    let descriptor = fs::read_to_string(scene.inside("vm.ovf")).unwrap();
    let refuses = |descriptor: &str, status: &[i32], why: &str| {
        fs::write(scene.inside("vm.ovf"), descriptor).unwrap();
        scene.refuses(&scene.pack(&MEMBERS, true), status, why);
        scene.refuses(&scene.inside("vm.ovf"), status, "");
    };
    let secret = scene.at("secret.vmdk");
    fs::copy(scene.inside("vm-disk1.vmdk"), &secret).unwrap();
    for outside in
        ["../secret.vmdk", arg(&secret), "%2e%2e/secret.vmdk", "../../etc/passwd", "http://localhost/x"]
    {
        refuses(&descriptor.replacen("vm-disk1.vmdk", outside, 1), &[3, 4], "");
    }
    let size = |name: &str| fs::metadata(scene.inside(name)).unwrap().len();
    let wrong =
        descriptor.replacen(&format!("ovf:size=\"{}\"", size("vm-disk2.vmdk")), "ovf:size=\"4096\"", 1);
    refuses(&wrong, &[4], "4096 by the description");
    let larger = descriptor.replacen("ovf:capacity=\"16777216\"", "ovf:capacity=\"1073741824\"", 1);
    refuses(&larger, &[4], "1073741824 by the description");
    refuses(&descriptor.replacen("ovf:fileRef=\"file1\"", "ovf:fileRef=\"x\"", 1), &[4], "does not list");
    let gzip = descriptor.replacen("ovf:id=\"file1\"", "ovf:id=\"file1\" ovf:compression=\"gzip\"", 1);
    refuses(&gzip, &[4], "gzip: it is none");
    refuses(&gzip.replace("gzip", "zstd"), &[3], "zstd");
    let chunks = descriptor.replacen("ovf:id=\"file1\"", "ovf:id=\"file1\" ovf:chunkSize=\"1000\"", 1);
    refuses(&chunks, &[3, 4], "vm-disk1.vmdk.000000000");
    refuses(&chunks.replace("\"1000\"", "\"1\""), &[4], "more than 4096");
    let bomb = descriptor.replacen("<Envelope", "<!DOCTYPE a [<!ENTITY b \"b\">]><Envelope", 1);
    refuses(&bomb, &[4], "document type");
    refuses(&"<Envelope>".repeat(1 << 20 >> 4), &[4], "deeper");
    refuses(&format!("{descriptor}{}", " ".repeat(9 << 20)), &[4], "more than the");
    fs::write(scene.inside("vm.ovf"), &descriptor).unwrap();

    // A manifest of other contents, of fewer files, of none that is there.
    let good = scene.pack(&MEMBERS, true);
    let manifest = fs::read_to_string(scene.inside("vm.mf")).unwrap();
    let lines: Vec<&str> = manifest.lines().collect();
    for (changed, why) in [
        (manifest.replacen("= ", "= 0", 1), "line 1"),
        (manifest.replace(&lines[1][lines[1].len() - 8..], "00000000"), "not what the manifest says"),
        (lines[..2].join("\n"), "no digest of 'vm-disk2.vmdk'"),
        (format!("{manifest}{}\n", lines[0].replace("vm.ovf", "gone.iso")), "gone.iso"),
    ] {
        fs::write(scene.inside("vm.mf"), changed).unwrap();
        scene.refuses(&scene.pack(&MEMBERS, false), &[3, 4], why);
        scene.refuses(&scene.inside("vm.ovf"), &[3, 4], why);
    }
    // Without one it is said that nothing was checked.
    fs::remove_file(scene.inside("vm.mf")).unwrap();
    let into = scene.at("unchecked");
    let unchecked = scene.pack(&["vm.ovf", "vm-disk1.vmdk", "vm-disk2.vmdk"], false);
    let done = document(ALL, &["copy", arg(&unchecked), "--into", arg(&into), "-O", "raw"]);
    assert!(done["notes"][0].as_str().unwrap().contains("no manifest"), "{done}");

    // Links in the folder, and in the archive.
    let first = scene.inside("vm-disk1.vmdk");
    fs::remove_file(&first).unwrap();
    std::os::unix::fs::symlink("../secret.vmdk", &first).unwrap();
    scene.refuses(&scene.inside("vm.ovf"), &[3], "outside");
    scene.refuses(&scene.pack(&["vm.ovf", "vm-disk1.vmdk", "vm-disk2.vmdk"], false), &[3], "is a link");

    // Archives that end early, have members twice, or names that lead out.
    let whole = fs::read(&good).ok();
    assert!(whole.is_some());
    let packed = scene.at("bad.ova");
    let ova = fs::read(scene.at("vm.ova")).unwrap();
    fs::write(&packed, &ova[..ova.len() / 2]).unwrap();
    scene.refuses(&packed, &[4], "more than is left");
    let members = ova.len() - 10240;
    fs::write(&packed, [&ova[..512 + descriptor.len().next_multiple_of(512)], &ova[..members]].concat())
        .unwrap();
    scene.refuses(&packed, &[4], "called 'vm.ovf'");
    let unpacked = scene.at("unpacked");
    let out = ["-C", arg(&unpacked), "--transform", "s,^vm-disk2,../vm-disk2,", "-P"];
    fs::remove_file(&first).unwrap();
    fs::copy(&secret, &first).unwrap();
    run(
        "tar",
        &[&["--format=ustar", "-cf", arg(&packed)], &out[..], &["vm.ovf", "vm-disk1.vmdk", "vm-disk2.vmdk"]]
            .concat(),
    );
    scene.refuses(&packed, &[4], "leads out of the archive");
    fs::write(&packed, vec![7; 4096]).unwrap();
    scene.refuses(&packed, &[4], "tar header");
    fs::write(&packed, "").unwrap();
    scene.refuses(&packed, &[4], "no .ovf");
}

#[test]
fn an_ova_is_whole_or_not_there() {
    let scene = Scene::new();
    let (a, ova) = (scene.at("a.qcow2"), scene.at("vm.ova"));
    let before = fs::read(&ova).unwrap();
    fail(3, &["copy", arg(&a), "--into", arg(&ova)]);
    fs::write(scene.at("broken.vhdx"), vec![7; 9000]).unwrap();
    let new = scene.at("new.ova");
    let broken = scene.at("broken.vhdx");
    fail(4, &["copy", arg(&a), arg(&broken), "--into", arg(&new)]);
    for more in
        [&["-O", "raw"][..], &["-o", "subformat=monolithicSparse"], &["--resume"], &["--provision", "lazy"]]
    {
        fail(2, &[&["copy", arg(&a), "--into", arg(&new)], more].concat());
    }
    let long = scene.at(&format!("{}.ova", "n".repeat(90)));
    fail(3, &["copy", arg(&a), "--into", arg(&long)]);
    // An appliance is not written over itself.
    fail(3, &["copy", arg(&ova), "--into", arg(&ova), "--force"]);
    assert!(fs::read(&ova).unwrap() == before);
    let planned = document(ALL, &["copy", arg(&a), "--into", arg(&new), "--dry-run"]);
    assert_eq!(planned["disks"][0]["target"]["path"], arg(&new.join("new-disk1.vmdk")));
    assert!(!new.exists());
    assert_only(scene.dir.path(), &["a.qcow2", "b.raw", "broken.vhdx", "unpacked", "vm.ova"]);
    // An OVA of an OVA, in place of another.
    let replaced = scene.at("b.ova");
    fs::write(&replaced, "old").unwrap();
    succeed(&["copy", arg(&ova), arg(&a), "--into", arg(&replaced), "--force"]);
    let into = scene.at("again");
    succeed(&["copy", arg(&replaced), "--into", arg(&into), "-O", "raw"]);
    same(&into.join("b-disk3.raw"), &a);
    same(&into.join("b-disk2.raw"), &scene.at("b.raw"));
}
