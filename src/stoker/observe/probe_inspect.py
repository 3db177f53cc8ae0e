"""One step under a dispatch mode: which operations really ran, in which types, and which of the user's lines asked."""

import sys
from collections import Counter, defaultdict
from contextlib import suppress
from types import FrameType
from typing import Any

from stoker.observe.frames import Frames
from stoker.observe.probe_replay import half_ratio
from stoker.observe.probe_text import Follower
from stoker.observe.recorder import Recorder
from stoker.records.codec import encode
from stoker.records.probes import Inspection, LineOps

MOST_LINES = 8
PICKS = {"select", "slice", "index", "index_select", "narrow", "unbind", "split", "gather", "split_with_sizes"}
"""Operations that pick out a part of a tensor: what a loop over its elements does all the time."""
WRAPS = ("torch/_compile.py", "torch/_dynamo/eval_frame.py", "torch/utils/_python_dispatch.py")
"""Files of torch whose frames stand between an operation and the dispatch mode."""
CONVOLUTIONS = {"convolution", "_convolution", "convolution_backward"}


class Inspector:
    """Counts until it is left."""

    def __init__(self, torch: Any, batch_share: float | None = None) -> None:
        self._torch = torch
        self._batch_share = batch_share
        self._ops = self._bytes = 0
        self._flops: Counter[str] = Counter()
        self._convolutions = self._channels_last = 0
        self._autocast = False
        self._lines: dict[tuple[str, int, str], Counter[int]] = defaultdict(Counter)
        self._entries: dict[tuple[str, int, str], Counter[int]] = defaultdict(Counter)
        self._places: set[str] = set()
        self._site: tuple[FrameType, int] | None = None
        self._picks: Counter[tuple[str, int, str]] = Counter()
        self._used: dict[tuple[str, int, str], set[int]] = defaultdict(set)
        self._repeats: dict[tuple[str, int, str], Counter[tuple[int, int]]] = defaultdict(Counter)
        self._calls: dict[int, FrameType] = {}  # held, so that no two calls share a number
        self._frames = Frames(lambda *_, **__: None)
        self._text = Follower()
        self._mode = self._make_mode()

    def enter(self) -> None:
        """Begin; a profiler that is at work is left alone."""
        self._mode.__enter__()
        if sys.getprofile() is None:
            sys.setprofile(self._text)

    def leave(self) -> dict[str, Any]:
        """Stop, and say what was seen."""
        if sys.getprofile() is self._text:
            sys.setprofile(None)
        self._mode.__exit__(None, None, None)
        self._calls.clear()
        self._site = None
        return encode(self._found())  # type: ignore[no-any-return]

    def _make_mode(self) -> Any:
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils.flop_counter import flop_registry

        inspector = self

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                kwargs = kwargs or {}
                out = func(*args, **kwargs)
                with suppress(Exception):  # the user's step goes on
                    inspector._see(func, args, kwargs, out, flop_registry)
                return out

        return Mode()  # type: ignore[no-untyped-call]

    def _see(self, func: Any, args: Any, kwargs: Any, out: Any, registry: Any) -> None:
        self._ops += 1
        self._autocast = self._autocast or self._torch.is_autocast_enabled("cpu") or self._torch.is_autocast_enabled()
        packet = func._overloadpacket  # noqa: SLF001
        name = packet.__name__
        tensors = [arg for arg in args if isinstance(arg, self._torch.Tensor)]
        if not func.is_view:
            self._bytes += sum(self._weigh(part) for part in (*args, out))
        if packet in registry and tensors:
            self._flops[str(tensors[0].dtype).removeprefix("torch.")] += registry[packet](*args, **kwargs, out_val=out)
        if name in CONVOLUTIONS and tensors and tensors[0].dim() == 4:  # noqa: PLR2004
            self._convolutions += 1
            self._channels_last += tensors[0].is_contiguous(memory_format=self._torch.channels_last)
        self._count_line(name, tensors)

    def _weigh(self, part: Any) -> int:
        """Bytes of a tensor, or of a list of them: a fused operation takes its weights so."""
        if isinstance(part, (list, tuple)):
            return sum(map(self._weigh, part))
        return part.numel() * part.element_size() if isinstance(part, self._torch.Tensor) else 0

    def _count_line(self, name: str, tensors: list[Any]) -> None:
        leaf: FrameType | None = sys._getframe(3)  # noqa: SLF001
        while leaf is not None and leaf.f_code.co_filename.endswith(WRAPS):
            leaf = leaf.f_back
        frame = self._users(leaf)
        if leaf is None or frame is None:
            return
        before, self._site = self._site, (leaf, leaf.f_lasti)  # held, so that no other call gets its number
        enters = leaf is frame or before is None or before[0] is not leaf or before[1] != leaf.f_lasti
        code = frame.f_code
        key = code.co_filename, frame.f_lineno, code.co_qualname
        self._places.add(f"{code.co_filename}:{frame.f_lineno}")
        weights = {tensor.data_ptr() for tensor in tensors if isinstance(tensor, self._torch.nn.Parameter)}
        call = _function_frame(frame)
        self._calls[id(call)] = call
        self._repeats[key].update((id(call), weight) for weight in weights)
        if weights - self._used[key]:  # a new layer is no repetition
            self._used[key] |= weights
            return
        self._lines[key][id(call)] += 1
        self._entries[key][id(call)] += enters
        self._picks[key] += name in PICKS

    def _users(self, frame: FrameType | None) -> FrameType | None:
        while frame is not None and not self._frames.is_users(frame.f_code):
            if frame.f_code.co_name == "backward" and "torch" in frame.f_code.co_filename:
                return None  # the backward pass repeats what the forward pass did
            frame = frame.f_back
        return frame

    def _found(self) -> Inspection:
        ranked = sorted(self._lines.items(), key=lambda item: -max(item[1].values()))[:MOST_LINES]
        lines = tuple(
            LineOps(
                *key,
                counts.total(),
                max(counts.values()),
                self._picks[key],
                max(self._repeats[key].values() or [0]),
                max(self._entries[key].values()),
            )
            for key, counts in ranked
        )
        return Inspection(
            ops=self._ops,
            flops=float(sum(self._flops.values())),
            flops_by_dtype={name: float(value) for name, value in self._flops.items()},
            convolutions=self._convolutions,
            channels_last=self._channels_last,
            lines=lines,
            autocast=self._autocast,
            places=tuple(sorted(self._places)),
            matmul_precision=self._torch.get_float32_matmul_precision(),
            moved_bytes=float(self._bytes),
            batch_share=self._batch_share,
            text_s=self._text.seconds,
            text_place=self._text.place,
        )


def note_inspection(inspector: Inspector, torch: Any, recorder: Recorder) -> None:
    """Stop, and write down what was seen; never an error."""
    with suppress(Exception):
        found = inspector.leave()
        with suppress(Exception):
            found["half_ratio"] = half_ratio(torch)
        recorder.note("inspection", **found)


def _function_frame(frame: FrameType) -> FrameType:
    """A comprehension's frame belongs to the function around it."""
    while frame.f_code.co_name in {"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"} and frame.f_back is not None:
        frame = frame.f_back
    return frame
