"""mark_dirty.py DISK START: sets the dirty flag in $Volume, and in its mirror, of the NTFS volume at START of DISK."""

import struct
import sys

RECORD_BYTES = 1024
VOLUME_INFORMATION = 0x70

with open(sys.argv[1], "r+b") as disk:
    start = int(sys.argv[2])
    disk.seek(start)
    boot = disk.read(512)
    cluster = struct.unpack_from("<H", boot, 11)[0] * boot[13]
    for field in (48, 56):
        record_at = start + struct.unpack_from("<Q", boot, field)[0] * cluster + 3 * RECORD_BYTES
        disk.seek(record_at)
        record = bytearray(disk.read(RECORD_BYTES))
        at = struct.unpack_from("<H", record, 20)[0]
        while struct.unpack_from("<I", record, at)[0] != VOLUME_INFORMATION:
            at += struct.unpack_from("<I", record, at + 4)[0]
        value = at + struct.unpack_from("<H", record, at + 20)[0]
        record[value + 10] |= 1
        disk.seek(record_at)
        disk.write(record)
