//! Backups to other machines, which are servers on this one: restic judges what is there, by the same road.

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, test_kill_process_group};
use serde_json::Value;
use tempfile::TempDir;
use testkit::{Moto, RestServer, run, scratch};

use crate::backup::noise;
use crate::common::{arg, assert_same_bytes, leandisk};

const SFTP_SERVER: &str = "sftp.command=/usr/lib/openssh/sftp-server";
const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "me"), ("AWS_SECRET_ACCESS_KEY", "a secret")];

/// A repository with what is needed to reach it.
struct Road {
    dir: TempDir,
    repo: String,
    option: Option<&'static str>,
}

impl Road {
    fn new(repo: impl FnOnce(&Path) -> String, option: Option<&'static str>) -> Self {
        let dir = scratch();
        fs::write(dir.path().join("password"), "correct horse\n").unwrap();
        let repo = repo(&dir.path().join("repository"));
        Self { dir, repo, option }
    }

    fn sftp() -> Self {
        Self::new(|folder| format!("sftp:nowhere:{}", folder.display()), Some(SFTP_SERVER))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn to(&self, mut command: Command) -> Command {
        command.env("RESTIC_REPOSITORY", &self.repo).env("RESTIC_PASSWORD_FILE", self.path("password"));
        command.envs(KEYS);
        command
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.to(leandisk());
        command.args(args).args(self.option.map(|option| ["-o", option]).into_iter().flatten());
        command
    }

    fn succeed(&self, args: &[&str]) -> String {
        output_of(&mut self.command(args))
    }

    fn document(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.succeed(&[args, &["--json"]].concat())).unwrap()
    }

    fn restic(&self, args: &[&str]) -> String {
        let mut restic = self.to(Command::new("restic"));
        restic.args(["--no-cache", "--quiet"]).args(args);
        restic.args(self.option.map(|option| ["-o", option]).into_iter().flatten());
        output_of(&mut restic)
    }

    /// A repository of restic's takes our backups, and restic restores them; so does Leandisk, to this target.
    fn check(&self, target: &str) {
        let (disk, copy) = (self.path("disk.raw"), self.path(target));
        noise(&disk, 18, 5);
        self.restic(&["init"]);
        let first = self.document(&["backup", "--verify", arg(&disk)]);
        self.restic(&["check", "--read-data"]);
        fs::File::options().write(true).open(&disk).unwrap().write_all_at(&[7; 5000], 9 << 20).unwrap();
        let second = self.document(&["backup", arg(&disk)]);
        assert_eq!(second["parent"], first["snapshot"]);
        assert!(second["stored_bytes"].as_u64().unwrap() < 2 << 20, "{second:#}");
        assert!(!second["repository"].as_str().unwrap().contains("p%40ss"), "{second:#}");
        self.restic(&["restore", "latest", "--target", arg(&self.path("restored"))]);
        assert_same_bytes(&self.path("restored/disk.raw"), &disk);
        self.succeed(&["restore", "latest", arg(&copy), "--verify"]);
        if target.ends_with("raw") {
            assert_same_bytes(&copy, &disk);
        } else {
            run("qemu-img", &["compare", arg(&copy), arg(&disk)]);
        }
        assert!(self.succeed(&["check", "latest"]).contains("disk.raw"));
    }

    /// Backups are killed after so many milliseconds; the next one succeeds, and restic finds nothing.
    fn kill(&self, moments: &[u64]) {
        let disk = self.path("disk.raw");
        noise(&disk, 20, 1);
        self.succeed(&["backup", "--init", arg(&disk)]);
        for (seed, after) in (2..).zip(moments) {
            noise(&disk, 20, seed);
            let mut child = in_background(self.command(&["backup", arg(&disk)]));
            sleep(Duration::from_millis(*after));
            child.kill().unwrap();
            child.wait().unwrap();
            // Until its server has done what it was told before.
            let group = Pid::from_child(&child);
            while test_kill_process_group(group).is_ok() {
                sleep(Duration::from_millis(5));
            }
        }
        self.succeed(&["backup", arg(&disk)]);
        self.restic(&["check", "--read-data"]);
        self.restic(&["restore", "latest", "--target", arg(&self.path("restored"))]);
        assert_same_bytes(&self.path("restored/disk.raw"), &disk);
        assert_eq!(self.restic(&["list", "locks"]), "");
    }
}

fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// In a process group of its own, with whatever it starts.
fn in_background(mut command: Command) -> Child {
    command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Whether there is such a program; if not, a line says that a test is skipped.
fn is_here(program: &str) -> bool {
    let is_here = Command::new(program).arg("version").output().is_ok();
    if !is_here {
        println!("skipped: there is no {program} here");
    }
    is_here
}

#[test]
fn a_rest_server_holds_what_restic_restores() {
    let server = RestServer::start(1, Some("Basic bWU6cEBzcw=="));
    let repo = format!("rest:http://me:p%40ss@{}/repo/", server.host());
    Road::new(|_| repo, None).check("copy.raw");
}

#[test]
fn sftp_holds_what_restic_restores() {
    Road::sftp().check("copy.qcow2");
}

#[test]
fn rclone_holds_what_restic_restores() {
    if is_here("rclone") {
        Road::new(|folder| format!("rclone::local:{}", folder.display()), None).check("copy.raw");
    }
}

#[test]
fn s3_holds_what_restic_restores() {
    if let Some(moto) = Moto::start() {
        Road::new(|_| moto.repo("bucket/of/backups"), None).check("copy.raw");
    }
}

#[test]
fn backups_that_are_killed_on_their_way_leave_a_whole_repository() {
    let road = Road::sftp();
    road.kill(&[60, 250]);
    let folder = road.path("repository");
    let left = run("find", &[arg(&folder), "-name", "*-tmp-*"]);
    assert_eq!(left, "", "half-written files are removed");
    let server = RestServer::start(2, None);
    Road::new(|_| server.repo(), None).kill(&[150]);
}

/// An interrupt from the terminal reaches `ssh` as well, which has to live until the lock is gone.
#[test]
fn an_interrupted_backup_removes_its_lock_over_sftp() {
    let road = Road::sftp();
    let disk = road.path("disk.raw");
    noise(&disk, 48, 1);
    let mut child = in_background(road.command(&["backup", "--init", arg(&disk)]));
    let locks = road.path("repository/locks");
    while fs::read_dir(&locks).map_or(0, Iterator::count) == 0 {
        assert!(child.try_wait().unwrap().is_none(), "it is done already");
        sleep(Duration::from_millis(5));
    }
    // As the terminal sends it: to the whole group.
    run("kill", &["-INT", "--", &format!("-{}", child.id())]);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(fs::read_dir(&locks).unwrap().count(), 0, "the lock is gone");
}

#[test]
fn what_cannot_be_reached_has_its_status() {
    let road = |repo: &str| Road::new(|_| repo.to_owned(), None);
    let status = |repo: &str, option: &[&str]| {
        let output = road(repo).command(&[&["snapshots"], option].concat()).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let server = RestServer::start(3, Some("Basic bWU6cEBzcw=="));
    let (code, told) = status(&format!("rest:http://me:hunter2@{}/repo/", server.host()), &[]);
    assert!(code == 3 && told.contains("401") && !told.contains("hunter2"), "{code}: {told}");
    let (code, told) = status("sftp:nowhere:/x", &["-o", "sftp.command=echo this is no SFTP at all"]);
    assert!(code == 4, "{code}: {told}");
    let (code, told) = status("rclone:x:y", &["-o", "rclone.program=/no/such/program"]);
    assert!(code == 3 && told.contains("rclone is not there"), "{code}: {told}");
    for (repo, option) in [("rest:nohost", "s3.region=x"), ("s3:x", "s3.region=x"), ("/x", "sftp.no=1")] {
        assert_eq!(status(repo, &["-o", option]).0, 2, "{repo} {option}");
    }
    let (code, told) = status("b2:bucket", &[]);
    assert!(code == 3 && told.contains("rclone"), "{code}: {told}");
}
