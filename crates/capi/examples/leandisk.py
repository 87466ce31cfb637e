"""libleandisk for Python, by ctypes: as much of it as list_files.py needs, and how the rest is added.

The library is looked for as the dynamic linker does, or at LEANDISK_LIBRARY.
"""

import ctypes
import json
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p

_library = ctypes.CDLL(os.environ.get("LEANDISK_LIBRARY", "libleandisk.so.0"))


class Error(Exception):
    """What a call ended with: `kind` is an exit status of the program leandisk."""

    def __init__(self, kind, message, hint):
        super().__init__(message)
        self.kind, self.hint = kind, hint


class _Versioned(ctypes.Structure):
    """A struct that begins with its size."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(self), **fields)


class DiskOptions(_Versioned):
    _fields_ = [
        ("struct_size", c_size_t),
        ("disk", c_char_p),
        ("format", c_char_p),
        ("allow_paths", POINTER(c_char_p)),
        ("allow_path_count", c_size_t),
        ("in_use", c_int),
        ("reserved", c_int),
    ]


class FileInfo(ctypes.Structure):
    _fields_ = [
        ("index", c_uint64),
        ("number", c_uint64),
        ("path", c_void_p),
        ("path_len", c_size_t),
        ("size_bytes", c_uint64),
        ("allocated_bytes", c_uint64),
        ("extent_count", c_uint32),
        ("kind", c_uint32),
        ("is_main", c_int),
        ("reserved", c_int),
    ]


REGULAR = 1
_Each = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(FileInfo))


def _text(pointer):
    return None if pointer is None else pointer.decode("utf-8", "replace")


def _check(error):
    """Called by ctypes with what each function answers."""
    if error:
        told = (
            _library.leandisk_error_kind(error),
            _text(_library.leandisk_error_message(error)),
            _text(_library.leandisk_error_hint(error)),
        )
        _library.leandisk_error_free(error)
        raise Error(*told)


def _declare(name, answer, *arguments):
    function = getattr(_library, name)
    function.restype, function.argtypes = answer, arguments


_declare("leandisk_version", c_char_p)
_declare("leandisk_error_kind", c_int, c_void_p)
_declare("leandisk_error_message", c_char_p, c_void_p)
_declare("leandisk_error_hint", c_char_p, c_void_p)
_declare("leandisk_error_free", ctypes.c_bool, c_void_p)
_declare("leandisk_string_free", ctypes.c_bool, c_void_p)
_declare("leandisk_disk_open", c_void_p, POINTER(DiskOptions), POINTER(c_void_p))
_declare("leandisk_disk_info", c_void_p, c_void_p, POINTER(c_void_p))
_declare("leandisk_disk_files", c_void_p, c_void_p, c_uint32, _Each, c_void_p)
_declare("leandisk_disk_close", c_void_p, c_void_p)
_declare("leandisk_file_open", c_void_p, c_void_p, c_uint32, c_uint64, POINTER(c_void_p))
_declare("leandisk_file_read", c_void_p, c_void_p, c_uint64, c_void_p, c_size_t, POINTER(c_size_t))
_declare("leandisk_file_close", c_void_p, c_void_p)


def version():
    return _text(_library.leandisk_version())


class Disk:
    """An open disk. Nothing of it is ever written."""

    def __init__(self, path, in_use=False):
        self._handle = c_void_p()
        options = DiskOptions(disk=os.fsencode(path), in_use=int(in_use))
        _check(_library.leandisk_disk_open(byref(options), byref(self._handle)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        _check(_library.leandisk_disk_close(self._handle))

    def info(self):
        """The document leandisk.info/1."""
        document = c_void_p()
        _check(_library.leandisk_disk_info(self._handle, byref(document)))
        try:
            return json.loads(ctypes.string_at(document))
        finally:
            _library.leandisk_string_free(document)

    def files(self, volume):
        """The files of a volume: (index, path, kind, size, is_main) each."""
        found = []

        def each(_, file):
            file = file.contents
            path = ctypes.string_at(file.path, file.path_len)
            found.append((file.index, path, file.kind, file.size_bytes, bool(file.is_main)))
            return 0

        _check(_library.leandisk_disk_files(self._handle, volume, _Each(each), None))
        return found

    def read(self, volume, index, piece_bytes=1 << 20):
        """The contents of a file, piece by piece."""
        file = c_void_p()
        _check(_library.leandisk_file_open(self._handle, volume, index, byref(file)))
        try:
            buffer, length, offset = ctypes.create_string_buffer(piece_bytes), c_size_t(), 0
            while True:
                _check(_library.leandisk_file_read(file, offset, buffer, piece_bytes, byref(length)))
                if length.value == 0:
                    return
                yield buffer.raw[: length.value]
                offset += length.value
        finally:
            _check(_library.leandisk_file_close(file))
