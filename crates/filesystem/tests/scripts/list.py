# Lists everything on the volume mounted at argv[1], a line each: path in hexadecimal, kind, inode, size; then, of files
# and directories, how many extents filefrag counts, and where those lie that it shows, in bytes (a `u` for unwritten). argv[2] says of which kinds.
# Names are never shown to filefrag, whose output they could confuse: it gets open files.
import os
import re
import stat
import subprocess
import sys

root = sys.argv[1].encode()
LINE = re.compile(r"^ *\d+: *(\d+)\.\. *\d+: *(\d+)\.\. *\d+: *(\d+):(.*)$")


def filefrag(files, *options):
    paths = ["/proc/self/fd/%d" % file for file in files]
    return subprocess.run(
        ["filefrag", *options, *paths], pass_fds=files, check=True, capture_output=True, text=True
    ).stdout


def counts(files):
    lines = filefrag(files).splitlines()
    assert len(lines) == len(files), lines
    return [int(re.search(r": (\d+) extents? found", line)[1]) for line in lines]


def extents(files):
    found = []
    for line in filefrag(files, "-v", "-b1").splitlines():
        if line.startswith("File size of"):
            found.append([])
        elif match := LINE.match(line):
            logical, physical, length = (int(match[index]) for index in (1, 2, 3))
            flags = match[4]
            if "inline" in flags:
                found[-1].append("inline")
                continue
            state = "u" if "unwritten" in flags else ""
            found[-1].append((logical, physical, length, state))
    assert len(found) == len(files), (len(found), len(files))
    return [joined(pieces) for pieces in found]


def joined(pieces):
    whole = []
    for piece in pieces:
        if piece == "inline":
            return "inline"
        logical, physical, length, state = piece
        if whole and whole[-1][3] == state:
            last = whole[-1]
            if (last[0] + last[2], last[1] + last[2]) == (logical, physical):
                whole[-1] = (last[0], last[1], last[2] + length, state)
                continue
        whole.append(piece)
    return ",".join("%d:%d:%d%s" % piece for piece in whole)


def show(batch):
    files = [os.open(path, os.O_RDONLY) for path, _ in batch]
    for (path, line), count, pieces in zip(batch, counts(files), extents(files)):
        print(line, 0 if pieces == "inline" else count, pieces)
    for file in files:
        os.close(file)


def line_of(path):
    status = os.lstat(path)
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    kind = kinds.get(stat.S_IFMT(status.st_mode), "other")
    name = path[len(root) :] or b"/"
    return kind, "%s %s %d %d" % (name.hex(), kind, status.st_ino, status.st_size)


# Some file systems do not tell where a directory lies.
kinds_with_extents = sys.argv[2].split(",")
batch = []
for folder, folders, files in os.walk(root):
    for path in [folder] + [os.path.join(folder, name) for name in files + folders]:
        kind, line = line_of(path)
        if kind == "directory" and path != folder:
            continue
        if kind not in kinds_with_extents:
            print(line)
            continue
        batch.append((path, line))
        if len(batch) == 200:
            show(batch)
            batch = []
if batch:
    show(batch)
