//! SFTP with OpenSSH's server: over its pipe alone, and over a connection of `ssh`.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use block::ErrorKind;
use repository::{Folder, Id, Kind, Storage};
use testkit::scratch;

use crate::conformance::{assert_same, conform};
use crate::{noise, open, options};

const SERVER: &str = "/usr/lib/openssh/sftp-server";

fn storage(folder: &Path, command: &str) -> Arc<dyn Storage> {
    let name = format!("sftp:nobody@nowhere:{}", folder.display());
    open(&name, &options(&[("sftp.command", command)]), &[]).unwrap()
}

/// The same, tried twice.
fn twice(folder: &Path, command: &str) -> Arc<dyn Storage> {
    let name = format!("sftp:nowhere:{}", folder.display());
    let mut options = options(&[("sftp.command", command)]);
    options.limits.attempt_count = 2;
    open(&name, &options, &[]).unwrap()
}

#[test]
fn openssh_conforms_and_a_folder_shows_the_same() {
    let dir = scratch();
    let folder = dir.path().join("below/repository");
    let storage = storage(&folder, SERVER);
    conform(&*storage);
    assert_same(&*storage, &Folder::new(&folder));
}

/// Without what OpenSSH adds to the protocol: a name that is taken must go first.
#[test]
fn a_server_without_extensions_conforms() {
    let dir = scratch();
    let folder = dir.path().join("repository");
    let command = format!("{SERVER} -P posix-rename,fsync");
    let storage = storage(&folder, &command);
    conform(&*storage);
    let (name, contents) = (Id::of(b"x").to_string(), noise(7, 50_000));
    for _ in 0..2 {
        storage.create(Kind::Index, &name, &contents).unwrap();
    }
    assert_eq!(storage.read(Kind::Index, &name).unwrap(), contents);
}

/// A connection that is cut anywhere leaves no file under its name that is not whole, and no half of one for ever.
#[test]
fn a_cut_leaves_no_half_file() {
    let dir = scratch();
    let contents = noise(1, 150_000);
    let name = Id::of(&contents).to_string();
    let cut_at = |bytes: usize, mutant: bool| {
        let folder = dir.path().join(format!("{bytes}-{}", u8::from(mutant)));
        Folder::new(&folder).prepare().unwrap();
        // The server hears so many bytes, each time.
        let command = format!("sh -c 'dd bs=1 count={bytes} status=none | {SERVER}'");
        let mutant = mutant.then_some(backends::Mutant::NamedFirst);
        let made = mutants::with(mutant, || twice(&folder, &command).create(Kind::Index, &name, &contents));
        assert_eq!(made.unwrap_err().kind(), ErrorKind::Io, "cut at {bytes}");
        folder
    };
    for bytes in [200, 40_000, 150_000] {
        let folder = cut_at(bytes, false);
        assert!(!folder.join("index").join(&name).exists(), "cut at {bytes}");
        let whole = storage(&folder, SERVER);
        whole.create(Kind::Index, &name, &contents).unwrap();
        assert_eq!(whole.read(Kind::Index, &name).unwrap(), contents);
    }
    assert!(cut_at(100_000, true).join("index").join(&name).exists(), "the mutant was not found");
}

#[test]
fn what_a_killed_process_left_is_removed() {
    let dir = scratch();
    let folder = dir.path().join("repository");
    Folder::new(&folder).prepare().unwrap();
    let id = Id::of(b"x");
    let half = |process: u32| format!("{id}-tmp-leandisk-{}-{process}-0", repository::host_name());
    let ended = [folder.join("data").join(half(u32::MAX)), folder.join("index").join(half(u32::MAX))];
    let mine = folder.join("data").join(half(std::process::id()));
    ended.iter().chain([&mine]).for_each(|path| std::fs::write(path, b"half").unwrap());
    let storage = storage(&folder, SERVER);
    assert!(storage.names(Kind::Pack).unwrap().is_empty());
    storage.clear_partial().unwrap();
    assert!(!ended.iter().any(|path| path.exists()) && mine.exists());
}

#[test]
fn what_is_not_there_or_no_server_is_told() {
    let dir = scratch();
    let kind = |command: &str| storage(dir.path(), command).names(Kind::Key).unwrap_err();
    let missing = kind("no-such-program-anywhere");
    assert_eq!(missing.kind(), ErrorKind::Refused, "{missing}");
    let denied = kind("sh -c 'echo Permission denied, please >&2; exit 255'");
    assert_eq!(denied.kind(), ErrorKind::Refused, "{denied}");
    assert!(denied.to_string().contains("please"), "{denied}");
    let lost = kind("sh -c 'echo Connection refused >&2; exit 255'");
    assert_eq!(lost.kind(), ErrorKind::Io, "{lost}");
    let garbage = kind("sh -c 'echo Welcome to this host, and not to SFTP; exec cat >/dev/null'");
    assert_eq!(garbage.kind(), ErrorKind::Corrupt, "{garbage}");
}

/// A server of our own, on a port of this host: keys, known hosts and arguments are those of `ssh`.
#[test]
fn a_real_connection_of_ssh_conforms() {
    let Some(sshd) = Sshd::start() else {
        println!("skipped: there is no sshd here (openssh-server)");
        return;
    };
    let folder = sshd.dir.path().join("repository");
    let user = String::from_utf8(Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
    let name = format!("sftp://{}@127.0.0.1:{}/{}", user.trim(), sshd.port, folder.display());
    let args = sshd.args();
    let storage = open(&name, &options(&[("sftp.args", &args)]), &[]).unwrap();
    conform(&*storage);
    assert_same(&*storage, &Folder::new(&folder));
    let name = name.replace("127.0.0.1", "localhost");
    let stranger = open(&name, &options(&[("sftp.args", &args)]), &[]).unwrap();
    let error = stranger.names(Kind::Key).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "a host that is not known: {error}");
}

struct Sshd {
    dir: tempfile::TempDir,
    port: u16,
    child: std::process::Child,
}

impl Sshd {
    fn start() -> Option<Self> {
        let program = Path::new("/usr/sbin/sshd");
        if !program.exists() {
            return None;
        }
        let dir = scratch();
        let path = |name: &str| dir.path().join(name).display().to_string();
        for key in ["host", "user"] {
            testkit::run("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &path(key)]);
        }
        std::fs::copy(path("user.pub"), path("authorized")).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let host = std::fs::read_to_string(path("host.pub")).unwrap();
        std::fs::write(path("known"), format!("[127.0.0.1]:{port} {host}")).unwrap();
        let settings = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\nSubsystem sftp {SERVER}\n",
            path("host"),
            path("authorized")
        );
        std::fs::write(path("config"), settings).unwrap();
        let _ = std::fs::create_dir_all("/run/sshd");
        let child = Command::new(program).args(["-D", "-q", "-f", &path("config")]).spawn().unwrap();
        let up = (0..200).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        assert!(up, "sshd does not listen");
        Some(Self { dir, port, child })
    }

    fn args(&self) -> String {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        format!(
            "-F none -o BatchMode=yes -o UserKnownHostsFile={} -o StrictHostKeyChecking=yes -i {}",
            path("known"),
            path("user")
        )
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
