package control

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// peerCredentials tells the server's handlers who is at the other end: the
// kernel says so (SO_PEERCRED), as of when the other end connected. There is no
// encryption, as both ends are on one machine.
type peerCredentials struct{}

// callerInfo is what a handshake learns.
type callerInfo struct {
	credentials.CommonAuthInfo
	caller Caller
}

func (callerInfo) AuthType() string { return "peercred" }

func (peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	caller, err := callerOf(conn)
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, callerInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}, caller}, nil
}

func (peerCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("control: peer credentials are the server's side")
}

func (peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "peercred"}
}
func (p peerCredentials) Clone() credentials.TransportCredentials { return p }
func (peerCredentials) OverrideServerName(string) error           { return nil }

// callerOf asks the kernel who opened a connection.
func callerOf(conn net.Conn) (Caller, error) {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return Caller{}, fmt.Errorf("control: connection of type %T is no unix socket", conn)
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return Caller{}, fmt.Errorf("control: ask for the caller: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Caller{}, fmt.Errorf("control: ask for the caller: %w", err)
	}
	if credErr != nil {
		return Caller{}, fmt.Errorf("control: ask for the caller: %w", credErr)
	}
	return Caller{UID: cred.Uid, GID: cred.Gid, PID: cred.Pid}, nil
}

// callerFrom returns who sent the request of ctx.
func callerFrom(ctx context.Context) (Caller, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Caller{}, false
	}
	info, ok := p.AuthInfo.(callerInfo)
	return info.caller, ok
}
