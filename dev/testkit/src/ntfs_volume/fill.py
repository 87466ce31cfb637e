# Fills the NTFS volume mounted at argv[1] (by ntfs-3g, with streams_interface=windows, compression and efs_raw), whose
# clusters have argv[2] bytes, from the seed argv[3].
import errno
import os
import random
import struct
import sys

top, cluster, seed = os.fsencode(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
random.seed(seed)
os.chdir(top)
noise = random.randbytes
# As many pieces as there is room for.
many = 500 if cluster <= 4096 else 150


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


def set_attribute(path, name, value):
    os.setxattr(path, name, value, follow_symlinks=False)


# Files that grow in turn, a few clusters at a time.
def in_turn(names, rounds, most):
    files = [open(name, "wb", buffering=0) for name in names]
    for _ in range(rounds):
        for file in files:
            file.write(noise(cluster * random.randint(1, most)))
    for file in files:
        file.write(noise(cluster // 3))
        file.close()


# Free space in many pieces and nowhere else: a large file has the rest, and of a row of small ones every other one goes.
# What is written there is in hundreds of pieces, with attribute lists and extension records that are full.
space = os.statvfs(".")
with open("rest", "wb", buffering=0) as rest:
    for _ in range(space.f_bavail * space.f_frsize // cluster - many * (6 if cluster > 512 else 14)):
        rest.write(noise(cluster))
row = 0
try:
    while True:
        # Too large for its record.
        write("row%d" % row, noise(max(cluster, 1536)))
        row += 1
except OSError as error:
    if error.errno != errno.ENOSPC:
        raise
for index in range(0, row, 2):
    os.unlink("row%d" % index)
in_turn(["long%d" % index for index in range(2)], many, 1)
os.unlink("rest")
for index in range(1, row, 2):
    if index % 10 > 1:
        os.unlink("row%d" % index)

in_turn(["turn%d" % index for index in range(6)], many // 12, 3)
with open("pieces", "wb") as file:
    for index in range(many):
        file.seek(index * 2 * cluster)
        file.write(noise(cluster))
    file.truncate(many * 4 * cluster + 17)
with open("hole alone", "wb") as file:
    file.truncate(3 << 20)
write("empty", b"")
write("in record", b"small")

os.mkdir("packed")
if cluster <= 4096:
    set_attribute("packed", "system.ntfs_attrib_be", struct.pack(">I", 0x810))
write("packed/file", noise(30000) + b"a" * 300000 + noise(30000) + b"bc" * 100000)
write("packed/small", b"x" * 20000)
with open("packed/slow", "wb") as packed, open("plain beside", "wb") as plain:
    for index in range(30):
        packed.write(noise(9000) + b"z" * 60000)
        packed.flush()
        plain.write(noise(cluster))
        plain.flush()

write("named", noise(cluster * 2 + 5))
for index in range(40):
    write("named:stream number %d of this file" % index, noise(index * min(cluster, 8192) // 3))
write("named:one", noise(cluster * 5))
write("named:gr\u00f6\u00dfe", b"in the record")
streams = [open(name, "wb", buffering=0) for name in ("turns", "turns:a", "turns:b")]
for _ in range(25):
    for stream in streams:
        stream.write(noise(cluster))
for stream in streams:
    stream.close()

# Directories whose indexes grow while files do.
os.mkdir("large")
os.mkdir("other")
with open("between", "wb", buffering=0) as between:
    for index in range(600):
        write("large/a name that is quite long, so that blocks fill %d" % index, b"x")
        write("other/another name that is long as well %d" % index, b"")
        if index % 20 == 0:
            between.write(noise(cluster))
for index in range(0, 600, 3):
    os.unlink("large/a name that is quite long, so that blocks fill %d" % index)
write("large:of a directory", noise(cluster + 1))
os.makedirs("deep/" + "d/" * 30)
for index in range(60):
    write("deep/%d" % index, noise(random.randint(0, cluster * 3)))

os.mkdir("links")
write("links/0", noise(cluster * 3))
for index in range(1, 40):
    os.link("links/0", "links/%d" % index)
for index in range(40, 60):
    os.link("links/0", "links/a long name, so that the record is not enough for all %d" % index)

os.mkdir("special")
os.symlink("x" * 600, "special/symlink")
os.mkfifo("special/pipe")
os.mkdir("special/junction")
target = "y" * (3000 if cluster <= 4096 else 7000)
name = ("\\??\\C:\\" + target).encode("utf-16-le")
data = struct.pack("<HHHH", 0, len(name), len(name) + 2, 0) + name + b"\0\0\0\0"
set_attribute("special/junction", "system.ntfs_reparse_data", struct.pack("<IHH", 0xa0000003, len(data), 0) + data)

write("extended", noise(100))
value = noise(8000)
entry = struct.pack("<BBH", 0, 4, len(value)) + b"NAME\0" + value
entry += b"\0" * (-(len(entry) + 4) % 4)
set_attribute("extended", "system.ntfs_ea", struct.pack("<I", len(entry) + 4) + entry)

write("read only", noise(cluster))
set_attribute("read only", "system.ntfs_attrib_be", struct.pack(">I", 0x27))
os.chmod("turn1", 0o640)
os.chown("turn2", 1000, 1000)

# Bytes of an encrypted file as they are stored: behind them, how many the last 512 have too much. ntfs-3g cannot read what
# it makes with larger clusters.
write("secret", noise(cluster * 6) + struct.pack("<H", 100))
if cluster <= 4096:
    set_attribute("secret", "system.ntfs_efsinfo", struct.pack("<IIII", 16 + 3000, 0, 2, 0) + noise(3000))

# The last cluster: all that is free is filled.
fillers = 0
try:
    while True:
        with open("filler%d" % fillers, "wb", buffering=0) as file:
            fillers += 1
            file.write(noise(cluster * 64))
except OSError as error:
    if error.errno != errno.ENOSPC:
        raise
