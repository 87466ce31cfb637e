//! A guest of libvirt's, by libvirt itself: as docs/recipes.md says. `make libvirt` runs it. A session of libvirt's without root does: the guest is QEMU without
//! hardware help, and its processors stand still.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::{run, scratch};

use crate::common::{arg, document, fail, number, succeed};

const DISK_BYTES: u64 = 256 << 20;
/// Who runs libvirt where the test is root: libvirt of root is that of the machine.
const NOBODY: &str = "65534";

/// A session of libvirt's with one guest, `guest`, whose disk is `disk.qcow2` in `dir`.
struct Libvirt {
    dir: tempfile::TempDir,
}

impl Libvirt {
    fn new() -> Self {
        let dir = scratch();
        let this = Self { dir };
        for folder in ["home", "run"] {
            fs::create_dir(this.path(folder)).unwrap();
        }
        let (raw, files) = (this.path("raw"), this.path("files"));
        fs::create_dir(&files).unwrap();
        for index in 0..200_u8 {
            fs::write(files.join(format!("file {index}")), vec![index; 200 << 10]).unwrap();
        }
        fs::File::create(&raw).unwrap().set_len(DISK_BYTES).unwrap();
        run("mkfs.ext4", &["-q", "-F", "-d", arg(&files), arg(&raw)]);
        run("qemu-img", &["convert", "-O", "qcow2", arg(&raw), arg(&this.path("disk.qcow2"))]);
        fs::write(this.path("guest.xml"), this.domain()).unwrap();
        if is_root() {
            run("chown", &["-R", NOBODY, arg(this.dir.path())]);
        }
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A socket's path has a bound, and libvirt puts its own below this.
    fn domain(&self) -> String {
        format!(
            "<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
              <name>guest</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
              <os><type arch='x86_64' machine='pc'>hvm</type></os>
              <devices>
                <emulator>/usr/bin/qemu-system-x86_64</emulator>
                <disk type='file' device='disk'>
                  <driver name='qemu' type='qcow2'/><source file='{}'/><target dev='vda' bus='virtio'/>
                </disk>
              </devices>
              <qemu:commandline>
                <qemu:arg value='-qmp'/><qemu:arg value='unix:{},server=on,wait=off'/>
              </qemu:commandline>
            </domain>",
            self.path("disk.qcow2").display(),
            self.path("vm.qmp").display(),
        )
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(if is_root() { "setpriv" } else { "env" });
        if is_root() {
            command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "env"]);
        }
        for (name, folder) in [
            ("HOME", "home"),
            ("XDG_CONFIG_HOME", "home"),
            ("XDG_CACHE_HOME", "home"),
            ("XDG_RUNTIME_DIR", "run"),
        ] {
            command.arg(format!("{name}={}", self.path(folder).display()));
        }
        command.args(["virsh", "-c", "qemu:///session"]).args(args);
        command
    }

    fn virsh(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "virsh {args:?}: {said}{error}");
        said
    }

    /// Writes as the guest would.
    fn write(&self, byte: u8, at: &str, len: &str) {
        let line = format!(
            "qemu-io -d /machine/peripheral/virtio-disk0/virtio-backend \"write -P {byte} {at} {len}\""
        );
        let said = self.virsh(&["qemu-monitor-command", "guest", "--hmp", &line]);
        assert!(!said.contains("rror"), "{said}");
    }

    /// Backs the disk up as libvirt does it, by pulling, and copies it while the guest writes.
    fn pull(&self, to: &Path, more: &[&str]) -> serde_json::Value {
        let socket = self.path("backup.sock");
        let backup = format!(
            "<domainbackup mode='pull'>
              <server transport='unix' socket='{}'/>
              <disks><disk name='vda' backup='yes' type='file'><scratch file='{}'/></disk></disks>
            </domainbackup>",
            socket.display(),
            self.path("vda.scratch").display(),
        );
        fs::write(self.path("backup.xml"), backup).unwrap();
        self.virsh(&["backup-begin", "guest", arg(&self.path("backup.xml"))]);
        self.write(0x5a, "0", "64M");
        let export = format!("nbd+unix:///vda?socket={}", socket.display());
        let copied = document("leandisk.copy/1", &[&["copy", &export, arg(to)], more].concat());
        self.virsh(&["domjobabort", "guest"]);
        copied
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        let _ = self.command(&["destroy", "guest"]).output();
        if let Ok(pid) = fs::read_to_string(self.path("run/libvirt/libvirtd.pid")) {
            let _ = Command::new("kill").arg(pid.trim()).status();
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
#[ignore = "needs libvirt, which `make libvirt` installs"]
fn the_disk_of_a_guest_is_copied_as_the_recipes_say() {
    let libvirt = Libvirt::new();
    let disk = libvirt.path("disk.qcow2");
    let before = libvirt.path("before.raw");
    run("qemu-img", &["convert", "-O", "raw", arg(&disk), arg(&before)]);

    // The guest is off: its disks by its XML.
    libvirt.virsh(&["define", arg(&libvirt.path("guest.xml"))]);
    let xml = libvirt.path("dumped.xml");
    fs::write(&xml, libvirt.virsh(&["dumpxml", "--inactive", "guest"])).unwrap();
    let allowed = ["--allow-path", arg(libvirt.dir.path())];
    succeed(&[&["info", arg(&xml)][..], &allowed].concat());
    let into = libvirt.path("new");
    let copy_all = ["copy", arg(&xml), "--into", arg(&into), "-O", "qcow2", "--verify"];
    succeed(&[&copy_all[..], &allowed].concat());
    let copied: Vec<_> = fs::read_dir(&into).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(copied.len(), 1, "{copied:?}");
    run("qemu-img", &["compare", arg(&copied[0]), arg(&disk)]);

    // The guest runs: QEMU has the disk, which is no longer to be had by its file.
    libvirt.virsh(&["start", "--paused", "guest"]);
    let refused =
        fail(3, &[&copy_all[..3], &[arg(&libvirt.path("other"))], &copy_all[4..], &allowed].concat());
    assert!(refused.contains("is in use by 'qemu-system-x86'"), "{refused}");

    // By another monitor than libvirt's, as of now, while the guest writes elsewhere.
    let monitor = format!("qmp:{}", libvirt.path("vm.qmp").display());
    succeed(&["info", &monitor]);
    let by_monitor = libvirt.path("by-monitor.raw");
    let whole = ["-O", "raw", "--keep-free", "--keep-swap"];
    let live = format!("{monitor}?disk=virtio-disk0");
    succeed(&[&["copy", &live, arg(&by_monitor), "--freeze", "never"][..], &whole].concat());
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", arg(&by_monitor), arg(&before)]);

    // By libvirt's own backup: as of the moment before the guest overwrote a quarter.
    let all = libvirt.path("all.raw");
    libvirt.pull(&all, &whole);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", arg(&all), arg(&before)]);

    // What the guest wrote meanwhile is in the next one.
    let after = libvirt.path("after.raw");
    libvirt.pull(&after, &whole);
    assert!(fs::read(&after).unwrap()[..64 << 20].iter().all(|byte| *byte == 0x5a));

    // Nothing of ours or of the backup's is left in QEMU.
    for question in ["query-block-exports", "query-block-jobs"] {
        let said =
            libvirt.virsh(&["qemu-monitor-command", "guest", &format!("{{\"execute\": \"{question}\"}}")]);
        assert!(said.contains("\"return\":[]"), "{question}: {said}");
    }
}

#[test]
#[ignore = "needs libvirt, which `make libvirt` installs"]
fn a_backup_that_libvirt_offers_is_copied_by_what_the_guest_uses() {
    let libvirt = Libvirt::new();
    libvirt.virsh(&["create", "--paused", arg(&libvirt.path("guest.xml"))]);
    let copy = libvirt.path("copy.qcow2");
    let copied = libvirt.pull(&copy, &["-O", "qcow2"]);
    assert!(number(&copied, "/read_bytes") < DISK_BYTES / 2, "{copied}");
    let raw = libvirt.path("copy.raw");
    run("qemu-img", &["convert", "-O", "raw", arg(&copy), arg(&raw)]);
    run("e2fsck", &["-fn", arg(&raw)]);
    for index in [0, 99, 199_u8] {
        let out = libvirt.path("out");
        let dump = format!("dump \"/file {index}\" {}", arg(&out));
        run("debugfs", &["-R", &dump, arg(&raw)]);
        assert_eq!(fs::read(&out).unwrap(), vec![index; 200 << 10], "{index}");
    }
}
