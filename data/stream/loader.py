"""The loader: global batches that depend on the configuration and the step alone.

Row j of the run comes from lane j mod G; step n takes the next `rows_per_step` rows; rank r of W takes the rows of the
step with index k = r (mod W). A worker process yields one item a step, its lanes' rows with their state; the training
process joins the workers' items and keeps the state of the last batch consumed, so prefetched ones are not lost.
"""

import dataclasses
import functools
import gc
import os
import resource
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from configs import InputError
from data import hashing
from data.config import DataConfig
from data.sources.unit import Plan, plan
from data.stream.cache import check_cache
from data.stream.lane import Lane, Stage
from data.stream.masks import I32, Masker
from data.stream.packing import Piece
from data.stream.state import check_header, header_of, pinned
from data.tokenizer.load import LoadedTokenizer, load_tokenizer

State = dict[str, Any]


@dataclasses.dataclass
class Batch:
    """One rank's rows (R, of length T) of one global step."""

    step: int  # from 1
    input_ids: torch.Tensor  # int64 (R, T), masked, padded right
    labels: torch.Tensor  # int64 (R, T), -100 where not chosen
    piece_lengths: list[list[int]]  # per row; the rest of the row is padding
    documents: list[list[str]]  # per row: ids of its pieces
    tokens: int  # not padding
    hash: int  # the step's hash is the sum over ranks mod 2**64
    _header: State
    _row: int
    _lanes: dict[int, tuple[State, tuple[Stage, ...]]]

    @property
    def state(self) -> State:
        """JSON-able state of this rank's lanes after this batch; see merge_states."""
        lanes = {str(lane): {**start, "stages": list(stages)} for lane, (start, stages) in sorted(self._lanes.items())}
        return {"header": self._header, "step": self.step, "row": self._row, "lanes": lanes}


@dataclasses.dataclass
class _Part:
    """What one worker gives to one step. Arrays go through the pipe: a tensor would take a socket's handshake each, and
    room in /dev/shm.
    """

    indices: list[int]  # of the rows, within the step
    input_ids: I32  # (r, T)
    labels: I32
    piece_lengths: list[list[int]]
    documents: list[list[str]]
    hash: int
    stages: dict[int, tuple[Stage, ...]]  # lane → rows given of its window
    starts: dict[int, State]  # lanes that began a window since the last part


class BatchLoader:
    """Endless batches of rank `rank` of `world_size`; continues after `state` (of merge_states, any world size).

    With `new_phase` the sequence length and the sources' weights may differ from those of the state: what is left of
    the windows at hand is packed anew, nothing is lost, and the weights hold from the next windows on.
    Raises InputError for a world size that does not divide num_lanes and rows_per_step, and for a state whose header
    differs, naming the field.
    """

    def __init__(
        self,
        config: DataConfig,
        tokenizer: str,
        seed: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        state: State | None = None,
        new_phase: bool = False,
    ) -> None:
        check_world_size(config, world_size)
        self._config = config
        loaded = load_tokenizer(tokenizer, config.mask.unit)
        plans = [plan(source, config.num_lanes, config.bad_input) for source in pinned(config.sources, state)]
        if config.cache:
            check_cache(config, loaded.digest, plans)
        self.header: State = header_of(config, loaded.digest, plans, seed)
        self._step, self._row = 0, 0
        lanes: dict[str, State] = {}
        if state is not None:
            check_header(self.header, state["header"], new_phase)
            self._step, self._row, lanes = state["step"], state["row"], state["lanes"]
        owned = [lane for lane in range(config.num_lanes) if (lane - self._row) % world_size == rank]
        states = {lane: lanes[str(lane)] for lane in owned} if state is not None else {}
        self._rows = range(rank, config.rows_per_step, world_size)  # of a step, within the step
        self._source = _Steps(config, loaded, plans, seed, owned, states, self._row, self._rows)
        self._num_workers = min(config.num_workers, len(owned))

    def __iter__(self) -> Iterator[Batch]:
        parts = self._parts()
        starts: dict[int, State] = {}
        stages: dict[int, tuple[Stage, ...]] = {}
        step, row = self._step, self._row
        try:
            while True:
                of_step = [_checked(next(parts)) for _ in range(max(1, self._num_workers))]
                for part in of_step:
                    starts |= part.starts
                    stages |= part.stages
                step, row = step + 1, row + self._config.rows_per_step
                yield self._joined(of_step, step, row, {lane: (starts[lane], stages[lane]) for lane in stages})
        finally:
            del parts  # ends the workers now, even where a traceback keeps this frame

    def _parts(self) -> Iterator[_Part | InputError]:
        if self._num_workers == 0:
            return iter(self._source)
        loader: DataLoader[_Part | InputError] = DataLoader(
            self._source,
            batch_size=None,
            num_workers=self._num_workers,
            prefetch_factor=self._config.prefetch_steps,
            worker_init_fn=functools.partial(_begin_worker, os.getpid()),
        )
        return iter(loader)

    def _joined(
        self, parts: list[_Part], step: int, row: int, lanes: dict[int, tuple[State, tuple[Stage, ...]]]
    ) -> Batch:
        """The rows of all workers, in the order of the step."""
        index = [i for part in parts for i in part.indices]
        order = sorted(range(len(index)), key=index.__getitem__)
        lengths = [row for part in parts for row in part.piece_lengths]
        documents = [row for part in parts for row in part.documents]
        input_ids, labels = parts[0].input_ids, parts[0].labels
        if len(parts) > 1:
            input_ids = np.concatenate([part.input_ids for part in parts])[order]
            labels = np.concatenate([part.labels for part in parts])[order]
        return Batch(
            step=step,
            input_ids=torch.from_numpy(input_ids).long(),
            labels=torch.from_numpy(labels).long(),
            piece_lengths=[lengths[i] for i in order],
            documents=[documents[i] for i in order],
            tokens=sum(map(sum, lengths)),
            hash=hashing.add_hashes(*(part.hash for part in parts)),
            _header=self.header,
            _row=row,
            _lanes=lanes,
        )


class _Steps(IterableDataset[_Part | InputError]):
    """The parts of one worker (of the whole rank without workers), one a step."""

    def __init__(
        self,
        config: DataConfig,
        loaded: LoadedTokenizer,
        plans: list[Plan],
        seed: int,
        owned: list[int],
        states: dict[int, State],
        first_row: int,
        rows: range,
    ) -> None:
        self._config, self._loaded, self._plans, self._seed = config, loaded, plans, seed
        self._owned, self._states, self._first_row, self._rows = owned, states, first_row, rows
        self._masker = Masker(config.mask, loaded.special, seed)

    def __iter__(self) -> Iterator[_Part | InputError]:
        worker = get_worker_info()
        numbers = self._owned if worker is None else self._owned[worker.id :: worker.num_workers]
        _allow_files(len(numbers) * len(self._plans) * self._config.open_units)
        lanes = {
            number: Lane(number, self._plans, self._config, self._loaded, self._seed, self._states.get(number))
            for number in numbers
        }
        sent: dict[int, State] = {}
        row = self._first_row
        try:
            while True:
                yield self._part(lanes, row, sent)
                row += self._config.rows_per_step
        except InputError as error:  # torch would wrap it in the worker's trace
            yield error

    def _part(self, lanes: dict[int, Lane], first_row: int, sent: dict[int, State]) -> _Part:
        num_lanes = self._config.num_lanes
        indices = [k for k in self._rows if (first_row + k) % num_lanes in lanes]
        numbers = [first_row + k for k in indices]
        rows = [lanes[number % num_lanes].next_row() for number in numbers]
        input_ids, labels = self._masker(self._layout(rows), numbers)
        lengths = [[piece.length for piece in row] for row in rows]
        states = {number: lane.state() for number, lane in lanes.items()}
        starts = {number: start for number, (start, _) in states.items() if sent.get(number) is not start}
        sent |= starts
        return _Part(
            indices=indices,
            input_ids=input_ids,
            labels=labels,
            piece_lengths=lengths,
            documents=[[piece.id for piece in row] for row in rows],
            hash=hashing.add_hashes(*map(hashing.row_hash, indices, input_ids, labels, lengths)),
            stages={number: stages for number, (_, stages) in states.items()},
            starts=starts,
        )

    def _layout(self, rows: list[list[Piece]]) -> np.ndarray:
        """CLS ids SEP of each piece, one after another, in a uint32 (r, T) filled up with padding."""
        special = self._loaded.special
        out = np.full((len(rows), self._config.sequence_length), special.pad, np.uint32)
        for row, pieces in zip(out, rows, strict=True):
            at = 0
            for piece in pieces:
                end = at + piece.length
                row[at], row[end - 1] = special.cls, special.sep
                row[at + 1 : end - 1] = piece.ids
                at = end
        return out


def _checked(part: _Part | InputError) -> _Part:
    """Raise the error that a worker sent."""
    if isinstance(part, InputError):
        raise part
    return part


def _allow_files(count: int) -> None:
    """Raise the soft limit of open files where a lane's units need more than it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 1024 if hard == resource.RLIM_INFINITY else min(count + 1024, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _begin_worker(parent: int, _: int) -> None:
    """One thread a worker; torch's own watchdog misses a parent that was killed before it looked for the first time."""
    if os.getppid() != parent:
        os._exit(1)
    gc.freeze()  # collections would look through, and so copy, all that the parent has imported
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)


def allowed_world_sizes(config: DataConfig) -> list[int]:
    """The numbers of processes that divide num_lanes and rows_per_step."""
    return [n for n in range(1, config.num_lanes + 1) if config.num_lanes % n == config.rows_per_step % n == 0]


def check_world_size(config: DataConfig, world_size: int) -> None:
    """Raise InputError that lists the allowed numbers of processes."""
    allowed = allowed_world_sizes(config)
    if world_size not in allowed:
        raise InputError(
            f"{world_size} processes do not divide data.num_lanes={config.num_lanes} and "
            f"data.rows_per_step={config.rows_per_step}; allowed: {', '.join(map(str, allowed))}"
        )
