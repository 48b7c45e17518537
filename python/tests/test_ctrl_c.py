"""Ctrl-C at any moment ends a job at once, and leaves no process, socket or directory behind.

A process that has imported everything forks a job for every moment, in a process group of its own,
which is what a terminal interrupts. A job ends as any Python program does.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import harness
import pytest
from harness import World

#: Moments that are tried: before the agent is there, while it starts, amidst epochs, at the end.
MOMENTS = int(os.environ.get("MOMENTS", "8"))
#: A job that was interrupted is gone by then, also on a busy machine.
PATIENCE = 30.0

SCRIPT = """
import json, os, signal, sys
import torch
import forebay

told = json.loads(sys.argv[1])

def job(workers, order):
    dataset = forebay.Dataset(told["digest"], storage_options=told["options"])
    print("begins", flush=True)
    loader = forebay.DataLoader(
        dataset, batch_size=16, shuffle=True, order=order, num_workers=workers, collate_fn=list
    )
    while True:
        for batch in loader:
            pass

while line := sys.stdin.readline():
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(os.getpid(), flush=True)
        job(*json.loads(line))  # and ends as it may
        sys.exit("unreachable")
    _, status = os.wait()
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


def of_session(session: int) -> list[str]:
    """What is left of a job: processes of its session, and agents that were started for it."""
    left = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        is_agent = f"--job-pid {session} " in command
        if fields[0] != "Z" and (int(fields[3]) == session or is_agent):
            left.append(f"{entry.name}: {command}")
    return left


@pytest.mark.parametrize("seed", [0])
def test_ctrl_c_at_any_moment(
    slow_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    told = {"digest": str(slow_world.digest), "options": slow_world.options}
    command = [sys.executable, "-c", SCRIPT, json.dumps(told)]
    errors = (tmp_path / "errors").open("w+")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        for moment in range(MOMENTS):
            workers, order = chance.choice([0, 2]), chance.choice(["substitute", "strict"])
            wait = chance.uniform(0.0, 1.5) ** 2
            about = f"seed {seed}, moment {moment}: {workers} workers, {order}, {wait:.3f} s"
            parent.stdin.write(json.dumps([workers, order]) + "\n")
            parent.stdin.flush()
            job = int(parent.stdout.readline())
            assert parent.stdout.readline() == "begins\n", about
            time.sleep(wait)
            began = time.monotonic()
            os.killpg(job, signal.SIGINT)
            code = int(parent.stdout.readline())
            assert code in (1, -signal.SIGINT), f"{about}: it ended with {code}"
            assert time.monotonic() - began < PATIENCE, about
            harness.wait_until(lambda job=job: not of_session(job), PATIENCE)  # type: ignore[misc]
            harness.wait_until(lambda: not list(temporary.iterdir()), PATIENCE)
        parent.stdin.close()
    errors.seek(0)
    said = errors.read()
    assert said.count("KeyboardInterrupt") >= MOMENTS, said
    for trouble in ("ForebayError", "AgentGone", "leaked", "Exception ignored"):
        assert trouble not in said, said
