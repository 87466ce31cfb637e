"""Makes `initrd` of what is in a folder, with modules of an unpacked Debian kernel: initrd.py UNPACKED FOLDER MODULE...

The modules come with all that they need; FOLDER/modules names them in the order in which they are loaded."""
import glob, lzma, os, re, sys

unpacked, root, wanted = sys.argv[1], sys.argv[2], sys.argv[3:]
paths = {}
for path in glob.glob(unpacked + "/**/*.ko.xz", recursive=True):
    paths[os.path.basename(path)[:-6].replace("-", "_")] = path
order = []


def add(name):
    name = name.replace("-", "_")
    if name in order or name not in paths:
        return
    data = lzma.open(paths[name]).read()
    for other in re.search(rb"depends=([^\0]*)\0", data)[1].decode().split(","):
        add(other)
    # Needed, but found by name when it is first used.
    soft = re.search(rb"softdep=pre: ([^\0]*)\0", data)
    for other in soft[1].decode().split() if soft else []:
        add(other)
    order.append(name)
    open("%s/%s.ko" % (root, name), "wb").write(data)


for name in wanted:
    add(name)
with open(root + "/modules", "w") as modules:
    modules.write("".join(name + "\n" for name in order))


# A record of a cpio archive in the "newc" format.
def record(name, mode, data):
    head = [0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
    out = b"070701" + b"".join(b"%08x" % field for field in head) + name.encode() + b"\0"
    out += b"\0" * (-len(out) % 4) + data
    return out + b"\0" * (-len(out) % 4)


with open("initrd", "wb") as archive:
    for folder, folders, files in os.walk(root):
        inside = os.path.relpath(folder, root)
        if inside != ".":
            archive.write(record(inside, 0o040755, b""))
        for name in sorted(files):
            path = os.path.normpath(os.path.join(inside, name))
            archive.write(record(path, 0o100755, open(os.path.join(folder, name), "rb").read()))
    archive.write(record("TRAILER!!!", 0, b""))
