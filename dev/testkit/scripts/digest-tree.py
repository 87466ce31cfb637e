# All that is to be known of the tree at argv[1], a line each: path in hexadecimal, mode, owners, links, size, times,
# attributes, and the digest of its contents.
import hashlib
import os
import stat
import sys

root = os.fsencode(sys.argv[1])


def digest(path, status):
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(path).hex()
    if stat.S_ISDIR(status.st_mode):
        return hashlib.sha256(b"\0".join(sorted(os.listdir(path)))).hexdigest()
    if not stat.S_ISREG(status.st_mode):
        return "-"
    sum = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            sum.update(piece)
    return sum.hexdigest()


def attributes(path):
    names = sorted(os.listxattr(path, follow_symlinks=False))
    return ",".join("%s=%s" % (name, os.getxattr(path, name, follow_symlinks=False).hex()) for name in names)


paths = [root]
for folder, folders, files in os.walk(root):
    paths += [os.path.join(folder, name) for name in folders + files]
for path in sorted(paths):
    status = os.lstat(path)
    times = (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
    numbers = (status.st_ino, status.st_mode, status.st_uid, status.st_gid, status.st_nlink, status.st_size, *times)
    print(path[len(root) :].hex() or "/", *numbers, digest(path, status), attributes(path))
