//! Backups of running guests by their QEMUs' dirty bitmaps: what did not change is not read, whatever was killed in between.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::run;

use crate::backup::Repo;
use crate::common::{arg, assert_same_bytes, is_listening, number, wait_until};
use crate::running::{Attached, Guest};

const NAME: &str = "daily";
/// What is read besides what changed: a sample, and bits that stay set.
const MORE_BYTES: u64 = 128 << 10;

struct Tracked {
    guest: Guest,
    repo: Repo,
}

impl Tracked {
    fn new(attached: Attached) -> Self {
        let mut guest = Guest::start(attached);
        add_bitmap(&mut guest);
        Self { guest, repo: Repo::new() }
    }

    fn disk(&self) -> String {
        format!("disk={}", self.guest.address())
    }

    fn command(&self, more: &[&str]) -> Command {
        let disk = self.disk();
        let args = [&["backup", &disk, "--bitmap", NAME, "--json", "--init"], more].concat();
        self.guest.leandisk(&self.repo.with(&self.repo.args(), &args))
    }

    fn backup(&mut self, more: &[&str]) -> Value {
        let output = self.command(more).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        self.guest.assert_clean();
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What the guest has written since is read, and restic restores all of the disk.
    fn backup_and_compare(&mut self) -> Value {
        let made = self.backup(&[]);
        let (now, restored) = (self.guest.path("now.raw"), self.guest.path("restored.raw"));
        let address = self.guest.address();
        let copied = self.guest.leandisk(&["copy", &address, arg(&now), "--force"]).output().unwrap();
        assert!(copied.status.success());
        self.repo.dump("latest", "/disk", &restored);
        assert_same_bytes(&now, &restored);
        made
    }
}

fn add_bitmap(guest: &mut Guest) {
    let node = guest.ask("query-block", json!({}))[0]["inserted"]["node-name"].clone();
    guest.ask("block-dirty-bitmap-add", json!({ "node": node, "name": NAME, "persistent": true }));
}

fn remove_bitmap(guest: &mut Guest) {
    let node = guest.ask("query-block", json!({}))[0]["inserted"]["node-name"].clone();
    guest.ask("block-dirty-bitmap-remove", json!({ "node": node, "name": NAME }));
}

fn clear_bitmap(guest: &mut Guest) {
    let node = guest.ask("query-block", json!({}))[0]["inserted"]["node-name"].clone();
    guest.ask("block-dirty-bitmap-clear", json!({ "node": node, "name": NAME }));
}

fn tracking(made: &Value) -> (&str, &str) {
    let disk = &made["disks"][0];
    (disk["tracking"].as_str().unwrap(), disk["reason"].as_str().unwrap_or_default())
}

fn assert_reads(made: &Value, changed: u64) {
    assert_eq!(tracking(made), ("bitmap", ""), "{made:#}");
    let read_bytes = number(made, "/read_bytes");
    assert!(read_bytes >= changed && read_bytes <= changed + changed / 5 + MORE_BYTES, "{changed}: {made:#}");
}

#[test]
fn only_what_a_running_guest_wrote_is_read() {
    for attached in [Attached::ByNode, Attached::Unused] {
        let mut tracked = Tracked::new(attached);
        let first = tracked.backup(&[]);
        assert_eq!(tracking(&first), ("none", "it is the first backup of these disks"));
        assert_eq!(number(&first, "/read_bytes"), 16 << 20);
        assert_reads(&tracked.backup_and_compare(), 0);
        tracked.guest.write(0x51, "1M", "1M");
        tracked.guest.write(0x52, "11M", "64k");
        let planned = tracked.backup(&["--dry-run"]);
        let second = tracked.backup_and_compare();
        assert_reads(&second, (1 << 20) + (64 << 10));
        assert_eq!(
            (&planned["read_bytes"], &planned["disks"][0]["tracking"]),
            (&second["read_bytes"], &json!("bitmap"))
        );

        if attached == Attached::Unused {
            continue;
        }

        // What is written while a backup goes on is in the next one.
        tracked.guest.write(0x53, "2M", "64k");
        let disk = tracked.disk();
        let place = tracked.repo.args();
        let child =
            tracked.guest.stop_at_export(&tracked.repo.with(&place, &["backup", &disk, "--bitmap", NAME]));
        tracked.guest.write(0x54, "9M", "256k");
        crate::common::signal(&child, "CONT");
        assert_eq!(crate::running::ended(child).0, Some(0));
        assert_reads(&tracked.backup_and_compare(), 256 << 10);

        // Somebody else cleared it, or made another one of this name.
        tracked.guest.write(0x55, "3M", "64k");
        remove_bitmap(&mut tracked.guest);
        let missing = tracked.backup(&[]);
        assert!(tracking(&missing).0 == "none" && tracking(&missing).1.contains("no bitmap"), "{missing:#}");
        add_bitmap(&mut tracked.guest);
        let other = tracked.backup_and_compare();
        assert!(tracking(&other).1.contains("how the disk was left"), "{other:#}");
        tracked.guest.write(0x56, "8M", "64k");
        assert_reads(&tracked.backup_and_compare(), 64 << 10);
        tracked.guest.write(0x57, "3M", "64k");
        clear_bitmap(&mut tracked.guest);
        let cleared = tracked.backup_and_compare();
        assert!(tracking(&cleared).1.contains("does not begin with"), "{cleared:#}");
        assert_reads(&tracked.backup_and_compare(), 0);
        tracked.repo.restic(&["check", "--read-data"]);
    }
}

#[test]
fn a_bitmap_outlives_its_qemu_if_that_ends_in_order() {
    let mut tracked = Tracked::new(Attached::ByNode);
    tracked.backup(&[]);
    tracked.guest.write(0x61, "1M", "128k");
    let Tracked { guest, repo } = tracked;
    let mut tracked = Tracked { guest: guest.restarted(false), repo };
    tracked.guest.write(0x62, "9M", "128k");
    assert_reads(&tracked.backup_and_compare(), 256 << 10);

    // The image of a guest that is off is the same disk, with the same bitmap.
    tracked.guest.write(0x63, "10M", "128k");
    let Tracked { mut guest, repo } = tracked;
    guest.ask("quit", json!({}));
    guest.qemu.wait().unwrap();
    let image = format!("disk={}", guest.path("guest.qcow2").display());
    let made = repo.document("leandisk.backup/1", &["backup", &image, "--bitmap", NAME]);
    assert_reads(&made, 128 << 10);
    let mut tracked = Tracked { guest: guest.restarted(true), repo };
    tracked.guest.write(0x64, "17M", "64k");
    assert_reads(&tracked.backup_and_compare(), 64 << 10);

    // A QEMU that is killed leaves a bitmap that nobody believes.
    let Tracked { guest, repo } = tracked;
    let mut tracked = Tracked { guest: guest.restarted(true), repo };
    let made = tracked.backup_and_compare();
    assert!(tracking(&made).0 == "none" && tracking(&made).1.contains("inconsistent"), "{made:#}");
    remove_bitmap(&mut tracked.guest);
    add_bitmap(&mut tracked.guest);
    tracked.backup(&[]);
    assert_reads(&tracked.backup_and_compare(), 0);
}

/// `LEANDISK_KILLS` says how often; `make live-kills` has more.
#[test]
fn no_change_is_skipped_after_a_killed_backup() {
    let kills = std::env::var("LEANDISK_KILLS").map_or(4, |text| text.parse().unwrap());
    let mut tracked = Tracked::new(Attached::ByNode);
    tracked.backup(&[]);
    let started = Instant::now();
    tracked.backup(&[]);
    let whole = started.elapsed();
    let mut told = 0;
    for number in 0..kills {
        let byte = u8::try_from(number % 250).unwrap() + 1;
        tracked.guest.write(byte, &format!("{}k", 64 * (number % 60)), "64k");
        let mut child = tracked.command(&[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        sleep(whole * (2 * number + 1) / (2 * kills));
        tracked.guest.write(byte, &format!("{}k", 8192 + 64 * (number % 60)), "64k");
        child.kill().unwrap();
        child.wait().unwrap();
        // Its lock is removed by whoever comes next.
        let made = tracked.backup_and_compare();
        assert_eq!(tracking(&made).0, "bitmap", "{made:#}");
        told += u32::from(made["parent"] != Value::Null);
    }
    assert_eq!(told, kills);
    tracked.repo.restic(&["unlock"]);
    tracked.repo.restic(&["check", "--read-data"]);
}

/// While the bits are made with which the bitmap is to begin: the snapshot is stored, and the bitmap begins with the one before.
#[test]
fn a_backup_that_is_killed_as_its_bitmap_begins_anew_costs_nothing_but_reading() {
    let mut tracked = Tracked::new(Attached::ByNode);
    tracked.backup(&[]);
    let until = Instant::now() + Duration::from_secs(60);
    let makes_bits = |guest: &mut Guest| {
        let exports = guest.ask("query-block-exports", json!({}));
        exports.as_array().unwrap().iter().any(|export| export["id"].as_str().unwrap().contains("-kep"))
    };
    let changed = 64 << 10;
    tracked.guest.write(0x41, "1M", "64k");
    'killed: loop {
        let mut child = tracked.command(&[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while child.try_wait().unwrap().is_none() {
            if makes_bits(&mut tracked.guest) {
                child.kill().unwrap();
                let status = child.wait().unwrap();
                if !status.success() {
                    break 'killed;
                }
            }
        }
        assert!(Instant::now() < until, "it is never seen");
        tracked.guest.write(0x42, "1M", "64k");
    }
    let address = tracked.guest.address();
    let recovered = tracked.guest.leandisk(&["recover", &address]).output().unwrap();
    assert!(recovered.status.success(), "{}", String::from_utf8_lossy(&recovered.stderr));
    tracked.guest.assert_clean();
    assert_reads(&tracked.backup_and_compare(), changed);
    assert_reads(&tracked.backup_and_compare(), 0);
}

/// Random numbers from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }
}

/// What the disk holds, as far as it was written.
struct Model {
    bytes: Vec<u8>,
    random: Random,
}

impl Model {
    /// A write of some sectors, mostly where there was one before: the byte, where, and how long.
    fn write(&mut self) -> (u8, u64, u64) {
        let sectors = self.bytes.len() as u64 / 512;
        let sectors = if self.random.below(8) == 0 { sectors } else { sectors / 8 };
        let at = self.random.below(sectors);
        let len = (1 + self.random.below(256)).min(sectors - at);
        let byte = u8::try_from(self.random.below(255)).unwrap() + 1;
        let [start, end] = [at, at + len].map(|sector| usize::try_from(sector * 512).unwrap());
        self.bytes[start..end].fill(byte);
        (byte, at * 512, len * 512)
    }

    fn check(&self, repo: &Repo, restored: &std::path::Path, generation: u32) {
        repo.succeed(&["restore", "latest:disk", arg(restored), "-O", "raw", "--force", "--threads", "2"]);
        let found = fs::read(restored).unwrap();
        if found == self.bytes {
            return;
        }
        let differs = found.iter().zip(&self.bytes).position(|(found, held)| found != held);
        panic!(
            "generation {generation}: of {} bytes that at {differs:?} is not what was written",
            found.len()
        );
    }
}

/// `LEANDISK_GENERATIONS` says how many; `make backup-generations` has 1,000. `LEANDISK_SEED` has others.
#[test]
fn generations_of_random_writes_are_what_the_model_says() {
    let number_of =
        |name: &str, default: u32| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let generations = number_of("LEANDISK_GENERATIONS", 20);
    let seed = number_of("LEANDISK_SEED", 1);
    let mut tracked = Tracked::new(Attached::ByNode);
    let bytes = fs::read(tracked.guest.path("before.raw")).unwrap();
    let mut model = Model { bytes, random: Random(seed.into()) };
    let (mut by_bitmap, mut killed) = (0, 0);
    for generation in 0..generations {
        for _ in 0..1 + model.random.below(4) {
            let (byte, at, len) = model.write();
            tracked.guest.write(byte, &at.to_string(), &len.to_string());
        }
        let kind = model.random.below(10);
        if kind == 0 {
            // The guest is off, and somebody writes to its image.
            tracked.guest.ask("quit", json!({}));
            tracked.guest.qemu.wait().unwrap();
            let image = tracked.guest.path("guest.qcow2");
            let (byte, at, len) = model.write();
            run("qemu-io", &["-f", "qcow2", "-c", &format!("write -q -P {byte} {at} {len}"), arg(&image)]);
            let disk = format!("disk={}", arg(&image));
            let made =
                tracked.repo.document("leandisk.backup/1", &["backup", "--init", &disk, "--bitmap", NAME]);
            by_bitmap += u32::from(tracking(&made).0 == "bitmap");
            tracked.guest = tracked.guest.restarted(true);
        } else {
            if kind <= 3 {
                let mut child =
                    tracked.command(&[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
                sleep(Duration::from_millis(model.random.below(400)));
                let (byte, at, len) = model.write();
                tracked.guest.write(byte, &at.to_string(), &len.to_string());
                child.kill().unwrap();
                child.wait().unwrap();
                killed += 1;
            }
            let made = tracked.backup(&[]);
            by_bitmap += u32::from(tracking(&made).0 == "bitmap");
        }
        model.check(&tracked.repo, &tracked.guest.path("restored.raw"), generation);
    }
    println!("{generations} generations, {by_bitmap} by bitmap, {killed} killed backups");
    assert!(by_bitmap >= generations / 2, "{by_bitmap} of {generations}");
    tracked.repo.restic(&["check"]);
}

/// Ends with this value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(image: &str, socket: &PathBuf) -> Server {
    let _ = fs::remove_file(socket);
    let mut command = Command::new("qemu-nbd");
    command.args(["-r", "-t", "-f", "qcow2", "-B", NAME, "-x", "disk", "-k", arg(socket), image]);
    let mut server = Server(command.spawn().unwrap());
    assert!(wait_until(&mut server.0, || is_listening(socket)), "qemu-nbd ended");
    server
}

#[test]
fn a_servers_bitmap_is_read_and_goes_on() {
    let repo = Repo::new();
    let path = |name: &str| repo.dir.path().join(name);
    let (image, socket) = (path("disk.qcow2"), path("nbd"));
    crate::running::make_disk(&image, &path("before.raw"), 0);
    run("qemu-img", &["bitmap", "--add", arg(&image), NAME]);
    let address = format!("disk=nbd+unix:///disk?socket={}", socket.display());
    let write = |byte: u8, at: &str| {
        run("qemu-io", &["-f", "qcow2", "-c", &format!("write -q -P {byte} {at} 64k"), arg(&image)]);
    };
    let back_up = |disk: &str, bitmap: &str| {
        repo.document("leandisk.backup/1", &["backup", "--init", disk, "--bitmap", bitmap])
    };
    let by_server = || {
        let _server = serve(arg(&image), &socket);
        back_up(&address, NAME)
    };
    let compare = || {
        let (now, restored) = (path("now.raw"), path("restored.raw"));
        run("qemu-img", &["convert", "-O", "raw", arg(&image), arg(&now)]);
        repo.dump("latest", "/disk", &restored);
        assert_same_bytes(&now, &restored);
    };
    // No snapshot begins with it yet, and none will.
    assert_eq!(tracking(&by_server()).0, "none");
    let again = by_server();
    assert!(tracking(&again).1.contains("how the disk was left"), "{again:#}");
    // The image's own backup makes it begin anew.
    let own = back_up(&format!("disk={}", arg(&image)), NAME);
    assert_eq!(tracking(&own).0, "none");
    write(0x31, "1M");
    assert_reads(&by_server(), 64 << 10);
    compare();
    write(0x32, "9M");
    let made = by_server();
    assert_reads(&made, 128 << 10);
    compare();
    {
        let _server = serve(arg(&image), &socket);
        let said = repo.succeed(&["backup", &address, "--bitmap", NAME]);
        assert!(said.contains("snapshot"), "{said}");
        let other = back_up(&address, "weekly");
        assert!(tracking(&other).1.contains("does not tell of"), "{other:#}");
    }
    run("qemu-img", &["bitmap", "--clear", arg(&image), NAME]);
    write(0x33, "17M");
    let cleared = by_server();
    assert_eq!(tracking(&cleared).0, "none", "{cleared:#}");
    compare();
}
