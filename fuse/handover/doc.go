// Package handover lets a mount outlive the process that serves it. It is a part of fuse.
//
// Its pieces are [Area], the memory of a session that its successive servers share;
// [Keeper], the process that holds the kernel's end of each mount and that memory while
// no server lives; [Client], a server's connection to it; and [Store], the same kept by
// the service manager of the machine. What a keeper holds of a mount is a [Session].
//
// It promises that what is in an Area is whole whatever instruction its writer was
// killed at; that a server gets sessions only after its predecessor is surely gone: the
// last thread that could have read from the mounts has closed its connection; that a
// keeper never looks into a mount; and that one which nobody has served for the give-up
// time is aborted, so that its readers get errors.
//
// What a session means is left to others: to the keeper an Area is bytes. Here are few
// imports, for the keeper is a small program that must never have to be replaced.
package handover
