// Package archtest is the house rules as tests: which package may import which,
// which may use which library, what opens a package, how large things get.
//
// It promises to read the source itself, in this process, so that an answer never
// comes from the cache of an earlier run. It leaves behaviour to the tests of
// the packages. It has no code but tests. It is a part.
package archtest
