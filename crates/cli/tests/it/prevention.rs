//! Images that grow beside each other on file systems of the host, fresh ones and aged ones, through `serve` and through
//! qemu-nbd: in how many pieces they end, and what they take. And in how many writes what is written reaches the device.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{arg, document, leandisk, number, succeed};
use testkit::{AgedHost, HostMount, run, scratch};

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 64 * MIB;
const WRITE_BYTES: u64 = 64 << 10;
const WRITE_COUNT: u64 = DISK_BYTES / WRITE_BYTES;
const IMAGE_COUNT: usize = 2;
/// Between flushes.
const WRITES_A_FLUSH: u64 = 128;

/// NBD's own numbers (its protocol, *Values*).
const COMMAND_WRITE: u16 = 1;
const COMMAND_END: u16 = 2;
const COMMAND_FLUSH: u16 = 3;

/// A client of one export, one request at a time.
struct Client(UnixStream);

impl Client {
    fn connect(socket: &Path) -> Self {
        let began = Instant::now();
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) => assert!(began.elapsed() < Duration::from_secs(20), "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut client = Self(stream);
        client.read::<18>();
        // Fixed newstyle without zeros behind; the export of this name.
        let option = [&3u32.to_be_bytes()[..], b"IHAVEOPT", &1u32.to_be_bytes(), &1u32.to_be_bytes(), b"d"];
        client.0.write_all(&option.concat()).unwrap();
        let facts = client.read::<10>();
        assert_eq!(facts[..8], DISK_BYTES.to_be_bytes());
        client
    }

    fn read<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn send(&mut self, command: u16, at: u64, len: usize, data: &[u8]) {
        let head = [
            &0x2560_9513u32.to_be_bytes()[..],
            &0u16.to_be_bytes(),
            &command.to_be_bytes(),
            &[0; 8],
            &at.to_be_bytes(),
            &u32::try_from(len).unwrap().to_be_bytes(),
            data,
        ];
        self.0.write_all(&head.concat()).unwrap();
    }

    fn ask(&mut self, command: u16, at: u64, data: &[u8]) {
        self.send(command, at, data.len(), data);
        assert_eq!(self.read::<16>()[4..8], [0; 4]);
    }
}

/// A server of one image.
struct Server {
    child: Child,
    client: Client,
}

impl Server {
    fn leandisk(image: &Path, socket: &Path) -> Self {
        let mut command = leandisk();
        command.args(["serve", arg(image), "--name", "d", "--socket", arg(socket)]);
        Self::spawn(command, socket)
    }

    fn qemu_nbd(image: &Path, socket: &Path, format: &str) -> Self {
        let mut command = Command::new("qemu-nbd");
        command.args(["-t", "-x", "d", "-f", format, "--cache=none", "-k", arg(socket), arg(image)]);
        Self::spawn(command, socket)
    }

    fn spawn(mut command: Command, socket: &Path) -> Self {
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        Self { child, client: Client::connect(socket) }
    }

    fn stop(mut self) {
        self.client.send(COMMAND_END, 0, 0, &[]);
        run("kill", &["-TERM", &self.child.id().to_string()]);
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn create(image: &Path, format: &str) {
    if format == "raw" {
        File::create(image).unwrap().set_len(DISK_BYTES).unwrap();
    } else {
        run("qemu-img", &["create", "-q", "-f", format, arg(image), &DISK_BYTES.to_string()]);
    }
    // What was given up while it was made can be used again only then.
    run("sync", &["-f", arg(image)]);
}

fn pattern(number: u64) -> Vec<u8> {
    let byte = u8::try_from(number % 251).unwrap() + 1;
    vec![byte; usize::try_from(WRITE_BYTES).unwrap()]
}

/// The pieces in which an image lies on the host, as `filefrag -v` shows them; one that continues behind a hole is one.
fn host_extents(image: &Path) -> u64 {
    let said = run("filefrag", &["-v", arg(image)]);
    let mut count = 0;
    let mut last = None;
    for line in said.lines() {
        let fields: Vec<&str> = line.split([':', '.', ' ']).filter(|field| !field.is_empty()).collect();
        let numbers: Option<Vec<i64>> =
            fields.get(..5).map(|fields| fields.iter().flat_map(|field| field.parse()).collect());
        let Some([_, logical, _, physical, _]) = numbers.as_deref() else { continue };
        count += u64::from(last != Some(physical - logical));
        last = Some(physical - logical);
    }
    count
}

/// What came of it.
struct Outcome {
    pieces: u64,
    /// As many of the pieces were there before anything was written.
    made_pieces: u64,
    allocated_bytes: u64,
    len_bytes: Vec<u64>,
}

/// Writes images in turns, each in an order of its own, and closes them.
fn grow(
    mount: &HostMount,
    format: &str,
    create: impl Fn(&Path, &str),
    start: impl Fn(&Path, &Path) -> Server,
) -> Outcome {
    let sockets = scratch();
    let images: Vec<PathBuf> =
        (0..IMAGE_COUNT).map(|index| mount.path().join(format!("{index}.{format}"))).collect();
    images.iter().for_each(|image| create(image, format));
    let made_pieces = images.iter().map(|image| host_extents(image)).sum();
    let mut servers: Vec<Server> = images
        .iter()
        .enumerate()
        .map(|(index, image)| start(image, &sockets.path().join(index.to_string())))
        .collect();
    for turn in 0..WRITE_COUNT {
        for (server, step) in servers.iter_mut().zip([367, 601]) {
            let number = turn * step % WRITE_COUNT;
            server.client.ask(COMMAND_WRITE, number * WRITE_BYTES, &pattern(number));
            if turn % WRITES_A_FLUSH == 0 {
                server.client.ask(COMMAND_FLUSH, 0, &[]);
            }
        }
    }
    servers.into_iter().for_each(Server::stop);
    images.iter().for_each(|image| drop(run("sync", &["-f", arg(image)])));
    let mut outcome = Outcome { pieces: 0, made_pieces, allocated_bytes: 0, len_bytes: Vec::new() };
    for image in &images {
        outcome.pieces += host_extents(image);
        if format != "raw" {
            outcome.pieces +=
                number(&document("leandisk.analyze/1", &["analyze", arg(image)]), "/image/runs");
        }
        outcome.len_bytes.push(image.metadata().unwrap().len());
        outcome.allocated_bytes += image.metadata().unwrap().blocks() * 512;
        assert_contents(image, format);
        fs::remove_file(image).unwrap();
    }
    outcome
}

fn assert_contents(image: &Path, format: &str) {
    let dir = scratch();
    let model = dir.path().join("model");
    let file = File::create(&model).unwrap();
    for number in 0..WRITE_COUNT {
        file.write_all_at(&pattern(number), number * WRITE_BYTES).unwrap();
    }
    run("qemu-img", &["compare", "-q", "-f", format, "-F", "raw", arg(image), arg(&model)]);
}

/// Where qemu-nbd leaves more than a thousand pieces, `serve` leaves one in a hundred at most; nowhere does it leave more.
#[test]
fn images_that_grow_beside_each_other_stay_in_few_pieces() {
    for filesystem in ["xfs", "btrfs", "ext4"] {
        for format in ["raw", "qcow2", "vhdx"] {
            let theirs = {
                let mount = HostMount::new(filesystem, 600 * MIB);
                grow(&mount, format, create, |image, socket| Server::qemu_nbd(image, socket, format))
            };
            let mount = HostMount::new(filesystem, 600 * MIB);
            let ours = grow(&mount, format, create, Server::leandisk);
            let said = format!("{filesystem}, {format}: {} of {} pieces", ours.pieces, theirs.pieces);
            println!("{said}");
            assert!(theirs.pieces > 1000 || (filesystem, format) != ("xfs", "raw"), "{said}");
            assert!(ours.pieces <= theirs.pieces, "{said}");
            // So few writes that what the tables of an empty image lie in would count.
            let grown = ours.pieces.saturating_sub(ours.made_pieces);
            assert!(theirs.pieces <= 1000 || grown * 100 <= theirs.pieces, "{said}");
            let most = theirs.allocated_bytes + (64 << 10);
            assert!(ours.allocated_bytes <= most, "{said}: {} bytes", ours.allocated_bytes);
        }
    }
}

/// As many pieces as an image may have of its own where one call reserves it all: its table and its run.
const OWN_PIECES: u64 = 2;

/// Where free space is in pieces, images that grow at random lie in hardly more of them than if each had been reserved as a
/// whole, in one call.
#[test]
fn on_an_aged_host_images_lie_as_if_they_were_reserved_at_once() {
    let create = |image: &Path, format: &str| {
        succeed(&["create", arg(image), &DISK_BYTES.to_string(), "-O", format]);
        run("sync", &["-f", arg(image)]);
    };
    // With much room, and with little more than both take.
    for (filesystem, format, host_bytes) in [("ext4", "vhdx", 600 * MIB), ("xfs", "qcow2", 400 * MIB)] {
        let aged = AgedHost::new(filesystem, host_bytes);
        let ours = grow(&aged.mount(), format, create, Server::leandisk);
        let mount = aged.mount();
        let at_once: Vec<PathBuf> =
            (0..IMAGE_COUNT).map(|index| mount.path().join(index.to_string())).collect();
        for (file, len_bytes) in at_once.iter().zip(&ours.len_bytes) {
            run("fallocate", &["-l", &len_bytes.to_string(), arg(file)]);
        }
        run("sync", &["-f", arg(mount.path())]);
        let at_once: u64 = at_once.iter().map(|file| host_extents(file)).sum();
        let said = format!("{filesystem}, {format}, aged: {} pieces, {at_once} at once", ours.pieces);
        println!("{said}");
        assert!(at_once >= 20, "{said}: it is not aged");
        assert!(ours.pieces * 10 <= at_once * 12 + OWN_PIECES * 10, "{said}");
    }
}

/// Small writes are acknowledged one by one and reach the device as large ones, until a flush asks for them: the page cache
/// joins them.
#[test]
fn small_writes_without_flushes_are_joined_on_their_way_to_the_device() {
    const SMALL: [u8; 4096] = [7; 4096];
    const SMALL_BYTES: u64 = SMALL.len() as u64;
    const SMALL_COUNT: u64 = 2048;
    let mount = HostMount::new("ext4", 400 * MIB);
    for format in ["raw", "qcow2"] {
        let image = mount.path().join(format!("disk.{format}"));
        create(&image, format);
        let socket = mount.path().join("socket");
        let mut server = Server::leandisk(&image, &socket);
        for (stream_count, from) in [(1, 0), (2, DISK_BYTES / 2)] {
            let before = mount.device_writes();
            for number in 0..SMALL_COUNT {
                let stream = number % stream_count * (DISK_BYTES / 4);
                let at = from + stream + number / stream_count * SMALL_BYTES;
                server.client.ask(COMMAND_WRITE, at, &SMALL);
            }
            server.client.ask(COMMAND_FLUSH, 0, &[]);
            let writes = mount.device_writes() - before;
            println!("{format}, {stream_count} streams: {writes} device writes of {SMALL_COUNT}");
            assert!(writes > 0 && writes * 8 <= SMALL_COUNT, "{format}, {stream_count}: {writes}");
        }
        // Who flushes each of them gets each of them.
        let before = mount.device_writes();
        for number in 0..64 {
            server.client.ask(COMMAND_WRITE, number * SMALL_BYTES, &SMALL);
            server.client.ask(COMMAND_FLUSH, 0, &[]);
        }
        let writes = mount.device_writes() - before;
        assert!(writes >= 64, "{format}: {writes} for 64 flushes");
        server.stop();
    }
}

/// Nobody flushes, and what is dirty is neither much nor old: the kernel would leave it for half a minute.
#[test]
fn first_writes_go_to_the_device_before_anyone_flushes() {
    const WRITTEN_BYTES: u64 = 32 * MIB;
    let mount = HostMount::new("xfs", 400 * MIB);
    let image = mount.path().join("disk.raw");
    create(&image, "raw");
    let socket = mount.path().join("socket");
    let mut server = Server::leandisk(&image, &socket);
    let before = mount.device_written_bytes();
    for number in 0..WRITTEN_BYTES / WRITE_BYTES {
        server.client.ask(COMMAND_WRITE, number * WRITE_BYTES, &pattern(number));
    }
    let asked = Instant::now();
    while mount.device_written_bytes() - before < WRITTEN_BYTES {
        assert!(asked.elapsed() < Duration::from_secs(10), "{}", mount.device_written_bytes() - before);
        std::thread::sleep(Duration::from_millis(50));
    }
    server.stop();
}

/// A thin disk is thin again a few seconds after it was written, and its monitor knows what was saved.
#[test]
fn nothing_is_left_reserved_ten_seconds_after_the_last_write() {
    let mount = HostMount::new("xfs", 400 * MIB);
    let image = mount.path().join("disk.raw");
    create(&image, "raw");
    let socket = mount.path().join("socket");
    let mut server = Server::leandisk(&image, &socket);
    for number in [3, 700, 701] {
        server.client.ask(COMMAND_WRITE, number * WRITE_BYTES, &pattern(number));
    }
    server.client.ask(COMMAND_FLUSH, 0, &[]);
    let written = Instant::now();
    let allocated = || image.metadata().unwrap().blocks() * 512;
    assert!(allocated() > 32 * MIB, "{} are reserved", allocated());
    let stats = document("leandisk.stats/1", &["stats", arg(&socket)]);
    assert_eq!(number(&stats, "/exports/0/snapshot/fragments_prevented"), 3);
    assert_eq!(number(&stats, "/exports/0/snapshot/physical/writes"), 3);
    assert_eq!(number(&stats, "/exports/0/snapshot/physical/written_bytes"), 3 * WRITE_BYTES);
    while allocated() > 3 * WRITE_BYTES + 4096 {
        assert!(written.elapsed() < Duration::from_secs(10), "{} after ten seconds", allocated());
        std::thread::sleep(Duration::from_millis(100));
    }
    // Whoever goes on gets room again.
    server.client.ask(COMMAND_WRITE, 0, &pattern(0));
    assert!(allocated() > MIB);
    server.stop();
    assert!(allocated() <= 4 * WRITE_BYTES + 4096, "{} after closing", allocated());
}
