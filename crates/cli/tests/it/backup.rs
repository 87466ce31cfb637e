//! Backups, judged by restic: it checks the repository, and what it restores is what a copy of the disk holds.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use repository::{Folder, KeyCost, Repository};
use serde_json::Value;
use tempfile::TempDir;
use testkit::{Guest, Inside, run, scratch};

use crate::common::{
    SOURCES, TARGETS, arg, assert_only, assert_same_bytes, document, fail, is_listening, kill_and_resume,
    leandisk, number, output, signal, succeed, wait_until,
};
use crate::defrag_common;

/// A repository in a folder of its own, with its password.
pub(crate) struct Repo {
    pub(crate) dir: TempDir,
}

impl Repo {
    /// Empty, with a key that costs little: the program and restic open it hundreds of times.
    pub(crate) fn new() -> Self {
        let repo = Self::nowhere();
        fs::create_dir(repo.path()).unwrap();
        let folder = Arc::new(Folder::new(&repo.path()));
        Repository::init_with_cost(folder, b"correct horse", KeyCost::LEAST).unwrap();
        repo
    }

    /// Only the password of one that is not made yet.
    pub(crate) fn nowhere() -> Self {
        let dir = scratch();
        fs::write(dir.path().join("password"), "correct horse\n").unwrap();
        Self { dir }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("repository")
    }

    pub(crate) fn args(&self) -> [String; 4] {
        let password = self.dir.path().join("password").display().to_string();
        ["--repo".into(), self.path().display().to_string(), "--password-file".into(), password]
    }

    /// The program's arguments, with the repository behind them.
    pub(crate) fn with<'a>(&'a self, of: &'a [String; 4], args: &[&'a str]) -> Vec<&'a str> {
        args.iter().copied().chain(of.iter().map(String::as_str)).collect()
    }

    pub(crate) fn document(&self, schema: &str, args: &[&str]) -> Value {
        document(schema, &self.with(&self.args(), args))
    }

    pub(crate) fn succeed(&self, args: &[&str]) -> String {
        succeed(&self.with(&self.args(), args))
    }

    pub(crate) fn fail(&self, status: i32, args: &[&str]) -> String {
        fail(status, &self.with(&self.args(), args))
    }

    pub(crate) fn restic_command(&self) -> Command {
        let mut command = Command::new("restic");
        let [_, repo, _, password] = self.args();
        command.args(["--no-cache", "--quiet", "--repo", &repo, "--password-file", &password]);
        command
    }

    /// Runs restic, which shall succeed.
    pub(crate) fn restic(&self, args: &[&str]) -> String {
        let output = self.restic_command().args(args).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "restic {args:?}: {}\n{stderr}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    /// What restic restores of a file.
    pub(crate) fn dump(&self, snapshot: &str, path: &str, to: &Path) {
        let status = self
            .restic_command()
            .args(["dump", snapshot, path])
            .stdout(File::create(to).unwrap())
            .status()
            .unwrap();
        assert!(status.success(), "restic dump {snapshot} {path}");
    }

    pub(crate) fn packs(&self) -> Vec<PathBuf> {
        let folders = fs::read_dir(self.path().join("data")).into_iter().flatten().flatten();
        let files = folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten().flatten());
        files
            .map(|file| file.path())
            .filter(|path| path.file_name().is_some_and(|name| name.len() == 64))
            .collect()
    }
}

/// A raw disk without partitions, of bytes that do not compress.
pub(crate) fn noise(path: &Path, mebibytes: u64, seed: u64) {
    fs::write(path, testkit::noise(seed, usize::try_from(mebibytes << 20).unwrap())).unwrap();
}

#[test]
fn restic_restores_what_a_copy_of_the_disk_holds() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let repo = Repo::nowhere();
    let [ntfs, ext4] = Guest::both();
    let kind = |name: &str| SOURCES.iter().find(|kind| kind.name == name).unwrap();
    let vhdx = kind("dynamic.vhdx").make(&ntfs.disk, dir.path());
    let qcow2 = kind("zstd.qcow2").make(&ext4.disk, dir.path());
    let vmdk = kind("two-gb-sparse.vmdk").make(&ntfs.disk, dir.path());
    let raw = format!("plain={}", ext4.disk.display());

    let disks = [arg(&vhdx), arg(&qcow2), arg(&vmdk), &raw];
    let planned =
        repo.document("leandisk.backup/1", &[&["backup", "--dry-run", "--init"], &disks[..]].concat());
    assert!(!repo.path().exists(), "a dry run makes nothing");
    let made = [&["backup", "--init", "--verify", "--tag", "a,b", "--host", "vm"], &disks[..]].concat();
    let made = repo.document("leandisk.backup/1", &made);
    assert_eq!(number(&planned, "/read_bytes"), number(&made, "/read_bytes"));
    assert!(number(&planned, "/stored_bytes") >= number(&made, "/stored_bytes"), "{planned:#} {made:#}");
    assert_eq!((&made["parent"], &made["verified"]), (&Value::Null, &Value::Bool(true)));
    repo.restic(&["check", "--read-data"]);

    let known: Value = serde_json::from_str(&repo.restic(&["snapshots", "--json"])).unwrap();
    assert_eq!(known[0]["id"], made["snapshot"]);
    assert_eq!((&known[0]["hostname"], &known[0]["tags"][1]), (&"vm".into(), &"b".into()));
    let listed = repo.document("leandisk.snapshots/1", &["snapshots"]);
    assert_eq!(
        (&listed["snapshots"][0]["id"], &listed["snapshots"][0]["hostname"]),
        (&made["snapshot"], &"vm".into())
    );
    assert!(repo.succeed(&["snapshots"]).contains("plain"));
    let checked = repo.document("leandisk.check/1", &["check", "latest"]);
    assert_eq!(checked["disks"].as_array().unwrap().len(), 4);

    let sources = [&vhdx, &qcow2, &vmdk, &ext4.disk];
    for (disk, source) in made["disks"].as_array().unwrap().iter().zip(sources) {
        let name = disk["name"].as_str().unwrap();
        let (copied, restored) = (path("copied.raw"), path("restored.raw"));
        let copy = document("leandisk.copy/1", &["copy", arg(source), arg(&copied), "-O", "raw", "--force"]);
        assert_eq!(disk["used_bytes"], copy["used_bytes"], "{name}");
        assert_eq!(disk["read_bytes"], copy["read_bytes"], "{name}");
        assert_eq!(
            (&disk["tracking"], &disk["virtual_bytes"]),
            (&"none".into(), &copy["source"]["virtual_bytes"])
        );
        repo.dump("latest", disk["snapshot_path"].as_str().unwrap(), &restored);
        assert_same_bytes(&copied, &restored);
        fs::remove_file(&restored).unwrap();
        let from = format!("latest:{name}");
        let done = repo.document("leandisk.restore/1", &["restore", &from, arg(&restored), "-O", "raw"]);
        assert_eq!(done["snapshot"], made["snapshot"]);
        assert_same_bytes(&copied, &restored);
    }
    // Any format that a copy writes, and what reads disks reads them in snapshots.
    for target in
        TARGETS.iter().filter(|target| ["dynamic.vhdx", "zstd.qcow2", "stream.vmdk"].contains(&target.name))
    {
        let image = path(target.name);
        let _ = fs::remove_file(&image);
        let args = [&["restore", "latest:plain", arg(&image), "--verify"], target.args].concat();
        repo.succeed(&args);
        let whole = path("whole.raw");
        succeed(&["copy", arg(&ext4.disk), arg(&whole), "--force"]);
        target.assert_identical(&image, &whole);
    }
    let packed = path("packed.raw");
    repo.succeed(&["restore", "latest:two-gb-sparse.vmdk", arg(&packed), "--layout", "packed"]);
    ntfs.check(&packed);
    let id = &made["snapshot"].as_str().unwrap()[..8];
    let info = repo.document("leandisk.info/1", &["info", &format!("{id}:plain")]);
    assert!(
        info["volumes"].as_array().unwrap().iter().any(|volume| volume["filesystem"] == "ext4"),
        "{info:#}"
    );
    repo.document("leandisk.analyze/1", &["analyze", "latest:plain"]);
    let stored = repo.document("leandisk.ls/1", &["ls", "latest:plain", "/", "--recursive"]);
    let there = document("leandisk.ls/1", &["ls", arg(&ext4.disk), "/", "--recursive"]);
    let entries = there["entries"].as_array().unwrap();
    assert!(entries.len() > 10 && stored["entries"] == there["entries"], "{stored:#}");
    let is_file = |entry: &&Value| entry["type"] == "file" && number(entry, "/size_bytes") > 1000;
    let file = entries.iter().find(is_file).unwrap()["path"].as_str().unwrap();
    let (of, there) = (repo.args(), output(&["cat", arg(&ext4.disk), file]));
    let stored = output(&repo.with(&of, &["cat", "latest:plain", file]));
    assert!(there.status.success() && stored.status.success() && stored.stdout == there.stdout, "{file}");

    // Served, it is read as it is asked for; it is not written.
    let socket = path("nbd.sock");
    let serve = ["serve", "latest:plain", "--name", "disk", "--socket", arg(&socket)];
    assert!(repo.fail(3, &serve).contains("cannot be written"));
    assert!(
        repo.fail(3, &[&serve[..], &["--read-only", "--confine", "always"]].concat()).contains("confine")
    );
    let args = repo.args();
    let mut command = leandisk();
    command.args(repo.with(&args, &serve)).arg("--read-only").stderr(Stdio::null());
    let mut server = command.spawn().unwrap();
    assert!(wait_until(&mut server, || is_listening(&socket)));
    let export = format!("nbd+unix:///disk?socket={}", socket.display());
    run("qemu-img", &["compare", "-q", "-f", "raw", "-F", "raw", &export, arg(&path("whole.raw"))]);
    signal(&server, "TERM");
    assert!(server.wait().unwrap().success());

    // Onto a disk that is there, of which little changed.
    for target in
        TARGETS.iter().filter(|target| ["target.raw", "dynamic.vhdx", "plain.qcow2"].contains(&target.name))
    {
        let image = path(target.name);
        let _ = fs::remove_file(&image);
        succeed(&[&["copy", arg(&ext4.disk), arg(&image)], target.args].concat());
        let whole = path("whole.raw");
        target.assert_identical(&image, &whole);
        let write = |at: &str| {
            run("qemu-io", &["-f", target.qemu_format, "-c", &format!("write -P 7 {at} 4k"), arg(&image)])
        };
        write("1M");
        write("62M");
        let in_place = ["restore", "latest:plain", arg(&image), "--in-place", "--verify"];
        let differs = repo.document("leandisk.restore/1", &[&in_place[..], &["--dry-run"]].concat());
        let done = repo.document("leandisk.restore/1", &in_place);
        assert_eq!(differs["written_bytes"], done["written_bytes"]);
        assert!((8 << 10..=4 << 20).contains(&number(&done, "/written_bytes")), "{done:#}");
        target.assert_identical(&image, &whole);
        let other = ["restore", "latest:dynamic.vhdx", arg(&image), "--in-place"];
        assert_eq!(
            number(
                &repo.document("leandisk.restore/1", &[&other[..], &["--dry-run"]].concat()),
                "/target/virtual_bytes"
            ),
            64 << 20
        );
        repo.fail(2, &[&in_place[..], &["--force"]].concat());
    }

    // A disk has to be named where there are several, and be there.
    let target = path("none.raw");
    assert!(repo.fail(3, &["restore", "latest", arg(&target)]).contains("several disks"));
    repo.fail(3, &["restore", "latest:other", arg(&target)]);
    repo.fail(3, &["restore", "00000000:plain", arg(&target)]);
    repo.fail(2, &["restore", "plain", arg(&target)]);
    assert!(!target.exists());
}

#[test]
fn an_increment_stores_what_changed_and_restic_prunes() {
    let repo = Repo::new();
    let disk = repo.dir.path().join("disk.raw");
    noise(&disk, 24, 1);
    let first = repo.document("leandisk.backup/1", &["backup", "--init", arg(&disk)]);
    assert!(number(&first, "/stored_bytes") > 24 << 20);
    let again = repo.document("leandisk.backup/1", &["backup", arg(&disk)]);
    assert_eq!((&again["parent"], number(&again, "/disks/0/new_bytes")), (&first["snapshot"], 0));
    assert!(number(&again, "/stored_bytes") < 2 << 10, "{again:#}");

    // Who has it open for writing is in the way of a backup.
    let change = |byte: u8, at: u64| {
        let file = fs::OpenOptions::new().write(true).open(&disk).unwrap();
        file.write_all_at(&[byte; 1000], at).unwrap();
        file.set_len(25 << 20).unwrap();
    };
    change(7, 5 << 20);
    let changed = repo.document("leandisk.backup/1", &["backup", arg(&disk)]);
    assert_eq!(changed["parent"], again["snapshot"]);
    assert!(number(&changed, "/disks/0/new_bytes") <= 128 << 10, "{changed:#}");
    assert!(number(&changed, "/stored_bytes") < 192 << 10, "{changed:#}");

    let restored = repo.dir.path().join("restored.raw");
    repo.restic(&["forget", "--keep-last", "1", "--prune"]);
    repo.restic(&["check", "--read-data"]);
    repo.succeed(&["restore", "latest", arg(&restored)]);
    assert_same_bytes(&disk, &restored);

    // To another repository, of the format's first version, which Leandisk adds to as well.
    let other = Repo::nowhere();
    other.restic(&["init", "--repository-version", "1"]);
    let [_, from, _, password] = repo.args();
    other.restic(&["copy", "--from-repo", &from, "--from-password-file", &password]);
    change(8, 9 << 20);
    let added = other.document("leandisk.backup/1", &["backup", arg(&disk), "--verify"]);
    assert!(number(&added, "/disks/0/new_bytes") <= 128 << 10, "{added:#}");
    other.restic(&["check", "--read-data"]);
    fs::remove_file(&restored).unwrap();
    other.dump("latest", "/disk.raw", &restored);
    assert_same_bytes(&disk, &restored);

    // What restic itself backs up there is listed, and holds no disk.
    other.restic(&["backup", arg(&other.dir.path().join("password"))]);
    let listed = other.document("leandisk.snapshots/1", &["snapshots"]);
    assert_eq!(listed["snapshots"][2]["disks"].as_array().map(Vec::len), Some(0));
    other.fail(3, &["restore", "latest", arg(&restored), "--force"]);
}

#[test]
fn a_defragmentation_is_no_new_disk() {
    for fixture in [defrag_common::ntfs(), defrag_common::ext4()] {
        let repo = Repo::new();
        let disk = repo.dir.path().join("disk.raw");
        run("cp", &["--sparse=always", arg(&fixture.raw), arg(&disk)]);
        let lines = repo.dir.path().join("files.jsonl");
        succeed(&["analyze", arg(&disk), "--files", arg(&lines)]);
        let lines = fs::read_to_string(&lines).unwrap();
        let streams = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let in_pieces: u64 = streams
            .filter(|stream| stream["fragments"].as_u64() > Some(1))
            .flat_map(|stream| stream["extents"].as_array().cloned().unwrap_or_default())
            .map(|extent| extent[2].as_u64().unwrap())
            .sum();
        let first = repo.document("leandisk.backup/1", &["backup", "--init", arg(&disk)]);
        succeed(&["defrag", arg(&disk)]);
        let second = repo.document("leandisk.backup/1", &["backup", arg(&disk)]);
        let new_bytes = number(&second, "/disks/0/new_bytes");
        println!(
            "{}: {in_pieces} in pieces, {new_bytes} new, {} then {} stored",
            fixture.name, first["stored_bytes"], second["stored_bytes"]
        );
        assert!(new_bytes > 0 && new_bytes * 10 <= in_pieces * 11, "{in_pieces} in pieces: {second:#}");
    }
}

#[test]
fn what_is_wrong_is_said_before_anything_is_stored() {
    let repo = Repo::nowhere();
    let guest = Guest::get(Inside::Ext4);
    let disk = arg(&guest.disk);
    assert!(repo.fail(3, &["backup", disk]).contains("no repository"));
    repo.fail(3, &["snapshots"]);
    repo.fail(3, &["info", "latest:disk"]);
    fail(2, &["backup", disk]);
    fail(2, &["backup", disk, "--repo", arg(&repo.path()), "--init"]);
    assert!(repo.fail(2, &["backup", disk, disk, "--init"]).contains("two disks"));
    assert!(!repo.path().exists());
    fail(3, &["snapshots", "--repo", "b2:bucket"]);
    fail(2, &["snapshots", "--repo", "s3:bucket"]);

    let small = repo.dir.path().join("small.raw");
    noise(&small, 1, 2);
    // As restic has them, where options are missing.
    let [_, path, _, password] = repo.args();
    let by_variables = |variable: &str, value: &str| {
        let mut command = leandisk();
        command.args(["backup", arg(&small), "--init"]).env("RESTIC_REPOSITORY", &path).env(variable, value);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(by_variables("RESTIC_PASSWORD_FILE", &password).0, Some(0));
    let (status, message) = by_variables("RESTIC_PASSWORD", "wrong");
    assert!(status == Some(3) && message.contains("password"), "{message}");
    assert_eq!(by_variables("RESTIC_PASSWORD_COMMAND", "echo correct horse").0, Some(0));
    assert_eq!(by_variables("RESTIC_PASSWORD_COMMAND", "false").0, Some(3));
    assert_eq!(fs::read_dir(repo.path().join("locks")).unwrap().count(), 0);

    fs::write(repo.path().join("config"), "not sealed").unwrap();
    repo.fail(4, &["backup", arg(&small)]);
}

#[test]
fn a_broken_pack_is_noticed_and_leaves_no_target() {
    let repo = Repo::new();
    let disk = repo.dir.path().join("disk.raw");
    noise(&disk, 2, 3);
    repo.succeed(&["backup", "--init", arg(&disk)]);
    for pack in repo.packs().into_iter().filter(|pack| fs::metadata(pack).unwrap().len() > 1 << 20) {
        let mut contents = fs::read(&pack).unwrap();
        contents[100_000] ^= 1;
        fs::remove_file(&pack).unwrap();
        fs::write(&pack, contents).unwrap();
    }
    let dir = scratch();
    assert!(
        repo.fail(4, &["restore", "latest", arg(&dir.path().join("target.qcow2"))])
            .contains("does not decrypt")
    );
    assert_only(dir.path(), &[]);
    repo.fail(6, &["check", "latest"]);
}

#[test]
fn a_backup_that_is_killed_leaves_a_repository_as_restic_wants_it() {
    let repo = Repo::new();
    let disk = repo.dir.path().join("disk.raw");
    noise(&disk, 2, 4);
    repo.succeed(&["backup", "--init", arg(&disk)]);
    for moment in 0..3 {
        noise(&disk, 48, 5 + moment);
        let before = repo.packs().len();
        let args = repo.args();
        let mut command = leandisk();
        command.args(repo.with(&args, &["backup", arg(&disk), "--threads", "1"])).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        // When it has read nothing, after a pack, after two.
        let wanted = before + usize::try_from(moment).unwrap();
        wait_until(&mut child, || {
            fs::read_dir(repo.path().join("locks")).unwrap().count() > 0 && repo.packs().len() >= wanted
        });
        signal(&child, "KILL");
        child.wait().unwrap();
    }
    // As after restic: the lock of a process that is gone is in the way of an exclusive one.
    repo.restic(&["unlock"]);
    repo.restic(&["check", "--read-data"]);
    repo.succeed(&["backup", arg(&disk), "--verify"]);
    assert_eq!(fs::read_dir(repo.path().join("locks")).unwrap().count(), 0);
    let partial = run("find", &[arg(&repo.path()), "-name", "*-tmp-*"]);
    assert!(partial.is_empty(), "what the killed ones left: {partial}");
    let restored = repo.dir.path().join("restored.raw");
    repo.dump("latest", "/disk.raw", &restored);
    assert_same_bytes(&disk, &restored);
}

/// Files below a folder, some of which may go meanwhile.
fn file_count(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { file_count(&entry.path()) } else { 1 }).sum()
}

/// Kills backups of a disk that changes, each once it has made so many files, and looks at what that leaves now and then.
fn kill_backups(count: u64) {
    let repo = Repo::new();
    let [disk, first, restored] =
        ["disk.raw", "first.raw", "restored.raw"].map(|name| repo.dir.path().join(name));
    noise(&disk, 2, 1);
    repo.succeed(&["backup", "--init", arg(&disk)]);
    fs::copy(&disk, &first).unwrap();
    let snapshot = repo.document("leandisk.snapshots/1", &["snapshots"])["snapshots"][0]["id"].clone();
    let mut killed = 0;
    for moment in 1..=count {
        noise(&disk, 2, 1 + moment);
        let files = || file_count(&repo.path());
        // A lock, a pack, one of trees, an index, a snapshot; and each of them half-written.
        let wanted = files() + usize::try_from(moment % 6).unwrap();
        let args = repo.args();
        let mut command = leandisk();
        command.args(repo.with(&args, &["backup", arg(&disk)])).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        wait_until(&mut child, || files() >= wanted);
        signal(&child, "KILL");
        killed += u64::from(!child.wait().unwrap().success());
        if moment % 10 == 0 {
            repo.restic(&["unlock"]);
            repo.restic(&["check", "--read-data"]);
            repo.succeed(&["backup", arg(&disk)]);
            repo.dump("latest", "/disk.raw", &restored);
            assert_same_bytes(&disk, &restored);
            repo.dump(snapshot.as_str().unwrap(), "/disk.raw", &restored);
            assert_same_bytes(&first, &restored);
        }
    }
    println!("{killed} of {count} backups were killed");
    assert!(killed * 3 > count, "{killed} of {count}");
}

#[test]
fn backups_killed_at_twenty_moments_leave_a_whole_repository() {
    kill_backups(20);
}

#[test]
#[ignore = "long: make backup-kills"]
fn backups_killed_at_two_hundred_moments_leave_a_whole_repository() {
    kill_backups(200);
}

#[test]
fn a_restore_that_is_killed_is_gone_on_with() {
    let repo = Repo::new();
    let disk = repo.dir.path().join("disk.raw");
    noise(&disk, 64, 9);
    repo.succeed(&["backup", "--init", arg(&disk)]);
    let restore = |target: &Path| {
        let args = repo.args();
        let restore = ["restore", "latest", arg(target), "--threads", "1"];
        repo.with(&args, &restore).into_iter().map(ToOwned::to_owned).collect()
    };
    let targets = TARGETS.iter().filter(|target| ["target.raw", "plain.qcow2"].contains(&target.name));
    kill_and_resume(targets, restore, &[], |target, image| target.assert_identical(image, &disk), 1);
    repo.fail(2, &["restore", "latest", arg(&disk), "--in-place", "--resume"]);
}

/// A small file system in memory, as long as the value lives.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn new(folder: PathBuf, size: &str) -> Self {
        fs::create_dir(&folder).unwrap();
        run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs", arg(&folder)]);
        Self(folder)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_storage_is_an_error_and_the_repository_stays_whole() {
    let repo = Repo::nowhere();
    let storage = Tmpfs::new(repo.path(), "24m");
    let disk = repo.dir.path().join("disk.raw");
    noise(&disk, 2, 8);
    repo.succeed(&["backup", "--init", arg(&disk)]);
    let big = repo.dir.path().join("big.raw");
    noise(&big, 40, 9);
    assert!(repo.fail(5, &["backup", arg(&big)]).contains("No space left"));
    repo.succeed(&["check", "latest"]);
    run("mount", &["-o", "remount,size=100m", arg(&storage.0)]);
    repo.restic(&["check", "--read-data"]);
    repo.succeed(&["backup", arg(&big), "--verify"]);
}

#[test]
fn figures_for_prometheus_are_of_the_last_backup_that_succeeded() {
    let repo = Repo::new();
    let (disk, figures) = (repo.dir.path().join("a \"disk\".raw"), repo.dir.path().join("backup.prom"));
    noise(&disk, 1, 3);
    let named = format!("vm={}", arg(&disk));
    let metrics = ["--init", "--metrics", arg(&figures)];
    let backup = |disk: &str, more: &[&str]| {
        repo.document("leandisk.backup/1", &[&["backup", disk], &metrics[..], more].concat())
    };
    backup(&named, &["--dry-run"]);
    assert!(!figures.exists());
    let done = backup(&named, &[]);
    let text = fs::read_to_string(&figures).unwrap();
    let value = |name: &str| {
        let start = format!("leandisk_backup_{name}{{repository=\"{}\",disk", arg(&repo.path()));
        let line =
            text.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("{name}: {text}"));
        assert!(text.contains(&format!("# TYPE leandisk_backup_{name} gauge\n")));
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    let bytes = [
        ("read_bytes", "/disks/0/read_bytes"),
        ("new_bytes", "/disks/0/new_bytes"),
        ("stored_bytes", "/stored_bytes"),
    ];
    for (name, pointer) in bytes {
        assert_eq!(value(name), number(&done, pointer) as f64, "{name}");
    }
    assert_eq!((value("virtual_bytes"), value("verified")), (fs::metadata(&disk).unwrap().len() as f64, 0.0));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((now - 600.0..=now).contains(&value("last_success_timestamp_seconds")), "{text}");

    // One that fails leaves it, and one that succeeds replaces it.
    repo.fail(5, &["backup", arg(&repo.dir.path().join("none.raw")), "--metrics", arg(&figures)]);
    assert_eq!(fs::read_to_string(&figures).unwrap(), text);
    backup(&named, &["--verify"]);
    let again = fs::read_to_string(&figures).unwrap();
    assert!(again.contains("leandisk_backup_verified{") && again.contains(",disks=\"vm\"} 1\n"), "{again}");

    // No other file is replaced, and no snapshot is made then.
    let count = |repo: &Repo| {
        repo.document("leandisk.snapshots/1", &["snapshots"])["snapshots"].as_array().unwrap().len()
    };
    let before = (count(&repo), fs::read(&disk).unwrap());
    let empty = repo.dir.path().join("empty");
    File::create(&empty).unwrap();
    for other in [disk.clone(), repo.path().join("config"), repo.path(), empty] {
        repo.fail(3, &["backup", &named, "--metrics", arg(&other)]);
        repo.fail(3, &["backup", &named, "--dry-run", "--metrics", arg(&other)]);
    }
    assert_eq!((count(&repo), fs::read(&disk).unwrap()), before);
}

#[test]
fn what_is_kept_is_what_restic_keeps() {
    let repo = Repo::new();
    let disk = repo.dir.path().join("disk.raw");
    noise(&disk, 1, 10);
    repo.succeed(&["backup", "--init", arg(&disk), "--host", "other"]);
    // restic backs a file of this name up at any time.
    let times = [
        "2022-01-03 08:00:00",
        "2022-12-25 08:00:00",
        "2022-12-31 23:59:59",
        "2023-01-01 00:00:00",
        "2024-02-28 09:00:00",
        "2024-02-29 09:00:00",
        "2024-02-29 10:00:00",
        "2024-03-04 10:00:00",
    ];
    for (number, time) in times.iter().enumerate() {
        let tag = if number % 3 == 1 { "a,b" } else { "a" };
        let mut command = repo.restic_command();
        command.args(["backup", "--stdin", "--stdin-filename", "/disk.raw", "--host", "vm"]);
        command.args(["--tag", tag, "--time", time]).stdin(File::open(&disk).unwrap());
        assert!(command.output().unwrap().status.success());
    }
    let rules: [&[&str]; 5] = [
        &["--keep-last", "2", "--keep-tag", "a,b"],
        &["--keep-daily", "2", "--keep-yearly", "2"],
        &["--keep-weekly", "3"],
        &["--keep-monthly", "9"],
        &["--keep-daily", "4", "--keep-weekly", "2", "--keep-monthly", "3"],
    ];
    let backup = ["backup", arg(&disk), "--host", "vm"];
    let made = repo.document("leandisk.backup/1", &backup);
    assert_eq!(made["forgotten"], Value::Array(Vec::new()));
    let by_restic = |rules: &[&str]| {
        let args = [&["forget", "--dry-run", "--json", "--host", "vm"], rules].concat();
        let groups: Value = serde_json::from_str(&repo.restic(&args)).unwrap();
        assert_eq!(groups.as_array().unwrap().len(), 1, "{groups:#}");
        ids(groups[0]["remove"].as_array().map_or(&[], Vec::as_slice), "/id")
    };
    for rules in rules {
        // That of the dry run comes on top of those that restic sees: as many fewer.
        let planned = repo.document("leandisk.backup/1", &[&backup[..], rules, &["--dry-run"]].concat());
        let planned = ids(planned["forgotten"].as_array().unwrap(), "");
        let now = by_restic(rules);
        assert!(now.iter().all(|id| planned.contains(id)), "{rules:?}: {planned:?} {now:?}");
    }
    let snapshots = || -> Vec<String> {
        let all: Value = serde_json::from_str(&repo.restic(&["snapshots", "--json"])).unwrap();
        ids(all.as_array().unwrap(), "/id")
    };
    for rules in rules.into_iter().rev().take(3) {
        let before = snapshots();
        let planned = repo.document("leandisk.backup/1", &[&backup[..], rules, &["--dry-run"]].concat());
        let made = repo.document("leandisk.backup/1", &[&backup[..], rules].concat());
        assert_eq!(planned["forgotten"], made["forgotten"]);
        let gone = ids(made["forgotten"].as_array().unwrap(), "");
        let left = snapshots();
        assert!(
            !gone.is_empty() && gone.iter().all(|id| before.contains(id) && !left.contains(id)),
            "{gone:?}"
        );
        assert_eq!(left.len(), before.len() + 1 - gone.len());
        // And restic would remove no more.
        assert_eq!(by_restic(rules), [] as [String; 0], "{rules:?}");
    }
    repo.restic(&["check", "--read-data"]);
}

fn ids(list: &[Value], pointer: &str) -> Vec<String> {
    list.iter().map(|entry| entry.pointer(pointer).unwrap().as_str().unwrap().to_owned()).collect()
}
