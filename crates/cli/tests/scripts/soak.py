"""A busy program that knows what each of its files must be: python3 soak.py FOLDER SEED ABLE

Works below FOLDER, the same for the same SEED (as far as others do not change what fails). ABLE is a list of what the file system can
(ext4, xfs, btrfs, reflink). It obeys lines of its input: `go`, `calm` and `short` (whether the file system may run out of room), `pause` (every file
is closed), `judge` (compares everything with its model), `leave` and `enter` (for an unmount) and `end`. It answers each, `judged` with counts, and says
`wrong: ...` for each thing that is.

The model of a file: its bytes, the state of each block of 4 KiB (hole, reserved, written, perhaps reserved, or a hole that came to be past what was
the end, where a file system or a guard may have had room), mode, capabilities and times that were set. What
it promises itself by reserving must be there afterwards, and nothing more. Holes that are punched where the end was a moment ago are of the
last kind, too: no call reserves room only if the file still ends where it did, so what a guard decided to reserve past the end may arrive after
the hole was punched.

A file's time of modification is never before its last change: what succeeded, and what failed but changed something all the same. What
failed and changed nothing promises no time. On Btrfs a write without room leaves its time in memory alone, and the file has the one
before again once the file system was unmounted; so either may be there.
"""
import collections
import ctypes
import faulthandler
import fcntl
import json
import mmap
import os
import queue
import random
import signal
import sqlite3
import stat
import struct
import subprocess
import sys
import traceback
import threading
import time

root, seed, able = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(",")
random.seed(seed)
on_ext4, on_xfs, on_btrfs = "ext4" in able, "xfs" in able, "btrfs" in able
BLOCK = 4096
HOLE, KEPT, DATA, MAYBE, GAP = range(5)
KIB, MIB = 1 << 10, 1 << 20
SIZE_MAX = 6 * MIB
FILES_MAX = 28
KEEP_SIZE, PUNCH_HOLE = 1, 2
FICLONE = 0x40049409
FS_IOC_FIEMAP, FS_IOC_GETFLAGS, FS_IOC_SETFLAGS = 0xC020660B, 0x80086601, 0x40086602
APPEND_FL, IMMUTABLE_FL, NOCOW_FL = 0x20, 0x10, 0x800000
# `struct vfs_cap_data`, version 2: cap_net_raw, permitted and effective.
CAPABILITIES = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)
# Out of room, of quota, or of an extent that is too far out.
SHORTAGES = (28, 122)
# `CLOCK_REALTIME_COARSE` (clock_gettime(2)).
REALTIME_COARSE = 5
# Seconds within which what a guard decided to reserve arrives.
ARRIVES = 2
libc = ctypes.CDLL(None, use_errno=True)
counts = {"steps": 0, "shortages": 0, "unannounced": 0, "late_times": 0, "files": 0, "snapshots": 0, "pinned_bytes": 0, "gap_bytes": 0, "own_of_xfs_bytes": 0, "kept_for_capabilities_bytes": 0}
wrong_count = 0


def wrong(what):
    global wrong_count
    wrong_count += 1
    print("wrong: seed %d step %d: %s" % (seed, counts["steps"], what), flush=True)


def fallocate(fd, mode, at, size):
    if libc.fallocate(fd, mode, ctypes.c_int64(at), ctypes.c_int64(size)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def fiemap(fd):
    """What has storage: (start, end, flags) each. What waits in memory is written first."""
    found, start = [], 0
    while True:
        request = bytearray(struct.pack("=QQIIII", start, (1 << 64) - 1 - start, 1, 0, 256, 0)) + bytearray(256 * 56)
        fcntl.ioctl(fd, FS_IOC_FIEMAP, request)
        count = struct.unpack_from("=I", request, 20)[0]
        for index in range(count):
            logical, _, length, _, _, flags = struct.unpack_from("=QQQQQI", request, 32 + index * 56)
            found.append((logical, logical + length, flags))
            start = logical + length
            if flags & 1:
                return found
        if count == 0:
            return found


def data_map(fd, size):
    """What the kernel calls data, as (start, end). What is in memory would count as data, even if it was only read."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    found, at = [], 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            break
        at = os.lseek(fd, start, os.SEEK_HOLE)
        found.append((start, at))
    return found


def clock():
    """What the kernel stamps from now on is not before this, which is the clock that it stamps by, however late that is."""
    return time.clock_gettime_ns(REALTIME_COARSE)


class File:
    def __init__(self, path):
        self.path, self.fd = path, None
        self.data, self.blocks = bytearray(), bytearray()
        # A time that was set, unless something changed since.
        self.time = None
        # Not before the last change.
        self.written_at = 0
        # When something failed first since then, and the times that could not be set.
        self.tried_at, self.times_tried = None, set()
        self.mode, self.capabilities = None, None
        self.is_shared = False
        # What the kernel said once it was closed for good.
        self.seen_data = None
        # Flags that forbid to write it.
        self.flags = 0
        self.was_short = False
        # When it became longer last, and where it ended before: (time, size).
        self.grew = collections.deque(maxlen=64)
        # What was done to it last, for what is told of it if it is wrong.
        self.done = collections.deque(maxlen=40)

    # Opening waits for nobody longer than this.
    def open(self):
        if self.fd is None:
            began = time.monotonic()
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if time.monotonic() - began > 30:
                wrong("%s: opening it took %.1f s" % (self.path, time.monotonic() - began))
        return self.fd

    def close(self):
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def changed(self, began):
        """By what began then, or later."""
        self.time, self.seen_data = None, None
        self.written_at = began
        self.tried_at, self.times_tried = None, set()

    def tried(self, began):
        """Something began then that failed, and that changed nothing."""
        self.seen_data = None
        if self.tried_at is None:
            self.tried_at = began

    def may_be_of(self, modified):
        """Whether this is its time, or could be that of something that failed."""
        if modified in self.times_tried:
            return True
        if self.time is None:
            return modified >= self.written_at
        return modified == self.time or self.tried_at is not None and modified >= self.tried_at

    def did(self, what, at, size):
        self.done.append("%.3f %s %d+%d" % (time.monotonic(), what, at // BLOCK, size // BLOCK))

    def edge(self, at):
        """Btrfs writes zeros to a block in which a file ends or ended, also where nothing was written."""
        block = at // BLOCK
        if on_btrfs and at % BLOCK and block < len(self.blocks) and self.blocks[block] == HOLE:
            self.blocks[block] = MAYBE

    def grow_to(self, size):
        self.edge(len(self.data))
        if size > len(self.data):
            self.grew.append((time.monotonic(), len(self.data)))
            self.data.extend(bytes(size - len(self.data)))
        missing = -(-size // BLOCK) - len(self.blocks)
        self.blocks.extend(bytes([GAP]) * max(missing, 0))

    def end_lately(self):
        """Where it ended at the least a moment ago."""
        return min([size for when, size in self.grew if time.monotonic() - when < ARRIVES], default=len(self.data))

    def mark(self, start, end, state):
        first, last = start // BLOCK, -(-end // BLOCK)
        self.blocks.extend(bytes(max(last - len(self.blocks), 0)))
        for block in range(first, last):
            if state == DATA or self.blocks[block] in (HOLE, GAP) or (state == KEPT and self.blocks[block] == MAYBE):
                self.blocks[block] = state

    def written(self, at, content):
        self.grow_to(at + len(content))
        self.data[at:at + len(content)] = content
        self.mark(at, at + len(content), DATA)

    def write(self, at, content, fd=None):
        """As far as there is room."""
        old_size, done = len(self.data), 0
        try:
            while done < len(content):
                began = clock()
                count = os.pwrite(self.fd if fd is None else fd, content[done:], at + done)
                self.did("write", at + done, count)
                self.changed(began)
                self.written(at + done, content[done:done + count])
                done += count
        except OSError as error:
            self.tried(began)
            self.failed(error)
            # Room may have been found for what was not written; zeros may have got storage.
            self.mark(at + done, at + len(content), MAYBE)
            if old_size // BLOCK * BLOCK < at + done:
                self.mark(old_size, at + done, MAYBE)

    def failed(self, error):
        if error.errno not in SHORTAGES:
            raise error
        count_shortage()
        self.was_short = True


def content(size):
    return (random.randbytes(256) * (size // 256 + 1))[:size]


files, snapshots, number, is_short, calm_since, told = [], {}, 0, False, 0, 0


def count_shortage():
    """One that nobody announced is a guard's doing, or the file system's own: says how much is free and who has room past its end."""
    global told
    counts["shortages"] += 1
    if is_short:
        return
    counts["unannounced"] += 1
    if time.monotonic() < told + 1:
        return
    told = time.monotonic()
    facts = os.statvfs(root)
    print("no room, %.1f s after calm: %d MiB are free in %s" % (told - calm_since, facts.f_bavail * facts.f_frsize >> 20, traceback.extract_stack()[-4:-1]), file=sys.stderr)
    # Until then what filled it may still be on its way out.
    if told - calm_since > 5:
        wrong("there was no room, and nobody had said so")
    room = []
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                found = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            room.append((found.st_blocks * 512 - found.st_size, found.st_blocks * 512, name))
    print("all files have %d MiB; more than their length: %s" % (sum(has for _, has, _ in room) >> 20, sorted(room)[-12:]), file=sys.stderr)


def new_name():
    global number
    number += 1
    return "%d/f%d" % (number % 5, number)


def made():
    """A new file; that it is there is its first change."""
    file, began = File(new_name()), clock()
    file.open()
    file.changed(began)
    return file


def create():
    if len(files) >= FILES_MAX:
        return remove()
    file = made()
    kind = random.randrange(8)
    if kind == 0:
        # A promise to itself: guards leave it what it reserves.
        reserve(file, True, 0, random.choice([20 * KIB, 76 * KIB, 92 * KIB, 300 * KIB, 2 * MIB]))
    if kind == 1 and on_btrfs:
        set_flags(file, NOCOW_FL)
    file.write(0, content(int(2 ** random.uniform(8, 18))))
    if kind == 0 and len(file.blocks) * BLOCK > 80 * KIB and random.random() < 0.5:
        # Up to shortly before the end of what it reserved.
        file.write(len(file.data), content(max(0, min(len(file.blocks) * BLOCK - len(file.data) - 20 * KIB, MIB))))
    files.append(file)


def pick():
    """A file that may be written."""
    there = [file for file in files if not file.flags]
    return random.choice(there) if there else None


def appends():
    """Several files that grow in turns."""
    chosen = [file for file in random.sample(files, min(len(files), 4)) if not file.flags and len(file.data) < SIZE_MAX]
    for _ in range(random.randrange(1, 6)):
        for file in chosen:
            file.open()
            aligned = random.random() < 0.7
            file.write(len(file.data), content(random.choice([16, 64, 64, 128, 256]) * KIB - (0 if aligned else 100)))
            if random.random() < 0.3:
                os.fdatasync(file.fd)
        time.sleep(random.choice([0, 0.002, 0.01]))
    for file in chosen:
        if random.random() < 0.5:
            file.close()


def overwrite():
    if (file := pick()) and file.data:
        file.open()
        file.write(random.randrange(len(file.data)), content(int(2 ** random.uniform(0, 17))))


def sparse():
    if (file := pick()) and len(file.data) < SIZE_MAX:
        file.open()
        file.write(len(file.data) + random.randrange(1, 512 * KIB), content(random.randrange(1, 128 * KIB)))


def truncate():
    if file := pick():
        size = random.choice([0, len(file.data) // 2, random.randrange(1 + len(file.data)), len(file.data) + random.randrange(100 * KIB)])
        by_name, began = file.fd is None, clock()
        try:
            os.truncate(file.path, size) if by_name else os.ftruncate(file.fd, size)
        except OSError as error:
            file.tried(began)
            return file.failed(error)
        if by_name and size == len(file.data):
            # By its name, what stays as long as it is need not be stamped.
            file.tried(began)
        else:
            file.changed(began)
        file.did("truncate", size, 0)
        cut(file, size)


def cut(file, size):
    old = len(file.data)
    if size > old:
        # What is past the end may stay.
        for block in range(-(-old // BLOCK), len(file.blocks)):
            file.blocks[block] = MAYBE
    else:
        # It goes as well, also where the length stays.
        del file.blocks[-(-size // BLOCK):]
    file.edge(size)
    del file.data[size:]
    file.grow_to(size)
    if size > old and old % BLOCK and file.blocks[old // BLOCK] == KEPT:
        file.blocks[old // BLOCK] = MAYBE


def punched_until(file, end):
    """The block before which a hole ends. ext4 punches the block in which the file ends as a whole if the hole reaches past that end."""
    if on_ext4 and end > len(file.data):
        return max(end // BLOCK, -(-len(file.data) // BLOCK))
    return end // BLOCK


def punch():
    if (file := pick()) and file.data:
        file.open()
        start = random.randrange(len(file.data))
        size = random.randrange(1, 256 * KIB)
        old = bytes(file.data)
        end = min(start + size, len(file.data))
        lately = file.end_lately()
        began = clock()
        try:
            fallocate(file.fd, PUNCH_HOLE | KEEP_SIZE, start, size)
        except OSError as error:
            file.failed(error)
            # As far as it came.
            now = os.pread(file.fd, len(old), 0)
            file.tried(began) if now == old else file.changed(began)
            for at in range(start, end):
                if now[at] not in (old[at], 0):
                    return wrong("%s: %d bytes at %d are neither old nor zero" % (file.path, size, start))
            file.data[:] = now
            file.mark(start, end, MAYBE)
            for block in range(-(-start // BLOCK), punched_until(file, start + size)):
                if block < len(file.blocks):
                    file.blocks[block] = MAYBE
            return
        # Btrfs stamps no file of which nothing but holes was punched.
        file.changed(began) if any(old[start:end]) else file.tried(began)
        file.did("punch", start, size)
        file.data[start:end] = bytes(end - start)
        for block in range(-(-start // BLOCK), punched_until(file, start + size)):
            if block < len(file.blocks):
                # ext4 leaves what lies past the end.
                is_new = block >= lately // BLOCK
                file.blocks[block] = MAYBE if block * BLOCK >= len(file.data) else GAP if is_new else HOLE
        # Btrfs writes zeros to what is punched in part, also where nothing was written.
        for block in {start // BLOCK, (start + size) // BLOCK} if on_btrfs else ():
            if block < len(file.blocks) and file.blocks[block] == HOLE:
                file.blocks[block] = MAYBE


def reserve(file=None, keeps=None, start=None, size=None):
    is_promise = file is not None
    file = file or pick()
    if not file:
        return
    file.open()
    keeps = random.random() < 0.5 if keeps is None else keeps
    start = random.randrange(1 + len(file.data)) if start is None else start
    size = random.randrange(1, 512 * KIB) if size is None else size
    end, state = start + size, KEPT
    began = clock()
    try:
        fallocate(file.fd, KEEP_SIZE if keeps else 0, start, size)
        file.did("reserve" if keeps else "allocate", start, size)
        file.changed(began)
    except OSError as error:
        file.failed(error)
        state = MAYBE
        size_now = os.fstat(file.fd).st_size
        file.tried(began) if size_now == len(file.data) else file.changed(began)
        end = max(size_now, len(file.data)) if not keeps else end
    if not keeps:
        file.grow_to(end)
    inside = min(end, -(-len(file.data) // BLOCK) * BLOCK)
    file.mark(start, inside, state)
    # Where a guard may have reserved already, what is reserved past the end is nobody's promise.
    file.mark(inside, end, state if is_promise else MAYBE)
    if state == MAYBE:
        file.mark(start, start + size, MAYBE)


def mapped():
    """Overwrites by mmap what has storage of its own."""
    file = pick()
    if not file or len(file.data) < BLOCK or is_short or file.was_short:
        return
    block = random.randrange(len(file.data) // BLOCK)
    if file.blocks[block] != DATA:
        return
    file.open()
    with mmap.mmap(file.fd, len(file.data)) as memory:
        if random.random() < 0.4:
            # A mapping alone keeps it.
            file.close()
            time.sleep(random.choice([0, 0.05]))
        new = content(random.randrange(1, BLOCK))
        at = block * BLOCK
        file.changed(clock())
        memory[at:at + len(new)] = new
        file.data[at:at + len(new)] = new


def direct():
    if (file := pick()) and len(file.data) < SIZE_MAX:
        size = random.choice([4, 16, 64, 256]) * KIB
        at = random.randrange(1 + len(file.data) // BLOCK) * BLOCK
        with mmap.mmap(-1, size) as memory:
            memory[:] = content(size)
            fd = os.open(file.path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
            try:
                direct_write(file, fd, at, memory)
            finally:
                os.close(fd)


def direct_write(file, fd, at, memory):
    began = clock()
    try:
        count = os.pwritev(fd, [memory], at)
        file.did("direct", at, count)
        file.changed(began)
        file.written(at, memory[:count])
    except OSError as error:
        file.tried(began)
        file.failed(error)
        count = 0
        # A part of it may have been written, within the length that was.
        now = os.pread(file.open(), len(memory), at)
        for start in range(0, len(now), BLOCK):
            part = now[start:start + BLOCK]
            is_old = part == bytes(file.data[at + start:at + start + len(part)])
            if part == memory[start:start + len(part)]:
                if not is_old:
                    file.changed(began)
                file.written(at + start, part)
            elif not is_old:
                wrong("%s: neither old nor new at %d" % (file.path, at + start))
    if count < len(memory):
        file.mark(at + count, at + len(memory), MAYBE)


def rename():
    if files:
        file = random.choice(files)
        if not file.flags:
            name = new_name()
            os.rename(file.path, name)
            file.path = name


def replace():
    """As editors and package managers do: a new file takes the name of another."""
    if len(files) >= 2:
        old, new = random.sample(files, 2)
        if not old.flags and not new.flags:
            os.rename(new.path, old.path)
            new.path = old.path
            gone(old)


def remove():
    if file := pick():
        os.unlink(file.path)
        # Open without a name it goes on.
        if file.fd is not None:
            file.write(len(file.data), content(64 * KIB))
        gone(file)


def gone(file):
    if file.fd is not None and os.pread(file.fd, len(file.data) + 1, 0) != bytes(file.data):
        wrong("%s: without a name" % file.path)
    file.close()
    files.remove(file)


def link():
    if file := pick():
        name = new_name()
        os.link(file.path, name)
        if random.random() < 0.5:
            os.unlink(file.path)
            file.path = name
        else:
            os.unlink(name)


def reflink():
    if "reflink" not in able or len(files) >= FILES_MAX or not files:
        return
    source = random.choice(files)
    if source.flags:
        return
    source.open()
    file = made()
    began = clock()
    try:
        if get_flags(source.fd) & NOCOW_FL:
            set_flags(file, NOCOW_FL)
        fcntl.ioctl(file.fd, FICLONE, source.fd)
        file.changed(began)
        file.data, file.blocks = bytearray(source.data), bytearray(source.blocks[:-(-len(source.data) // BLOCK)])
        file.blocks = bytearray(MAYBE if state == KEPT else state for state in file.blocks)
    except OSError as error:
        file.failed(error)
        file.data = bytearray(os.pread(file.fd, SIZE_MAX * 4, 0))
        file.changed(began) if file.data else file.tried(began)
        file.blocks = bytearray([MAYBE]) * -(-len(file.data) // BLOCK)
        if bytes(file.data) != bytes(source.data[:len(file.data)]) and any(file.data):
            wrong("%s: a part of a copy is another" % file.path)
    file.is_shared = source.is_shared = True
    files.append(file)


def get_flags(fd):
    answer = bytearray(8)
    fcntl.ioctl(fd, FS_IOC_GETFLAGS, answer)
    return struct.unpack("=Q", answer)[0] & 0xFFFFFFFF


def set_flags(file, add, drop=0):
    fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("=Q", get_flags(fd) & ~drop | add))
    os.close(fd)


def forbid():
    """Immutable or append-only for a while, right after it was written."""
    if file := pick():
        file.close()
        flag = random.choice([APPEND_FL, IMMUTABLE_FL])
        set_flags(file, flag)
        file.flags = flag


def allow():
    for file in [file for file in files if file.flags]:
        if random.random() < 0.5:
            set_flags(file, 0, file.flags)
            file.flags = 0


def program():
    """Becomes a program, a set-id one, or one with capabilities, right after it was written; as linkers and package managers do."""
    if (file := pick()) and file.mode is None:
        kind = random.choice(["program", "program", "set-id", "capabilities"])
        file.open()
        file.write(0, b"\x7fELF")
        appended = content(random.choice([64, 256]) * KIB)
        file.write(len(file.data), appended)
        time.sleep(random.choice([0, 0.01, 0.05]))
        file.mode = {"program": 0o755, "set-id": 0o4755, "capabilities": 0o755}[kind]
        if random.random() < 0.5:
            file.close()
        os.chmod(file.path, file.mode)
        if kind == "capabilities":
            try:
                os.setxattr(file.path, "security.capability", CAPABILITIES)
                file.capabilities = CAPABILITIES
            except OSError as error:
                file.failed(error)
        file.close()
        # Nobody writes it any more: writing would strip the capabilities.
        finished.append(file)
        files.remove(file)
        while len(finished) > 10:
            old = finished.pop(0)
            check(old)
            os.unlink(old.path)


def fixed_time():
    """As tar and rsync do: a time from long ago, once all is written."""
    if file := pick():
        file.close()
        stamp = (1_000_000_000 + random.randrange(10**8)) * 10**9 + random.randrange(10**9)
        try:
            os.utime(file.path, ns=(stamp, stamp))
        except OSError as error:
            file.times_tried.add(stamp)
            return file.failed(error)
        file.time, file.tried_at, file.times_tried = stamp, None, set()


def snapshot():
    if not on_btrfs:
        return
    if len(snapshots) >= 2:
        name = random.choice(list(snapshots))
        check_snapshot(name)
        subprocess.run(["btrfs", "-q", "subvolume", "delete", "../" + name], check=True)
        del snapshots[name]
        return
    name = "snapshot-%s-%d" % (os.path.basename(os.getcwd()), counts["steps"])
    made = subprocess.run(["btrfs", "-q", "subvolume", "snapshot"] + random.choice([[], ["-r"]]) + [".", "../" + name], capture_output=True, text=True)
    if made.returncode:
        count_shortage()
        return
    snapshots[name] = {file.path: bytes(file.data) for file in files + finished}


def check_snapshot(name):
    for path, data in snapshots[name].items():
        with open("../%s/%s" % (name, path), "rb") as file:
            if file.read() != data:
                wrong("%s/%s: not what it was" % (name, path))
            room = sum(max(0, end - max(start, -(-len(data) // BLOCK) * BLOCK)) for start, end, _ in fiemap(file.fileno()))
            counts["pinned_bytes"] += room


database = None


def rows():
    """A database in WAL mode, whose rows hash to what the model says."""
    global database
    if is_short and database is None:
        # There is no room for a new one.
        return
    if database is None:
        database = sqlite3.connect("database.sqlite", isolation_level=None, timeout=30)
        if on_btrfs:
            # Without a mapped index: where others take the last room, Btrfs kills whoever stores to one.
            database.execute("PRAGMA locking_mode=EXCLUSIVE")
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, body BLOB)")
        # After an error what counts is what is there.
        model.clear()
        model.update(database.execute("SELECT id, body FROM t"))
    new = {random.randrange(300): content(random.randrange(1, 20 * KIB)) for _ in range(20)}
    try:
        database.execute("BEGIN")
        database.executemany("REPLACE INTO t VALUES (?, ?)", new.items())
        database.execute("COMMIT")
        model.update(new)
        if random.random() < 0.05:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.OperationalError:
        count_shortage()
        try:
            database.execute("ROLLBACK")
        except sqlite3.OperationalError:
            pass
        database.close()
        database = None


model, finished = {}, []


def check_database():
    global database
    if database is not None:
        database.close()
        database = None
    if os.path.exists("database.sqlite"):
        other = sqlite3.connect("database.sqlite", timeout=30)
        if (said := other.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
            wrong("database: %s" % said)
        try:
            there = dict(other.execute("SELECT id, body FROM t"))
        except sqlite3.OperationalError:
            there = {}
        if model and there != model:
            wrong("database: its rows are not those that were committed")
        other.close()


def check(file, last=False):
    """Compares a closed file with its model."""
    counts["files"] += 1
    fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOATIME)
    try:
        found = os.fstat(fd)
        if found.st_size != len(file.data):
            return wrong("%s: %d bytes instead of %d" % (file.path, found.st_size, len(file.data)))
        there = os.pread(fd, len(file.data), 0)
        if there != bytes(file.data):
            at = next(at for at in range(len(there)) if there[at] != file.data[at])
            count = sum(a != b for a, b in zip(there, file.data))
            return wrong("%s: %d bytes are wrong, the first at %d of %d" % (file.path, count, at, len(there)))
        if file.mode is not None and stat.S_IMODE(found.st_mode) != file.mode:
            wrong("%s: mode %o instead of %o" % (file.path, found.st_mode, file.mode))
        if file.capabilities is not None:
            try:
                if os.getxattr(fd, "security.capability") != file.capabilities:
                    wrong("%s: other capabilities" % file.path)
            except OSError:
                wrong("%s: its capabilities are gone" % file.path)
        if file.time is not None and not file.may_be_of(found.st_mtime_ns):
            if on_xfs or found.st_mtime_ns < file.time:
                wrong("%s: modified at %d instead of %d" % (file.path, found.st_mtime_ns, file.time))
            counts["late_times"] += 1
            file.time = None
        if not file.may_be_of(found.st_mtime_ns):
            wrong("%s: modified at %d, before it was at %d; %s" % (file.path, found.st_mtime_ns, file.written_at, ", ".join(file.done)))
        if file.seen_data is not None and (now := data_map(fd, len(file.data))) != file.seen_data:
            wrong("%s: data and holes %r instead of %r" % (file.path, now[:8], file.seen_data[:8]))
        if last:
            check_storage(file, fd)
    finally:
        os.close(fd)


def over_allocated(file, fd):
    """The first block that has storage for no reason of the workload, and how many bytes such have."""
    states, first, over, gap = file.blocks, None, 0, 0
    for start, end, flags in fiemap(fd):
        if flags & 0x200:
            # In the inode.
            continue
        for block in range(start // BLOCK, -(-end // BLOCK)):
            if block < len(states) and states[block] == GAP:
                gap += BLOCK
            elif block >= len(states) or states[block] == HOLE:
                first = block if first is None else first
                over += BLOCK
                if block >= len(states):
                    over += max(0, end - (block + 1) * BLOCK)
                    break
    if on_xfs and over and over <= 2 * len(file.data) + MIB and first >= len(states):
        # What XFS finds ahead for a file that was ever preallocated, by whomever, it keeps: up to about as much as the file has.
        counts["own_of_xfs_bytes"] += over
        over = 0
    counts["gap_bytes"] = counts["gap_bytes"] + gap
    return first, over


def check_storage(file, fd):
    first, over = over_allocated(file, fd)
    if over and file.capabilities is not None:
        # Nothing that gives room back leaves capabilities.
        counts["kept_for_capabilities_bytes"] += over
    elif over:
        wrong("%s: %d bytes too much, from block %d of %d on, size %d, mode %s%s, %s; %s" % (
            file.path, over, first, len(file.blocks), len(file.data), file.mode, " with capabilities" if file.capabilities else "",
            [(start // BLOCK, end // BLOCK, hex(flags)) for start, end, flags in fiemap(fd)][-4:], ", ".join(file.done)))
    has = set()
    for start, end, flags in fiemap(fd):
        has.update(range(start // BLOCK, min(-(-end // BLOCK), len(file.blocks))))
    missing = [block for block, state in enumerate(file.blocks) if state in (KEPT, DATA) and block not in has]
    if missing:
        wrong("%s: %d blocks that it had reserved or written have no storage, the first %d of %d, size %d; %s" % (
            file.path, len(missing), missing[0], len(file.blocks), len(file.data), ", ".join(file.done)))


def settle():
    """Waits up to ten seconds until nothing has too much."""
    deadline = time.monotonic() + 10
    if on_xfs:
        # XFS is to take back what it found ahead by itself: XFS_IOC_FREE_EOFBLOCKS, version 1, synchronously.
        fd = os.open(".", os.O_RDONLY)
        fcntl.ioctl(fd, 0x8080583A, bytearray(struct.pack("=II", 1, 1) + bytes(120)))
        os.close(fd)
    for file in files + finished:
        if file.flags or file.capabilities is not None:
            continue
        while time.monotonic() < deadline:
            with open(file.path, "rb") as opened:
                if not over_allocated(file, opened.fileno())[1]:
                    break
            time.sleep(0.2)


def judge():
    check_database()
    settle()
    for name in ("gap_bytes", "own_of_xfs_bytes", "pinned_bytes", "kept_for_capabilities_bytes"):
        counts[name] = 0
    for file in files + finished:
        check(file, True)
    known = {file.path for file in files + finished}
    for folder, _, names in os.walk("."):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name))
            if path not in known and not path.startswith("database"):
                wrong("%s: nobody made it" % path)
    for name in snapshots:
        check_snapshot(name)
        counts["snapshots"] += 1
    print("judged %s" % json.dumps({"wrong": wrong_count, **counts}), flush=True)


def pause():
    for file in files:
        if file.flags:
            set_flags(file, 0, file.flags)
            file.flags = 0
    for file in files:
        if file.seen_data is None:
            file.open()
            os.fsync(file.fd)
            file.seen_data = data_map(file.fd, len(file.data))
        file.close()
    check_database()
    print("paused", flush=True)


steps = [create] * 5 + [appends] * 12 + [overwrite] * 4 + [sparse] * 2 + [truncate] * 2 + [punch] * 2 + [reserve] * 2 + [mapped] * 3
steps += [direct] * 3 + [rename, replace, remove, remove, link, reflink, reflink, forbid, allow, allow, program, program, fixed_time, fixed_time] + [rows] * 2


def step():
    counts["steps"] += 1
    if counts["steps"] % 150 == 0:
        snapshot()
    try:
        random.choice(steps)()
    except OSError as error:
        if error.errno not in SHORTAGES:
            raise
        count_shortage()


lines = queue.Queue()


def listen():
    for line in sys.stdin:
        lines.put(line.strip())
    lines.put("end")


def main():
    global is_short, calm_since
    os.chdir(root)
    if on_btrfs:
        subprocess.run(["btrfs", "-q", "subvolume", "create", "work-%d" % seed], check=True)
    else:
        os.mkdir("work-%d" % seed)
    os.chdir("work-%d" % seed)
    for folder in range(5):
        os.mkdir(str(folder))
    home = os.getcwd()
    threading.Thread(target=listen, daemon=True).start()
    goes = False
    while True:
        try:
            line = lines.get(block=not goes)
        except queue.Empty:
            step()
            continue
        if line == "end":
            return
        if line == "go":
            goes = True
            print("going", flush=True)
        elif line == "pause":
            goes = False
            pause()
        elif line == "judge":
            judge()
        elif line in ("leave", "enter"):
            os.chdir("/" if line == "leave" else home)
            print(line, flush=True)
        elif line in ("short", "calm"):
            is_short, calm_since = line == "short", time.monotonic()
            print(line, flush=True)


signal.signal(signal.SIGINT, signal.SIG_IGN)
faulthandler.enable()
main()
