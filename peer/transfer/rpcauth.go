package transfer

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Control calls carry the same signature as requests for blocks, in metadata. It
// covers the method, both members, time and nonce, not the message: what a call
// changes (Forget) costs at most a repeated question.

const (
	metaAuth = "shardwell-authorization"
	metaTo   = "shardwell-to"
	metaFrom = "shardwell-from"

	rpcMethod = "RPC" // stands where an HTTP method does
)

type rpcCredentials struct {
	signer   *Signer
	self, to string
}

// RPCCredentials returns what signs each control call from self to the member to. A
// nil signer names both and signs nothing.
func RPCCredentials(s *Signer, self, to string) credentials.PerRPCCredentials {
	return rpcCredentials{signer: s, self: self, to: to}
}

func (c rpcCredentials) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	info, ok := credentials.RequestInfoFromContext(ctx)
	if !ok {
		return nil, errors.New("control call without a method")
	}
	md := map[string]string{metaTo: c.to, metaFrom: c.self}
	if c.signer != nil {
		md[metaAuth], _ = c.signer.sign(time.Now(), rpcMethod, info.Method, c.to, c.self)
	}
	return md, nil
}

// RequireTransportSecurity reports false: peers speak in the clear.
func (rpcCredentials) RequireTransportSecurity() bool { return false }

type fromKey struct{}

// CallerOf returns the ring id of the member that made a control call.
func CallerOf(ctx context.Context) string {
	s, _ := ctx.Value(fromKey{}).(string)
	return s
}

// RPCInterceptor refuses control calls that are not signed for self. A nil
// Verifier accepts everybody.
func RPCInterceptor(v *Verifier, self string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		ctx, err := checkCall(ctx, v, self, info.FullMethod)
		if err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}
}

// RPCStreamInterceptor is RPCInterceptor for calls that are answered in several messages.
func RPCStreamInterceptor(v *Verifier, self string) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, err := checkCall(stream.Context(), v, self, info.FullMethod)
		if err != nil {
			return err
		}
		return handler(srv, calledStream{stream, ctx})
	}
}

// calledStream is a stream whose context knows the caller.
type calledStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s calledStream) Context() context.Context { return s.ctx }

// checkCall returns a context that knows the caller, or why he is refused.
func checkCall(ctx context.Context, v *Verifier, self, method string) (context.Context, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	to, from := one(md, metaTo), one(md, metaFrom)
	_, err := v.verify(one(md, metaAuth), time.Now(), rpcMethod, method, to, from)
	switch {
	case err != nil:
		return nil, status.Error(codes.Unauthenticated, err.Error())
	case to != self:
		return nil, status.Error(codes.Unauthenticated, ErrMisdirected.Error()+": "+self)
	case !validMemberID(from):
		return nil, status.Error(codes.InvalidArgument, "no valid asking member")
	}
	return context.WithValue(ctx, fromKey{}, from), nil
}

// one returns the value of a key that comes once, else "".
func one(md metadata.MD, key string) string {
	if v := md.Get(key); len(v) == 1 {
		return v[0]
	}
	return ""
}
