"""Writes a real model in three formats for model.py: make_model.py SAFETENSORS OUT."""
import os, shutil, sys

import torch
from safetensors.torch import load_file


def main(source, out):
    os.makedirs(out, exist_ok=True)
    shutil.copyfile(source, out + "/model.safetensors")
    tensors = load_file(source)
    torch.save(tensors, out + "/model.pt")
    with open(out + "/model.raw", "wb") as f:
        for name in sorted(tensors):
            f.write(tensors[name].contiguous().flatten().to(torch.float32).numpy().tobytes())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
