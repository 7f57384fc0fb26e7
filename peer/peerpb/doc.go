// Package peerpb is the wire form of the control calls between members,
// generated from peer.proto, work.proto and tars.proto. It promises nothing beyond these files: who may call
// and what the answers mean is said in package peer, of which it is a part.
package peerpb

//go:generate sh -c "protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative peer.proto work.proto tars.proto"
