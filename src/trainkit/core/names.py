"""Hints for unknown names: the one of ours that was misspelled, and where the names of other libraries are listed.

A name is suggested only where the words of both are the same but for slips of the keyboard: a name with one more word,
or with other words, mostly means something else.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

OTHER_LIBRARIES = "docs/migration.md leads to the names of other libraries"

_IN_PARTS = {  # options of presets and of `for_envs`, where policies take the part that has them
    "double": "backup=DoubleBackup()",
    "gamma": "horizon=Horizon(gamma=...)",
    "lr": "optimizer=Adam(lr)",
    "max_grad_norm": "clip=Clip(...)",
    "n_step": "horizon=Horizon(n_step=...)",
}

_OTHER_TERMS = {  # of options: the first that a call has is suggested
    "buffer_size": ("capacity",),
    "clip_coef": ("clip_ratio",),
    "clip_range": ("clip_ratio",),
    "discount_factor": ("gamma",),
    "ent_coef": ("entropy_weight", "temperature"),
    "eps_clip": ("clip_ratio",),
    "estimation_step": ("n_step",),
    "gae_lambda": ("lam",),
    "hidden_sizes": ("hidden",),
    "exploration_noise": ("noise_std",),
    "n_epochs": ("repeat_per_collect",),
    "net_arch": ("hidden",),
    "noise": ("noise_std",),
    "num_envs": ("n_envs",),
    "policy_delay": ("actor_every",),
    "target_network_frequency": ("target_every",),
    "target_update_freq": ("target_every",),
    "target_update_interval": ("target_every",),
    "update_epochs": ("repeat_per_collect",),
    "vf_coef": ("value_weight",),
}


def option_hint(name: str, known: Iterable[str], owners: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return the hint for an unknown option, as the end of a message; "" if no option is similar.

    Args:
        name: the unknown option.
        known: options where it was given.
        owners: {option: calls that accept it}, to name the call where it belongs.
    """
    options, owners = [*known], {} if owners is None else owners
    if "env_options" in options and "make_envs" in owners.get(name, ()):
        return f", did you mean env_options={{{name!r}: ...}}?"
    event = name.removeprefix("on_")
    if event in options:
        return f", did you mean {event!r}?"
    if "callbacks" in options and "on" in owners.get(event, ()):
        return f", did you mean callbacks=[tk.on({event}=...)]?"
    if name in _IN_PARTS and _IN_PARTS[name].partition("=")[0] in options:
        return f", did you mean {_IN_PARTS[name]}?"
    term = next((term for term in _OTHER_TERMS.get(name, ()) if term in options), None)
    if term is not None:
        return f", did you mean {term!r}?"
    if name in owners and "_" in name and nearest_word(name, options) is None:  # one word alone has many meanings
        return f": it belongs to {', '.join(owners[name][:3])}"
    return did_you_mean(name, options)


def schedule_hint(value: object) -> str:
    """Return the hint for a schedule in the spelling of a shell or of rl-zoo, the end of a message; "" for others."""
    match = re.fullmatch(r"lin(?:ear)?[:_]\s*([^,\s]+?)\s*(?:,\s*(.+))?", value) if isinstance(value, str) else None
    return "" if match is None else f": give tk.Linear({match[1]}, {match[2] or 0})"


def class_hint(name: str, known: Mapping[str, str]) -> str:
    """Return the hint for a class or function that `trainkit` does not have, as the end of a message.

    Args:
        name: the unknown attribute.
        known: {name: attribute of `trainkit`}, such as {"MLP": "nets.MLP"}.
    """
    meant = next((own for own in (name, f"{name}Policy") if own in known), None) or nearest_word(name, known)
    return f": {OTHER_LIBRARIES}" if meant is None else f", did you mean tk.{known[meant]}? {OTHER_LIBRARIES}"


def did_you_mean(word: object, words: Iterable[str]) -> str:
    """Return `, did you mean 'x'?` if `word` is a misspelling of one of `words`, else an empty string."""
    close = nearest_word(str(word), words)
    return "" if close is None else f", did you mean {close!r}?"


def nearest_word(word: str, words: Iterable[str]) -> str | None:
    """Return the name that a word is a misspelling of, the nearest of several; None if there is none."""
    found = [(n, own) for own in words if (n := _n_slips(word, own)) is not None]
    return min(found, key=lambda pair: (pair[0], -len(pair[1])))[1] if found else None  # a slip of more letters is less


def _n_slips(a: str, b: str) -> int | None:
    """Return the number of slips that turn a name into another, None if they are different names."""
    mine, theirs = _parts(a), _parts(b)
    if sorted(mine) == sorted(theirs) or "".join(mine) == "".join(theirs):
        return 0
    if len(mine) > 1 and "".join(word[0] for word in mine) == b:
        return 1  # an abbreviation: learning_rate is lr
    if len(mine) != len(theirs):
        return None
    slips = [_n_slips_of_word(one, other) for one, other in zip(mine, theirs, strict=True)]
    return sum(n for n in slips if n is not None) if None not in slips else None


def _parts(name: str) -> list[str]:
    """Return the words of a name in lower case, without the "fn" that ends long names of functions."""
    words = re.split(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", name)
    lower = [word.lower().replace("ph", "f") for word in words if word]  # which sound alike: alfa is alpha
    return lower[:-1] if len(lower) > 2 and lower[-1] == "fn" else lower


def _n_slips_of_word(a: str, b: str) -> int | None:
    """Return the number of slips that turn a word into another, None if they are different words.

    One slip is a letter too many, missing, wrong, or exchanged with the next one. A word of eight letters may have two.
    In one of three a wrong letter makes another word, in a shorter one any but a doubled letter. The first is seldom
    wrong.
    """
    n, shortest = _edits(a, b), min(len(a), len(b))
    is_exchanged = sorted(a) == sorted(b)
    is_other = shortest < 3 or (shortest == 3 and len(a) == len(b))
    if n and is_other and not (is_exchanged or _undoubled(a) == _undoubled(b)):
        return None
    if a[:1] != b[:1] and not is_exchanged:
        return None
    return n if n <= (2 if max(len(a), len(b)) >= 8 else 1) else None


def _undoubled(word: str) -> str:
    return re.sub(r"(.)\1+", r"\1", word)


def _edits(a: str, b: str) -> int:
    """Return the optimal string alignment distance of two words."""
    last: list[int] = [*range(len(b) + 1)]
    before = last
    for i, letter in enumerate(a, 1):
        row = [i]
        for j, other in enumerate(b, 1):
            n = min(last[j] + 1, row[-1] + 1, last[j - 1] + int(letter != other))
            if i > 1 and j > 1 and (letter, a[i - 2]) == (b[j - 2], other):
                n = min(n, before[j - 2] + 1)
            row.append(n)
        before, last = last, row
    return last[-1]
