"""``forebay.Dataset``: indexing, columns, nodes, agents, jobs and their failures."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import harness
import pytest
from harness import CONTENTS, ITEMS, World

import forebay
from forebay._runtime import processes
from forebay._runtime.node import endpoint, ensure_node
from forebay._runtime.processes import binary


def test_items_are_indexed_like_a_list(world: World) -> None:
    dataset = world.dataset()
    assert len(dataset) == ITEMS
    assert dataset[0] == CONTENTS[0]
    assert dataset[-1] == CONTENTS[-1]
    assert dataset[7] == b""
    assert dataset.__getitems__([5, 5, -2, 0]) == [CONTENTS[at] for at in (5, 5, -2, 0)]
    assert list(dataset) == CONTENTS
    for outside in (ITEMS, -ITEMS - 1):
        with pytest.raises(IndexError, match="of 203"):
            dataset[outside]
    with pytest.raises(TypeError):
        dataset["0"]  # type: ignore[index]


def test_columns_and_a_transform(world: World) -> None:
    dataset = world.dataset(columns=["label", "name"], cache=None)
    assert dataset[13] == (CONTENTS[13], 3, "name 13")
    lengths = world.dataset(
        columns=["label"], cache=None, transform=lambda item: len(item[0]) + item[1]
    )
    assert lengths[13] == len(CONTENTS[13]) + 3
    with pytest.raises(KeyError, match="no column `lable`; it has label, name"):
        world.dataset(columns=["lable"])


def test_packed_items_are_the_same_items(world: World) -> None:
    dataset = world.dataset(digest=world.build("packed.digest", "--layout", "pack"))
    assert list(dataset) == CONTENTS


def test_an_item_longer_than_a_frame(slow_world: World) -> None:
    large = os.urandom(35 << 20)
    (slow_world.objects / "large.bin").write_bytes(large)
    dataset = slow_world.dataset(digest=slow_world.build("large.digest"))
    assert len(dataset) == ITEMS + 1
    assert dataset.__getitems__([1, -1]) == [CONTENTS[1], large]
    assert dataset[-1] == large, "a hit of the node"


def test_without_a_node_everything_comes_from_the_origin(world: World) -> None:
    dataset = world.dataset(cache=None)
    assert list(dataset) == CONTENTS
    stats = dataset.stats()
    assert stats["node"] is None
    assert stats["agent"] is not None
    assert stats["agent"]["agent_origin_bytes"] == harness.BYTES


def test_a_new_node_says_what_it_reserves(
    world: World, own_node: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert world.dataset()[0] == CONTENTS[0]
    said = capfd.readouterr().err
    assert re.search(r"started a node that reserves \d+ MB in `/.*FOREBAY_CAPACITY", said), said
    assert said.count("started a node") == 1
    assert world.dataset()[1] == CONTENTS[1]
    assert "started a node" not in capfd.readouterr().err, "it runs already"


def test_the_node_is_started_once_and_outlives_the_job(world: World, own_node: Path) -> None:
    first, second = world.dataset(), world.dataset()
    assert first[1] == second[1] == CONTENTS[1]
    pid = harness.listener(own_node)
    del first, second
    assert harness.listener(own_node) == pid
    harness.kill(pid)
    third = world.dataset()
    assert third[1] == CONTENTS[1]
    assert harness.listener(own_node) != pid, "the socket of a killed node is replaced"


def test_a_job_runs_without_a_node_that_cannot_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_SOCKET", "/proc/nowhere/node.sock")
    dataset = world.dataset()
    with pytest.warns(RuntimeWarning, match="reading the origin directly"):
        assert dataset[3] == CONTENTS[3]
    assert dataset[4] == CONTENTS[4]


def test_a_named_node_is_used_but_not_started(world: World, tmp_path: Path) -> None:
    dataset = world.dataset(cache=tmp_path / "named" / "node.sock")
    with pytest.warns(RuntimeWarning, match="it does not answer"):
        assert dataset[3] == CONTENTS[3]
    with harness.node(tmp_path / "named"):
        time.sleep(1.1)  # the backoff after a failed connection
        assert list(dataset) == CONTENTS
        assert list(dataset) == CONTENTS
        stats = dataset.stats()["node"]
        assert stats is not None
        assert stats["hits"] > 0


def test_a_file_that_is_not_a_digest_is_refused(world: World, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("hello")
    with pytest.raises(forebay.DigestError, match="forebay digest build URL -o"):
        forebay.Dataset(tmp_path / "x.txt")
    with pytest.raises(forebay.DigestError, match="there is no file"):
        forebay.Dataset(tmp_path / "missing.digest")


def test_errors_name_wrong_storage_options(world: World) -> None:
    with pytest.raises(ValueError, match="no storage option `acess_key`; the options are endpoint"):
        world.dataset(storage_options={"acess_key": "x"})
    for options, message in [
        ({"access_key": "x"}, "go together; give both"),
        ({"session_token": "x"}, "belongs to a key pair"),
        ({"profile": "work", "access_key": "x", "secret_key": "y"}, "give one of them"),
    ]:
        with pytest.raises(ValueError, match=message):
            world.dataset(storage_options=options)


def test_a_profile_replaces_the_credentials_of_the_environment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws = Path(os.environ["HOME"]) / ".aws"
    aws.mkdir(parents=True)
    keys = [world.options[name] for name in ("access_key", "secret_key")]
    (aws / "credentials").write_text(
        "[work]\naws_access_key_id = {}\naws_secret_access_key = {}\n".format(*keys)
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "of-another-user")
    options = {"endpoint": world.endpoint, "region": "us-east-1", "profile": "work"}
    dataset = world.dataset(storage_options=options, cache=None)
    assert dataset[3] == CONTENTS[3]
    by_url = forebay.Dataset("s3://bucket/train", storage_options=options, cache=None)
    assert by_url[3] == CONTENTS[3]
    missing = world.dataset(storage_options={**options, "profile": "none"}, cache=None)
    with pytest.raises(forebay.ForebayError, match="the profile `none` has no key in"):
        missing[3]


def test_wrong_credentials_are_refused_without_showing_secrets(world: World) -> None:
    wrong = {**world.options, "secret_key": "guess-me-not"}
    dataset = world.dataset(storage_options=wrong, cache=None)
    with pytest.raises(forebay.ReadError, match="denied") as refused:
        dataset[0]
    assert "guess-me-not" not in f"{refused.value} {dataset!r} {dataset._job!r}"
    agent = harness.listener(harness.agent_socket(dataset))
    assert b"guess-me-not" not in Path(f"/proc/{agent}/cmdline").read_bytes()


def test_an_error_names_a_changed_object(slow_world: World) -> None:
    dataset = slow_world.dataset(cache=None)
    (slow_world.objects / "00042.bin").write_bytes(b"something else")
    assert dataset[41] == CONTENTS[41]
    with pytest.raises(forebay.ReadError, match=r"00042\.bin"):
        dataset[42]


def test_an_error_names_a_removed_object(slow_world: World) -> None:
    dataset = slow_world.dataset(cache=None)
    (slow_world.objects / "00042.bin").unlink()
    assert dataset[41] == CONTENTS[41]
    with pytest.raises(forebay.ReadError, match=r"00042\.bin"):
        dataset[42]


def test_without_an_origin_cached_items_are_served(tmp_path: Path) -> None:
    """Items that are not cached fail within the deadline."""
    with harness.origin(tmp_path / "gone") as world:
        world.options["deadline_seconds"] = 1
        cached, uncached = world.dataset(), world.dataset(cache=None)
        assert list(cached) == CONTENTS
        assert uncached[0] == CONTENTS[0]
    began = time.monotonic()
    with pytest.raises(forebay.ReadError, match=r"00001\.bin"):
        uncached[1]
    loader = forebay.DataLoader(uncached, batch_size=16, num_workers=1, collate_fn=list)
    with pytest.raises(forebay.ReadError, match="bin"):
        list(loader)
    assert time.monotonic() - began < 20, "a deadline of one second for each read"
    assert list(cached) == CONTENTS


def test_a_dead_agent_is_started_again(world: World) -> None:
    # Without a node, which might have all items.
    dataset = world.dataset(cache=None)
    for item in range(3):
        assert dataset[item] == CONTENTS[item]
        harness.kill(harness.listener(harness.agent_socket(dataset)))
        harness.wait_until(lambda: not harness.agent_is_up(dataset))
    assert list(dataset) == CONTENTS


def test_a_job_leaves_nothing_behind(world: World) -> None:
    dataset = world.dataset()
    assert dataset[0] == CONTENTS[0]
    directory = dataset._job.directory
    agent = harness.listener(harness.agent_socket(dataset))
    assert directory.stat().st_mode & 0o777 == 0o700
    del dataset
    assert not directory.exists()
    # It is a child of this process, so it stays a zombie until another one is started.
    harness.wait_until(lambda: not harness.lives(agent))


def job_script(world: World, then: str) -> list[str]:
    """The command of a job that opens the dataset without a node, and then runs ``then``."""
    script = (
        "import forebay, os, signal\n"
        # A shell starts background processes with SIGINT ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"dataset = forebay.Dataset({str(world.digest)!r}, cache=None,"
        f" storage_options={world.options!r})\n"
    )
    return [sys.executable, "-c", script + then]


def test_a_killed_job_leaves_nothing_behind(world: World) -> None:
    then = "dataset[0]; print(dataset._job.directory, flush=True); os.kill(os.getpid(), 9)"
    command = job_script(world, then)
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == -9, ran
    # Its agent notices, removes the directory and exits.
    harness.wait_until(lambda: not Path(ran.stdout.strip()).exists())


def test_python_prints_no_warnings_when_a_job_ends(world: World) -> None:
    command = job_script(world, "dataset[0]")
    command[1:1] = ["-X", "dev"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_hung_agent_is_replaced(world: World) -> None:
    """Promise 5: no cache fault hangs a job."""
    dataset = world.dataset(cache=None)
    assert dataset[0] == CONTENTS[0]
    hung = harness.listener(harness.agent_socket(dataset))
    harness.stop(hung)
    assert dataset[1] == CONTENTS[1]
    assert harness.listener(harness.agent_socket(dataset)) != hung
    assert not harness.lives(hung)


def test_an_agent_that_waits_for_a_slow_origin_is_not_replaced(world: World) -> None:
    with harness.slow(world, "4s") as slow:
        dataset = slow.dataset(cache=None)
        dataset.stats()
        agent = harness.listener(harness.agent_socket(dataset))
        began = time.monotonic()
        assert dataset[0] == CONTENTS[0]
        assert time.monotonic() - began > 3, "longer than the time after which liveness is checked"
        assert harness.listener(harness.agent_socket(dataset)) == agent


def test_ctrl_c_interrupts_a_waiting_read(world: World) -> None:
    with harness.slow(world, "100s") as slow:
        command = job_script(slow, "dataset.stats(); print('ready', flush=True); dataset[0]")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
            assert job.stdout is not None
            assert job.stderr is not None
            assert job.stdout.readline() == b"ready\n"
            time.sleep(1.0)  # it most likely waits by now; if not, less is tested
            job.send_signal(signal.SIGINT)
            job.wait(timeout=60)
            assert b"KeyboardInterrupt" in job.stderr.read()


@pytest.mark.parametrize("found", [False, True])
def test_a_node_that_dies_is_started_again(world: World, own_node: Path, found: bool) -> None:
    """By the job that notices, also if it did not start the node itself."""
    if found:
        ensure_node(own_node)
    dataset = world.dataset()
    assert dataset[0] == CONTENTS[0]
    for _ in range(2):
        killed = harness.listener(own_node)
        harness.kill(killed)

        def is_back(killed: int = killed) -> bool:
            assert dataset[1] == CONTENTS[1], "the origin is read meanwhile"
            return processes.listener(own_node) not in (None, killed)

        harness.wait_until(is_back, patience=30.0)


def test_every_relative_socket_of_a_list_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert endpoint("one.sock") == tmp_path / "one.sock"
    mixed = "one.sock, tcp://127.0.0.1:7000,/run/two.sock"
    assert endpoint(mixed) == f"{tmp_path}/one.sock,tcp://127.0.0.1:7000,/run/two.sock"


def test_a_mirror_of_the_origin(world: World, tmp_path: Path) -> None:
    mirror = world.mirror(tmp_path / "mirror")
    world.reset_counters()
    dataset = world.dataset(origin=str(mirror), storage_options={}, cache=None)
    assert list(dataset) == CONTENTS
    assert world.counters()["bytes_sent"] == 0
    nowhere = world.dataset(origin="s3://elsewhere/train", cache=None)
    with pytest.raises(forebay.ReadError, match="`s3://elsewhere/train` does not exist"):
        nowhere[0]
    # Contents are verified, not versions.
    (mirror / "00042.bin").write_bytes(bytes(len(CONTENTS[42])))
    dataset = world.dataset(origin=str(mirror), storage_options={}, cache=None)
    with pytest.raises(forebay.ReadError, match=r"00042\.bin"):
        dataset[42]


def test_a_private_namespace(world: World, tmp_path: Path) -> None:
    keys = [tmp_path / "ours.key", tmp_path / "theirs.key"]
    for key in keys:
        subprocess.run([binary(), "namespace", "new", key], check=True, capture_output=True)
    digest = world.build("private.digest", "--namespace-key", str(keys[0]))
    dataset = world.dataset(digest=digest, namespace_key=keys[0])
    assert list(dataset) == CONTENTS
    assert list(dataset) == CONTENTS
    node = dataset.stats()["node"]
    assert node is not None
    assert node["hits"] > 0, "the started node has the namespace key, too"
    for wrong in (None, keys[1]):
        with pytest.raises(forebay.ForebayError, match="give its key with"):
            world.dataset(digest=digest, namespace_key=wrong, cache=None)[0]


def test_forked_processes_have_their_own_connections(world: World) -> None:
    dataset = world.dataset()
    assert dataset[0] == CONTENTS[0]
    children = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = 0 if list(dataset) == CONTENTS else 1
            finally:
                os._exit(status)
        children.append(pid)
    assert list(dataset) == CONTENTS
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]


def test_a_dataset_is_unpickled_during_and_after_its_job(world: World) -> None:
    dataset = world.dataset(columns=["label"])
    pickled = pickle.dumps(dataset)
    again = pickle.loads(pickled)
    assert again[5] == dataset[5] == (CONTENTS[5], 5)
    assert again._job.directory == dataset._job.directory
    del dataset
    assert again[6] == (CONTENTS[6], 6)
    later = pickle.loads(pickled)
    assert later[7] == (b"", 7)


def test_the_command_comes_with_the_package() -> None:
    command = Path(sys.executable).with_name("forebay")
    ran = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("forebay ")


@pytest.mark.parametrize("layout", ["files", "pack"])
def test_every_item_has_the_name_of_its_object(world: World, layout: str) -> None:
    digest = world.build(f"{layout}.digest", "--layout", layout)
    dataset = world.dataset(digest=digest, cache=None, columns=["object"])
    names = [name for _, name in dataset]
    assert names == [f"{item:05}.bin" for item in range(ITEMS)], "empty objects have one, too"
    assert dataset.column("object")[5:8] == names[5:8]
    assert pickle.loads(pickle.dumps(dataset))[7] == (b"", "00007.bin")


def test_columns_are_sequences(world: World) -> None:
    labels = world.dataset(cache=None).column("label")
    assert labels[8:12] == [8, 9, 0, 1]
    assert labels[-1] == (ITEMS - 1) % 10


def test_an_error_of_a_transform_names_the_item(world: World) -> None:
    def decode(item: bytes) -> bytes:
        raise ZeroDivisionError("no")

    dataset = world.dataset(cache=None, transform=decode)
    with pytest.raises(ZeroDivisionError) as raised:
        dataset[12]
    assert getattr(raised.value, "__notes__", None) == ["in the transform of item 12, `00012.bin`"]


def test_a_long_path_of_the_temporary_directory_is_avoided(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 5. The path of a socket is limited to 107 bytes."""
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert world.dataset(cache=None)[3] == CONTENTS[3]


def test_an_error_names_a_missing_binary(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_BIN", "/nowhere/forebay")
    with pytest.raises(forebay.ForebayError, match="FOREBAY_BIN is `/nowhere/forebay`"):
        world.dataset(cache=None)[3]


def test_log_lines_are_not_the_reason_of_a_failed_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = "2026-11-17T21:28:09.415964Z  INFO forebay_flash::io: I/O by io_uring"
    program, log = tmp_path / "forebay", tmp_path / "log"
    monkeypatch.setenv("FOREBAY_BIN", str(program))
    for lines, message in (
        (["error: the disk is full", logged], "^the disk is full$"),
        ([logged, "error: the disk is full"], "^the disk is full$"),
        (["no such library"], "^no such library$"),
        ([logged], f"gave no reason.*`{log}`"),
        ([], f"gave no reason.*`{log}`"),
    ):
        script = "".join(f"echo '{line}' >&2\n" for line in lines)
        program.write_text(f"#!/bin/sh\n{script}")
        program.chmod(0o700)
        with pytest.raises(forebay.ForebayError, match=message):
            processes.start([], log)
