"""Terminals never receive control characters from outside."""

from __future__ import annotations

import os
import pty
import subprocess
import unicodedata
import warnings
from pathlib import Path

import harness
import pytest
from harness import CONTENTS, World

import forebay
from forebay._runtime.processes import binary
from forebay._runtime.warnings import warn

#: Clears a screen, sets a title, forges a line, reorders text; and the same in one byte each.
HOSTILE = "job\x1b[2J\x1b]0;title\x07\nerror: forged\r\x9b31m\x7f\u202e"


def is_safe(text: str) -> bool:
    return all(
        char == "\n" or unicodedata.category(char) not in ("Cc", "Cf", "Zl", "Zp") for char in text
    )


def on_a_terminal(command: list[str]) -> bytes:
    """What a command writes to its terminal."""
    master, terminal = pty.openpty()
    with subprocess.Popen(command, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        written = b""
        try:
            while more := os.read(master, 65536):
                written += more
        except OSError:  # the end of a terminal
            pass
        finally:
            os.close(master)
        process.wait(timeout=60)
    return written


def test_no_command_prints_a_control_character(world: World, tmp_path: Path) -> None:
    with harness.node(tmp_path / "node", "--capacity", "100MB"):
        node = str(tmp_path / "node" / "node.sock")
        dataset = world.dataset(cache=node, job=HOSTILE)
        loader = forebay.DataLoader(dataset, batch_size=32, shuffle=True, order="substitute")
        epoch = iter(loader)
        next(epoch)
        digest = str(world.digest)
        hostile = str(tmp_path / HOSTILE.replace("/", ""))
        commands = [
            ["explain", digest, "--socket", node],
            ["explain", digest, "--socket", node, "--format", "json"],
            ["top", digest, "--socket", node, "--times", "1"],
            ["status", "--socket", node],
            ["status", "--socket", hostile],
            ["digest", "show", hostile],
            ["digest", "build", hostile, "-o", hostile],
            ["doctor", "--config", hostile],
            ["serve", "--config", hostile],
            [HOSTILE],
        ]
        for command in commands:
            done = subprocess.run(
                [binary(), *command], capture_output=True, timeout=60, check=False
            )
            for output in (done.stdout, done.stderr):
                assert is_safe(output.decode()), (command, output)
                assert "\nerror: forged" not in output.decode()
        explained = subprocess.run(
            [binary(), *commands[0]], capture_output=True, timeout=60, check=True
        )
        assert "job\\u{1b}[2J" in explained.stdout.decode(), "the name is shown, escaped"
        screen = on_a_terminal([binary(), *commands[2]])
        assert b"job\\u{1b}[2J" in screen
        assert b"\x1b[2J" not in screen
        assert b"\x07" not in screen
        list(epoch)


def test_warnings_and_errors_of_a_job_are_printable(world: World) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn(f"something about `{HOSTILE}`")
    assert is_safe(str(caught[0].message))
    with pytest.raises(forebay.ForebayError) as problem:
        world.dataset(origin=f"s3://bucket/{HOSTILE}", cache=None)[0]
    assert is_safe(str(problem.value))
    assert world.dataset(cache=None)[0] == CONTENTS[0]
