"""Detect changes after a recording: modules, tensors, attributes, methods and modes that were replaced.

Within a trainer or a collector only users' code changes a policy of trainkit's own class, and they know when it runs:
what was found unchanged is not looked at again before.

What a loss reads from anywhere else, a global variable, a closure, a counter in a list, is not watched; the engine
finds it by comparison, in calls 1 to 4, 8, 16 ... 1,024 and then in every 1,024th.
"""

from collections.abc import Iterable
from itertools import chain
from operator import attrgetter, itemgetter
from types import FunctionType
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from trainkit.core import user_code
from trainkit.engine.moving_buffers import may_have_modes

_OF_TORCH = frozenset(vars(nn.Module()))  # the attributes that every module has
_TABLES = "_parameters", "_buffers", "_modules"
_HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
_GLOBAL_HOOKS = [
    getattr(torch_module, f"_global{kind}")
    for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
]
_LISTS = nn.ModuleList, nn.ModuleDict  # which are not called: what matters is which modules they have
_PLAIN = nn.Linear, nn.Sequential, nn.ReLU, nn.Tanh  # without modes and settings
_OF_PLAIN = _OF_TORCH | {"in_features", "out_features", "inplace"}

_values: Any = dict.values
_of_parameter = attrgetter("requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks")
_forward = attrgetter("forward")


class Changes:
    """Changes of modules and parts since the last `look`.

    Watched are an owner's modules, its attributes and theirs: which objects they are, where tensors are stored, which
    require gradients, the modes of modules that have modes, the `forward` of every class of modules and the methods of
    parts. A part is an attribute that is an object with a `__dict__`, such as a backup or a penalty; what its own
    attributes contain is not watched.

    Args:
        owner: the policy.
        ignored: attributes of the owner that no recorded function reads.
        for_gradients: whether gradients are computed, so that it matters which parameters require them.

    Attributes:
        tensors: the parameters and buffers, and the tensors among the attributes.
        is_observed: whether a hook was registered at the last `look`, on a module, on a parameter or globally.
    """

    def __init__(self, owner: nn.Module, ignored: frozenset[str] = frozenset(), *, for_gradients: bool = True) -> None:
        self._owner, self._ignored, self._for_gradients = owner, ignored | _OF_TORCH, for_gradients
        self._is_own = type(owner).__module__.startswith("trainkit.")  # else its methods are users' code
        self._unchanged_at: int | None = None  # see `user_code.moment`
        self._read: set[int] = set()  # parameters and buffers that were read, by their ids
        self.remember()

    def narrow(self, read: Iterable[Tensor]) -> None:
        """Watch only modules of users, those without tensors, and those whose tensors were read, now or before."""
        self._read.update(map(id, read))
        self.remember()

    def remember(self, *, watch_all: bool = False) -> None:
        """Remember the current state of everything that is watched.

        Args:
            watch_all: watch what was read before, too.
        """
        if watch_all:
            self._read.clear()
        everything = list(self._owner.modules())
        modules = [module for module in everything if type(module) not in _LISTS and self._matters(module)]
        own = [vars(module) for module in modules]
        tables: list[dict[str, Any]] = [table[name] for table in own for name in _TABLES]
        named = [(table, sorted(table.keys() - self._ignored_of(m))) for m, table in zip(modules, own, strict=True)]
        self._extras = [(itemgetter(*names, names[0]), table) for table, names in named if names]
        self._names = [
            f"{type(module).__name__}.{name}"
            for module, (_, names) in zip(modules, named, strict=True)
            for name in (*names, *names[:1])
        ]
        values = list(chain.from_iterable(get(table) for get, table in self._extras))
        parts = {id(part): part for part in values if _is_part(part)}.values()
        lists = [vars(module)["_modules"] for module in everything if type(module) in _LISTS]
        tables += [*lists, *(part.__dict__ for part in parts)]
        self._tables = [table for table in tables if table]
        is_called = {id(table["_modules"]) for table in own} | set(map(id, lists))  # in an order that may matter
        self._ordered = [table for table in self._tables if id(table) in is_called and len(table) > 1]
        self._kinds = {id(vars(part)): type(part).__name__ for part in parts}  # by their tables
        plain = [table for module, table in zip(modules, own, strict=True) if type(module) in _PLAIN]
        in_plain = {id(table[name]) for table in plain for name in _TABLES}
        self._own = own
        self._empty = [table for table in tables if not table and id(table) not in in_plain]
        self._classes = list(dict.fromkeys(map(type, modules)))
        methods: list[Any] = [vars(kind) for kind in dict.fromkeys(map(type, parts))]
        self._contents = self._tables + methods
        found = chain(values, chain.from_iterable(map(_values, self._tables)))
        watched = list({id(x): x for x in found if isinstance(x, Tensor)}.values())
        others = chain.from_iterable(chain(_values(m._parameters), _values(m._buffers)) for m in everything)
        self.tensors = list({id(x): x for x in (*watched, *others) if x is not None}.values())
        self._watched = watched
        self._parameters = [x for x in watched if isinstance(x, nn.Parameter)]
        self._learning = self._parameters if self._for_gradients else []
        self._hooks = [table[name] for table in own for name in _HOOKS] + _GLOBAL_HOOKS
        self._hooks += self._hooks_of_parameters()  # to which a later hook may be added
        # A tensor of one number may be equal to another one that replaces it.
        items = [(table, name, x) for table in self._tables for name, x in table.items()]
        self._single = [item for item in items if isinstance(item[2], Tensor) and item[2].numel() == 1]
        self._kept = [x.detach() for x in watched]  # so that no other tensor is stored there
        self._copies, self._state = list(map(dict, self._contents)), self._now()
        self.is_observed = self.has_hooks()

    def has_hooks(self) -> bool:
        """Return whether a hook is registered on a module or tensor of the last `look`."""
        return any(self._hooks) or any(self._hooks_of_parameters())

    def _hooks_of_parameters(self) -> list[Any]:
        return [hooks for x in self._parameters for hooks in _of_parameter(x)[1:] if hooks is not None]

    def has_changed(self) -> bool:
        """Return whether anything has changed since the last `look`."""
        moment = user_code.moment() if self._is_own else None
        if moment is not None and moment == self._unchanged_at:
            return False
        has_changed = self._differs()
        self._unchanged_at = None if has_changed else moment
        return has_changed

    def _differs(self) -> bool:
        """Return whether the current state is not that of the last `look`."""
        try:
            if self._contents != self._copies or self._now() != self._state:
                return True
        except (RuntimeError, ValueError, KeyError):  # two tensors or arrays are compared, or an attribute is gone
            return True
        return bool(self._single) and any(table[name] is not tensor for table, name, tensor in self._single)

    def first(self) -> str | None:
        """Name one change since the last `look`, None where there is none."""
        if not self._differs():
            return None
        try:
            now, before = (chain.from_iterable(state[0]) for state in (self._now(), self._state))
        except KeyError as error:
            return str(error)
        for name, x, y in zip(self._names, now, before, strict=True):
            if x is not y:
                return name
        for table, copy in zip(self._tables, self._copies, strict=False):  # behind which are those of methods
            for name in table:
                if table[name] is not copy.get(name):
                    return f"{self._kinds[id(table)]}.{name}" if id(table) in self._kinds else name
        return "a module or a hook"

    def _now(self) -> tuple[Any, ...]:
        """Return what is watched besides the contents of tables, to compare: equal objects compare fast."""
        return (
            [get(table) for get, table in self._extras],
            list(map(len, self._own)),
            list(chain.from_iterable(self._ordered)),
            list(map(Tensor.data_ptr, self._watched)),
            list(map(_of_parameter, self._learning)),
            list(map(_forward, self._classes)),
            any(self._hooks),
            any(self._empty),
        )

    def _matters(self, module: nn.Module) -> bool:
        """Return whether the function may use a module; one of the user's may decide by an attribute."""
        is_of_user = not type(module).__module__.startswith(("torch.", "trainkit."))
        if not self._read or module is self._owner or is_of_user:
            return True
        own = [*module.parameters(), *module.buffers()]
        return not own or any(id(x) in self._read for x in own)

    def _ignored_of(self, module: nn.Module) -> frozenset[str]:
        """Return the attributes of a module to ignore: torch's own, and the mode if it has no effect."""
        if module is self._owner:
            return self._ignored
        if type(module) in _PLAIN:
            return _OF_PLAIN
        return _OF_TORCH - {"training"} if may_have_modes(type(module)) else _OF_TORCH


def _is_part(value: object) -> bool:
    """Return whether an attribute is an object with attributes that is not from torch, numpy or gymnasium."""
    is_own = type(value).__module__.split(".")[0] not in ("torch", "numpy", "gymnasium", "builtins", "functools")
    return is_own and hasattr(value, "__dict__") and not isinstance(value, (Tensor, nn.Module, type, FunctionType))
