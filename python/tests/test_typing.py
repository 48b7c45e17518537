"""Types: what type checkers make of a user's script, and PyTorch as an option."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import CONTENTS, World
from torch.utils import data

import forebay

SCRIPT = Path(__file__).with_name("typed_script.py")
#: Calls that a type checker must refuse.
WRONG = (
    'forebay.Dataset("x.digest", columms=["label"])',
    'forebay.Dataset("x.digest", on_error="ignore")',
    'forebay.DataLoader(forebay.Dataset("x.digest"), persistent_worker=True)',
    'forebay.DataLoader(forebay.Dataset("x.digest"), order="random")',
    'forebay.Dataset("x.digest")[0] + 1',
)


def checked(checker: list[str], script: Path) -> subprocess.CompletedProcess[str]:
    command = [*checker, str(script)]
    return subprocess.run(
        command, cwd=script.parent, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.fixture(params=["mypy", "pyright"])
def checker(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """The command of a type checker in its strict mode, without the project's own settings."""
    if request.param == "mypy":
        settings = tmp_path / "mypy.ini"
        settings.write_text("[mypy]\nstrict = true\n")
        cache = str(Path(sys.prefix).parent / "mypy-of-scripts")
        return [sys.executable, "-m", "mypy", "--config-file", str(settings), "--cache-dir", cache]
    if (pyright := shutil.which("pyright")) is None:
        pytest.skip("pyright is not installed")
    return [pyright, "--pythonpath", sys.executable]


def test_a_users_script_is_accepted(checker: list[str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.read_text())
    found = checked(checker, script)
    assert found.returncode == 0, found.stdout + found.stderr


def test_wrong_calls_are_refused(checker: list[str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import forebay\n\n" + "".join(f"{call}\n" for call in WRONG))
    found = checked(checker, script)
    for line, call in enumerate(WRONG, start=3):
        assert f"script.py:{line}:" in found.stdout, call


def test_datasets_are_datasets_of_pytorch(world: World) -> None:
    dataset = world.dataset(cache=None)
    mixture = forebay.Mixture([(dataset, 1.0)])
    wrapped = forebay.wrap(CONTENTS, name="typed", cache=None)
    for one in (dataset, mixture, wrapped):
        assert isinstance(one, data.Dataset)
        first, second = data.random_split(one, [0.5, 0.5])
        assert len(first) + len(second) == len(CONTENTS)
    assert data.Subset(dataset, [3, 5])[1] == CONTENTS[5]


def run_without_torch(script: str) -> str:
    """Run a script in a Python that has no PyTorch; its output."""
    hides = "import sys; sys.modules['torch'] = None\n"
    command = [sys.executable, "-c", hides + script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_pytorch_datasets_work_and_the_loader_names_the_extra(world: World) -> None:
    """Promise 1 does not need PyTorch."""
    options = {name: world.options[name] for name in ("endpoint", "access_key", "secret_key")}
    script = (
        "import forebay\n"
        f"dataset = forebay.Dataset({str(world.digest)!r}, cache=None, storage_options={options})\n"
        "print(len(dataset[3]), [len(item) for item in dataset[:2]])\n"
        "for name in ('DataLoader', 'Sampler', 'IterableDataset'):\n"
        "    try:\n"
        "        getattr(forebay, name)\n"
        "    except ImportError as problem:\n"
        "        print(problem)\n"
    )
    lines = run_without_torch(script).splitlines()
    assert lines[0] == f"{len(CONTENTS[3])} {[len(item) for item in CONTENTS[:2]]}"
    assert lines[1] == (
        "forebay.DataLoader needs PyTorch, which is not installed; install it with"
        " `pip install 'forebay[torch]'`"
    )
    assert len(lines) == 4


def test_slices_and_lists_are_indices(world: World) -> None:
    import numpy as np
    import torch

    dataset = world.dataset(cache=None)
    assert dataset[-3:] == CONTENTS[-3:]
    assert dataset[::50] == CONTENTS[::50]
    assert dataset[5:5] == []
    for indices in ([4, -1, 4], (4, -1, 4), np.array([4, -1, 4]), torch.tensor([4, -1, 4])):
        assert dataset[indices] == [CONTENTS[4], CONTENTS[-1], CONTENTS[4]]
    scalars: list[Any] = [np.int64(4), torch.tensor(4)]
    assert [dataset[index] for index in scalars] == [CONTENTS[4]] * 2
    with pytest.raises(TypeError, match="a whole number, a slice or a list of numbers, not 'x'"):
        dataset["x"]  # type: ignore[index]
    for mask in ([True, False], np.array([True]), torch.tensor([True])):
        with pytest.raises(TypeError, match="of a mask, give nonzero"):
            dataset[mask]
    with pytest.raises(IndexError, match="item 203 of 203"):
        dataset[[0, 203]]
    mixture = forebay.Mixture([(dataset, 1.0)])
    wrapped = forebay.wrap(CONTENTS, name="slices", cache=None)
    assert mixture[2:4] == wrapped[2:4] == CONTENTS[2:4]


def test_representations_are_short_and_name_the_data(world: World) -> None:
    dataset = world.dataset(cache=None)
    assert repr(dataset) == f"forebay.Dataset('{world.digest}', 203 items)"
    part = dataset.subset([1, 2])
    assert repr(part) == f"forebay.Dataset('{world.digest}', 2 of 203 items)"
    assert repr(forebay.Mixture([(part, 2)])) == f"forebay.Mixture([({part!r}, 1)])"
    loader = forebay.DataLoader(part, batch_size=2, shuffle=True, num_workers=1)
    assert repr(loader) == (
        f"forebay.DataLoader({part!r}, batch_size=2, order='substitute', num_workers=1)"
    )
    wrapped = forebay.wrap(list(range(1000)), name="numbers", cache=None)
    assert repr(wrapped) == "forebay.wrap('numbers', 1000 items)"


def test_statistics_print_as_one_line_and_have_all_counters(world: World, own_node: Path) -> None:
    dataset = world.dataset()
    loader = forebay.DataLoader(dataset, batch_size=50, shuffle=True, collate_fn=list)
    for _ in range(2):
        assert sum(map(len, loader)) == len(CONTENTS)
    stats = loader.stats()
    assert str(stats).startswith("406 items in 10 batches, ")
    assert " from the cache, 1.2 MB read from the origin, waited " in str(stats)
    assert f"'origin_bytes': {stats['origin_bytes']}" in str(dict(stats))
    # The last puts may be under way.
    line = r"1\.2 MB read from the origin, the node holds [\d.]+ .?B of [\d.]+ MB"
    assert re.fullmatch(line, str(dataset.stats()))
    assert str(world.dataset(cache=None).stats()) == "0 B read from the origin, no node"
