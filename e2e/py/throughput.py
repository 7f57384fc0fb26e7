"""Reads shards with webdataset and DataLoader workers: throughput.py WORKERS EPOCHS URL...

Prints one JSON object: per epoch the seconds from the loader's start to its last
sample, and how many samples and bytes came.
"""
import json, sys, time

import torch
import webdataset as wds


def measure(sample):
    return sum(len(data) for name, data in sample.items() if not name.startswith("__"))


def main(workers, epochs, urls):
    out = []
    for _ in range(epochs):
        dataset = wds.WebDataset(
            urls, shardshuffle=False, nodesplitter=None, workersplitter=wds.split_by_worker,
            handler=wds.reraise_exception, empty_check=False,
        ).map(measure)
        loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)
        begin, samples, total = time.monotonic(), 0, 0
        for size in loader:
            samples += 1
            total += size
        out.append({"seconds": time.monotonic() - begin, "samples": samples, "bytes": total})
    print(json.dumps(out))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
