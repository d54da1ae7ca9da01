"""Groups of ranks: GPUs of this process, one GPU of each of several processes, or the emulator."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import _core
from .limits import MOST_RANKS, check_count, check_seconds
from .turns import Turns

if TYPE_CHECKING:
    import torch

#: Brings what every process of a group passes to each of them, by rank, like ``mpi4py``'s ``allgather``.
Gather = Callable[[Any], Sequence[Any]]


def brought_by_all(gather: Gather, step: str, value: Any) -> list[Any]:
    """What each rank brings to a step, which all of them have to make."""
    brought = list(gather((step, value)))
    for rank, (other, _) in enumerate(brought):
        if other != step:
            raise _core.Disagreement(f"rank {rank} makes {other} where this one makes {step}")
    return [value for _, value in brought]


#: An address that is nobody's.
ELSEWHERE = "192.0.2.1"


class Group:
    """The ranks that move rows among each other.

    One process drives one rank or all of them: `local` says which. All ranks make the same calls in the
    same order, also a rank without tokens.
    """

    def __init__(self, core: _core.Group, *, mirror: tuple[int, Gather] | None = None, patience: float = 10.0) -> None:
        """Not for users: see the class methods below, such as `from_torch` and `on_host`."""
        self._core = core
        #: How many ranks there are, here and in other processes.
        self.ranks = core.ranks
        #: How many nodes they are on, equally many on each; ranks are numbered node by node.
        self.nodes = core.nodes
        #: Whether kernels write to network cards themselves, to reach ranks of other nodes.
        self.writes_to_cards = core.writes_to_cards
        #: The ranks that this process drives.
        self.local = range(mirror[0], mirror[0] + 1) if mirror else range(*core.local)
        #: Whether the ranks live in the emulator.
        self.on_emulator = core.on_emulator
        self._devices: dict[int, int | None] = dict.fromkeys(range(core.ranks))
        if not self.on_emulator:
            self._devices.update((rank, core.device(rank)) for rank in self.local)
        self._turns = Turns(core, patience) if core.on_emulator else None
        self._mirror = mirror
        #: Ranks that take no part in low-latency calls.
        self.left_out: frozenset[int] = frozenset()
        #: How often a rank has come back.
        self.returns = 0

    def _agree(self, step: str, options: dict[str, Any]) -> None:
        """Where each process emulates all ranks: refuses to make what another one makes otherwise."""
        if self._mirror is None:
            return
        for rank, others in enumerate(brought_by_all(self._mirror[1], step, options)):
            for name, own in options.items():
                if others[name] != own:
                    raise _core.Disagreement(
                        f"rank {rank} makes {step} with {name}={others[name]}, and this one with {name}={own}"
                    )

    @classmethod
    def on_gpus(
        cls,
        ranks: int | None = None,
        *,
        devices: Sequence[int] | None = None,
        timeout: float = 30.0,
        leaves_out_absent: bool = False,
    ) -> Group:
        """All ranks in this process, on the GPUs that it sees or on ``devices``.

        ``ranks`` beyond their number share GPUs. ``timeout`` is the longest wait inside a kernel, in seconds. With
        ``leaves_out_absent`` low-latency calls go on without a rank that has not answered for so long: see `absent`.
        """
        check_count("ranks", ranks, least=1, most=MOST_RANKS)
        check_seconds("timeout", timeout)
        if devices is None:
            count = _core.gpus()
            devices = [rank % count for rank in range(count if ranks is None else ranks)]
        elif ranks is not None and ranks != len(devices):
            raise _core.Mismatch(f"{ranks} ranks, but {len(devices)} devices")
        return cls(_core.Group.on_gpus(list(devices), timeout, leaves_out_absent))

    @classmethod
    def join(
        cls,
        unique_id: str | _core.UniqueId,
        rank: int,
        ranks: int,
        *,
        device: int | None = None,
        nodes: int = 1,
        net: str | None = None,
        timeout: float = 30.0,
        deadline: float = 120.0,
        leaves_out_absent: bool = False,
    ) -> Group:
        """This process as one rank of a group of processes, all with one `UniqueId`.

        ``device`` is the ordinal of its GPU, ``LOCAL_RANK`` or else the rank unless it is given. ``nodes`` of equally
        many ranks, numbered node by node, reach the id's address; ``net`` is as in `over_network`. ``deadline`` is how
        long the others are waited for, here and in every step that all make together. ``leaves_out_absent`` is as in
        `on_gpus`.
        """
        named = _core.UniqueId.parse(unique_id) if isinstance(unique_id, str) else unique_id
        for name, value, least in (("rank", rank, 0), ("ranks", ranks, 1), ("nodes", nodes, 1)):
            check_count(name, value, least=least, most=MOST_RANKS)
        check_seconds("timeout", timeout)
        check_seconds("deadline", deadline)
        if device is None:
            device = int(os.environ.get("LOCAL_RANK", rank))
        numbers, times = (rank, ranks, nodes), (deadline, timeout)
        return cls(_core.Group.join(named, numbers, device, net, times, leaves_out_absent))

    @classmethod
    def from_environment(
        cls,
        *,
        net: str | None = None,
        timeout: float = 30.0,
        deadline: float = 120.0,
        leaves_out_absent: bool = False,
    ) -> Group:
        """The rank that a launcher such as torchrun describes, with ``EPFORGE_ID`` or ``EPFORGE_SECRET``.

        ``LOCAL_WORLD_SIZE`` says how many ranks are on each node; ``net`` is as in `over_network`.
        """
        unique_id = _core.UniqueId.from_environment()
        rank, ranks = from_variable("RANK"), from_variable("WORLD_SIZE")
        each = from_variable("LOCAL_WORLD_SIZE", ranks)
        if not each or ranks % each:
            wrong = f"LOCAL_WORLD_SIZE is {each}, and the number of ranks, {ranks}, is not a multiple of it"
            raise _core.GroupError(wrong)
        return cls.join(
            unique_id,
            rank,
            ranks,
            nodes=ranks // each,
            net=net,
            timeout=timeout,
            deadline=deadline,
            leaves_out_absent=leaves_out_absent,
        )

    @classmethod
    def from_torch(
        cls,
        process_group: torch.distributed.ProcessGroup | None = None,
        *,
        device: int | str | torch.device | None = None,
        nodes: int | None = None,
        net: str | None = None,
        timeout: float = 30.0,
        deadline: float = 120.0,
        leaves_out_absent: bool = False,
    ) -> Group:
        """The processes of a ``torch.distributed`` group of any backend; the default one unless it is given.

        ``device`` is this process' GPU, torch's current one unless it is given. ``"cpu"`` runs the group in
        the emulator. ``nodes`` and ``net`` are as in `from_gather`.
        """
        import torch
        import torch.distributed as dist

        rank, ranks = dist.get_rank(process_group), dist.get_world_size(process_group)

        def gather(value: Any) -> list[Any]:
            brought: list[Any] = [None] * ranks
            dist.all_gather_object(brought, value, group=process_group)
            return brought

        place = torch.device("cuda" if device is None else device)
        if place.type == "cpu":
            return cls.from_gather(rank, gather=gather, nodes=nodes, net=net, leaves_out_absent=leaves_out_absent)
        ordinal = torch.cuda.current_device() if place.index is None else place.index
        return cls.from_gather(
            rank,
            gather=gather,
            device=ordinal,
            nodes=nodes,
            net=net,
            timeout=timeout,
            deadline=deadline,
            leaves_out_absent=leaves_out_absent,
        )

    @classmethod
    def from_gather(
        cls,
        rank: int,
        *,
        gather: Gather,
        device: int | None = None,
        nodes: int | None = None,
        net: str | None = None,
        timeout: float = 30.0,
        deadline: float = 120.0,
        leaves_out_absent: bool = False,
        seed: int = 1,
        check: bool = True,
    ) -> Group:
        """This process as one rank of those that a collective connects, such as ``mpi4py``'s ``comm.allgather``.

        ``device`` is the ordinal of its GPU. Without one the rank lives in the emulator: each process emulates
        all ranks, and ``gather`` brings it the inputs of the others in every call. Unless ``nodes`` says how many
        there are, each host is one; in the emulator each agent of torchrun, which may share a host. Rows between
        nodes of GPUs go over ``net``, as in `over_network`; rank 0 listens where other hosts reach it.
        """
        names = list(gather(node_name(on_emulator=device is None)))
        if not 0 <= rank < len(names):
            raise _core.Mismatch(f"a group of {len(names)} ranks has no rank {rank}")
        nodes = count_nodes(names) if nodes is None else nodes
        if nodes > 1 and leaves_out_absent:
            raise _core.Mismatch(f"ranks of {nodes} nodes wait for one another: `leaves_out_absent` is for one node")
        if device is None:
            return cls(_core.Group.on_host((len(names), nodes), seed, net, check, False), mirror=(rank, gather))
        own, wrong = None, None
        if rank == 0:
            try:
                own = _core.UniqueId.local() if len(set(names)) == 1 else _core.UniqueId.at(own_address())
            except _core.Error as error:
                # The others wait for what it brings.
                wrong = error
        text = gather(own.text() if own else None)[0]
        if wrong:
            raise wrong
        if text is None:
            raise _core.GroupError("rank 0 has no address at which the others could reach it")
        return cls.join(
            own or text,
            rank,
            len(names),
            device=device,
            nodes=nodes,
            net=net,
            timeout=timeout,
            deadline=deadline,
            leaves_out_absent=leaves_out_absent,
        )

    @classmethod
    def over_network(
        cls,
        unique_id: str | _core.UniqueId,
        node: int,
        nodes: int,
        *,
        devices: Sequence[int] = (),
        ranks: int | None = None,
        net: str | None = None,
        timeout: float = 30.0,
        deadline: float = 120.0,
        patience: float = 10.0,
    ) -> Group:
        """This process as one node of several, which all join with one `UniqueId`: a rank on each of ``devices``.

        All nodes have as many ranks, and loops over `local` make their calls. ``net`` is what carries rows between
        them: ``tcp``, ``shm`` for processes of one machine, ``verbs`` or ``efa``, as ``epforge doctor`` lists them;
        ``ibgda`` or ``ibgda:mlx5_0,mlx5_1`` for network cards that kernels write to; or, for processes of one rank each
        on one machine, ``card`` or ``card:50GB/s,3us``, such cards that are kernels. Unless it is given, ``net`` is
        what ``EPFORGE_NET`` names, or ``tcp``. Without ``devices``, ``ranks`` ranks are in the emulator.
        """
        named = _core.UniqueId.parse(unique_id) if isinstance(unique_id, str) else unique_id
        if devices and ranks not in (None, len(devices)):
            raise _core.Mismatch(f"{ranks} ranks, but {len(devices)} devices")
        each = len(devices) or (1 if ranks is None else ranks)
        for name, value, least in (("node", node, 0), ("nodes", nodes, 1), ("ranks", each, 1)):
            check_count(name, value, least=least, most=MOST_RANKS)
        for name, wait in (("timeout", timeout), ("deadline", deadline), ("patience", patience)):
            check_seconds(name, wait)
        core = _core.Group.over_network(named, (node, nodes, each), list(devices), net, deadline, timeout)
        return cls(core, patience=patience)

    @classmethod
    def on_host(
        cls,
        ranks: int = 2,
        *,
        nodes: int = 1,
        net: str | None = None,
        seed: int = 1,
        check: bool = True,
        patience: float = 10.0,
        leaves_out_absent: bool = False,
    ) -> Group:
        """Ranks in the emulator, all in this process: slow and right, and without a GPU.

        They are on ``nodes`` nodes, between which rows go over a model of a network, which lands them in any order.
        With ``net="ibgda"`` or ``"card"``, or one of these in ``EPFORGE_NET``, kernels write to models of network
        cards.
        ``check`` follows the order of all accesses, and ``seed`` draws the schedule. Ranks may be threads; a
        loop over them makes a call on all before it looks at a result. ``patience`` is how many seconds a
        rank waits for the others' calls before the emulator is asked who is missing. ``leaves_out_absent`` is as
        in `on_gpus`.
        """
        check_count("ranks", ranks, least=1, most=MOST_RANKS)
        check_count("nodes", nodes, least=1, most=MOST_RANKS)
        check_seconds("patience", patience)
        return cls(_core.Group.on_host((ranks, nodes), seed, net, check, leaves_out_absent), patience=patience)

    def device(self, rank: int | None = None) -> int | None:
        """The ordinal of a rank's GPU; none in the emulator."""
        return self._devices[self.rank(rank)]

    def rank(self, rank: int | None = None) -> int:
        """``rank`` if it is local; the only local one if none is named."""
        local = self.local
        if rank is None:
            if len(local) == 1:
                return local.start
            raise _core.Mismatch(f"this process drives {len(local)} ranks: name one, as in `rank=0`")
        if rank in local:
            return rank
        raise _core.Mismatch(f"rank {rank} is not local: this process drives {local.start} to {local.stop - 1}")

    def leave_out(self, rank: int, is_out: bool = True) -> None:
        """Leaves a rank out of later low-latency calls, or takes it back in: nobody waits for it.

        All other ranks say the same, and it makes no calls itself. Calls of a `Buffer` need every rank. A graph
        goes on with the ranks that it was captured with. To take it back, every process says so, its own too, when
        the calls without it are made; what a call has left between its phases is dropped.
        """
        self._core.leave_out(rank, is_out)
        self.left_out = self.left_out | {rank} if is_out else self.left_out - {rank}
        self.returns += not is_out
        if self._turns and is_out:
            self._turns.leave_out(rank)
        elif self._turns:
            self._turns.take_back(self.left_out)

    def absent(self, rank: int | None = None) -> frozenset[int]:
        """The ranks that low-latency calls of a rank have found absent, in a group with ``leaves_out_absent``.

        They did not answer within the timeout, and later calls of the rank go on without them. What the call that
        found one absent has of it is nothing, or part of what it sent. Waits until all calls of the rank have run.
        """
        own = self.rank(rank)
        if self._turns:
            self._turns.settle(own)
        found = frozenset(self._core.absent(own))
        if self._turns:
            for each in found:
                self._turns.leave_out(each)
        return found

    def sync(self, rank: int | None = None) -> None:
        """Waits until all calls of a rank have run, or of all local ones, and reports what went wrong."""
        for each in self.local if rank is None else [self.rank(rank)]:
            if self._turns:
                self._turns.settle(each)
            else:
                self._core.sync(each)

    @contextmanager
    def around(self, stream: int, rank: int | None = None) -> Iterator[None]:
        """What is put into ``stream`` inside comes behind all earlier calls and before all later ones.

        A graph of calls that another library has captured is launched so.
        """
        own = self.rank(rank)
        if self._turns:
            raise _core.Capture("the emulator has one queue for each rank, and no streams")
        self._core.await_calls(own, stream)
        yield
        self._core.follow(own, stream)

    def __repr__(self) -> str:
        return f"Group({self._core.name}, local {list(self.local)} of {self.ranks})"


def from_variable(name: str, unset: int | None = None) -> int:
    """The number in a variable of a launcher."""
    text = os.environ.get(name, "" if unset is None else str(unset))
    if not text.isdecimal():
        raise _core.GroupError(f"{name} is not set to a number")
    return int(text)


def own_address() -> str:
    """The address by which other hosts reach this one: that of its interface towards ``MASTER_ADDR``, or else towards
    hosts that it does not know."""
    master = os.environ.get("MASTER_ADDR", "")
    for towards in filter(None, (master, ELSEWHERE)):
        try:
            kind, _, _, _, place = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(kind, socket.SOCK_DGRAM) as probe:
                probe.connect(place)  # Which sends nothing.
                address = str(probe.getsockname()[0])
        except OSError:
            continue
        # A host's own name may stand for an address of its own that nobody else reaches.
        is_meant = towards in ("localhost", place[0]) and ipaddress.ip_address(place[0]).is_loopback
        if is_meant or not ipaddress.ip_address(address).is_loopback:
            return address
    raise _core.GroupError("this host has no address that others reach: name one in MASTER_ADDR")


def node_name(on_emulator: bool) -> str:
    """What all processes of a node call it, and no others."""
    host, agent = socket.gethostname(), os.environ.get("GROUP_RANK")
    return host if agent is None or not on_emulator else f"{host}, torchrun's agent {agent}"


def count_nodes(names: Sequence[str]) -> int:
    """How many nodes ranks are on that have these names, in order."""
    ranks: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        ranks.setdefault(name, []).append(rank)
    each = len(names) // len(ranks)
    for node, (name, own) in enumerate(ranks.items()):
        wanted = list(range(node * each, (node + 1) * each))
        if own != wanted:
            raise _core.Mismatch(
                f"{name} has ranks {own} of {len(names)} on {len(ranks)} nodes, and has to have {wanted}: "
                "they are numbered node by node, equally many on each"
            )
    return len(ranks)
