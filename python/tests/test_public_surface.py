"""The public surface: exactly what `docs/guide/train.md` documents."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from harness import CONTENTS, World
from torch.utils import data

import forebay

NAMES = [
    "AgentGone",
    "ChangedError",
    "DataLoader",
    "Dataset",
    "DigestError",
    "Fenced",
    "ForebayError",
    "IterableDataset",
    "Mixture",
    "ReadError",
    "Sampler",
    "StateError",
    "StorageOptions",
    "StreamError",
    "TableError",
    "WorkerError",
    "__version__",
    "tar_sample",
    "wrap",
]

#: Public attributes of each class, apart from those of its PyTorch base class.
ATTRIBUTES: dict[str, list[str]] = {
    "DataLoader": ["load_state_dict", "recording", "set_epoch", "state_dict", "stats"],
    "Dataset": ["classes", "column", "filter", "repeat", "skipped", "split", "stats", "subset"],
    "IterableDataset": ["load_state_dict", "set_epoch", "state_dict"],
    "Mixture": ["skipped", "stats"],
    "Sampler": ["load_state_dict", "set_epoch", "state_dict"],
    "Wrapped": ["index", "stats"],
}

BASES: dict[str, type] = {
    "DataLoader": data.DataLoader,
    "Dataset": data.Dataset,
    "IterableDataset": data.IterableDataset,
    "Mixture": data.Dataset,
    "Sampler": data.Sampler,
    "Wrapped": data.Dataset,
}

#: Keys of `DataLoader.stats()`, which the guide lists.
STATS = [
    "batches",
    "compute_seconds",
    "drawable_share",
    "hash_mismatches",
    "hit_share",
    "items",
    "items_verified",
    "origin_bytes",
    "pacing_seconds",
    "padding",
    "pinned_share",
    "probes",
    "reports",
    "shuffle_quality",
    "skipped",
    "stall_seconds",
    "workers_restarted",
]


def public(names: Any) -> set[str]:
    return {name for name in names if not name.startswith("_")}


@pytest.fixture
def instances(world: World) -> dict[str, Any]:
    dataset = world.dataset(cache=None)
    return {
        "DataLoader": forebay.DataLoader(dataset, shuffle=True),
        "Dataset": dataset,
        "IterableDataset": forebay.IterableDataset(dataset),
        "Mixture": forebay.Mixture([(dataset, 1.0)]),
        "Sampler": forebay.Sampler(dataset),
        "Wrapped": forebay.wrap(CONTENTS, name="surface", cache=None),
    }


def test_the_module_exports_the_documented_names() -> None:
    assert sorted(forebay.__all__) == NAMES
    assert dir(forebay) == NAMES
    for name in NAMES:
        assert getattr(forebay, name) is not None


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_a_class_has_the_documented_attributes_only(instances: dict[str, Any], name: str) -> None:
    """Attributes of instances are public, too."""
    base = BASES.get(name, object)
    of_class = public(dir(type(instances[name]))) - public(dir(base))
    assert sorted(of_class) == ATTRIBUTES[name]
    of_instance = public(vars(instances[name]))
    if name == "DataLoader":
        of_instance -= public(vars(data.DataLoader([0])))  # type: ignore[arg-type]
    assert of_instance == set()


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_public_classes_and_methods_have_docstrings(instances: dict[str, Any], name: str) -> None:
    kind = type(instances[name])
    assert inspect.getdoc(kind)
    for attribute in ATTRIBUTES[name]:
        method = getattr(kind, attribute)
        text = inspect.getdoc(method) or ""
        assert text, attribute
        if isinstance(method, property):
            continue
        # NumPy style: sections for parameters and results.
        parameters = [one for one in inspect.signature(method).parameters if one != "self"]
        assert ("Parameters\n-----" in text) == bool(parameters), attribute
        for parameter in parameters:
            assert f"\n{parameter}\n" in text, (attribute, parameter)


def test_stats_have_the_documented_keys(instances: dict[str, Any]) -> None:
    stats = instances["DataLoader"].stats()
    assert sorted(stats) == STATS
    text = inspect.getdoc(forebay.DataLoader.stats) or ""
    for key in STATS:
        assert f"``{key}``" in text, key
