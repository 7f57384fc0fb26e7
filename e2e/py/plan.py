"""Reads shards in DataLoader workers that hand over their plans: plan.py DIR WORKERS.

After its first sample each worker waits until the shard that it opens next is on
this node: nobody but the plan can have brought it. Prints one JSON object.
"""
import glob, json, os, sys, time

import torch
import webdataset as wds

import shardwell

WAIT_SECONDS = 60


def cached(path):
    return float(os.getxattr(path, "user.shardwell.cached"))


def main(directory, workers):
    urls = sorted(glob.glob(directory + "/*.tar"))

    class Samples(torch.utils.data.IterableDataset):
        def __iter__(self):
            worker = torch.utils.data.get_worker_info().id
            mine = []

            def note(source):
                mine.extend(source)
                yield from mine

            pipeline = wds.DataPipeline(
                wds.SimpleShardList(urls, seed=7), wds.split_by_worker, wds.shuffle(1000), note, shardwell.ahead,
                wds.tarfile_to_samples(),
            )
            count, waited = 0, None
            for sample in pipeline:
                if count == 0:
                    following = mine[1]["url"]
                    deadline = time.monotonic() + WAIT_SECONDS
                    while cached(following) < 1 and time.monotonic() < deadline:
                        time.sleep(0.05)
                    waited = cached(following)
                count += 1
            yield {"worker": worker, "samples": count, "next": waited, "plans": shardwell.plans(directory)}

    loader = torch.utils.data.DataLoader(Samples(), batch_size=None, num_workers=workers)
    print(json.dumps({"workers": list(loader), "shards": len(urls)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
