"""Tests that need no mount. Run: cd python && python3 -m unittest discover -s tests"""

import itertools
import os
import pathlib
import sys
import tempfile
import types
import unittest
from unittest import mock

import shardwell


class Expand(unittest.TestCase):
    def test_templates(self):
        for template, want in {
            "a": ["a"],
            "a-{000..003}.tar": ["a-000.tar", "a-001.tar", "a-002.tar", "a-003.tar"],
            "{8..11}": ["8", "9", "10", "11"],
            "{3..1}": ["3", "2", "1"],
            "{0..9..4}": ["0", "4", "8"],
            "{a,b}-{0..1}": ["a-0", "a-1", "b-0", "b-1"],
            "x{a,b{1,2}}": ["xa", "xb1", "xb2"],
            "{a,b}{0..1}": ["a0", "a1", "b0", "b1"],
            "one::two-{0..1}": ["one", "two-0", "two-1"],
            "{not}": ["{not}"],
            "{": ["{"],
            "{a}{1..2}": ["{a}1", "{a}2"],
        }.items():
            with self.subTest(template):
                self.assertEqual(shardwell.expand(template), want)

    def test_too_many(self):
        with self.assertRaises(ValueError):
            shardwell.expand("{0..999999999}")


class WithoutAMount(unittest.TestCase):
    def test_nothing_happens(self):
        for urls in ("/nowhere/a-{0..2}.tar", "pipe:curl x", ["https://x/y.tar", {"url": "file:/z"}], [b"/x", pathlib.Path("/y")], []):
            with self.subTest(urls):
                want = shardwell.expand(urls) if isinstance(urls, str) else urls
                self.assertEqual(shardwell.plan(urls), want)

    def test_what_is_wrong_is_passed_on(self):
        self.assertEqual(shardwell.plan([None, 7]), [None, 7])

    def test_without_extended_attributes(self):
        with mock.patch.object(os, "getxattr", side_effect=AttributeError, create=True):
            self.assertEqual(shardwell.plan(["/x"]), ["/x"])
            self.assertEqual(shardwell.plans("/"), "")


class Ahead(unittest.TestCase):
    def test_passes_everything_on(self):
        shards = [{"url": "/nowhere/%d.tar" % i} for i in range(1000)]
        self.assertEqual(list(shardwell.ahead(iter(shards))), shards)

    def test_endless(self):
        got = itertools.islice(shardwell.ahead({"url": str(i)} for i in itertools.count()), 600)
        self.assertEqual([s["url"] for s in got], [str(i) for i in range(600)])


class HandsOver(unittest.TestCase):
    """What reaches the mount, with a directory that takes itself for one."""

    def setUp(self):
        self.dir = tempfile.mkdtemp()
        os.makedirs(os.path.join(self.dir, "sub"))
        self.calls = []

        def getxattr(path, name):
            if name == "user.shardwell.source" and os.fspath(path).startswith(self.dir):
                return b"s3://b/"
            raise OSError(95, "not supported")

        def ioctl(fd, request, arg):
            self.calls.append((os.readlink("/proc/self/fd/%d" % fd), request, bytes(arg)))

        for patch in (
            mock.patch.object(os, "getxattr", getxattr),
            mock.patch.object(os.path, "ismount", lambda p: p == self.dir),
            mock.patch("fcntl.ioctl", ioctl),
        ):
            patch.start()
            self.addCleanup(patch.stop)

    def text(self, i=0):
        return self.calls[i][2].rstrip(b"\0").decode()

    def test_paths_of_all_kinds(self):
        shardwell.plan(
            [self.dir + "/a.tar", "file:" + self.dir + "/sub/b.tar", "file://" + self.dir + "/c.tar", "/elsewhere/d.tar",
             {"url": self.dir + "/e.tar"}], rank=3)
        self.assertEqual(len(self.calls), 1)
        where, request, arg = self.calls[0]
        self.assertEqual((where, request, len(arg)), (self.dir, 0x60005350, 8192))
        self.assertEqual(self.text(), "new 3\na.tar\nsub/b.tar\nc.tar\ne.tar\n")

    def test_long_plans_go_in_parts(self):
        names = [self.dir + "/train-%06d.tar" % i for i in range(2000)]
        shardwell.plan(names)
        got = []
        for i, (_, _, arg) in enumerate(self.calls):
            self.assertLessEqual(len(arg), 8192)
            head, *lines = self.text(i).splitlines()
            self.assertEqual(head.split(" ")[0], "more" if i else "new")
            got += lines
        self.assertEqual(got, [os.path.basename(n) for n in names])

    def test_names_that_cannot_be(self):
        shardwell.plan([self.dir + "/a\nb", self.dir + "/" + "x" * 9000, self.dir + "/c"], rank="r\n\x1b")
        self.assertEqual(self.text(), "new r\nc\n")

    def test_a_mount_that_refuses(self):
        with mock.patch("fcntl.ioctl", side_effect=OSError(95, "not supported")):
            self.assertEqual(shardwell.plan([self.dir + "/a"]), [self.dir + "/a"])

    def test_what_follows_is_known_before_the_last_is_read(self):
        names = ["s-%04d" % i for i in range(600)]
        for at, shard in enumerate(shardwell.ahead(self.dir + "/" + n for n in names)):
            self.assertEqual(shard, self.dir + "/" + names[at])
            given = self.text(-1).splitlines()[1:]
            self.assertLessEqual(set(names[at + 1 : at + 101]), set(given))
        self.assertEqual(len(self.calls), 4)  # 256 at first, then 128, 128 and 88

    def test_workers_have_plans_of_their_own(self):
        fake = types.SimpleNamespace(get_worker_info=lambda: types.SimpleNamespace(id=2))
        with mock.patch.dict(sys.modules, {"torch.utils.data": fake}), mock.patch.dict(os.environ, {"RANK": "5"}):
            shardwell.plan([self.dir + "/a"])
        self.assertEqual(self.text(), "new 5.2\na\n")


if __name__ == "__main__":
    unittest.main()
