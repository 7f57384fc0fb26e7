// Package e2e tests the product's binary as a cluster: a real kernel, real
// processes in network namespaces, a real S3 server that counts, real readers.
//
// It promises that a test that passes has compared every byte with its source
// and counted requests where the origin sees them. How to run one: README.md.
package e2e
