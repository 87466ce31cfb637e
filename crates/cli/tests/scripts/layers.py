"""Lays the layers of a disk over each other by what other programs say of them.

    layers.py scatter IMAGE TARGET        copies IMAGE piece by piece in a shuffled order, to lie scattered on the host
    layers.py compose RAW START FORMAT IMAGE
        prints, for every file and directory of the ext volume at START of RAW (the same disk as IMAGE), a line of
        JSON: path, filefrag's extents of it, and the runs that reading it meets on the host's device, composed from
        `filefrag -v` of the mounted file, `qemu-img map` of IMAGE and `filefrag -v` of IMAGE's files
"""

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time

PIECE = 80 << 10


def scatter(image, target):
    order = list(range(0, os.path.getsize(image), PIECE))
    random.Random(7).shuffle(order)
    with open(image, "rb") as source, open(target, "wb") as out, open(target + ".other", "wb") as other:
        for count, at in enumerate(order):
            source.seek(at)
            data = source.read(PIECE)
            if data.count(0) < len(data):
                os.pwrite(out.fileno(), data, at)
                os.fsync(out.fileno())
                os.pwrite(other.fileno(), b"x" * 8192, count * 8192)
                os.fsync(other.fileno())
        out.truncate(os.path.getsize(image))
    os.unlink(target + ".other")


def filefrag(path):
    """(logical, physical, length, flags) of every extent in bytes, and the number filefrag prints."""
    text = subprocess.run(["filefrag", "-v", "-b1", path], check=True, capture_output=True).stdout
    text = text.decode(errors="surrogateescape")
    extents = []
    for line in text.splitlines():
        found = re.match(r"\s*\d+:\s*(\d+)\.\.\s*\d+:\s*(\d+)\.\.\s*\d+:\s*(\d+):(.*)$", line)
        if found:
            extents.append((int(found[1]), int(found[2]), int(found[3]), found[4]))
    return extents, int(re.search(r": (\d+) extents? found\s*$", text)[1])


def find(extents, start, length):
    """The parts of [start, start + length) that `extents`, sorted by their first number, hold."""
    for logical, physical, size, rest in extents:
        low, high = max(start, logical), min(start + length, logical + size)
        if low < high:
            yield physical + (low - logical), high - low, rest


def compose(raw, start, form, image):
    start = int(start)
    mapped = json.loads(subprocess.run(["qemu-img", "map", "--output=json", "-f", form, image],
                                       check=True, capture_output=True).stdout)
    container = [(part["start"], part["offset"], part["length"], part.get("filename", image))
                 for part in mapped if part["data"] and "offset" in part]
    assert all("offset" in part for part in mapped if part["data"]), "qemu-img tells every place"
    hosts = {name: [it for it in filefrag(name)[0] if "unwritten" not in it[3]]
             for name in {part[3] for part in container}}
    with tempfile.TemporaryDirectory() as mnt:
        subprocess.run(["mount", "-o", f"ro,loop,offset={start}", raw, mnt], check=True)
        try:
            for folder, _, names in os.walk(mnt.encode()):
                for path in [folder] + [os.path.join(folder, name) for name in names]:
                    if os.path.islink(path) or not (os.path.isfile(path) or os.path.isdir(path)):
                        continue
                    extents, count = filefrag(path)
                    extents = [it for it in extents if "inline" not in it[3]]
                    runs, last = 0, None
                    for _, physical, length, _ in extents:
                        for offset, size, name in find(container, start + physical, length):
                            for address, part, _ in find(hosts[name], offset, size):
                                runs += last != address
                                last = address + part
                    print(json.dumps({"path": os.fsdecode(path[len(mnt):] or b"/"),
                                      "extents": count if extents else 0, "whole_stack": runs}))
        finally:
            # Whoever looks at all mounts of the machine may hold it for a moment.
            for _ in range(1500):
                if subprocess.run(["umount", mnt]).returncode == 0:
                    break
                time.sleep(0.02)


{"scatter": scatter, "compose": compose}[sys.argv[1]](*sys.argv[2:])
