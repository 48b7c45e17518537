"""What tests of streams share: stores, data and scripts."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from forebay.stream import Store

#: Generous: the machines of CI are slow.
DEADLINE = 60.0
CAPACITY = "65MiB"
DTYPES = ["?", "i1", "<u2", ">i4", "<i8", "<f2", "<f4", ">f8", "<c16", "S5", "<U3", "V7"]
DTYPES += ["<M8[ns]", "<m8[D]"]


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def random_array(dtype: Any, shape: tuple[int, ...], seed: int = 1) -> np.ndarray[Any, Any]:
    dtype = np.dtype(dtype)
    count = int(np.prod(shape)) * dtype.itemsize
    values = np.random.default_rng(seed).integers(0, 2, count, np.uint8)
    array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, values.tobytes() or b"0")
    return array


def same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def is_view(store: Store, array: np.ndarray[Any, Any]) -> bool:
    """Whether the first value lies in the store's memory for reading."""
    first, end = store._native.read_memory()
    return bool(first <= array.__array_interface__["data"][0] < end)


def is_all_back(store: Store) -> bool:
    facts = store.facts()
    return facts["read_memory_free_bytes"] == facts["read_memory_bytes"]


class Table:
    """An Arrow producer that is written by hand: one column ``x`` of int64."""

    def __init__(self, rows: int, *, is_nullable: bool = True) -> None:
        self.values = (ctypes.c_int64 * rows)(*range(rows))
        self.flags = 2 if is_nullable else 0
        self.keep: list[Any] = []

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        pointer, release = ctypes.c_void_p, ctypes.CFUNCTYPE(None, ctypes.c_void_p)

        class Schema(ctypes.Structure):
            pass

        class Array(ctypes.Structure):
            pass

        Schema._fields_ = [
            ("format", ctypes.c_char_p),
            ("name", ctypes.c_char_p),
            ("metadata", pointer),
            ("flags", ctypes.c_int64),
            ("n_children", ctypes.c_int64),
            ("children", ctypes.POINTER(ctypes.POINTER(Schema))),
            ("dictionary", pointer),
            ("release", release),
            ("private_data", pointer),
        ]
        Array._fields_ = [
            ("length", ctypes.c_int64),
            ("null_count", ctypes.c_int64),
            ("offset", ctypes.c_int64),
            ("n_buffers", ctypes.c_int64),
            ("n_children", ctypes.c_int64),
            ("buffers", ctypes.POINTER(pointer)),
            ("children", ctypes.POINTER(ctypes.POINTER(Array))),
            ("dictionary", pointer),
            ("release", release),
            ("private_data", pointer),
        ]

        def on_release(address: int) -> None:
            # A released structure has no release function.
            for kind in (Schema, Array):
                for kept in self.keep:
                    if isinstance(kept, kind) and ctypes.addressof(kept) == address:
                        kept.release = release()

        done = release(on_release)
        column = Schema(b"l", b"x", None, self.flags, 0, None, None, done, None)
        columns = (ctypes.POINTER(Schema) * 1)(ctypes.pointer(column))
        schema = Schema(b"+s", b"", None, 0, 1, columns, None, done, None)
        buffers = (pointer * 2)(None, ctypes.addressof(self.values))
        rows = len(self.values)
        values = Array(rows, 0, 0, 2, 0, buffers, None, None, done, None)
        children = (ctypes.POINTER(Array) * 1)(ctypes.pointer(values))
        nothing = (pointer * 1)(None)
        array = Array(rows, 0, 0, 1, 1, nothing, children, None, done, None)
        self.keep += [done, column, columns, schema, buffers, values, children, nothing, array]
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [pointer, ctypes.c_char_p, pointer]
        return (
            new(ctypes.addressof(schema), b"arrow_schema", None),
            new(ctypes.addressof(array), b"arrow_array", None),
        )


SCRIPT = """
import os, signal, sys, threading, time
import numpy as np
from forebay.stream import Store
store = Store(sys.argv[1], "65MiB")
kept = store.create("kept", lifetime="kept")
kept.append(np.arange(3))
kept.seal()
writer = store.create("open")
writer.append(b"block")
{body}
"""


def run_script(path: Path, body: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT.format(body=body), str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
