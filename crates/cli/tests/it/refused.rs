//! What is refused, and that a refusal changes nothing: no target, and every file as it was.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{SOURCES, Untouched, arg, fail, succeed};
use tempfile::TempDir;
use testkit::{Guest, Inside, make_luks_image, run, scratch};

/// A folder with a source in it, that nothing may change.
struct Scene {
    dir: TempDir,
}

impl Scene {
    fn new() -> Self {
        Self { dir: scratch() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A small QCOW2 with something in it.
    fn qcow2(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        run("qemu-img", &["create", "-q", "-f", "qcow2", arg(&path), "8M"]);
        run("qemu-io", &["-f", "qcow2", "-c", "write -q -P 7 1M 1M", arg(&path)]);
        path
    }

    /// `copy` of `source` must fail with `status`, soon, naming `words`, and leave all as it is.
    fn refuses(&self, status: i32, source: &Path, more: &[&str], words: &[&str]) {
        let before = Untouched::all_in(self.dir.path());
        let target = self.path("target.raw");
        let started = Instant::now();
        for args in
            [&["copy", arg(source), arg(&target)][..], &["copy", arg(source), arg(&target), "--dry-run"]]
        {
            let message = fail(status, &[args, more].concat());
            for word in words {
                assert!(message.contains(word), "'{word}' in {message}");
            }
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        before.check(self.dir.path());
    }
}

#[test]
fn an_existing_target_stays() {
    let guest = Guest::get(Inside::Ntfs);
    let dir = scratch();
    let target = dir.path().join("target.qcow2");
    fs::write(&target, "precious").unwrap();
    let before = Untouched::all_in(dir.path());
    let message = fail(3, &["copy", arg(&guest.disk), arg(&target)]);
    assert!(message.contains("target.qcow2") && message.contains("--force"), "{message}");
    before.check(dir.path());
    succeed(&["copy", arg(&guest.disk), arg(&target), "--force"]);
    assert!(fs::metadata(&target).unwrap().len() > 1 << 20);
}

#[test]
fn the_source_is_never_the_target() {
    let scene = Scene::new();
    let source = scene.qcow2("disk.qcow2");
    let child = scene.path("child.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "disk.qcow2", "-F", "qcow2", arg(&child)]);
    symlink(&source, scene.path("link.qcow2")).unwrap();
    fs::hard_link(&source, scene.path("hard.qcow2")).unwrap();
    let before = Untouched::all_in(scene.dir.path());
    for (from, to) in [
        ("disk.qcow2", "disk.qcow2"),
        ("disk.qcow2", "link.qcow2"),
        ("disk.qcow2", "hard.qcow2"),
        ("child.qcow2", "disk.qcow2"),
    ] {
        fail(3, &["copy", arg(&scene.path(from)), arg(&scene.path(to)), "--force"]);
        before.check(scene.dir.path());
    }
}

#[test]
fn wrong_usage_is_status_2() {
    let guest = Guest::get(Inside::Ntfs);
    let dir = scratch();
    let target = dir.path().join("target.qcow2");
    let source = arg(&guest.disk);
    for args in [
        &["copy", source][..],
        &["copy", source, arg(&target), "--no-such-option"],
        &["copy", source, arg(&target), "-o", "no_such_key=1"],
        &["copy", source, arg(&target), "-o", "cluster_size=3"],
        &["copy", source, arg(&target), "-o", "compression=lzma", "--compress"],
        &["copy", source, arg(&target), "-O", "vhd", "--compress"],
        &["copy", source, arg(&target), "--threads", "0"],
        &["frobnicate"],
    ] {
        fail(2, args);
        common::assert_only(dir.path(), &[]);
    }
}

/// What is made under a name shall be what the name says.
#[test]
fn a_target_whose_name_tells_no_format_needs_one() {
    let scene = Scene::new();
    let source = scene.qcow2("disk.qcow2");
    let before = Untouched::all_in(scene.dir.path());
    for name in ["x.ova", "x.foo", "x.", "x.qcow2.bak", "x.iso"] {
        let target = scene.path(name);
        for more in [&[][..], &["--dry-run"], &["--force"]] {
            let message = fail(2, &[&["copy", arg(&source), arg(&target)], more].concat());
            assert!(message.contains(name) && message.contains("-O"), "{message}");
            before.check(scene.dir.path());
        }
        succeed(&["copy", arg(&source), arg(&target), "-O", "raw", "--progress", "none"]);
        fs::remove_file(&target).unwrap();
    }
    let message = fail(2, &["copy", arg(&source), "-"]);
    assert!(message.contains("standard output"), "{message}");
    assert!(!Path::new("-").exists());
    // Without any extension the source tells.
    succeed(&["copy", arg(&source), arg(&scene.path("copied")), "--progress", "none"]);
    run("qemu-img", &["compare", "-f", "qcow2", "-F", "qcow2", arg(&source), arg(&scene.path("copied"))]);
}

/// What is no disk is not copied, and not served writable, as if it were one.
#[test]
fn files_of_other_containers_are_refused_by_name() {
    let scene = Scene::new();
    let disk = scene.path("disk.raw");
    fs::write(&disk, vec![7; 1 << 20]).unwrap();
    let qed = scene.path("disk.qed");
    run("qemu-img", &["convert", "-f", "raw", "-O", "qed", arg(&disk), arg(&qed)]);
    let called_raw = scene.path("called.raw");
    fs::copy(&qed, &called_raw).unwrap();
    fs::write(scene.path("notes.img"), "a line\n").unwrap();
    let socket = scene.path("socket");
    for (path, words) in [(&qed, "QED"), (&called_raw, "QED"), (&scene.path("notes.img"), "text file")] {
        scene.refuses(3, path, &[], &[words, "-f raw"]);
        let before = Untouched::all_in(scene.dir.path());
        for args in
            [&["serve", "--socket", arg(&socket)][..], &["info"], &["analyze"], &["compact"], &["defrag"]]
        {
            let message = fail(3, &[args, &[arg(path)]].concat());
            assert!(message.contains(words), "{args:?}: {message}");
        }
        before.check(scene.dir.path());
    }
    let target = scene.path("target.raw");
    succeed(&["copy", "-f", "raw", arg(&qed), arg(&target), "--progress", "none"]);
    assert_eq!(fs::read(&qed).unwrap(), fs::read(&target).unwrap());
}

#[test]
fn a_missing_source_is_an_io_error() {
    let scene = Scene::new();
    scene.refuses(5, &scene.path("absent.qcow2"), &[], &["absent.qcow2"]);
}

#[test]
fn a_missing_parent_is_refused_by_name() {
    let scene = Scene::new();
    let base = scene.qcow2("base.qcow2");
    let child = scene.path("child.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2", arg(&child)]);
    fs::remove_file(base).unwrap();
    scene.refuses(3, &child, &[], &["base.qcow2"]);
}

#[test]
fn a_chain_that_runs_in_a_circle_is_corrupt() {
    let scene = Scene::new();
    let (a, b) = (scene.qcow2("a.qcow2"), scene.qcow2("b.qcow2"));
    run("qemu-img", &["rebase", "-u", "-b", "b.qcow2", "-F", "qcow2", arg(&a)]);
    run("qemu-img", &["rebase", "-u", "-b", "a.qcow2", "-F", "qcow2", arg(&b)]);
    scene.refuses(4, &a, &[], &["circle"]);
}

#[test]
fn an_encrypted_image_is_refused() {
    let scene = Scene::new();
    let path = scene.path("encrypted.qcow2");
    make_luks_image(&path, "4M");
    scene.refuses(3, &path, &[], &["crypt"]);
    assert!(succeed(&["info", arg(&path)]).to_lowercase().contains("luks"), "info names it");
}

#[test]
fn truncated_images_are_corrupt() {
    let guest = Guest::get(Inside::Ntfs);
    for source in &SOURCES {
        // A raw disk may have any length.
        if source.format == "raw" {
            continue;
        }
        let scene = Scene::new();
        let path = source.make(&guest.disk, scene.dir.path());
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let len = file.metadata().unwrap().len();
        // A VMDK's bare descriptor is text, which may well be whole without its last lines.
        if len < 1 << 20 {
            continue;
        }
        for keep in [len / 2, 70_000, 4096, 600, 511] {
            if keep >= len {
                continue;
            }
            file.set_len(keep).unwrap();
            let before = Untouched::all_in(scene.dir.path());
            let target = scene.path("target.qcow2");
            let output = common::output(&["copy", "-f", source.format, arg(&path), arg(&target)]);
            let message = String::from_utf8(output.stderr).unwrap();
            let status = output.status.code();
            assert!(
                matches!(status, Some(3 | 4)),
                "{} cut to {keep} bytes: {status:?} {message}",
                source.name
            );
            before.check(scene.dir.path());
        }
    }
}

#[test]
fn garbage_in_the_headers_is_status_3_or_4() {
    let guest = Guest::get(Inside::Ntfs);
    for source in SOURCES.iter().filter(|source| source.format != "raw") {
        let scene = Scene::new();
        let path = source.make(&guest.disk, scene.dir.path());
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let len = file.metadata().unwrap().len();
        let whole = [0u8, 0xff].map(|value| vec![value; 4096]);
        // Both ends: a VHD has its truth in the footer.
        for garbage in whole {
            file.write_all_at(&garbage, 0).unwrap();
            if len > 1 << 20 {
                for at in [4096, 65_536, 196_608, 262_144, len - 4096] {
                    file.write_all_at(&garbage, at).unwrap();
                }
            }
            let target = scene.path("target.qcow2");
            let output = common::output(&["copy", "-f", source.format, arg(&path), arg(&target)]);
            let message = String::from_utf8(output.stderr).unwrap();
            assert!(
                matches!(output.status.code(), Some(3 | 4)),
                "{}: {:?} {message}",
                source.name,
                output.status
            );
            assert!(!target.exists());
        }
    }
}

#[test]
fn names_in_messages_cannot_steer_the_terminal() {
    let scene = Scene::new();
    let path = scene.qcow2("disk.qcow2");
    run("qemu-img", &["rebase", "-u", "-b", "evil\x1b[2J\x07.qcow2", "-F", "qcow2", arg(&path)]);
    let message = fail(3, &["info", arg(&path)]);
    assert!(message.contains("evil"), "{message}");
    assert!(!message.contains('\x1b') && !message.contains('\x07'), "{message:?}");
}

/// A secret beside the granted folder, and one image in it that tries to get at it.
mod references {
    use super::*;

    struct Jail {
        scene: Scene,
        inner: PathBuf,
        secret: PathBuf,
    }

    impl Jail {
        fn new() -> Self {
            let scene = Scene::new();
            let inner = scene.path("granted");
            fs::create_dir(&inner).unwrap();
            let secret = scene.path("secret.raw");
            fs::write(&secret, vec![b'S'; 1 << 20]).unwrap();
            Self { scene, inner, secret }
        }

        fn refuses(&self, image: &Path, words: &[&str]) {
            let target = self.inner.join("target.raw");
            let before = Untouched::all_in(&self.inner);
            for command in [&["info", arg(image)][..], &["copy", arg(image), arg(&target)]] {
                let message = fail(3, command);
                for word in words {
                    assert!(message.contains(word), "'{word}' in {message}");
                }
            }
            before.check(&self.inner);
        }

        fn qcow2_with_backing(&self, backing: &str) -> PathBuf {
            let path = self.inner.join("child.qcow2");
            run("qemu-img", &["create", "-q", "-f", "qcow2", arg(&path), "1M"]);
            run("qemu-img", &["rebase", "-u", "-b", backing, "-F", "raw", arg(&path)]);
            path
        }
    }

    #[test]
    fn nothing_outside_the_folder_opens_unless_granted() {
        let jail = Jail::new();
        let absolute = arg(&jail.secret).to_owned();
        symlink(&jail.secret, jail.inner.join("link.raw")).unwrap();
        symlink("..", jail.inner.join("up")).unwrap();
        for backing in ["../secret.raw", &absolute, "link.raw", "up/secret.raw", "./../secret.raw"] {
            jail.refuses(&jail.qcow2_with_backing(backing), &["secret.raw"].map(|_| "allow"));
        }
        let image = jail.qcow2_with_backing("../secret.raw");
        let target = jail.scene.path("target.raw");
        succeed(&["copy", arg(&image), arg(&target), "--allow-path", arg(&jail.secret)]);
        assert_eq!(fs::read(&target).unwrap(), fs::read(&jail.secret).unwrap());
    }

    #[test]
    fn protocols_never_open() {
        let jail = Jail::new();
        for backing in [
            "json:{\"driver\":\"raw\",\"file\":{\"driver\":\"file\",\"filename\":\"/etc/passwd\"}}",
            "nbd://127.0.0.1:1/x",
            "https://127.0.0.1:1/x",
            "file:/etc/passwd",
            "fd:0",
            "/dev/zero",
            "/proc/self/environ",
        ] {
            let path = jail.qcow2_with_backing(backing);
            jail.refuses(&path, &[]);
        }
    }

    #[test]
    fn extents_and_data_files_stay_inside() {
        let jail = Jail::new();
        for name in ["../secret.raw", arg(&jail.secret)] {
            let descriptor = format!(
                "# Disk DescriptorFile\nversion=1\nCID=12345678\nparentCID=ffffffff\n\
                 createType=\"monolithicFlat\"\n\nRW 2048 FLAT \"{name}\" 0\n"
            );
            let vmdk = jail.inner.join("flat.vmdk");
            fs::write(&vmdk, descriptor).unwrap();
            jail.refuses(&vmdk, &[]);
        }
        let image = jail.inner.join("data.qcow2");
        let options = format!("data_file={},data_file_raw=on", jail.scene.path("data.raw").display());
        run("qemu-img", &["create", "-q", "-f", "qcow2", "-o", &options, arg(&image), "1M"]);
        jail.refuses(&image, &[]);
    }
}
