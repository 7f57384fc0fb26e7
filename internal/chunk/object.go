package chunk

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/shardwell/shardwell/internal/chunk/varint"
)

// Object names one version of one object of one origin. Two objects are the
// same bytes exactly when all fields are equal.
type Object struct {
	Origin string // canonical endpoint URL: "https://s3.example.com", "file:///mnt/data"
	Bucket string // "" for a directory origin
	Key    string // any bytes that the origin accepts, not necessarily UTF-8
	ETag   string // without quotes; for a directory origin what objstore/dir derives
	Size   int64  // bytes
}

// Limits of the parts of an [Object], in bytes. S3 allows keys of 1024.
const (
	MaxKeyBytes    = 4096
	MaxOriginBytes = 1024
	MaxBucketBytes = 255
	MaxETagBytes   = 512
)

// ObjectID is the identity of an [Object] in file names and on the wire: the
// first 16 bytes of SHA-256 over its encoding, which no tenant can collide.
type ObjectID [16]byte

// String returns 32 lower-case hexadecimal digits.
func (id ObjectID) String() string { return hex.EncodeToString(id[:]) }

// ParseObjectID is the inverse of [ObjectID.String].
func ParseObjectID(s string) (ObjectID, error) {
	var id ObjectID
	if len(s) != 2*len(id) {
		return id, fmt.Errorf("object id %q: must be %d hexadecimal digits", s, 2*len(id))
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil {
		return id, fmt.Errorf("object id %q: %w", s, err)
	}
	return id, nil
}

// ID returns the identity of o. It hashes; hold on to the result.
func (o Object) ID() ObjectID {
	var buf [512]byte
	sum := sha256.Sum256(o.AppendBinary(buf[:0]))
	return ObjectID(sum[:16])
}

// URI returns how a user writes the object: s3://bucket/key, or origin/key for
// an origin without buckets.
func (o Object) URI() string {
	if o.Bucket == "" {
		return o.Origin + "/" + o.Key
	}
	return "s3://" + o.Bucket + "/" + o.Key
}

// objectVersion opens every encoding, so that a later layout can be told apart.
const objectVersion = 1

// AppendBinary appends the encoding of o to b: one version byte, the four
// strings, each behind its length as an unsigned varint, and the size as a varint.
// The encoding is canonical: equal objects, equal bytes.
func (o Object) AppendBinary(b []byte) []byte {
	b = append(b, objectVersion)
	for _, s := range [...]string{o.Origin, o.Bucket, o.Key, o.ETag} {
		b = varint.AppendText(b, s)
	}
	return varint.Append(b, uint64(o.Size))
}

var errObject = errors.New("malformed object identity")

// ParseObject is the inverse of [Object.AppendBinary]. It returns an error for
// anything that AppendBinary would not have written, trailing bytes included.
func ParseObject(b []byte) (Object, error) {
	var o Object
	d := varint.NewDecoder(b)
	if d.Byte() != objectVersion {
		return o, errObject
	}
	o.Origin = string(d.Text(MaxOriginBytes))
	o.Bucket = string(d.Text(MaxBucketBytes))
	o.Key = string(d.Text(MaxKeyBytes))
	o.ETag = string(d.Text(MaxETagBytes))
	o.Size = int64(d.AtMost(MaxObjectBytes))
	if !d.Whole() {
		return Object{}, errObject
	}
	// Varints have longer spellings of the same number; only ours is accepted.
	if string(o.AppendBinary(nil)) != string(b) {
		return Object{}, errObject
	}
	return o, nil
}
