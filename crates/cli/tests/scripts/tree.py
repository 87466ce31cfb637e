"""Prints all that the kernel tells of the files below a folder, a line each: python3 tree.py FOLDER full|plain

`plain` leaves out what NTFS, FAT and exFAT do not keep. XFS shows access lists twice: as it stores them, too.
"""
import hashlib
import os
import stat
import sys

root, is_full = sys.argv[1], sys.argv[2] == "full"
lines = []
for folder, folders, files in os.walk(root):
    for name in folders + files:
        path = os.path.join(folder, name)
        facts = os.lstat(path)
        kind = stat.S_IFMT(facts.st_mode)
        line = [os.path.relpath(path, root), oct(kind)]
        if kind == stat.S_IFREG:
            with open(path, "rb") as file:
                line += [facts.st_size, hashlib.sha256(file.read()).hexdigest()]
        if kind == stat.S_IFLNK:
            line.append(os.readlink(path))
        if is_full:
            line += [oct(facts.st_mode & 0o7777), facts.st_uid, facts.st_gid, facts.st_mtime_ns, facts.st_rdev]
            if kind == stat.S_IFREG:
                line.append(facts.st_nlink)
            if kind != stat.S_IFLNK:
                names = sorted(name for name in os.listxattr(path) if not name.startswith(("btrfs.", "trusted.SGI_ACL")))
                line += [(name, os.getxattr(path, name)) for name in names]
        lines.append(repr(line))
print("\n".join(sorted(lines)))
