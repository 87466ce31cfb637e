"""Fills a folder with files of every sort: python3 fill.py FOLDER unix|plain"""
import os
import random
import socket
import sys

root, kind = sys.argv[1], sys.argv[2]
random.seed(5)


def at(name):
    return os.path.join(root, name)


def write(name, contents):
    os.makedirs(os.path.dirname(at(name)), exist_ok=True)
    with open(at(name), "wb") as file:
        file.write(contents)


write("a/b/hello.txt", b"hello\n")
write("a/random", random.randbytes(700_001))
write("a/text", b"".join(b"line %d of a text that repeats itself\n" % (line % 97) for line in range(9000)))
write("a/small", b"tiny " * 30)
write("empty", b"")
for number in range(150):
    write("a folder/a file with a rather long name, of which there are many %d" % number, b"%d" % number)
write("\u00fc" * 100, b"a long name")
if kind == "plain":
    sys.exit()

with open(at("a/sparse"), "wb") as file:
    file.truncate(20 << 20)
    file.seek(3 << 20)
    file.write(random.randbytes(10_000))
    file.seek(9 << 20)
    file.write(b"x")
with open(at("a/unwritten"), "wb") as file:
    os.posix_fallocate(file.fileno(), 0, 300_000)
    file.write(b"front")
for name, target in [
    ("a/b/rel", "hello.txt"),
    ("abs", "/a/b"),
    ("outside", "/etc/passwd"),
    ("a/up", "../../../../a/random"),
    ("loop", "loop"),
    ("long", "a/" + "./" * 60 + "text"),
]:
    os.symlink(target, at(name))
os.link(at("a/random"), at("hard"))
os.mkfifo(at("fifo"))
os.mknod(at("null"), 0o020666, os.makedev(1, 3))
os.mknod(at("disk"), 0o060660, os.makedev(259, 70000))
os.setxattr(at("a/text"), "user.color", b"blue")
os.setxattr(at("a/random"), "user.large", b"x" * 1800)
os.setxattr(at("a/b"), "trusted.kept", b"\0\1\2")
# user::rwx, user:1000:r--, group::r-x, mask::r-x, other::r-x
acl = bytes.fromhex("02000000" "01000700ffffffff" "02000400e8030000" "04000500ffffffff" "10000500ffffffff" "20000500ffffffff")
os.setxattr(at("a/small"), "system.posix_acl_access", acl)
os.setxattr(at("a/b"), "system.posix_acl_default", acl)
os.chown(at("a/b/hello.txt"), 1234, 70000)
os.chmod(at("a/b/hello.txt"), 0o4751)
os.chmod(at("a folder"), 0o1777)
os.utime(at("a/text"), ns=(1_000_000_001, 946_684_799_123_456_789))
os.utime(at("a/b"), ns=(5_000_000_000, -1_500_000_000))
