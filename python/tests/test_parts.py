"""Parts of a dataset, labels, decoders, weights and the deterministic order."""

from __future__ import annotations

import io
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import pytest
import torch
from harness import CONTENTS, ITEMS, World

import forebay

#: Ten chunks of 1.5 MiB.
LARGE = [f"{item:04}".encode() * (8 << 10) for item in range(480)]


@pytest.fixture
def dataset(world: World) -> forebay.Dataset:
    return world.dataset(cache=None)


@pytest.fixture(scope="module")
def large_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A dataset that is larger than the node of these tests."""
    with harness.origin(tmp_path_factory.mktemp("large"), contents=LARGE) as world:
        yield world


def loader_of(dataset: Any, seed: int = 3, **options: Any) -> forebay.DataLoader:
    options = {"batch_size": 16, "shuffle": True, "collate_fn": list, **options}
    return forebay.DataLoader(dataset, generator=torch.Generator().manual_seed(seed), **options)


def items_of(loader: forebay.DataLoader) -> Counter[bytes]:
    return Counter(item for batch in loader for item in batch)


def test_a_split_has_disjoint_parts_that_are_the_same_for_a_seed(dataset: forebay.Dataset) -> None:
    train, validation = dataset.split(0.9, seed=1)
    assert (len(train), len(validation)) == (183, 20)
    assert Counter(train) + Counter(validation) == Counter(CONTENTS)
    assert list(dataset.split(0.9, seed=1)[1]) == list(validation)
    assert list(dataset.split(0.9, seed=2)[1]) != list(validation)
    assert [len(part) for part in dataset.split(0.5, 0.25, 0.25)] == [102, 50, 51]
    # A part of a part, by its own indices.
    again = train.subset([150, 100])
    assert again[:] == [train[150], train[100]]
    assert pickle.loads(pickle.dumps(again))[:] == again[:]


def test_impossible_parts_are_refused(dataset: forebay.Dataset) -> None:
    refusals: list[tuple[Callable[[], Any], str]] = [
        (lambda: dataset.split(), "no fractions; give at least one"),
        (lambda: dataset.split(0.7, 0.6), "add up to 1.29.*, so parts would overlap"),
        (lambda: dataset.split(0.001), "part 0 of the split, 0.001 of 203 items, is empty"),
        (lambda: dataset.split(-0.5), "-0.5 is not between 0 and 1"),
        (lambda: dataset.subset([]), "the subset has no items"),
        (lambda: dataset.filter("label", lambda label: label > 10), "none of 203 items is kept"),
        (lambda: dataset.repeat([1, -1]), "2 counts for 203 items"),
        (lambda: dataset.repeat(-1), "the count -1 is negative; give 0 or more"),
        (lambda: dataset.repeat(0), "all counts are 0"),
        (lambda: dataset.repeat(2**30), "too many for one epoch"),
    ]
    for act, message in refusals:
        with pytest.raises(ValueError, match=message):
            act()
    with pytest.raises(IndexError, match="item 203 of 203"):
        dataset.subset([203])
    with pytest.raises(TypeError, match="give whole numbers"):
        dataset.repeat(1.5)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="no column `nosuch`"):
        dataset.filter("nosuch", bool)


def test_columns_and_filters_follow_the_part(world: World) -> None:
    dataset = world.dataset(cache=None, columns=["label"])
    part = dataset.filter("label", lambda label: label == 3)
    assert [label for _, label in part] == [3] * 20
    assert part.column("object")[1] == "00013.bin"
    even = part.filter("object", lambda name: int(name[:5]) % 20 == 3)
    assert even.column("name")[:2] == ["name 3", "name 23"]


def test_a_loader_over_a_part_draws_from_the_cache_and_rotates(
    large_world: World, tmp_path: Path
) -> None:
    """Promises 2 and 3: every item of the part once, and nothing of the rest is read."""
    with harness.node(tmp_path / "node", "--capacity", "11MiB", "--memory-cache", "1MiB"):
        whole = large_world.dataset(cache=tmp_path / "node" / "node.sock")
        train, validation = whole.split(0.75, seed=5)
        loader, spent = loader_of(train, num_workers=2), []
        expected = Counter(train.column("object"))
        assert len(expected) == 360
        for _ in range(3):
            large_world.reset_counters()
            seen = items_of(loader)
            assert seen == Counter(LARGE[int(name[:5])] for name in expected)
            spent.append(large_world.counters()["bytes_sent"])
        stats = loader.stats()
        assert stats["reports"] > 0, "it takes part in rotation"
        assert stats["pinned_share"] > 0.2
        of_part = sum(len(LARGE[int(name[:5])]) for name in expected)
        assert spent[0] <= 1.1 * of_part, "nothing but the part is read"
        assert spent[2] < 0.8 * of_part, "what is pinned is not read again"
        # Validation between two epochs, and training goes on.
        assert items_of(loader_of(validation, shuffle=False)).total() == 120
        assert items_of(loader).total() == 360


def test_a_part_resumes_with_other_ranks_and_refuses_other_parts(dataset: forebay.Dataset) -> None:
    """Promise 2, after a resume."""
    train, validation = dataset.split(0.8, seed=1)
    loaders = [loader_of(train, batch_size=8, rank=rank, world_size=2) for rank in range(2)]
    seen = Counter[bytes]()
    epochs = [iter(loader) for loader in loaders]
    for _ in range(4):
        for epoch in epochs:
            seen.update(next(epoch))
    states = [loader.state_dict() for loader in loaders]
    alone = loader_of(train, batch_size=8)
    alone.load_state_dict(states)
    seen += items_of(alone)
    assert seen == Counter(train)
    with pytest.raises(forebay.StateError, match="the state is of dataset"):
        loader_of(validation, batch_size=8).load_state_dict(states)
    with pytest.raises(forebay.StateError, match="the state is of dataset"):
        loader_of(dataset, batch_size=8).load_state_dict(states)


def test_repeats_are_given_as_often_in_every_epoch(dataset: forebay.Dataset) -> None:
    twice = dataset.subset(range(20)).repeat([2] * 10 + [0] * 5 + [1] * 5)
    expected = Counter(CONTENTS[:10] * 2 + CONTENTS[15:20])
    assert items_of(loader_of(twice)) == expected
    loaders = [loader_of(twice, rank=rank, world_size=2) for rank in range(2)]
    seen = sum((items_of(loader) for loader in loaders), Counter[bytes]())
    padding = sum(loader.stats()["padding"] for loader in loaders)
    assert (seen.total() - padding, padding) == (25, 1)
    assert seen >= expected


@pytest.mark.parametrize("order", ["substitute", "deterministic"])
def test_weights_decide_how_often_an_item_is_given(world: World, order: Any) -> None:
    dataset = world.dataset(cache=None, columns=["label"])
    weights = [0.0 if label < 5 else 2.0 for label in dataset.column("label")]
    loader = loader_of(dataset, order=order, weights=weights)
    epochs = [Counter(label for batch in loader for _, label in batch) for _ in range(2)]
    for seen in epochs:
        assert seen.total() == ITEMS
        assert min(seen) == 5
        assert max(seen.values()) - min(seen.values()) <= 3
    # The state continues the epoch that its seed has drawn.
    epoch, again = iter(loader), loader_of(dataset, seed=9, order=order, weights=weights)
    first = [item for _ in range(5) for item in next(epoch)]
    again.load_state_dict(loader.state_dict())
    rest = [item for batch in again for item in batch]
    assert len(first) + len(rest) == ITEMS
    assert max(Counter(first + rest).values()) <= 2 + 1
    by_column = loader_of(dataset, order=order, weights="label")
    assert 0 not in {label for batch in by_column for _, label in batch}


def test_invalid_weights_are_refused(dataset: forebay.Dataset) -> None:
    for weights, message in [
        ([1.0] * 3, "3 weights for 203 items"),
        ([1.0] * 202 + [-1.0], "the weight of item 202 is -1.0; weights are finite"),
        ([float("nan")] * 203, "the weight of item 0 is nan"),
        ([0.0] * 203, "all weights are 0"),
        ("name", "weights= are not numbers"),
    ]:
        with pytest.raises(ValueError, match=message):
            loader_of(dataset, weights=weights)
    for options in ({"shuffle": False}, {"order": "strict"}, {"lengths": [1.0] * 203}):
        with pytest.raises(ValueError, match="weights= is for order="):
            loader_of(dataset, weights=[1.0] * 203, **options)
    loader = loader_of(dataset, weights=[1.0] * 203)
    list(loader)
    with pytest.raises(forebay.StateError, match="weights= is not recorded"):
        loader.recording()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_deterministic_order_is_the_same_with_any_number_of_ranks(
    dataset: forebay.Dataset, workers: int
) -> None:
    def steps(world_size: int, seed: int = 3) -> list[Counter[bytes]]:
        loaders = [
            loader_of(
                dataset,
                seed,
                order="deterministic",
                batch_size=24 // world_size,
                num_workers=workers,
                rank=rank,
                world_size=world_size,
            )
            for rank in range(world_size)
        ]
        assert len({len(loader) for loader in loaders}) == 1
        return [sum(map(Counter, batches), Counter()) for batches in zip(*loaders, strict=True)]

    alone = steps(1)
    assert sum(alone, Counter[bytes]()) == Counter(CONTENTS)
    for world_size in (2, 3):
        found = steps(world_size)
        assert found[:-1] == alone[:-1]
        assert set(found[-1]) == set(alone[-1]), "ranks repeat items of the last step only"
    assert steps(1, seed=4) != alone


def test_the_deterministic_order_continues_with_another_number_of_ranks(
    dataset: forebay.Dataset,
) -> None:
    """Promise 2, with another number of ranks."""
    options: dict[str, Any] = {"order": "deterministic", "batch_size": 6}
    whole = list(loader_of(dataset, **options))
    loaders = [loader_of(dataset, rank=rank, world_size=2, **options) for rank in range(2)]
    epochs = [iter(loader) for loader in loaders]
    seen = [next(epoch) for _ in range(5) for epoch in epochs]
    assert seen == whole[:10]
    states = [loader.state_dict() for loader in loaders]
    alone = loader_of(dataset, seed=8, **options)
    alone.load_state_dict(states)
    assert list(alone) == whole[10:]
    alone.load_state_dict(states[0])
    assert list(alone) == whole[10:], "the state of one rank is enough"
    second = list(alone)
    assert second != whole, "the next epoch has another order"
    again = loader_of(dataset, seed=3, **options)
    again.set_epoch(1)
    assert list(again) == second
    for state in states:
        state["start"] += 1
    with pytest.raises(forebay.StateError, match="damaged"):
        alone.load_state_dict(states)


def image(colour: tuple[int, int, int]) -> bytes:
    pil = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    pil.new("RGB", (6, 4), colour).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Three classes of images, one of them in a directory of its own below the class."""
    names = ["cat/1.png", "cat/2.png", "dog/a/3.png", "emu/4.png"]
    for number, name in enumerate(names):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image((number, 0, 255)))
    return tmp_path / "images"


def test_directories_are_classes_and_images_are_decoded(images: Path) -> None:
    dataset = forebay.Dataset(images, cache=None, labels="directory", decode="pil")
    assert dataset.classes == ("cat", "dog", "emu")
    assert [label for _, label in dataset] == [0, 0, 1, 2]
    first = dataset[1][0]
    assert (first.mode, first.size, first.getpixel((0, 0))) == ("RGB", (6, 4), (1, 0, 255))
    copied = pickle.loads(pickle.dumps(dataset))
    assert copied.subset([3])[0][1] == 2
    assert copied.classes == dataset.classes
    sizes = forebay.Dataset(images, cache=None, decode=len)
    assert sizes[0] == len((images / "cat/1.png").read_bytes())
    assert sizes.classes == ()


def test_columns_are_classes(world: World) -> None:
    dataset = world.dataset(cache=None, labels="name", columns=["label"])
    assert dataset.classes[:3] == ("name 0", "name 1", "name 10")
    assert dataset[10] == (CONTENTS[10], 2, 0)


def test_labels_and_decoders_that_do_not_fit_are_refused(
    world: World, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"the object `00000.bin` is in no directory below"):
        world.dataset(cache=None, labels="directory")
    with pytest.raises(ValueError, match="no decoder 'jpeg'; give one of 'pil', 'torchvision'"):
        world.dataset(cache=None, decode="jpeg")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ImportError, match="needs soundfile; install it with `pip install sound"):
        world.dataset(cache=None, decode="audio")
    (images / "emu" / "4.png").write_bytes(b"not an image")
    dataset = forebay.Dataset(images, cache=None, decode="pil")
    with pytest.raises(Exception, match="cannot identify image") as problem:
        dataset[3]
    if hasattr(problem.value, "__notes__"):
        assert problem.value.__notes__ == ["in the decoder of item 3, `emu/4.png`"]


def test_sound_is_decoded(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    tone = torch.linspace(-0.5, 0.5, 800).reshape(400, 2).numpy()
    (tmp_path / "sounds").mkdir()
    soundfile.write(tmp_path / "sounds" / "tone.wav", tone, 16_000)
    dataset = forebay.Dataset(tmp_path / "sounds", cache=None, decode="audio")
    frames, rate = dataset[0]
    assert (frames.shape, rate) == ((2, 400), 16_000)
    assert abs(frames.T - tone).max() < 1e-4


def test_images_become_tensors(images: Path) -> None:
    pytest.importorskip("torchvision")
    dataset = forebay.Dataset(images, cache=None, decode="torchvision")
    assert (dataset[2].dtype, tuple(dataset[2].shape)) == (torch.uint8, (3, 4, 6))
    assert dataset[2][:, 0, 0].tolist() == [2, 0, 255]


def test_sources_that_are_no_datasets_are_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the source is empty; give a digest, a URL"):
        forebay.Dataset("")
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8")
    with pytest.raises(
        forebay.DigestError,
        match=r"photo.jpg` is not a forebay digest: it is no Arrow file; build one",
    ):
        forebay.Dataset(tmp_path / "photo.jpg")
    with pytest.raises(forebay.DigestError, match="is one object; give the prefix of the objects"):
        forebay.Dataset("s3://bucket/train/00001.bin", storage_options=world.options, cache=None)


def test_archives_without_a_layout_are_pointed_out(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    for number in range(3):
        (tmp_path / "shards" / f"{number:05}.tar").write_bytes(bytes(1024))
    with pytest.warns(RuntimeWarning, match="3 of 3 objects are tar archives.*layout='tar'"):
        forebay.Dataset(tmp_path / "shards", cache=None)
