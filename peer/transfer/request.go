package transfer

import (
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// Names of the headers, part of the protocol.
const (
	headerObject     = "Shardwell-Object"     // base64url of the object's encoding
	headerGeometry   = "Shardwell-Geometry"   // chunk/block, bytes
	headerTo         = "Shardwell-To"         // ring id of the member meant
	headerFrom       = "Shardwell-From"       // ring id of the member that asks
	headerHops       = "Shardwell-Hops"       //
	headerHeldOnly   = "Shardwell-Held-Only"  // "1" or absent
	headerBackground = "Shardwell-Background" // "1", "fill" or absent
	headerNear       = "Shardwell-Near"       // ring id of a member that fills the object too, or absent
	headerPatience   = "Shardwell-Patience"   // milliseconds, or absent
	headerPace       = "Shardwell-Pace"       // bytes a second that come to the asker, slowSuffix behind it if its link is slow; or absent
	headerFailed     = "Shardwell-Failed"     // ring ids, comma-separated, or AnyMember
	headerIdentity   = "Shardwell-Identity"   // on whose behalf, or absent: the asker's own
	headerGrant      = "Shardwell-Grant"      // a presigned URL; a secret
	headerAuth       = "Authorization"

	headerProof    = "Shardwell-Proof"    // of an answer
	headerAnswers  = "Shardwell-Answers"  // target of the request that blocks are the answer to
	headerError    = "Shardwell-Error"    // class of an error
	headerRedirect = "Shardwell-Redirect" // ring id of the member to ask
)

// Limits of a request.
const (
	MaxFailed        = 16  // members named as failed
	MaxMemberIDBytes = 128 // of a ring id

	// maxPatience is longer than any client waits for a block.
	maxPatience = time.Hour

	// maxHeaderBytes has room for the longest identity and grant.
	maxHeaderBytes = 32 << 10
	// maxMessageBytes of an error's text are sent and read.
	maxMessageBytes = 512
)

// lagsSuffix behind a redirect's member says what RedirectError.Lags does. It is in no ring id.
const lagsSuffix = "*"

// slowSuffix behind a pace says what Request.Slow does.
const slowSuffix = "*"

// AnyMember among the failed members says: name nobody, answer yourself.
const AnyMember = "*"

const (
	blocksPath  = "/v1/blocks/"
	suspectPath = "/v1/suspect/"
)

// Request is a request for blocks as it crosses the wire. String and LogValue leave its
// grant out, which is a secret.
type Request struct {
	chunk.Request
	// Failed are the members that the asker could not get the blocks from.
	Failed []string
	// Near is the nearest member before the asker in the circle of those that fill the
	// object, as far as the asker knows, or "".
	Near string
	// Pace is how many bytes a second have come to the asker of late, 0 when it does not say. Slow
	// says that its link was found slow: nobody is to wait for what it receives.
	Pace int64
	Slow bool
}

func (r Request) String() string {
	s := fmt.Sprintf("%s %v hops=%d", r.ID, r.Span, r.Hops)
	if r.HeldOnly {
		s += " held-only"
	}
	return s
}

// LogValue keeps the grant out of logs.
func (r Request) LogValue() slog.Value { return slog.StringValue(r.String()) }

// target returns the request's path.
func (r Request) target() string {
	return blocksPath + r.ID.String() + "/" + strconv.FormatUint(uint64(r.Span.First), 10) + "-" +
		strconv.FormatUint(uint64(r.Span.End()-1), 10)
}

func geometryHeader(g chunk.Geometry) string {
	return strconv.FormatInt(g.ChunkBytes, 10) + "/" + strconv.FormatInt(g.BlockBytes, 10)
}

// Values of headerHeldOnly; see chunk.Request.
const (
	heldAny     = "1"
	heldSettled = "settled"
)

// backgroundFill is a value of headerBackground.
const backgroundFill = "fill"

// setHeaders writes everything but path and signature.
func (r Request) setHeaders(h http.Header, to string, g chunk.Geometry) {
	h[headerObject] = []string{b64.EncodeToString(r.Object.AppendBinary(nil))}
	h[headerGeometry] = []string{geometryHeader(g)}
	h[headerTo] = []string{to}
	h[headerFrom] = []string{r.From}
	h[headerHops] = []string{strconv.Itoa(r.Hops)}
	switch {
	case r.HeldOnly && r.Settled:
		h[headerHeldOnly] = []string{heldSettled}
	case r.HeldOnly:
		h[headerHeldOnly] = []string{heldAny}
	}
	switch {
	case r.Fill:
		h[headerBackground] = []string{backgroundFill}
	case r.Background:
		h[headerBackground] = []string{"1"}
	}
	if r.Near != "" {
		h[headerNear] = []string{r.Near}
	}
	if r.Pace > 0 || r.Slow {
		pace := strconv.FormatInt(max(0, r.Pace), 10)
		if r.Slow {
			pace += slowSuffix
		}
		h[headerPace] = []string{pace}
	}
	if r.Patience > 0 {
		h[headerPatience] = []string{strconv.FormatInt(max(1, r.Patience.Milliseconds()), 10)}
	}
	if len(r.Failed) > 0 {
		h[headerFailed] = []string{strings.Join(r.Failed, ",")}
	}
	if r.Access.Identity != "" {
		h[headerIdentity] = []string{string(r.Access.Identity)}
	}
	if grant := r.Access.Grant.Secret(); grant != "" {
		h[headerGrant] = []string{grant}
	}
}

// signedFields lists what a signature covers: method, target and every header
// that means something.
func signedFields(method, target string, h http.Header) []string {
	fields := []string{method, target, h.Get(headerTo), h.Get(headerFrom), h.Get(headerObject), h.Get(headerGeometry),
		h.Get(headerHops), h.Get(headerHeldOnly), h.Get(headerBackground), h.Get(headerPatience), h.Get(headerPace), h.Get(headerNear), h.Get(headerFailed), h.Get(headerGrant)}
	if id := h.Get(headerIdentity); id != "" { // the last, so that its absence is signed too
		fields = append(fields, id)
	}
	return fields
}

// invalid is an error of class objstore.ErrInvalid, for requests nobody can answer.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{objstore.ErrInvalid}, args...)...)
}

// parseRequest is the strict inverse of target and setHeaders.
func parseRequest(path string, h http.Header, g chunk.Geometry) (Request, error) {
	var r Request
	for _, name := range [...]string{headerObject, headerGeometry, headerTo, headerFrom, headerHops, headerHeldOnly,
		headerBackground, headerPatience, headerPace, headerNear, headerFailed, headerIdentity, headerGrant, headerAuth} {
		if len(h[name]) > 1 {
			return r, invalid("header %s comes twice", name)
		}
	}
	if got := h.Get(headerGeometry); got != geometryHeader(g) {
		return r, invalid("chunk and block size %q, ours are %s", got, geometryHeader(g))
	}
	var err error
	if r.ID, r.Span, err = parseTarget(path); err != nil {
		return r, err
	}
	enc, err := b64.DecodeString(h.Get(headerObject))
	if err != nil {
		return r, invalid("object identity: %v", err)
	}
	if r.Object, err = chunk.ParseObject(enc); err != nil {
		return r, invalid("%v", err)
	}
	if r.Object.ID() != r.ID {
		return r, invalid("object identity is not that of %v", r.ID)
	}
	if r.Span.End() > g.Blocks(r.Object.Size) || g.ChunkOf(r.Span.First) != g.ChunkOf(r.Span.End()-1) {
		return r, invalid("%v of an object of %d bytes: must lie within one chunk", r.Span, r.Object.Size)
	}
	if err := r.parseFlags(h); err != nil {
		return r, err
	}
	return r, nil
}

func (r *Request) parseFlags(h http.Header) error {
	hops, err := strconv.ParseUint(h.Get(headerHops), 10, 8)
	// A question of what is held does not go further, so it may come from the last hop.
	if err != nil || hops < 1 || hops > chunk.MaxHops+1 {
		return invalid("hops %q", h.Get(headerHops))
	}
	r.Hops = int(hops)
	switch h.Get(headerHeldOnly) {
	case "":
	case heldAny:
		r.HeldOnly = true
	case heldSettled:
		r.HeldOnly, r.Settled = true, true
	default:
		return invalid("header %s", headerHeldOnly)
	}
	switch h.Get(headerBackground) {
	case "":
	case "1":
		r.Background = true
	case backgroundFill:
		r.Background, r.Fill = true, true
	default:
		return invalid("header %s", headerBackground)
	}
	if patience := h.Get(headerPatience); patience != "" {
		ms, err := strconv.ParseUint(patience, 10, 32)
		if err != nil || ms == 0 || ms > uint64(maxPatience.Milliseconds()) || strconv.FormatUint(ms, 10) != patience {
			return invalid("patience %q", patience)
		}
		r.Patience = time.Duration(ms) * time.Millisecond
	}
	if err := r.parsePace(h.Get(headerPace)); err != nil {
		return err
	}
	r.From = h.Get(headerFrom)
	if !validMemberID(r.From) {
		return invalid("asking member %q", r.From)
	}
	if failed := h.Get(headerFailed); failed != "" {
		r.Failed = strings.Split(failed, ",")
	}
	if len(r.Failed) > MaxFailed {
		return invalid("%d failed members", len(r.Failed))
	}
	for _, id := range r.Failed {
		if id != AnyMember && !validMemberID(id) {
			return invalid("failed member %q", id)
		}
	}
	if r.Near = h.Get(headerNear); r.Near != "" && !validMemberID(r.Near) {
		return invalid("near member %q", r.Near)
	}
	r.Access = chunk.Access{Identity: chunk.Identity(h.Get(headerIdentity)), Grant: chunk.NewGrant(h.Get(headerGrant))}
	if !r.Access.Identity.Valid() {
		return invalid("identity of %d bytes", len(r.Access.Identity))
	}
	if n := len(r.Access.Grant.Secret()); n > chunk.MaxGrantBytes || n > 0 && r.Access.Identity == "" {
		return invalid("grant of %d bytes", n)
	}
	return nil
}

func (r *Request) parsePace(pace string) error {
	if pace == "" {
		return nil
	}
	number, slow := strings.CutSuffix(pace, slowSuffix)
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n == 0 && !slow || strconv.FormatInt(n, 10) != number {
		return invalid("pace %q", pace)
	}
	r.Pace, r.Slow = n, slow
	return nil
}

// validMemberID accepts what can stand in a header and in a list.
func validMemberID(id string) bool {
	if id == "" || len(id) > MaxMemberIDBytes {
		return false
	}
	for i := range len(id) {
		if c := id[i]; c <= ' ' || c > '~' || c == ',' || c == '*' {
			return false
		}
	}
	return true
}

// parseTarget takes /v1/blocks/{id}/{first}-{last} apart.
func parseTarget(path string) (chunk.ObjectID, chunk.Span, error) {
	var id chunk.ObjectID
	rest, ok := strings.CutPrefix(path, blocksPath)
	name, blocks, ok2 := strings.Cut(rest, "/")
	if !ok || !ok2 {
		return id, chunk.Span{}, invalid("path %q", path)
	}
	id, err := chunk.ParseObjectID(name)
	if err != nil {
		return id, chunk.Span{}, invalid("%v", err)
	}
	a, b, ok := strings.Cut(blocks, "-")
	first, ok1 := parseBlock(a)
	last, ok2 := parseBlock(b)
	if !ok || !ok1 || !ok2 || last < first || last-first >= maxSpanBlocks {
		return id, chunk.Span{}, invalid("blocks %q", blocks)
	}
	return id, chunk.Span{First: first, Count: last - first + 1}, nil
}

// parseSuspect takes /v1/suspect/{id}/{block} apart.
func parseSuspect(path string) (chunk.ObjectID, uint32, error) {
	rest, ok := strings.CutPrefix(path, suspectPath)
	name, number, ok2 := strings.Cut(rest, "/")
	block, ok3 := parseBlock(number)
	if !ok || !ok2 || !ok3 {
		return chunk.ObjectID{}, 0, invalid("path %q", path)
	}
	id, err := chunk.ParseObjectID(name)
	if err != nil {
		return id, 0, invalid("%v", err)
	}
	return id, block, nil
}

// maxBlocks is behind the last block of the largest object.
const maxBlocks = chunk.MaxObjectBytes / chunk.MinBlockBytes

// parseBlock accepts the one canonical spelling of a block's number.
func parseBlock(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n >= maxBlocks || strconv.FormatUint(n, 10) != s {
		return 0, false
	}
	return uint32(n), true
}
