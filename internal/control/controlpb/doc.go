// Package controlpb is the generated wire form of the control socket. What it
// means is documented in control.proto and warm.proto and served by package control. It is a part.
package controlpb

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative control.proto warm.proto
