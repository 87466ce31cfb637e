# Fills the ext volume mounted at argv[1] with files in very many pieces, and with one of every other sort; argv[2] is a
# seed. What a kind of volume cannot hold (preallocation without extents, large attributes) is left out.
import ctypes
import errno
import os
import random
import subprocess
import sys

os.chdir(sys.argv[1])
random.seed(int(sys.argv[2]))
block = os.statvfs(".").f_bsize
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate64.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
KEEP_SIZE, PUNCH, COLLAPSE = 1, 2, 8


def allocate(file, mode, start, length):
    if libc.fallocate64(file, mode, start, length) == 0:
        return True
    if ctypes.get_errno() != errno.EOPNOTSUPP:
        raise OSError(ctypes.get_errno(), "fallocate")
    return False


def create(name):
    return os.open(name, os.O_RDWR | os.O_CREAT, 0o640)


def contents(length):
    return random.randbytes(length)


def write(name, length):
    file = create(name)
    os.write(file, contents(length))
    os.close(file)


# Files that grow in turns.
os.mkdir("turns")
files = [create("turns/%d" % index) for index in range(6)]
for turn in range(25):
    for index, file in enumerate(files):
        if turn % (index + 1) == 0:
            os.write(file, contents(random.choice([500, block, 2 * block + 7, 5 * block])))
            os.fsync(file)
for file in files:
    os.close(file)

# In very many pieces: every other block of a file is cut out. That is so many pieces that a tree of extents is of depth 2.
count = 500 if block == 1024 else 1500


def scatter(name, count, step):
    """Whether it could be done."""
    file = create(name)
    os.write(file, contents((2 * count + 1) * step))
    os.fsync(file)
    for index in reversed(range(count)):
        if not allocate(file, COLLAPSE, (2 * index + 1) * step, step):
            return False
    os.close(file)
    return True


def cut_step():
    """What can be cut out at once: a cluster."""
    file = create("step")
    os.write(file, contents(64 * block))
    step = block
    while libc.fallocate64(file, COLLAPSE, 0, step) != 0:
        step = step * 2 if step < 32 * block else 0
        if step == 0:
            break
    os.close(file)
    os.unlink("step")
    return step


step = cut_step()
for name, pieces in (("scattered", count if step == block else 400), ("twenty", 20), ("three", 3)):
    if step:
        scatter(name, pieces, step)
if not step:
    # Without extents: what is written when nothing is free but every other block goes into these.
    os.mkdir("gaps")
    for index in range(2 * count):
        write("gaps/%d" % index, block)
    os.sync()
    filler = create("filler")
    try:
        while True:
            os.write(filler, bytes(1 << 20))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    os.fsync(filler)
    for index in range(0, 2 * count, 2):
        os.unlink("gaps/%d" % index)
    os.sync()
    for name, pieces in (("scattered", count - 100), ("twenty", 20), ("three", 3)):
        write(name, pieces * block)
    os.sync()
    os.close(filler)
    os.unlink("filler")
# Every other block of a file is given back.
file = create("comb")
os.write(file, contents(200 * block))
os.fsync(file)
for index in range(100):
    allocate(file, KEEP_SIZE | PUNCH, 2 * index * block, block)
os.close(file)
os.sync()

# Small files, some of them gone again.
os.mkdir("small")
for index in range(120):
    write("small/%d" % index, random.choice([0, 1, 59, 61, 700, block, block + 1, 3 * block, 40000]))
for index in range(0, 120, 3):
    os.unlink("small/%d" % index)

# Holes, and pieces that were never written.
file = create("holes")
for at in (0, 3, 1000, 20000 if block > 1024 else 66000):
    os.pwrite(file, contents(3 * block), at * block)
os.close(file)
file = create("allocated")
if allocate(file, 0, 0, 200 * block):
    for at in (0, 30, 31, 64, 128):
        os.pwrite(file, contents(4 * block), at * block)
os.close(file)
file = create("allocated past its size")
os.write(file, contents(2 * block + 5))
allocate(file, KEEP_SIZE, 0, 100 * block)
os.close(file)

# Directories: one that grew while files did, so that it is in pieces and has a tree of hashes.
os.mkdir("wide")
grower = create("grower")
for index in range(1500):
    os.close(create("wide/entry with a long name %d" % index))
    if index % 40 == 0:
        os.write(grower, contents(block))
        os.fsync(grower)
        os.fsync(os.open("wide", os.O_RDONLY))
os.close(grower)
os.makedirs("deep/" + "/".join("level %d" % level for level in range(20)))

# Links, attributes, other sorts.
os.symlink("short", "short link")
os.symlink("long/" * 30, "long link")
os.link("three", "another name of three")
os.mkfifo("pipe")
write("with attributes", 3 * block)
for name, length in (("user.small", 20), ("user.large", 600)):
    try:
        os.setxattr("with attributes", name, b"v" * length)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSPC):
            raise
write("immutable", 5 * block)
subprocess.run(["chattr", "+i", "immutable"], check=True)
os.chown("three", 1000, 1001)
os.chmod("twenty", 0o4755)
os.utime("holes", ns=(10**18 + 5, 10**18 + 7))
os.sync()
