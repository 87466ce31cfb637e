//! What a process that is confined can still do, tried from inside; and that the same attempts succeed where it is not.
//!
//! The program starts itself: to be confined it must have one thread, which a test has not.

// A test by itself: what fails ends the program, and what is printed is how its two parts talk.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use block::{Error, ErrorKind, HostFile, ReadAt, TargetFile, TargetFolder, TargetName};
use extent::{Host, Offset, Span};
use journal::Standing;
use os::{
    Confined, ConfinedNames, DeviceTarget, ExtractFolder, FolderOptions, Granted, HostFolder, LiveFile,
    NewFile, SourceFile, StoragePromise, Work,
};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::process::{
    Pid, Signal, getppid, getpriority_process, kill_process, setpriority_process, test_kill_process,
};

/// What is tried, and how it ends inside.
const ATTEMPTS: &[(&str, Ending, Attempt)] = &[
    ("open a file", ACCESS, |folder| File::open(folder.join("canary")).map(drop)),
    ("open it for writing", ACCESS, |folder| {
        OpenOptions::new().write(true).open(folder.join("canary")).map(drop)
    }),
    ("cut it short", ACCESS, |folder| truncate(&folder.join("canary"))),
    ("make a file", ACCESS, |folder| File::create(folder.join("new")).map(drop)),
    ("make a folder", ACCESS, |folder| fs::create_dir(folder.join("new folder"))),
    ("make a link", ACCESS, |folder| fs::hard_link(folder.join("canary"), folder.join("link"))),
    ("list a folder", ACCESS, |folder| fs::read_dir(folder).map(drop)),
    ("open a file of the kernel's", ACCESS, |_| File::open("/proc/self/status").map(drop)),
    ("rename a file", ACCESS, |folder| fs::rename(folder.join("doomed"), folder.join("renamed"))),
    ("remove a file", ACCESS, |folder| fs::remove_file(folder.join("doomed too"))),
    ("listen at a socket", PERMISSION, |folder| UnixListener::bind(folder.join("another socket")).map(drop)),
    ("listen at an address", PERMISSION, |_| TcpListener::bind("127.0.0.1:0").map(drop)),
    ("change another's priority", PERMISSION, |_| {
        let parent = getppid().ok_or(io::ErrorKind::NotFound)?;
        Ok(setpriority_process(Some(parent), getpriority_process(Some(parent))?)?)
    }),
    ("change permissions", PERMISSION, |folder| {
        fs::set_permissions(folder.join("canary"), fs::Permissions::from_mode(0o777))
    }),
    ("change permissions of what is open", PERMISSION, |_| {
        opened().set_permissions(fs::Permissions::from_mode(0o777))
    }),
    ("change flags of what is open", PERMISSION, |_| {
        // Without the flags that it has, ext4 would rewrite its map, which takes a file in one piece.
        let flags = ioctl_getflags(opened()).unwrap_or(IFlags::empty());
        Ok(ioctl_setflags(opened(), flags | IFlags::NOATIME)?)
    }),
    ("start a program", PERMISSION, |_| Command::new("/bin/true").status().map(drop)),
    ("connect to a socket", PERMISSION, |folder| UnixStream::connect(folder.join("socket")).map(drop)),
    ("connect to an address", PERMISSION, |folder| {
        TcpStream::connect(fs::read_link(folder.join("address"))?.to_string_lossy().as_ref()).map(drop)
    }),
    ("send a signal", PERMISSION, |_| Ok(test_kill_process(getppid().ok_or(io::ErrorKind::NotFound)?)?)),
    ("have the broker open another file", REFUSED, |folder| {
        SourceFile::open(folder.join("canary")).map(drop).map_err(io_of)
    }),
    ("have it open the passwords", REFUSED, |_| {
        os::open_input("/etc/shadow".as_ref()).map(drop).map_err(io_of)
    }),
    ("have it list another folder", REFUSED, |_| os::names_in("/etc".as_ref()).map(drop).map_err(io_of)),
    ("have it grant another folder", REFUSED, |folder| {
        Granted::new(&folder.join("elsewhere/disk"), &[]).map(drop).map_err(io_of)
    }),
    ("have it make another file", REFUSED, |folder| {
        NewFile::create(folder.join("another"), false).and_then(NewFile::discard).map_err(io_of)
    }),
    ("have it remove a file", REFUSED, |folder| {
        os::remove_made(&folder.join("doomed as well")).map_err(io_of)
    }),
    ("have it replace a file", REFUSED, |folder| {
        NewFile::create(folder.join("output"), true).and_then(NewFile::discard).map_err(io_of)
    }),
    ("have it make another target", REFUSED, |folder| {
        target_folder(&folder.join("elsewhere/target"), false).map(drop).map_err(io_of)
    }),
    ("have it replace a target", REFUSED, |folder| {
        target_folder(&folder.join("output"), true).map(drop).map_err(io_of)
    }),
    ("have it extract into another folder", REFUSED, |folder| {
        ExtractFolder::begin(&folder.join("elsewhere"), false).map(drop).map_err(io_of)
    }),
];

/// Where a copy goes, which asks for permissions for everybody.
fn target_folder(target: &Path, replace: bool) -> block::Result<HostFolder> {
    let kept = StoragePromise::Written;
    HostFolder::new(target, FolderOptions { replace, mode: 0o777, kept, direct: true })
}

/// Tries something with what lies in a folder.
type Attempt = fn(&Path) -> io::Result<()>;

/// How an attempt ends.
type Ending = &'static str;
const ACCESS: Ending = "Permission denied (os error 13)";
const PERMISSION: Ending = "Operation not permitted (os error 1)";
const REFUSED: Ending = "is not granted to the process that reads the disk";
const DONE: Ending = "done";

/// A file that was opened for reading before this process was confined.
fn opened() -> &'static File {
    OPENED.get().unwrap()
}

static OPENED: OnceLock<File> = OnceLock::new();

fn truncate(path: &Path) -> io::Result<()> {
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
    // SAFETY: the name ends with NUL and lives through the call.
    #[allow(unsafe_code)]
    let result = unsafe { libc::truncate(name.as_ptr(), 1) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn io_of(error: Error) -> io::Error {
    match error.kind() {
        ErrorKind::Refused => io::Error::other(error.message().to_owned()),
        _ => io::Error::other(format!("{error:?}")),
    }
}

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    if let [_, inside, how, folder] = &arguments[..]
        && inside == "inside"
    {
        return try_all(how, folder.as_ref());
    }
    everything_is_closed_inside_and_open_outside();
    what_has_two_threads_is_not_closed_in_by_halves();
    the_reader_is_the_program_and_the_broker_ends_with_it();
    println!("confined: all is well");
}

/// The program inside: tries everything, tells how it ended, and stays until it is told to end.
fn try_all(how: &str, folder: &Path) {
    OPENED.set(File::open(folder.join("elsewhere/disk")).unwrap()).unwrap();
    match how {
        "threads" => return close_in_with_two_threads(),
        "serving" => return serve_inside(folder),
        "reading" | "copying" => {
            let names = ConfinedNames {
                disks: vec![folder.join("disk")],
                outputs: vec![folder.join("output"), folder.join("picture")],
                target: (how == "copying").then(|| folder.join("target")),
                ..ConfinedNames::default()
            };
            let work = if how == "copying" { Work::Copying } else { Work::Reading };
            assert_eq!(os::confine(names, work).unwrap(), Confined { names: true, calls: true });
        }
        _ => {}
    }
    tell_attempts(folder);
    what_is_needed_works(folder);
    if how == "copying" {
        what_a_copy_needs_works_and_no_more(folder);
    }
    println!("ready");
    io::stdin().read_line(&mut String::new()).unwrap();
    assert_eq!(first_byte(&SourceFile::open(folder.join("disk")).unwrap()), b'd');
}

/// A process with two threads stays open, and is told so.
fn close_in_with_two_threads() {
    let split = os::split(ConfinedNames::default()).unwrap();
    let (end, wait) = std::sync::mpsc::channel::<()>();
    let second = std::thread::spawn(move || wait.recv());
    let refused = split.close(Work::Serving).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    File::open("/proc/self/status").unwrap();
    drop(end);
    second.join().unwrap().unwrap_err();
    io::stdin().read_line(&mut String::new()).unwrap();
}

/// The program inside as a server: what it has open it had before.
fn serve_inside(folder: &Path) {
    let made = folder.join("made");
    let split = os::split(ConfinedNames { removed: vec![made.clone()], ..ConfinedNames::default() }).unwrap();
    let listener = UnixListener::bind(&made).unwrap();
    let mut client = UnixStream::connect(&made).unwrap();
    let disk = LiveFile::open(folder.join("disk")).unwrap();
    assert_eq!(split.close(Work::Serving).unwrap(), Confined { names: true, calls: true });
    tell_attempts(folder);
    what_a_server_needs_works(&disk);
    let (mut accepted, _) = listener.accept().unwrap();
    accepted.write_all(b"in").unwrap();
    let mut told = [0; 2];
    client.read_exact(&mut told).unwrap();
    assert_eq!(&told, b"in");
    println!("ready");
    io::stdin().read_line(&mut String::new()).unwrap();
    os::remove_made(&made).unwrap();
    assert!(!made.exists());
}

fn what_a_server_needs_works(disk: &LiveFile) {
    let at = |offset| Span::<Host>::new(Offset::new(offset), 1 << 16);
    disk.write_at(Offset::new(1 << 20), &[7; 4096]).unwrap();
    disk.reserve(at(2 << 20)).unwrap();
    disk.zero(at(1 << 20)).unwrap();
    disk.punch(at(2 << 20)).unwrap();
    disk.flush().unwrap();
    disk.set_len(1 << 20).unwrap();
    // A thread may stand back behind others.
    std::thread::spawn(|| rustix::process::nice(1).unwrap()).join().unwrap();
}

/// The target is made, and gets its name; nothing else can be done to that.
fn what_a_copy_needs_works_and_no_more(folder: &Path) {
    let path = folder.join("target");
    let refused = |result: block::Result<()>| assert_eq!(io_of(result.unwrap_err()).to_string(), REFUSED);
    refused(target_folder(&path, true).map(drop));
    refused(DeviceTarget::open(&path).map(drop));
    refused(SourceFile::open(&path).map(drop));
    assert_eq!(os::storage_of(&path).unwrap(), []);
    // Whatever devices there are, they are none of the command line's.
    let devices = ["/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/loop0"].map(Path::new);
    for device in devices.into_iter().filter(|device| device.exists()) {
        refused(os::storage_of(device).map(drop));
    }
    let target = target_folder(&path, false).unwrap();
    refused(target_folder(&path, false).map(drop));
    target.check_room(1 << 20).unwrap();

    let partial = target.create(TargetName::Partial).unwrap();
    assert_eq!(target.create(TargetName::Partial).err().unwrap().kind(), ErrorKind::Refused);
    assert_eq!(target.open(TargetName::Partial).err().unwrap().kind(), ErrorKind::Refused, "it is locked");
    let at = |offset| Span::<Host>::new(Offset::new(offset), 1 << 16);
    partial.write_at(Offset::ZERO, &[7; 1 << 16]).unwrap();
    partial.reserve(at(1 << 16)).unwrap();
    partial.zero(at(2 << 16)).unwrap();
    partial.set_len(4 << 16).unwrap();
    partial.forget(at(0));
    assert!(partial.identity().unwrap().is_some());
    target.create(TargetName::Draft).unwrap().flush_all().unwrap();
    target.rename(TargetName::Draft, TargetName::Checkpoint).unwrap();
    target.sync().unwrap();
    refused(target.rename(TargetName::Checkpoint, TargetName::Target));
    assert!(target.remove(TargetName::Checkpoint).unwrap() && !target.remove(TargetName::Draft).unwrap());
    assert!(target.open(TargetName::Checkpoint).unwrap().is_none());
    assert_eq!(first_byte(&SourceFile::open_direct(target.path(TargetName::Partial)).unwrap()), 7);

    partial.complete().unwrap();
    target.rename(TargetName::Partial, TargetName::Target).unwrap();
    target.sync().unwrap();
    assert_eq!(os::kept(&path), StoragePromise::Written);
    assert_eq!(first_byte(&SourceFile::open(&path).unwrap()), 7);
    refused(target.open(TargetName::Target).map(drop));
    refused(target.create(TargetName::Target).map(drop));
    refused(target.remove(TargetName::Target).map(drop));
    refused(target.rename(TargetName::Target, TargetName::Partial));
    // It has another name now.
    refused(partial.complete());
    // The copy of a disk that its owner alone can read.
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

fn tell_attempts(folder: &Path) {
    for (what, _, attempt) in ATTEMPTS {
        let ended = attempt(folder).map_or_else(|error| error.to_string(), |()| DONE.to_owned());
        println!("{what}: {ended}");
    }
}

/// Confined or not.
fn what_is_needed_works(folder: &Path) {
    let disk = SourceFile::open_direct(folder.join("disk")).unwrap();
    assert_eq!(first_byte(&disk), b'd');
    assert!(disk.users().is_empty(), "{:?}", disk.users());
    let granted = Granted::new(&folder.join("disk"), &[]).unwrap();
    let beside = granted.open(&folder.join("disk"), "canary").unwrap();
    assert_eq!(first_byte(&beside), b'c');
    assert!(matches!(os::journal_standing(folder.join("disk")), Standing::Absent));
    let left = os::journal_standing(folder.join("canary"));
    assert!(matches!(&left, Standing::Other(why) if why.kind() == ErrorKind::Refused), "{left:?}");
    let linked = os::journal_standing(folder.join("linked"));
    assert!(matches!(&linked, Standing::Other(why) if why.to_string().contains("canary")), "{linked:?}");
    let outside = granted.open(&folder.join("disk"), "/etc/passwd").err().unwrap();
    assert!(outside.to_string().contains("which lies outside"), "{outside}");
    let picture = NewFile::create(folder.join("picture"), false).unwrap();
    picture.write_at(Offset::ZERO, b"picture").unwrap();
    picture.publish().unwrap();
    assert!(folder.join("picture").is_file());
    assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
}

fn first_byte(file: &SourceFile) -> u8 {
    let mut byte = [0];
    file.read_at(Offset::ZERO, &mut byte).unwrap();
    byte[0]
}

/// A folder with something of everything that is tried, and those who listen.
fn place() -> (tempfile::TempDir, UnixListener, TcpListener) {
    let dir = testkit::scratch();
    fs::create_dir(dir.path().join("elsewhere")).unwrap();
    for name in ["disk", "canary", "doomed", "doomed too", "doomed as well", "output", "elsewhere/disk"] {
        fs::write(dir.path().join(name), name.repeat(1000)).unwrap();
    }
    fs::set_permissions(dir.path().join("disk"), fs::Permissions::from_mode(0o600)).unwrap();
    // It is a journal's name, and no journal.
    fs::write(dir.path().join(".canary.leandisk-journal"), "nothing").unwrap();
    std::os::unix::fs::symlink("canary", dir.path().join(".linked.leandisk-journal")).unwrap();
    let unix = UnixListener::bind(dir.path().join("socket")).unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap().to_string();
    std::os::unix::fs::symlink(address, dir.path().join("address")).unwrap();
    (dir, unix, tcp)
}

struct Inside {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Inside {
    fn start(how: &str, folder: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["inside", how])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    /// What it tells until it is ready.
    fn told(&mut self) -> Vec<String> {
        let lines = self.output.by_ref().lines().map(Result::unwrap);
        lines.take_while(|line| line != "ready").collect()
    }

    /// A line of what the kernel says of it.
    fn status(&self, name: &str) -> String {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim().to_owned()
    }

    /// The process that it started.
    fn broker(&self) -> Option<Pid> {
        let is_child = |status: &str| status.contains(&format!("\nPPid:\t{}\n", self.child.id()));
        let ids = fs::read_dir("/proc").unwrap().flatten();
        let mut ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let found =
            ids.find(|id| fs::read_to_string(format!("/proc/{id}/status")).is_ok_and(|it| is_child(&it)));
        found.and_then(Pid::from_raw)
    }

    fn end(mut self) {
        self.input.write_all(b"\n").unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

fn everything_is_closed_inside_and_open_outside() {
    for (how, filters) in [("reading", "2"), ("copying", "2"), ("serving", "2"), ("open", "0")] {
        let (dir, _unix, _tcp) = place();
        let mut inside = Inside::start(how, dir.path());
        let expected: Vec<_> = ATTEMPTS
            .iter()
            .map(|(what, ending, _)| format!("{what}: {}", if how == "open" { DONE } else { ending }))
            .collect();
        assert_eq!(inside.told(), expected, "{how}");
        assert_eq!(inside.status("Seccomp"), filters, "{how}");
        assert_eq!(inside.status("NoNewPrivs"), if how == "open" { "0" } else { "1" });
        assert_eq!(inside.broker().is_some(), how != "open");
        if how != "open" {
            assert_eq!(fs::read(dir.path().join("canary")).unwrap(), "canary".repeat(1000).into_bytes());
        }
        inside.end();
    }
}

fn what_has_two_threads_is_not_closed_in_by_halves() {
    let (dir, _unix, _tcp) = place();
    Inside::start("threads", dir.path()).end();
}

fn the_reader_is_the_program_and_the_broker_ends_with_it() {
    let (dir, _unix, _tcp) = place();
    let mut inside = Inside::start("reading", dir.path());
    inside.told();
    let broker = inside.broker().unwrap();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        kill_process(broker, signal).unwrap();
    }
    // It opens the disk once more before it ends.
    inside.end();
    wait_for_end_of(broker);

    let (dir, _unix, _tcp) = place();
    let mut inside = Inside::start("reading", dir.path());
    inside.told();
    let broker = inside.broker().unwrap();
    inside.child.kill().unwrap();
    inside.child.wait().unwrap();
    wait_for_end_of(broker);
}

fn wait_for_end_of(process: Pid) {
    let until = Instant::now() + Duration::from_secs(10);
    let entry = PathBuf::from(format!("/proc/{}", process.as_raw_nonzero()));
    while entry.exists() {
        assert!(Instant::now() < until, "the broker outlives its reader");
        std::thread::sleep(Duration::from_millis(5));
    }
}
