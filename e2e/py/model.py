"""Loads models through a mount by mmap and compares them with a copy beside it: model.py MOUNTED COPY.

Both directories hold model.safetensors, model.pt (torch.save) and model.raw (float32).
Prints one JSON object; exits with 1 if a tensor differs.
"""
import json, mmap, os, sys, time

import torch
from safetensors import safe_open
from safetensors.torch import load_file


def raw(path):
    """The file's bytes as a tensor over a private mapping, as torch maps storages."""
    return torch.from_file(path, shared=False, size=os.path.getsize(path) // 4, dtype=torch.float32)


def main(mounted, copy):
    begin, wrong, tensors = time.monotonic(), [], 0
    want = load_file(copy + "/model.safetensors")
    with safe_open(mounted + "/model.safetensors", framework="pt", device="cpu") as f:
        if sorted(f.keys()) != sorted(want):
            wrong.append("other tensor names")
        for name in want:
            tensors += 1
            if not torch.equal(f.get_tensor(name), want[name]):
                wrong.append("safetensors: " + name)
    got = torch.load(mounted + "/model.pt", map_location="cpu")
    for name in want:
        if not torch.equal(got[name], want[name]):
            wrong.append("torch.load: " + name)
    if not torch.equal(raw(mounted + "/model.raw").view(torch.int32), raw(copy + "/model.raw").view(torch.int32)):
        wrong.append("torch.from_file: mapped tensor")
    with open(mounted + "/model.safetensors", "rb") as a, open(copy + "/model.safetensors", "rb") as b:
        with mmap.mmap(a.fileno(), 0, prot=mmap.PROT_READ) as m:
            if m[:] != b.read():
                wrong.append("mmap: bytes of model.safetensors")
    print(json.dumps({"tensors": tensors, "seconds": round(time.monotonic() - begin, 3), "wrong": wrong[:20]}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
