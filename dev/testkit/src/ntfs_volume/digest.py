# Lists the tree mounted at argv[1] by ntfs-3g: a line a path and a line a named stream, fields behind a tab.
import errno
import hashlib
import os
import stat
import sys

top = os.fsencode(sys.argv[1])
NAMES = ["ntfs_attrib_be", "ntfs_acl", "ntfs_reparse_data", "ntfs_ea", "ntfs_object_id", "ntfs_dos_name",
         "ntfs_efsinfo", "ntfs_times_be"]
# What every mount of ntfs-3g may write.
VOLATILE = {b"/$MFT", b"/$MFTMirr", b"/$LogFile", b"/$Bitmap", b"/$Volume", b"/$Boot", b"/$BadClus"}


def attribute(path, name):
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError as error:
        return errno.errorcode[error.errno].encode() if error.errno != errno.ENODATA else b""


def sha256(path):
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    except OSError as error:
        # Of NTFS's own files some have no such stream.
        assert path.startswith(top + b"/$"), (path, error)
        return errno.errorcode[error.errno]
    return digest.hexdigest()


def show(path, *fields):
    name = path[len(top):] or b"/"
    text = "".join(chr(byte) if 33 <= byte < 127 and byte != 92 or byte == 32 else "\\x%02x" % byte for byte in name)
    print(text, *fields, sep="\t")


def visit(path):
    name = path[len(top):]
    if name in VOLATILE:
        return
    about = os.lstat(path)
    fields = [oct(about.st_mode), about.st_ino, about.st_nlink, about.st_size, about.st_blocks, about.st_mtime_ns,
              about.st_ctime_ns]
    if stat.S_ISREG(about.st_mode):
        fields.append(sha256(path))
    elif stat.S_ISLNK(about.st_mode):
        # Of a link of Windows, ntfs-3g tells a path within the mount.
        fields.append(os.readlink(path).replace(os.path.abspath(top), b"").hex())
    fields += [attribute(path, "system." + name).hex() for name in NAMES]
    show(path, *fields)
    streams = b"" if stat.S_ISLNK(about.st_mode) else attribute(path, "ntfs.streams.list")
    for stream in sorted(filter(None, streams.split(b"\0"))):
        stream = path + b":" + stream
        show(stream, os.lstat(stream).st_size, sha256(stream))
    if stat.S_ISDIR(about.st_mode):
        for entry in sorted(os.listdir(path)):
            visit(path + b"/" + entry)


sys.setrecursionlimit(5000)
visit(top)
