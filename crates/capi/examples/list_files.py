"""list_files.py DISK: the regular files on a virtual machine's disk, each with its SHA-256, or why it cannot be read."""

import hashlib
import sys

import leandisk


def digest(disk, volume, index):
    sha = hashlib.sha256()
    try:
        for piece in disk.read(volume, index):
            sha.update(piece)
    except leandisk.Error as error:
        return f"({error})"
    return sha.hexdigest()


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: list_files.py DISK")
    with leandisk.Disk(sys.argv[1]) as disk:
        for volume in disk.info()["volumes"]:
            if volume["filesystem"] not in ("ntfs", "ext2", "ext3", "ext4"):
                continue
            for index, path, kind, _size, is_main in disk.files(volume["index"]):
                if kind == leandisk.REGULAR and is_main:
                    name = path.decode("utf-8", "surrogateescape")
                    sys.stdout.buffer.write(f"{digest(disk, volume['index'], index)}  {name}\n".encode("utf-8", "surrogateescape"))


if __name__ == "__main__":
    try:
        main()
    except leandisk.Error as error:
        print(f"list_files.py: {error}", file=sys.stderr)
        if error.hint:
            print(error.hint, file=sys.stderr)
        sys.exit(error.kind)
