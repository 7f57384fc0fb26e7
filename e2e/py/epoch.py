"""Reads a WebDataset through a mount as training does: epoch.py DIR MANIFEST WORKERS EPOCHS.

Every member of every sample is compared with the manifest, and every picture is
decoded. Prints one JSON object; exits with 1 if anything differs or is missing.
"""
import glob, hashlib, io, json, sys, time

import torch
import webdataset
from PIL import Image


def check(sample):
    """Runs in the worker: the digest of each part, and the picture as the model would get it."""
    sums = {ext: hashlib.sha256(data).hexdigest() for ext, data in sample.items() if not ext.startswith("__")}
    image = Image.open(io.BytesIO(sample["jpg"]))
    image.load()
    return sample["__key__"], sums, torch.tensor(list(image.tobytes()[:64]), dtype=torch.uint8), image.size


def main(directory, manifest, workers, epochs):
    with open(manifest) as f:
        want = json.load(f)
    urls = sorted(glob.glob(directory + "/*.tar"))
    wrong, seconds = [], []
    for epoch in range(epochs):
        begin, seen = time.monotonic(), set()
        dataset = webdataset.WebDataset(
            urls, shardshuffle=len(urls), seed=epoch, nodesplitter=None, workersplitter=webdataset.split_by_worker,
            handler=webdataset.reraise_exception, empty_check=False,
        ).map(check)
        loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)
        for key, sums, pixels, size in loader:
            if len(pixels) != 64 or size[0] not in (224, 256, 384):
                wrong.append(f"epoch {epoch}: {key}: picture of {size}")
            for ext, digest in sums.items():
                name = f"{key}.{ext}"
                if want.get(name) != digest:
                    wrong.append(f"epoch {epoch}: {name}: sha256 {digest}, want {want.get(name)}")
                if name in seen:
                    wrong.append(f"epoch {epoch}: {name}: seen twice")
                seen.add(name)
        wrong += [f"epoch {epoch}: {name}: not seen" for name in sorted(set(want) - seen)]
        seconds.append(round(time.monotonic() - begin, 3))
    print(json.dumps({"members": len(want), "shards": len(urls), "epochs": epochs, "seconds": seconds, "wrong": wrong[:20]}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
