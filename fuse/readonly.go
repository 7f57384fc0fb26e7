package fuse

import gofuse "github.com/hanwen/go-fuse/v2/fuse"

// Everything that modifies. The mount is read-only, so the kernel refuses before it
// asks, until somebody remounts.

func (f *rawFS) SetAttr(<-chan struct{}, *gofuse.SetAttrIn, *gofuse.AttrOut) gofuse.Status {
	return gofuse.EROFS
}

func (f *rawFS) Mknod(<-chan struct{}, *gofuse.MknodIn, string, *gofuse.EntryOut) gofuse.Status {
	return gofuse.EROFS
}

func (f *rawFS) Mkdir(<-chan struct{}, *gofuse.MkdirIn, string, *gofuse.EntryOut) gofuse.Status {
	return gofuse.EROFS
}

func (f *rawFS) Unlink(<-chan struct{}, *gofuse.InHeader, string) gofuse.Status { return gofuse.EROFS }

func (f *rawFS) Rmdir(<-chan struct{}, *gofuse.InHeader, string) gofuse.Status { return gofuse.EROFS }

func (f *rawFS) Rename(<-chan struct{}, *gofuse.RenameIn, string, string) gofuse.Status {
	return gofuse.EROFS
}

func (f *rawFS) Link(<-chan struct{}, *gofuse.LinkIn, string, *gofuse.EntryOut) gofuse.Status {
	return gofuse.EROFS
}

func (f *rawFS) Symlink(<-chan struct{}, *gofuse.InHeader, string, string, *gofuse.EntryOut) gofuse.Status {
	return gofuse.EROFS
}

func (f *rawFS) Create(<-chan struct{}, *gofuse.CreateIn, string, *gofuse.CreateOut) gofuse.Status {
	return gofuse.EROFS
}

func (f *rawFS) Tmpfile(<-chan struct{}, *gofuse.CreateIn, *gofuse.CreateOut) gofuse.Status {
	return gofuse.EROFS
}

func (f *rawFS) SetXAttr(<-chan struct{}, *gofuse.SetXAttrIn, string, []byte) gofuse.Status {
	return gofuse.EROFS
}

func (f *rawFS) RemoveXAttr(<-chan struct{}, *gofuse.InHeader, string) gofuse.Status {
	return gofuse.EROFS
}

func (f *rawFS) Write(<-chan struct{}, *gofuse.WriteIn, []byte) (uint32, gofuse.Status) {
	return 0, gofuse.EROFS
}

func (f *rawFS) Fallocate(<-chan struct{}, *gofuse.FallocateIn) gofuse.Status { return gofuse.EROFS }
