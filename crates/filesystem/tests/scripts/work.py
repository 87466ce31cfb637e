# What a busy guest does to the volume mounted at argv[1], until it is killed: the same for the same seed, argv[2]. argv[3] says what more
# the file system can: `reflink`, `subvolume`; with `small`, values of attributes are so short that XFS has them within its trees.
import fcntl
import os
import random
import subprocess
import sys

root, seed, able = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(",")
random.seed(seed)
os.chdir(root)
if "subvolume" in able:
    # Its snapshots are not in it: where a snapshot would have another one a mount shows a directory as old as the mount.
    subprocess.run(["btrfs", "-q", "subvolume", "create", "work"], check=True)
    os.chdir("work")
FICLONE = 0x40049409
names = ["%d/file %d" % (index % 7, index) for index in range(200)]
for folder in range(7):
    os.makedirs(str(folder), exist_ok=True)


def data(size):
    return random.randbytes(64) * (size // 64 + 1)


def some():
    there = [name for name in random.sample(names, 20) if os.path.isfile(name)]
    return there[0] if there else None


def write(name, mode, at, size):
    with open(name, mode) as file:
        file.seek(at)
        file.write(data(size)[:size])
        file.flush()
        if random.random() < 0.3:
            os.fsync(file.fileno())


def create():
    write(random.choice(names), "wb", 0, int(2 ** random.uniform(0, 18)))


def overwrite():
    if name := some():
        write(name, "r+b", random.randrange(1 + os.path.getsize(name)), int(2 ** random.uniform(0, 16)))


def truncate():
    if name := some():
        os.truncate(name, random.randrange(1 + 2 * os.path.getsize(name)))


def rename():
    if name := some():
        os.rename(name, random.choice(names))


def remove():
    if name := some():
        os.unlink(name)


def reserve():
    if name := some():
        with open(name, "r+b") as file:
            os.posix_fallocate(file.fileno(), random.randrange(1 << 18), random.randrange(1, 1 << 18))


def link():
    name, other = some(), random.choice(names)
    if name and not os.path.lexists(other):
        os.link(name, other)


def attribute():
    if name := some():
        os.setxattr(name, "user.some", random.randbytes(random.randrange(1, 300 if "small" in able else 2000)))


def reflink():
    if name := some():
        with open(name, "rb") as source, open(random.choice(names), "wb") as target:
            fcntl.ioctl(target.fileno(), FICLONE, source.fileno())


def snapshot():
    name = "../snapshot %d" % random.randrange(3)
    if os.path.isdir(name):
        subprocess.run(["btrfs", "-q", "subvolume", "delete", name], check=True)
    else:
        subprocess.run(["btrfs", "-q", "subvolume", "snapshot", ".", name], check=True)


def synchronise():
    os.sync()


steps = [create] * 8 + [overwrite] * 8 + [truncate, rename, rename, remove, remove, reserve, link, attribute]
steps += [reflink] * 3 if "reflink" in able else []
for number in range(1_000_000_000):
    if "subvolume" in able and number % 400 == 399:
        snapshot()
    if number % 300 == 299:
        synchronise()
    try:
        random.choice(steps)()
    except OSError as error:
        if error.errno not in (28, 34, 122):
            raise
        remove()
