"""The loader: global batches that depend on the configuration and the step alone.

Row j of the run comes from lane j mod G, of G lanes; step n takes the next `rows_per_step` rows; rank r of W takes the
rows of the step with index k = r (mod W). A worker process yields one item a step, its lanes' rows with their state;
the training process joins the workers' items and keeps the state of the last batch consumed, so prefetched ones are not
lost.
"""

import dataclasses
import itertools
import resource
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from configs import InputError
from data import hashing
from data.config import DataConfig, check_process_count
from data.sources.unit import Plan
from data.stream.cache import check_cache
from data.stream.lane import Lane, RunData, Stage
from data.stream.masks import I32, Masker
from data.stream.packing import Piece
from data.stream.state import State, check_state_header, plan_sources, state_header, with_weights
from data.stream.workers import start_workers
from data.tokenizer.load import load_tokenizer

LaneStates = dict[int, tuple[State, tuple[Stage, ...]]]  # by number of the lane, as Lane.state gives them


@dataclasses.dataclass
class Batch:
    """One rank's rows (R, of length T) of one global step."""

    step: int  # from 1
    input_ids: torch.Tensor  # int64 (R, T), masked, padded right
    labels: torch.Tensor  # int64 (R, T), -100 where not chosen
    piece_lengths: list[list[int]]  # per row; the rest of the row is padding
    piece_ids: list[list[str]]  # per row: which document, or part of one, each piece is
    tokens: int  # not padding
    hash: int  # the step's hash is the sum over ranks mod 2**64
    _header: State
    _row: int
    _lanes: LaneStates

    @property
    def state(self) -> State:
        """JSON-able state of this rank's lanes after this batch; see merge_states."""
        lanes = {str(lane): {**start, "stages": list(stages)} for lane, (start, stages) in sorted(self._lanes.items())}
        return {"header": self._header, "step": self.step, "row": self._row, "lanes": lanes}


@dataclasses.dataclass
class _Part:
    """What one worker gives to one step: numpy's arrays, which are pickled through the worker's pipe. Torch would send
    tensors through /dev/shm, which is small in containers, and open a connection for each.
    """

    indices: list[int]  # of the rows, within the step
    input_ids: I32  # (r, T)
    labels: I32
    piece_lengths: list[list[int]]
    piece_ids: list[list[str]]
    hash: int
    stages: dict[int, tuple[Stage, ...]]  # of each lane
    starts: dict[int, State]  # of lanes that began a window since the last part


class BatchLoader:
    """Endless batches of rank `rank` of `world_size`; continues after `state` (of merge_states, any world size).

    With `new_phase` the sequence length and the sources' weights may differ from those of the state: what is left of
    the current windows is packed again, nothing is lost, and the weights hold from the next windows on.
    `plans` are those of `plan_sources`, where they are known already. `header` is what the batches depend on.
    Raises InputError for a world size that cannot share lanes and rows, and for a state that cannot be resumed.
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
        plans: list[Plan] | None = None,
    ) -> None:
        check_process_count(world_size, config.num_lanes, config.rows_per_step)
        self._config = config
        loaded = load_tokenizer(tokenizer, config.mask.unit)
        plans = plan_sources(config, state) if plans is None else with_weights(plans, config)
        if config.cache:
            check_cache(config, loaded.digest, plans)
        self.header = state_header(config, loaded.digest, plans, seed)
        self._step, self._row = 0, 0
        if state is not None:
            then = state["header"]
            check_state_header(state_header(config, loaded.digest, plans, seed, then["version"]), then, new_phase)
            self._step, self._row = state["step"], state["row"]
        owned = [lane for lane in range(config.num_lanes) if (lane - self._row) % world_size == rank]
        states = {lane: None if state is None else state["lanes"][str(lane)] for lane in owned}
        rows = range(rank, config.rows_per_step, world_size)  # of a step, within the step
        self._source = _Steps(RunData(config, plans, loaded, seed), states, self._row, rows)
        self._num_workers = min(config.num_workers, len(owned))

    def __iter__(self) -> Iterator[Batch]:
        parts = self._parts()
        starts: dict[int, State] = {}
        stages: dict[int, tuple[Stage, ...]] = {}
        step, row = self._step, self._row
        try:
            while True:
                of_step = []
                for part in itertools.islice(parts, max(1, self._num_workers)):
                    if isinstance(part, InputError):
                        raise part
                    of_step.append(part)
                    starts |= part.starts
                    stages |= part.stages
                step, row = step + 1, row + self._config.rows_per_step
                yield self._joined(of_step, step, row, {lane: (starts[lane], stages[lane]) for lane in stages})
        finally:
            del parts  # ends the workers at once, even where a traceback keeps this frame alive

    def _parts(self) -> Iterator[_Part | InputError]:
        if self._num_workers == 0:
            return iter(self._source)
        return start_workers(self._source, self._num_workers, self._config.prefetch_steps)

    def _joined(self, parts: list[_Part], step: int, row: int, lanes: LaneStates) -> Batch:
        """The rows of all workers, in the order of the step."""
        index = [i for part in parts for i in part.indices]
        order = sorted(range(len(index)), key=index.__getitem__)
        lengths = [row for part in parts for row in part.piece_lengths]
        ids = [row for part in parts for row in part.piece_ids]
        input_ids, labels = parts[0].input_ids, parts[0].labels
        if len(parts) > 1:
            input_ids = np.concatenate([part.input_ids for part in parts])[order]
            labels = np.concatenate([part.labels for part in parts])[order]
        return Batch(
            step=step,
            input_ids=torch.from_numpy(input_ids).long(),
            labels=torch.from_numpy(labels).long(),
            piece_lengths=[lengths[i] for i in order],
            piece_ids=[ids[i] for i in order],
            tokens=sum(map(sum, lengths)),
            hash=hashing.add_hashes(*(part.hash for part in parts)),
            _header=self.header,
            _row=row,
            _lanes=lanes,
        )


class _Steps(IterableDataset[_Part | InputError]):
    """The parts of one worker (of the whole rank without workers), one a step.

    `states`: of each lane of this rank, None at the start of a run; `first_row`: number in the run of the next step's
    first row; `rows`: this rank's, within a step.
    """

    def __init__(self, run: RunData, states: dict[int, State | None], first_row: int, rows: range) -> None:
        self._run, self._states, self._first_row, self._rows = run, states, first_row, rows
        self._masker = Masker(run.config.mask, run.loaded.special, run.seed)

    def __iter__(self) -> Iterator[_Part | InputError]:
        """Ends with the InputError of bad input, which torch would wrap in the worker's trace if it were raised."""
        worker, config = get_worker_info(), self._run.config
        numbers = list(self._states)
        if worker is not None:
            numbers = numbers[worker.id :: worker.num_workers]
        _allow_open_files(len(numbers) * len(self._run.plans) * config.open_units)
        row = self._first_row
        sent: dict[int, State] = {}
        try:
            lanes = {number: Lane(number, self._run, self._states[number]) for number in numbers}
            while True:
                yield self._part(lanes, row, sent)
                row += config.rows_per_step
        except InputError as error:
            yield error

    def _part(self, lanes: dict[int, Lane], first_row: int, sent: dict[int, State]) -> _Part:
        num_lanes = self._run.config.num_lanes
        indices = [k for k in self._rows if (first_row + k) % num_lanes in lanes]
        numbers = [first_row + k for k in indices]
        rows = [lanes[number % num_lanes].next_row() for number in numbers]
        input_ids, labels = self._masker(self._padded(rows), numbers)
        lengths = [[piece.length for piece in row] for row in rows]
        states = {number: lane.state() for number, lane in lanes.items()}
        starts = {number: start for number, (start, _) in states.items() if sent.get(number) is not start}
        sent |= starts
        return _Part(
            indices=indices,
            input_ids=input_ids,
            labels=labels,
            piece_lengths=lengths,
            piece_ids=[[piece.id for piece in row] for row in rows],
            hash=hashing.add_hashes(*map(hashing.row_hash, indices, input_ids, labels, lengths)),
            stages={number: stages for number, (_, stages) in states.items()},
            starts=starts,
        )

    def _padded(self, rows: list[list[Piece]]) -> np.ndarray:
        """CLS ids SEP of each piece, one after another, in a uint32 (r, T) filled up with padding."""
        special = self._run.loaded.special
        out = np.full((len(rows), self._run.config.sequence_length), special.pad, np.uint32)
        for row, pieces in zip(out, rows, strict=True):
            at = 0
            for piece in pieces:
                end = at + piece.length
                row[at], row[end - 1] = special.cls, special.sep
                row[at + 1 : end - 1] = piece.ids
                at = end
        return out


def _allow_open_files(count: int) -> None:
    """Raise the soft limit of open files where a lane's units need more than it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 1024 if hard == resource.RLIM_INFINITY else min(count + 1024, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
