//! Disks of running guests that use LVM2: a file system on a logical volume is at work, the whole disk is taken at random moments, and a copy
//! of what is used is recovered by the kernel to the same as the whole, and reads the same without recovery.
//!
//! No kernel here needs a device mapper: the logical volume is linear, and lies in one piece. It is this machine that works on it, or a Debian kernel
//! under QEMU, which is killed at the last moment. How many moments: `LEANDISK_MOMENTS`. The seed is printed; `LEANDISK_SEED` takes another one.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use testkit::loops::{Loops, Part};
use testkit::mounted::{Mounted, shown};
use testkit::working_guest::{Work, WorkingGuest};
use testkit::{HostMount, run};

use crate::common::{arg, document};
use crate::lvm::{EXTENT, EXTENTS_AT, Scene, volume};

/// A program of this machine that works on a mount.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Who works on the logical volume, from then on and until it is dropped.
enum Busy {
    Here { worker: Worker, _mounted: Mounted },
    Debian(WorkingGuest),
}

impl Busy {
    fn check_alive(&mut self) {
        match self {
            Self::Here { worker, .. } => {
                assert!(worker.0.try_wait().unwrap().is_none(), "the guest works on");
            }
            Self::Debian(guest) => guest.check_alive(),
        }
    }
}

/// A file system on the logical volume.
struct Kind {
    kind: &'static str,
    make: &'static [&'static str],
    able: &'static str,
    without_recovery: &'static str,
    is_debian: bool,
}

const EXT4: Kind = Kind {
    kind: "ext4",
    make: &["mkfs.ext4", "-q", "-F"],
    able: "",
    without_recovery: "ro,noload",
    is_debian: false,
};

const XFS: Kind = Kind {
    kind: "xfs",
    make: &["mkfs.xfs", "--unsupported", "-q", "-f"],
    able: "reflink",
    without_recovery: "ro,norecovery",
    is_debian: false,
};

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().unwrap())
}

fn take(Kind { kind, make, able, without_recovery, is_debian }: Kind) {
    let (count, seed) = (number("LEANDISK_MOMENTS", 2), number("LEANDISK_SEED", 20_261_124));
    println!("{kind} on LVM2: seed {seed}");
    let host = HostMount::made_with("xfs", 4 << 30, &["-m", "reflink=1"]);
    let scene = Scene::with_table(&[220], "lvcreate -an -Zn -Wn -n busy -l 50 vg0\n");
    let lvs = scene.read("lvs");
    assert_eq!(lvs.trim(), "busy,0,50,0,0:0-49", "in one piece");
    let at = |name: &str| host.path().join(name);
    let (disk, used, whole) = (at("disk.raw"), at("used.raw"), at("whole.raw"));
    run("cp", &[arg(&scene.disk), arg(&disk)]);
    let offset = scene.parts[0].0 + EXTENTS_AT;
    let place = format!("offset={offset},sizelimit={}", 50 * EXTENT);
    let device = Loops::attach(&[Part { file: &disk, start_bytes: offset, len_bytes: 50 * EXTENT }]);
    run(make[0], &[&make[1..], &device.names()].concat());
    drop(device);
    let mut busy = if is_debian {
        Busy::Debian(WorkingGuest::start(&Work {
            disk: &disk,
            volume_bytes: (offset, 50 * EXTENT),
            kind,
            options: if kind == "xfs" { "nouuid" } else { "nodiscard" },
            seed,
            can_share: able == "reflink",
        }))
    } else {
        let mounted = Mounted::kernel(kind, &disk, &format!("{place},noatime"));
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../filesystem/tests/scripts/work.py");
        let worker = Command::new("python3")
            .args([script, arg(mounted.path()), &seed.to_string(), able])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Busy::Here { worker: Worker(worker), _mounted: mounted }
    };
    let taken = |moment: u64| at(&format!("taken {moment}.raw"));
    let mut state = seed;
    for moment in 0..count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis(300 + (state >> 33) % 1500));
        busy.check_alive();
        if matches!(busy, Busy::Here { .. }) || moment + 1 < count {
            run("cp", &["--reflink=always", arg(&disk), arg(&taken(moment))]);
        }
    }
    let is_killed = matches!(busy, Busy::Debian(_));
    drop(busy);
    if is_killed {
        run("cp", &["--reflink=always", arg(&disk), arg(&taken(count - 1))]);
    }
    let mut pending = 0;
    for moment in 0..count {
        let (taken, what) = (taken(moment), format!("{kind} on LVM2, seed {seed}, moment {moment}"));
        let info = document("leandisk.info/1", &["info", arg(&taken)]);
        pending += u64::from(volume(&info, "vg0/busy")["state"] == "needs-recovery");
        let copies = || {
            let copied = document("leandisk.copy/1", &["copy", "--force", arg(&taken), arg(&used)]);
            assert_eq!(volume(&copied, "vg0/busy")["mode"], "used-only", "{what}: {copied}");
            assert!(copied["read_bytes"].as_u64().unwrap() < 49 * EXTENT, "{what}: {copied}");
            run("cp", &["--reflink=always", arg(&taken), arg(&whole)]);
        };
        let mount = |disk, options: &str| Mounted::kernel(kind, disk, &format!("{place},{options}"));
        copies();
        let expected = mount(&whole, "noatime").tree();
        let found = mount(&used, "noatime").tree();
        // Recovery sets times to its own.
        let is_time = |line: &String| line.contains(": changed at: ") || line.contains(": written at: ");
        let differences: Vec<_> =
            expected.differences(&found).into_iter().filter(|line| !is_time(line)).collect();
        assert!(differences.is_empty(), "{what}: {differences:?}");
        copies();
        let expected = shown(mount(&whole, without_recovery).path());
        assert_eq!(expected, shown(mount(&used, without_recovery).path()), "{what}, without recovery");
    }
    println!("{kind} on LVM2: {count} moments, {pending} with something to recover");
    assert!(pending > 0);
}

#[test]
fn ext4() {
    take(EXT4);
}

#[test]
fn xfs() {
    take(XFS);
}

#[test]
#[ignore = "boots a Debian kernel, which takes minutes: make running-guests"]
fn ext4_of_debian() {
    take(Kind { is_debian: true, ..EXT4 });
}

#[test]
#[ignore = "boots a Debian kernel, which takes minutes: make running-guests"]
fn xfs_of_debian() {
    take(Kind { is_debian: true, ..XFS });
}
