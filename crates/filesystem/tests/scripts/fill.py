# Fills the mounted volume at argv[1] with files of every sort; argv[2] is how many entries the widest folder has.
# What a kind of volume cannot hold (preallocation without extents, attributes of any size) is left out.
import errno
import os
import random
import sys

at, width = sys.argv[1].encode(), int(sys.argv[2])
random.seed(1)
os.chdir(at)


def attempt(action, *args, **options):
    try:
        action(*args, **options)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSPC):
            raise


def create(name):
    return os.open(name, os.O_RDWR | os.O_CREAT, 0o644)


def fallocate(file, mode, start, length):
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    call = libc.fallocate64
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if call(file, mode, start, length) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


# Small sizes: inline, one block, a few.
os.mkdir(b"small")
for size in [0, 1, 59, 60, 61, 100, 150, 160, 200, 1023, 1024, 1025, 4096, 4097, 13000, 50000, 70000]:
    file = create(b"small/%d" % size)
    os.write(file, b"x" * size)
    os.close(file)

# Fragmented: files that grow in turns.
os.mkdir(b"turns")
files = [create(b"turns/%d" % index) for index in range(12)]
for turn in range(60):
    for index, file in enumerate(files):
        if turn % (index + 1) == 0:
            os.write(file, b"y" * random.choice([500, 4096, 9000]))
for file in files:
    os.fsync(file)
    os.close(file)

# One in very many pieces: a tree of extents, blocks of pointers of two levels.
file = create(b"every other block")
for index in range(1200):
    os.pwrite(file, b"z" * 1024, index * 8192)
os.close(file)

# Holes: at the start, within, at the end, far away.
file = create(b"holes")
os.pwrite(file, b"h" * 10000, 1 << 20)
os.pwrite(file, b"h" * 10000, 20 << 20)
os.pwrite(file, b"h", 900 << 20)
os.ftruncate(file, 950 << 20)
os.close(file)
os.truncate(create(b"only a hole"), 5 << 20)
file = create(b"punched")
os.write(file, b"p" * (2 << 20))
os.fsync(file)
for start in (0, 300_000, 1_000_000, 1_048_576, 1_900_000):
    attempt(fallocate, file, 3, start, 65536)
os.close(file)

# Preallocated: within the size, with pieces written, and past the size.
file = create(b"allocated")
attempt(fallocate, file, 0, 0, 3 << 20)
for start in (0, 500_000, 501_000, 2_000_000):
    os.pwrite(file, b"a" * 5000, start)
os.close(file)
file = create(b"kept size")
os.write(file, b"k" * 10000)
attempt(fallocate, file, 1, 0, 1 << 20)
os.close(file)
file = create(b"past the size, after a hole")
attempt(fallocate, file, 1, 1 << 20, 1 << 20)
os.close(file)

# Names of every byte, of every length, and several of a file.
os.mkdir(b"names")
for byte in set(range(1, 256)) - {ord("/")}:
    os.close(create(b"names/" + bytes([byte, byte]) + b" name"))
for name in [b"\n", b"\x1b[31mred", b"\xff\xfe", b"\xed\xa0\x80", b"...", b"x" * 255, b"\xf0\x9f\x92\xa9" * 63]:
    os.close(create(b"names/" + name))
for length in range(1, 256, 7):
    os.close(create(b"names/" + b"l" * length))
os.mkdir(b"links")
for index in range(40):
    os.link(b"turns/3", b"links/another name %d" % index)
os.symlink(b"short", b"links/short")
os.symlink(b"long" * 100, b"links/long")
os.mkfifo(b"links/pipe")
os.mknod(b"links/device", 0o60600, os.makedev(7, 200))

# A folder of all sizes on its way from inline to a tree, one with a deep tree, and many below each other.
for count in (1, 2, 3, 4, 5, 8, 12, 20, 60, 100):
    os.mkdir(b"folder of %d" % count)
    for index in range(count):
        os.close(create(b"folder of %d/n%d" % (count, index)))
os.mkdir(b"wide")
for index in range(width):
    os.close(create(b"wide/%s %d" % (b"w" * (index % 200), index)))
for index in range(0, width, 3):
    os.unlink(b"wide/%s %d" % (b"w" * (index % 200), index))
deep = b"deep"
os.mkdir(deep)
for level in range(150):
    deep += b"/level %d" % level
    os.mkdir(deep)
os.close(create(deep + b"/bottom"))

# Attributes that need a block of their own.
os.close(create(b"attributes"))
attempt(os.setxattr, b"attributes", b"user.large", b"v" * 700)
