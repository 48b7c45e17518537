"""Exits: a normal end prints nothing; a worker that cannot start is an error once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import harness
import pytest
from harness import ITEMS, World

from forebay._runtime.node import ensure_node

SCRIPT = """
import sys
import forebay

def main():
    dataset = forebay.Dataset({digest!r}, storage_options={options})
    loader = forebay.DataLoader(
        dataset, batch_size=16, shuffle=True, num_workers=2, persistent_workers=True,
        multiprocessing_context={context!r}, collate_fn=list,
    )
    for _ in range(2):
        items = sum(len(batch) for batch in loader)
    print(items)
    return loader

{end}
"""

#: How a script ends while it still has a loader with persistent workers.
ENDS = {
    "at its last line": "loader = main()",
    "in an epoch": "loader = main(); epoch = iter(loader); next(epoch)",
    "with an exit code": "loader = main(); sys.exit(0)",
}


def run(world: World, directory: Path, context: str, end: str) -> tuple[int, str, str, int]:
    """The exit code and the outputs of the script, and its process id."""
    options = {name: world.options[name] for name in ("endpoint", "access_key", "secret_key")}
    script = directory / "script.py"
    digest = str(world.digest)
    script.write_text(SCRIPT.format(digest=digest, options=options, context=context, end=end))
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        out, error = process.communicate(timeout=300)
        return process.returncode, out, error, process.pid


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_script_with_persistent_workers_ends_quietly(
    world: World, tmp_path: Path, own_node: Path, context: str, end: str
) -> None:
    ensure_node(own_node)  # a new node says what it reserves
    guarded = f"if __name__ == '__main__':\n    {ENDS[end]}"
    code, out, error, pid = run(world, tmp_path, context, guarded)
    assert (code, out, error) == (0, f"{ITEMS}\n", "")
    # Neither workers, nor the agent, nor its directory is left; the node stays.
    harness.wait_until(lambda: not of_job(pid), 60)


def of_job(session: int) -> list[str]:
    """Processes of the job without the node, which serves other jobs as well."""
    return [line for line in harness.of_session(session) if " serve " not in line]


def test_a_script_that_spawns_workers_when_imported_fails_once(
    world: World, tmp_path: Path
) -> None:
    code, out, error, _ = run(world, tmp_path, "spawn", "main()")
    assert (code, out) == (1, "")
    last = error.strip().splitlines()[-1]
    assert "a worker could not start, and has printed why" in last
    assert "put that code under `if __name__ == '__main__':`" in last
    # One round of two workers, and no warnings of new ones.
    assert error.count("An attempt has been made to start a new process") <= 2
    assert "new workers read" not in error
