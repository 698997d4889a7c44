"""The doctor on two real processes: a healthy run passes, and each fault has its line and the exit code 2."""

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from pretrain_runs import start

from configs import InputError
from pretrain.doctor.__main__ import main
from pretrain.doctor.meeting import open_meeting

HOST = socket.gethostname()
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def ranks(corpus: Path, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder for each rank with all that a run reads, at the same relative paths."""
    folders = []
    for rank in (0, 1):
        folder = tmp_path_factory.mktemp(f"rank_{rank}")
        shutil.copy2(corpus, folder / "text.jsonl")
        shutil.copytree(tokenizer, folder / "tokenizer")
        (folder / "run.yaml").write_text(yaml.safe_dump(settings()))
        folders.append(folder)
    return folders[0], folders[1]


def settings() -> dict[str, Any]:
    """A run in relative paths."""
    return {
        "run_dir": "runs/new",
        "tokenizer": "tokenizer",
        "data": {
            "sources": [{"path": "text.jsonl", "format": "jsonl"}], "sequence_length": 32, "rows_per_step": 8,
            "num_lanes": 4, "open_units": 4,
        },
        "encoder": {"num_layers": 2, "hidden_size": 32, "num_heads": 1},
        "training": {"num_steps": 20, "rows_per_device": 2},
        "checkpoint": {"save_every": 10},
    }  # fmt: skip


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with two disks: `small`, of half a megabyte, and `full`. Empty folders where nobody may mount."""
    folder = tmp_path_factory.mktemp("disks")
    mounted = []
    for name, size in (("small", "500k"), ("full", "16k")):
        (folder / name).mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder / name)]
        if os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0:
            mounted.append(folder / name)
    if len(mounted) == 2:
        (folder / "full" / "ballast").write_bytes(b"." * (16 << 10))
    yield folder
    for path in mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture(scope="module")
def server(ranks: tuple[Path, Path]) -> Iterator[str]:
    """The address at which rank 0's folder is served over HTTP."""
    handler = functools.partial(QuietHandler, directory=str(ranks[0]))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    """Without a line on stderr for each request."""

    def log_message(self, *_: object) -> None:
        pass


def cases(ranks: tuple[Path, Path], disks: Path, server: str) -> dict[str, Any]:
    """Name → what each rank is given."""
    first, second = map(str, ranks)

    def case(*overrides: str, **rank_1: Any) -> dict[str, Any]:
        return {"folder": first, "arguments": ["run.yaml", *overrides], "rank_1": rank_1}

    strange = ranks[0] / "strange.txt"
    strange.write_text("漢字 仮名 交じり 文\n" * 20)
    (ranks[0] / "run_on_rank_0_only.yaml").write_text((ranks[0] / "run.yaml").read_text())
    (ranks[0] / "text_on_rank_0_only.jsonl").write_text((ranks[0] / "text.jsonl").read_text())
    (ranks[1] / "longer.jsonl").write_text((ranks[0] / "text.jsonl").read_text() * 2)
    (ranks[0] / "longer.jsonl").write_text((ranks[0] / "text.jsonl").read_text())
    for rank, vocabulary in enumerate(("tokenizer", "tokenizer")):
        shutil.copytree(ranks[rank] / vocabulary, ranks[rank] / "odd_tokenizer")
    file = ranks[1] / "odd_tokenizer" / "tokenizer.json"
    file.write_text(file.read_text().replace("bal", "xyz"))
    shutil.copytree(ranks[0] / "tokenizer", ranks[0] / "tokenizer_on_rank_0_only")
    shared = f"run_dir={first}/runs/new"
    return {
        "healthy": case(),
        "json": case("--json", "data.num_lanes=3"),
        "another configuration": case(arguments=["run.yaml", "seed=1"]),
        "no configuration": {**case(folder=second), "arguments": ["run_on_rank_0_only.yaml"]},
        "other versions": case(fault="other_numpy"),
        "a slow clock": case(fault="late_clock"),
        "a process too many": case("data.num_lanes=3"),
        "a card too few": case(fault="one_card"),
        "no tokenizer": case(shared, "tokenizer=tokenizer_on_rank_0_only", folder=second),
        "another tokenizer": case(shared, "tokenizer=odd_tokenizer", folder=second),
        "a broken link": case(fault="broken_link"),
        "a dead link": case("engine.timeout_seconds=1", fault="dead_link"),
        "a run folder that cannot be": case("run_dir=run.yaml/below"),
        "a full disk": case(f"run_dir={disks}/full/run"),
        "a small disk": case(f"run_dir={disks}/small/run", "checkpoint.save_every=1"),
        "a run folder of its own": case(folder=second),
        "no flock": {**case(fault="no_flock"), "fault": "no_flock"},
        "flock within a host": case(fault="local_flock"),
        "no text": case(shared, "data.sources.0.path=text_on_rank_0_only.jsonl", folder=second),
        "other text": case(shared, "data.sources.0.path=longer.jsonl", folder=second),
        "remote text": case(f"data.sources.0.path={server}/text.jsonl"),
        "no remote text": case(f"data.sources=[{{path: gone.txt}}, {{path: '{server}/gone.txt'}}]"),
        "no cache": case(shared, f"data.cache={first}/tokenizer", folder=second),
        "strange text": case("data.sources=[{path: strange.txt}]"),
        "no such column": case("data.sources.0.text_column=body", "data.bad_input.column=skip"),
        "a column that is missing": case("data.sources.0.text_column=body"),
        "few files": case("data.open_units=500", fault="few_files"),  # the last: the limit stays
    }


@pytest.fixture(scope="module")
def outcomes(
    ranks: tuple[Path, Path], small_disk: Path, server: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Case → what rank 0 printed and both ranks returned."""
    folder = tmp_path_factory.mktemp("outcomes")
    (folder / "cases.json").write_text(json.dumps(cases(ranks, small_disk, server)))
    launch([str(folder / "cases.json"), str(folder)])
    first, second = (json.loads((folder / f"rank_{rank}.json").read_text()) for rank in (0, 1))
    assert all(second[name]["out"] == second[name]["err"] == "" for name in second), "only rank 0 prints"
    return {name: {**result, "codes": [result["code"], second[name]["code"]]} for name, result in first.items()}


def launch(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    script = str(Path(__file__).parent / "doctor_cases.py")
    done = subprocess.run([*command, script, *arguments], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]


def lines(outcome: dict[str, Any], level: str) -> dict[str, str]:
    """Check → what was found and what to do, of the checks with this outcome."""
    parts = [line.removeprefix(f"{level}  ").split(": ", 1) for line in outcome["out"].splitlines() if
             line.startswith(f"{level}  ")]  # fmt: skip
    return dict(parts)


def test_a_healthy_run_passes_every_check(outcomes: dict[str, Any]) -> None:
    healthy = outcomes["healthy"]
    assert healthy["codes"] == [0, 0], healthy
    assert healthy["err"] == ""
    assert lines(healthy, "skip").keys() == {"token cache"}
    assert len(lines(healthy, "pass")) == len(healthy["out"].splitlines()) - 2
    assert healthy["out"].splitlines()[-1] == "no check failed"
    found = lines(healthy, "pass")
    assert found["processes"] == f"2 on 1 host(s): 2 on {HOST}"
    assert "gloo, sums right" in found["all-reduce"]
    assert "B/s" in found["all-reduce"]
    assert "kernel 'grouped'" in found["attention"]
    assert "read by another rank, deleted, lock seen" in found["run folder"]


FAULTS = {
    # case: check, what its line says, checks that fail beside it
    "another configuration": ("configuration", f"rank 1 ({HOST}) reads another one: 'seed' is 1, elsewhere 0", ()),
    "no configuration": ("configuration", f"rank 1 ({HOST}): cannot read the config run_on_rank_0_only.yaml", ()),
    "other versions": ("versions", f"on rank 0 ({HOST}), 0.0.1 on rank 1 ({HOST})", ()),
    "a process too many": ("number of processes", "allowed: 1", ()),
    "a card too few": ("devices", f"rank 1 ({HOST}): local rank 1 has no GPU of its own", ("attention",)),
    "few files": ("open files", f"200 allowed (ulimit -Hn) on rank 1 ({HOST})", ()),
    "no tokenizer": ("tokenizer", f"rank 1 ({HOST}): tokenizer: no tokenizer.json", ()),
    "another tokenizer": ("tokenizer", "odd_tokenizer differs: digest ", ()),
    "a dead link": ("all-reduce", f"rank 1 ({HOST}): sums of 1.02 kB: Connection reset by peer", ()),
    "a broken link": ("all-reduce", f"wrong sums on rank 1 ({HOST})", ()),
    "a run folder that cannot be": ("run folder", f"rank 0 ({HOST}): Not a directory", ()),
    "a full disk": ("run folder", f"rank 0 ({HOST}): No space left on device", ("disk space",)),
    "a small disk": ("disk space", "5 checkpoints of 522 kB", ()),
    "a run folder of its own": ("run folder", f"rank 1 ({HOST}): does not see the folder that rank 0 has made", ()),
    "no text": ("sources", f"rank 1 ({HOST}): data.sources: the path 'text_on_rank_0_only.jsonl' matches no file", ()),
    "other text": ("sources", f"on rank 1 ({HOST})", ()),
    "no remote text": (
        "sources", "the path 'gone.txt' matches no file; data.sources: the path 'http://127.0.0.1:", ()
    ),
    "no cache": ("token cache", f"rank 0 ({HOST}): data.cache: ", ()),
    "a column that is missing": ("sources", "the column 'body' is missing", ()),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_each_fault_has_its_line(case: str, outcomes: dict[str, Any]) -> None:
    if "disk" in case and os.geteuid():
        pytest.skip("needs the right to mount a small tmpfs")
    outcome, (check, found, beside) = outcomes[case], FAULTS[case]
    failures = lines(outcome, "FAIL")
    assert failures.keys() == {check, *beside}, outcome
    assert found in failures[check]
    assert "; " in failures[check], "it says what to do"
    assert outcome["codes"] == [2, 2]
    assert outcome["err"].startswith(f"error: {len(failures)} of ")
    assert outcome["err"].count("\n") == 1


WARNINGS = {
    "a slow clock": ("clocks", f"rank 1 ({HOST}) -60."),
    "no flock": ("run folder", "the file system has no flock"),
    "flock within a host": ("run folder", f"a lock that rank 0 holds is not seen (rank 1 ({HOST}))"),
    "strange text": ("text and tokenizer", "strange.txt: 100.0% unknown"),
    "no such column": ("text and tokenizer", "99 of 99 sampled records cannot be used"),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_what_the_run_survives_is_a_warning(case: str, outcomes: dict[str, Any]) -> None:
    outcome, (check, found) = outcomes[case], WARNINGS[case]
    assert lines(outcome, "warn").keys() == {check}, outcome
    assert found in lines(outcome, "warn")[check]
    assert outcome["codes"] == [0, 0]
    assert outcome["out"].splitlines()[-1] == "no check failed, 1 warned"


def test_text_on_a_server_is_read_by_every_rank(outcomes: dict[str, Any]) -> None:
    assert outcomes["remote text"]["codes"] == [0, 0], outcomes["remote text"]
    assert lines(outcomes["remote text"], "pass")["sources"].endswith("/text.jsonl (1 file(s), 60.4 kB)")


def test_checks_that_have_nothing_to_look_at_say_so(outcomes: dict[str, Any]) -> None:
    assert lines(outcomes["no tokenizer"], "skip").keys() >= {"model", "memory", "history"}
    assert "see 'devices'" in lines(outcomes["a card too few"], "skip")["all-reduce"]
    assert "devices" not in outcomes["no configuration"]["out"], "nothing is left to check without a configuration"


def test_json_is_one_object(outcomes: dict[str, Any]) -> None:
    outcome = outcomes["json"]
    found = json.loads(outcome["out"])
    assert found["passed"] is False
    assert found["failed"] == ["number of processes"]
    assert found["processes"] == 2
    assert {"name", "level", "found", "remedy"} == found["checks"][0].keys()
    assert outcome["codes"] == [2, 2]
    assert outcome["err"] == f"error: 1 of {len(found['checks'])} checks failed: number of processes\n"


def test_nothing_is_left_behind(outcomes: dict[str, Any], ranks: tuple[Path, Path], small_disk: Path) -> None:
    for folder in ranks:
        assert not (folder / "runs").exists(), "the folders that were missing are missing again"
        assert not list(folder.rglob(".doctor_*"))
    assert sorted(path.name for path in small_disk.rglob("*")) in (["ballast", "full", "small"], ["full", "small"])


def doctor(*arguments: str, **environment: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "pretrain.doctor", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def place(rank: int, port: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def test_a_rank_that_hangs_is_named_in_time(write_config: Any, tmp_path: Path) -> None:
    """It waits for a pipe that nobody writes; as a dead file system, it gives no answer."""
    config, port = write_config(), free_port()
    os.mkfifo(tmp_path / "pipe.yaml")
    hanging = doctor(str(tmp_path / "pipe.yaml"), "--limit-seconds", "8", **place(1, port))
    first = doctor(str(config), "--limit-seconds", "8", **place(0, port))
    out, error = first.communicate(timeout=60)
    assert first.returncode == 2
    line = f"FAIL  configuration: not over after 8 s: no answer from rank 1 ({HOST}); answered: rank 0 ({HOST}); look"
    assert line in out, out
    assert error == "error: 1 of 4 checks failed: configuration\n"
    error = hanging.communicate(timeout=60)[1]
    assert hanging.returncode == 2
    assert f"rank 1 ({HOST}): 'configuration' is not over after 8 s; this rank is in " in error
    assert "Traceback" not in error


def test_a_rank_that_never_comes_is_named_in_time(
    write_config: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in place(0, free_port()).items():
        monkeypatch.setenv(name, value)
    codes: list[int] = []
    left = threading.Event()

    def leave(code: int) -> None:
        codes.append(code)
        left.set()

    monkeypatch.setattr(os, "_exit", leave)  # here the main thread ends as that of another rank would
    with pytest.raises(SystemExit, match="2"):
        main([str(write_config()), "--limit-seconds=0.5", "--json"])
    assert left.wait(10)
    assert codes == [2]
    out, error = capsys.readouterr()
    assert json.loads(out)["checks"][0]["found"] == (
        f"not over after 0.5 s: no answer from rank 1 (not seen yet); answered: rank 0 ({HOST})"
    )
    assert error == "error: 1 of 1 checks failed: processes\n"


def test_a_rank_that_finds_nobody_names_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    for name, value in place(1, port).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError) as refused:
        open_meeting(1, 2, 0.5)
    assert str(refused.value) == (
        f"rank 1 on {HOST} does not reach rank 0 at MASTER_ADDR:MASTER_PORT, 127.0.0.1:{port} (Connection refused); "
        "is it started, does the name mean its host here, and does no firewall stand between?"
    )
    monkeypatch.setenv("MASTER_ADDR", "no-such-host.invalid")
    with pytest.raises(InputError, match=r"no-such-host.invalid:\d+ \(.*(Name|name)"):
        open_meeting(1, 2, 0.1)


def test_a_rank_that_is_started_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in place(0, free_port()).items():
        monkeypatch.setenv(name, value)
    main = open_meeting(0, 2, 10)
    first = open_meeting(1, 2, 10)
    with pytest.raises(InputError, match=r"rank 1 on .* is started twice"):
        open_meeting(1, 2, 10)
    first.tell("topic", 1)
    assert main.who_answered("topic") == [1]
    with pytest.raises(InputError, match="cannot listen at MASTER_PORT"):
        open_meeting(0, 2, 10)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate", "deepspeed"])
def test_every_launcher(launcher: str, write_config: Any) -> None:
    process = start(write_config(), processes=2, launcher=launcher, module="pretrain.doctor")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert f"pass  processes: 2 on 1 host(s): 2 on {HOST}\n" in output
    assert "pass  all-reduce: gloo, sums right" in output
