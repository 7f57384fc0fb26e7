"""Tells a Shardwell mount which shards a program is about to read.

The node then has them before they are opened. Without a mount, or on another
system, nothing happens: no function here raises because of what it finds.
"""

import collections
import itertools
import os
import re
import sys

__all__ = ["plan", "ahead", "plans", "expand"]
__version__ = "0.1.0"

# As in fuse/plan.go: _IOW('S', 0x50, char[8192]).
_PLAN_BYTES = 8192
_PLAN_IOCTL = 1 << 30 | _PLAN_BYTES << 16 | ord("S") << 8 | 0x50
_SOURCE = "user.shardwell.source"
_PLANS = "user.shardwell.plan"

_MAX_EXPANDED = 1 << 17  # the names a plan may have
_AHEAD = 256  # shards that the stage looks ahead


def plan(urls, rank=None):
    """Hands over the shards that are going to be read, in their order.

    urls is a template ("/data/train-{000..127}.tar", several with "::" between) or
    an iterable of paths or dictionaries with a "url". What is not in a mount of
    Shardwell (other paths, "pipe:", "https:") is left out. A process has one plan
    for each mount; the next call replaces it. rank names the plan; by default it is
    RANK and the number of the DataLoader worker.

    Returns the shards as a list, as they were given.
    """
    urls = expand(urls) if isinstance(urls, (str, os.PathLike)) else list(urls)
    try:
        _hand_over(urls, _label() if rank is None else str(rank))
    except Exception as err:  # a hint is never worth a failure
        _debug(err)
    return urls


def ahead(shards):
    """A stage of a pipeline that passes shards on, and hands over those that come next.

    It is put behind whatever shuffles and splits shards and before what opens them.
    It looks 256 shards ahead, and never less than half of that while there are more.
    """
    source = iter(shards)
    waiting = collections.deque(itertools.islice(source, _AHEAD))
    plan(waiting)
    while waiting:
        yield waiting.popleft()
        if len(waiting) == _AHEAD // 2:
            more = list(itertools.islice(source, _AHEAD - len(waiting)))
            if more:
                waiting.extend(more)
                plan(waiting)


def plans(directory):
    """Tells how far the plans of the mount are that directory lies in, a line each."""
    try:
        return os.getxattr(os.fspath(directory), _PLANS).decode("utf-8", "replace")
    except (OSError, AttributeError):
        return ""


_RANGE = re.compile(r"(\d+)\.\.(\d+)(?:\.\.(\d+))?\Z")


def expand(template):
    """Expands braces as a shell does: {000..127}, {0..9..3}, {a,b}; "::" separates templates."""
    out = []
    for part in os.fspath(template).split("::"):
        for name in _expand(part):
            if len(out) >= _MAX_EXPANDED:
                raise ValueError("%s stands for more than %d shards" % (template, _MAX_EXPANDED))
            out.append(name)
    return out


def _expand(text):
    begin = text.find("{")
    end = _closing(text, begin) if begin >= 0 else -1
    if end < 0:
        yield text
        return
    choices = _choices(text[begin + 1 : end])
    if choices is None:  # no braces of ours
        for tail in _expand(text[begin + 1 :]):
            yield text[: begin + 1] + tail
        return
    for choice in choices:
        for middle in _expand(choice):
            for tail in _expand(text[end + 1 :]):
                yield text[:begin] + middle + tail


def _closing(text, begin):
    """Where the braces that open at begin are closed, or -1."""
    depth = 0
    for i in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return i
    return -1


def _choices(body):
    """What braces with such a body stand for, or None."""
    found = _RANGE.match(body)
    if found:
        first, last, step = int(found.group(1)), int(found.group(2)), int(found.group(3) or 1)
        step = max(step, 1) if last >= first else -max(step, 1)
        padded = any(len(n) > 1 and n.startswith("0") for n in found.groups()[:2])
        width = max(len(found.group(1)), len(found.group(2))) if padded else 0
        return (str(n).zfill(width) for n in range(first, last + (1 if step > 0 else -1), step))
    parts, depth = [""], 0
    for c in body:
        depth += {"{": 1, "}": -1}.get(c, 0)
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts if len(parts) > 1 else None


def _label():
    """The rank and DataLoader worker of this process."""
    rank = os.environ.get("RANK", "")
    torch_data = sys.modules.get("torch.utils.data")  # not imported on its account
    info = torch_data.get_worker_info() if torch_data is not None else None
    return rank if info is None else "%s.%d" % (rank or "0", info.id)


def _hand_over(urls, label):
    by_directory = {}
    known = {}
    for url in urls:
        path = _path(url)
        if path is None:
            continue
        top = _top(os.path.dirname(path), known)
        if top is not None:
            by_directory.setdefault(top, []).append(os.path.relpath(path, top))
    for top, names in by_directory.items():
        _give(top, names, label)


def _path(url):
    """The absolute path of a shard on this machine, or None."""
    if isinstance(url, dict):
        url = url.get("url", "")
    url = os.fspath(url)
    if isinstance(url, bytes):
        url = os.fsdecode(url)
    if url.startswith("file:"):
        url = url[len("file:") :]
        if url.startswith("//"):
            url = url[2:]
    elif re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", url):
        return None
    return os.path.abspath(url)


def _top(directory, known):
    """The topmost directory of the mount of Shardwell that a directory lies in, or None."""
    if directory in known:
        return known[directory]
    top = None
    try:
        os.getxattr(directory, _SOURCE)
    except (OSError, AttributeError):
        pass
    else:
        parent = os.path.dirname(directory)
        above = _top(parent, known) if parent != directory and not os.path.ismount(directory) else None
        top = above or directory
    known[directory] = top
    return top


def _give(directory, names, label):
    import fcntl  # not on every system

    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in _parts(names, label):
            fcntl.ioctl(fd, _PLAN_IOCTL, bytearray(part.ljust(_PLAN_BYTES, b"\0")))
    finally:
        os.close(fd)


def _parts(names, label):
    """The arguments of the calls that hand names over."""
    label = "".join(c for c in label if c.isprintable()).encode("utf-8")[:64].decode("utf-8", "ignore").encode("utf-8")
    text = b"new " + label + b"\n"
    for name in names:
        line = os.fsencode(name) + b"\n"
        if b"\0" in line or line.count(b"\n") > 1 or len(line) > _PLAN_BYTES // 2:
            continue  # no name of a shard
        if len(text) + len(line) >= _PLAN_BYTES:
            yield text
            text = b"more " + label + b"\n"
        text += line
    yield text


def _debug(err):
    if os.environ.get("SHARDWELL_DEBUG"):
        sys.stderr.write("shardwell: plan: %r\n" % (err,))
