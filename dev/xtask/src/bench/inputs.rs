//! The disks, made by real tools, and kept for the next run of the same scale.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::measure::shell_as_root;

/// Size of the disks as a share of the full size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale(pub(crate) f64);

impl Scale {
    /// So many MiB at full size; at least `least`.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn mib(self, full: u32, least: u32) -> u32 {
        ((f64::from(full) * self.0) as u32).max(least)
    }
}

/// Bytes of a MiB.
pub(super) const MIB: u64 = 1 << 20;

/// A disk with a file system half of whose files were deleted, and the size of that.
pub(super) struct Stale {
    pub(super) input: Input,
    pub(super) len_bytes: u64,
}

/// The folder of the disks.
pub(crate) struct Inputs {
    dir: PathBuf,
    scale: Scale,
}

/// One disk: how to make it if it is not there.
pub(crate) struct Input {
    /// The file to read.
    pub(crate) path: PathBuf,
    script: &'static str,
    args: Vec<String>,
    needs: Option<Box<Input>>,
}

impl Input {
    /// Makes the disk unless it is there from before.
    pub(crate) fn prepare(&self) -> Result<()> {
        if self.path.exists() {
            return Ok(());
        }
        if let Some(needs) = &self.needs {
            needs.prepare()?;
        }
        let partial = self.path.with_extension("partial");
        let script = format!("{COMMON}{}", self.script);
        let mut args = vec![partial.to_str().context("a path in UTF-8")?];
        args.extend(self.args.iter().map(String::as_str));
        shell_as_root(&script, &args)?;
        fs::rename(&partial, &self.path)?;
        Ok(())
    }
}

/// `$1` is the file to make. `fill NAME MIB` makes a file of bytes that do not compress, `with_ntfs` puts NTFS
/// on a partition from 1 MiB and mounts it at `$mnt`, `done_with_ntfs` unmounts it.
const COMMON: &str = r#"
disk=$1; shift
mnt=$(mktemp -d)
loop=
release() {
    ! mountpoint -q "$mnt" || umount "$mnt"
    [ -z "$loop" ] || losetup -d "$loop"
    loop=
}
trap 'release; rmdir "$mnt"' EXIT
fill() { head -c "$2M" /dev/urandom > "$1"; }
with_ntfs() { # MiB of the disk
    rm -f "$disk"
    truncate -s "$1M" "$disk"
    printf 'label: dos\nstart=2048, size=%s, type=7\n' $((($1 - 2) * 2048)) | sfdisk -q "$disk"
    loop=$(losetup --show -f -o 1M --sizelimit $((($1 - 2) << 20)) "$disk")
    mkntfs -qQF -c 4096 -s 512 -p 2048 -H 255 -S 63 "$loop" >/dev/null
    mount -t ntfs-3g "$loop" "$mnt"
}
done_with_ntfs() { sync -f "$mnt"; release; chmod a+r "$disk"; }
"#;

/// A folder of `$1` copies of the disk `$2`.
const FOLDER: &str = r#"
rm -rf "$disk"
mkdir "$disk"
for i in $(seq "$1"); do cp --sparse=always "$2" "$disk/disk $i.raw"; done
chmod -R a+rX "$disk"
"#;

/// No file system, and no two bytes that tell anything of each other.
const RANDOM_BYTES: &str = r#"
rm -f "$disk"
head -c "$1M" /dev/urandom > "$disk"
chmod a+r "$disk"
"#;

/// ext4 half of whose files were deleted; `$2` is how many files of 16 MiB there were.
const STALE: &str = r#"
mib=$1 count=$2
rm -f "$disk"
truncate -s "${mib}M" "$disk"
mkfs.ext4 -q -F "$disk"
mount -o loop "$disk" "$mnt"
for i in $(seq "$count"); do fill "$mnt/$i" 16; done
sync
for i in $(seq 1 2 "$count"); do rm "$mnt/$i"; done
umount "$mnt"
chmod a+r "$disk"
"#;

/// The like of the file system `$1` on `$2` MiB, with `$3` files.
const HALF_STALE: &str = r#"
kind=$1 mib=$2 count=$3
rm -f "$disk"
truncate -s "${mib}M" "$disk"
loop=$(losetup --show -f "$disk")
case $kind in
    exfat) mkfs.exfat "$loop" > /dev/null; mount.exfat-fuse "$loop" "$mnt" > /dev/null 2>&1 ;;
    *) "mkfs.$kind" -q "$loop"; mount "$loop" "$mnt" ;;
esac
for i in $(seq "$count"); do fill "$mnt/$i" 16; done
sync
for i in $(seq 1 2 "$count"); do rm "$mnt/$i"; done
umount "$mnt"
release
chmod a+r "$disk"
"#;

/// A disk of `$1` MiB with a volume group on its one partition: ext4 on `$2` MiB, with `$3` files of 16 MiB of which half were deleted,
/// and `$4` MiB of swap, all of it written once.
const HALF_STALE_LVM: &str = r#"
mib=$1 root=$2 count=$3 swap=$4
rm -f "$disk"
truncate -s "${mib}M" "$disk"
printf 'label: gpt\nstart=2048, size=%s, type=E6D6D379-F507-44C2-A23C-238F2A3DF928\n' $(((mib - 2) * 2048)) | sfdisk -q "$disk"
loop=$(losetup --show -f -o 1M --sizelimit $(((mib - 2) << 20)) "$disk")
config="devices { dir=\"/dev\" scan_lvs=0 use_devicesfile=0 filter=[\"a|^$loop\$|\",\"r|.*|\"] }
activation { udev_sync=0 udev_rules=0 monitoring=0 } global { use_lvmlockd=0 use_lvmpolld=0 } backup { backup=0 archive=0 }"
export LVM_SUPPRESS_FD_WARNINGS=1
tool() { "$@" --config "$config" --driverloaded n > /dev/null 2>&1; }
tool vgcreate -q --dataalignment 1m vg0 "$loop"
tool lvcreate -an -Zn -Wn -n root -L "${root}m" vg0
tool lvcreate -an -Zn -Wn -n swap -L "${swap}m" vg0
losetup -d "$loop"
loop=$(losetup --show -f -o $(((root + 2) << 20)) --sizelimit $((swap << 20)) "$disk")
head -c "${swap}M" /dev/urandom > "$loop"
mkswap "$loop" > /dev/null 2>&1
losetup -d "$loop"
loop=$(losetup --show -f -o 2M --sizelimit $((root << 20)) "$disk")
mkfs.ext4 -q "$loop"
mount "$loop" "$mnt"
for i in $(seq "$count"); do fill "$mnt/$i" 16; done
sync
for i in $(seq 1 2 "$count"); do rm "$mnt/$i"; done
umount "$mnt"
release
chmod a+r "$disk"
"#;

/// NTFS with few files, in a VHD that has storage for every byte.
const FULL_VHD: &str = r#"
mib=$1 files=$2
with_ntfs "$mib"
for i in $(seq 10); do head -c $((files * 100000)) /dev/urandom > "$mnt/file $i"; done
done_with_ntfs
mv "$disk" "$disk.raw"
qemu-img convert -f raw -O vpc -S 0 -o subformat=fixed,force_size=on "$disk.raw" "$disk"
rm "$disk.raw"
dd if="$disk" of="$disk.full" bs=1M status=none
mv "$disk.full" "$disk"
chmod a+r "$disk"
"#;

/// NTFS after years: files of many sizes written and deleted in turns, so that what is left is scattered.
const AGED: &str = r#"
mib=$1 live=$2 stale=$3 page=$4
with_ntfs "$mib"
pieces=200
for i in $(seq $pieces); do
    head -c $(((stale << 20) / pieces)) /dev/urandom > "$mnt/stale $i"
    for j in 1 2 3 4; do
        head -c $(((live << 20) * j / pieces / 20)) /dev/urandom > "$mnt/live $i $j"
    done
    head -c $(((live << 20) / pieces / 2)) /dev/urandom > "$mnt/live $i"
done
fill "$mnt/pagefile.sys" "$page"
sync -f "$mnt"
rm "$mnt"/stale*
done_with_ntfs
"#;

/// No waste and no file system: programs and libraries as they lie on this machine, and as many bytes that do not
/// compress.
const DENSE: &str = r#"
mib=$1
rm -f "$disk"
half=$((mib / 2))
# `head` ends the loop by closing the pipe.
{
    while find /usr/lib /usr/bin -type f -size +64k -print0 | sort -z | xargs -0 cat; do :; done 2>/dev/null || true
} | head -c "${half}M" > "$disk" || true
head -c $((mib - half))M /dev/urandom >> "$disk"
truncate -s "${mib}M" "$disk"
chmod a+r "$disk"
"#;

/// A volume with many files, some in pieces: `$1` is the file system, then MiB of the volume, the number of files, and
/// the most bytes of each. There is no partition table, so that every tool can read the file as it is.
const MANY_FILES: &str = r#"
kind=$1 mib=$2 files=$3 bytes=$4
rm -f "$disk"
truncate -s "${mib}M" "$disk"
if [ "$kind" = ntfs ]; then
    mkntfs -qQF -c 4096 "$disk" >/dev/null 2>&1
    mount -t ntfs-3g "$disk" "$mnt"
else
    case $kind in
        ext4) mkfs.ext4 -qF -N $((files + files / 50 + 1000)) -E lazy_itable_init=0,lazy_journal_init=0 "$disk" ;;
        *) "mkfs.$kind" -qf "$disk" ;;
    esac
    mount -o loop "$disk" "$mnt"
fi
python3 - "$mnt" "$files" "$bytes" <<'END'
import os, sys
root, count, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
data = os.urandom(most)
for folder in range(0, count, 100):
    path = f"{root}/{folder // 10000}/{folder}"
    os.makedirs(path)
    for number in range(folder, min(folder + 100, count)):
        with open(f"{path}/file {number}.dat", "wb", buffering=0) as file:
            file.write(data[:number * 7919 % most])
# Logs that grow in turns.
logs = [os.open(f"{root}/{number}.log", os.O_WRONLY | os.O_CREAT) for number in range(20)]
for turn in range(50):
    for log in logs:
        os.write(log, data[:4096])
        os.fsync(log)
END
sync -f "$mnt"
umount "$mnt"
chmod a+r "$disk"
"#;

/// A volume after years: `$1` is `ntfs` or `ext4`, then MiB of the volume, the number of small files, the number of large
/// ones, and percent of the volume that are full in the end. Large files lie in the gaps that others left.
const AGED_FILES: &str = r#"
kind=$1 mib=$2 files=$3 large=$4 full=$5
rm -f "$disk"
truncate -s "${mib}M" "$disk"
if [ "$kind" = ntfs ]; then
    mkntfs -qQF -c 4096 "$disk" >/dev/null 2>&1
    mount -t ntfs-3g "$disk" "$mnt"
else
    mkfs.ext4 -qF -m 0 -N $((files * 5 / 4 + 20000)) -E lazy_itable_init=0,lazy_journal_init=0 "$disk"
    mount -o loop "$disk" "$mnt"
fi
python3 - "$mnt" "$files" "$large" "$full" <<'END'
import os, sys
root, count, large, full = sys.argv[1], *map(int, sys.argv[2:])
data = os.urandom(1 << 20)
def write(path, size, at=0):
    with open(path, "wb", buffering=0) as file:
        while size > 0:
            size -= file.write(data[at:at + min(size, len(data) - at)])
            at = 0
for folder in range(0, count, 100):
    path = f"{root}/{folder // 10000}/{folder}"
    os.makedirs(path)
    for number in range(folder, min(folder + 100, count)):
        write(f"{path}/file {number}.dat", number * 7919 % 12000, number * 61 % 1000000)
# Logs that grow in turns.
logs = [os.open(f"{root}/{number}.log", os.O_WRONLY | os.O_CREAT) for number in range(20)]
for turn in range(50):
    for log in logs:
        os.write(log, data[:4096])
        os.fsync(log)
def free():
    state = os.statvfs(root)
    return state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize
# What fills the rest, in pieces of 16 to 64 KiB, of which then every other goes.
os.makedirs(f"{root}/fill")
fillers = []
while free()[0] > free()[1] // 50 + (2 << 20):
    path = f"{root}/fill/{len(fillers)}"
    write(path, 16384 + len(fillers) * 4096 % 49152)
    fillers.append(path)
os.sync()
for path in fillers[::2]:
    os.remove(path)
os.sync()
# Each large file has gaps of its own.
room, total = free()
left = total * (100 - full) // 100
each = (room - left) // large
each -= each % 4096
for number in range(large):
    write(f"{root}/large {number}.dat", each)
    os.sync()
END
sync -f "$mnt"
umount "$mnt"
chmod a+r "$disk"
"#;

/// NTFS in which few files are fragmented: MiB of the volume, the number of files, of those in very many pieces, and of those
/// in a few. What grows in turns is written by clusters.
const FRAGMENTED_NTFS: &str = r#"
mib=$1 files=$2 many=$3 few=$4
rm -f "$disk"
truncate -s "${mib}M" "$disk"
mkntfs -qQF -c 4096 "$disk" >/dev/null 2>&1
mount -t ntfs-3g "$disk" "$mnt"
python3 - "$mnt" "$files" "$many" "$few" <<'END'
import os, sys
root, count, many, few = sys.argv[1], *map(int, sys.argv[2:])
data = os.urandom(1 << 16)
for folder in range(0, count - many - few, 100):
    path = f"{root}/{folder // 10000}/{folder}"
    os.makedirs(path)
    for number in range(folder, min(folder + 100, count - many - few)):
        with open(f"{path}/file {number}.dat", "wb", buffering=0) as file:
            file.write(data[:number * 7919 % 12000])
def grow(group, turns):
    # Each is opened anew for each turn: the driver keeps no room for it meanwhile.
    for turn in range(turns):
        for path in group:
            with open(path, "ab", buffering=0) as file:
                file.write(data[:4096])
grow([f"{root}/many {number}.log" for number in range(many)], 34 if many < 24 else 826 // 20)
grow([f"{root}/many {number}.log" for number in range(2)], 785)
grow([f"{root}/few {number}.log" for number in range(few)], 2)
END
sync -f "$mnt"
umount "$mnt"
chmod a+r "$disk"
"#;

/// ext4 with files that grew in turns: MiB of the volume, the number of files, and MiB of all of them.
const GROWN_EXT4: &str = r#"
mib=$1 files=$2 grown=$3
rm -f "$disk"
truncate -s "${mib}M" "$disk"
mkfs.ext4 -qF -E lazy_itable_init=0,lazy_journal_init=0 "$disk"
mount -o loop "$disk" "$mnt"
python3 - "$mnt" "$files" "$grown" <<'END'
import os, sys
root, count, mib = sys.argv[1], *map(int, sys.argv[2:])
data = os.urandom(1 << 16)
files = [os.open(f"{root}/{number}.log", os.O_WRONLY | os.O_CREAT) for number in range(count)]
for turn in range((mib << 20) // count // len(data)):
    for file in files:
        os.write(file, data)
        os.fdatasync(file)
END
sync -f "$mnt"
umount "$mnt"
chmod a+r "$disk"
"#;

/// Small files that lie in no order: `$1` is `ntfs` or `ext4`, then MiB of the volume and the number of files, of 4 KiB in the mean. Each of
/// them is in one piece.
const UNSORTED_FILES: &str = r#"
kind=$1 mib=$2 files=$3
rm -f "$disk"
truncate -s "${mib}M" "$disk"
if [ "$kind" = ntfs ]; then
    mkntfs -qQF -c 4096 "$disk" >/dev/null 2>&1
    mount -t ntfs-3g "$disk" "$mnt"
else
    mkfs.ext4 -qF -N $((files + files / 50 + 1000)) -E lazy_itable_init=0,lazy_journal_init=0 "$disk"
    mount -o loop "$disk" "$mnt"
fi
python3 - "$mnt" "$files" <<'END'
import os, random, sys
root, count = sys.argv[1], int(sys.argv[2])
data, numbers = os.urandom(8192), list(range(count))
random.Random(7).shuffle(numbers)
for folder in range(0, count, 100):
    os.makedirs(f"{root}/{folder}")
for turn, number in enumerate(numbers):
    with open(f"{root}/{number // 100 * 100}/file {number}.dat", "wb", buffering=0) as file:
        file.write(data[:1 + number * 7919 % 8192])
    # What is written together is laid out together: in the order in which it was written.
    if turn % 100 == 0:
        os.sync()
# Every tenth goes again, so that the free space is in pieces.
for number in numbers[::10]:
    os.remove(f"{root}/{number // 100 * 100}/file {number}.dat")
END
sync -f "$mnt"
umount "$mnt"
chmod a+r "$disk"
"#;

/// NTFS, so full, with files that grew in turns: MiB of the volume, percent, the number of files, KiB of each turn.
const IN_TURNS: &str = r#"
mib=$1 percent=$2 files=$3 kib=$4
rm -f "$disk"
truncate -s "${mib}M" "$disk"
mkntfs -qQF -c 4096 "$disk" >/dev/null 2>&1
mount -t ntfs-3g "$disk" "$mnt"
python3 - "$mnt" "$percent" "$files" "$kib" <<'END'
import os, sys
root, percent, count, kib = sys.argv[1], *map(int, sys.argv[2:])
files = [open(f"{root}/{number}.log", "wb", buffering=0) for number in range(count)]
def is_full():
    state = os.statvfs(root)
    return (state.f_blocks - state.f_bfree) * 100 >= state.f_blocks * percent
while not is_full():
    for file in files:
        file.write(os.urandom(kib << 10))
END
sync -f "$mnt"
umount "$mnt"
chmod a+r "$disk"
"#;

/// A folder with an aged ext4 of `$2` MiB that is backed up by `$1` and by restic, each into a repository of its own: files that grew in
/// turns, of `$3` MiB together, of which a third is gone, and one of `$4` MiB, which restic has as a file as well. Half of each block of 4 KiB compresses.
const BACKED_UP: &str = r#"
program=$1 mib=$2 grown=$3 one=$4
rm -rf "$disk"
mkdir "$disk"
raw=$disk/disk.raw
truncate -s "${mib}M" "$raw"
mkfs.ext4 -qF -E lazy_itable_init=0,lazy_journal_init=0 "$raw"
mount -o loop "$raw" "$mnt"
python3 - "$mnt" "$grown" "$one" <<'END'
import os, random, sys
root, grown, one = sys.argv[1], *map(int, sys.argv[2:])
chance = random.Random(7)
words = [b"words", b"that", b"come", b"again", b"and", b"again"]
texts = [b" ".join(chance.choice(words) for _ in range(700))[:2048] for _ in range(64)]
def data(length):
    noise = chance.randbytes(length // 2)
    return b"".join(noise[at:at + 2048] + texts[noise[at] % 64] for at in range(0, len(noise), 2048))
left, group = grown << 20, 0
while left > 0:
    sizes = [min(chance.choice([64, 512, 4096, 16384]) << 10, (grown << 20) // 12) for _ in range(6)]
    files = [[f"{root}/{group} {number}", size] for number, size in enumerate(sizes)]
    while any(size for _, size in files):
        for file in files:
            part = min(file[1], chance.choice([16, 64, 256, 1024]) << 10)
            file[1] -= part
            left -= part
            with open(file[0], "ab", buffering=0) as out:
                out.write(data(part))
                os.fdatasync(out)
    os.remove(files[0][0])
    os.remove(files[3][0])
    group += 1
with open(f"{root}/file.bin", "wb", buffering=0) as out:
    for _ in range(one):
        out.write(data(1 << 20))
END
sync -f "$mnt"
export RESTIC_PASSWORD=password
printf %s "$RESTIC_PASSWORD" > "$disk/password"
quiet() { "$@" > /dev/null; }
quiet restic -q --no-cache init -r "$disk/restic-file"
quiet restic -q --no-cache -r "$disk/restic-file" backup --stdin --stdin-filename file.bin < "$mnt/file.bin"
umount "$mnt"
quiet restic -q --no-cache init -r "$disk/restic"
quiet restic -q --no-cache -r "$disk/restic" backup --stdin --stdin-filename disk.raw < "$raw"
quiet "$program" backup "$raw" -f raw --repo "$disk/leandisk" --init --password-file "$disk/password"
rm "$raw"
chmod -R a+rwX "$disk"
"#;

/// Two generations of the NTFS of the disk `$2`, as raw images and as QCOW2 with a bitmap; between them the guest wrote `$3` MiB over what its files had (`facts` has
/// the bytes), and the first is backed up by the program `$1` and by restic.
const GENERATIONS: &str = r#"
program=$1 raw=$2 changed=$3
rm -rf "$disk"
mkdir -p "$disk/first" "$disk/second"
export RESTIC_PASSWORD=password
printf %s "$RESTIC_PASSWORD" > "$disk/password"
quiet() { "$@" > /dev/null; }
for repo in empty leandisk restic bitmap; do quiet restic -q --no-cache init -r "$disk/$repo"; done
BORG_BASE_DIR=$disk/borg.base BORG_PASSPHRASE=$RESTIC_PASSWORD borg init -e repokey-blake2 "$disk/borg"
backup() { quiet "$program" backup "$@" --password-file "$disk/password"; }
for folder in first second; do cp --sparse=always "$raw" "$disk/$folder/disk.raw"; done
qemu-img convert -f raw -O qcow2 "$raw" "$disk/second/disk.qcow2"
qemu-img bitmap --add "$disk/second/disk.qcow2" daily
(cd "$disk/first" && quiet restic -q --no-cache -r ../restic backup disk.raw)
backup "disk=$disk/first/disk.raw" -f raw --repo "$disk/leandisk"
backup "disk=$disk/second/disk.qcow2" --bitmap daily --repo "$disk/bitmap"
loop=$(losetup --show -f -o 1M "$disk/second/disk.raw")
mount -t ntfs-3g "$loop" "$mnt"
python3 - "$mnt" "$changed" <<'END'
import os, sys
root, left = sys.argv[1], int(sys.argv[2])
names = sorted(name for name in os.listdir(root) if name.startswith("live"))
while left > 0:
    for name in names[::max(1, len(names) // left)][:left]:
        with open(f"{root}/{name}", "r+b", buffering=0) as file:
            room = os.path.getsize(file.name)
            file.seek(max(0, room // 2 - (left << 16)))
            file.write(os.urandom(min(1 << 20, room - file.tell())))
        left -= 1
END
sync -f "$mnt"
release
# The same writes to the QCOW2.
python3 - "$disk/first/disk.raw" "$disk/second/disk.raw" "$disk/second/disk.qcow2" "$disk/part" > "$disk/facts" <<'END'
import json, subprocess, sys
STEP = 64 << 10
before, after, image, part = sys.argv[1:]
with open(before, "rb") as old, open(after, "rb") as new:
    at, runs = 0, []
    while data := new.read(STEP):
        if data != old.read(STEP):
            if runs and runs[-1][1] == at and at - runs[-1][0] < 1 << 20:
                runs[-1][1] = at + len(data)
            else:
                runs.append([at, at + len(data)])
        at += len(data)
    commands = []
    for start, end in runs:
        new.seek(start)
        with open(f"{part}.{start}", "wb") as out:
            out.write(new.read(end - start))
        commands += ["-c", f"write -q -s {part}.{start} {start} {end - start}"]
for at in range(0, len(commands), 400):
    subprocess.run(["qemu-io", "-f", "qcow2", *commands[at:at + 400], image], check=True, stdout=subprocess.DEVNULL)
print(json.dumps({"changed_bytes": sum(end - start for start, end in runs)}))
END
rm -f "$disk/part."*
qemu-img compare -q "$disk/second/disk.raw" "$disk/second/disk.qcow2"
chmod -R a+rwX "$disk"
"#;

/// The disk `$2`, backed up by the program `$1` and by restic, and the same after files in pieces were put together. `facts` has the bytes of these.
const PUT_TOGETHER: &str = r#"
program=$1 raw=$2
rm -rf "$disk"
mkdir -p "$disk/first" "$disk/second"
export RESTIC_PASSWORD=password
printf %s "$RESTIC_PASSWORD" > "$disk/password"
quiet() { "$@" > /dev/null; }
for repo in leandisk restic; do quiet restic -q --no-cache init -r "$disk/$repo"; done
for folder in first second; do cp --sparse=always "$raw" "$disk/$folder/disk.raw"; done
(cd "$disk/first" && quiet restic -q --no-cache -r ../restic backup disk.raw)
quiet "$program" backup "disk=$disk/first/disk.raw" -f raw --repo "$disk/leandisk" --password-file "$disk/password"
"$program" analyze "$raw" -f raw --json | python3 -c '
import json, sys
volumes = json.load(sys.stdin)["volumes"]
print(json.dumps({"fragmented_bytes": sum(volume["fragmented_files_bytes"] for volume in volumes)}))
' > "$disk/facts"
quiet "$program" defrag "$disk/second/disk.raw" -f raw --json
rm -r "$disk/first"
chmod -R a+rwX "$disk"
"#;

const CONVERTED: &str = r#"
qemu-img convert -f raw -O "$2" "$1" "$disk"
chmod a+r "$disk"
"#;

impl Inputs {
    /// Disks in `dir` of this scale.
    pub(crate) fn new(dir: &Path, scale: Scale) -> Self {
        Self { dir: dir.to_owned(), scale }
    }

    /// A target's path.
    pub(super) fn target(&self, name: &str) -> PathBuf {
        self.dir.join(format!("target.{name}"))
    }

    fn input(&self, name: &str, extension: &str, script: &'static str, args: &[u32]) -> Input {
        let args: Vec<_> = args.iter().map(ToString::to_string).collect();
        let path = self.dir.join(format!("{name}-{}.{extension}", args.join("-")));
        Input { path, script, args, needs: None }
    }

    /// Whether figures mean nothing, and only that everything runs is of interest.
    pub(super) fn is_tiny(&self) -> bool {
        self.scale.0 < 0.01
    }

    /// A disk of random bytes, to be served.
    pub(super) fn served(&self) -> Input {
        self.input("served", "raw", RANDOM_BYTES, &[self.scale.mib(1024, 16)])
    }

    /// A disk that is copied in no time.
    pub(super) fn smallest(&self) -> Input {
        self.input("smallest", "raw", RANDOM_BYTES, &[1])
    }

    /// The size of [`Self::served`].
    pub(super) fn served_bytes(&self) -> u64 {
        u64::from(self.scale.mib(1024, 16)) << 20
    }

    /// Milliseconds for which it is asked.
    pub(super) fn served_ms(&self) -> u32 {
        if self.is_tiny() { 200 } else { 1000 * self.scale.mib(4, 1) }
    }

    /// 20 GiB of ext4 of which three fifths were written, and half of that deleted.
    pub(super) fn stale(&self) -> Input {
        let mib = self.scale.mib(20 << 10, 160);
        self.input("stale-ext4", "raw", STALE, &[mib, mib / 16 * 3 / 5])
    }

    /// 8 GiB of the file system `kind`, of which three fifths were written, and half of that deleted.
    pub(super) fn half_stale(&self, kind: &str) -> Stale {
        let mib = self.scale.mib(8 << 10, 320);
        let args = vec![kind.to_owned(), mib.to_string(), (mib / 16 * 3 / 5).to_string()];
        let path = self.dir.join(format!("stale-{}.raw", args.join("-")));
        Stale {
            input: Input { path, script: HALF_STALE, args, needs: None },
            len_bytes: u64::from(mib) * MIB,
        }
    }

    /// 20 GiB with ext4 like this on a logical volume, and 1 GiB of swap on another.
    pub(super) fn half_stale_lvm(&self) -> Stale {
        let (mib, swap) = (self.scale.mib(20 << 10, 160) / 4 * 4, self.scale.mib(1024, 8) / 4 * 4);
        let root = mib - swap - 16;
        Stale {
            input: self.input("stale-lvm", "raw", HALF_STALE_LVM, &[mib, root, mib / 16 * 3 / 5, swap]),
            len_bytes: u64::from(root) * MIB,
        }
    }

    /// 4 GiB of fixed VHD, 30 MB of files.
    pub(super) fn full_vhd(&self) -> Input {
        self.input("full", "vhd", FULL_VHD, &[self.scale.mib(4096, 64), self.files_mb()])
    }

    /// Megabytes of files in it.
    pub(super) fn files_mb(&self) -> u32 {
        self.scale.mib(30, 5)
    }

    /// 20 GiB of raw disk of which 6.8 GB are allocated: 3.8 GB of files, 2 GB stale, and 1 GB of page file.
    pub(super) fn aged(&self) -> Input {
        let mib = |full, least| self.scale.mib(full, least);
        self.input("aged", "raw", AGED, &[mib(20_480, 160), mib(3625, 40), mib(1900, 14), mib(954, 8)])
    }

    /// 4 GiB of raw disk without waste.
    pub(super) fn dense(&self) -> Input {
        self.input("dense", "raw", DENSE, &[self.scale.mib(4096, 32)])
    }

    /// The same in a format that qemu-img calls so, with our extension.
    pub(super) fn dense_as(&self, extension: &str, format: &str) -> Input {
        let raw = self.dense();
        let args = vec![raw.path.display().to_string(), format.to_owned()];
        let path = raw.path.with_extension(extension);
        Input { path, script: CONVERTED, args, needs: Some(Box::new(raw)) }
    }

    /// 3 GiB of NTFS with 150,000 files.
    pub(super) fn many_ntfs(&self) -> Input {
        self.many("ntfs", self.scale.mib(3072, 128), self.file_count(), 16_000)
    }

    /// 3 GiB of ext4, XFS or Btrfs with as many.
    pub(super) fn many_linux(&self, kind: &str) -> Input {
        self.many(
            kind,
            self.scale.mib(3072, if kind == "ext4" { 128 } else { 384 }),
            self.file_count(),
            16_000,
        )
    }

    /// ext4 with 150,000 files of a block at most.
    pub(super) fn small_ext4(&self) -> Input {
        self.many("ext4", self.scale.mib(8192, 192), self.file_count(), 4096)
    }

    /// The same with 1,000,000 files. Needs [`Self::small_ext4`], to be compared with.
    pub(super) fn million_ext4(&self) -> Input {
        let files = self.scale.mib(1_000_000, 7000);
        let mut input = self.many("ext4", self.scale.mib(8192, 192), files, 4096);
        input.needs = Some(Box::new(self.small_ext4()));
        input
    }

    /// 200 disks of 64 MiB with ext4 and 1000 files each.
    pub(super) fn folder(&self) -> Input {
        let one = self.many("ext4", 64, 1000, 4096);
        let args = vec![self.scale.mib(200, 8).to_string(), one.path.display().to_string()];
        let path = self.dir.join(format!("folder-{}", args[0]));
        Input { path, script: FOLDER, args, needs: Some(Box::new(one)) }
    }

    /// Files of the volumes with many.
    pub(super) fn file_count(&self) -> u32 {
        self.scale.mib(150_000, 1000)
    }

    fn many(&self, kind: &str, mib: u32, files: u32, bytes: u32) -> Input {
        let args = vec![kind.to_owned(), mib.to_string(), files.to_string(), bytes.to_string()];
        let path = self.dir.join(format!("many-{}.raw", args.join("-")));
        Input { path, script: MANY_FILES, args, needs: None }
    }

    /// An aged volume of 3 GiB with 150,000 small files and 8 large ones, so full.
    pub(crate) fn aged_volume(&self, kind: &str, percent: u32) -> Input {
        let (mib, files) = (self.scale.mib(3072, 96), self.scale.mib(150_000, 1000));
        let numbers = [mib, files, self.scale.mib(8, 2), percent];
        let mut args = vec![kind.to_owned()];
        args.extend(numbers.iter().map(ToString::to_string));
        let path = self.dir.join(format!("agedfiles-{}.raw", args.join("-")));
        Input { path, script: AGED_FILES, args, needs: None }
    }

    /// NTFS with 105,000 files, of which 308 are fragmented, 24 of them in up to 826 pieces.
    pub(super) fn fragmented_ntfs(&self) -> Input {
        let numbers = [
            self.scale.mib(2048, 64),
            self.scale.mib(105_000, 1000),
            self.scale.mib(24, 3),
            self.scale.mib(284, 10),
        ];
        let args: Vec<_> = numbers.iter().map(ToString::to_string).collect();
        let path = self.dir.join(format!("fragmented-ntfs-{}.raw", args.join("-")));
        Input { path, script: FRAGMENTED_NTFS, args, needs: None }
    }

    /// NTFS of 2 GiB, 78 % full, with 64 files that were written in turns by 64 KiB.
    pub(super) fn in_turns(&self) -> Input {
        self.input("in-turns", "raw", IN_TURNS, &[self.scale.mib(2048, 96), 78, self.scale.mib(64, 8), 64])
    }

    /// ext4 of 512 MiB with 352 MiB in 22 fragmented files.
    pub(super) fn grown_ext4(&self) -> Input {
        let numbers = [self.scale.mib(512, 64), 22, self.scale.mib(352, 22)];
        self.input("grown-ext4", "raw", GROWN_EXT4, &numbers)
    }

    /// A volume of 256 MiB on which 11,000 small files, 44 MB, lie in no order, but for those of them that are gone.
    pub(super) fn unsorted(&self, kind: &str) -> Input {
        let numbers = [self.scale.mib(256, 64), self.scale.mib(12_222, 1000)];
        let args: Vec<_> =
            std::iter::once(kind.to_owned()).chain(numbers.iter().map(ToString::to_string)).collect();
        let path = self.dir.join(format!("unsorted-{}.raw", args.join("-")));
        Input { path, script: UNSORTED_FILES, args, needs: None }
    }

    /// The repositories of a disk of 8 GiB with 2.7 GiB of files that was backed up by `program` and by restic. A file of it has 1 GiB.
    pub(super) fn backed_up(&self, program: &Path) -> Input {
        let numbers = [self.scale.mib(8192, 96), self.scale.mib(2560, 16), self.scale.mib(1024, 8)];
        let numbers: Vec<_> = numbers.iter().map(ToString::to_string).collect();
        let path = self.dir.join(format!("backed-up-{}", numbers.join("-")));
        let args = std::iter::once(program.display().to_string()).chain(numbers).collect();
        Input { path, script: BACKED_UP, args, needs: None }
    }

    /// Two generations of [`Self::aged`], the first of which is backed up by `program` and by restic.
    pub(super) fn generations(&self, program: &Path) -> Input {
        let aged = self.aged();
        let changed = self.scale.mib(100, 4).to_string();
        let path = self.dir.join(format!("generations-{}-{changed}", self.scale.0));
        let args = vec![program.display().to_string(), aged.path.display().to_string(), changed];
        Input { path, script: GENERATIONS, args, needs: Some(Box::new(aged)) }
    }

    /// A volume of [`Self::aged_volume`] before and after `program` defragmented it, backed up before by it and by restic.
    pub(super) fn put_together(&self, program: &Path) -> Input {
        let aged = self.aged_volume("ntfs", 80);
        let path = self.dir.join(format!("put-together-{}", self.scale.0));
        let args = vec![program.display().to_string(), aged.path.display().to_string()];
        Input { path, script: PUT_TOGETHER, args, needs: Some(Box::new(aged)) }
    }

    /// Removes what runs have made; the disks stay.
    pub(super) fn remove_targets(&self) -> Result<()> {
        shell_as_root("rm -rf -- \"$1\"/target.*", &[self.dir.to_str().context("a path in UTF-8")?]).map(drop)
    }
}
