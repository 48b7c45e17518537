"""``forebay.DataLoader``: every item exactly once per epoch, in any order (promise 2)."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import harness
import pytest
import torch
from harness import BYTES, CONTENTS, ITEMS, World
from torch.utils import data

import forebay
from forebay._native import Job
from forebay._runtime.node import ensure_node

WORKERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2, "multiprocessing_context": "fork"},
    # Spawned workers import torch again, which takes seconds: `test_workers.py` has them.
]


def items_of(batches: Iterable[list[bytes]]) -> list[bytes]:
    return [item for batch in batches for item in batch]


def is_every_item_once(items: Iterable[bytes]) -> bool:
    return Counter(items) == Counter(CONTENTS)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("order", ["strict", "substitute"])
@pytest.mark.parametrize("workers", WORKERS, ids=["alone", "fork"])
def test_every_item_exactly_once(world: World, order: Any, workers: dict[str, Any]) -> None:
    loader = forebay.DataLoader(
        world.dataset(), batch_size=16, shuffle=True, order=order, collate_fn=list, **workers
    )
    epochs = [list(loader), list(loader)]
    for batches in epochs:
        assert [len(batch) for batch in batches] == [16] * 12 + [11]
        assert is_every_item_once(items_of(batches))
    assert items_of(epochs[0]) != items_of(epochs[1])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("seed", [None, 7])
def test_the_strict_order_is_pytorchs(
    world: World, workers: int, shuffle: bool, seed: int | None
) -> None:
    dataset = world.dataset()
    orders = []
    for make in (data.DataLoader[Any], forebay.DataLoader):
        torch.manual_seed(11)
        options: dict[str, Any] = {"order": "strict"} if make is forebay.DataLoader else {}
        loader = make(
            dataset,
            batch_size=5,
            shuffle=shuffle,
            num_workers=workers,
            generator=None if seed is None else seeded(seed),
            collate_fn=list,
            **options,
        )
        # Random numbers drawn between epochs must be the same, too.
        orders.append([list(loader), torch.rand(3).tolist(), list(loader)])
    assert orders[0] == orders[1]


def test_the_sampler_draws_and_announces_every_item_once(world: World) -> None:
    job = Job(world.dataset(cache=None)._layout, 3, 0, 16)
    drawn, announced = list[int](), list[int]()
    while batch := job.next_batch():
        drawn += batch[0]
        announced += job.upcoming(40)
        job.on_yielded()
    assert sorted(drawn) == list(range(ITEMS))
    # All items except the first batch, which is drawn before the first announcement.
    assert len(announced) == len(set(announced))
    assert set(drawn[16:]) <= set(announced) | set(drawn[:16])


def test_substitution_prefers_resident_items(tmp_path: Path, own_node: Path) -> None:
    """Promise 8: resident items come first, but only among a batch's candidates."""
    with harness.origin(tmp_path / "very slow", "--latency", "200ms") as world:
        dataset = world.dataset()
        dataset.__getitems__(range(30))
        # Before the agent fetches the rest ahead.
        harness.kill(harness.listener(harness.agent_socket(dataset)))
        bits = dataset._reader.presence()
    assert len(bits) == -(-ITEMS // 8)
    resident = [item for item in range(ITEMS) if bits[item // 8] >> item % 8 & 1]
    assert 29 <= len(resident) < ITEMS

    job = Job(dataset._layout, 3, 0, 16)
    drawn = job.next_batch(dataset._reader)
    assert drawn is not None
    items, missing, _ = drawn
    preferred = [item for item in items if item in resident]
    assert len(preferred) == 16 - len(missing)
    assert not set(missing) & set(resident)
    # 30 of 203 items are resident, so about 24 of the 160 candidates.
    assert len(preferred) > 10


def test_the_same_generator_and_epoch_give_the_same_order(world: World) -> None:
    dataset = world.dataset(cache=None)  # without a node no item is preferred

    def make(seed: int) -> forebay.DataLoader:
        return forebay.DataLoader(
            dataset, batch_size=8, shuffle=True, generator=seeded(seed), collate_fn=list
        )

    first = make(1)
    epochs = [list(first) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    resumed = make(1)
    resumed.set_epoch(2)
    assert list(resumed) == epochs[2]
    assert list(make(2)) != epochs[0]


@pytest.mark.parametrize("order", [None, "strict", "substitute"])
@pytest.mark.parametrize("workers", WORKERS, ids=["alone", "fork"])
def test_threads_can_each_have_an_iterator(
    world: World, order: Any, workers: dict[str, Any]
) -> None:
    options = {"batch_size": 16, "shuffle": order is not None, "collate_fn": list, **workers}
    loader = forebay.DataLoader(world.dataset(), order=order, **options)

    def has_whole_epochs(_: int) -> bool:
        return all([is_every_item_once(items_of(loader)) for _ in range(3)])

    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(has_whole_epochs, range(3)))


def test_drop_last_with_persistent_workers(world: World) -> None:
    loader = forebay.DataLoader(
        world.dataset(),
        batch_size=16,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        drop_last=True,
        collate_fn=list,
    )
    for _ in range(3):
        items = items_of(loader)
        assert len(items) == 192
        assert len(set(items)) == 192
    assert len(loader) == 12
    assert loader.batch_size == 16


@pytest.mark.parametrize("order", ["strict", "substitute"])
@pytest.mark.parametrize("has_ended", [False, True])
def test_persistent_workers_read_the_epoch_that_was_begun_last(
    world: World, order: Any, has_ended: bool
) -> None:
    """An iterator of an earlier epoch gets none of its batches."""

    def new_loader() -> forebay.DataLoader:
        options = {**WORKERS[1], "persistent_workers": True}
        dataset = world.dataset(cache=None)
        return forebay.DataLoader(
            dataset, 16, shuffle=True, order=order, collate_fn=list, **options
        )

    loader = new_loader()
    earlier = iter(loader)
    items_of(earlier) if has_ended else next(earlier)
    later = iter(loader)
    items = next(later)
    if has_ended:
        assert next(earlier, None) is None
    else:
        with pytest.raises(RuntimeError, match=r"same persistent workers.*give persistent"):
            next(earlier)
    resumed = new_loader()
    resumed.load_state_dict(loader.state_dict())
    for rest in (later, resumed):
        assert is_every_item_once([*items, *items_of(rest)])


def test_a_sampler_of_the_user_is_honoured(world: World) -> None:
    dataset = world.dataset()
    loader = forebay.DataLoader(dataset, batch_size=2, sampler=[3, 1, 2], collate_fn=list)
    assert list(loader) == [[CONTENTS[3], CONTENTS[1]], [CONTENTS[2]]]
    loader = forebay.DataLoader(dataset, batch_sampler=[[3, 1], [2]], collate_fn=list)
    assert list(loader) == [[CONTENTS[3], CONTENTS[1]], [CONTENTS[2]]]
    with pytest.raises(ValueError, match="substitute"):
        forebay.DataLoader(dataset, sampler=[1], order="substitute")
    with pytest.raises(ValueError, match="there is no order"):
        forebay.DataLoader(dataset, shuffle=True, order="random")  # type: ignore[arg-type]


def test_pytorchs_loader_reads_a_dataset(world: World) -> None:
    dataset: Any = world.dataset()
    loader = data.DataLoader(dataset, batch_size=16, shuffle=True, num_workers=2, collate_fn=list)
    assert is_every_item_once(items_of(loader))


def test_two_jobs_share_one_fetch(world: World, tmp_path: Path) -> None:
    """Promise 3: a resident or claimed blob is not fetched again, apart from counted exceptions.

    On a busy machine a job may take its node for hung.
    """
    world.reset_counters()
    script = (
        "import sys, forebay\n"
        f"dataset = forebay.Dataset({str(world.digest)!r}, cache=sys.argv[1],"
        f" storage_options={world.options!r})\n"
        "loader = forebay.DataLoader("
        "dataset, batch_size=16, shuffle=True, num_workers=2, collate_fn=list)\n"
        "items = [item for _ in range(2) for batch in loader for item in batch]\n"
        "agent = dataset.stats()['agent']\n"
        "exceptions = agent['agent_fallbacks'] + agent['agent_uncached']\n"
        "print(len(items), len(set(items)), exceptions)\n"
    )
    with harness.node(tmp_path / "node", "--capacity", "100MB"):
        command = [sys.executable, "-c", script, str(tmp_path / "node" / "node.sock")]
        jobs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        outputs = [job.communicate(timeout=60)[0].split() for job in jobs]
    assert [words[:2] for words in outputs] == [[str(2 * ITEMS), str(len(set(CONTENTS)))]] * 2
    counters = world.counters()
    gets = [object["gets"] for object in counters["objects"].values()]
    assert min(gets) == 1
    assert sum(gets) <= len(gets) + sum(int(words[2]) for words in outputs)
    assert counters["bytes_sent"] == BYTES or sum(gets) > len(gets)


@pytest.mark.parametrize("order", ["strict", "substitute"])
@pytest.mark.parametrize("victim", ["node", "agent", "connections"])
def test_every_item_comes_once_if_a_component_dies_in_mid_epoch(
    slow_world: World, own_node: Path, order: Any, victim: str
) -> None:
    """Promise 5: no cache fault fails or hangs a job."""
    dataset = slow_world.dataset()
    loader = forebay.DataLoader(
        dataset, batch_size=8, shuffle=True, order=order, num_workers=2, collate_fn=list
    )
    items: list[bytes] = []
    for number, batch in enumerate(loader):
        items += batch
        if number in (3, 9):
            if victim in ("node", "connections") and number == 3:
                harness.kill(harness.listener(own_node))
            # Once the node has all items, the agent is not started again.
            if victim == "agent" and (number == 3 or harness.agent_is_up(dataset)):
                harness.kill(harness.listener(harness.agent_socket(dataset)))
            if victim == "connections" and number == 3:
                # A new node at the same socket: every connection breaks and is made again.
                ensure_node(own_node)
    assert is_every_item_once(items)


def test_an_error_in_a_worker_names_the_object(slow_world: World) -> None:
    dataset = slow_world.dataset(cache=None)
    (slow_world.objects / "00042.bin").write_bytes(b"something else")
    loader = forebay.DataLoader(dataset, batch_size=64, num_workers=1, collate_fn=list)
    with pytest.raises(forebay.ReadError, match=r"00042\.bin"):
        list(loader)


def test_the_example_of_the_readme(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    example = readme.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(world.directory)
    monkeypatch.setenv("AWS_ENDPOINT_URL", world.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", str(world.options["access_key"]))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", str(world.options["secret_key"]))
    exec(example, {})
    sums = re.findall(r"tensor\((\d+)\)", capsys.readouterr().out)
    assert sum(map(int, sums)) == BYTES


def test_forebay_does_not_import_torch() -> None:
    script = "import sys, forebay; assert 'torch' not in sys.modules; forebay.DataLoader"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


COPIED: dict[str, dict[str, Any]] = {
    "none": {},
    "strict": {"shuffle": True, "order": "strict", "generator": seeded(3)},
    "substitute": {"shuffle": True, "generator": seeded(3)},
    "lengths": {"shuffle": True, "lengths": "label"},
    "workers": {"shuffle": True, "num_workers": 1, "persistent_workers": True},
}


@pytest.mark.parametrize("options", COPIED)
def test_a_copy_of_a_loader_begins_with_its_next_epoch(world: World, options: str) -> None:
    dataset = world.dataset(cache=None)
    loader = forebay.DataLoader(dataset, batch_size=16, collate_fn=list, **COPIED[options])

    def copied() -> forebay.DataLoader:
        return pickle.loads(pickle.dumps(loader))  # type: ignore[no-any-return]

    first = copied()
    assert list(first) == list(loader)
    epoch = iter(loader)
    first_batch = next(epoch)
    second = copied()
    assert is_every_item_once(items_of([first_batch, *epoch])), "the original continues"
    assert list(second) == list(loader)
    next(begun := iter(first))
    loader.load_state_dict(first.state_dict())
    rest = list(copied())
    assert rest == list(loader) == list(begun), "a loaded state is copied"


def test_loaders_of_all_orders_can_be_copied(world: World) -> None:
    dataset = world.dataset(cache=None)
    options: dict[str, Any] = {"batch_size": 16, "collate_fn": list}
    shuffled = forebay.DataLoader(dataset, shuffle=True, **options)
    yielded = list(shuffled)
    sampler = data.RandomSampler(dataset, generator=seeded(4))
    for loader in (
        forebay.DataLoader(dataset, order="replay", replay=shuffled.recording(), **options),
        forebay.DataLoader(dataset, sampler=sampler, **options),
        forebay.DataLoader(forebay.Mixture([(dataset, 1.0)]), shuffle=True, **options),
        forebay.DataLoader(forebay.wrap(CONTENTS, name="all", cache=None), shuffle=True, **options),
    ):
        copied = pickle.loads(pickle.dumps(loader))
        torch.manual_seed(5)
        batches = list(copied)
        torch.manual_seed(5)
        assert batches == list(loader)
        assert is_every_item_once(items_of(batches))
    assert is_every_item_once(items_of(yielded))
