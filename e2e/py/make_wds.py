"""Writes a WebDataset of real photographs: make_wds.py OUT PICTURES SEED SAMPLES SHARDS.

Each sample is a crop of a photograph, scaled and encoded as JPEG anew, with a
class and a description. OUT/manifest.json gets the SHA-256 of every member by its name.
"""
import glob, hashlib, io, json, os, random, sys, tarfile

from PIL import Image


def samples(pictures, seed, count):
    rng = random.Random(seed)
    names = sorted(p for p in glob.glob(pictures + "/*") if p.endswith((".jpg", ".png")))
    images = [Image.open(p).convert("RGB") for p in names]
    for i in range(count):
        which = i % len(images)
        image = images[which]
        side = rng.randint(120, min(image.size))
        x, y = rng.randint(0, image.width - side), rng.randint(0, image.height - side)
        size = rng.choice([224, 256, 384])
        crop = image.crop((x, y, x + side, y + side)).resize((size, size), Image.LANCZOS)
        jpeg = io.BytesIO()
        crop.save(jpeg, "JPEG", quality=rng.randint(80, 96))
        about = {"source": os.path.basename(names[which]), "box": [x, y, side], "size": size}
        yield f"{i:06d}", {"jpg": jpeg.getvalue(), "cls": str(which).encode(), "json": json.dumps(about).encode()}


def main(out, pictures, seed, count, shards):
    os.makedirs(out, exist_ok=True)
    manifest = {}
    tars = [tarfile.open(f"{out}/train-{s:06d}.tar", "w", format=tarfile.USTAR_FORMAT) for s in range(shards)]
    for i, (key, parts) in enumerate(samples(pictures, seed, count)):
        for ext, data in parts.items():
            info = tarfile.TarInfo(f"{key}.{ext}")
            info.size = len(data)
            tars[i * shards // count].addfile(info, io.BytesIO(data))
            manifest[info.name] = hashlib.sha256(data).hexdigest()
    for t in tars:
        t.close()
    with open(f"{out}/manifest.json", "w") as f:
        json.dump(manifest, f)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
