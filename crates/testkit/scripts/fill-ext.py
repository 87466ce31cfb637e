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
KEEP_SIZE, PUNCH = 1, 2


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

# Every other block of a file is given back, and the rest of the volume is filled: what is written then goes into the gaps.
# How many pieces that makes is chosen so that trees of extents are of depth 2.
count = 500 if block == 1024 else 1500 if block == 4096 else 900
comb = create("comb")
os.write(comb, contents(2 * count * block))
os.fsync(comb)
filler = create("filler")
for index in range(count):
    if not allocate(comb, KEEP_SIZE | PUNCH, 2 * index * block, block):
        break
os.fsync(comb)
os.sync()
free = os.statvfs(".").f_bfree * block - (count + 40) * block
if free > 0 and not allocate(filler, 0, 0, free):
    piece = bytes(1 << 20)
    for start in range(0, free, len(piece)):
        os.pwrite(filler, piece[: free - start], start)
os.fsync(filler)
scattered = create("scattered")
os.write(scattered, contents(count // 2 * block))
os.fsync(scattered)
# Two in a few pieces each: a tree of depth 0 and one of depth 1 at most.
for name, pieces in (("three", 3), ("twenty", 20)):
    file = create(name)
    os.write(file, contents(pieces * block))
    os.fsync(file)
    os.close(file)
os.close(filler)
os.unlink("filler")
os.close(scattered)
os.close(comb)
os.sync()

# Small files, some of them gone again.
os.mkdir("small")
for index in range(120):
    write("small/%d" % index, random.choice([0, 1, 59, 61, 700, block, block + 1, 3 * block, 40000]))
for index in range(0, 120, 3):
    os.unlink("small/%d" % index)

# Holes, and pieces that were never written.
file = create("holes")
for at in (0, 3, 1000, 70000, 900000):
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
